"""Optimizer steps and padding, against transformers, accelerate, the real packer and plain simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.packed_training import pack_lengths
from onegpu.token_counting import TokenCounts, training_steps
from onegpu.token_counting.recipes import steps_by_estimate


def counts_of(lengths):
    distinct, rows = np.unique(np.array(lengths, np.int64), return_counts=True)
    by_length = dict(zip(distinct.tolist(), rows.tolist(), strict=True))
    return TokenCounts(len(lengths), int(sum(lengths)), None, None, by_length)


lengths_and_limit = st.integers(1, 40).flatmap(
    lambda limit: st.tuples(st.lists(st.integers(1, limit), max_size=60), st.just(limit))
)


@given(lengths_and_limit)
def test_packed_rows_are_those_of_the_packer(case):
    lengths, limit = case
    packing = pack_lengths(np.array(lengths, np.int64), limit)
    steps = training_steps(counts_of(lengths), max_length=limit)
    assert steps.packed_steps == steps.packed_rows == packing.n_rows
    assert steps.packing_efficiency == packing.efficiency


@settings(deadline=None)  # the first run imports torch
@given(
    rows=st.integers(0, 70),
    batch=st.integers(1, 5),
    accumulation=st.integers(1, 5),
    world=st.integers(1, 4),
    drop_last=st.booleans(),
    epochs=st.sampled_from([0.3, 1, 2.5, 3]),
)
def test_steps_are_those_of_the_trainer(
    rows, batch, accumulation, world, drop_last, epochs
):  # trl, litgpt#1927, SkyRL#872
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    batches = len(BatchSamplerShard(BatchSampler(SequentialSampler(range(rows)), batch, drop_last), world))
    # transformers.Trainer: update steps of an epoch, then of the run
    expected = math.ceil(epochs * (batches // accumulation + int(batches % accumulation > 0)))
    steps = training_steps(
        counts_of([3] * rows),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        world_size=world,
        num_train_epochs=epochs,
        dataloader_drop_last=drop_last,
    )
    assert steps.padded_steps == expected


def test_steps_are_those_of_a_real_run(tmp_path):
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return {"loss": (self.weight * x).sum()}

    args = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=3, gradient_accumulation_steps=2, num_train_epochs=2.5,
        report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(Model(), args, train_dataset=[{"x": torch.ones(1)}] * 20)
    trainer.train()
    steps = training_steps(
        counts_of([1] * 20),
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        num_train_epochs=2.5,
    )
    assert trainer.state.global_step == steps.padded_steps == 10


@pytest.mark.parametrize(
    ("tokens", "efficiency", "max_length", "batch", "epochs", "guess"),
    [
        (1_000, 0.9, 2048, 8, 1, -1),
        (1_000, 0.9, 2048, 8, 3, -3),
        (0, 0.9, 2048, 8, 1, -1),
        (17_000, 0.9, 2048, 8, 1, 0),
        (33_100, 0.9, 2048, 8, 1, 1),
        (1_000_000, 0.98, 2048, 16, 3, 87),
    ],
)
def test_steps_are_never_negative_where_the_guess_is(
    tokens, efficiency, max_length, batch, epochs, guess
):  # axolotl#3152
    assert steps_by_estimate(tokens, max_length, batch, epochs, efficiency) == guess
    rows = {50: tokens // 50} if tokens else {}
    steps = training_steps(
        TokenCounts(tokens // 50, tokens, None, None, rows),
        per_device_train_batch_size=batch, num_train_epochs=epochs, max_length=max_length,
    )  # fmt: skip
    packed_rows = math.ceil(tokens / 2000)  # 40 rows of 50 fit into one of 2048
    assert steps.packed_rows == packed_rows
    assert steps.packed_steps == math.ceil(packed_rows / batch) * epochs


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 4))
def test_padding_to_the_longest_in_batch_is_the_mean_over_all_orders(lengths, batch):
    def room(order):
        return sum(max(order[i : i + batch]) * len(order[i : i + batch]) for i in range(0, len(order), batch))

    steps = training_steps(counts_of(lengths), per_device_train_batch_size=batch)
    orders = itertools.permutations(lengths)
    assert steps.room["longest in batch"] == pytest.approx(np.mean([room(order) for order in orders]))
    assert steps.room["max length"] == len(lengths) * max(lengths)


@pytest.mark.parametrize(("rows", "batch"), [(20_003, 8), (60, 4), (5, 8), (200_000, 2)])
def test_grouping_by_length_pads_as_the_trainers_sampler_does(rows, batch):
    from transformers.trainer_pt_utils import LengthGroupedSampler

    lengths = np.random.default_rng(0).lognormal(5, 0.7, rows).astype(int) + 1
    found = []
    for _ in range(20 if rows < 100 else 1):
        order = lengths[list(LengthGroupedSampler(batch, lengths=lengths.tolist()))]
        starts = np.arange(0, rows, batch)
        longest = np.maximum.reduceat(order, starts)
        found.append(longest @ np.diff(starts, append=rows))
    steps = training_steps(counts_of(lengths), per_device_train_batch_size=batch)
    assert steps.room["grouped by length"] == pytest.approx(np.mean(found), rel=0.15 if rows < 100 else 0.01)


def test_strategies_come_in_the_order_that_is_taught():
    lengths = np.random.default_rng(1).lognormal(5, 0.7, 2_000).astype(int) + 1
    waste = training_steps(counts_of(lengths), per_device_train_batch_size=8, max_length=4096).waste
    assert waste["max length"] > waste["longest in batch"] > waste["grouped by length"]
    assert waste["packed"] < 0.03


def test_rows_that_cannot_be_trained_on_are_left_out_and_reported():
    counts = TokenCounts(10, 24, None, None, {0: 2, 3: 3, 15: 1}, null_rows=4)
    steps = training_steps(counts, max_length=8)
    assert (steps.rows, steps.tokens, steps.padded_steps) == (3, 9, 3)
    assert steps.left_out == {"empty": 2, "null": 4, "too long": 1}
    assert "left out, too long" in str(steps)


def test_nothing_to_train_on_takes_no_step():
    steps = training_steps(TokenCounts(0, 0, None, None, {}))
    assert (steps.padded_steps, steps.packed_steps, steps.packing_efficiency) == (0, 0, 1.0)
    assert set(steps.waste.values()) == {0.0}


def test_dropping_the_last_batch_of_a_small_set_takes_no_step():
    steps = training_steps(counts_of([5] * 3), per_device_train_batch_size=4, dataloader_drop_last=True)
    assert steps.padded_steps == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"per_device_train_batch_size": 0}, {"gradient_accumulation_steps": -1}, {"world_size": 0}, {"max_length": 0},
        {"num_train_epochs": 0}, {"per_device_train_batch_size": 1.5},
    ],
)  # fmt: skip
def test_setting_out_of_range_is_named(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is {next(iter(wrong.values()))}, expected"):
        training_steps(counts_of([1]), **wrong)


def test_counts_of_several_splits_are_refused():
    total = TokenCounts.total({"train": counts_of([1]), "test": counts_of([2])})
    with pytest.raises(ValueError, match=r"several splits \(train, test\)"):
        training_steps(total)
    assert training_steps(total.splits["test"]).tokens == 2


def test_ten_million_rows_take_a_moment():
    lengths = np.minimum(np.random.default_rng(0).lognormal(6, 1, 100_000).astype(int) + 1, 16_384)
    distinct, rows = np.unique(lengths, return_counts=True)
    many = dict(zip(distinct.tolist(), (rows * 100).tolist(), strict=True))
    counts = TokenCounts(10_000_000, int(lengths.sum()) * 100, None, None, many)
    steps = training_steps(counts, per_device_train_batch_size=4, max_length=16_384)
    assert steps.packing_efficiency > 0.99


@pytest.mark.parametrize("rows", [10**9, 3 * 10**12])
def test_any_number_of_rows_is_planned_without_making_them(rows):
    """Twice as many lengths, the same memory: a milliard lengths would be 8 GB."""
    import tracemalloc

    counts = TokenCounts(
        rows, rows // 1000 * 500_500, None, None, dict.fromkeys(range(1, 1001), rows // 1000)
    )
    small = TokenCounts(10**5, 50_050_000, None, None, dict.fromkeys(range(1, 1001), 100))
    tracemalloc.start()
    done = training_steps(counts, per_device_train_batch_size=8, max_length=1024)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    assert done.padded_steps == rows // 8
    like = training_steps(small, per_device_train_batch_size=8, max_length=1024)
    for name, waste in like.waste.items():
        assert done.waste[name] == pytest.approx(waste, abs=0.01)


@given(rows=st.integers(1, 10**7), length=st.integers(1, 5000), batch=st.integers(1, 64))
def test_rows_of_one_length_waste_nothing_and_no_less(rows, length, batch):
    counts = TokenCounts(rows, rows * length, None, None, {length: rows})
    done = training_steps(counts, per_device_train_batch_size=batch)
    assert all(waste >= 0 for waste in done.waste.values())
    assert "-0.0%" not in str(done)
