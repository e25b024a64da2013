"""Pack examples of different lengths into rows of ``max_length`` tokens, so that no compute is spent on padding.

The one idea: an example is never cut. Best-fit decreasing (longest first, each into the fullest row that still
has room) leaves one to three percent of the room empty on real length distributions. Since examples of one length
are interchangeable, the packer works on whole groups of equal length: its cost grows with the number of distinct
lengths, not with the number of rows (10 million lengths take seconds).

A packed row keeps its examples apart by ``PackedBatch.seq_lens``: positions restart at each example, attention is
run example by example (see ``onegpu.qlora_finetune.attention``), and the first label of each example is masked, so
no loss crosses a join.

Sources: best-fit decreasing, Johnson 1973; the failures that the tests hold off are trl#784 and trl#805 (examples
see each other), trl#4554 (fragments without their prompt), axolotl#2332 (rows longer than the limit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100
"""The label that the loss skips (``torch.nn.functional.cross_entropy``'s default)."""


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
    sorted_lengths = lengths[by_length]
    starts = np.flatnonzero(np.r_[True, sorted_lengths[1:] != sorted_lengths[:-1]])
    groups = np.split(by_length, starts[1:])

    row_of = np.empty(lengths.size, np.int64)
    open_rows: dict[int, list[np.ndarray]] = {}  # free tokens -> ids of the rows with that much room
    has_room = np.zeros(max_length + 1, bool)
    n_rows = 0
    for length, examples in zip(sorted_lengths[starts].tolist(), groups, strict=True):
        todo = examples
        while todo.size:
            fit = has_room[length:].argmax() + length
            if has_room[fit]:
                free, rows = int(fit), np.concatenate(open_rows.pop(int(fit)))
                has_room[free] = False
            else:
                free, wanted = max_length, -(-todo.size // (max_length // length))
                rows = np.arange(n_rows, n_rows + wanted)
                n_rows += wanted
            # The fullest row that fits stays the fullest after taking one, so each takes all that it can.
            each = free // length
            full, rest = divmod(min(todo.size, each * rows.size), each)
            taken = full * each + rest
            row_of[todo[:taken]] = np.r_[np.repeat(rows[:full], each), np.repeat(rows[full : full + 1], rest)]
            todo = todo[taken:]
            for room, ids in (
                (free - each * length, rows[:full]),
                (free - rest * length, rows[full : full + 1] if rest else rows[:0]),
                (free, rows[full + (rest > 0) :]),
            ):
                if ids.size and room > 0:
                    open_rows.setdefault(room, []).append(ids)
                    has_room[room] = True
    return Packing(row_of, lengths, max_length)


@dataclass(frozen=True)
class PackedBatch:
    """Several examples end to end in one row, with what keeps them apart.

    Attributes
    ----------
    input_ids : torch.Tensor
        int64, shape (1, tokens): the examples one after the other.
    labels : torch.Tensor
        int64, shape (1, tokens): -100 where nothing is learned, always so at the first token of an example.
    position_ids : torch.Tensor
        int64, shape (1, tokens): restart at 0 with each example.
    seq_lens : tuple of int
        Tokens of each example; they add up to ``tokens``.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    seq_lens: tuple[int, ...]


def collate_packed(examples: Sequence[dict[str, Sequence[int]]]) -> PackedBatch:
    """Lay examples end to end. No padding at all.

    Parameters
    ----------
    examples
        Mappings with ``input_ids`` and ``labels`` of equal length (lists of int).

    Raises
    ------
    ValueError
        If an example is empty, or its ``labels`` and ``input_ids`` differ in length.

    Examples
    --------
    >>> batch = collate_packed([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
    ...                         {"input_ids": [8, 9], "labels": [8, 9]}])
    >>> batch.position_ids.tolist(), batch.labels.tolist(), batch.seq_lens
    ([[0, 1, 2, 0, 1]], [[-100, 6, 7, -100, 9]], (3, 2))
    """
    import torch

    input_ids, labels, positions, seq_lens = [], [], [], []
    for i, example in enumerate(examples):
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
    return PackedBatch(
        torch.tensor([input_ids]), torch.tensor([labels]), torch.tensor([positions]), tuple(seq_lens)
    )
