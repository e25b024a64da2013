"""Figures of 00_start_here."""

from __future__ import annotations

from matplotlib.figure import Figure

from onegpu.exercises.start_here import weights_bytes
from onegpu.plots.base import COLOURS, HATCHES, captioned, figure, label_bars
from onegpu.plots.drawing import arrow, box, canvas
from onegpu.runtime import GPUS

GIB = 2**30
T4_BYTES = GPUS["T4"].total_bytes
"""What a T4 lets a program use of its 16 GB."""


def weights(parameters: int) -> Figure:
    """Draw the weights of a model in 32, 16, 8 and 4 bits, in GiB, against the memory of a T4."""
    made, axes = figure(
        f"Weights of a model of {parameters:,} parameters", "bits per parameter", "memory (GiB)"
    )
    names = ["32", "16", "8", "4"]
    sizes = [weights_bytes(parameters, int(bits)) / GIB for bits in names]
    fits = [size * GIB <= T4_BYTES for size in sizes]
    drawn = axes.bar(
        names,
        sizes,
        width=0.6,
        color=[COLOURS[0] if fit else COLOURS[1] for fit in fits],
        hatch=["" if fit else HATCHES[1] for fit in fits],
        edgecolor="white",
    )
    label_bars(axes, drawn)
    for text in axes.texts:  # a number may come to stand on the line
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})
    axes.axhline(T4_BYTES / GIB, color=COLOURS[5], linestyle="--", marker="")
    axes.annotate(
        f"a T4 has {T4_BYTES / GIB:.2f} GiB", (3.4, T4_BYTES / GIB), ha="right", va="bottom", fontsize=10
    )
    axes.set_ylim(0, max(*sizes, T4_BYTES / GIB) * 1.15)
    return made


def the_way() -> Figure:
    """Draw the way from rows of data and a model to a fine-tuned one, with the topic that explains each part.

    Examples
    --------
    >>> len(the_way().axes[0].texts) > 9
    True
    """
    made, axes = canvas("The whole way, and the topic that walks each part of it", 10.6, 5.4)
    box(axes, 0.1, 3.9, 2.2, 1.1, "rows:\nquestion, answer", 2)
    box(axes, 3.2, 3.9, 2.6, 1.1, "01, 02  tokens, and\nwhich of them count", 2)
    box(axes, 6.9, 3.9, 3.4, 1.1, "06  how many tokens,\nhow many steps", 2)
    box(axes, 0.1, 0.5, 2.2, 1.1, "a model:\nweights", 0)
    box(axes, 3.2, 0.5, 2.6, 1.1, "03  16 bits a weight,\n04  or 4", 0)
    box(axes, 6.9, 0.5, 3.4, 1.1, "05  what a training step\nholds in memory", 0)
    run = box(axes, 3.2, 2.2, 2.6, 1.1, "07  fine-tune\non one GPU", 3)
    box(axes, 6.9, 2.2, 3.4, 1.1, "a model that\ndoes your job", 1)
    box(axes, 0.1, 2.2, 2.2, 1.1, "08  the same\non many machines", 5, linestyle="--")
    for y in (4.45, 1.05):
        arrow(axes, (2.3, y), (3.2, y))
        arrow(axes, (5.8, y), (6.9, y))
    arrow(axes, (4.5, 3.9), (run[0], 3.3))
    arrow(axes, (4.5, 1.6), (run[0], 2.2))
    arrow(axes, (7.2, 3.9), (5.8, 3.1), linestyle="--")
    arrow(axes, (7.2, 1.6), (5.8, 2.4), linestyle="--")
    arrow(axes, (5.8, 2.75), (6.9, 2.75))
    arrow(axes, (2.3, 2.75), (3.2, 2.75), linestyle="--")
    return captioned(
        made,
        "Rows become tokens (01, 02), weights become few bits (03, 04), and both meet in one training run (07). "
        "Before it starts, you predict how long it takes (06) and what it needs (05). Topic 08 runs it on more machines.",
    )
