"""Count tokens in anything that holds Arrow: what each kind of source hands to the counting, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from onegpu.token_counting.counting import ROWS, Columns, Piece, count_pieces, pieces_of
from onegpu.token_counting.counts import TokenCounts
from onegpu.token_counting.files import Files, is_list_of_paths, open_parquet, open_path, parquet_pieces
from onegpu.token_counting.resident import Pages

_WINDOW_ROWS = 1 << 24
"""Rows of an index-mapped table whose weights are held at a time (one byte each)."""

_STREAM_ROWS = 256
"""Rows asked for at a time where a source makes them on the way (streams, Ray)."""


def count_tokens(
    dataset: Any,
    column: str = "input_ids",
    labels: str | None = "labels",
    ignore_index: int = -100,
    *,
    length_column: str | None = None,
    threads: int | None = None,
) -> TokenCounts:
    """Count the tokens that training on a data set would see.

    Only the needed columns are read, nothing becomes a Python object, and memory doesn't grow with rows. A
    ``datasets.Dataset`` is counted through its indices mapping: what ``select``, ``filter``, ``shuffle`` or
    ``train_test_split`` left out isn't counted, what they doubled counts twice.

    Parameters
    ----------
    dataset
        A ``datasets.Dataset``, ``IterableDataset``, ``DatasetDict`` or ``IterableDatasetDict``; a pyarrow Table,
        RecordBatch, RecordBatchReader or ``pyarrow.dataset``; a Ray Dataset; a path of a Parquet or Arrow file, of a
        folder of them or one that ``save_to_disk`` wrote, a glob pattern, or a list of files. An ``IterableDataset``
        and a RecordBatchReader are read to their end.
    column
        Column of token ids.
    labels
        Column of labels, or None to count tokens alone (that takes only the offsets, so no time per token).
    ignore_index
        Label that the loss skips.
    length_column
        Column that holds each row's length, to be used instead of ``column``. It is compared with the lists on every
        row where that costs nothing, in Parquet on a sample of row groups, and refused when it is stale.
    threads
        Threads that compare the labels of what lies in memory, or in a mapped data set, already; None for as many as
        there are cores, at most 4. Tokens alone, and what is made or decoded on the way, are counted by one.

    Returns
    -------
    TokenCounts
        With ``splits`` for a ``DatasetDict``.

    Raises
    ------
    ValueError
        A column that is missing or not lists of integers (with the column, its type and what to do), a stale length
        column, a data set with a transform that is applied on access, files of two kinds in one folder.
    TypeError
        A kind of data set that isn't known.

    Notes
    -----
    A label at the first position is counted, although a causal language model never predicts it: that is how the
    counts of other tools are meant (axolotl#3711). Source of the method: Arrow's columnar format, variable-size lists.

    Examples
    --------
    >>> table = pa.table({"input_ids": [[5, 6, 7], [8, 9]], "labels": [[-100, -100, 7], [-100, 9]]})
    >>> counts = count_tokens(table)
    >>> counts.rows, counts.tokens, counts.supervised_tokens
    (2, 5, 2)

    Rows that an indices mapping leaves out don't count:

    >>> import datasets
    >>> count_tokens(datasets.Dataset(table).select([1])).tokens
    2
    """
    columns = Columns(column, labels, ignore_index, length_column)
    if isinstance(dataset, str | os.PathLike) or is_list_of_paths(dataset):
        dataset = open_path(dataset)
    if isinstance(dataset, Mapping):  # DatasetDict, IterableDatasetDict
        parts = {}
        for name, split in dataset.items():
            try:
                parts[str(name)] = count_tokens(
                    split, column, labels, ignore_index, length_column=length_column, threads=threads
                )
            except ValueError as error:
                error.args = (f"split {name!r}: {error}",)
                raise
        return TokenCounts.total(parts)
    columns, pieces, lies_ready = _open(dataset, columns)
    # Pieces that are made on the way take memory each, so there they are counted one at a time.
    with closing(pieces):
        return count_pieces(pieces, columns, threads if lies_ready else 1)


class _Opened(NamedTuple):
    """How to read a source: its pieces, and whether they lie in memory or a mapped file already."""

    columns: Columns
    pieces: Iterator[Piece]
    lies_ready: bool = False


def _open(dataset: Any, columns: Columns) -> _Opened:
    """Choose how a data set is read. Types are checked here, before anything is read."""
    kind, module = type(dataset).__name__, type(dataset).__module__.partition(".")[0]
    if isinstance(dataset, pa.RecordBatch):
        dataset = pa.Table.from_batches([dataset])
    if isinstance(dataset, pa.Table):
        columns.check(dataset.schema)
        return _Opened(columns, pieces_of(dataset.select(columns.names), Pages(lasting=True)), True)
    if isinstance(dataset, pa.RecordBatchReader):
        columns.check(dataset.schema)
        return _Opened(columns, _from_batches(dataset, columns))
    if isinstance(dataset, Files):
        return _Opened(*dataset.open(columns))
    if module == "pyarrow" and hasattr(dataset, "scanner"):
        columns.check(dataset.schema)
        return _Opened(columns, _from_batches(_scan(dataset, columns.names), columns))
    if module == "datasets" and hasattr(dataset, "data"):
        return _Opened(columns, _from_dataset(dataset, columns), True)
    if module == "datasets" and hasattr(dataset, "with_format"):
        return _Opened(columns, _from_stream(dataset, columns))
    if module == "ray" and hasattr(dataset, "iter_batches"):
        return _Opened(columns, _from_ray(dataset, columns))
    raise TypeError(
        f"can't count tokens in a {type(dataset).__module__}.{kind}: expected a datasets.Dataset, IterableDataset or "
        "DatasetDict, a pyarrow Table, RecordBatchReader or dataset, a Ray Dataset, or a path"
    )


def _from_batches(batches: Iterable[pa.RecordBatch | pa.Table], columns: Columns) -> Iterator[Piece]:
    pages = Pages(lasting=False)  # they may come from files that are opened and closed on the way
    for batch in batches:
        columns.check(batch.schema)
        yield from pieces_of(pa.table({name: batch.column(name) for name in columns.names}), pages)


def _scan(dataset: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Read a pyarrow.dataset. Its own scan decodes whole row groups; here Parquet comes a few rows at a time."""
    options = {"batch_size": _STREAM_ROWS, "batch_readahead": 0, "use_threads": False}
    if dataset._scan_options:  # a filter
        yield from dataset.to_batches(columns=names, fragment_readahead=0, **options)
        return
    for fragment in dataset.get_fragments():
        if hasattr(fragment, "row_groups") and set(names) <= set(fragment.physical_schema.names):
            with open_parquet(fragment.open()) as file:
                for piece in parquet_pieces(file, names, [group.id for group in fragment.row_groups]):
                    yield piece.batch
        else:
            yield from fragment.to_batches(schema=dataset.schema, columns=names, **options)


def _from_dataset(dataset: Any, columns: Columns) -> Iterator[Piece]:
    if dataset.format["type"] == "custom":
        raise ValueError(
            "the data set has a transform that is applied when a row is read (set_transform), so the stored tokens "
            "aren't those that training sees. Apply it with map first, or count without it: dataset.with_format(None)"
        )
    table = dataset.data.table
    columns.check(table.schema)
    table = table.select(columns.names)
    pages = Pages(lasting=True)
    if dataset._indices is None:
        return pieces_of(table, pages)
    return _from_indexed(table, dataset._indices.table.column(0), pages)


def _from_indexed(table: pa.Table, indices: pa.ChunkedArray, pages: Pages) -> Iterator[Piece]:
    """Rows in the order in which they are stored, each with how often the indices name it."""
    for first in range(0, table.num_rows, _WINDOW_ROWS):
        window = table.slice(first, _WINDOW_ROWS)
        weights = _occurrences(indices, first, window.num_rows)
        at = 0
        for batch in window.to_batches(max_chunksize=ROWS):
            yield Piece(batch, weights[at : at + batch.num_rows], pages)
            at += batch.num_rows


def _occurrences(indices: pa.ChunkedArray, first: int, n_rows: int) -> np.ndarray:
    """Count how often each of the rows first to first + n_rows occurs among the indices."""
    seen = np.zeros(n_rows, bool)
    total = 0
    for part in _index_blocks(indices, first, n_rows):
        seen[part] = True
        total += part.size
    if np.count_nonzero(seen) == total:  # no row twice: the usual case, and a byte a row is enough
        return seen
    times = np.zeros(n_rows, np.int32)
    for part in _index_blocks(indices, first, n_rows):
        np.add.at(times, part, 1)
    return times


def _index_blocks(indices: pa.ChunkedArray, first: int, n_rows: int) -> Iterator[np.ndarray]:
    for chunk in indices.chunks:
        for start in range(0, len(chunk), ROWS):
            block = chunk.slice(start, ROWS).to_numpy().astype(np.int64) - first
            yield block[(block >= 0) & (block < n_rows)]


def _from_stream(dataset: Any, columns: Columns) -> Iterator[Piece]:
    if dataset.features is not None:
        columns.check(dataset.features.arrow_schema)
        batches = dataset.select_columns(columns.names).with_format("arrow").iter(batch_size=_STREAM_ROWS)
        return _from_batches(batches, columns)
    return _from_batches(_batches_of_rows(dataset.with_format(None), columns), columns)


def _batches_of_rows(dataset: Any, columns: Columns) -> Iterator[pa.Table]:
    # The rows of a stream with unknown features are made in Python, and datasets makes Arrow of each alone, where an
    # empty list has another type than a full one. So batches are made here.
    for batch in dataset.iter(batch_size=_STREAM_ROWS):
        _check_names(list(batch), columns)
        yield pa.table({name: pa.array(batch[name]) for name in columns.names})


def _check_names(names: list[str], columns: Columns) -> None:
    """Check names alone, where types aren't known yet."""
    if not set(columns.names) <= set(names):
        columns.check(pa.schema([(name, pa.null()) for name in names]))


def _from_ray(dataset: Any, columns: Columns) -> Iterator[Piece]:
    schema = dataset.schema()
    if schema is None:
        return _from_batches((), columns)
    _check_names(schema.names, columns)
    batches = dataset.select_columns(columns.names).iter_batches(
        batch_format="pyarrow", batch_size=_STREAM_ROWS
    )
    return _from_batches(batches, columns)
