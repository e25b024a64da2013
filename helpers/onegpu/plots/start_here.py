"""Figures of 00_start_here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

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
    axes.axhline(T4_BYTES / GIB, color=COLOURS[5], linestyle="--", marker="")
    axes.annotate(
        f"a T4 has {T4_BYTES / GIB:.2f} GiB",
        (3.4, T4_BYTES / GIB),
        (0, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=10,
    )
    for text in axes.texts:  # on the line, or on one of the grid's
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})
    axes.set_ylim(0, max(*sizes, T4_BYTES / GIB) * 1.15)
    return made


def the_way() -> Figure:
    """Draw the way from rows of data and a model to a fine-tuned one, with the topic that explains each part.

    Examples
    --------
    >>> len(the_way().axes[0].texts) > 9
    True
    """
    made, axes = canvas("The whole way, and the topic that walks each part of it", 13.4, 6.0, scale=0.68)
    places = {
        "your rows": (0.1, 3.7, 2),
        "01, 02  what is learned": (3.5, 3.7, 2),
        "06  tokens and steps": (6.9, 3.7, 2),
        "a model": (0.1, 0.1, 0),
        "03, 04  bits a weight": (3.5, 0.1, 0),
        "05  memory of a step": (6.9, 0.1, 0),
        "07  the run": (10.3, 2.15, 3),
        "08  more machines": (10.3, 4.2, 5),
        "a model for your job": (10.3, 0.1, 1),
    }
    for title, (x, y, colour) in places.items():
        height = 2.2 if x < 10 else 1.7
        box(axes, x, y, 2.9, height, "", colour, linestyle="--" if title.startswith("08") else "-")
        axes.text(x + 0.15, y + height - 0.13, title, va="top", fontsize=10, weight="bold", color="#111111")
    _data(axes)
    _model(axes)
    _run(axes)
    for y in (4.8, 1.2):
        arrow(axes, (3.0, y), (3.5, y))
        arrow(axes, (6.4, y), (6.9, y))
    arrow(axes, (9.8, 4.3), (10.4, 3.85))
    arrow(axes, (9.8, 1.7), (10.4, 2.15))
    arrow(axes, (11.75, 2.15), (11.75, 1.8))
    arrow(axes, (11.75, 4.2), (11.75, 3.85), linestyle="--")
    return captioned(
        made,
        "Rows become tokens, of which only some are learned (01, 02); weights become few bits (03, 04). Before both meet in a "
        "run (07) you count tokens and steps (06) and the memory of a step (05). Topic 08 runs it on more machines.",
    )


def _cells(
    axes: Axes, x: float, y: float, sizes: Sequence[float], colours: Sequence[int], height: float
) -> None:
    """Draw a row of small boxes beside each other."""
    for size, colour in zip(sizes, colours, strict=True):
        look = {"facecolor": COLOURS[colour], "edgecolor": "white", "linewidth": 0.8}
        axes.add_patch(Rectangle((x, y), size, height, **look))
        x += size


def _small(axes: Axes, x: float, y: float, text: str, **more: Any) -> None:
    axes.text(x, y, text, va="center", color="#111111", **{"fontsize": 8.5} | more)


def _data(axes: Axes) -> None:
    """The upper row: a question and its answer; their tokens, the answer's in colour; rows of tokens, counted."""
    _small(axes, 0.25, 5.1, "Where is order 4471?")
    _small(axes, 0.25, 4.55, '{"intent": "track_order",', family="monospace", fontsize=7.5)
    _small(axes, 0.25, 4.2, ' "urgency": ...', family="monospace", fontsize=7.5)
    _cells(axes, 3.65, 4.85, [0.38] * 7, [5] * 4 + [2] * 3, 0.35)
    _small(axes, 3.65, 4.6, "question")
    _small(axes, 5.17, 4.6, "answer")
    _small(axes, 3.65, 4.07, "or of two answers:  A > B")
    for row, shares in enumerate(((0.5, 0.9, 0.6, 0.5), (1.1, 0.4, 0.8), (0.7, 0.7, 0.9))):
        _cells(axes, 7.05, 4.95 - 0.34 * row, shares, [2] * len(shares), 0.28)
    _small(axes, 7.05, 4.0, "tokens  →  steps  →  time")


def _model(axes: Axes) -> None:
    """The lower row: a matrix of weights; a weight in 32, 16 and 4 bits; a step's memory inside a card's."""
    for row in range(5):
        shades = [(0, 4, 5)[(row * 7 + column * column) % 3] for column in range(9)]
        _cells(axes, 0.3, 0.35 + 0.26 * row, [0.27] * 9, shades, 0.26)
    for row, bits in enumerate((32, 16, 4)):
        _cells(axes, 3.65, 1.4 - 0.45 * row, [1.95 / 32] * bits, [0] * bits, 0.3)
        _small(axes, 3.75 + 1.95 * bits / 32, 1.55 - 0.45 * row, f"{bits} bits")
    parts = {"weights": 0.7, "gradients": 0.4, "optimizer": 0.55, "activations": 0.6}
    axes.add_patch(Rectangle((7.05, 1.05), 2.6, 0.5, facecolor="white", edgecolor=COLOURS[0], linewidth=1.2))
    _cells(axes, 7.07, 1.08, list(parts.values()), [0, 1, 3, 4], 0.44)
    _small(axes, 7.05, 0.78, "weights, gradients, optimizer,")
    _small(axes, 7.05, 0.42, "activations: does it fit?")


def _run(axes: Axes) -> None:
    """The right column: a loss that falls; three machines; the answer that a program can read."""
    steps = np.linspace(0, 1, 40)
    axes.plot(
        10.6 + 2.3 * steps, 2.3 + 0.85 * np.exp(-3.5 * steps), color=COLOURS[1], marker="", linestyle="-"
    )
    _small(axes, 11.7, 2.95, "loss")
    for k in range(3):
        box(axes, 10.5 + 0.87 * k, 4.4, 0.72, 0.7, "GPU", 5, fontsize=8.5)
    _small(axes, 10.45, 1.0, '{"intent": "track_order",', family="monospace", fontsize=7.5)
    _small(axes, 10.45, 0.6, ' "urgency": "normal", ...', family="monospace", fontsize=7.5)
