"""Rows of many lengths: which batches a loop makes of them, and what a run of such steps takes."""

import pytest
import torch
from onegpu.gpu_memory import make_setup, measured, simulated
from onegpu.gpu_memory.micro_batches import MOST_STEPS, MicroBatch, full_micro_batch, run_of
from onegpu.gpu_memory.training_step import make_batch
from transformers import AutoConfig

LENGTHS = (300, 40, 120, 200, 90, 30, 250, 60)


def small(**changes):
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 1024}  # fmt: skip
    return AutoConfig.for_model("llama", **shape | changes)


def setup_of(**settings):
    return make_setup(small(), **{"max_length": 512, "lengths": LENGTHS, **settings}).resolved


def shapes(**settings):
    return [[micro.shape for micro in step] for step in run_of(setup_of(**settings)).steps]


# --- which rows are put together --------------------------------------------------------------------------------------


def test_ours_packs_examples_end_to_end_and_never_cuts_one():
    run = run_of(setup_of(per_device_train_batch_size=8))
    (first,), _ = run.steps
    assert sorted(first.lengths) == sorted(LENGTHS)
    assert all(sum(row) <= 512 for row in first.rows)
    assert len(first.rows) == 3  # 1,090 tokens
    assert first.shape == (1, sum(LENGTHS))


def test_without_packing_every_example_is_a_row_of_its_own_length():
    assert {shape for step in shapes(packing=False) for shape in step} == {(1, n) for n in LENGTHS}


def test_the_others_pad_to_the_longest_row_of_a_batch():
    (whole,), again = shapes(loop="trl", per_device_train_batch_size=8)
    assert whole == (8, 300)
    assert again == [whole]  # once more, with the optimizer's state
    batches = shapes(loop="trainer", per_device_train_batch_size=2)
    assert all(rows == 2 and width in LENGTHS for step in batches for rows, width in step)


def test_trl_packs_into_one_row_and_cuts_where_ours_leaves_out():
    (micro,) = run_of(setup_of(loop="trl", packing=True, per_device_train_batch_size=8)).steps[0]
    assert (micro.shape, micro.needs_mask) == ((1, sum(LENGTHS)), True)
    cut, left_out = (run_of(setup_of(loop=loop, max_length=200)) for loop in ("trl", "onegpu"))
    assert (cut.truncated, cut.dropped) == (2, 0)
    assert (left_out.truncated, left_out.dropped) == (0, 2)
    assert (
        "2 examples longer than max_length are cut" in simulated(setup_of(loop="trl", max_length=200)).notes
    )


def test_grouped_by_length_the_longest_row_comes_first_and_less_is_padded():
    lengths = tuple(range(2, 402, 2))

    def padding(**settings):
        steps = run_of(
            setup_of(loop="trainer", per_device_train_batch_size=4, lengths=lengths, **settings)
        ).steps
        return sum(m.tokens - sum(m.lengths) for step in steps for m in step), steps[0][0].shape[1]

    (grouped, first), (shuffled, _) = padding(group_by_length=True), padding()
    assert first == 400
    assert grouped < shuffled / 2


def test_of_a_long_run_the_largest_step_and_others_spread_over_the_rest_are_taken():
    lengths = tuple(range(1, 501))
    run = run_of(setup_of(lengths=lengths, packing=False, per_device_train_batch_size=1))
    widths = [step[0].shape[1] for step in run.steps]
    assert (run.all_steps, max(widths), min(widths)) == (500, 500, 1)
    assert len(set(widths)) == MOST_STEPS
    assert 500 in widths[1:]


def test_accumulated_steps_have_two_micro_batches_of_which_the_larger_is_first():
    for step in run_of(setup_of(packing=False, gradient_accumulation_steps=4)).steps:
        assert len(step) == 2
        assert step[0].tokens >= step[1].tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": ()}, "lengths has none"),
        ({"lengths": (3, 0)}, "lengths has 0, expected whole numbers of at least 1"),
        ({"lengths": (3, 2.5)}, "lengths has 2.5"),
        ({"task": "dpo", "loop": "trl"}, "lengths are for task='sft'"),
        ({"loop": "trainer", "packing": True}, "it doesn't pack"),
        ({"group_by_length": True}, "rows that are padded"),
        ({"group_by_length": True, "loop": "trl", "lengths": None}, "without the rows' lengths"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        setup_of(**settings)


def test_rows_that_are_all_too_long_are_refused():
    with pytest.raises(
        ValueError, match="none of the 2 rows fits into max_length=16: the shortest has 20 tokens"
    ):
        simulated(setup_of(lengths=(20, 30), max_length=16))


# --- what it takes ----------------------------------------------------------------------------------------------------


def test_a_batch_has_the_bytes_of_its_shape():
    micro = MicroBatch(((12,), (400,)), padded=True)
    on_cpu = make_batch(setup_of(loop="trl", gpu="cpu"), small(), "cpu", micro)
    assert {name: t.shape for name, t in on_cpu.items()} == dict.fromkeys(
        ("input_ids", "labels", "attention_mask"), (2, 400)
    )
    assert on_cpu["attention_mask"].sum(1).tolist() == [12, 400]
    assert (on_cpu["labels"][0, 12:] == -100).all()
    packed = make_batch(setup_of(gpu="cpu"), small(), "cpu", MicroBatch(((3, 2), (4,)), padded=False))
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert packed["seq_lens"] == (3, 2, 4)


@pytest.mark.parametrize("settings", [
    {"loop": "onegpu"},
    {"loop": "trl"},
    {"loop": "trainer", "method": "full"},
    {"loop": "plain", "method": "full", "gradient_accumulation_steps": 2},
    {"loop": "plain", "method": "lora", "gpu": "cpu"},
], ids=lambda s: "-".join(map(str, s.values())))  # fmt: skip
def test_rows_that_are_all_full_take_what_full_rows_take(settings):
    # The second step is replayed from the first where all rows are alike, and really run where they are not.
    settings = {"max_length": 96, "per_device_train_batch_size": 2, **settings}
    full = simulated(small(), **settings)
    alike = simulated(small(), lengths=(96,) * 8, **settings)
    assert alike.peak_bytes == full.peak_bytes
    assert alike["after_step"] == full["after_step"]
    assert alike.reserved_bytes == full.reserved_bytes


def test_the_peak_of_a_run_is_that_of_its_largest_step():
    run = {"loop": "trainer", "method": "full", "gpu": "L4"}
    ragged = simulated(small(), lengths=LENGTHS, max_length=512, per_device_train_batch_size=1, **run)
    longest = simulated(small(), max_length=max(LENGTHS), per_device_train_batch_size=1, **run)
    assert ragged.peak_bytes == pytest.approx(longest.peak_bytes, rel=1e-3)
    assert ragged.reserved_bytes >= longest.reserved_bytes
    assert "step" in ragged.peak.where


def test_packing_is_no_padding_and_of_trl_costs_a_mask():
    # 300 + 200 tokens in one row, or two rows of 300: the embeddings' output alone is 100 x 64 numbers less
    lengths, both = (300, 200), {"lengths": (300, 200), "per_device_train_batch_size": 2, "gpu": "L4"}
    packed, padded = (simulated(small(), loop=loop, **both) for loop in ("onegpu", "trl"))
    assert packed["after_forward"].allocated_bytes < padded["after_forward"].allocated_bytes
    (micro,) = run_of(make_setup(small(), loop="trl", packing=True, **both).resolved).steps[0]
    assert micro.shape == (1, sum(lengths))
    eager = {"loop": "trl", "attention": "sdpa", "method": "lora", "gradient_checkpointing": False}
    one, two = (simulated(small(), packing=True, **eager, **both | {"lengths": n}) for n in ((500,), lengths))
    # sdpa's additive mask: 500 x 500 numbers of 2 bytes
    assert two["after_forward"].allocated_bytes - one["after_forward"].allocated_bytes >= 500 * 500 * 2


def test_packed_full_rows_of_trl_hold_several_examples():
    setups = [make_setup(small(), loop="trl", packing=packing).resolved for packing in (True, False)]
    assert [full_micro_batch(s).needs_mask for s in setups] == [True, False]
    assert len({simulated(s).peak_bytes for s in setups}) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures on the card where there is one")
@pytest.mark.parametrize("settings", [
    {"method": "full", "loop": "plain"},
    {"method": "lora", "loop": "trainer", "target_modules": None},
    {"method": "lora", "loop": "onegpu"},
    {"method": "full", "loop": "plain", "attention": "eager"},
], ids=lambda s: "-".join(map(str, s.values())))  # fmt: skip
def test_a_simulated_run_is_the_one_that_is_measured(settings):
    asked = {"lengths": LENGTHS, "max_length": 512, "per_device_train_batch_size": 2, **settings}
    real, ours = measured(small(), **asked), simulated(small(), gpu="cpu", **asked)
    assert ours.peak_bytes == pytest.approx(real.peak_bytes, rel=0.01)
    for name in ("after_forward", "after_backward", "after_step", "second_step"):
        assert ours[name].allocated_bytes == pytest.approx(real[name].allocated_bytes, rel=0.01)
