"""The DPO that lesson 02 writes out: its functions say what the package says, and the stored runs are theirs."""

import sys
from pathlib import Path

import pytest
import torch
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.preference_data import dpo_runs, load_rankings, reference_logprobs, split_rankings

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from dpo_runs import COMMAND, EPOCHS, RATES, SEEDS, lesson


@pytest.fixture(scope="module")
def of():
    return lesson()


@pytest.fixture(scope="module")
def pairs(of):
    return of["best_and_worst"](load_rankings()[:6], tiny_tokenizer())


def test_a_divided_model_gives_the_log_probabilities_of_the_whole_one(of, pairs):
    model = tiny_model()
    below, policy = of["divide"](model, frozen=1)
    found = of["all_logprobs"](policy, of["read"](below, pairs), pairs)
    expected = reference_logprobs(model, pairs, 3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_margins_begin_at_0_and_grow(of, pairs):
    torch.manual_seed(0)
    below, policy = of["divide"](tiny_model(), frozen=1)
    history = of["train_on_pairs"](policy, of["read"](below, pairs), pairs, epochs=4, lr=1e-2)
    first, last = history[:4], history[-len(pairs) :]
    assert [margin for margin, _ in first] == pytest.approx([0.0] * 4, abs=1e-5)
    assert sum(new for _, new in history) == len(pairs)
    assert sum(margin for margin, _ in last) / len(last) > 0.05


def test_the_stored_runs_are_those_that_the_script_makes():
    stored = dpo_runs()
    assert [(run["learning_rate"], run["seed"]) for run in stored["runs"]] == [
        (r, s) for r in RATES for s in SEEDS
    ]
    assert stored["command_line"]["command"] == f"onegpu {COMMAND}"
    _, held_out = split_rankings(load_rankings())
    assert stored["asked"] == [ranking.prompt for ranking in held_out[::6]]
    for run in stored["runs"]:
        new = [margin for margin, is_new in run["history"] if is_new]
        assert len(run["history"]) == EPOCHS * len(new)
        assert new[:4] == pytest.approx([0.0] * 4, abs=2e-3)
        assert len(run["answers"]) == len(stored["before"]) == len(stored["asked"])
