"""Pack examples of different lengths into rows of ``max_length`` tokens, so that no compute is spent on padding.

The one idea: an example is never cut. Best-fit decreasing (longest first, each into the fullest row that still
has room) leaves one to three percent of the room empty on real length distributions. Since examples of one length
are interchangeable, the packer works on whole groups of equal length: its cost grows with the number of distinct
lengths, not with the number of rows (10 million lengths take seconds).

A packed row keeps its examples apart by ``seq_lens``: positions restart at each example, attention is run example by
example (see ``attention``), and the first label of each example is masked, so no loss crosses a join.

Sources: best-fit decreasing, Johnson 1973; the failures that the tests hold off are trl#784 and trl#805 (examples
see each other), trl#4554 (fragments without their prompt), axolotl#2332 (rows longer than the limit).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

IGNORE_INDEX = -100
"""The label that the loss skips (``torch.nn.functional.cross_entropy``'s default)."""

DEFAULT_MAX_LENGTH = 512
"""Tokens of a row where neither a setting nor longer examples ask for more: what the shipped task is trained with."""


@dataclass(frozen=True)
class Packing:
    """Which packed row each example goes to.

    Attributes
    ----------
    row_of : numpy.ndarray
        int64, shape (examples,): the row of each example.
    lengths : numpy.ndarray
        int64, shape (examples,): tokens of each example.
    max_length : int
        Tokens that a row can hold.
    """

    row_of: np.ndarray
    lengths: np.ndarray
    max_length: int

    @property
    def n_rows(self) -> int:
        """Number of packed rows."""
        return int(self.row_of.max()) + 1 if self.row_of.size else 0

    @cached_property
    def row_tokens(self) -> np.ndarray:
        """Tokens in each row, int64, shape (n_rows,)."""
        return np.bincount(self.row_of, weights=self.lengths, minlength=self.n_rows).astype(np.int64)

    @cached_property
    def rows(self) -> list[list[int]]:
        """For each row the indices of its examples, in the order in which they were given."""
        order = np.argsort(self.row_of, kind="stable")
        ends = np.cumsum(np.bincount(self.row_of, minlength=self.n_rows))
        return [part.tolist() for part in np.split(order, ends[:-1])] if self.n_rows else []

    @property
    def tokens(self) -> int:
        """All tokens packed."""
        return int(self.lengths.sum())

    @property
    def efficiency(self) -> float:
        """Share of the room ``n_rows * max_length`` that holds tokens, 0 to 1 (1.0 when there is nothing to pack)."""
        room = self.n_rows * self.max_length
        return self.tokens / room if room else 1.0

    def __str__(self) -> str:
        return (
            f"{self.lengths.size:,} examples, {self.tokens:,} tokens in {self.n_rows:,} rows of "
            f"{self.max_length:,} ({self.efficiency:.1%} full)"
        )


def pack_lengths(lengths: Sequence[int] | np.ndarray, max_length: int) -> Packing:
    """Assign each example to a row by best-fit decreasing, from the lengths alone.

    Deterministic: equal lengths keep their order. No example is cut, none is left out, no row is longer than
    ``max_length``.

    Parameters
    ----------
    lengths
        Tokens of each example, integers >= 1, shape (examples,).
    max_length
        Tokens that a row can hold.

    Raises
    ------
    ValueError
        If an example is longer than ``max_length`` or shorter than one token; the message names the first one.

    Examples
    --------
    >>> packing = pack_lengths([4, 2, 3, 1], max_length=5)
    >>> packing.rows
    [[0, 3], [1, 2]]
    >>> print(packing)
    4 examples, 10 tokens in 2 rows of 5 (100.0% full)
    """
    lengths = np.asarray(lengths)
    if lengths.size == 0:
        return Packing(np.zeros(0, np.int64), np.zeros(0, np.int64), max_length)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be one integer per example, found dtype {lengths.dtype} and shape {lengths.shape}"
        )
    lengths = lengths.astype(np.int64)
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, found {max_length}")
    for bad, what in (
        (lengths > max_length, f"at most max_length = {max_length}"),
        (lengths < 1, "at least 1"),
    ):
        if bad.any():
            i = int(bad.argmax())
            raise ValueError(
                f"example {i} has {lengths[i]} tokens, expected {what} ({int(bad.sum())} such examples). "
                "Packing never cuts an example: truncate or drop it when tokenizing, or raise max_length."
            )

    by_length = np.argsort(-lengths, kind="stable")
    row_of = np.empty(lengths.size, np.int64)
    open_rows: dict[int, list[np.ndarray]] = {}  # free tokens -> ids of the rows with that much room
    start = n_rows = 0
    distinct, examples = np.unique(lengths, return_counts=True)
    for step in _best_fit_decreasing(
        dict(zip(distinct.tolist(), examples.tolist(), strict=True)), max_length
    ):
        if step.room == max_length:
            rows = np.arange(n_rows, n_rows + step.rows)
            n_rows += step.rows
        else:
            rows = np.concatenate(open_rows.pop(step.room))
        row_of[by_length[start : start + step.taken]] = np.repeat(rows, step.each)[: step.taken]
        start += step.taken
        ends = np.cumsum([n for _, n in step.left])
        for (room, _), ids in zip(step.left, np.split(rows, ends[:-1]), strict=True):
            if ids.size and room:
                open_rows.setdefault(room, []).append(ids)
    return Packing(row_of, lengths, max_length)


def count_packed_rows(examples_by_length: Mapping[int, int], max_length: int) -> int:
    """Count the rows that packing needs: ``pack_lengths(lengths, max_length).n_rows``, without the lengths.

    Parameters
    ----------
    examples_by_length
        For each length (1 to ``max_length``) the number of examples.
    max_length
        Tokens that a row can hold.

    Examples
    --------
    >>> count_packed_rows({1: 1, 2: 1, 3: 1, 4: 1}, max_length=5)
    2
    """
    steps = _best_fit_decreasing(examples_by_length, max_length)
    return sum(step.rows for step in steps if step.room == max_length)


class _Step(NamedTuple):
    """Examples of one length go into rows of equal room: ``each`` into a row, until all ``taken`` are in."""

    room: int  # free tokens of these rows before; max_length: they are new
    rows: int  # how many rows there are with that room
    each: int
    taken: int
    left: tuple[tuple[int, int], ...]  # free tokens after, and how many of the rows in turn have so many


def _best_fit_decreasing(examples_by_length: Mapping[int, int], max_length: int) -> Iterator[_Step]:
    """Longest first, each into the fullest row that still has room, on numbers of examples and rows alone.

    Examples of equal length are interchangeable, and so are rows of equal room: memory and time grow with the
    distinct lengths.
    """
    open_rows: dict[int, int] = {}  # free tokens -> rows with that much room
    rooms: list[int] = []  # its keys, sorted
    for length in sorted(examples_by_length, reverse=True):
        todo = examples_by_length[length]
        while todo:
            at = bisect.bisect_left(rooms, length)
            if at < len(rooms):
                room = rooms.pop(at)
                rows = open_rows.pop(room)
            else:
                room, rows = max_length, math.ceil(todo / (max_length // length))
            # The fullest row that fits stays the fullest after taking one, so each takes all that it can.
            each = room // length
            taken = min(todo, each * rows)
            full, rest = divmod(taken, each)
            left = (
                (room - each * length, full),
                (room - rest * length, 1 if rest else 0),
                (room, rows - full - (1 if rest else 0)),
            )
            for free, n in left:
                if n and free:
                    if free not in open_rows:
                        bisect.insort(rooms, free)
                    open_rows[free] = open_rows.get(free, 0) + n
            yield _Step(room, rows, each, taken, left)
            todo -= taken


SHARED_FROM = 8
"""Tokens that a start must have to stand in a row once: less isn't worth the cuts."""


def share_start(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Let the tokens that all examples of a batch begin with, such as a system prompt, stand in it once.

    A causal model makes the same of them each time, and nothing before an example's first answer is learned: losses and
    gradients are what they were, from fewer tokens.

    Parameters
    ----------
    inputs
        As ``collate_rows`` makes them.

    Returns
    -------
    dict
        The same with the start left out of all examples but the first, and ``prefix_lens`` as ``packed_sdpa`` takes
        them; unchanged where fewer than ``SHARED_FROM`` tokens are shared, or shared already. Supervised tokens keep
        their order.

    Examples
    --------
    >>> batch = collate_rows([[{"input_ids": [*range(9), last], "labels": [-100] * 9 + [last]} for last in (21, 22)]])
    >>> shared = share_start(batch)
    >>> shared["input_ids"].tolist(), shared["seq_lens"], shared["prefix_lens"]
    ([[0, 1, 2, 3, 4, 5, 6, 7, 8, 21, 8, 22]], (10, 2), (0, 8))
    >>> shared["position_ids"].tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 9]]
    """
    import torch

    lens = list(inputs["seq_lens"])
    if len(lens) < 2 or "prefix_lens" in inputs:
        return dict(inputs)
    first, *rest = inputs["input_ids"][0].split(lens)
    shared = min(lens) - 1  # an example keeps a token at least
    for ids, labels in zip(rest, inputs["labels"][0].split(lens)[1:], strict=True):
        # The token after the start is told from the start's last one, and that is the first example's.
        ends = ((ids[:shared] != first[:shared]) | (labels[1 : shared + 1] != IGNORE_INDEX)).nonzero()
        shared = int(ends[0, 0]) if len(ends) else shared
    if shared < SHARED_FROM:
        return dict(inputs)
    keep = torch.ones(sum(lens), dtype=torch.bool)
    at = lens[0]
    for n in lens[1:]:
        keep[at : at + shared] = False
        at += n
    cut = {name: inputs[name][:, keep] for name in ("input_ids", "labels", "position_ids")}
    return {
        **inputs,
        **cut,
        "seq_lens": (lens[0], *(n - shared for n in lens[1:])),
        "prefix_lens": (0, *([shared] * len(rest))),
    }


def collate_rows(rows: Sequence[Sequence[Mapping[str, Sequence[int]]]]) -> dict[str, Any]:
    """Lay the examples of several packed rows end to end: model inputs without any padding.

    Parameters
    ----------
    rows
        For each row its examples: mappings with ``input_ids`` and ``labels`` of equal length (lists of int).

    Returns
    -------
    dict
        ``input_ids``: int64 tensor, shape (1, tokens), one example after the other. ``labels``: the same shape, -100
        where nothing is learned, always so at the first token of an example. ``position_ids``: the same shape, restart
        at 0 with each example. ``seq_lens``: tuple of int, tokens of each example; they add up to ``tokens``.

    Raises
    ------
    ValueError
        If an example is empty, or its ``labels`` and ``input_ids`` differ in length.

    Examples
    --------
    >>> batch = collate_rows([[{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
    ...                        {"input_ids": [8, 9], "labels": [8, 9]}]])
    >>> batch["position_ids"].tolist(), batch["labels"].tolist(), batch["seq_lens"]
    ([[0, 1, 2, 0, 1]], [[-100, 6, 7, -100, 9]], (3, 2))
    """
    import torch

    input_ids, labels, positions, seq_lens = [], [], [], []
    for i, example in enumerate(example for row in rows for example in row):
        n = len(example["input_ids"])
        if n == 0 or n != len(example["labels"]):
            raise ValueError(
                f"example {i} of the batch has {n} input_ids and {len(example['labels'])} labels, "
                "expected the same number, at least 1"
            )
        input_ids.extend(example["input_ids"])
        # The first token of an example has nothing before it to be predicted from: no loss crosses the join.
        labels.append(IGNORE_INDEX)
        labels.extend(example["labels"][1:])
        positions.extend(range(n))
        seq_lens.append(n)
    return {
        "input_ids": torch.tensor([input_ids]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.tensor([positions]),
        "seq_lens": tuple(seq_lens),
    }
