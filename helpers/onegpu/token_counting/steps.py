"""From lengths to optimizer steps, and to the share of the compute that goes into padding.

Everything is computed from the number of rows of each length, so ten million rows take milliseconds. The packing is
the real one (``onegpu.packed_training``) run on these numbers, not an efficiency that somebody guessed; the steps are what ``transformers.Trainer`` counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from onegpu.packed_training import count_packed_rows
from onegpu.token_counting.counts import TokenCounts

_SIMULATED_ROWS = 1 << 17


@dataclass(frozen=True, repr=False)
class TrainingSteps:
    """Optimizer steps of a training run, padded and packed.

    Attributes
    ----------
    padded_steps, packed_steps : int
        Steps of the whole run. Never negative.
    rows : int
        Rows trained on.
    packed_rows : int
        Rows of ``max_length`` that hold them when packed.
    tokens : int
        Tokens of these rows.
    max_length : int
        Tokens that a row can hold.
    room : dict of str to float
        Tokens that are computed in one epoch, padding included, by strategy: "max length" (every row padded to it),
        "longest in batch" (expected over random batches), "grouped by length" (``group_by_length`` of the Trainer,
        played through) and "packed" (rows hold what they hold, nothing is filled up).
    left_out : dict of str to int
        Rows not trained on: "empty", "null", "too long".
    per_device_train_batch_size, gradient_accumulation_steps, world_size, num_train_epochs, dataloader_drop_last
        As they were given.
    """

    padded_steps: int
    packed_steps: int
    rows: int
    packed_rows: int
    tokens: int
    max_length: int
    room: Mapping[str, float]
    left_out: Mapping[str, int]
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    world_size: int
    num_train_epochs: float
    dataloader_drop_last: bool

    @property
    def packing_efficiency(self) -> float:
        """Share of the packed rows' room that holds tokens, 0 to 1, measured (1.0 where there is nothing to pack)."""
        room = self.packed_rows * self.max_length
        return self.tokens / room if room else 1.0

    @property
    def waste(self) -> dict[str, float]:
        """Share of the computed tokens that are padding, by strategy, 0 to 1."""
        # Expected room is a sum of fractions and may come out a rounding error below the tokens in it.
        return {name: max(0.0, 1 - self.tokens / room) if room else 0.0 for name, room in self.room.items()}

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON types."""
        out = {name: value for name, value in vars(self).items() if not isinstance(value, Mapping)}
        return out | {
            "packing_efficiency": self.packing_efficiency,
            "room": dict(self.room),
            "padding_waste": self.waste,
            "left_out": dict(self.left_out),
        }

    def _lines(self) -> list[tuple[str, str]]:
        batch = (
            f"batch {self.per_device_train_batch_size} x accumulation {self.gradient_accumulation_steps} x "
            f"{self.world_size} device{'s' * (self.world_size > 1)}, {self.num_train_epochs:g} "
            f"epoch{'s' * (self.num_train_epochs != 1)}"
        )
        lines = [
            ("settings", f"{batch}, at most {self.max_length:,} tokens a row"),
            ("steps, padded", f"{self.padded_steps:,} ({self.rows:,} rows)"),
            (
                "steps, packed",
                f"{self.packed_steps:,} ({self.packed_rows:,} rows, {self.packing_efficiency:.1%} full)",
            ),
        ]
        for name, waste in self.waste.items():
            lines.append((f"padding, {name}", f"{waste:.1%} of {self.room[name]:,.0f} tokens computed"))
        lines += [(f"left out, {name}", f"{n:,} rows") for name, n in self.left_out.items() if n]
        return lines

    def __str__(self) -> str:
        lines = self._lines()
        wide = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{wide}}  {text}" for name, text in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self._lines()
        )
        return f"<table>{cells}</table>"


def training_steps(
    counts: TokenCounts,
    *,
    per_device_train_batch_size: int = 1,
    gradient_accumulation_steps: int = 1,
    world_size: int = 1,
    num_train_epochs: float = 1,
    max_length: int | None = None,
    dataloader_drop_last: bool = False,
) -> TrainingSteps:
    """Predict the optimizer steps and the padding of a training run, before it starts.

    Rows without a token and rows longer than ``max_length`` are left out and reported. For packed training,
    ``per_device_train_batch_size`` is the number of packed rows in a batch.

    Parameters
    ----------
    counts
        From ``count_tokens``, of the split to train on.
    per_device_train_batch_size, gradient_accumulation_steps, num_train_epochs, dataloader_drop_last
        As in ``transformers.TrainingArguments``.
    world_size
        Number of devices, or of Ray workers.
    max_length
        Tokens that a row can hold; None for the longest row.

    Raises
    ------
    ValueError
        A setting below its least value, or counts of several splits at once.

    Examples
    --------
    Rows of 5, 5, 3 and 3 tokens, two at a time:

    >>> steps = training_steps(TokenCounts(4, 16, None, None, {3: 2, 5: 2}), per_device_train_batch_size=2, max_length=8)
    >>> steps.padded_steps, steps.packed_rows, steps.packed_steps, steps.packing_efficiency
    (2, 2, 1, 1.0)
    >>> steps.waste["max length"], steps.waste["packed"]
    (0.5, 0.0)
    """
    if counts.splits:
        raise ValueError(
            f"the counts are of several splits ({', '.join(counts.splits)}): give those of one, "
            f"counts.splits[{next(iter(counts.splits))!r}]"
        )
    if max_length is None:
        max_length = max(1, counts.longest)
    for name, value in (
        ("per_device_train_batch_size", per_device_train_batch_size),
        ("gradient_accumulation_steps", gradient_accumulation_steps),
        ("world_size", world_size),
        ("max_length", max_length),
    ):
        if value < 1 or value != int(value):
            raise ValueError(f"{name} is {value}, expected a whole number, at least 1")
    if num_train_epochs <= 0:
        raise ValueError(f"num_train_epochs is {num_train_epochs}, expected above 0")

    kept = {n: rows for n, rows in counts.lengths.items() if 0 < n <= max_length}
    lengths = np.fromiter(kept, np.int64, len(kept))
    rows = np.fromiter(kept.values(), np.int64, len(kept))
    n_rows, tokens = int(rows.sum()), int(lengths @ rows)
    packed_rows = count_packed_rows(kept, max_length)

    def steps(n: int) -> int:
        if dataloader_drop_last:
            batches = n // per_device_train_batch_size // world_size
        else:
            batches = math.ceil(math.ceil(n / per_device_train_batch_size) / world_size)
        return math.ceil(math.ceil(batches / gradient_accumulation_steps) * num_train_epochs)

    return TrainingSteps(
        padded_steps=steps(n_rows),
        packed_steps=steps(packed_rows),
        rows=n_rows,
        packed_rows=packed_rows,
        tokens=tokens,
        max_length=max_length,
        room={
            "max length": float(n_rows * max_length),
            "longest in batch": _room_of_random_batches(lengths, rows, per_device_train_batch_size),
            "grouped by length": _room_of_grouped_batches(lengths, rows, per_device_train_batch_size),
            "packed": float(tokens),  # rows aren't filled up: `packed_training` computes what they hold
        },
        left_out={
            "empty": counts.empty_rows,
            "null": counts.null_rows,
            "too long": sum(n for length, n in counts.lengths.items() if length > max_length),
        },
        per_device_train_batch_size=per_device_train_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        world_size=world_size,
        num_train_epochs=num_train_epochs,
        dataloader_drop_last=dataloader_drop_last,
    )


def _room_of_random_batches(lengths: np.ndarray, rows: np.ndarray, batch_size: int) -> float:
    """Tokens computed when shuffled rows are padded to the longest of their batch; expected over all orders."""
    n_rows = int(rows.sum())
    full, rest = divmod(n_rows, batch_size)
    at_most = rows.cumsum()

    def expected_longest(size: int) -> float:
        # P(longest of a random batch <= length) = C(at_most, size) / C(n_rows, size), as a product of size fractions
        share = np.ones(lengths.size)
        for j in range(size):
            share *= np.maximum(at_most - j, 0) / (n_rows - j)
        return float(lengths @ np.diff(share, prepend=0.0))

    room = full * batch_size * expected_longest(batch_size) if full else 0.0
    return room + (rest * expected_longest(rest) if rest else 0.0)


def _room_of_grouped_batches(lengths: np.ndarray, rows: np.ndarray, batch_size: int) -> float:
    """Tokens computed when shuffled rows are sorted within 50 batches at a time, as the Trainer's sampler does.

    Played through once, on at most 131,072 rows drawn from the lengths, and scaled up from there.
    """
    n_rows = int(rows.sum())
    if n_rows == 0:
        return 0.0
    rng = np.random.default_rng(0)
    if n_rows > _SIMULATED_ROWS:
        if n_rows < 10**9:
            rows = rng.multivariate_hypergeometric(rows, _SIMULATED_ROWS, method="marginals")
        else:  # more than numpy draws from; of so many, whether a row could be drawn twice makes no difference
            rows = rng.multinomial(_SIMULATED_ROWS, rows / n_rows)
    order = rng.permutation(np.repeat(lengths, rows))
    together = batch_size * max(1, min(order.size // (batch_size * 4), 50))
    room = 0
    for start in range(0, order.size, together):
        group = np.sort(order[start : start + together])[::-1]
        full = group.size // batch_size * batch_size
        room += batch_size * int(group[:full:batch_size].sum()) + int(group[full:][:1].sum()) * (
            group.size - full
        )
    return room * n_rows / order.size
