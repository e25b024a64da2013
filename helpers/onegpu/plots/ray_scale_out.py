"""Figures of topic 08: the article's design, waiting and computing, and scaling on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.ticker import PercentFormatter

from onegpu.plots.base import COLOURS, HATCHES, LINES, MARKERS, captioned, figure
from onegpu.plots.drawing import TINTS, arrow, box, canvas, strip


def _boxes(
    title: str,
    boxes: Mapping[str, tuple[float, float, str, int]],
    arrows: Sequence[tuple[str, str, str, str]],
    faults: Mapping[str, str] | None = None,
) -> Figure:
    """Boxes of a design, by name (x, y, text, colour), arrows between them, and below a box's text what is wrong there."""
    faults = faults or {}
    height = 1.6 if faults else 1.1
    wide = 2.4 if faults else 2.5
    bad = {"color": COLOURS[1], "fontweight": "bold"}
    fig, ax = figure(title, "", "", size=(8.4, 4.0) if faults else (7.4, 3.4))
    ax.set(xlim=(0, 10), ylim=(0.3 if faults else 0.6, 5.6 if faults else 5.3))
    ax.axis("off")
    for name, (x, y, text, colour) in boxes.items():
        y = y + 0.55 - height / 2
        ax.add_patch(
            FancyBboxPatch(
                (x, y), wide, height, boxstyle="round,pad=0.08", facecolor=TINTS[1] if name in faults else "white",
                edgecolor=COLOURS[colour], linewidth=1.6,
            )
        )  # fmt: skip
        if name in faults:
            ax.text(x + wide / 2, y + height - 0.08, text, ha="center", va="top", fontsize=9)
            ax.text(
                x + 0.05,
                y + height - 0.42,
                faults[name],
                va="top",
                fontsize=8.5,
                color="#8a2f1c",
                linespacing=1.35,
            )
        else:
            ax.text(x + wide / 2, y + height / 2, text, ha="center", va="center", fontsize=9)
    for start, end, text, style in arrows:
        (x1, y1, *_), (x2, y2, *_) = boxes[start], boxes[end]
        right = x2 > x1 + 1
        up = height / 2 + 0.1
        a = (x1 + wide + 0.1, y1 + 0.55) if right else (x1 + wide / 2, y1 + 0.55 + (up if y2 > y1 else -up))
        b = (x2 - 0.1, y2 + 0.55) if right else (x2 + wide / 2, y2 + 0.55 + (-up if y2 > y1 else up))
        ax.add_patch(
            FancyArrowPatch(a, b, arrowstyle="<->" if style == "both" else "-|>", mutation_scale=12,
                            linestyle="--" if style == "missing" else "-", color=COLOURS[5 if style in ("one", "both") else 1])
        )  # fmt: skip
        ax.text(
            (a[0] + b[0]) / 2, (a[1] + b[1]) / 2, text, ha="center", va="center", fontsize=8.5,
            **({"color": "black"} if style in ("one", "both") else bad),
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    return fig


def article_design(*, faults: bool = False) -> Figure:
    """Draw the actors of the article on Ray: as it draws them, or with what each of them really does.

    Parameters
    ----------
    faults
        Write the nine faults that print no error where they are, with the numbers that lesson 08 gives them.
    """
    loader, driver, trainer = ("\nsplits the data set", "\nmodel, optimizer", "\ntrains on a GPU")
    if faults:
        loader = driver = trainer = ""
    low, high = (0.75, 4.05) if faults else (0.9, 3.9)
    boxes = {
        "loader 0": (0.1, high, f"loader 0{loader}", 5),
        "loader 1": (0.1, low, f"loader 1{loader}", 5),
        "driver": (3.8 if faults else 3.7, 2.4, f"driver{driver}", 0),
        "trainer 0": (7.5 if faults else 7.2, high, f"trainer 0{trainer}", 2),
        "trainer 1": (7.5 if faults else 7.2, low, f"trainer 1{trainer}", 2),
    }
    if not faults:
        arrows = [
            ("loader 0", "driver", "batches", "one"),
            ("loader 1", "driver", "batches", "one"),
            ("driver", "trainer 0", "batch", "one"),
            ("driver", "trainer 1", "batch", "one"),
        ]
        return captioned(
            _boxes("The design", boxes, arrows),
            "Two loaders give batches to the driver, which hands them to two trainers.",
        )
    wrong = {
        f"loader {k}": "1 begins anew each call\n2 has no end\n6 reads all rows\n7 puts no row on a GPU\n8 holds a GPU"
        for k in (0, 1)
    }
    wrong |= {f"trainer {k}": "3 steps another copy\n   of the model" for k in (0, 1)}
    wrong["driver"] = "4 keeps a model that\n   nobody trains\n9 waits for each call"
    arrows = [
        ("loader 0", "driver", "first\nbatch", "bad"),
        ("loader 1", "driver", "never\nasked", "missing"),
        ("driver", "trainer 0", "batch", "one"),
        ("driver", "trainer 1", "no\nbatch", "missing"),
        ("trainer 1", "trainer 0", "5 no average", "missing"),
    ]
    return captioned(
        _boxes("The design, and what it does", boxes, arrows, wrong),
        "Red is what misleads, with the numbers of the list above; dashed is what never happens. Each box has a fault, and the "
        "two trainers have nothing between them.",
    )


def mended_design() -> Figure:
    """Draw Ray Data and Ray Train: a stream, equal shares, averaged gradients."""
    boxes = {
        "windows": (0.2, 2.4, "windows\nof the file", 5),
        "data": (3.7, 2.4, "Ray Data, in parallel:\nread, validate, tokenize,\nmask, pack (CPUs)", 0),
        "worker 0": (7.2, 3.9, "worker 0: model, optimizer\nrows 0, 2, 4, ...", 2),
        "worker 1": (7.2, 0.9, "worker 1: model, optimizer\nrows 1, 3, 5, ...", 2),
    }
    arrows = [
        ("windows", "data", "", "one"),
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


def row_shares(windows: Sequence[int] = (3, 4), workers: int = 2) -> Figure:
    """Draw packed rows as a strip, window by window, and below it which worker takes which, with filler rows at the end.

    Parameters
    ----------
    windows
        How many packed rows each window has.
    workers
        Row ``i`` goes to worker ``i % workers``.

    Examples
    --------
    >>> row_shares().onegpu_caption
    '7 rows of 2 windows on 2 workers: 4 steps. In each, the workers take neighbouring rows; 1 filler row makes the shares equal.'
    """
    rows = sum(windows)
    steps = -(-rows // workers)
    fillers = steps * workers - rows
    of_window = [k for k, count in enumerate(windows) for _ in range(count)]
    fig, axes = canvas("Which worker takes which row", 2.0 + steps * workers, 1.9 + 0.85 * workers)
    top = 0.85 * workers + 0.75
    axes.text(1.8, top + 0.35, "packed rows", ha="right", va="center", fontsize=9)
    strip(axes, 2.0, top, [str(i) for i in range(rows)], [(0, 2)[k % 2] for k in of_window])
    start = 2.0
    for k, count in enumerate(windows):
        axes.text(start + count / 2, top + 0.8, f"window {k}", ha="center", va="bottom", fontsize=9)
        start += count
    for worker in range(workers):
        y = 0.4 + 0.85 * (workers - 1 - worker)
        axes.text(1.8, y + 0.35, f"worker {worker}", ha="right", va="center", fontsize=9)
        for step in range(steps):
            row = step * workers + worker
            spot = (2.03 + workers * step, y, workers - 0.06, 0.7)
            if row < rows:
                box(axes, *spot, str(row), (0, 2)[of_window[row] % 2], 9)
            else:
                box(axes, *spot, "filler", 5, 9, linestyle="--")
    for step in range(steps):
        axes.text(2.0 + workers * (step + 0.5), 0.28, f"step {step}", ha="center", va="top", fontsize=9)
    return captioned(
        fig,
        f"{rows} rows of {len(windows)} windows on {workers} workers: {steps} steps. In each, the workers take neighbouring rows; "
        f"{fillers} filler row{'s' * (fillers != 1)} makes the shares equal.",
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
    fig, ax = figure("Where a step's time goes", "seconds of a step", "", size=(7.0, 1.6 + 0.5 * len(runs)))
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
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return fig


def loss_by_workers(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw the loss after the same rows against the number of workers that shared them.

    Parameters
    ----------
    curves
        Loss by number of workers, by the name of a way to choose the learning rate.

    Examples
    --------
    >>> loss_by_workers({"one rate": {1: 0.1, 8: 6.0}, "rate x workers": {1: 0.1, 8: 0.2}}).onegpu_caption
    'Loss after the same rows. one rate: 0.10 with 1 worker, 6.00 with 8. rate x workers: 0.10 with 1 worker, 0.20 with 8.'
    """
    fig, ax = figure("The same rows, fewer steps", "workers", "loss over all rows after one epoch")
    said = []
    for i, (name, losses) in enumerate(curves.items()):
        ax.plot(
            list(losses),
            list(losses.values()),
            label=name,
            color=COLOURS[i],
            linestyle=LINES[i],
            marker=MARKERS[i],
        )
        first, *_, last = losses
        said.append(f"{name}: {losses[first]:.2f} with {first} worker, {losses[last]:.2f} with {last}")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.set_ylim(bottom=0)
    ax.legend()
    return captioned(fig, f"Loss after the same rows. {'. '.join(said)}.")


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


def checkpoints(steps: int = 10, save_every: int = 3, killed: int = 7) -> Figure:
    """Draw a run of a worker that is killed during a step, and its next start from the newest checkpoint.

    Parameters
    ----------
    steps
        Of the run, numbered from 0.
    save_every
        Steps between two checkpoints; the last step has one too.
    killed
        The step that isn't done any more.

    Examples
    --------
    >>> checkpoints().onegpu_caption
    'Checkpoints of 3, 6, 9 and 10 steps. Killed in step 7, the worker begins again with step 6, so 1 step is done twice.'
    """
    saved = [n for n in range(1, steps + 1) if n % save_every == 0 or n == steps]
    begin = max((n for n in saved if n <= killed), default=0)
    fig, axes = canvas("Killed once", 3.3 + steps, 4.7)

    def row(y: float, name: str, first: int, last: int, twice: range) -> None:
        axes.text(2.2, y + 0.35, name, ha="right", va="center", fontsize=9)
        for step in range(first, last):
            box(axes, 2.5 + step, y, 0.92, 0.7, str(step), 3 if step in twice else 2, 9)
        for n in saved:
            if first < n <= last:
                axes.plot(
                    [2.46 + n] * 2,
                    [y - 0.55, y + 0.8],
                    color=COLOURS[0],
                    linestyle="-",
                    marker="",
                    linewidth=1.6,
                )
                axes.text(2.46 + n, y - 0.6, f"{n} done", ha="center", va="top", fontsize=8.5)

    row(3.6, "first start", 0, killed, range(begin, killed))
    box(axes, 2.5 + killed, 3.6, 0.92, 0.7, f"{killed}\nkilled", 1, 8.5, linestyle="--")
    row(1.0, "second start", begin, steps, range(begin, killed))
    arrow(axes, (2.46 + begin, 2.55), (2.6 + begin, 1.8), colour=0)
    axes.text(2.3 + begin, 2.2, "newest checkpoint", ha="right", va="center", fontsize=9)
    listed = ", ".join(map(str, saved[:-1])) + f" and {saved[-1]}" if saved[1:] else str(saved[0])
    lost = killed - begin
    return captioned(
        fig,
        f"Checkpoints of {listed} steps. Killed in step {killed}, the worker begins again with step {begin}, so {lost} "
        f"{'step is' if lost == 1 else 'steps are'} done twice.",
    )
