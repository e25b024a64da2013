import math
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onegpu.preference_data import (
    bradley_terry_loss,
    diagnose,
    dpo_loss,
    pair_accuracy,
    ranking_loss,
    sequence_logprobs,
)

LN2 = 0.6931471805599453


def wide(*values):
    return torch.tensor(values, dtype=torch.float64)


def near(value):
    return pytest.approx(value, rel=1e-6, abs=1e-9)


# --- Bradley-Terry


@pytest.mark.parametrize(
    ("margin", "loss"),
    [(0, LN2), (1, 0.313261688), (-1, 1.313261688), (3, 0.048587352), (10, 4.53989e-05), (-10, 10.0000454)],
)
def test_bradley_terry_values(margin, loss):
    assert bradley_terry_loss(wide(margin), wide(0)).item() == near(loss)


def test_probability_of_margin_one():
    assert math.exp(-bradley_terry_loss(wide(1), wide(0)).item()) == near(0.731058579)


def test_only_differences_count():
    assert bradley_terry_loss(wide(5), wide(3)).item() == near(0.126928011)
    assert bradley_terry_loss(wide(105), wide(103)).item() == near(0.126928011)


def test_ranking_loss_is_the_mean_over_all_pairs_of_the_prompt_instruct_gpt():
    rewards = wide(2, 1, -0.5)
    pairs = [bradley_terry_loss(rewards[i], rewards[j]).item() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert pairs == pytest.approx([0.313262, 0.078890, 0.201413], abs=1e-6)
    assert ranking_loss(rewards, [1, 2, 3]).item() == near(0.19785490)


@pytest.mark.parametrize("k", range(2, 10))
def test_equal_rewards_cost_ln_2_for_any_number_of_answers(k):
    assert ranking_loss(torch.zeros(k, dtype=torch.float64), range(k)).item() == near(LN2)


def test_ranking_without_a_pair_is_refused():
    with pytest.raises(ValueError, match="all answers tie"):
        ranking_loss(wide(1, 2), [1, 1])


def test_identical_sides_give_ln_2_and_no_gradient():
    reward = torch.tensor([0.7], requires_grad=True)
    loss = bradley_terry_loss(reward, reward).mean()
    loss.backward()
    assert loss.item() == near(LN2)
    assert reward.grad.item() == 0


@pytest.mark.parametrize(("dtype", "margin"), [(torch.float32, 100.0), (torch.float16, 20.0)])
def test_no_overflow_where_log_of_sigmoid_overflows(dtype, margin):
    lost = torch.tensor(-margin, dtype=dtype)
    assert torch.isinf(-torch.log(torch.sigmoid(lost)))
    assert bradley_terry_loss(lost, torch.zeros((), dtype=dtype)).item() == margin


def test_a_large_lead_costs_little_but_not_nothing():
    won = torch.tensor(100.0)
    assert -torch.log(torch.sigmoid(won)) == 0
    assert bradley_terry_loss(won, torch.tensor(0.0)).item() == pytest.approx(3.7e-44, abs=5e-45)


def test_margin_is_subtracted_inside():
    assert bradley_terry_loss(wide(3), wide(1), margin=1).item() == near(0.313261688)


def test_accuracy_is_strict_and_ties_are_reported():
    done = pair_accuracy(wide(1, 0, 2), wide(1, 1, 1))
    assert (done.right, done.ties, done.pairs, done.value) == (1, 1, 3, pytest.approx(1 / 3))


# --- DPO

CASES = [
    ((-10, -12, -10, -12), LN2, LN2),
    ((-10, -12, -11, -11), 0.59813887, 0.31326169),
    ((-10, -20, -15, -15), 0.31326169, 0.00671535),
    ((-12, -10, -11, -11), 0.79813887, 1.31326169),
    ((-50, -80, -60, -70), 0.12692801, 4.54e-05),
]


@pytest.mark.parametrize(("logprobs", "small", "large"), CASES)
def test_dpo_values(logprobs, small, large):
    assert dpo_loss(*map(wide, logprobs)).losses.item() == pytest.approx(small, rel=1e-6, abs=1e-8)
    assert dpo_loss(*map(wide, logprobs), beta=0.5).losses.item() == pytest.approx(large, rel=1e-6, abs=5e-8)


@pytest.mark.parametrize(
    ("case", "loss"), [(1, 0.61813887), (2, 0.41326169), (3, 0.77813887), (4, 0.32692801)]
)
def test_dpo_with_label_smoothing(case, loss):
    done = dpo_loss(*map(wide, CASES[case][0]), label_smoothing=0.1)
    assert done.losses.item() == pytest.approx(loss, rel=1e-6, abs=1e-8)


def test_dpo_rewards_are_beta_times_the_log_ratio():
    done = dpo_loss(*map(wide, (-10, -12, -11, -11)))
    assert (done.chosen_rewards.item(), done.rejected_rewards.item(), done.margins.item()) == (
        near(0.1),
        near(-0.1),
        near(0.2),
    )


def test_gradient_at_zero_is_minus_a_half_times_beta():
    chosen = wide(-10).requires_grad_()
    dpo_loss(chosen, wide(-12), wide(-10), wide(-12), beta=1.0).losses.sum().backward()
    assert chosen.grad.item() == near(-0.5)


def test_ipo_at_zero():
    assert dpo_loss(*map(wide, (-1, -2, -1, -2)), kind="ipo").losses.item() == near(25.0)


def test_bad_options_are_named():
    one = [wide(-1)] * 4
    for options, message in (
        ({"beta": 0}, "beta=0"),
        ({"label_smoothing": 0.7}, "smoothing"),
        ({"kind": "kto"}, "'kto'"),
    ):
        with pytest.raises(ValueError, match=message):
            dpo_loss(*one, **options)


# --- parity with TRL


def trl_dpo(kind, beta, policy, reference, lengths):
    """TRL's own loss code, with a model that returns the given log-probabilities."""
    trainer_module = pytest.importorskip(
        "trl.trainer.dpo_trainer", reason="install the extra `bench` for TRL"
    )
    pairs, width = len(policy[0]), 4
    mask = torch.zeros(2 * pairs, width + 1)
    for row, length in enumerate([length for side in lengths for length in side]):
        mask[row, 1 : length + 1] = 1
    per_token = torch.zeros(2 * pairs, width)
    per_token[:, 0] = policy.flatten()

    def model(**inputs):
        zeros = torch.zeros_like(per_token)
        return SimpleNamespace(
            log_probs=per_token,
            mean_logits=zeros,
            entropy=zeros,
            is_top1=zeros.bool(),
            loss=None,
            aux_loss=None,
        )

    trainer = MagicMock()
    trainer.accelerator.device = "cpu"
    trainer.accelerator.gather = trainer.accelerator.gather_for_metrics = lambda tensor: tensor
    trainer.aux_loss_enabled = trainer.use_weighting = False
    trainer.ld_alpha, trainer.precompute_ref_logps, trainer.f_divergence_type = None, True, "reverse_kl"
    trainer.loss_types, trainer.loss_weights, trainer.beta, trainer.label_smoothing = [kind], [1.0], beta, 0.0
    trainer._metrics = {"train": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    inputs = {
        "input_ids": torch.ones(2 * pairs, width + 1, dtype=torch.long),
        "attention_mask": torch.ones(2 * pairs, width + 1, dtype=torch.long),
        "completion_mask": mask,
        "ref_chosen_logps": reference[0],
        "ref_rejected_logps": reference[1],
    }
    loss = trainer_module.DPOTrainer._compute_loss(trainer, model, inputs, return_outputs=False)
    return loss, {name: values[-1] for name, values in trainer._metrics["train"].items()}


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
@pytest.mark.parametrize("seed", range(3))
def test_dpo_loss_equals_trl(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = -40 * torch.rand(4, 6, generator=generator)
    lengths = torch.randint(1, 5, (2, 6), generator=generator)
    theirs, metrics = trl_dpo(kind, 0.3, scores[:2], scores[2:], lengths.tolist())
    divisor = lengths.repeat(2, 1) if kind == "ipo" else 1
    ours = dpo_loss(*(scores / divisor), beta=0.3, kind=kind)
    assert ours.losses.mean().item() == pytest.approx(theirs.item(), rel=1e-6)
    if kind == "sigmoid":
        assert ours.margins.mean().item() == pytest.approx(metrics["rewards/margins"], rel=1e-5)


@pytest.mark.parametrize("margin", [None, 0.5])
def test_bradley_terry_equals_trl(margin):
    trainer_module = pytest.importorskip(
        "trl.trainer.reward_trainer", reason="install the extra `bench` for TRL"
    )
    rewards = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    trainer = MagicMock()
    trainer.accelerator.gather = trainer.accelerator.gather_for_metrics = lambda tensor: tensor
    trainer.args.center_rewards_coefficient = None
    trainer._metrics = {"train": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    inputs = {"attention_mask": torch.ones(16, 2), "input_ids": torch.ones(16, 2)}
    if margin is not None:
        inputs["margin"] = torch.full((8,), margin)

    def model(**inputs):
        return SimpleNamespace(logits=rewards.flatten()[:, None], aux_loss=None)

    theirs = trainer_module.RewardTrainer.compute_loss(trainer, model, inputs)
    assert bradley_terry_loss(*rewards, margin=margin or 0.0).mean().item() == pytest.approx(
        theirs.item(), rel=1e-6
    )


# --- log-probabilities


def test_sum_and_mean_differ_torchtune_1291():
    # 2 tokens at -1 each against 4 tokens at -1 each: the sums differ by 2, the means by 0.
    logits = torch.tensor([[0.0, math.log(math.e - 1)]]).expand(2, 5, 2)  # token 0 has log-probability -1
    labels = torch.tensor([[-100, 0, 0, -100, -100], [-100, 0, 0, 0, 0]])
    total = sequence_logprobs(logits, labels)
    mean = sequence_logprobs(logits, labels, average=True)
    assert (total[0] - total[1]).item() == pytest.approx(2)
    assert (mean[0] - mean[1]).item() == pytest.approx(0)


@given(st.integers(0, 5), st.integers(0, 2**31))
def test_padding_changes_nothing(padding, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 6 + padding, 9, generator=generator)
    labels = torch.randint(0, 9, (2, 6 + padding), generator=generator)
    labels[:, :2] = -100
    labels[:, 6:] = -100
    padded, bare = sequence_logprobs(logits, labels), sequence_logprobs(logits[:, :6], labels[:, :6])
    assert torch.allclose(padded, bare, rtol=1e-6)


def test_logprobs_by_hand_with_the_shift():
    logits = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[-100, -100, 3, 1]])
    scores = logits.log_softmax(-1)
    assert sequence_logprobs(logits, labels).item() == pytest.approx(
        (scores[0, 1, 3] + scores[0, 2, 1]).item()
    )


def test_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(1, 300, 50, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(1, 300, dtype=torch.long)
    narrow = sequence_logprobs(logits.half(), labels)
    assert narrow.dtype == torch.float32
    assert narrow.item() == pytest.approx(sequence_logprobs(logits, labels).item(), rel=1e-3)


@pytest.mark.parametrize("average", [False, True])
def test_a_sequence_without_a_completion_is_an_error_not_0_or_nan_open_instruct_1625(average):
    labels = torch.tensor([[-100, 1, 2], [2, -100, -100]])  # a label at position 0 is never predicted
    with pytest.raises(ValueError, match="sequence 1 of the batch has no supervised token"):
        sequence_logprobs(torch.zeros(2, 3, 4), labels, average=average)


# --- reading a run


def test_zero_logprobs_mean_a_masked_completion_eto_14():
    assert "masked" in diagnose(loss=0.6931, chosen_logprob=0.0, rejected_logprob=0.0, margin=0.0, step=30)[0]


def test_ln_2_at_step_0_is_right_and_later_is_not():
    figures = {"loss": 0.6931, "chosen_logprob": -40.0, "rejected_logprob": -38.0, "margin": 0.0}
    assert diagnose(**figures, step=0) == ()
    assert "policy doesn't change" in diagnose(**figures, step=10)[0]


def test_a_falling_chosen_reward_is_no_problem_while_the_margin_grows_direct_preference_optimization_36():
    # The reference had the chosen answer at -40, so its reward is negative; the margin is what counts.
    assert diagnose(loss=0.4, chosen_logprob=-45.0, rejected_logprob=-60.0, margin=0.9, step=20) == ()


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_points_to_the_overflow(loss):
    assert "logsigmoid" in diagnose(loss, -10.0, -12.0, 0.1, 5)[0]
