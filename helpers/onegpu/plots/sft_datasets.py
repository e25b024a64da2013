"""Figures of topic 01: lengths of answers, the shift by one, layouts of a batch, the experiment with noisy rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, HATCHES, LINE_COLOURS, captioned, figure
from onegpu.plots.drawing import TINTS, arrow, box, canvas, strip
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


def rows_by_kind(sets: Mapping[str, Sequence[str]], right: str = "right", per_row: int = 32) -> Figure:
    """Draw each row of some sets as a square, coloured and hatched by its kind.

    Parameters
    ----------
    sets
        For each set the kind of each of its rows, in order.
    right
        The kind that has no fault.
    per_row
        Squares beside each other.

    Examples
    --------
    >>> rows_by_kind({"clean": ["right"], "noisy": ["right", "wrong", "wrong"]}).onegpu_caption
    'A square is a row. clean: 1 of 1 right; noisy: 1 of 3 right (2 wrong).'
    """
    from matplotlib.patches import Rectangle

    kinds = [right, *dict.fromkeys(k for rows in sets.values() for k in rows if k != right)]
    heights = {name: -(-len(rows) // per_row) for name, rows in sets.items()}
    made, axes = figure(
        "What the sets hold", "", "", size=(8.0, 0.9 + 0.24 * (sum(heights.values()) + len(sets)))
    )
    top, labels, said = 0.0, [], []
    for name, rows in sets.items():
        for k, kind in enumerate(rows):
            look = kinds.index(kind)
            axes.add_patch(
                Rectangle(
                    (k % per_row, top + k // per_row),
                    0.86,
                    0.86,
                    facecolor=COLOURS[2] if kind == right else TINTS[(1, 5, 3, 4)[(look - 1) % 4]],
                    edgecolor=LINE_COLOURS[2 if kind == right else (1, 5, 3, 4)[(look - 1) % 4]],
                    hatch="" if kind == right else ("//", "..", "\\\\", "xx")[(look - 1) % 4],
                    label=kind,
                )
            )
        labels.append((top + heights[name] / 2, f"{name}\n{len(rows)} rows"))
        top += heights[name] + 0.6
        faults = ", ".join(f"{rows.count(kind)} {kind}" for kind in kinds[1:] if kind in rows)
        said.append(f"{name}: {rows.count(right)} of {len(rows)} right{f' ({faults})' if faults else ''}")
    axes.set(xlim=(-0.2, per_row), ylim=(top - 0.4, -0.2), xticks=[], aspect="equal")
    axes.set_yticks([place for place, _ in labels], [text for _, text in labels])
    axes.tick_params(left=False)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(
        [found[kind] for kind in kinds],
        kinds,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.02),
        ncols=len(kinds),
    )
    return captioned(made, f"A square is a row. {'; '.join(said)}.")


def frozen_below(layers: int, frozen: int) -> Figure:
    """Draw a model of which only the upper layers are trained: the lower ones read each row once.

    Examples
    --------
    >>> frozen_below(30, 28).onegpu_caption
    'Layers 1 to 28 never change, so they read each row once. Only the adapters in the last 2 of 30 layers are trained.'
    """
    made, axes = canvas("Read once, train the rest", 13.2, 2.2)
    texts = (
        ("a row's\ntokens", 5),
        (f"{frozen} layers, frozen:\nrun once", 0),
        ("kept: numbers\nof each token", 3),
        (f"{layers - frozen} layers with\nadapters: trained", 2),
        ("head: scores,\nloss", 5),
    )
    left = 0.1
    for k, (text, colour) in enumerate(texts):
        width = (1.7, 2.6, 2.3, 2.7, 1.8)[k]
        box(axes, left, 0.8, width, 1.1, text, colour)
        left += width + 0.5
        if k + 1 < len(texts):
            arrow(axes, (left - 0.5, 1.35), (left, 1.35))
    axes.annotate(
        "",
        (6.35, 0.8),
        (11.4, 0.8),
        arrowprops={"arrowstyle": "-|>", "color": COLOURS[2], "lw": 2, "connectionstyle": "arc3,rad=-0.18"},
    )
    axes.text(8.9, 0.02, "again for every step", ha="center", va="bottom", fontsize=9, color="#14564e")
    return captioned(
        made,
        f"Layers 1 to {frozen} never change, so they read each row once. Only the adapters in the last {layers - frozen} of "
        f"{layers} layers are trained.",
    )


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
