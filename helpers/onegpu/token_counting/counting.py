"""Count one piece of a data set, and gather pieces.

The length of a row is the difference of two offsets, so the tokens cost nothing to count. Supervised tokens are
counted by comparing each label once, a block at a time, where it lies: no copy, no Python object, no pandas.
A piece can carry a weight for each of its rows (how often an index mapping names it); rows of weight 0 are not read.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from onegpu.token_counting.columns import ListRows, check_column, list_rows, value_view
from onegpu.token_counting.counts import TokenCounts
from onegpu.token_counting.resident import Pages

BLOCK = 1 << 16
"""Labels compared at a time: the comparison's result (64 KiB) stays in the cache."""

ROWS = 1 << 16
"""Rows looked at at a time, which bounds the memory for starts and lengths."""

_GROUP = 1 << 19
"""Labels after which the pages that were read are taken note of."""

_SHORT = 300
"""Below this many labels per stretch of wanted rows (gaps included), running sums over all labels are faster than a
Python step for each stretch."""

_MIDDLE = 8000
"""Below this many, comparing the gaps too, a block at a time, is faster than a comparison for each stretch (measured:
a microsecond and more for a call, 0.3 ns for a label)."""

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
    total, row = _Tally(), 0
    for found in _map(lambda piece: _count_piece(piece, columns), pieces, threads):
        total.add(found, row)
        row += found.n_storage_rows
    return total.result(columns.labels is not None)


class _Found(NamedTuple):
    """What one piece holds. ``row_weights`` None means that each row counts once."""

    n_storage_rows: int
    row_lengths: np.ndarray
    row_weights: np.ndarray | None
    rows: int
    null_rows: int
    labels: int
    masked: int
    null_labels: int
    misaligned: int
    bytes_read: int
    stale: tuple[int, int, int] | None


def _count_piece(piece: Piece, columns: Columns) -> _Found:
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

    stale = None
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
                stale = (i if rows is None else int(rows[i]), int(stored[i]), int(lengths[i]))

    labels = masked = null_labels = misaligned = 0
    if columns.labels is not None:
        found = list_rows(batch.column(columns.labels), rows)
        if columns.labels != columns.column:
            for buffer in found.buffers:
                read(buffer)
        misaligned = count(found.lengths != lengths)
        labels = int(found.lengths.sum() if weights is None else found.lengths @ weights)
        masked, null_labels = _masked_and_null(found, weights, columns, read)

    null_rows = 0 if null is None else count(null)
    present = slice(None) if null is None else ~null
    return _Found(
        n_storage_rows=batch.num_rows,
        row_lengths=lengths[present],
        row_weights=None if weights is None else weights[present],
        rows=n if weights is None else int(weights.sum()),
        null_rows=null_rows,
        labels=labels,
        masked=masked,
        null_labels=null_labels,
        misaligned=misaligned,
        bytes_read=n_read,
        stale=stale,
    )


def _length_values(array: pa.Array, rows: np.ndarray | None) -> np.ndarray:
    values = array.cast(pa.int64()).fill_null(_NO_LENGTH).to_numpy(zero_copy_only=False)
    return values if rows is None else values[rows]


def _masked_and_null(found: ListRows, weights: np.ndarray | None, columns: Columns, read) -> tuple[int, int]:
    """Count the labels that are ``ignore_index``, and those that are null, each as often as its row counts."""
    wanted = found.lengths > 0
    starts, ends = found.starts[wanted], (found.starts + found.lengths)[wanted]
    if not starts.size:
        return 0, 0
    weights = np.ones(starts.size, np.int64) if weights is None else weights[wanted]
    if pa.types.is_null(found.values.type):
        return 0, int((ends - starts) @ weights)

    view, values = value_view(found.values), found.values
    ignored = _stored_ignore_index(view.dtype, columns)
    starts, ends, weights = _stretches(starts, ends, weights)
    in_order = bool((starts[1:] >= ends[:-1]).all())
    reach = (ends[-1] - starts[0]) / starts.size
    with_gaps = in_order and starts.size > 1 and reach < _MIDDLE
    count = (_count_by_sums if reach < _SHORT else _count_in_block) if with_gaps else _count_alone

    scratch = np.empty(2 * BLOCK, bool)  # kept, since fresh memory for each block would cost page faults

    def is_ignored(a: int, b: int) -> np.ndarray:
        return np.equal(view[a:b], ignored, out=scratch[: b - a] if b - a <= scratch.size else None)

    def is_null(a: int, b: int) -> np.ndarray:
        return values.slice(a, b - a).is_null().to_numpy(zero_copy_only=False)

    def is_both(a: int, b: int) -> np.ndarray:  # a null slot holds any value, perhaps this one
        return is_ignored(a, b) & is_null(a, b)

    masked = nulls = 0
    for part in _groups(starts, ends, BLOCK if with_gaps else _GROUP):
        stretches, times = (starts[part], ends[part]), weights[part]
        if ignored is not None:
            masked += int(count(is_ignored, *stretches) @ times)
        if values.null_count:
            nulls += int(count(is_null, *stretches) @ times)
            masked -= int(count(is_both, *stretches) @ times) if ignored is not None else 0
        alone = int((ends[part] - starts[part]).sum()) * view.itemsize
        read(view[int(starts[part].min()) : int(ends[part].max())], None if with_gaps else alone)
    if masked and columns.ignore_index < 0 and view.dtype.kind == "u" and view.dtype.itemsize < 4:
        raise ValueError(
            f"labels {columns.labels!r} are {view.dtype} and hold {ignored}, which is what {columns.ignore_index} turns "
            f"into there, but may be a token as well. Cast the labels to int32, or say ignore_index={ignored}"
        )
    return masked, nulls


def _stretches(starts: np.ndarray, ends: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Join rows that follow each other without a gap, and cut what is longer than a block."""
    joined = (starts[1:] == ends[:-1]) & (weights[1:] == weights[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    starts, ends, weights = starts[first], ends[np.append(first[1:], ends.size) - 1], weights[first]
    n = -(-(ends - starts) // BLOCK)
    if (n > 1).any():
        number = np.arange(n.sum()) - np.repeat(n.cumsum() - n, n)  # of the block in its stretch
        starts, last, weights = (
            np.repeat(starts, n) + number * BLOCK,
            np.repeat(ends, n),
            np.repeat(weights, n),
        )
        ends = np.minimum(starts + BLOCK, last)
    return starts, ends, weights


def _groups(starts: np.ndarray, ends: np.ndarray, size: int) -> Iterator[slice]:
    """Take stretches together until they reach over about ``size`` labels."""
    reach = np.maximum(ends - np.concatenate([starts[:1], ends[:-1]]), ends - starts).cumsum()
    cuts = np.flatnonzero(np.diff(reach // size)) + 1
    for a, b in itertools.pairwise([0, *cuts.tolist(), starts.size]):
        yield slice(a, b)


def _count_alone(hits: Callable, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Count the hits in each stretch, one after the other."""
    nonzero = np.count_nonzero
    return np.array([nonzero(hits(a, b)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])


def _count_in_block(hits: Callable, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Count the hits in each stretch after looking at all of them and the gaps between them at once."""
    low, nonzero = int(starts[0]), np.count_nonzero
    found = hits(low, int(ends[-1]))
    return np.array(
        [nonzero(found[a:b]) for a, b in zip((starts - low).tolist(), (ends - low).tolist(), strict=True)]
    )


def _count_by_sums(hits: Callable, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Count the hits in each stretch from running sums over all of them and the gaps between them."""
    low = int(starts[0])
    found = hits(low, int(ends[-1]))
    sums = np.zeros(found.size + 1, np.int64)
    np.cumsum(found, out=sums[1:])
    return sums[ends - low] - sums[starts - low]


def _stored_ignore_index(dtype: np.dtype, columns: Columns) -> int | None:
    """What ``ignore_index`` looks like in a column of this type; None if it can't occur."""
    info, index = np.iinfo(dtype), columns.ignore_index
    if info.min <= index <= info.max:
        return index
    # -100 stored as uint32 is 4294967196: no vocabulary has that many tokens, so it can only be a mask.
    if index < 0 and dtype.kind == "u" and -index <= info.max:
        return int(info.max) + 1 + index
    return None


class _Tally:
    """Adds up what the pieces hold."""

    def __init__(self):
        self._short = np.zeros(0, np.int64)  # rows of each length
        self._long: dict[int, int] = {}  # length -> rows
        self._pending: list[tuple[np.ndarray, np.ndarray | None]] = []
        self._n_pending = 0
        self.rows = self.null_rows = self.labels = self.masked = 0
        self.null_labels = self.misaligned = self.bytes_read = 0

    def add(self, found: _Found, row: int) -> None:
        if found.stale:
            i, stored, length = found.stale
            raise ValueError(
                f"the length column is stale: row {row + i} of the stored data says {stored} and has {length} tokens. "
                "Leave length_column out (counting from the offsets costs no more), or write the column anew"
            )
        self.rows += found.rows
        self.null_rows += found.null_rows
        self.labels += found.labels
        self.masked += found.masked
        self.null_labels += found.null_labels
        self.misaligned += found.misaligned
        self.bytes_read += found.bytes_read
        self._pending.append((found.row_lengths, found.row_weights))
        self._n_pending += found.row_lengths.size
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
        lengths = {n: int(self._short[n]) for n in np.flatnonzero(self._short).tolist()}
        lengths |= dict(sorted(self._long.items()))
        return TokenCounts(
            rows=self.rows,
            tokens=sum(length * n for length, n in lengths.items()),
            supervised_tokens=self.labels - self.masked - self.null_labels if with_labels else None,
            masked_tokens=self.masked if with_labels else None,
            lengths=lengths,
            null_rows=self.null_rows,
            null_labels=self.null_labels,
            misaligned_rows=self.misaligned,
            bytes_read=self.bytes_read,
        )


def _map(function, pieces: Iterable[Piece], threads: int | None) -> Iterator[_Found]:
    """Apply a function to pieces in order, a few ahead at most, so that memory doesn't grow with their number."""
    threads = threads or min(
        4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    pieces = iter(pieces)
    if threads == 1:
        yield from map(function, pieces)
        return
    running: deque[Future] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces:
            running.append(pool.submit(function, piece))
            if len(running) > threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
