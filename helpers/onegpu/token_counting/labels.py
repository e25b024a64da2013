"""Count the masked labels of wanted rows, by comparing each label once where it lies.

Without gaps between the rows, numpy compares a block at a time. Small gaps are compared too, and left out of the count
afterwards. Between large ones, stretches of wanted rows are cut out and compared in one call of Arrow's: a call of
numpy's for each would have the threads wait for each other at each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onegpu.token_counting.columns import ListRows, value_view

BLOCK = 1 << 17
"""Labels compared at a time: the comparison's result (128 KiB) stays in the cache."""

_GROUP = 1 << 20
"""Labels that scattered rows may reach over, to be compared in one call."""

_STRETCHES = 8192
"""Stretches that are compared in one call at most."""

_SHORT = 2000
"""Below this many labels per stretch of wanted rows, gaps included, comparing the gaps too is faster than taking the
stretches out (measured: about a microsecond for a stretch, 0.4 ns for a label)."""


def stored_index(kind: pa.DataType, ignore_index: int) -> int | None:
    """Return what ``ignore_index`` looks like in labels of a type; None if it can't occur.

    Parameters
    ----------
    kind
        An integer type, or null.
    ignore_index
        Label that the loss skips.

    Examples
    --------
    >>> stored_index(pa.int64(), -100), stored_index(pa.uint32(), -100), stored_index(pa.int8(), -1000)
    (-100, 4294967196, None)
    """
    if pa.types.is_null(kind):
        return None
    info = np.iinfo(str(kind))
    if info.min <= ignore_index <= info.max:
        return ignore_index
    # -100 stored as uint32 is 4294967196: no vocabulary has that many tokens, so it can only be a mask.
    if ignore_index < 0 and pa.types.is_unsigned_integer(kind) and -ignore_index <= info.max:
        return int(info.max) + 1 + ignore_index
    return None


def masked_and_null(
    rows: ListRows,
    weights: np.ndarray | None,
    ignored: int | None,
    read: Callable[[np.ndarray, int], None] = lambda array, n_bytes: None,
) -> tuple[int, int]:
    """Count the labels that are ``ignored``, and those that are null, each as often as its row counts.

    Parameters
    ----------
    rows
        Of the column of labels.
    weights
        int64, shape (rows,): how often each row counts; None for once.
    ignored
        Label that the loss skips, as it is stored (``stored_index``); None if none can be.
    read
        Is told the values that were looked over, and how many bytes of them were read.

    Examples
    --------
    >>> from onegpu.token_counting.columns import list_rows
    >>> rows = list_rows(pa.array([[-100, 5, None], [-100, -100]]))
    >>> masked_and_null(rows, None, -100), masked_and_null(rows, np.array([1, 3]), -100)
    ((3, 1), (7, 1))
    """
    starts, ends, weights = _stretches(rows, weights)
    if not starts.size:
        return 0, 0
    values = rows.values
    if pa.types.is_null(values.type):
        return 0, _weighted(ends - starts, weights)

    view = value_view(values)
    if ignored is not None:
        sought, sought_by_arrow = np.array(ignored, view.dtype), pa.scalar(ignored, values.type)
    in_order = bool((starts[1:] >= ends[:-1]).all())
    with_gaps = in_order and starts.size > 1 and ends[-1] - starts[0] < _SHORT * starts.size
    scratch = np.empty(BLOCK, bool)  # kept, since fresh memory for each block would cost page faults

    masked = nulls = 0
    for a, b in _groups(starts, ends, BLOCK if with_gaps else _GROUP):
        if b - a == 1 and not values.null_count:
            low, high = int(starts[a]), int(ends[a])
            n_labels = high - low
            if ignored is not None:
                hits = np.equal(view[low:high], sought, scratch[:n_labels])
                masked += int(np.count_nonzero(hits)) * (1 if weights is None else int(weights[a]))
        else:
            first, last, times = starts[a:b], ends[a:b], None if weights is None else weights[a:b]
            low, high = int(first.min()), int(last.max())
            if with_gaps:
                labels, first, last = values.slice(low, high - low), first - low, last - low
            else:
                labels = pa.chunked_array(list(map(values.slice, first.tolist(), (last - first).tolist())))
                last = (last - first).cumsum()
                first = np.concatenate([[0], last[:-1]])
            n_labels = len(labels)
            if ignored is not None:
                hits = pc.equal(labels, sought_by_arrow)  # null where the label is
                masked += _count_hits(
                    pc.fill_null(hits, False) if values.null_count else hits, first, last, times
                )
            if values.null_count:
                nulls += _count_hits(labels.is_null(), first, last, times)
        read(view[low:high], n_labels * view.itemsize)
    return masked, nulls


def _weighted(counts: np.ndarray, weights: np.ndarray | None) -> int:
    return int(counts.sum() if weights is None else counts @ weights)


def _stretches(
    found: ListRows, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Join rows that follow each other without a gap, and cut what is longer than a block."""
    starts, ends = found.starts, found.starts + found.lengths
    if found.is_gapless and weights is None:
        starts, ends = starts[:1], ends[-1:]
        if starts.size and starts[0] == ends[0]:
            starts, ends = starts[:0], ends[:0]
    else:
        wanted = found.lengths > 0
        starts, ends = starts[wanted], ends[wanted]
        begins = np.ones(starts.size, bool)
        begins[1:] = starts[1:] != ends[:-1]
        if weights is not None:
            weights = weights[wanted]
            begins[1:] |= weights[1:] != weights[:-1]
        first = np.flatnonzero(begins)
        starts, ends = starts[first], ends[np.append(first[1:], ends.size) - 1] if first.size else ends
        weights = None if weights is None else weights[first]
    n = -(-(ends - starts) // BLOCK)
    if (n > 1).any():
        number = np.arange(n.sum()) - np.repeat(n.cumsum() - n, n)  # of the block in its stretch
        starts, last = np.repeat(starts, n) + number * BLOCK, np.repeat(ends, n)
        ends = np.minimum(starts + BLOCK, last)
        weights = None if weights is None else np.repeat(weights, n)
    return starts, ends, weights


def _groups(starts: np.ndarray, ends: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Take stretches together until they reach over about ``size`` labels; leave long ones alone."""
    reach = np.maximum(ends - np.concatenate([starts[:1], ends[:-1]]), ends - starts).cumsum() // size
    is_long = ends - starts > BLOCK // 2
    is_full = np.arange(1, starts.size) % _STRETCHES == 0
    cuts = np.flatnonzero((reach[1:] != reach[:-1]) | is_long[1:] | is_long[:-1] | is_full) + 1
    return itertools.pairwise([0, *cuts.tolist(), starts.size])


def _count_hits(
    hits: pa.BooleanArray | pa.ChunkedArray, starts: np.ndarray, ends: np.ndarray, weights: np.ndarray | None
) -> int:
    """Count the true ones in stretches of hits, each as often as its weight says, and not those between stretches.

    Running sums are kept for words of 64 hits, a bit each; a position inside a word is found by counting bits.
    """
    if isinstance(hits, pa.ChunkedArray):
        hits = hits.combine_chunks()
    if weights is None and ends.sum() - starts.sum() == len(hits):
        return hits.true_count
    n_bytes = -(-(hits.offset + len(hits)) // 8)
    words = np.zeros(n_bytes // 8 + 1, "<u8")
    words.view(np.uint8)[:n_bytes] = np.frombuffer(hits.buffers()[1], np.uint8, n_bytes)
    before = np.zeros(words.size, np.int64)
    np.cumsum(np.bitwise_count(words[:-1]), out=before[1:])

    def up_to(position: np.ndarray) -> np.ndarray:
        position = position + hits.offset
        word, bit = position >> 6, (position & 63).astype(np.uint64)
        return before[word] + np.bitwise_count(words[word] & ((np.uint64(1) << bit) - np.uint64(1)))

    return _weighted(up_to(ends) - up_to(starts), weights)
