"""Count the masked labels of wanted rows, by comparing each label once where it lies.

Rows that follow each other are one stretch. Stretches that lie near each other are compared together, a block at a time,
and what lies between them is left out of the count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from onegpu.token_counting.columns import ListRows, value_view

BLOCK = 1 << 17
"""Labels compared at a time: the comparison's result (128 KiB) stays in the cache."""

_GAP = 1 << 15
"""Labels nobody wants that are compared rather than stepped over: a step costs some ten microseconds, a label 0.3 ns."""


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
    values = rows.values
    if pa.types.is_null(values.type) or not starts.size:
        return 0, _weighted(ends - starts, weights)
    view = value_view(values)
    scratch = np.empty(2 * BLOCK + 1, bool)  # kept, since fresh memory for each block would cost page faults
    masked = nulls = 0
    for a, b in _blocks(starts, ends):
        low, high = int(starts[a]), int(ends[a:b].max())
        bounds, times = np.stack([starts[a:b], ends[a:b]], 1) - low, None if weights is None else weights[a:b]
        if values.null_count:
            is_null = values.slice(low, high - low).is_null().to_numpy(zero_copy_only=False)
            nulls += _count(np.append(is_null, False), bounds, times)
        if ignored is not None:
            hits = scratch[: high - low + 1]
            np.equal(view[low:high], view.dtype.type(ignored), hits[:-1])
            hits[-1] = False
            if values.null_count:
                hits[:-1] &= ~is_null
            masked += _count(hits, bounds, times)
        read(view[low:high], (high - low) * view.itemsize)
    return masked, nulls


def _count(hits: np.ndarray, bounds: np.ndarray, weights: np.ndarray | None) -> int:
    """Count the true ones between bounds, shape (stretches, 2), each as often as its weight; the last hit is none."""
    if len(bounds) == 1:
        return int(np.count_nonzero(hits)) * (1 if weights is None else int(weights[0]))
    return _weighted(np.add.reduceat(hits, bounds.ravel(), dtype=np.int32)[::2], weights)


def _weighted(counts: np.ndarray, weights: np.ndarray | None) -> int:
    return int(counts.sum() if weights is None else counts @ weights)


def _stretches(
    rows: ListRows, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Join rows of one weight that follow each other, in the order in which they lie, and cut what is longer than a block."""
    wanted = np.flatnonzero(rows.lengths)
    if not rows.is_gapless:
        wanted = wanted[rows.starts[wanted].argsort(kind="stable")]
    starts = rows.starts[wanted]
    ends = starts + rows.lengths[wanted]
    begins = np.ones(starts.size, bool)
    begins[1:] = starts[1:] != ends[:-1]
    if weights is not None:
        weights = weights[wanted]
        begins[1:] |= weights[1:] != weights[:-1]
    first = np.flatnonzero(begins)
    starts, ends = starts[first], ends[np.append(first[1:], ends.size)[: first.size] - 1]
    n = -(-(ends - starts) // BLOCK)
    which = np.repeat(np.arange(n.size), n)
    starts = starts[which] + (np.arange(which.size) - (n.cumsum() - n)[which]) * BLOCK
    return starts, np.minimum(starts + BLOCK, ends[which]), None if weights is None else weights[first][which]


def _blocks(starts: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int]]:
    """Take stretches together that reach over no more than a block, without large gaps."""
    place = starts // BLOCK
    cuts = np.flatnonzero((place[1:] != place[:-1]) | (starts[1:] - ends[:-1] > _GAP)) + 1
    return itertools.pairwise([0, *cuts.tolist(), starts.size])
