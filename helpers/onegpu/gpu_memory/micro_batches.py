"""Which rows a loop puts together, how they lie, and which steps of a run over rows of many lengths are simulated.

A step on rows of one length says little about a run on real data: a batch is as wide as its longest row, and each new
shape may need memory that blocks of other shapes, given back, don't fit. So with the examples' ``lengths`` a run of several
steps is simulated, one after the other on the same allocator.

Sources: ``collate_rows`` and ``pack_lengths`` of ``onegpu.packed_training``; ``DataCollatorForLanguageModeling`` and
``pack_dataset`` of TRL 1.16 (padding to the longest row of a batch; "bfd" packing, whose rows lie end to end in one);
``get_length_grouped_indices`` of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onegpu.gpu_memory.training_setup import ResolvedSetup
from onegpu.packed_training import pack_lengths

MOST_STEPS = 8  # of a run are simulated
MOST_MICRO_BATCHES = 2  # of a step; all later ones are like the second


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and backward pass.

    Attributes
    ----------
    rows
        Of each row the tokens of its examples.
    padded
        Whether rows are padded to the longest; else they lie end to end in one.
    """

    rows: tuple[tuple[int, ...], ...]
    padded: bool

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each example, in order."""
        return tuple(length for row in self.rows for length in row)

    @property
    def shape(self) -> tuple[int, int]:
        """Of its tensors."""
        widths = [sum(row) for row in self.rows]
        return (len(widths), max(widths)) if self.padded else (1, sum(widths))

    @property
    def needs_mask(self) -> bool:
        """Whether tokens must be kept from others by a mask, where attention isn't run example by example."""
        return len(set(map(sum, self.rows))) > 1 if self.padded else len(self.lengths) > 1

    @property
    def tokens(self) -> int:
        """Positions that are computed, padding included."""
        rows, width = self.shape
        return rows * width


@dataclass(frozen=True)
class Run:
    """The steps that are simulated, each of one or more micro-batches, and what they stand for.

    Attributes
    ----------
    steps
        In the order in which they are run.
    all_steps
        How many an epoch has.
    dropped, truncated
        Examples longer than ``max_length``: left out, or cut.
    """

    steps: tuple[tuple[MicroBatch, ...], ...]
    all_steps: int = 1
    dropped: int = 0
    truncated: int = 0


def full_micro_batch(setup: ResolvedSetup) -> MicroBatch:
    """Rows of ``max_length`` tokens. Packed by TRL they hold two examples each; one of our DPO is a chosen and a rejected side."""
    ours, trl = (
        setup.loop == "onegpu" and setup.trains,
        setup.loop == "trl" and setup.packing and setup.task == "sft",
    )
    half = setup.max_length // 2
    halved = half and (trl or (ours and setup.task == "dpo"))
    row = (half, setup.max_length - half) if halved else (setup.max_length,)
    return MicroBatch((row,) * setup.batch_size, padded=not (ours or trl))


def run_of(setup: ResolvedSetup) -> Run:
    """Return the steps of a setup that are to be simulated.

    Without ``lengths`` one step of full rows. With them the run's own, in a random order (seed 0), each shape once; where
    there are more than ``MOST_STEPS`` the largest and others evenly spread over the rest, and the largest comes after
    another, when the optimizer has its state.

    Raises
    ------
    ValueError
        If no example fits into ``max_length``.
    """
    times = min(setup.gradient_accumulation_steps, MOST_MICRO_BATCHES) if setup.trains else 1
    if setup.lengths is None:
        return Run(((full_micro_batch(setup),) * times,))
    ours = setup.loop == "onegpu"
    lengths = [n for n in setup.lengths if not ours or n <= setup.max_length]
    truncated = sum(n > setup.max_length for n in lengths)
    lengths = [min(n, setup.max_length) for n in lengths]
    if not lengths:
        raise ValueError(
            f"none of the {len(setup.lengths):,} rows fits into max_length={setup.max_length}: the shortest has "
            f"{min(setup.lengths)} tokens"
        )
    steps = _steps(setup, lengths)
    chosen = _spread([step[:times] for step in steps])
    return Run(tuple(chosen), len(steps), len(setup.lengths) - len(lengths), truncated)


def _steps(setup: ResolvedSetup, lengths: Sequence[int]) -> list[tuple[MicroBatch, ...]]:
    """All steps of an epoch; of each, the micro-batches with the largest ahead."""
    if setup.packing:
        packed = pack_lengths(lengths, setup.max_length).rows
        rows = [tuple(lengths[i] for i in row) for row in packed]
    else:
        rows = [(n,) for n in lengths]
    batch = setup.per_device_train_batch_size
    if setup.group_by_length:
        import torch
        from transformers.trainer_pt_utils import get_length_grouped_indices

        order = get_length_grouped_indices(
            [sum(row) for row in rows], batch, generator=torch.Generator().manual_seed(0)
        )
    else:
        order = np.random.default_rng(0).permutation(len(rows)).tolist()
    padded = setup.loop != "onegpu" and not setup.packing
    micro = [
        MicroBatch(tuple(rows[i] for i in order[start : start + batch]), padded)
        for start in range(0, len(order), batch)
    ]
    accumulated = setup.gradient_accumulation_steps
    return [
        tuple(sorted(micro[start : start + accumulated], key=lambda m: -m.tokens))
        for start in range(0, len(micro), accumulated)
    ]


def _spread(steps: list[tuple[MicroBatch, ...]]) -> list[tuple[MicroBatch, ...]]:
    """Each shape once, at most ``MOST_STEPS`` of them, and at least two steps, of which the largest isn't the first alone."""

    def shape(step: tuple[MicroBatch, ...]) -> tuple:
        return tuple(m.shape if m.padded else m.lengths for m in step)

    distinct = list({shape(step): step for step in reversed(steps)}.values())[::-1]
    by_size = sorted(range(len(distinct)), key=lambda i: sum(m.tokens for m in distinct[i]))
    kept = {by_size[round(i)] for i in np.linspace(0, len(by_size) - 1, min(MOST_STEPS, len(by_size)))}
    chosen = [step for i, step in enumerate(distinct) if i in kept]
    largest = distinct[by_size[-1]]
    return chosen if largest in chosen[1:] else [*chosen, largest]
