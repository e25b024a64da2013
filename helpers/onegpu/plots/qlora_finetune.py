"""Figures of 07_qlora_finetune."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, HATCHES, figure, label_bars

GIB = 2**30


def packing(
    lengths: Sequence[int], rows: Sequence[Sequence[int]], max_length: int, shown: int = 10
) -> Figure:
    """Draw the examples of the first packed rows twice: each padded to the longest, and packed.

    Parameters
    ----------
    lengths
        Tokens of each example.
    rows
        For each packed row the indices of its examples (`Packing.rows`).
    max_length
        Tokens that a packed row can hold.
    shown
        How many examples at most.
    """
    taken: list[Sequence[int]] = []
    for row in rows:
        if taken and sum(map(len, taken)) + len(row) > shown:
            break
        taken.append(row)
    examples = list(itertools.chain(*taken))
    longest = max(lengths[i] for i in examples)
    made, (above, below) = figure(
        f"{len(examples)} examples, padded and packed", "tokens", "row", rows=2, columns=1, size=(7.0, 5.0),
        sharex=True, height_ratios=(len(examples), max(2, len(taken))),
    )  # fmt: skip
    for y, i in enumerate(examples):
        _bar(above, y, 0, lengths[i], y)
        above.barh(
            y,
            longest - lengths[i],
            left=lengths[i],
            color="#e3e3e3",
            hatch="///",
            edgecolor="white",
            height=0.8,
        )
    number = 0
    for y, row in enumerate(taken):
        start = 0
        for i in row:
            _bar(below, y, start, lengths[i], number)
            start, number = start + lengths[i], number + 1
    for axes, title, count in (
        (above, "padded to the longest", len(examples)),
        (below, "packed", len(taken)),
    ):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_yticks([])
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
    below.set_xlim(0, max_length)
    return made


def _bar(axes: Axes, y: int, start: int, length: int, number: int) -> None:
    colour = COLOURS[number % 4]
    axes.barh(y, length, left=start, color=colour, edgecolor="white", height=0.8)
    dark = COLOURS.index(colour) in (0, 1)
    axes.text(
        start + length / 2,
        y,
        str(number + 1),
        ha="center",
        va="center",
        fontsize=8,
        color="white" if dark else "black",
    )


def attention_of_a_row(seq_lens: Sequence[int]) -> Figure:
    """Draw which tokens each token of a packed row sees: with a causal mask alone, and example by example."""
    n = sum(seq_lens)
    causal = np.tril(np.ones((n, n), int))
    owner = np.repeat(np.arange(len(seq_lens)), seq_lens)
    own = causal * (owner[:, None] == owner[None, :])
    made, axes = figure(
        "Which token sees which", "token that is seen", "token that looks", columns=2, size=(7.0, 3.9)
    )
    colours = ListedColormap(["white", COLOURS[1], COLOURS[0]])
    for one, (title, seen) in zip(
        axes, (("causal mask alone", causal), ("example by example", own)), strict=True
    ):
        one.imshow(seen + own, cmap=colours, vmin=0, vmax=2)
        one.set_title(f"{title}: {int(seen.sum())} pairs", loc="left", fontsize=10)
        one.grid(visible=False)
        for edge in np.cumsum(seq_lens)[:-1]:
            one.axhline(edge - 0.5, color=COLOURS[5], linewidth=0.8, marker="")
            one.axvline(edge - 0.5, color=COLOURS[5], linewidth=0.8, marker="")
    return made


def loss_curve(
    losses: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]] = (), steps: int | None = None
) -> Figure:
    """Draw the training loss by step, and the held-out loss where it was measured.

    Parameters
    ----------
    losses, held_out
        (step, loss) in nats per supervised token.
    steps
        All steps of the run, for a curve that isn't finished.
    """
    made, axes = figure("Loss", "optimizer step", "loss (nats per supervised token)")
    axes.plot(*zip(*losses, strict=True), label="training")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), label="held out", linestyle="--", marker="s", markersize=7)
        axes.legend()
    axes.set_xlim(0, max(steps or 0, losses[-1][0]) + 0.5)
    axes.set_ylim(bottom=0)
    return made


def peaks(peak_bytes: Mapping[str, int], budget_bytes: int, budget: str) -> Figure:
    """Draw the peak memory of several settings in GiB, against what there is."""
    made, axes = figure(
        "Peak memory by settings", "memory (GiB)", "", size=(7.0, 0.9 + 0.55 * len(peak_bytes))
    )
    names, sizes = list(peak_bytes), [size / GIB for size in peak_bytes.values()]
    drawn = axes.barh(names, sizes, color=COLOURS[0], height=0.65)
    for bar, size in zip(drawn, peak_bytes.values(), strict=True):
        if size > budget_bytes:
            bar.set(color=COLOURS[1], hatch=HATCHES[1], edgecolor="white")
    label_bars(axes, drawn)
    axes.axvline(budget_bytes / GIB, color=COLOURS[5], linestyle="--", marker="")
    axes.annotate(
        budget,
        (budget_bytes / GIB, 1.0),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=9,
    )
    axes.set_title("Peak memory by settings", loc="left", pad=16)
    axes.set_xlim(0, max(*sizes, budget_bytes / GIB) * 1.15)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return made


def rank(shapes: Sequence[tuple[int, int]], chosen: int, frozen: int) -> Figure:
    """Draw the trainable share of a model by the rank of its adapters, with one rank marked.

    Parameters
    ----------
    shapes
        (out, in) of each adapted layer.
    chosen
        The rank to mark.
    frozen
        Parameters of the frozen model.
    """
    ranks = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    share = [100 * r * sum(map(sum, shapes)) / frozen for r in ranks]
    made, axes = figure("What is trained", "rank r", "trainable parameters (% of the frozen ones)")
    axes.plot(ranks, share)
    axes.plot(
        [chosen], [100 * chosen * sum(map(sum, shapes)) / frozen], marker="s", markersize=11, color=COLOURS[1]
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.minorticks_off()
    return made
