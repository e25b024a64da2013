"""Figures of topic 08: the article's design, waiting and computing, and scaling on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.ticker import PercentFormatter

from onegpu.plots.base import COLOURS, HATCHES, LINES, MARKERS, captioned, figure


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


def article_design(*, faults: bool = False) -> Figure:
    """Draw the actors of the article on Ray: as it draws them, or with what each of them really does.

    Parameters
    ----------
    faults
        Write the faults into the boxes.
    """
    notes = {
        "loader": ("splits the data set", "new iterator each call\nreserves a GPU"),
        "driver": ("model, optimizer", "model + optimizer\nwaits for each call"),
        "trainer": ("trains on a GPU", "copy of the model\ncopy of the optimizer"),
    }
    loader, driver, trainer = (note[faults] for note in notes.values())
    boxes = {
        "loader 0": (0.2, 3.9, f"loader 0\n{loader}", 5),
        "loader 1": (0.2, 0.9, f"loader 1\n{loader}", 5),
        "driver": (3.7, 2.4, f"driver\n{driver}", 0),
        "trainer 0": (7.2, 3.9, f"trainer 0\n{trainer}", 2),
        "trainer 1": (7.2, 0.9, f"trainer 1\n{trainer}", 2),
    }
    batch = "batch 0" if faults else "batches"
    arrows = [
        ("loader 0", "driver", batch, "one"),
        ("loader 1", "driver", batch, "one"),
        ("driver", "trainer 0", "batch", "one"),
        ("driver", "trainer 1", "batch", "one"),
    ]
    if faults:
        arrows.append(("trainer 1", "trainer 0", "no gradients", "missing"))
    drawn = _boxes("The design, and what it does" if faults else "The design", boxes, arrows)
    return captioned(
        drawn,
        "Each loader gives its first batch again and again and holds a GPU; each trainer has a copy of the model and a copy "
        "of the optimizer that don't know each other; nothing goes from one trainer to the other."
        if faults
        else "Two loaders give batches to the driver, which hands them to two trainers.",
    )


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
    drawn = _boxes("Ray Data feeds, Ray Train averages", boxes, arrows)
    return captioned(
        drawn,
        "Windows of the file go through Ray Data on CPUs and come out as one stream, of which worker 0 gets every even row "
        "and worker 1 every odd one. The workers average their gradients among themselves.",
    )


def strips(runs: Mapping[str, Any], seconds: float = 1.5) -> Figure:
    """Draw the first seconds of a training process that goes on like its typical step: computing, or waiting for data.

    Parameters
    ----------
    runs
        ``StepTimes`` by name; the typical step of each is repeated.
    seconds
        How much time is drawn.
    """
    fig, ax = figure(
        "The training process, second by second", "seconds", "", size=(7.4, 1.2 + 0.5 * len(runs))
    )
    counts = {}
    for y, (name, times) in enumerate(runs.items()):
        typical = times.typical
        wait, compute = typical.waiting[0], typical.computing[0]
        counts[name] = seconds / (wait + compute)
        start = 0.0
        while start < seconds:
            for width, colour, hatch in ((wait, COLOURS[3], HATCHES[1]), (compute, COLOURS[0], "")):
                shown = max(0.0, min(width, seconds - start))
                ax.barh(y, shown, left=start, height=0.6, color=colour, hatch=hatch, edgecolor="white")
                start += width
    ax.set_yticks(range(len(runs)), list(runs))
    ax.set_xlim(0, seconds)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    handles = [
        Patch(facecolor=COLOURS[0], label="computing"),
        Patch(facecolor=COLOURS[3], hatch=HATCHES[1], label="waiting for data"),
    ]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2)
    listed = ", ".join(f"{name} {n:.1f}" for name, n in counts.items())
    return captioned(fig, f"Steps done in {seconds:g} seconds: {listed}.")


def ring(workers: int = 4, frames: int = 6) -> Figure:
    """Draw a ring all-reduce in frames: who holds the sum of how many workers, chunk by chunk.

    Parameters
    ----------
    workers
        In the ring; each gradient is cut into as many chunks.
    frames
        How many rounds are drawn, of 2 (workers - 1).

    Examples
    --------
    >>> len(ring().axes)
    7
    """
    from onegpu.ray_scale_out import ring_allreduce

    rounds = ring_allreduce([np.ones(workers)] * workers).history
    held = np.ones((workers, workers), int)
    states = [held.copy()]
    for messages in rounds:
        before = held.copy()
        for worker, message in enumerate(messages):
            chunk, to = (int(word) for word in message.split() if word.isdigit())
            half = len(states) <= workers - 1
            held[to, chunk] = before[to, chunk] + before[worker, chunk] if half else before[worker, chunk]
        states.append(held.copy())
    shown = states[: frames + 1]
    fig, axes = figure(
        "A ring all-reduce",
        "chunk of the gradient",
        "worker",
        columns=len(shown),
        size=(9.4, 2.3),
        sharey=True,
    )
    for number, (ax, state) in enumerate(zip(axes, shown, strict=True)):
        ax.imshow(state, cmap="Blues", vmin=0, vmax=workers + 1)
        for (row, column), count in np.ndenumerate(state):
            ax.text(
                column,
                row,
                str(count),
                ha="center",
                va="center",
                color="white" if count > workers // 2 else "black",
            )
        ax.set_title("start" if not number else f"round {number}", loc="left", fontsize=9)
        ax.set(xticks=range(workers), yticks=range(workers))
        ax.grid(visible=False)
    return captioned(
        fig,
        f"Each number says how many of the {workers} workers' gradients are summed in that chunk. After {workers - 1} rounds "
        f"each worker holds one whole sum, after {2 * (workers - 1)} all hold all; in each round each worker sends one chunk.",
    )


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
    last = ", ".join(f"{name}: {points[-1].efficiency:.0%}" for name, points in curves.items())
    most = max(points[-1].workers for points in curves.values())
    return captioned(fig, f"In the model, the share of a step that computes at {most:,} workers is, {last}.")
