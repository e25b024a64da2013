"""List columns as Arrow stores them: one long array of values, and where each row starts and ends in it.

Every list type becomes the same three things, whatever was sliced, chunked, viewed or null: the values (untouched,
zero-copy), each row's start in them and each row's length. A null row has length 0, also where values lie behind it.

The traps that this holds off (all public reports): ``.values`` ignores the slice (arrow#37733), ``.flatten()`` and
offsets differ behind null rows, a fixed-size list's ``.values`` ignores its offset (arrow#41672), and offsets
overflow when chunks past 2**31 values are combined (LLaMA-Factory#7526), so chunks stay chunks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_OFFSET_TYPE = {"list": np.int32, "large_list": np.int64, "list_view": np.int32, "large_list_view": np.int64}


class MissingColumn(ValueError):
    """A column isn't there. ``argument`` says which: "column" or "labels"."""

    def __init__(self, message: str, argument: str):
        super().__init__(message)
        self.argument = argument


@dataclass(frozen=True)
class ListRows:
    """Rows of a list column, by position.

    Attributes
    ----------
    values : pyarrow.Array
        All values of the chunk, the rows' and perhaps others'. Not copied.
    starts, lengths : numpy.ndarray
        int64, shape (rows,): row ``i`` is ``values[starts[i] : starts[i] + lengths[i]]``.
    null : numpy.ndarray or None
        bool, shape (rows,): which rows are null. None when none is.
    buffers : tuple of numpy.ndarray
        The parts of the offset buffers that were read.
    is_gapless : bool
        Whether each row is known to start where the row before it ends.
    """

    values: pa.Array
    starts: np.ndarray
    lengths: np.ndarray
    null: np.ndarray | None
    buffers: tuple[np.ndarray, ...]
    is_gapless: bool


def list_rows(array: pa.Array, rows: np.ndarray | None = None) -> ListRows:
    """Find where each row of a list array starts and how long it is, in time that doesn't depend on the values.

    Parameters
    ----------
    array
        Any list type of pyarrow, sliced or not, or an array of type null.
    rows
        int64 positions of the rows wanted; None for all.

    Examples
    --------
    >>> rows = list_rows(pa.array([[1], [2, 3], None, [4, 5, 6]])[1:])
    >>> rows.starts.tolist(), rows.lengths.tolist(), rows.null.tolist()
    ([1, 3, 3], [2, 0, 3], [False, True, False])
    """
    array = _stored(array)
    n = len(array) if rows is None else rows.size
    kind = array.type
    if pa.types.is_null(kind) or n == 0:
        values = pa.nulls(0) if pa.types.is_null(kind) else array.values
        nothing = np.zeros(n, np.int64)
        return ListRows(
            values, nothing, nothing, np.ones(n, bool) if pa.types.is_null(kind) else None, (), True
        )

    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if null is not None and rows is not None:
        null = null[rows]
    if pa.types.is_fixed_size_list(kind):
        at = np.arange(n, dtype=np.int64) if rows is None else rows
        starts = (at + array.offset) * kind.list_size
        lengths = np.full(n, kind.list_size, np.int64)
        buffers = ()
    else:
        integer, is_view = _OFFSET_TYPE[_kind_name(kind)], "view" in _kind_name(kind)
        first, second = array.buffers()[1:3]
        if is_view:
            buffers = (
                _window(first, integer, array.offset, len(array)),
                _window(second, integer, array.offset, len(array)),
            )
            starts, lengths = buffers if rows is None else (b[rows] for b in buffers)
        else:
            offsets = _window(first, integer, array.offset, len(array) + 1)
            buffers = (offsets,)
            starts = offsets[:-1] if rows is None else offsets[rows]
            lengths = np.diff(offsets) if rows is None else offsets[rows + 1] - starts
        starts, lengths = starts.astype(np.int64), lengths.astype(np.int64)
    if null is not None:
        lengths[null] = 0
    is_gapless = null is None and rows is None and "view" not in _kind_name(kind)
    return ListRows(array.values, starts, lengths, null, buffers, is_gapless)


def value_view(values: pa.Array) -> np.ndarray:
    """Return the values of an integer array as numpy sees them: no copy, nulls' slots hold anything."""
    if not len(values):
        return np.zeros(0, np.int64)
    return _window(values.buffers()[1], np.dtype(str(values.type)), values.offset, len(values))


def _window(buffer: pa.Buffer, dtype: Any, offset: int, count: int) -> np.ndarray:
    return np.frombuffer(buffer, dtype, count, offset * np.dtype(dtype).itemsize)


def check_column(schema: pa.Schema, name: str, argument: str) -> None:
    """See that a column can be counted.

    Parameters
    ----------
    schema
        Of the data.
    name
        Column.
    argument
        What the caller calls it: "column" or "labels".

    Raises
    ------
    MissingColumn, ValueError
        With the column, its type and what to do.
    """
    if name not in schema.names:
        what = "token ids" if argument == "column" else "labels"
        text = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        hint = ", or give labels=None to count tokens alone" if argument == "labels" else ""
        hint += f". If {text[0]!r} holds the text, tokenize it first" if text else ""
        raise MissingColumn(
            f"no column {name!r}: the columns are {', '.join(schema.names) or '(none)'}. "
            f"Say which of them holds the {what} ({argument}=...){hint}",
            argument,
        )
    if schema.names.count(name) > 1:
        raise ValueError(f"{schema.names.count(name)} columns are called {name!r}: rename all but one")
    declared = schema.field(name).type
    kind, dimensions = _storage_type(declared)
    if pa.types.is_null(kind):
        return
    where = f"column {name!r} is {declared}, expected lists of integers"
    if _kind_name(kind) is None:
        todo = "tokenize it first" if "string" in str(kind) else f"choose another with {argument}=..."
        raise ValueError(f"{where}: {todo}")
    inner = kind.value_type
    if dimensions > 1 or _kind_name(inner) is not None:
        raise ValueError(
            f"{where}: each row holds lists of lists, so its length would count lists, not tokens. Flatten the inner "
            "lists into one row each (pyarrow.compute.list_flatten) first"
        )
    if not (pa.types.is_integer(inner) or pa.types.is_null(inner)):
        todo = "tokenize it first" if "string" in str(inner) else "cast the values to int32 or int64"
        raise ValueError(f"{where}: {todo}")


def _storage_type(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """What an extension type (a tensor column of Ray, pyarrow or datasets) is stored as, and its dimensions."""
    if not isinstance(kind, pa.BaseExtensionType):
        return kind, 1
    dimensions = getattr(kind, "ndim", None) or len(getattr(kind, "shape", None) or (1,))
    kind = kind.storage_type
    if pa.types.is_struct(kind) and kind.get_field_index("data") >= 0:  # Ray: ragged rows with their shapes
        kind = kind.field("data").type
    return kind, dimensions


def _stored(array: pa.Array) -> pa.Array:
    if not isinstance(array.type, pa.BaseExtensionType):
        return array
    array = array.storage
    return pc.struct_field(array, "data") if pa.types.is_struct(array.type) else array


def _kind_name(kind: pa.DataType) -> str | None:
    for name in ("list", "large_list", "fixed_size_list", "list_view", "large_list_view"):
        if getattr(pa.types, f"is_{name}")(kind):
            return name
    return None
