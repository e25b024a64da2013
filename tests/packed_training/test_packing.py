"""Packing: nothing cut, nothing lost, nothing longer than the row, and no loss across a join."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.packed_training import collate_rows, count_packed_rows, pack_lengths
from onegpu.packed_training.packing import SHARED_FROM, share_start


def best_fit_decreasing(lengths, max_length):
    """The textbook algorithm, one example at a time."""
    free, row_of = [], [None] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = [r for r, room in enumerate(free) if room >= lengths[i]]
        row = min(fits, key=lambda r: (free[r], r), default=None)
        if row is None:
            row = len(free)
            free.append(max_length)
        free[row] -= lengths[i]
        row_of[i] = row
    return row_of, free


lengths_and_limit = st.integers(1, 40).flatmap(
    lambda limit: st.tuples(st.lists(st.integers(1, limit), max_size=60), st.just(limit))
)


@given(lengths_and_limit)
def test_tokens_are_conserved_and_no_row_is_too_long(case):  # axolotl#2332
    lengths, limit = case
    packing = pack_lengths(np.array(lengths, np.int64), limit)
    assert sorted(i for row in packing.rows for i in row) == list(range(len(lengths)))
    assert [sum(lengths[i] for i in row) for row in packing.rows] == packing.row_tokens.tolist()
    assert all(0 < tokens <= limit for tokens in packing.row_tokens)
    assert packing.tokens == sum(lengths)


@given(lengths_and_limit)
def test_group_wise_packing_leaves_the_room_that_best_fit_decreasing_leaves(case):
    lengths, limit = case
    packing = pack_lengths(np.array(lengths, np.int64), limit)
    _, free = best_fit_decreasing(lengths, limit)
    assert sorted((limit - packing.row_tokens).tolist()) == sorted(free)


def test_equal_lengths_keep_their_order_and_the_result_is_deterministic():
    lengths = np.random.default_rng(0).integers(1, 50, 500)
    first, second = pack_lengths(lengths, 64), pack_lengths(lengths, 64)
    assert first.row_of.tolist() == second.row_of.tolist()
    assert pack_lengths([3, 3, 3], 3).rows == [[0], [1], [2]]


def test_too_long_example_is_refused_not_cut():  # trl#4554, trl#5075
    with pytest.raises(ValueError, match=r"example 0 has 5 tokens, expected at most max_length = 4 \(1 such"):
        pack_lengths([5, 2, 3, 1], 4)


@pytest.mark.parametrize(
    ("lengths", "limit", "message"),
    [
        ([1, 0], 4, "example 1 has 0 tokens, expected at least 1"),
        ([1.5], 4, "one integer per example"),
        ([[1, 2]], 4, "one integer per example"),
        ([1], 0, "max_length must be at least 1"),
    ],
)
def test_bad_lengths_say_what_was_found(lengths, limit, message):
    with pytest.raises(ValueError, match=message):
        pack_lengths(lengths, limit)


def test_nothing_to_pack_gives_no_rows():
    packing = pack_lengths([], 8)
    assert packing.rows == []
    assert packing.efficiency == 1.0


def test_real_length_distribution_is_packed_almost_full():
    lengths = np.clip(np.random.default_rng(1).lognormal(5, 0.7, 5000).astype(int), 8, 2048)
    assert pack_lengths(lengths, 2048).efficiency > 0.98


def test_rows_are_counted_without_the_lengths():
    lengths = np.minimum(np.random.default_rng(0).lognormal(5, 1, 30_000).astype(int) + 1, 2048)
    distinct, examples = np.unique(lengths, return_counts=True)
    by_length = dict(zip(distinct.tolist(), examples.tolist(), strict=True))
    assert count_packed_rows(by_length, 2048) == pack_lengths(lengths, 2048).n_rows


@pytest.mark.timeout(30)  # a Python loop over a million examples and their rows would take minutes
def test_a_million_lengths_pack_in_steps_by_length():
    lengths = np.random.default_rng(2).integers(20, 2049, 1_000_000)
    packing = pack_lengths(lengths, 2048)
    assert packing.row_tokens.sum() == lengths.sum()
    assert packing.row_tokens.max() <= 2048


def test_collated_labels_never_cross_a_join():  # trl#784, trl#805
    batch = collate_rows(
        [[{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3, 4, 5], "labels": [-100, 4, 5]}]]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5]]
    assert batch["labels"].tolist() == [[-100, 2, -100, 4, 5]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2]]
    assert batch["seq_lens"] == (2, 3)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=6))
def test_collate_keeps_every_token(rows):
    batch = collate_rows([[{"input_ids": row, "labels": row}] for row in rows])
    assert batch["input_ids"][0].tolist() == [t for row in rows for t in row]
    assert sum(batch["seq_lens"]) == batch["input_ids"].numel()


@given(
    st.integers(0, 14),
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 12)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_shared_start_stands_once_and_every_label_keeps_its_past(alike, rest):
    examples = []
    for ids, masked in rest:
        ids = [*range(10, 10 + alike), *ids]
        examples.append({"input_ids": ids, "labels": [-100 if i < masked else x for i, x in enumerate(ids)]})
    plain = collate_rows([examples])
    shared = share_start(plain)
    assert share_start(shared)["input_ids"].tolist() == shared["input_ids"].tolist()

    def pasts(batch):
        """Of each supervised token the tokens before it in its example, and its position."""
        parts = [
            batch[name][0].split(list(batch["seq_lens"])) for name in ("input_ids", "labels", "position_ids")
        ]
        found = []
        for i, (ids, labels, positions) in enumerate(zip(*parts, strict=True)):
            before = batch.get("prefix_lens", (0,) * len(parts[0]))[i]
            past = [*parts[0][0][:before].tolist(), *ids.tolist()]
            assert positions.tolist() == list(range(before, len(past)))
            assert (
                before == 0 or labels[0] == -100
            )  # it is told from the end of the start, which another one has
            found += [(past[: before + k], int(x)) for k, x in enumerate(labels) if x != -100]
        return found

    assert pasts(shared) == pasts(plain)
    if "prefix_lens" in shared:
        assert shared["prefix_lens"][1] >= SHARED_FROM
        assert shared["input_ids"].shape[1] == plain["input_ids"].shape[1] - sum(shared["prefix_lens"])
    elif len(examples) > 1 and alike >= SHARED_FROM:
        assert min(masked for _, masked in rest[1:]) <= SHARED_FROM


@pytest.mark.parametrize("example", [{"input_ids": [], "labels": []}, {"input_ids": [1], "labels": [1, 2]}])
def test_collate_refuses_unequal_or_empty_examples(example):
    with pytest.raises(ValueError, match="example 0 of the batch has"):
        collate_rows([[example]])
