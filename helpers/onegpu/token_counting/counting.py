"""Count one piece of a data set, and gather pieces.

The length of a row is the difference of two offsets, so the tokens cost nothing to count; for supervised tokens each
label is compared once (``labels``). A piece can carry a weight for each of its rows (how often an index mapping names
it); rows of weight 0 are not read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from onegpu.token_counting.columns import check_column, list_rows
from onegpu.token_counting.counts import TokenCounts
from onegpu.token_counting.labels import masked_and_null, stored_index
from onegpu.token_counting.resident import Pages

ROWS = 1 << 16
"""Rows looked at at a time, which bounds the memory for starts and lengths."""

_SMALL_BYTES = 3 * 2**20
"""Pieces below this are counted by one thread at a time: they are Python's work more than numpy's, and threads that take
Python's lock from each other every few microseconds are slower than one."""

_NO_LENGTH = -1
"""Stands for a null in a length column."""

_LONG = 1 << 20
"""Lengths from here on are kept in a dictionary, the others in an array."""


class Piece(NamedTuple):
    """Some rows to count: a record batch with the wanted columns, how often each row counts (None: once), and who is
    told what was read."""

    batch: pa.RecordBatch
    weights: np.ndarray | None = None
    pages: Pages | None = None


def pieces_of(table: pa.Table, pages: Pages) -> Iterator[Piece]:
    """Cut a table into pieces of at most ``ROWS`` rows, without copying."""
    for batch in table.to_batches(max_chunksize=ROWS):
        yield Piece(batch, None, pages)


@dataclass(frozen=True)
class Columns:
    """Which columns to count, and how.

    Attributes
    ----------
    column, labels : str
        Names; ``labels`` may be None.
    ignore_index : int
        The label that the loss skips.
    length_column : str or None
        Column with the rows' lengths.
    trust_length : bool
        Take the lengths from ``length_column`` without comparing (a sample was compared before).
    """

    column: str
    labels: str | None
    ignore_index: int
    length_column: str | None = None
    trust_length: bool = False

    @property
    def names(self) -> list[str]:
        """The columns that have to be read, each once."""
        wanted = [self.column, self.labels, self.length_column]
        if self.trust_length:
            wanted.remove(self.column)
        return list(dict.fromkeys(name for name in wanted if name is not None))

    def check(self, schema: pa.Schema) -> None:
        """See that a schema has them, in types that can be counted. Raises ValueError."""
        check_column(schema, self.column, "column")
        if self.labels is not None:
            check_column(schema, self.labels, "labels")
        if self.length_column is not None and (
            self.length_column not in schema.names
            or not pa.types.is_integer(schema.field(self.length_column).type)
        ):
            raise ValueError(
                f"length_column={self.length_column!r} is not an integer column of this data "
                f"({', '.join(f'{f.name}: {f.type}' for f in schema)}). Leave it out to count from the offsets"
            )


def count_pieces(pieces: Iterable[Piece], columns: Columns, threads: int | None = None) -> TokenCounts:
    """Count all pieces, several at a time, and add up. Memory is bounded by a few pieces.

    Raises
    ------
    ValueError
        For a column that can't be counted, or a length column that is wrong.
    """
    pieces, total, lock = iter(pieces), _Tally(), threading.Lock()
    row, failures = 0, []

    def work() -> None:
        nonlocal row
        while not failures:
            first = row
            try:
                with lock:
                    first = row
                    piece = next(pieces, None)
                    if piece is None:
                        return
                    row += piece.batch.num_rows
                    if helpers and _is_small(piece.batch):
                        total.add(_count_piece(piece, columns, first))
                        continue
                found = _count_piece(piece, columns, first)
                with lock:
                    total.add(found)
            except BaseException as error:
                failures.append((first if isinstance(error, Exception) else -1, error))

    helpers = [threading.Thread(target=work) for _ in range(_n_threads(columns, threads) - 1)]
    started = []
    try:
        for helper in helpers:
            helper.start()
            started.append(helper)
        work()
    except BaseException as error:  # an interrupt between two pieces, or no thread to be had
        failures.append((-1, error))  # stops the others
    for helper in started:
        helper.join()
    if failures:  # an interrupt, else the first piece that can't be counted: all before it have been
        raise min(failures, key=lambda failure: failure[0])[1]
    return total.result(columns.labels is not None)


def _is_small(batch: pa.RecordBatch) -> bool:
    try:
        return batch.nbytes < _SMALL_BYTES
    except pa.ArrowException:  # of list views, in pyarrow 18
        return False


def _n_threads(columns: Columns, wanted: int | None) -> int:
    if columns.labels is None:
        return 1  # offsets alone: a piece is counted in less time than another thread takes to wake up
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return wanted or min(4, cores)


class _Found(NamedTuple):
    """What one piece holds. ``row_weights`` None means that each row counts once."""

    row_lengths: np.ndarray
    row_weights: np.ndarray | None
    rows: int
    null_rows: int
    labels: int
    masked: int
    null_labels: int
    misaligned: int
    bytes_read: int


def _count_piece(piece: Piece, columns: Columns, first_row: int) -> _Found:
    batch, weights, pages = piece
    rows = None
    if weights is not None:
        rows = np.flatnonzero(weights)
        weights = weights[rows].astype(np.int64)
        if (weights == 1).all():
            weights = None
    n = batch.num_rows if rows is None else rows.size
    n_read = 0

    def count(mask: np.ndarray) -> int:
        return int(np.count_nonzero(mask)) if weights is None else int(weights[mask].sum())

    def read(array: np.ndarray, n_bytes: int | None = None) -> None:
        """Note that an array was read, or that many bytes of it."""
        nonlocal n_read
        n_bytes = array.nbytes if n_bytes is None else n_bytes
        n_read += n_bytes
        if pages is not None and n_bytes:
            address = array.__array_interface__["data"][0]
            pages.read(address, address + array.nbytes)

    if columns.trust_length:
        stored = _length_values(batch.column(columns.length_column), rows)
        null = stored == _NO_LENGTH
        lengths = np.where(null, 0, stored)
    else:
        ids = list_rows(batch.column(columns.column), rows)
        lengths, null = ids.lengths, ids.null
        for buffer in ids.buffers:
            read(buffer)
        if columns.length_column is not None:
            stored = _length_values(batch.column(columns.length_column), rows)
            is_wrong = (stored != lengths) & ~((stored == _NO_LENGTH) & (null is not None and null))
            if is_wrong.any():
                i = int(is_wrong.argmax())
                row = first_row + (i if rows is None else int(rows[i]))
                raise ValueError(
                    f"the length column is stale: row {row} of the stored data says {stored[i]} and has {lengths[i]} "
                    "tokens. Leave length_column out (counting from the offsets costs no more), or write the column anew"
                )

    labels = masked = null_labels = misaligned = 0
    if columns.labels is not None:
        found = list_rows(batch.column(columns.labels), rows)
        if columns.labels != columns.column:
            for buffer in found.buffers:
                read(buffer)
        misaligned = count(found.lengths != lengths)
        labels = int(found.lengths.sum() if weights is None else found.lengths @ weights)
        ignored = stored_index(found.values.type, columns.ignore_index)
        masked, null_labels = masked_and_null(found, weights, ignored, read)
        if masked and ignored != columns.ignore_index and found.values.type.bit_width < 32:
            raise ValueError(
                f"labels {columns.labels!r} are {found.values.type} and hold {ignored}, which is what "
                f"{columns.ignore_index} turns into there, but may be a token as well. Cast the labels to int32, or "
                f"say ignore_index={ignored}"
            )

    null_rows = 0 if null is None else count(null)
    present = slice(None) if null is None else ~null
    return _Found(
        row_lengths=lengths[present],
        row_weights=None if weights is None else weights[present],
        rows=n if weights is None else int(weights.sum()),
        null_rows=null_rows,
        labels=labels,
        masked=masked,
        null_labels=null_labels,
        misaligned=misaligned,
        bytes_read=n_read,
    )


def _length_values(array: pa.Array, rows: np.ndarray | None) -> np.ndarray:
    values = array.cast(pa.int64()).fill_null(_NO_LENGTH).to_numpy(zero_copy_only=False)
    return values if rows is None else values[rows]


class _Tally:
    """Adds up what the pieces hold."""

    def __init__(self):
        self._short = np.zeros(0, np.int64)  # rows of each length
        self._long: dict[int, int] = {}  # length -> rows
        self._pending: list[tuple[np.ndarray, np.ndarray | None]] = []
        self._n_pending = 0
        self.rows = self.null_rows = self.labels = self.masked = 0
        self.null_labels = self.misaligned = self.bytes_read = 0

    def add(self, found: _Found) -> None:
        self.rows += found.rows
        self.null_rows += found.null_rows
        self.labels += found.labels
        self.masked += found.masked
        self.null_labels += found.null_labels
        self.misaligned += found.misaligned
        self.bytes_read += found.bytes_read
        self._pending.append((found.row_lengths, found.row_weights))
        self._n_pending += found.row_lengths.size + 1  # a piece without rows takes memory too
        if self._n_pending > ROWS:
            self._flush()

    def _flush(self) -> None:
        lengths = np.concatenate([a for a, _ in self._pending] or [np.zeros(0, np.int64)])
        weights = None
        if any(w is not None for _, w in self._pending):
            weights = np.concatenate(
                [np.ones(a.size, np.int64) if w is None else w for a, w in self._pending]
            )
        self._pending, self._n_pending = [], 0
        if not lengths.size:
            return
        if int(lengths.min()) < 0:
            raise ValueError(f"a row's length is {int(lengths.min())}: the data is corrupt, write it anew")
        long = lengths >= _LONG
        for length, weight in zip(
            lengths[long].tolist(),
            (np.ones(long.sum()) if weights is None else weights[long]).tolist(),
            strict=True,
        ):
            self._long[length] = self._long.get(length, 0) + int(weight)
        if long.any():
            lengths, weights = lengths[~long], None if weights is None else weights[~long]
        rows = np.bincount(lengths, weights).astype(np.int64)
        if rows.size > self._short.size:
            rows, self._short = self._short, rows
        self._short[: rows.size] += rows

    def result(self, with_labels: bool) -> TokenCounts:
        self._flush()
        found = np.flatnonzero(self._short)
        rows = self._short[found]
        lengths = dict(zip(found.tolist(), rows.tolist(), strict=True)) | dict(sorted(self._long.items()))
        return TokenCounts(
            rows=self.rows,
            tokens=int(found @ rows) + sum(length * n for length, n in self._long.items()),
            supervised_tokens=self.labels - self.masked - self.null_labels if with_labels else None,
            masked_tokens=self.masked if with_labels else None,
            lengths=lengths,
            null_rows=self.null_rows,
            null_labels=self.null_labels,
            misaligned_rows=self.misaligned,
            bytes_read=self.bytes_read,
        )
