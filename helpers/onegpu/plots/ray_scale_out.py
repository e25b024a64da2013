"""Figures of topic 08: the article's design, waiting and computing, and scaling on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import PercentFormatter

from onegpu.plots.base import COLOURS, HATCHES, LINES, MARKERS, figure


def _boxes(title: str, boxes: Mapping[str, tuple[float, float, str, int]], arrows: Sequence[tuple]) -> Figure:
    fig, ax = figure(title, "", "", size=(7.4, 3.4))
    ax.set(xlim=(0, 10), ylim=(0.6, 5.3))
    ax.axis("off")
    for x, y, text, colour in boxes.values():
        ax.add_patch(
            FancyBboxPatch(
                (x, y), 2.5, 1.1, boxstyle="round,pad=0.08", facecolor="white", edgecolor=COLOURS[colour], linewidth=1.6
            )
        )  # fmt: skip
        ax.text(x + 1.25, y + 0.55, text, ha="center", va="center", fontsize=9)
    for start, end, text, style in arrows:
        (x1, y1, *_), (x2, y2, *_) = boxes[start], boxes[end]
        right = x2 > x1 + 1
        a = (x1 + 2.6, y1 + 0.55) if right else (x1 + 1.25, y1 + (1.2 if y2 > y1 else -0.1))
        b = (x2 - 0.1, y2 + 0.55) if right else (x2 + 1.25, y2 + (-0.1 if y2 > y1 else 1.2))
        ax.add_patch(
            FancyArrowPatch(a, b, arrowstyle="<->" if style == "both" else "-|>", mutation_scale=12,
                            linestyle="--" if style == "missing" else "-", color=COLOURS[1] if style == "missing" else COLOURS[5])
        )  # fmt: skip
        ax.text(
            (a[0] + b[0]) / 2, (a[1] + b[1]) / 2, text, ha="center", va="center", fontsize=8,
            color=COLOURS[1] if style == "missing" else "black",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    return fig


def article_design() -> Figure:
    """Draw article 002's actors and what is missing between them."""
    boxes = {
        "loader 0": (0.2, 3.9, "loader 0\nnew iterator each call\nreserves a GPU", 5),
        "loader 1": (0.2, 0.9, "loader 1\nnew iterator each call\nreserves a GPU", 5),
        "driver": (3.7, 2.4, "driver\nmodel + optimizer\nwaits for each call", 0),
        "trainer 0": (7.2, 3.9, "trainer 0\ncopy of the model\ncopy of the optimizer", 2),
        "trainer 1": (7.2, 0.9, "trainer 1\ncopy of the model\ncopy of the optimizer", 2),
    }
    arrows = [
        ("loader 0", "driver", "batch 0", "one"),
        ("loader 1", "driver", "batch 0", "one"),
        ("driver", "trainer 0", "batch", "one"),
        ("driver", "trainer 1", "batch", "one"),
        ("trainer 1", "trainer 0", "no gradients", "missing"),
    ]
    return _boxes("The article's design", boxes, arrows)


def mended_design() -> Figure:
    """Draw Ray Data and Ray Train: a stream, equal shares, averaged gradients."""
    boxes = {
        "windows": (0.2, 2.4, "windows\nof the file", 5),
        "data": (3.7, 2.4, "Ray Data\nread, validate, tokenize,\nmask, pack (CPUs)", 0),
        "worker 0": (7.2, 3.9, "worker 0: model, optimizer\nrows 0, 2, 4, ...", 2),
        "worker 1": (7.2, 0.9, "worker 1: model, optimizer\nrows 1, 3, 5, ...", 2),
    }
    arrows = [
        ("windows", "data", "in parallel", "one"),
        ("data", "worker 0", "stream", "one"),
        ("data", "worker 1", "stream", "one"),
        ("worker 1", "worker 0", "all-reduce of gradients", "both"),
    ]
    return _boxes("Ray Data feeds, Ray Train averages", boxes, arrows)


def step_times(runs: Mapping[str, Any]) -> Figure:
    """Draw waiting and computing of an average step, one bar a run.

    Parameters
    ----------
    runs
        ``StepTimes`` by name.
    """
    fig, ax = figure("Where a step's time goes", "seconds of a step", "", size=(7.0, 1.4 + 0.55 * len(runs)))
    names = list(runs)[::-1]
    n = [max(1, len(runs[name])) for name in names]
    computing = [sum(runs[name].computing) / k for name, k in zip(names, n, strict=True)]
    waiting = [sum(runs[name].waiting) / k for name, k in zip(names, n, strict=True)]
    ax.barh(names, computing, color=COLOURS[0], label="computing", height=0.55)
    ax.barh(
        names,
        waiting,
        left=computing,
        color=COLOURS[3],
        hatch=HATCHES[1],
        label="waiting for data",
        height=0.55,
    )
    for y, name in enumerate(names):
        ax.text(
            computing[y] + waiting[y], y, f" {runs[name].share_waiting:.0%} waits", va="center", fontsize=9
        )
    ax.margins(x=0.16)
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.32 if len(runs) < 3 else -0.22), ncols=2)
    return fig


def scaling(curves: Mapping[str, Sequence[Any]]) -> Figure:
    """Draw the useful share of the workers' time against their number.

    Parameters
    ----------
    curves
        Lists of ``ScalingPoint`` by name.
    """
    fig, ax = figure(
        "Useful share of the workers' time (model, not measured)", "workers", "computing / whole step"
    )
    for i, (name, points) in enumerate(curves.items()):
        ax.plot(
            [p.workers for p in points], [p.efficiency for p in points], label=name, color=COLOURS[i],
            linestyle=LINES[i], marker=MARKERS[i],
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylim(0, 1.05)
    ax.legend(fontsize=9)
    return fig
