"""What people hand in for the exercises of lab 02."""

import math
from itertools import combinations, pairwise

import torch
import torch.nn.functional as F
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 2.1 ------------------------------------------------------------------------------------------------------------------
ABC = "A > B > C"


def ordered(answers, ranks):
    return [answer for _, answer in sorted(zip(ranks, answers, strict=True))]


@wrong("2.1", "neighbours only", case=ABC, says="not neighbours")
def neighbours(answers, ranks):
    order = ordered(answers, ranks)
    return sorted(pairwise(order))


@wrong("2.1", "best against the others", case=ABC, says="B over C")
def best_only(answers, ranks):
    order = ordered(answers, ranks)
    return sorted((order[0], other) for other in order[1:])


@wrong("2.1", "best against worst", case=ABC, says="best against the worst")
def best_worst(answers, ranks):
    order = ordered(answers, ranks)
    return [(order[0], order[-1])]


@wrong("2.1", "higher number wins", case=ABC, says="the lower number is chosen")
def reversed_ranks(answers, ranks):
    return sorted(
        (a, b)
        for a, i in zip(answers, ranks, strict=False)
        for b, j in zip(answers, ranks, strict=False)
        if i > j
    )


@wrong("2.1", "positions", case=ABC, says="not their positions")
def positions(answers, ranks):
    return [(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if ranks[i] < ranks[j]]


@wrong("2.1", "ties become pairs", case="A > B = C", says="a tie makes no pair")
def ties_too(answers, ranks):
    return sorted(combinations(ordered(answers, ranks), 2))


@wrong("2.1", "ties both ways", case="A > B = C", says="a tie makes no pair")
def both_ways(answers, ranks):
    n = range(len(ranks))
    return sorted((answers[i], answers[j]) for i in n for j in n if i != j and ranks[i] <= ranks[j])


@wrong("2.1", "takes the order shown", case="shown in another order", says="look at `ranks`")
def as_shown(answers, ranks):
    return sorted(
        (a, b) for (a, i), (b, j) in combinations(list(zip(answers, ranks, strict=False)), 2) if i != j
    )


@right("2.1", "two loops")
def two_loops(answers, ranks):
    found = []
    for a, rank_a in zip(answers, ranks, strict=False):
        for b, rank_b in zip(answers, ranks, strict=False):
            if rank_a < rank_b:
                found.append((a, b))
    return sorted(found)


@right("2.1", "combinations")
def with_combinations(answers, ranks):
    found = set()
    for i, j in combinations(range(len(ranks)), 2):
        if ranks[i] != ranks[j]:
            better, worse = (i, j) if ranks[i] < ranks[j] else (j, i)
            found.add((answers[better], answers[worse]))
    return sorted(found)


@right("2.1", "sorted first")
def sorted_first(answers, ranks):
    order = sorted(zip(ranks, answers, strict=False))
    return sorted((a, b) for (i, a), (j, b) in combinations(order, 2) if i < j)


# 2.2 ------------------------------------------------------------------------------------------------------------------
EQUAL = "equal rewards"


@wrong("2.2", "the probability", case=EQUAL, says="minus its logarithm")
def probability(chosen, rejected):
    return torch.sigmoid(chosen - rejected).mean()


@wrong("2.2", "no minus", case=EQUAL, says="sign is turned")
def no_minus(chosen, rejected):
    return F.logsigmoid(chosen - rejected).mean()


@wrong("2.2", "no mean", case=EQUAL, says="without a dimension")
def no_mean(chosen, rejected):
    return -F.logsigmoid(chosen - rejected)


@wrong("2.2", "base 2", case=EQUAL, says="nats")
def bits(chosen, rejected):
    return -torch.log2(torch.sigmoid(chosen - rejected)).mean()


@wrong("2.2", "rejected minus chosen", case="chosen leads by one", says="chosen - rejected")
def turned(chosen, rejected):
    return -F.logsigmoid(rejected - chosen).mean()


@wrong("2.2", "sums", case="three pairs", says="take the mean")
def sums(chosen, rejected):
    return -F.logsigmoid(chosen - rejected).sum()


@wrong("2.2", "loss of the mean difference", case="three pairs", says="mean of the losses")
def of_means(chosen, rejected):
    return -F.logsigmoid((chosen - rejected).mean())


@wrong("2.2", "log of sigmoid", case="far behind", says="minus infinity")
def overflows(chosen, rejected):
    return -torch.log(torch.sigmoid(chosen - rejected)).mean()


@wrong("2.2", "log of sigmoid with a small number", case="far behind", says="logsigmoid")
def with_epsilon(chosen, rejected):
    return -torch.log(torch.sigmoid(chosen - rejected) + 1e-8).mean()


@right("2.2", "softplus")
def softplus(chosen, rejected):
    return F.softplus(rejected - chosen).mean()


@right("2.2", "binary cross-entropy")
def cross_entropy(chosen, rejected):
    margin = chosen - rejected
    return F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))


@right("2.2", "log-sum-exp")
def log_sum_exp(chosen, rejected):
    both = torch.stack([chosen, rejected])
    return (torch.logsumexp(both, 0) - chosen).mean()


# 2.3 ------------------------------------------------------------------------------------------------------------------
FIRST = "one right, one tie, one right"


@wrong("2.3", "ties are right", case=FIRST, says="(>=)")
def ties_right(chosen, rejected):
    return (chosen >= rejected).float().mean().item(), int((chosen == rejected).sum())


@wrong("2.3", "ties are half right", case=FIRST, says="half right")
def ties_half(chosen, rejected):
    ties = int((chosen == rejected).sum())
    return (int((chosen > rejected).sum()) + ties / 2) / len(chosen), ties


@wrong("2.3", "counts", case=FIRST, says="not their number")
def count_right(chosen, rejected):
    return int((chosen > rejected).sum()), int((chosen == rejected).sum())


@wrong("2.3", "no ties", case=FIRST, says="count it")
def no_ties(chosen, rejected):
    return (chosen > rejected).float().mean().item(), 0


@wrong("2.3", "leaves ties out", case="an untrained model", says="nothing is right")
def without_ties(chosen, rejected):
    ties = int((chosen == rejected).sum())
    if ties == len(chosen):
        return 1.0, ties
    return int((chosen > rejected).sum()) / len(chosen), ties


@wrong("2.3", "the rest are right", case="all wrong", says="no chosen reward is higher")
def rest_right(chosen, rejected):
    ties = int((chosen == rejected).sum())
    return (len(chosen) - ties) / len(chosen), ties


@wrong("2.3", "isclose", case="close is not equal", says="last digit")
def close(chosen, rejected):
    ties = torch.isclose(chosen, rejected)
    return ((chosen > rejected) & ~ties).float().mean().item(), int(ties.sum())


@right("2.3", "means and sums")
def means(chosen, rejected):
    return (chosen > rejected).double().mean().item(), int((chosen == rejected).sum())


@right("2.3", "a loop")
def loop(chosen, rejected):
    right = ties = 0
    for a, b in zip(chosen.tolist(), rejected.tolist(), strict=False):
        right += a > b
        ties += a == b
    return right / len(chosen), ties


@right("2.3", "the sign of the margin")
def signs(chosen, rejected):
    sign = torch.sign(chosen - rejected)
    return int((sign == 1).sum()) / len(sign), int((sign == 0).sum())


# 2.4 ------------------------------------------------------------------------------------------------------------------
TWO = "two of four"


@wrong("2.4", "number of pairs", case=TWO, says="not their number")
def number(pairs):
    return sum(len(a) > len(b) for a, b in pairs)


@wrong("2.4", "total lengths", case=TWO, says="Count pairs")
def totals(pairs):
    return sum(len(a) for a, _ in pairs) / sum(len(b) for _, b in pairs)


@wrong("2.4", "percent", case=TWO, says="not a percentage")
def percent(pairs):
    return 100 * sum(len(a) > len(b) for a, b in pairs) / len(pairs)


@wrong("2.4", "rejected first", case="the chosen one is always longer", says="(chosen, rejected)")
def turned_pairs(pairs):
    return sum(len(b) > len(a) for a, b in pairs) / len(pairs)


@wrong("2.4", "equal is not longer", case="equal lengths", says="counts half")
def equal_wrong(pairs):
    return sum(len(a) > len(b) for a, b in pairs) / len(pairs)


@wrong("2.4", "equal is longer", case="equal lengths", says="counts half")
def equal_right(pairs):
    return sum(len(a) >= len(b) for a, b in pairs) / len(pairs)


@wrong("2.4", "bytes", case="Korean", says="one character")
def in_bytes(pairs):
    lengths = [(len(a.encode()), len(b.encode())) for a, b in pairs]
    return sum((a > b) + 0.5 * (a == b) for a, b in lengths) / len(pairs)


@wrong("2.4", "without spaces", case="spaces", says="5 against 4")
def no_spaces(pairs):
    lengths = [(len(a.replace(" ", "")), len(b.replace(" ", ""))) for a, b in pairs]
    return sum((a > b) + 0.5 * (a == b) for a, b in lengths) / len(pairs)


@right("2.4", "a sum")
def one_sum(pairs):
    return sum((len(a) > len(b)) + 0.5 * (len(a) == len(b)) for a, b in pairs) / len(pairs)


@right("2.4", "a loop")
def adds(pairs):
    wins = 0.0
    for chosen, rejected in pairs:
        if len(chosen) > len(rejected):
            wins += 1
        elif len(chosen) == len(rejected):
            wins += 0.5
    return wins / len(pairs)


@right("2.4", "torch")
def with_torch(pairs):
    difference = torch.tensor([len(a) - len(b) for a, b in pairs])
    return ((difference.sign() + 1) / 2).mean().item()


# 2.5 ------------------------------------------------------------------------------------------------------------------
ONE = "one answer token"


def summed(logits, labels, *, shift=True, scores=None):
    scores = logits.log_softmax(-1) if scores is None else scores
    if shift:
        scores, labels = scores[:-1], labels[1:]
    keep = labels != -100
    if not keep.any():
        raise ValueError("no answer token")
    return scores[keep, labels[keep]]


@wrong("2.5", "no shift", case=ONE, says="row i predicts token i + 1")
def unshifted(logits, labels):
    scores = logits.log_softmax(-1)
    return sum(scores[i, label] for i, label in enumerate(labels.tolist()) if label != -100)


@wrong("2.5", "the probability", case=ONE, says="return its logarithm")
def probability_of(logits, labels):
    return summed(logits, labels).sum().exp()


@wrong("2.5", "the loss", case=ONE, says="sign is turned")
def as_loss(logits, labels):
    return -summed(logits, labels).sum()


@wrong("2.5", "the mean", case="two answer tokens", says="DPO sums")
def mean(logits, labels):
    return summed(logits, labels).mean()


@wrong("2.5", "cross-entropy, a mean too", case="two answer tokens", says="That is the mean")
def by_cross_entropy(logits, labels):
    return -F.cross_entropy(logits[:-1], labels[1:], ignore_index=-100)


@wrong("2.5", "padding counts as token 0", case="padding after the answer", says="changes nothing")
def clamps(logits, labels):
    scores, targets = logits.log_softmax(-1)[:-1], labels[1:]
    return scores.gather(-1, targets.clamp(min=0)[:, None]).sum()


@wrong("2.5", "raw logits", case="logits that aren't normalised", says="log_softmax")
def raw(logits, labels):
    return summed(logits, labels, scores=logits).sum()


@wrong("2.5", "0 without an answer", case="no answer", says="Raise ValueError")
def zero(logits, labels):
    keep = labels[1:] != -100
    return logits.log_softmax(-1)[:-1][keep, labels[1:][keep]].sum()


@right("2.5", "indexing")
def indexing(logits, labels):
    return summed(logits, labels).sum()


@right("2.5", "cross-entropy, summed")
def cross_entropy_sum(logits, labels):
    if (labels[1:] == -100).all():
        raise ValueError("nothing is labelled")
    return -F.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum")


@right("2.5", "a loop")
def token_by_token(logits, labels):
    scores, total, found = logits.log_softmax(-1), torch.zeros(()), False
    for i in range(1, len(labels)):
        if labels[i] != -100:
            total, found = total + scores[i - 1, labels[i]], True
    if not found:
        raise ValueError("no answer")
    return total


# 2.6 ------------------------------------------------------------------------------------------------------------------
SAME, APART = "the policy is the reference", "chosen up, rejected down"


@wrong("2.6", "no reference", case=SAME, says="moved away from it")
def no_reference(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * (pc - pr)).mean()


@wrong("2.6", "the probability", case=SAME, says="-log of it")
def dpo_probability(pc, pr, rc, rr, beta):
    return torch.sigmoid(beta * ((pc - rc) - (pr - rr))).mean()


@wrong("2.6", "no mean", case=SAME, says="one number")
def dpo_no_mean(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * ((pc - rc) - (pr - rr)))


@wrong("2.6", "rejected minus chosen", case=APART, says="chosen minus rejected")
def dpo_turned(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * ((pr - rr) - (pc - rc))).mean()


@wrong("2.6", "no beta", case=APART, says="beta is left out")
def no_beta(pc, pr, rc, rr, beta):
    return -F.logsigmoid((pc - rc) - (pr - rr)).mean()


@wrong("2.6", "adds the ratios", case=APART, says="not added")
def added(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * ((pc - rc) + (pr - rr))).mean()


@wrong("2.6", "sums", case="two pairs", says="take the mean")
def dpo_sums(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * ((pc - rc) - (pr - rr))).sum()


@wrong("2.6", "beta is always 0.1", case="larger beta", says="the beta that is handed in")
def fixed_beta(pc, pr, rc, rr, beta):
    return -F.logsigmoid(0.1 * ((pc - rc) - (pr - rr))).mean()


@wrong("2.6", "log of sigmoid", case="far on the wrong side", says="logsigmoid")
def dpo_overflows(pc, pr, rc, rr, beta):
    return -torch.log(torch.sigmoid(beta * ((pc - rc) - (pr - rr)))).mean()


@right("2.6", "ratios")
def ratios(pc, pr, rc, rr, beta):
    chosen, rejected = pc - rc, pr - rr
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


@right("2.6", "softplus")
def dpo_softplus(pc, pr, rc, rr, beta):
    return F.softplus(-beta * (pc - pr - rc + rr)).mean()


@right("2.6", "pair by pair")
def pair_by_pair(pc, pr, rc, rr, beta):
    total = 0.0
    for a, b, c, d in zip(pc.tolist(), pr.tolist(), rc.tolist(), rr.tolist(), strict=False):
        h = beta * ((a - c) - (b - d))
        total += max(-h, 0.0) + math.log1p(math.exp(-abs(h)))
    return torch.tensor(total / len(pc))
