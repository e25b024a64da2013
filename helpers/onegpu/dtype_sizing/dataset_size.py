"""How large is a dataset? Rows and tokens times bytes, where a column's name decides the bytes.

``datasets`` stores a column called ``input_ids`` as int32, masks as int8, and every other column of whole numbers,
``labels`` among them, as int64. So labels take twice the room of the ids they are copied from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onegpu.dtype_sizing.byte_units import format_bytes

if TYPE_CHECKING:
    import datasets

INTEGER_BYTES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}

# What datasets' OptimizedTypedSequence does, by column name; int64 for every other.
_BY_NAME = {
    "input_ids": "int32",
    "attention_mask": "int8",
    "token_type_ids": "int8",
    "special_tokens_mask": "int8",
}


def column_dtype(name: str, *, largest: int = 0) -> str:
    """Name the dtype that ``datasets`` gives a column of whole numbers when it isn't told one.

    Parameters
    ----------
    name
        The column's name.
    largest
        The largest absolute value in it: where the short dtype can't hold it, the column becomes int64.

    Examples
    --------
    >>> column_dtype("input_ids"), column_dtype("labels"), column_dtype("input_ids", largest=2**31)
    ('int32', 'int64', 'int64')
    """
    dtype = _BY_NAME.get(name, "int64")
    return dtype if largest < 2 ** (8 * INTEGER_BYTES[dtype] - 1) else "int64"


@dataclass(frozen=True)
class DatasetSize:
    """Bytes of a tokenized dataset's columns: ``columns`` maps each name to ``(dtype, bytes)``."""

    rows: int
    columns: dict[str, tuple[str, int]]

    @property
    def total_bytes(self) -> int:
        """All columns."""
        return sum(size for _, size in self.columns.values())

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {dtype} {format_bytes(size)}" for name, (dtype, size) in self.columns.items()
        )
        return f"{self.rows:,} rows, {format_bytes(self.total_bytes)}: {parts}"


def predict_dataset_bytes(
    rows: int, tokens: int, columns: Iterable[str] = ("input_ids", "attention_mask", "labels")
) -> DatasetSize:
    """Predict the Arrow size of a tokenized dataset, one list of ``tokens`` / ``rows`` values a row and column.

    Values at the width of the column's dtype, and a 4-byte offset for each row.

    Examples
    --------
    >>> print(predict_dataset_bytes(rows=1000, tokens=256_000, columns=("input_ids", "labels")))
    1,000 rows, 2.94 MiB: input_ids int32 1,003.91 KiB, labels int64 1.96 MiB
    """
    if rows < 0 or tokens < 0 or (tokens and not rows):
        raise ValueError(
            f"{rows} rows with {tokens} tokens: expected neither negative, and rows where tokens are"
        )
    sizes = {}
    for name in columns:
        dtype = column_dtype(name)
        sizes[name] = (dtype, tokens * INTEGER_BYTES[dtype] + 4 * rows)
    return DatasetSize(rows, sizes)


def dataset_bytes(dataset: datasets.Dataset) -> DatasetSize:
    """Measure a dataset's columns as Arrow holds them.

    Rows that a ``select``, ``filter`` or ``shuffle`` left behind are counted too, as they are still held: call
    ``flatten_indices`` first to see the size of what is left.

    Examples
    --------
    >>> import datasets
    >>> rows = {"input_ids": [[5, 6, 7], [8]], "labels": [[5, 6, 7], [8]]}
    >>> print(dataset_bytes(datasets.Dataset.from_dict(rows)))
    2 rows, 64 B: input_ids int32 24 B, labels int64 40 B
    """
    table = dataset.data.table
    sizes = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        dtype = column.type
        while hasattr(dtype, "value_type"):
            dtype = dtype.value_type
        sizes[name] = (str(dtype), column.nbytes)
    return DatasetSize(table.num_rows, sizes)
