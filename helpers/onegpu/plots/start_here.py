"""Figures of 00_start_here."""

from __future__ import annotations

from matplotlib.figure import Figure

from onegpu.exercises.start_here import weights_bytes
from onegpu.plots.base import COLOURS, HATCHES, figure, label_bars
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
        f"a T4 has {T4_BYTES / GIB:.2f} GiB", (3.4, T4_BYTES / GIB), ha="right", va="bottom", fontsize=10
    )
    axes.set_ylim(0, max(*sizes, T4_BYTES / GIB) * 1.15)
    return made
