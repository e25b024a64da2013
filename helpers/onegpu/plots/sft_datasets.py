"""Figures of topic 01: lengths, packing, a clean set against a noisy one."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, HATCHES, figure, label_bars
from onegpu.sft_datasets import Lengths, PackingFigures


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
    return made


def packing(done: PackingFigures) -> Figure:
    """Draw real tokens and padding in the three layouts, stacked.

    Examples
    --------
    >>> chart = packing(PackingFigures(18, 40, 26, 2, 20, 0))
    >>> [int(bar.get_height()) for bar in chart.axes[0].containers[1]]
    [22, 8, 2]
    """
    layouts = {
        "padded to\nmax_length": done.padded_to_max,
        "padded to the\nlongest of a batch": done.padded_to_batch,
        "packed": done.packed,
    }
    made, axes = figure("What the GPU computes on", "", "token positions")
    names = list(layouts)
    axes.bar(names, [done.tokens] * 3, color=COLOURS[0], width=0.6, label="real tokens")
    padding = [positions - done.tokens for positions in layouts.values()]
    axes.bar(names, padding, bottom=done.tokens, color=COLOURS[3], hatch="//", width=0.6, label="padding")
    axes.grid(axis="x", visible=False)
    axes.legend()
    return made


def clean_and_noisy(losses: Mapping[str, float], right: Mapping[str, float]) -> Figure:
    """Draw held-out loss and the share of right answers for each named run, side by side.

    Examples
    --------
    >>> chart = clean_and_noisy({"before": 8.0, "clean": 0.4}, {"before": 0.0, "clean": 0.5})
    >>> len(chart.axes)
    2
    """
    made, (left, other) = figure("Held-out rows", "", "", rows=1, columns=2)
    label_bars(left, left.bar(list(losses), list(losses.values()), color=COLOURS[0], width=0.6))
    left.set_ylabel("loss (nats per supervised token)")
    shares = [100 * value for value in right.values()]
    label_bars(other, other.bar(list(right), shares, color=COLOURS[1], hatch="//", width=0.6), "{:,.0f}")
    other.set_ylabel("answers that are exactly right (%)")
    for axes in (left, other):
        axes.grid(axis="x", visible=False)
    return made
