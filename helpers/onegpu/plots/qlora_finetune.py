"""Figures of 07_qlora_finetune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, HATCHES, captioned, figure, label_bars
from onegpu.plots.drawing import arrow, box, canvas

GIB = 2**30


def lora(outputs: int = 12, inputs: int = 16, r: int = 2) -> Figure:
    """Draw a LoRA layer: the frozen W, and the thin A and B beside it whose product has W's shape.

    Parameters
    ----------
    outputs, inputs
        Shape of W as drawn.
    r
        The rank as drawn.
    """
    made, axes = canvas("LoRA: what is frozen, what is trained", 15, 6.4, 0.55)
    unit = 0.28
    wide, high, thin = inputs * unit, outputs * unit, r * unit
    box(axes, 0.6, 1.6, wide, high, f"W, frozen\n{outputs} x {inputs}", 5, 11)
    axes.text(5.75, 3.3, r"$+\ \frac{\alpha}{r}$", fontsize=19, ha="center", va="center")
    box(axes, 6.6, 1.6, thin, high, "B", 1, 12)
    axes.text(6.6 + thin / 2, 5.2, f"{outputs} x {r}\nzeros at first", fontsize=9, ha="center", va="bottom")
    box(axes, 7.6, 1.6 + high - thin, wide, thin, f"A   {r} x {inputs}, random at first", 2, 10)
    axes.text(12.35, 3.3, "=", fontsize=19, ha="center", va="center")
    axes.text(13.6, 3.3, "merged:\none matrix\nof W's shape", fontsize=10, ha="center", va="center")
    trained, frozen = r * (outputs + inputs), outputs * inputs
    return captioned(
        made,
        f"A has {r} rows and B has {r} columns, so their product has the shape of W. Drawn here {trained} numbers are trained "
        f"beside {frozen} frozen ones; in a layer of 576 by 576 with rank 16 it is "
        f"{16 * (576 + 576):,} beside {576 * 576:,}.",
    )


def qlora_path() -> Figure:
    """Draw the two ways of x through a QLoRA layer with the number formats, and where gradients flow."""
    made, axes = canvas("A QLoRA layer, forward and backward", 15, 7.2, 0.55)
    box(axes, 0.2, 3.1, 1.8, 1.1, "x\nfp16", 4)
    box(axes, 3.6, 5.5, 2.6, 1.1, "W in NF4\nhalf a byte", 5)
    box(axes, 7.2, 5.5, 2.8, 1.1, "W dequantized\nfp16", 5)
    box(axes, 7.6, 3.5, 2.0, 1.0, "x W$^T$", 5)
    box(axes, 3.6, 0.6, 2.6, 1.2, "A\nfp32, trained", 2)
    box(axes, 7.4, 0.6, 2.6, 1.2, "B\nfp32, trained", 1)
    box(axes, 12.2, 3.1, 2.4, 1.1, "y, the sum\nfp16", 4)
    arrow(axes, (6.2, 6.05), (7.2, 6.05))
    arrow(axes, (8.6, 5.5), (8.6, 4.5))
    arrow(axes, (2.0, 3.9), (7.6, 3.9))
    arrow(axes, (9.6, 3.9), (12.2, 3.8))
    arrow(axes, (2.0, 3.3), (3.6, 1.5))
    arrow(axes, (6.2, 1.4), (7.4, 1.4))
    arrow(axes, (10.0, 1.5), (12.4, 3.1))
    back = {"colour": 1, "linestyle": "--"}
    arrow(axes, (12.9, 3.1), (10.0, 0.9), bend=-0.15, **back)
    arrow(axes, (7.4, 0.9), (6.2, 0.9), **back)
    arrow(axes, (3.6, 0.9), (1.0, 3.1), bend=-0.2, **back)
    arrow(axes, (12.2, 3.5), (9.6, 3.65), **back)
    arrow(axes, (7.6, 3.65), (2.0, 3.5), **back)
    axes.text(10.3, 6.05, "no gradient for W:\nnothing is stored for it", fontsize=9, va="center")
    axes.text(
        7.2, 2.55, "dashed: gradients, through both ways to x", fontsize=9, ha="center", color=COLOURS[1]
    )
    return captioned(
        made,
        "The frozen W is kept in 4 bits and becomes fp16 for the moment of its product. Gradients go back through that "
        "product to x, but none is made for W; only A and B, in fp32, get gradients and optimizer states.",
    )


def packing(lengths: Sequence[int], rows: Sequence[Sequence[int]], max_length: int, shown: int = 6) -> Figure:
    """Draw packed rows, evenly taken from all of them, each example a piece.

    Parameters
    ----------
    lengths
        Tokens of each example.
    rows
        For each packed row the indices of its examples (``Packing.rows``).
    max_length
        Tokens that a packed row can hold.
    shown
        How many rows at most.
    """
    places = np.unique(np.linspace(0, len(rows) - 1, min(shown, len(rows))).astype(int))
    taken = [rows[i] for i in places]
    made, axes = figure(
        f"{len(taken)} of {len(rows):,} packed rows", "tokens", "", size=(7.0, 0.9 + 0.42 * len(taken))
    )
    for y, row in enumerate(taken):
        start = 0
        for number, i in enumerate(row):
            _bar(axes, y, start, lengths[i], number)
            start += lengths[i]
    axes.set(xlim=(0, max_length), ylim=(len(taken) - 0.4, -0.6), yticks=[])
    axes.grid(axis="y", visible=False)
    full = sum(lengths) / (len(rows) * max_length)
    return captioned(
        made,
        f"Rows of at most {max_length:,} tokens hold {min(map(len, rows))} to {max(map(len, rows))} examples each; all "
        f"{len(lengths):,} examples take {len(rows):,} rows, {full:.0%} full. Nothing fills them up: what a row lacks isn't "
        "computed.",
    )


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
    listed = ", ".join(map(str, seq_lens[:-1])) + f" and {seq_lens[-1]}"
    wrong = int(causal.sum() - own.sum())
    return captioned(
        made,
        f"In a packed row of {listed} tokens a causal mask alone lets {int(causal.sum())} pairs through, {wrong} of them from "
        f"one example to another; example by example it is {int(own.sum())}.",
    )


def loss_curve(
    losses: Sequence[tuple[int, float]],
    held_out: Sequence[tuple[int, float]] = (),
    steps: int | None = None,
    steps_per_epoch: float | None = None,
) -> Figure:
    """Draw the training loss by step, and the held-out loss where it was measured.

    Parameters
    ----------
    losses, held_out
        (step, loss) in nats per supervised token.
    steps
        All steps of the run, for a curve that isn't finished.
    steps_per_epoch
        Where given, the end of each epoch is marked.
    """
    made, axes = figure("Loss", "optimizer step", "loss (nats per supervised token)")
    axes.plot(*zip(*losses, strict=True), label="training")
    if held_out:
        whole = {
            "linestyle": "",
            "marker": "s",
            "markersize": 8,
            "clip_on": False,
            "zorder": 3,
        }  # at 0 and at the end
        axes.plot(*zip(*held_out, strict=True), label="held out", **whole)
        axes.legend()
    axes.set_xlim(0, max(steps or 0, losses[-1][0]) + 0.5)
    axes.set_ylim(bottom=0)
    ends = range(1, int(losses[-1][0] / steps_per_epoch) + 1) if steps_per_epoch else ()
    for epoch in ends:
        at = epoch * steps_per_epoch
        axes.axvline(at, color=COLOURS[5], linestyle="--", marker="")
        axes.annotate(
            "all rows seen" if epoch == 1 else f"{epoch} times", (at, 0.97), xycoords=("data", "axes fraction"),
            xytext=(-6, 0), textcoords="offset points", ha="right", va="top", fontsize=9,
        )  # fmt: skip
    last = losses[-3:]
    text = f"The training loss falls from {losses[0][1]:.1f} to {sum(loss for _, loss in last) / len(last):.1f} nats a token"
    if len(held_out) > 1:
        text += f", the held-out loss from {held_out[0][1]:.1f} to {held_out[-1][1]:.1f}"
    text += f", over {losses[-1][0]} steps"
    if ends:
        text += f"; a line marks step {steps_per_epoch:.0f}, where all rows have been seen once"
    return captioned(made, f"{text}.")


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
    fitting = sum(size <= budget_bytes for size in peak_bytes.values())
    return captioned(
        made,
        f"{fitting} of {len(sizes)} settings stay below {budget}: the smallest takes {min(sizes):.1f} GiB, "
        f"the largest {max(sizes):.1f}.",
    )


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
