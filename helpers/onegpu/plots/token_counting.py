"""Figures of topic 06: what a list column looks like in memory, and what padding costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from onegpu.plots.base import COLOURS, HATCHES, bars, figure, label_bars
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
    return made


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
        title, "position in the values buffer", "", size=(7.0, 3.2 if indices is not None else 2.6)
    )
    left = first_row = 0
    for chunk in table.column(column).chunks:
        used = None if indices is None else {i - first_row for i in indices}
        left += _draw_chunk(axes, chunk, used, left, first_row) + 1
        first_row += len(chunk)
    names = ["values", "offsets"]
    if indices is not None:
        names.append("indices")
        for i, index in enumerate(indices):
            _cell(axes, i, -2.9, str(index), COLOURS[2], white=True)
        if not indices:
            axes.text(0, -2.4, "(an empty mapping)", va="center")
    _finish(axes, max(left - 1, len(indices or [])), names)
    return made


def lengths(counts: TokenCounts, bins: int = 12) -> Figure:
    """Draw how many rows there are of each length."""
    found = counts.histogram(bins)
    made, axes = figure("Rows by length", "tokens in a row", "rows")
    width = found[0][1] - found[0][0] + 1 if found else 1
    drawn = axes.bar(
        [low for low, *_ in found], [n for *_, n in found], width=width * 0.9, align="edge", color=COLOURS[0]
    )
    label_bars(axes, drawn, "{:,.0f}")
    return made


def padding(steps: TrainingSteps) -> Figure:
    """Draw which share of the computed tokens is padding, by strategy."""
    waste = {
        name.replace(" in ", "\nin ").replace(" by ", "\nby "): 100 * share
        for name, share in steps.waste.items()
    }
    return bars(
        "Padding by strategy", "padding (% of the tokens computed)", waste, form="{:.1f}", size=(7.0, 3.4)
    )


def resident_memory(mib_by_method: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw what resident memory each way of counting left behind: the process's own, and pages of the mapped file.

    Parameters
    ----------
    mib_by_method
        For each name "own" and "file", in MiB.
    """
    made, axes = figure("Memory after counting", "", "resident memory (MiB)", size=(7.0, 3.4))
    names, bottom = list(mib_by_method), [0.0] * len(mib_by_method)
    for i, (kind, label) in enumerate({"own": "copied into memory", "file": "pages of the file"}.items()):
        heights = [max(0.0, mib_by_method[name][kind]) for name in names]
        axes.bar(
            names,
            heights,
            0.6,
            bottom,
            label=label,
            color=COLOURS[3 * i],
            hatch=HATCHES[i],
            edgecolor="white",
        )
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    for name, total in zip(names, bottom, strict=True):
        axes.text(name, total, f"{total:,.0f}", ha="center", va="bottom")
    axes.grid(axis="x", visible=False)
    axes.legend()
    return made


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
    axes.set_ylim(-3.2 if len(names) > 2 else -1.5, 1.9)
    axes.set_yticks([0.5, -1.05, -2.4][: len(names)], names)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
