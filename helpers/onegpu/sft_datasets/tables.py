"""Rows to a ``datasets.Dataset`` that has every column of every row.

``Dataset.from_list`` takes its columns from the first row: if that one lacks ``input``, every input is gone
without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onegpu.sft_datasets.formats import Example
from onegpu.sft_datasets.tokenization import Tokenized

if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(rows: Iterable[Mapping[str, Any] | Example | Tokenized]) -> Dataset:
    """Make a Dataset with the union of all columns; what a row lacks is None.

    An ``Example`` gives the columns messages and input, a ``Tokenized`` gives input_ids and labels.

    Raises
    ------
    ValueError
        No rows; a dropped ``Tokenized``; or a column whose values are of more than one type, with the rows.

    Examples
    --------
    >>> table = to_dataset([{"instruction": "a", "output": "b"}, {"instruction": "a", "input": "x", "output": "b"}])
    >>> table["input"][:]
    [None, 'x']
    """
    from datasets import Dataset
    from pyarrow import ArrowException

    records = [_record(row, i) for i, row in enumerate(rows)]
    if not records:
        raise ValueError("No rows: expected at least one row to make a table of.")
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    for name, values in columns.items():
        _check_types(name, values)
    try:
        return Dataset.from_dict(columns)
    except (ArrowException, TypeError) as error:
        raise ValueError(f"The rows don't make a table: {error}. Give each column one type.") from error


def _record(row, index: int) -> dict[str, Any]:
    if isinstance(row, Example):
        return {"messages": [dict(turn) for turn in row.messages], "input": row.input}
    if isinstance(row, Tokenized):
        if row.dropped:
            raise ValueError(
                f"row {index}: it was dropped ({row.dropped}), so it has no tokens. Leave it out."
            )
        return {"input_ids": list(row.input_ids), "labels": list(row.labels)}
    return dict(row)


def _check_types(name: str, values: list) -> None:
    """Arrow's own message names no row; most often a number among texts."""
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        if value is not None:
            kind = (
                "number"
                if isinstance(value, (int, float)) and not isinstance(value, bool)
                else type(value).__name__
            )
            first.setdefault(kind, i)
    if len(first) > 1:
        (one, i), (two, j) = list(first.items())[:2]
        raise ValueError(
            f"column {name!r}: found {one} in row {i} and {two} in row {j}, expected one type. Convert one."
        )
