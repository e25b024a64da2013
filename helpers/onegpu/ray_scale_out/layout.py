"""A run laid out before it starts: which row comes when, how many steps there are, and whose row is whose.

Packed row ``i`` goes to worker ``i % workers``. Ray Data splits a stream into equal shares by leaving out the rows that
are over; here filler rows without a supervised token make them even, so that no row is lost and the loss, which is
weighted by supervised tokens, doesn't notice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onegpu.ray_scale_out.window import Window


@dataclass(frozen=True)
class StreamCounts:
    """What a pass over the stream found: what a stream without length doesn't know about itself.

    Attributes
    ----------
    packed : tuple of int
        Packed rows of each window.
    read, kept, tokens, supervised : int
        Rows read, examples kept, their tokens, and the supervised ones.
    dropped : dict of str to tuple of int
        Row numbers by reason.
    bad_rows : tuple of (int, str)
        Of rows that can't be used: number and what is wrong.
    longest : int
        Tokens of the longest example, dropped ones included.
    fingerprint : str
        Of all token ids and labels in the order of the windows: other rows have another.
    system : str or None
        The system prompt that all rows share.
    """

    packed: tuple[int, ...]
    read: int
    kept: int
    tokens: int
    supervised: int
    dropped: dict[str, tuple[int, ...]]
    longest: int = 0
    fingerprint: str = ""
    system: str | None = None
    bad_rows: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.read:,} rows: {self.kept:,} kept, {self.tokens:,} tokens, {self.supervised:,} supervised, in "
            f"{sum(self.packed):,} packed rows"
        ]
        for reason, rows in self.dropped.items():
            some = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            lines.append(f"dropped, {reason}: {len(rows):,} (rows {some})")
        return "\n".join(lines)


def steps_per_epoch(packed_rows: int, workers: int, batch_size: int, accumulation: int = 1) -> int:
    """Return the optimizer steps of one epoch: the last one may be part filler, none is left out.

    Examples
    --------
    100 packed rows, 2 workers with 4 rows each and 3 micro-batches: 24 rows a step.

    >>> steps_per_epoch(100, workers=2, batch_size=4, accumulation=3)
    5
    """
    return math.ceil(packed_rows / (workers * batch_size * accumulation))


def schedule(
    found: Sequence[Window],
    counts: StreamCounts,
    *,
    workers: int,
    batch_size: int,
    accumulation: int = 1,
    epochs: float = 1.0,
    max_steps: int = -1,
    seed: int | None = 0,
) -> tuple[list[Window], int]:
    """Lay out a whole run: the windows of all epochs, each with its place, and the number of steps.

    Each epoch takes the windows in an order of its own and ends with as many filler rows as its last step lacks.

    Returns
    -------
    tuple
        Windows in the order of the run, and optimizer steps.
    """
    total = sum(counts.packed)
    a_step = workers * batch_size * accumulation
    each = steps_per_epoch(total, workers, batch_size, accumulation)
    steps = max_steps if max_steps > 0 else math.ceil(epochs * each)
    placed: list[Window] = []
    index = 0
    for epoch in range(math.ceil(steps / each)):
        order = (
            np.arange(len(found))
            if seed is None
            else np.random.default_rng([seed, epoch]).permutation(len(found))
        )
        for place, w in enumerate(order):
            last = place == len(found) - 1
            fillers = -total % a_step if last else 0
            placed.append(dataclasses.replace(found[w], epoch=epoch, first_index=index, fillers=fillers))
            index += counts.packed[w] + fillers
    return placed, steps


def shard(rows: Sequence[Any], workers: int) -> list[list[Any]]:
    """Share rows out: row i to worker ``i % workers``, all shares equally long, None where there is no row left.

    Examples
    --------
    >>> shard([10, 11, 12], 2)
    [[10, 12], [11, None]]
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}, expected at least 1")
    padded = [*rows, *[None] * (-len(rows) % workers)]
    return [padded[rank::workers] for rank in range(workers)]
