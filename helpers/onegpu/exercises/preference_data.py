"""Exercises of lab 02: from a ranking to pairs, to a reward, to DPO."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.preference_data import (
    PreferencePair,
    bradley_terry_loss,
    length_bias,
    pair_accuracy,
    pairs_of,
    sequence_logprobs,
)
from onegpu.preference_data import dpo_loss as _dpo_loss


def make_pairs(answers: list[str], ranks: list[int]) -> list[tuple[str, str]]:
    """Return all (chosen, rejected) pairs of one ranking, sorted; 1 is best, equal ranks make no pair."""
    return sorted((answers[i], answers[j]) for i, j in pairs_of(ranks))


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return the mean Bradley-Terry loss of pairs of rewards."""
    return bradley_terry_loss(chosen, rejected).mean()


def accuracy(chosen: Tensor, rejected: Tensor) -> tuple[float, int]:
    """Return the share of pairs whose chosen reward is higher, and the number of ties."""
    done = pair_accuracy(chosen, rejected)
    return done.value, done.ties


def longer_wins(pairs: list[tuple[str, str]]) -> float:
    """Return the share of (chosen, rejected) pairs whose chosen text is longer; an equal length counts half."""
    return length_bias(PreferencePair("", *pair) for pair in pairs).longer_wins


def answer_logprob(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the log-probabilities of the labelled tokens; logits (tokens, vocabulary)."""
    return sequence_logprobs(logits[None], labels[None])[0]


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
) -> Tensor:
    """Return the mean DPO loss of a batch of pairs."""
    return _dpo_loss(
        policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta=beta
    ).losses.mean()


def tensors(*rows: list[float]) -> tuple[Tensor, ...]:
    """Return float32 tensors."""
    return tuple(torch.tensor(row) for row in rows)


def logits_of(*rows: list[float]) -> Tensor:
    """Return logits whose softmax is the given probabilities."""
    return torch.tensor(rows).log()


HALF, QUARTER = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]

EXERCISES = (
    Exercise(
        "2.1",
        "pairs from a ranking",
        make_pairs,
        (
            Case(
                "A > B > C",
                (["A", "B", "C"], [1, 2, 3]),
                "Three answers in order make three pairs: A over B, A over C, B over C.",
                expected=[("A", "B"), ("A", "C"), ("B", "C")],
                mistakes=(
                    Mistake(
                        [("A", "B"), ("B", "C")],
                        "A over C is a pair too: compare every two answers, not neighbours.",
                    ),
                    Mistake(
                        [("A", "B"), ("A", "C")],
                        "B over C is a pair too, not only the best against the others.",
                    ),
                    Mistake(
                        [("A", "C")], "Not only the best against the worst: every two answers make a pair."
                    ),
                    Mistake(
                        [("B", "A"), ("C", "A"), ("C", "B")],
                        "The wrong way round: rank 1 is the best, so the lower number is chosen.",
                    ),
                    Mistake([(0, 1), (0, 2), (1, 2)], "Return the answers, not their positions."),
                ),
            ),
            Case(
                "A > B = C",
                (["A", "B", "C"], [1, 2, 2]),
                "B and C tie, so nobody said which is better: a tie makes no pair.",
                expected=[("A", "B"), ("A", "C")],
            ),
            Case(
                "shown in another order",
                (["worst", "best", "middle"], [3, 1, 2]),
                "The answers stand in the order in which they were shown, not in order of rank: look at `ranks`.",
                expected=[("best", "middle"), ("best", "worst"), ("middle", "worst")],
            ),
            Case("all tie", (["A", "B"], [1, 1]), "No pair follows: return an empty list.", expected=[]),
            Case(
                "two ties",
                (["A", "B", "C", "D"], [1, 1, 3, 3]),
                "Each of A and B is over each of C and D, whatever the numbers between.",
                expected=[("A", "C"), ("A", "D"), ("B", "C"), ("B", "D")],
            ),
        ),
    ),
    Exercise(
        "2.2",
        "the Bradley-Terry loss",
        preference_loss,
        (
            Case(
                "equal rewards",
                tensors([0.0], [0.0]),
                "Equal rewards mean a chance of one half: the loss is -ln(1/2) = ln 2.",
                expected=torch.tensor(math.log(2)),
                mistakes=(
                    Mistake(torch.tensor(0.5), "That is the probability; the loss is minus its logarithm."),
                    Mistake(torch.tensor(-math.log(2)), "The sign is turned: a loss is -log, over 0."),
                    Mistake(
                        torch.tensor([math.log(2)]),
                        "Take the mean over the pairs: one number, without a dimension.",
                    ),
                    Mistake(
                        torch.tensor(1.0),
                        "That is the logarithm to base 2 (1 bit): torch's log and the course's count in nats.",
                    ),
                ),
            ),
            Case(
                "chosen leads by one",
                tensors([3.0], [2.0]),
                "-log(sigmoid(1)) = 0.3133.",
                expected=torch.tensor(0.31326169),
                mistakes=(
                    Mistake(
                        torch.tensor(1.31326169),
                        "The wrong way round: it is chosen - rejected that goes into the sigmoid.",
                    ),
                ),
            ),
            Case(
                "three pairs",
                tensors([2.0, 2.0, 1.0], [1.0, -0.5, -0.5]),
                "Mean of 0.3133, 0.0789 and 0.2014.",
                expected=torch.tensor(0.19785490),
                mistakes=(
                    Mistake(torch.tensor(0.5935647), "That is the sum; take the mean over the pairs."),
                    Mistake(
                        torch.tensor(0.17300774),
                        "The mean of the differences went through the loss: take the mean of the losses.",
                    ),
                ),
            ),
            Case(
                "far behind",
                tensors([-100.0], [0.0]),
                "sigmoid(-100) is 0 in float32 and its logarithm minus infinity: use logsigmoid, which stays finite (100).",
                expected=torch.tensor(100.0),
            ),
        ),
    ),
    Exercise(
        "2.3",
        "accuracy with ties",
        accuracy,
        (
            Case(
                "one right, one tie, one right",
                tensors([1.0, 1.0, 2.0], [0.0, 1.0, 1.0]),
                "Two of three are strictly higher, and one pair ties.",
                expected=(2 / 3, 1),
                mistakes=(
                    Mistake(
                        lambda got: got[0] == 1.0,
                        "A tie was counted as right (>=): a model that gives every answer the same reward would have 100 %.",
                    ),
                    Mistake(
                        lambda got: abs(got[0] - 5 / 6) < 1e-6,
                        "A tie was counted as half right: here it counts as wrong and is reported apart.",
                    ),
                    Mistake(lambda got: got[0] == 2, "Return the share of pairs, 2/3, not their number."),
                    Mistake(
                        lambda got: abs(got[0] - 2 / 3) < 1e-6 and got[1] == 0,
                        "The pair (1.0, 1.0) ties: count it.",
                    ),
                ),
            ),
            Case(
                "an untrained model",
                tensors([0.0, 0.0], [0.0, 0.0]),
                "All rewards are equal: nothing is right, and both pairs tie.",
                expected=(0.0, 2),
            ),
            Case(
                "all wrong",
                tensors([-1.0, 0.5], [1.0, 2.5]),
                "No pair ties, and no chosen reward is higher.",
                expected=(0.0, 0),
            ),
            Case(
                "close is not equal",
                tensors([1.0000001], [1.0]),
                "A difference in the last digit is no tie: compare with > and ==.",
                expected=(1.0, 0),
            ),
        ),
    ),
    Exercise(
        "2.4",
        "do longer answers win",
        longer_wins,
        (
            Case(
                "two of four",
                ([("long one", "short"), ("no", "never"), ("yes, it is", "no"), ("a", "bb")],),
                "In two of the four pairs the chosen text is longer.",
                expected=0.5,
                mistakes=(
                    Mistake(2, "Return the share of pairs, not their number."),
                    Mistake(
                        lambda got: isinstance(got, float) and 1.3 < got < 10,
                        "That compares total lengths: one very long answer would decide. Count pairs.",
                    ),
                    Mistake(50.0, "Return a share from 0 to 1, not a percentage."),
                ),
            ),
            Case(
                "the chosen one is always longer",
                ([("aaa", "b"), ("aa", "b")],),
                "Both chosen texts are longer: 1.0.",
                expected=1.0,
                mistakes=(Mistake(0.0, "The wrong way round: the pair is (chosen, rejected)."),),
            ),
            Case(
                "equal lengths",
                ([("ab", "cd"), ("abc", "d")],),
                "An equal length counts half: (0.5 + 1) / 2.",
                expected=0.75,
            ),
            Case(
                "Korean",
                ([("네", "no"), ("아니요", "ok")],),
                "Count characters: a Korean syllable is one character, three bytes in UTF-8.",
                expected=0.5,
            ),
            Case(
                "spaces",
                ([("a b c", "abcd")],),
                "Spaces are characters too: 5 against 4.",
                expected=1.0,
            ),
        ),
    ),
    Exercise(
        "2.5",
        "the log-probability of an answer",
        answer_logprob,
        (
            Case(
                "one answer token",
                lambda: (logits_of(HALF, QUARTER), torch.tensor([-100, 2])),
                "Row 0 of the logits predicts token 1, whose id is 2: log(1/4) = -1.386.",
                expected=torch.tensor(math.log(0.25)),
                mistakes=(
                    Mistake(
                        torch.tensor(math.log(0.5)),
                        "Read from the token's own row: row i predicts token i + 1, so the label at 1 is read from row 0.",
                    ),
                    Mistake(torch.tensor(0.25), "That is the probability; return its logarithm."),
                    Mistake(
                        torch.tensor(-math.log(0.25)),
                        "The sign is turned: a log-probability is below 0, this is a loss.",
                    ),
                ),
            ),
            Case(
                "two answer tokens",
                lambda: (logits_of(HALF, QUARTER, HALF), torch.tensor([-100, 0, 2])),
                "log(1/2) + log(1/2): the label 0 from row 0, the label 2 from row 1.",
                expected=torch.tensor(2 * math.log(0.5)),
                mistakes=(
                    Mistake(
                        torch.tensor(math.log(0.5)), "That is the mean: DPO sums over the answer's tokens."
                    ),
                ),
            ),
            Case(
                "padding after the answer",
                lambda: (logits_of(HALF, QUARTER, HALF, HALF), torch.tensor([-100, 0, 2, -100])),
                "Padding is labelled -100 and changes nothing.",
                expected=torch.tensor(2 * math.log(0.5)),
            ),
            Case(
                "a long prompt",
                lambda: (logits_of(HALF, QUARTER, HALF, QUARTER), torch.tensor([-100, -100, -100, 1])),
                "Only the labelled token counts, read from row 2: log(1/4).",
                expected=torch.tensor(math.log(0.25)),
            ),
            Case(
                "logits that aren't normalised",
                lambda: (logits_of(HALF, QUARTER) + 7.0, torch.tensor([-100, 2])),
                "Logits may have any offset: take log_softmax, not the logit itself.",
                expected=torch.tensor(math.log(0.25)),
                atol=1e-5,
            ),
            Case(
                "no answer",
                lambda: (logits_of(HALF, QUARTER), torch.tensor([-100, -100])),
                "Nothing is labelled: the sum would be 0, as if the model were certain. Raise ValueError instead.",
                raises=ValueError,
            ),
        ),
    ),
    Exercise(
        "2.6",
        "the DPO loss",
        dpo_loss,
        (
            Case(
                "the policy is the reference",
                (*tensors([-10.0], [-12.0], [-10.0], [-12.0]), 0.1),
                "Nothing has changed yet: the loss is ln 2, whatever the log-probabilities are.",
                expected=torch.tensor(math.log(2)),
                mistakes=(
                    Mistake(
                        torch.tensor(0.59813887),
                        "The reference is left out: what counts is how much the policy moved away from it.",
                    ),
                    Mistake(torch.tensor(0.5), "That is the probability; the loss is -log of it."),
                    Mistake(torch.tensor([math.log(2)]), "Take the mean over the pairs: one number."),
                ),
            ),
            Case(
                "chosen up, rejected down",
                (*tensors([-10.0], [-12.0], [-11.0], [-11.0]), 0.1),
                "h = (-10 + 11) - (-12 + 11) = 2, and -log(sigmoid(0.1 * 2)) = 0.5981.",
                expected=torch.tensor(0.59813887),
                mistakes=(
                    Mistake(torch.tensor(0.79813887), "The wrong way round: chosen minus rejected."),
                    Mistake(
                        torch.tensor(0.12692801), "beta is left out: the loss is -log(sigmoid(beta * h))."
                    ),
                    Mistake(
                        torch.tensor(math.log(2)),
                        "The two log-ratios are subtracted, not added: chosen minus rejected.",
                    ),
                ),
            ),
            Case(
                "two pairs",
                (*tensors([-10.0, -50.0], [-20.0, -80.0], [-15.0, -60.0], [-15.0, -70.0]), 0.1),
                "Mean of 0.3133 and 0.1269.",
                expected=torch.tensor(0.22009485),
                mistakes=(
                    Mistake(torch.tensor(0.4401897), "That is the sum; take the mean over the pairs."),
                ),
            ),
            Case(
                "larger beta",
                (*tensors([-12.0], [-10.0], [-11.0], [-11.0]), 0.5),
                "h = -2, and -log(sigmoid(0.5 * -2)) = 1.3133: use the beta that is handed in.",
                expected=torch.tensor(1.31326169),
            ),
            Case(
                "far on the wrong side",
                (*tensors([-500.0], [-10.0], [-10.0], [-10.0]), 1.0),
                "sigmoid(-490) is 0 in float32: use logsigmoid, the loss is 490.",
                expected=torch.tensor(490.0),
            ),
        ),
    ),
)
