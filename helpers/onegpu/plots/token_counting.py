"""Figures of topic 06: what a list column looks like in memory, what a count and what padding cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from onegpu.plots.base import COLOURS, HATCHES, bars, captioned, figure, label_bars
from onegpu.plots.drawing import arrow, box, canvas
from onegpu.token_counting import TokenCounts, TrainingSteps
from onegpu.token_counting.columns import list_rows

_UNUSED = "#e4e4e4"
_ROW_COLOURS = ("#9ad1f5", "#f3c98b")


def row_layout(rows: Sequence[Sequence[int]]) -> Figure:
    """Draw rows as Arrow stores them: the offsets, and one long buffer of values.

    Examples
    --------
    >>> row_layout([[1], [2, 3]]).axes[0].get_title(loc="left")
    '2 rows are 3 offsets and 3 values'
    """
    array = pa.array(rows, pa.list_(pa.int32()))
    title = f"{len(rows)} rows are {len(rows) + 1} offsets and {len(array.values)} values"
    made, axes = figure(title, "position in the values buffer", "", size=(7.0, 2.6))
    _draw_chunk(axes, array, used=None, left=0)
    _finish(axes, len(array.values), ["values", "offsets"])
    offsets = ", ".join(map(str, array.offsets.to_pylist()))
    return captioned(
        made,
        f"{len(rows)} rows of {min(map(len, rows))} to {max(map(len, rows))} tokens lie end to end in one buffer of "
        f"{len(array.values)} values. The offsets {offsets} say where each row begins, and the last one where it all ends.",
    )


def memory_view(data: Any, title: str, column: str = "input_ids") -> Figure:
    """Draw a column of a small Table or Dataset: its values buffers whole, the part that the rows use in colour.

    Under the values stand the offsets, and the indices mapping where the Dataset has one.

    Parameters
    ----------
    data
        A pyarrow Table or a ``datasets.Dataset`` of at most about 40 tokens.
    title
        What was done to it.
    column
        A column of type list.
    """
    table = data if isinstance(data, pa.Table) else data.data.table
    mapping = getattr(data, "_indices", None)
    indices = None if mapping is None else mapping.table.column(0).to_pylist()
    made, axes = figure(
        title, "position in the values buffer", "", size=(7.0, 3.6 if indices is not None else 2.6)
    )
    left = first_row = 0
    centres: list[float] = []
    for chunk in table.column(column).chunks:
        used = None if indices is None else {i - first_row for i in indices}
        rows = list_rows(chunk)
        centres += (left + rows.starts + rows.lengths / 2).tolist()
        left += _draw_chunk(axes, chunk, used, left, first_row) + 1
        first_row += len(chunk)
    names = ["values", "offsets"]
    if indices is not None:
        names.append("indices")
        gap = max(1.0, (left - 1) / max(1, len(indices)))
        for i, index in enumerate(indices):
            _cell(axes, i * gap, -3.6, str(index), COLOURS[0], white=True)
            arrow = {"arrowstyle": "-|>", "color": COLOURS[0], "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (centres[index], -0.02), (i * gap + 0.5, -2.6), arrowprops=arrow)
        if not indices:
            axes.text(0, -3.1, "none: no row of the table belongs to the data set", va="center")
    _finish(axes, max(left - 1, len(indices or [])), names)
    return made


def lengths(counts: TokenCounts, bins: int = 30) -> Figure:
    """Draw how many rows there are of each length, up to the 99th percentile, with the median marked."""
    last, median = counts.percentile(99), counts.percentile(50)
    found = counts.histogram(max(1, bins * max(1, counts.longest) // max(1, last)))
    shown = [(low, high, n) for low, high, n in found if low <= last]
    made, axes = figure("Rows by length", "tokens in a row", "rows", size=(7.0, 3.4))
    for low, high, n in shown:
        axes.bar(low, n, width=(high - low + 1) * 0.9, align="edge", color=COLOURS[0])
    axes.axvline(median, color=COLOURS[1], linestyle="--", marker="", linewidth=1.5)
    axes.annotate(
        f"half of the rows: {median:,}",
        (median, axes.get_ylim()[1]),
        (5, -4),
        textcoords="offset points",
        va="top",
    )
    beyond = sum(n for length, n in counts.lengths.items() if length > last)
    return captioned(
        made,
        f"Half of the rows have at most {median:,} tokens. The tail is long: {beyond:,} of {counts.rows:,} rows lie to the "
        f"right of this picture, the longest at {counts.longest:,}.",
    )


def batches(lengths: Sequence[int], batch_size: int, max_length: int) -> Figure:
    """Draw a few rows as they are computed under four strategies, at one scale; padding is hatched.

    Parameters
    ----------
    lengths
        Tokens of each row, in the order of the data set; at most about 40, none above ``max_length``.
    batch_size
        Rows of a batch.
    max_length
        Tokens that a row can hold.

    Examples
    --------
    >>> drawn = batches([2, 8, 3, 3], batch_size=2, max_length=8)
    >>> [axes.get_title(loc="left").splitlines()[1:] for axes in drawn.axes]
    [['32 tokens', '50% padding'], ['22 tokens', '27% padding'], ['22 tokens', '27% padding'], ['16 tokens', '0% padding']]
    """
    from onegpu.packed_training import pack_lengths

    def padded(rows: Sequence[int], widths: Sequence[int]) -> list[list[tuple[int, bool]]]:
        return [[(n, True), (w - n, False)] for n, w in zip(rows, widths, strict=True)]

    def widest(rows: Sequence[int]) -> list[int]:
        parts = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        return [max(part) for part in parts for _ in part]

    ordered = sorted(lengths)
    packed = [[(lengths[i], True) for i in row] for row in pack_lengths(lengths, max_length).rows]
    ways = {
        "to max_length": padded(lengths, [max_length] * len(lengths)),
        "to the longest in batch": padded(lengths, widest(lengths)),
        "the same, sorted": padded(ordered, widest(ordered)),
        "packed": packed,
    }
    made, panels = figure(
        f"{len(lengths)} rows, {batch_size} a batch",
        "tokens",
        "rows",
        columns=4,
        size=(9.0, 3.4),
        sharex=True,
        sharey=True,
    )
    shares = {}
    for axes, (name, rows) in zip(panels, ways.items(), strict=True):
        computed = sum(width for row in rows for width, _ in row)
        shares[name] = 1 - sum(lengths) / computed
        for y, row in enumerate(rows):
            x = 0
            for part, (width, real) in enumerate(row):
                look = {"facecolor": (COLOURS[0], COLOURS[4])[part % 2 if name == "packed" else 0]}
                if not real:
                    look = {"facecolor": "white", "hatch": "////", "edgecolor": COLOURS[5], "linewidth": 0.0}
                axes.add_patch(Rectangle((x, y + 0.1), width, 0.8, **look))
                x += width
        axes.set(xlim=(0, max_length), ylim=(len(lengths), 0), yticks=[])
        axes.set_title(f"{name}\n{computed:,} tokens\n{shares[name]:.0%} padding", loc="left", fontsize=9)
        axes.grid(visible=False)
    listed = "; ".join(f"{name}: {share:.0%}" for name, share in shares.items())
    return captioned(
        made, f"The same {sum(lengths):,} tokens, computed in four ways. Hatched is padding, {listed}."
    )


def padding(steps: TrainingSteps) -> Figure:
    """Draw which share of the computed tokens is padding, by strategy."""
    waste = {
        name.replace(" in ", "\nin ").replace(" by ", "\nby "): 100 * share
        for name, share in steps.waste.items()
    }
    drawn = bars(
        "Padding by strategy", "padding (% of the tokens computed)", waste, form="{:.1f}", size=(7.0, 3.4)
    )
    listed = ", ".join(f"{name} {share:.1%}" for name, share in steps.waste.items())
    return captioned(drawn, f"Of the computed tokens are padding: {listed}.")


def cost_of_counting(cost: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw what each way of counting cost: seconds, and what it left in memory.

    Parameters
    ----------
    cost
        For each name "seconds", and "own" and "file" in MiB: memory that was copied, pages of the mapped file.
    """
    made, (left, right) = figure("What a count costs", "", "", columns=2, size=(9.0, 3.2), sharey=True)
    names = list(cost)
    label_bars(
        left, left.barh(names, [cost[n]["seconds"] for n in names], color=COLOURS[0], height=0.6), "{:,.3f}"
    )
    left.set_xlabel("seconds")
    start = [0.0] * len(names)
    for i, (kind, label) in enumerate({"own": "copied", "file": "pages of the file"}.items()):
        width = [max(0.0, cost[name][kind]) for name in names]
        right.barh(
            names, width, 0.6, start, label=label, color=COLOURS[3 * i], hatch=HATCHES[i], edgecolor="white"
        )
        start = [b + w for b, w in zip(start, width, strict=True)]
    for name, total in zip(names, start, strict=True):
        right.text(total, name, f" {total:,.0f}", va="center", fontsize=10)
    right.set_xlabel("memory that stays (MiB)")
    for axes in (left, right):
        axes.margins(x=0.22)
        axes.grid(axis="y", visible=False)
    left.invert_yaxis()
    right.legend(loc="lower right")
    fast, slow = min(names, key=lambda n: cost[n]["seconds"]), max(names, key=lambda n: cost[n]["seconds"])
    return captioned(
        made,
        f"{fast} takes {cost[fast]['seconds']:.3f} s and leaves {sum(cost[fast][k] for k in ('own', 'file')):,.0f} MiB; "
        f"{slow} takes {cost[slow]['seconds']:.3f} s and leaves {sum(cost[slow][k] for k in ('own', 'file')):,.0f} MiB.",
    )


def tokens_by_language(per_character: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw tokens a character, by language, for each tokenizer.

    Parameters
    ----------
    per_character
        For each tokenizer's name the tokens a character of each language.
    """
    languages = list(next(iter(per_character.values())))
    made, axes = figure("The price of a character", "", "tokens a character", size=(7.0, 3.2))
    width = 0.8 / len(per_character)
    for i, (name, prices) in enumerate(per_character.items()):
        places = [x + (i - (len(per_character) - 1) / 2) * width for x in range(len(languages))]
        drawn = axes.bar(
            places,
            [prices[lang] for lang in languages],
            width * 0.9,
            label=name,
            color=COLOURS[3 * i],
            hatch=HATCHES[i],
        )
        label_bars(axes, drawn)
    axes.set_xticks(range(len(languages)), languages)
    axes.grid(axis="x", visible=False)
    axes.legend()
    first, last = languages[0], languages[-1]
    listed = " and ".join(f"{p[last] / p[first]:.1f} times under {name}" for name, p in per_character.items())
    return captioned(made, f"A character of {last} costs more tokens than one of {first}: {listed}.")


def _draw_chunk(axes: Axes, chunk: pa.Array, used: set[int] | None, left: int, first_row: int = 0) -> int:
    """Draw one chunk and return how many cells wide it is. ``used`` None: all its rows."""
    rows = list_rows(chunk)
    values = chunk.values.to_pylist()
    for i, value in enumerate(values):
        _cell(axes, left + i, 0, str(value), _UNUSED)
    for number, (start, length) in enumerate(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True)):
        is_used = used is None or number in used
        for i in range(start, start + length):
            _cell(axes, left + i, 0, str(values[i]), _ROW_COLOURS[number % 2] if is_used else _UNUSED)
        if length:
            axes.text(
                left + start + length / 2,
                1.25,
                f"row {first_row + number}" if length > 1 else str(first_row + number),
                ha="center",
                fontsize=9,
            )
        axes.plot([left + start] * 2, [-0.75, 0], color=COLOURS[5], linewidth=0.8, marker="", linestyle="-")
        axes.text(left + start, -1.05, str(start), ha="center", va="center", fontsize=10)
    if len(rows.starts):
        end = int(rows.starts[-1] + rows.lengths[-1])
        axes.plot([left + end] * 2, [-0.75, 0], color=COLOURS[5], linewidth=0.8, marker="", linestyle="-")
        axes.text(left + end, -1.05, str(end), ha="center", va="center", fontsize=10)
    return len(values)


def _cell(axes: Axes, x: float, y: float, text: str, colour: str, *, white: bool = False) -> None:
    hatch = "///" if colour == _UNUSED else ""
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5, hatch=hatch))
    axes.text(
        x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color="white" if white else "black"
    )


def _finish(axes: Axes, width: int, names: list[str]) -> None:
    axes.set_xlim(-0.5, max(width, 6) + 0.5)
    axes.set_ylim(-3.8 if len(names) > 2 else -1.5, 1.9)
    axes.set_yticks([0.5, -1.05, -3.1][: len(names)], names)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def operations() -> Figure:
    """Draw the three products of a layer with N weights for one token: forward, and the two of the backward pass.

    Examples
    --------
    >>> operations().axes[0].get_title(loc="left")
    'Three products with the same N weights'
    """
    made, axes = canvas("Three products with the same N weights", 13.2, 3.3)
    panels = (
        ("forward\n2N operations", "W", "x", "y", 0),
        ("back, gradients of the activations\n2N operations", "W", "dx", "dy", 2),
        ("back, gradients of the weights\n2N operations, none where frozen", "dW", "x", "dy", 1),
    )
    for k, (title, inside, left, right, colour) in enumerate(panels):
        x = 0.2 + 4.4 * k
        axes.text(x + 2.0, 3.25, title, ha="center", va="top", fontsize=10, linespacing=1.4)
        box(axes, x + 1.3, 0.7, 1.4, 1.4, inside, colour, 13, linestyle="--" if k == 2 else "-")
        for place, name in ((x + 0.25, left), (x + 3.75, right)):
            axes.text(place, 1.4, name, ha="center", va="center", fontsize=12, style="italic")
        inwards, outwards = ((x + 0.55, 1.4), (x + 1.25, 1.4)), ((x + 2.75, 1.4), (x + 3.45, 1.4))
        arrow(axes, *(inwards if k != 1 else inwards[::-1]), colour=colour)
        arrow(axes, *(outwards if k == 0 else outwards[::-1]), colour=colour)
    axes.text(
        11.0, 0.35, "stays a gradient: nothing goes on from here", ha="center", fontsize=9, color="#333333"
    )
    return captioned(
        made,
        "Forward, x goes through the weights W and comes out as y. Going back, the gradient dy goes through W the other way and "
        "becomes dx, which the layer below needs; and x times dy is the gradient dW. Each product takes 2N operations a token. "
        "Frozen weights need no dW, so 4N are left.",
    )


def cut_rows(labels: Sequence[Sequence[int] | None], max_length: int, ignore_index: int = -100) -> Figure:
    """Draw rows of labels, what a limit cuts off, and which rows still have a label to learn from.

    Parameters
    ----------
    labels
        Of each row; None for a null row.
    max_length
        Tokens that stay.
    ignore_index
        Marks a label that isn't learned from.

    Examples
    --------
    >>> cut_rows([[-100, 7, 8], [-100, -100, 9], None], 2).onegpu_caption
    '3 rows, cut to 2 tokens: 4 of 6 tokens stay, 1 of 3 labels, and 2 rows have none left to learn from.'
    """
    rows = [list(row) if row is not None else [] for row in labels]
    longest = max(map(len, rows))
    made, axes = canvas(f"Cut to {max_length} tokens", 5.0 + longest, 0.8 + 0.85 * len(rows))
    kept = learned = idle = 0
    for number, row in enumerate(rows):
        y = 0.2 + 0.85 * (len(rows) - 1 - number)
        axes.text(1.2, y + 0.33, f"row {number}", ha="right", va="center", fontsize=9)
        teaches = 0
        for place, label in enumerate(row):
            stays, counts = place < max_length, label != ignore_index
            teaches += stays and counts
            spot = (1.5 + place, y, 0.9, 0.66)
            box(
                axes,
                *spot,
                str(label),
                (2 if counts else 0) if stays else 5,
                9,
                linestyle="-" if stays else ":",
            )
        if labels[number] is None:
            axes.text(1.55, y + 0.33, "null: no tokens", va="center", fontsize=9, color="#333333")
        kept, learned, idle = kept + min(len(row), max_length), learned + teaches, idle + (not teaches)
        said = f"{teaches} to learn from" if teaches else "teaches nothing"
        axes.text(
            1.8 + longest, y + 0.33, said, va="center", fontsize=9, fontweight="normal" if teaches else "bold"
        )
    limit = 1.45 + max_length
    axes.plot(
        [limit, limit],
        [0.05, 0.85 * len(rows) + 0.1],
        color=COLOURS[1],
        linestyle="--",
        marker="",
        linewidth=1.6,
    )
    axes.text(
        limit, 0.85 * len(rows) + 0.2, "max_length", ha="center", va="bottom", fontsize=9, color="#8a2f1c"
    )
    wanted = sum(label != ignore_index for row in rows for label in row)
    return captioned(
        made,
        f"{len(rows)} rows, cut to {max_length} tokens: {kept} of {sum(map(len, rows))} tokens stay, {learned} of {wanted} labels, "
        f"and {idle} rows have none left to learn from.",
    )
