"""Exercises of lab 02: from a ranking to pairs, to a reward, to DPO."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


def make_pairs(answers: list[str], ranks: list[int]) -> list[tuple[str, str]]:
    """Return the (chosen, rejected) pairs of one ranking, sorted, each once; equal ranks and equal texts make none."""
    pairs = {(answers[i], answers[j]) for i, j in pairs_of(ranks)}
    return sorted((chosen, rejected) for chosen, rejected in pairs if chosen != rejected)


def preference_loss(chosen: Tensor, rejected: Tensor, share: float | Tensor = 1.0) -> Tensor:
    """Return the mean Bradley-Terry loss of pairs of rewards, of whose voters this share preferred chosen."""
    agreed, against = bradley_terry_loss(chosen, rejected), bradley_terry_loss(rejected, chosen)
    return (share * agreed + (1 - share) * against).mean()


def accuracy(chosen: Tensor, rejected: Tensor) -> tuple[float, int]:
    """Return the share of pairs whose chosen reward is higher, and the number of ties."""
    done = pair_accuracy(chosen, rejected)
    return done.value, done.ties


def longer_wins(pairs: list[tuple[str, str]]) -> float:
    """Return the share of (chosen, rejected) pairs whose chosen text is longer; an equal length counts half."""
    return length_bias(PreferencePair("", *pair) for pair in pairs).longer_wins


def train_head(
    features: Tensor, pairs: list[tuple[int, int]], steps: int, lr: float
) -> tuple[Tensor, list[float]]:
    """Train a linear reward head by plain gradient descent; return its weights and the loss before each step."""
    better, worse = [i for i, _ in pairs], [j for _, j in pairs]
    weight, losses = torch.zeros(features.shape[1], requires_grad=True), []
    for _ in range(steps):
        rewards = features @ weight
        loss = preference_loss(rewards[better], rewards[worse])
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = (weight - lr * gradient).detach().requires_grad_()
    return weight.detach(), losses


def strengths(votes: list[tuple[int, int]], count: int) -> list[float]:
    """Return the rewards of ``count`` answers under which (winner, loser) votes are likeliest; their sum is 0."""
    wins = [sum(winner == i for winner, _ in votes) for i in range(count)]
    rating = [0.0] * count
    for _ in range(2000):  # Zermelo's method: wins over expected wins, as logarithms
        expected = [0.0] * count
        for one, other in votes:
            for i, j in ((one, other), (other, one)):
                expected[i] += 1 / (1 + math.exp(rating[j] - rating[i]))
        rating = [r + math.log(w / e) for r, w, e in zip(rating, wins, expected, strict=True)]
    mean = sum(rating) / count
    return [r - mean for r in rating]


def explains(votes: list[tuple[int, int]], count: int) -> Callable[[Any, Any], str | None]:
    """Return a comparison that takes any ratings of sum 0 under which each answer is expected to win as often as it did."""

    def compare(got: Any, _: Any) -> str | None:
        try:
            rating = [float(value) for value in got]
        except (TypeError, ValueError):
            return f"found {got!r}, expected {count} numbers"
        if len(rating) != count or not all(map(math.isfinite, rating)):
            return f"found {rating}, expected {count} finite numbers"
        for i in range(count):
            won = sum(winner == i for winner, _ in votes)
            rivals = [rating[b if a == i else a] for a, b in votes if i in (a, b)]
            expected = sum(1 / (1 + math.exp(min(50.0, rival - rating[i]))) for rival in rivals)
            if abs(won - expected) > 0.02:
                return f"answer {i} won {won} times, these rewards expect {expected:.2f}"
        if abs(sum(rating)) > 0.01:
            return f"the rewards add up to {sum(rating):.2f}, expected 0"
        return None

    return compare


THREE_OF_FOUR = [(0, 1), (0, 1), (1, 0), (0, 1)]
CIRCLE = [(0, 1), (1, 2), (2, 0)]
UNEVEN = [(0, 1)] * 5 + [(1, 0)] + [(1, 2)] * 2 + [(2, 1)] + [(2, 3)] * 3 + [(3, 2)] * 2 + [(3, 0)]


def answer_logprob(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the log-probabilities of the labelled tokens; logits (tokens, vocabulary)."""
    return sequence_logprobs(logits[None], labels[None])[0]


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
    offset: float | Tensor = 0.0,
) -> Tensor:
    """Return the mean DPO loss of a batch of pairs, with the lead that chosen has to have (arXiv 2402.10571)."""
    chosen, rejected = policy_chosen - reference_chosen, policy_rejected - reference_rejected
    return bradley_terry_loss(beta * chosen, beta * rejected, offset).mean()


def tensors(*rows: list[float]) -> tuple[Tensor, ...]:
    """Return float32 tensors."""
    return tuple(torch.tensor(row) for row in rows)


def trainable(*rows: list[float]) -> tuple[Tensor, ...]:
    """Return float32 tensors that require a gradient."""
    return tuple(torch.tensor(row, requires_grad=True) for row in rows)


def logits_of(*rows: list[float]) -> Tensor:
    """Return logits whose softmax is the given probabilities."""
    return torch.tensor(rows).log()


HALF, QUARTER, MOST = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.125, 0.125, 0.75]

EXERCISES = (
    Exercise(
        "2.1",
        "pairs from a ranking",
        make_pairs,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "Of two answers with their ranks: when do they make a pair, and which of the two is chosen? And if both "
            "say the same?",
            "Look at every ordered two of the answers, with their ranks. They make a pair where the "
            "first has the smaller rank and another text. Keep each pair once, and sort what you have found.",
        ),
        lesson="From an order to pairs",
        cases=(
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
            Case(
                "an empty answer",
                (["", "No.", "Yes."], [3, 1, 2]),
                "An empty answer is an answer: somebody ranked it last.",
                expected=[("No.", ""), ("No.", "Yes."), ("Yes.", "")],
            ),
            Case(
                "the same answer twice",
                (["Yes.", "No.", "Yes."], [1, 3, 2]),
                "The pair of Yes. over No. follows twice: return it once. Yes. over Yes. is a pair of an answer with itself.",
                expected=[("Yes.", "No.")],
                mistakes=(
                    Mistake(
                        [("Yes.", "No."), ("Yes.", "No."), ("Yes.", "Yes.")],
                        "Equal texts: an answer makes no pair with itself, and each pair is returned once.",
                    ),
                    Mistake(
                        [("Yes.", "No."), ("Yes.", "Yes.")],
                        "Yes. over Yes. teaches nothing: two equal texts make no pair.",
                    ),
                    Mistake([("Yes.", "No."), ("Yes.", "No.")], "Return each pair once."),
                ),
            ),
            Case(
                "ranked before and behind",
                (["Yes.", "No.", "Yes."], [1, 2, 3]),
                "Once over No. and once under it: both pairs were said, so both are returned. Which to believe is not for "
                "this function.",
                expected=[("No.", "Yes."), ("Yes.", "No.")],
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
        "a loss for divided votes",
        preference_loss,
        level="warm-up",
        difficulty=2,
        importance=5,
        minutes=10,
        hints=(
            "A voter for chosen pays -ln sigmoid(m). What does one for rejected pay? And which function of torch does "
            "sigmoid and logarithm in one?",
            "Subtract rejected from chosen. Minus logsigmoid of the difference, times share; minus logsigmoid of the "
            "difference with its sign turned, times the rest; add, and average last. Stay with tensors, so that a "
            "gradient flows.",
        ),
        lesson="From a pair to a loss",
        cases=(
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
            Case(
                "three voters of four",
                (*tensors([1.0], [0.0]), 0.75),
                "Three quarters pay -ln sigmoid(1) = 0.3133, one quarter -ln sigmoid(-1) = 1.3133: 0.5633.",
                expected=torch.tensor(0.56326169),
                mistakes=(
                    Mistake(
                        torch.tensor(0.31326169),
                        "`share` is left out: one voter of four preferred the other answer.",
                    ),
                    Mistake(
                        torch.tensor(0.23494627),
                        "The voter for the other answer pays too: -ln sigmoid of the turned difference, times 1 - share.",
                    ),
                    Mistake(torch.tensor(1.06326169), "The shares are the wrong way round."),
                    Mistake(
                        torch.tensor(0.38687100), "share is no factor of the margin: it weighs two losses."
                    ),
                ),
            ),
            Case(
                "each pair has its own share",
                tensors([1.0, 2.0], [0.0, 2.5], [1.0, 0.5]),
                "`share` may be a tensor of the pairs: mean of 0.3133 and 0.7241.",
                expected=torch.tensor(0.51866934),
            ),
            Case(
                "far ahead, and one vote against",
                (*tensors([100.0], [0.0]), 0.75),
                "The one voter of four pays 100 nats, a quarter of them counts: 25. logsigmoid stays finite there.",
                expected=torch.tensor(25.0),
            ),
            Case(
                "a gradient for training",
                lambda: (*trainable([2.0, 0.5], [1.0, 1.5]), 0.75),
                "A reward model is trained with this loss.",
            ),
        ),
    ),
    Exercise(
        "2.3",
        "accuracy with ties",
        accuracy,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "Three things can happen in a pair. Which of them are right, and which are counted apart?",
            "Count where chosen is strictly larger, and divide by the number of pairs. Count where "
            "the two are equal. Hand out plain Python numbers.",
        ),
        lesson="The perfect score of a model that knew nothing",
        cases=(
            Case(
                "three right, one tie, two wrong",
                tensors([1.0, 1.0, 2.0, 0.0, 5.0, -1.0], [0.0, 1.0, 1.0, 1.0, 3.0, 0.0]),
                "Three of six are strictly higher, and one pair ties.",
                expected=(0.5, 1),
                mistakes=(
                    Mistake(
                        lambda got: abs(got[0] - 4 / 6) < 1e-6,
                        "A tie was counted as right (>=): a model that gives every answer the same reward would have 100 %.",
                    ),
                    Mistake(
                        lambda got: abs(got[0] - 3.5 / 6) < 1e-6,
                        "A tie was counted as half right: here it counts as wrong and is reported apart.",
                    ),
                    Mistake(
                        lambda got: abs(got[0] - 3 / 5) < 1e-6,
                        "The tie was left out of the pairs: it counts as a pair that isn't right, so divide by all six.",
                    ),
                    Mistake(
                        lambda got: abs(got[0] - 2 / 6) < 1e-6,
                        "The wrong way round: right is where chosen is higher.",
                    ),
                    Mistake(lambda got: got[0] == 3, "Return the share of pairs, 3/6, not their number."),
                    Mistake(
                        lambda got: abs(got[0] - 0.5) < 1e-6 and got[1] == 0,
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
        level="warm-up",
        difficulty=2,
        importance=3,
        minutes=8,
        hints=(
            "What does one pair add to the count: 1, one half or 0?",
            "Compare the two lengths in characters. Longer adds 1, equal adds a half. Divide the sum "
            "by the number of pairs.",
        ),
        lesson="What a model could learn instead",
        cases=(
            Case(
                "four of five",
                (
                    [
                        ("long one", "short"),
                        ("be", "never"),
                        ("yes, it is", "no"),
                        ("a maybe", "ok"),
                        ("perhaps", "I do"),
                    ],
                ),
                "In four of the five pairs the chosen text is longer.",
                expected=0.8,
                mistakes=(
                    Mistake(4, "Return the share of pairs, not their number."),
                    Mistake(0.2, "The wrong way round: the pair is (chosen, rejected)."),
                    Mistake(0.4, "Texts were compared, which goes by the alphabet: compare their lengths."),
                    Mistake(
                        lambda got: got in (0.6, 0.7),
                        "Words were counted: the length is asked for in characters.",
                    ),
                    Mistake(
                        lambda got: isinstance(got, float) and 1.3 < got < 10,
                        "That compares total lengths: one very long answer would decide. Count pairs.",
                    ),
                    Mistake(80.0, "Return a share from 0 to 1, not a percentage."),
                ),
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
                ([("a b ", "abc")],),
                "Spaces are characters too, at the end as well: 4 against 3.",
                expected=1.0,
            ),
        ),
    ),
    Exercise(
        "2.5",
        "the log-probability of an answer",
        answer_logprob,
        level="core",
        difficulty=4,
        importance=5,
        minutes=20,
        hints=(
            "Row i predicts token i + 1. So which rows belong to which labels?",
            "Drop the last row of the logits and the first label: now they stand side by side. Find "
            "the labels that aren't -100; none is an error. Take log_softmax over the vocabulary, "
            "pick each label's number from its row, and add up.",
        ),
        lesson="DPO: the short cut",
        cases=(
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
                lambda: (logits_of(HALF, MOST, QUARTER), torch.tensor([-100, 0, 2])),
                "log(1/2) + log(3/4): the label 0 from row 0, the label 2 from row 1.",
                expected=torch.tensor(math.log(0.375)),
                mistakes=(
                    Mistake(
                        torch.tensor(math.log(0.375) / 2),
                        "That is the mean: DPO sums over the answer's tokens.",
                    ),
                    Mistake(
                        torch.tensor(math.log(0.75)),
                        "The token with the id 0 is missing: 0 is an id like any other, only -100 is left out.",
                    ),
                ),
            ),
            Case(
                "padding after the answer",
                lambda: (logits_of(HALF, MOST, QUARTER, HALF), torch.tensor([-100, 0, 2, -100])),
                "Padding is labelled -100 and changes nothing.",
                expected=torch.tensor(math.log(0.375)),
            ),
            Case(
                "the first token is labelled too",
                lambda: (logits_of(HALF, MOST, QUARTER), torch.tensor([1, 0, 2])),
                "Nothing predicts the first token, so its label is left out, and the last row of the logits predicts nothing "
                "that is there.",
                expected=torch.tensor(math.log(0.375)),
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
                "a very unlikely token",
                lambda: (torch.tensor([[200.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([-100, 1])),
                "softmax gives 0 for it in float32, and the logarithm of 0 is minus infinity: log_softmax does both in one "
                "and stays finite (-200).",
                expected=torch.tensor(-200.0),
            ),
            Case(
                "a gradient for training",
                lambda: (logits_of(HALF, MOST, QUARTER).requires_grad_(), torch.tensor([-100, 0, 2])),
                "DPO trains a model through this number.",
            ),
            Case(
                "no answer",
                lambda: (logits_of(HALF, QUARTER), torch.tensor([-100, -100])),
                "Nothing is labelled: the sum would be 0, as if the model were certain. Raise ValueError instead.",
                raises=ValueError,
            ),
            Case(
                "only the first token is labelled",
                lambda: (logits_of(HALF, QUARTER), torch.tensor([2, -100])),
                "Nothing predicts the first token, so nothing is left to sum: raise ValueError, after the shift.",
                raises=ValueError,
            ),
        ),
    ),
    Exercise(
        "2.6",
        "DPO with a lead",
        dpo_loss,
        level="core",
        difficulty=3,
        importance=5,
        minutes=12,
        hints=(
            "How far did the policy move away from the reference, for the chosen answer and for the "
            "rejected one? And where on the margin's axis should the loss be ln 2 now?",
            "Two log-ratios, policy minus reference. Their difference, chosen minus rejected, is h. From beta times h "
            "take the offset; then as in 2.2: logsigmoid, sign turned, averaged last.",
        ),
        lesson="DPO: the short cut",
        cases=(
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
                (*tensors([-10.0], [-12.5], [-11.0], [-11.5]), 0.1),
                "h = (-10 + 11) - (-12.5 + 11.5) = 2, and -log(sigmoid(0.1 * 2)) = 0.5981.",
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
                (*tensors([-12.0], [-10.0], [-11.5], [-11.5]), 0.5),
                "h = -2, and -log(sigmoid(0.5 * -2)) = 1.3133: use the beta that is handed in.",
                expected=torch.tensor(1.31326169),
            ),
            Case(
                "far on the wrong side",
                (*tensors([-500.0], [-10.0], [-10.0], [-10.0]), 1.0),
                "sigmoid(-490) is 0 in float32: use logsigmoid, the loss is 490.",
                expected=torch.tensor(490.0),
            ),
            Case(
                "a lead of one half",
                (*tensors([-10.0], [-12.5], [-11.0], [-11.5]), 0.1, 0.5),
                "The margin 0.1 * 2 = 0.2 is 0.3 short of the lead: -log(sigmoid(0.2 - 0.5)) = 0.8544.",
                expected=torch.tensor(0.85435524),
                mistakes=(
                    Mistake(torch.tensor(0.59813887), "`offset` is left out: chosen has to lead by so much."),
                    Mistake(
                        torch.tensor(0.40318605), "The offset is taken from the margin, not added to it."
                    ),
                    Mistake(
                        torch.tensor(0.62095732),
                        "The offset is a lead of beta * h, in nats of reward: beta doesn't multiply it.",
                    ),
                ),
            ),
            Case(
                "each pair has its own lead",
                (
                    *tensors([-10.0, -10.0], [-12.5, -12.5], [-11.0, -11.0], [-11.5, -11.5]),
                    0.1,
                    torch.tensor([0.0, 0.5]),
                ),
                "`offset` may be a tensor of the pairs: mean of 0.5981 and 0.8544.",
                expected=torch.tensor(0.72624706),
            ),
            Case(
                "a gradient for training",
                lambda: (
                    *trainable([-10.0, -50.0], [-12.5, -48.0]),
                    *tensors([-11.0, -52.0], [-11.5, -47.0]),
                    0.2,
                ),
                "The policy is trained with this loss.",
            ),
        ),
    ),
    Exercise(
        "2.7",
        "a reward head, trained",
        train_head,
        level="core",
        difficulty=4,
        importance=5,
        minutes=25,
        hints=(
            "Write one step first: rewards of all answers, the loss of all pairs, its gradient, the new weights.",
            "Begin with zeros that require a gradient. In each step: rewards = features times weights; the mean loss of the "
            "better and the worse rewards (2.2); note it; take its gradient; the weights become weights minus lr times "
            "gradient, cut off from the step before. Return the weights without a gradient, and the losses.",
        ),
        lesson="A reward model",
        cases=(
            Case(
                "one step by hand",
                (torch.tensor([[1.0], [0.0]]), [(0, 1)], 1, 3.0),
                "All rewards are 0, so the loss is ln 2 and the gradient -1/2: the weight becomes 0 + 3 / 2.",
                expected=(torch.tensor([1.5]), [math.log(2)]),
                rtol=1e-4,
                mistakes=(
                    Mistake(lambda got: float(got[0][0]) == -1.5, "Uphill: subtract lr times the gradient."),
                    Mistake(
                        lambda got: len(got[1]) == 1 and abs(got[1][0] - math.log(2)) > 0.01,
                        "The loss is noted before the step: the first one is ln 2, since all weights begin at 0.",
                    ),
                    Mistake(
                        lambda got: len(got[1]) == 2,
                        "One loss for each step, before it: no loss after the last.",
                    ),
                ),
            ),
            Case(
                "pairs that share answers",
                (
                    torch.tensor([[1.0, -2.0], [0.5, 0.0], [-1.0, 3.0]]),
                    [(0, 1), (0, 2), (1, 2)],
                    4,
                    0.5,
                ),
                "The loss of a step is the mean over all pairs, and each step goes from where the last one ended.",
                rtol=1e-4,
            ),
            Case(
                "the same pair twice",
                (torch.tensor([[2.0, 0.0], [0.0, 1.0]]), [(1, 0), (1, 0), (0, 1)], 5, 0.25),
                "A pair that was voted on twice counts twice.",
                rtol=1e-4,
            ),
            Case(
                "an answer in no pair",
                (torch.tensor([[1.0], [50.0], [3.0]]), [(2, 0)], 2, 0.125),
                "An answer that stands in no pair changes nothing.",
                rtol=1e-4,
            ),
            Case(
                "no steps",
                (torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]]), [(0, 1)], 0, 0.75),
                "Without a step the weights are the zeros they began with, and there is no loss.",
                expected=(torch.zeros(3), []),
            ),
        ),
    ),
    Exercise(
        "2.8",
        "rewards from votes",
        strengths,
        level="stretch",
        difficulty=4,
        importance=3,
        minutes=30,
        hints=(
            "Each answer gets one number, and the numbers are what you train. You have a loss for a vote.",
            "Take zeros as rewards and the votes as pairs, and go downhill on the mean loss until the gradient is about 0 (some "
            "hundred steps with a large lr, or an optimizer of torch). Then subtract the mean.",
        ),
        lesson="From a pair to a loss",
        cases=(
            Case(
                "three of four",
                (THREE_OF_FOUR, 2),
                "Answer 0 won three of four: the difference of the rewards must be ln 3 = 1.0986, half of it to each side.",
                compare=explains(THREE_OF_FOUR, 2),
            ),
            Case(
                "a circle",
                (CIRCLE, 3),
                "Each of the three won once and lost once: nothing tells them apart.",
                compare=explains(CIRCLE, 3),
            ),
            Case(
                "not everybody met everybody",
                (UNEVEN, 4),
                "What an answer's wins are worth depends on whom it beat: a share of wins isn't enough.",
                compare=explains(UNEVEN, 4),
            ),
        ),
    ),
)
