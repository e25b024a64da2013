"""Tokenized examples, where they lie, and what became of the rows they are of."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Tokenized:
    """One tokenized example.

    Attributes
    ----------
    input_ids, labels
        Of equal length; labels are the ids where supervised, else -100. Both are empty when ``dropped``.
    supervised_tokens
        How many labels count in the loss: those from position 1 on (the model predicts token i from
        the tokens before it, so a label at position 0 is never used).
    dropped
        Why the example can't be trained on, or None: "too_long", "no_answer_left".
    lost_tokens, lost_supervised_tokens
        What truncation or dropping took away.
    length, prompt_length, first_answer_end
        Tokens before truncation; how many of them come before the first supervised one; and how many
        it takes to hold the first answer whole.
    row
        The row's number, when the caller gave it.
    question
        A number that rows with the same question share (all turns but the last; white space and case apart).
    """

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    supervised_tokens: int
    dropped: str | None = None
    lost_tokens: int = 0
    lost_supervised_tokens: int = 0
    length: int = 0
    prompt_length: int = 0
    first_answer_end: int = 0
    row: int | None = None
    question: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)

    def __str__(self) -> str:
        if self.dropped:
            return f"dropped ({self.dropped}): {self.length} tokens, {self.prompt_length} of them prompt"
        lost = f", {self.lost_tokens} cut off" if self.lost_tokens else ""
        return f"{len(self)} tokens, {self.supervised_tokens} supervised{lost}"


@dataclass(frozen=True)
class TokenizedSet:
    """Tokenized examples and what became of the rows.

    Attributes
    ----------
    examples
        The kept ones, in row order.
    rows
        How many rows were read.
    dropped
        Row numbers by reason.
    truncated
        Numbers of the rows that lost tokens but were kept.
    lost_tokens, lost_supervised_tokens
        Over all rows, dropped ones included.
    bad_rows
        (number, what is wrong with it) of each row that was skipped because it can't be trained on.
    unused_keys
        Keys that rows have and nothing uses, with the number of rows.
    changes
        Rows changed, by repair.
    end_ids
        Ids in which the supervised spans end: generation has to stop at them.
    systems
        System prompts of the rows, None for a row without one; two at most, which is more than one.
    unit
        What an example is: "rows", or "pairs" of preferences.
    """

    examples: Sequence[Tokenized]
    rows: int
    dropped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    truncated: tuple[int, ...] = ()
    lost_tokens: int = 0
    lost_supervised_tokens: int = 0
    bad_rows: tuple[tuple[int, str], ...] = ()
    unused_keys: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)
    end_ids: tuple[int, ...] = ()
    systems: tuple[str | None, ...] = ()
    unit: str = "rows"

    def take(self, indices: np.ndarray, rows: int, **changes: Any) -> TokenizedSet:
        """Keep some of the examples; ``rows`` and ``changes`` are the figures of what is left."""
        return replace(self, examples=self.examples.take(indices), rows=rows, **changes)

    @classmethod
    def join(cls, sets: Sequence[TokenizedSet]) -> TokenizedSet:
        """Put sets one after the other; row numbers go on from one set to the next."""
        dropped: dict[str, list[int]] = {}
        truncated, bad, unused, changes, first = [], [], Counter(), Counter(), 0
        for one in sets:
            for reason, numbers in one.dropped.items():
                dropped.setdefault(reason, []).extend(first + n for n in numbers)
            truncated += [first + n for n in one.truncated]
            bad += [(first + n, said) for n, said in one.bad_rows]
            unused.update(one.unused_keys)
            changes.update(one.changes)
            first += one.rows
        return cls(
            FlatExamples.join([one.examples for one in sets]), first, {r: tuple(n) for r, n in dropped.items()},
            tuple(truncated), sum(one.lost_tokens for one in sets), sum(one.lost_supervised_tokens for one in sets),
            tuple(bad), dict(unused), dict(changes), tuple(sorted({i for one in sets for i in one.end_ids})),
            tuple(sorted({text for one in sets for text in one.systems}, key=str))[:2], sets[0].unit,
        )  # fmt: skip

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each kept example, int64."""
        if isinstance(self.examples, FlatExamples):
            return self.examples.lengths
        return np.array([len(example) for example in self.examples], np.int64)

    @property
    def tokens(self) -> int:
        """Tokens of the kept examples."""
        return int(self.lengths.sum())

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens of the kept examples."""
        if isinstance(self.examples, FlatExamples):
            return int(self.examples.figures[:, 0].sum())
        return sum(example.supervised_tokens for example in self.examples)

    @property
    def longest(self) -> int:
        """Tokens of the longest kept example."""
        return int(self.lengths.max())

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Tokenized]:
        return iter(self.examples)

    def __getitem__(self, index):
        return self.examples[index]

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} {self.unit}: {len(self):,} kept, {self.tokens:,} tokens, "
            f"{self.supervised_tokens:,} supervised ({self.supervised_tokens / max(1, self.tokens):.1%})"
        ]
        for reason, rows in self.dropped.items():
            lines.append(f"dropped, {reason}: {len(rows):,} ({self.unit} {_some(rows)})")
        if self.truncated:
            lines.append(f"truncated: {len(self.truncated):,} ({self.unit} {_some(self.truncated)})")
        if self.lost_tokens:
            lines.append(
                f"lost: {self.lost_tokens:,} tokens, {self.lost_supervised_tokens:,} of them supervised"
            )
        if self.bad_rows:
            lines.append(f"first bad row: {self.bad_rows[0][1]}")
        lines += [f"changed, {name}: {count:,} rows" for name, count in self.changes.items()]
        if self.unused_keys:
            named = ", ".join(f"{key!r} of {count:,} rows" for key, count in self.unused_keys.items())
            lines.append(f"not used, and not learned: {named}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


FIGURES = (
    "supervised_tokens", "lost_tokens", "lost_supervised_tokens", "length", "prompt_length", "first_answer_end", "row",
    "question",
)  # fmt: skip
"""What is kept of an example beside ids and labels, int64 each (row -1: none was given)."""

SCHEMA = pa.schema(
    {"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())} | dict.fromkeys(FIGURES, pa.int64())
)

BATCH_TOKENS = 1 << 18
"""Tokens after which a batch of examples is closed: 2 MiB of ids and labels."""


def batches_of(examples: Iterable[Tokenized]) -> Iterator[pa.RecordBatch]:
    """Lay examples end to end in Arrow batches, a few MiB at a time."""
    ids, labels, ends, figures = array("i"), array("i"), array("i", [0]), array("q")

    def batch() -> pa.RecordBatch:
        offsets = pa.array(np.frombuffer(ends, np.int32))
        columns = [
            pa.ListArray.from_arrays(offsets, pa.array(np.array(part, np.int32))) for part in (ids, labels)
        ]
        table = np.array(figures, np.int64).reshape(-1, len(FIGURES))
        return pa.record_batch([*columns, *(pa.array(column) for column in table.T)], schema=SCHEMA)

    for e in examples:
        ids.extend(e.input_ids)
        labels.extend(e.labels)
        ends.append(len(ids))
        figures.extend((
            e.supervised_tokens, e.lost_tokens, e.lost_supervised_tokens, e.length, e.prompt_length, e.first_answer_end,
            -1 if e.row is None else e.row, e.question,
        ))  # fmt: skip
        if len(ids) >= BATCH_TOKENS:
            yield batch()
            ids, labels, ends, figures = array("i"), array("i"), array("i", [0]), array("q")
    if figures:
        yield batch()


class FlatExamples(Sequence[Tokenized]):
    """Tokenized examples in Arrow batches, 8 bytes a token (none of it in memory where the batches are of a mapped file).

    Each example is made when it is asked for.

    Parameters
    ----------
    batches
        Of ``SCHEMA``.
    order : numpy.ndarray or None
        int64: numbers of the examples, counted through all batches, that these are. None: all.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], order: np.ndarray | None = None):
        self.batches = tuple(batches)
        self._firsts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])
        self._views = [
            tuple(
                part.to_numpy()
                for part in (b["input_ids"].offsets, b["input_ids"].values, b["labels"].values)
            )
            for b in self.batches
        ]
        self._order = np.arange(self._firsts[-1]) if order is None else order
        figures = [np.stack([b[name].to_numpy() for name in FIGURES], axis=1) for b in self.batches]
        self.figures = np.concatenate([np.zeros((0, len(FIGURES)), np.int64), *figures])[self._order]
        lengths = [np.diff(offsets) for offsets, *_ in self._views]
        self.lengths = np.concatenate([np.zeros(0, np.int64), *lengths])[self._order]

    @classmethod
    def of(cls, examples: Iterable[Tokenized]) -> FlatExamples:
        """Lay examples end to end in memory."""
        return cls(list(batches_of(examples)))

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]
        ids, labels = self.arrays(index)
        *figures, row, question = self.figures[index].tolist()
        supervised, lost, lost_supervised, length, prompt, first = figures
        return Tokenized(
            tuple(ids.tolist()), tuple(labels.tolist()), supervised, None, lost, lost_supervised, length, prompt, first,
            None if row < 0 else row, question,
        )  # fmt: skip

    def arrays(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of an example, int32, where they lie."""
        number = self._order[index]
        batch = int(np.searchsorted(self._firsts, number, "right")) - 1
        offsets, ids, labels = self._views[batch]
        at = number - self._firsts[batch]
        part = slice(offsets[at], offsets[at + 1])
        return ids[part], labels[part]

    @property
    def rows(self) -> np.ndarray:
        """Row number of each example, -1 where none was given."""
        return self.figures[:, FIGURES.index("row")]

    @property
    def questions(self) -> np.ndarray:
        """Number of each example's question, int64."""
        return self.figures[:, FIGURES.index("question")]

    def take(self, indices: np.ndarray) -> FlatExamples:
        """Some of the examples, in the order asked for; nothing is copied."""
        return FlatExamples(self.batches, self._order[indices])

    @staticmethod
    def join(parts: Sequence[FlatExamples]) -> FlatExamples:
        """Put examples of several sets end to end; nothing is copied."""
        firsts = np.cumsum([0, *(part._firsts[-1] for part in parts)])
        orders = [part._order + first for part, first in zip(parts, firsts, strict=False)]
        return FlatExamples([b for part in parts for b in part.batches], np.concatenate(orders))

    def digest(self) -> bytes:
        """Tell other examples from these: SHA-256 of where each ends, all ids, and all labels."""
        found = hashlib.sha256(np.cumsum(self.lengths))
        for which in (0, 1):
            for index in range(len(self)):
                found.update(self.arrays(index)[which])
        return found.digest()


def _some(rows: tuple[int, ...], most: int = 5) -> str:
    return ", ".join(map(str, rows[:most])) + (", ..." if len(rows) > most else "")
