"""Figures of topic 01: lengths of answers, the shift by one, layouts of a batch, clean rows against noisy ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, HATCHES, captioned, figure
from onegpu.plots.drawing import TINTS, arrow, canvas, strip
from onegpu.sft_datasets import Lengths


def lengths(sets: Mapping[str, Lengths]) -> Figure:
    """Draw a histogram of lengths for each named data set, as shares of its rows.

    Examples
    --------
    >>> chart = lengths({"a": Lengths({1: 2, 5: 1}, "words"), "b": Lengths({9: 1}, "words")})
    >>> [text.get_text() for text in chart.axes[0].get_legend().get_texts()]
    ['a', 'b']
    """
    unit = next(iter(sets.values())).unit
    made, axes = figure("How long the answers are", f"{unit} in an answer", "share of rows (%)")
    top = max(max(one.counts) for one in sets.values())
    step = max(1, -(-top // 20))
    edges = range(0, top + step + 1, step)
    for k, (name, one) in enumerate(sets.items()):
        rows = sum(one.counts.values())
        axes.hist(
            list(one.counts),
            bins=list(edges),
            weights=[100 * count / rows for count in one.counts.values()],
            label=name,
            color=COLOURS[k],
            hatch=HATCHES[k],
            alpha=0.6,
            edgecolor="white",
        )
    axes.legend()
    middle = "; ".join(
        f"{name}: half of the answers have {one.quantile(0.25)} to {one.quantile(0.75)} {one.unit}, the longest "
        f"{one.quantile(1.0)}"
        for name, one in sets.items()
    )
    return captioned(made, f"{middle}.")


def shift(pieces: Sequence[str], learned: Sequence[bool]) -> Figure:
    """Draw tokens, and under them the labels that the loss compares with: each one position to the left.

    Parameters
    ----------
    pieces
        The text of each token.
    learned
        Whether each is learned; the others have the label -100.

    Examples
    --------
    >>> shift(["2+2", "is", "4", "<end>"], [False, False, True, True]).onegpu_caption
    'The state at each token predicts the next token. 2 of 4 labels are learned (green): the first is predicted at “is”, before the answer begins.'
    """
    count = len(pieces)
    made, axes = canvas("Position t predicts the token at t + 1", count + 1.6, 3.4)
    axes.text(0.05, 2.75, "the model\nreads", fontsize=10, va="center")
    axes.text(0.05, 0.65, "labels", fontsize=10, va="center")
    # ChatML's marks are wider than a cell: <|im_end|> is drawn as <end>.
    shown = [re.sub(r"<\|(?:im_)?(\w+)\|>", r"<\1>", piece) for piece in pieces]
    shown = [piece.replace("\n", "⏎").replace(" ", "·") for piece in shown]
    above = strip(axes, 1.5, 2.4, shown, [5] * count)
    below = strip(
        axes,
        1.5,
        0.3,
        [text if yes else "-100" for text, yes in zip(shown, learned, strict=True)],
        [2 if yes else 5 for yes in learned],
    )
    for t in range(count - 1):
        start, end = (above[t][0], above[t][1] - 0.35), (below[t + 1][0], below[t + 1][1] + 0.35)
        if learned[t + 1]:
            arrow(axes, start, end, colour=2, lw=2.2)
        else:
            arrow(axes, start, end, lw=0.7, linestyle=":")
    first = learned.index(True)
    return captioned(
        made,
        f"The state at each token predicts the next token. {sum(learned)} of {count} labels are learned (green): "
        f"the first is predicted at “{shown[first - 1]}”, before the answer begins.",
    )


def layouts(lengths: Sequence[int], max_length: int, batch_size: int = 4) -> Figure:
    """Draw the same examples in three layouts, a row of positions each: padded to max_length, padded to the longest, packed.

    Parameters
    ----------
    lengths
        Tokens of each example, none over max_length.
    max_length
        Positions in a row.
    batch_size
        Examples in a batch.

    Examples
    --------
    >>> layouts([3, 9, 4, 2], max_length=10, batch_size=2).onegpu_caption
    'The same 18 tokens in three layouts. Real tokens are 45 % of the positions padded to 10, 69 % padded to the longest of a batch, 90 % packed.'
    """
    rows_of = {
        f"padded to {max_length}": [([length], max_length) for length in lengths],
        "padded to the longest\nof its batch": [
            ([length], max(lengths[k - k % batch_size : k - k % batch_size + batch_size]))
            for k, length in enumerate(lengths)
        ],
        "packed": [([lengths[i] for i in row], max_length) for row in _packed(lengths, max_length)],
    }
    made, panels = figure(
        "", "token positions", "", columns=3, size=(9.0, 0.24 * len(lengths) + 1.6), sharey=True
    )
    shares = []
    for axes, (name, rows) in zip(panels, rows_of.items(), strict=True):
        for k, (parts, width) in enumerate(rows):
            axes.barh(k, width, color=TINTS[5], edgecolor=COLOURS[5], hatch="//", linewidth=0.4, height=0.8)
            left = 0
            for number, part in enumerate(parts):
                axes.barh(
                    k, part, left=left, color=COLOURS[(0, 2)[number % 2]], edgecolor="white", height=0.8
                )
                left += part
        shares.append(sum(lengths) / sum(width for _, width in rows))
        axes.set(xlim=(0, max_length), yticks=[])
        axes.set_title(f"{name}\n{shares[-1]:.0%} real tokens", loc="left", fontsize=10)
        axes.grid(visible=False)
    panels[0].invert_yaxis()
    return captioned(
        made,
        f"The same {sum(lengths):,} tokens in three layouts. Real tokens are {shares[0] * 100:.0f} % of the positions padded to "
        f"{max_length}, {shares[1] * 100:.0f} % padded to the longest of a batch, {shares[2] * 100:.0f} % packed.",
    )


def _packed(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    from onegpu.packed_training import pack_lengths

    return [list(row) for row in pack_lengths(lengths, max_length).rows]


def scores(runs: Mapping[str, Sequence[Mapping[str, float]]], chance: float) -> Figure:
    """Draw shares of right answers for each named set of rows: topic, form and both, one dot for each run.

    Parameters
    ----------
    runs
        For each name, one mapping a seed: {"topic": share, "form": share, "both": share}, 0 to 1.
    chance
        Share of topics that a guess gets right.

    Examples
    --------
    >>> run = {"topic": 0.5, "form": 1.0, "both": 0.5}
    >>> scores({"clean": [run, run], "noisy": [run | {"topic": 0.25}]}, 0.25).onegpu_caption
    'Topic right: clean 50 % to 50 %, noisy 25 % to 25 %; a guess gets 25 %. Form right: clean 100 % to 100 %, noisy 100 % to 100 %.'
    """
    made, axes = figure("Held-out answers that are right", "", "share of answers (%)")
    kinds = ("topic", "form", "both")
    width = 0.8 / len(runs)
    for k, (name, done) in enumerate(runs.items()):
        places = [place - 0.4 + (k + 0.5) * width for place in range(len(kinds))]
        means = [100 * sum(run[kind] for run in done) / len(done) for kind in kinds]
        axes.bar(
            places, means, width * 0.9, color=COLOURS[k], hatch=HATCHES[k], edgecolor="white", label=name
        )
        for place, kind in zip(places, kinds, strict=True):
            dots = [100 * run[kind] for run in done]
            axes.plot([place] * len(dots), dots, "o", color="white", markeredgecolor="black", markersize=6)
    axes.axhline(100 * chance, color=COLOURS[5], linestyle="--", marker="", label="a guess at the topic")
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylim(0, 118)
    axes.grid(axis="x", visible=False)
    axes.legend(ncols=len(runs) + 1, loc="upper center", fontsize=9)

    def spread(kind: str) -> str:
        return ", ".join(
            f"{name} {min(run[kind] for run in done) * 100:.0f} % to {max(run[kind] for run in done) * 100:.0f} %"
            for name, done in runs.items()
        )

    return captioned(
        made,
        f"Topic right: {spread('topic')}; a guess gets {chance * 100:.0f} %. Form right: {spread('form')}.",
    )
