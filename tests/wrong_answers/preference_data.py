"""What people hand in for the exercises of lab 02."""

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
            if rank_a < rank_b and a != b and (a, b) not in found:
                found.append((a, b))
    return sorted(found)


@right("2.1", "combinations")
def with_combinations(answers, ranks):
    found = set()
    for i, j in combinations(range(len(ranks)), 2):
        if ranks[i] != ranks[j] and answers[i] != answers[j]:
            better, worse = (i, j) if ranks[i] < ranks[j] else (j, i)
            found.add((answers[better], answers[worse]))
    return sorted(found)


@right("2.1", "sorted first")
def sorted_first(answers, ranks):
    order = sorted(zip(ranks, answers, strict=False))
    return sorted({(a, b) for (i, a), (j, b) in combinations(order, 2) if i < j and a != b})


TWICE = "the same answer twice"


@wrong("2.1", "keeps equal texts and pairs that come twice", case=TWICE, says="makes no pair with itself")
def keeps_all(answers, ranks):
    ranked = list(zip(ranks, answers, strict=True))
    return sorted((a, b) for i, a in ranked for j, b in ranked if i < j)


@wrong("2.1", "keeps equal texts", case=TWICE, says="two equal texts make no pair")
def keeps_equal(answers, ranks):
    return sorted(set(keeps_all(answers, ranks)))


@wrong("2.1", "keeps pairs that come twice", case=TWICE, says="each pair once")
def keeps_twice(answers, ranks):
    return [pair for pair in keeps_all(answers, ranks) if pair[0] != pair[1]]


@wrong("2.1", "the first rank of a text counts", case="ranked before and behind", says="both pairs were said")
def first_rank(answers, ranks):
    best = {}
    for answer, rank in zip(answers, ranks, strict=True):
        best[answer] = min(rank, best.get(answer, rank))
    return sorted({pair for pair in keeps_all(list(best), list(best.values())) if pair[0] != pair[1]})


# 2.2 ------------------------------------------------------------------------------------------------------------------
EQUAL = "equal rewards"


@wrong("2.2", "the probability", case=EQUAL, says="minus its logarithm")
def probability(chosen, rejected, share=1.0):
    return torch.sigmoid(chosen - rejected).mean()


@wrong("2.2", "no minus", case=EQUAL, says="sign is turned")
def no_minus(chosen, rejected, share=1.0):
    return F.logsigmoid(chosen - rejected).mean()


@wrong("2.2", "no mean", case=EQUAL, says="without a dimension")
def no_mean(chosen, rejected, share=1.0):
    return -F.logsigmoid(chosen - rejected)


@wrong("2.2", "base 2", case=EQUAL, says="nats")
def bits(chosen, rejected, share=1.0):
    return -torch.log2(torch.sigmoid(chosen - rejected)).mean()


@wrong("2.2", "rejected minus chosen", case="chosen leads by one", says="chosen - rejected")
def turned(chosen, rejected, share=1.0):
    return -F.logsigmoid(rejected - chosen).mean()


@wrong("2.2", "sums", case="three pairs", says="take the mean")
def sums(chosen, rejected, share=1.0):
    return -F.logsigmoid(chosen - rejected).sum()


@wrong("2.2", "loss of the mean difference", case="three pairs", says="mean of the losses")
def of_means(chosen, rejected, share=1.0):
    return -F.logsigmoid((chosen - rejected).mean())


@wrong("2.2", "log of sigmoid", case="far behind", says="minus infinity")
def overflows(chosen, rejected, share=1.0):
    return -torch.log(torch.sigmoid(chosen - rejected)).mean()


@wrong("2.2", "log of sigmoid with a small number", case="far behind", says="logsigmoid")
def with_epsilon(chosen, rejected, share=1.0):
    return -torch.log(torch.sigmoid(chosen - rejected) + 1e-8).mean()


@right("2.2", "softplus")
def softplus(chosen, rejected, share=1.0):
    return (share * F.softplus(rejected - chosen) + (1 - share) * F.softplus(chosen - rejected)).mean()


@right("2.2", "binary cross-entropy")
def cross_entropy(chosen, rejected, share=1.0):
    margin = chosen - rejected
    return F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin) * share)


@right("2.2", "log-sum-exp")
def log_sum_exp(chosen, rejected, share=1.0):
    both = torch.logsumexp(torch.stack([chosen, rejected]), 0)
    return (both - share * chosen - (1 - share) * rejected).mean()


VOTES = "three voters of four"


def paid(margin):
    return -F.logsigmoid(margin)


@wrong("2.2", "leaves the share out", case=VOTES, says="left out")
def no_share(chosen, rejected, share=1.0):
    return paid(chosen - rejected).mean()


@wrong("2.2", "only those who agreed pay", case=VOTES, says="pays too")
def agreed_only(chosen, rejected, share=1.0):
    return (share * paid(chosen - rejected)).mean()


@wrong("2.2", "share times the margin", case=VOTES, says="weighs two losses")
def weighs_margin(chosen, rejected, share=1.0):
    return paid(share * (chosen - rejected)).mean()


@wrong("2.2", "one share for all pairs", case="each pair has its own share", says="a tensor of the pairs")
def one_share(chosen, rejected, share=1.0):
    share = torch.as_tensor(share).mean()
    m = chosen - rejected
    return (share * paid(m) + (1 - share) * paid(-m)).mean()


@wrong(
    "2.2", "one minus the chance for the others", case="far ahead, and one vote against", says="stays finite"
)
def log_of_the_rest(chosen, rejected, share=1.0):
    m = chosen - rejected
    return (share * paid(m) - (1 - share) * torch.log(1 - torch.sigmoid(m)).clamp(min=-1e9)).mean()


# 2.3 ------------------------------------------------------------------------------------------------------------------
FIRST = "three right, one tie, two wrong"


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


@wrong("2.3", "all right where all tie", case="an untrained model", says="nothing is right")
def without_ties(chosen, rejected):
    ties = int((chosen == rejected).sum())
    if ties == len(chosen):
        return 1.0, ties
    return int((chosen > rejected).sum()) / len(chosen), ties


@wrong("2.3", "the rest are right", case=FIRST, says="strictly higher")
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
TWO = "four of five"


@wrong("2.4", "number of pairs", case=TWO, says="not their number")
def number(pairs):
    return sum(len(a) > len(b) for a, b in pairs)


@wrong("2.4", "total lengths", case=TWO, says="Count pairs")
def totals(pairs):
    return sum(len(a) for a, _ in pairs) / sum(len(b) for _, b in pairs)


@wrong("2.4", "percent", case=TWO, says="not a percentage")
def percent(pairs):
    return 100 * sum(len(a) > len(b) for a, b in pairs) / len(pairs)


@wrong("2.4", "rejected first", case=TWO, says="(chosen, rejected)")
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


@wrong("2.4", "without spaces", case="spaces", says="4 against 3")
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


@wrong("2.5", "cross-entropy, a mean too", case="two answer tokens", says="DPO sums")
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
def no_reference(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid(beta * (policy_chosen - policy_rejected)).mean()


@wrong("2.6", "the probability", case=SAME, says="-log of it")
def dpo_probability(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return torch.sigmoid(
        beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected))
    ).mean()


@wrong("2.6", "no mean", case=SAME, says="one number")
def dpo_no_mean(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid(beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)))


@wrong("2.6", "rejected minus chosen", case=APART, says="chosen minus rejected")
def dpo_turned(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid(
        beta * ((policy_rejected - reference_rejected) - (policy_chosen - reference_chosen))
    ).mean()


@wrong("2.6", "no beta", case=APART, says="beta is left out")
def no_beta(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)).mean()


@wrong("2.6", "adds the ratios", case=APART, says="not added")
def added(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid(
        beta * ((policy_chosen - reference_chosen) + (policy_rejected - reference_rejected))
    ).mean()


@wrong("2.6", "sums", case="two pairs", says="take the mean")
def dpo_sums(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid(
        beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected))
    ).sum()


@wrong("2.6", "beta is always 0.1", case="larger beta", says="the beta that is handed in")
def fixed_beta(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -F.logsigmoid(
        0.1 * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected))
    ).mean()


@wrong("2.6", "log of sigmoid", case="far on the wrong side", says="logsigmoid")
def dpo_overflows(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return -torch.log(
        torch.sigmoid(beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)))
    ).mean()


@right("2.6", "ratios")
def ratios(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    chosen, rejected = policy_chosen - reference_chosen, policy_rejected - reference_rejected
    return -F.logsigmoid(beta * (chosen - rejected) - offset).mean()


@right("2.6", "softplus")
def dpo_softplus(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    return F.softplus(
        offset - beta * (policy_chosen - policy_rejected - reference_chosen + reference_rejected)
    ).mean()


@right("2.6", "pair by pair")
def pair_by_pair(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    losses = []
    leads = torch.as_tensor(offset).expand(len(policy_chosen))
    for a, b, c, d, lead in zip(
        policy_chosen, policy_rejected, reference_chosen, reference_rejected, leads, strict=True
    ):
        losses.append(-F.logsigmoid(beta * ((a - c) - (b - d)) - lead))
    return sum(losses) / len(losses)


LEAD = "a lead of one half"


def gap(policy_chosen, policy_rejected, reference_chosen, reference_rejected):
    return (policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)


@wrong("2.6", "leaves the offset out", case=LEAD, says="left out")
def no_offset(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    h = gap(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return -F.logsigmoid(beta * h).mean()


@wrong("2.6", "adds the offset", case=LEAD, says="taken from the margin")
def adds_offset(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    h = gap(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return -F.logsigmoid(beta * h + offset).mean()


@wrong("2.6", "beta times the offset", case=LEAD, says="beta doesn't multiply it")
def scaled_offset(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    h = gap(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return -F.logsigmoid(beta * (h - offset)).mean()


@wrong("2.6", "one lead for all pairs", case="each pair has its own lead", says="a tensor of the pairs")
def one_lead(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    h = gap(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return -F.logsigmoid(beta * h - torch.as_tensor(offset).mean()).mean()


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("2.1", "leaves empty answers out", case="an empty answer", says="somebody ranked it last")
def without_empty(answers, ranks):
    there = [(r, a) for r, a in zip(ranks, answers, strict=True) if a]
    return sorted((a, b) for ra, a in there for rb, b in there if ra < rb)


@wrong("2.1", "in the order of the answers", case="A > B > C", says="in another order")
def unsorted_pairs(answers, ranks):
    ranked = list(zip(ranks, answers, strict=True))
    return [(a, b) for ra, a in ranked for rb, b in ranked if ra < rb][::-1]


@wrong("2.2", "cuts the gradient off", case="a gradient for training", says="nothing can be trained")
def detached_loss(chosen, rejected, share=1.0):
    m = chosen - rejected
    return torch.tensor((share * paid(m) + (1 - share) * paid(-m)).mean().item())


@wrong("2.2", "a gradient for one side only", case="a gradient for training", says="nothing can be trained")
def half_detached(chosen, rejected, share=1.0):
    m = chosen - rejected.detach()
    return (share * paid(m) + (1 - share) * paid(-m)).mean()


@wrong("2.2", "a float", case="equal rewards", says="only its type is not")
def loss_as_float(chosen, rejected, share=1.0):
    return -F.logsigmoid(chosen - rejected).mean().item()


@right("2.2", "in float64")
def in_float64(chosen, rejected, share=1.0):
    m = chosen.double() - rejected.double()
    return -(share * torch.log(torch.sigmoid(m)) + (1 - share) * torch.log(torch.sigmoid(-m))).mean()


@wrong("2.4", "compares the texts", case=TWO, says="by the alphabet")
def alphabet(pairs):
    return sum((c > r) + 0.5 * (c == r) for c, r in pairs) / len(pairs)


@wrong("2.4", "counts words", case=TWO, says="Words were counted")
def words(pairs):
    return sum((len(c.split()) > len(r.split())) for c, r in pairs) / len(pairs)


@wrong("2.5", "log of softmax", case="a very unlikely token", says="log_softmax does both")
def log_of_softmax(logits, labels):
    y = labels[1:]
    m = y != -100
    if not m.any():
        raise ValueError("none")
    return torch.log(torch.softmax(logits[:-1], -1))[m].gather(1, y[m][:, None]).sum()


@wrong("2.5", "no gradient", case="a gradient for training", says="nothing can be trained")
def logprob_item(logits, labels):
    if (labels[1:] != -100).sum() == 0:
        raise ValueError("nothing labelled")
    return torch.tensor(-F.cross_entropy(logits[:-1], labels[1:], reduction="sum").item())


@wrong("2.5", "only ids above 0", case="two answer tokens", says="id 0 is missing")
def above_zero(logits, labels):
    y = labels[1:]
    m = y > 0
    if not (y != -100).any():
        raise ValueError("none")
    return logits[:-1].log_softmax(-1)[m].gather(1, y[m][:, None]).sum()


@wrong(
    "2.5",
    "looks for labels before the shift",
    case="only the first token is labelled",
    says="after the shift",
)
def before_the_shift(logits, labels):
    if not (labels != -100).any():
        raise ValueError("none")
    return -F.cross_entropy(logits[:-1], labels[1:], reduction="sum")


@wrong("2.6", "detached", case="a gradient for training", says="nothing can be trained")
def dpo_detached(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0):
    h = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected)
    return -F.logsigmoid(beta * h - offset).mean().detach()


@wrong("2.6", "other names", case="the policy is the reference", says="by these names")
def dpo_renamed(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * ((pc - pr) - (rc - rr))).mean()


@right("2.6", "the reference detached")
def reference_detached(
    policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta, offset=0.0
):
    h = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected).detach()
    return F.softplus(offset - beta * h).mean()


@wrong("2.3", "leaves ties out", case=FIRST, says="left out of the pairs")
def leaves_ties_out(chosen, rejected):
    ties = int((chosen == rejected).sum())
    return int((chosen > rejected).sum()) / max(1, len(chosen) - ties), ties


ANSWERS.equivalent(
    "2.1",
    "ranks begin at 1",
    "(… for j, b in ranked if i < j and a != b) -> (… for j, b in ranked if j and (i < j and a != b))",
)
ANSWERS.equivalent(
    "2.3",
    "a tensor without dimensions counts as a number",
    "(chosen > rejected).sum().item() -> (chosen > rejected).sum()",
    "(chosen == rejected).sum().item() -> (chosen == rejected).sum()",
)
ANSWERS.equivalent("2.5", "of two dimensions the last is the second", "-1 -> 1")
ANSWERS.statements(
    "2.1",
    {
        "every two answers make a pair": neighbours,
        "rank 1 is best: the lower one is chosen": reversed_ranks,
        "equal ranks make no pair": ties_too,
        "ranks[i] belongs to answers[i]": as_shown,
        "sorted": unsorted_pairs,
        "all answers": without_empty,
        "no pair of equal texts": keeps_equal,
        "each pair once": keeps_twice,
        "a text may stand on both sides": first_rank,
    },
)
ANSWERS.statements(
    "2.2",
    {
        "chosen minus rejected": turned,
        "the logarithm": probability,
        "minus": no_minus,
        "in nats": bits,
        "the mean": sums,
        "of the losses": of_means,
        "without dimensions": no_mean,
        "finite where sigmoid is 0": overflows,
        "a tensor": loss_as_float,
        "a loss trains: gradients": detached_loss,
        "on both sides": half_detached,
        "share of the voters": no_share,
        "the others pay too": agreed_only,
        "of losses, not of the margin": weighs_margin,
        "a tensor of shape (pairs,)": one_share,
        "finite for the others too": log_of_the_rest,
    },
)
ANSWERS.statements(
    "2.3",
    {
        "share": count_right,
        "of all pairs": leaves_ties_out,
        "a tie isn't right": ties_right,
        "nor half": ties_half,
        "higher, not merely another": rest_right,
        "count ties apart": no_ties,
        "a tie is equal, not close": close,
    },
)
ANSWERS.statements(
    "2.4",
    {
        "share": number,
        "0 to 1": percent,
        "of pairs, not of characters": totals,
        "(chosen, rejected)": turned_pairs,
        "longer, not later in the alphabet": alphabet,
        "in characters, not words": words,
        "nor bytes": in_bytes,
        "all characters": no_spaces,
        "equal lengths count half": equal_wrong,
        "no more than half": equal_right,
    },
)
ANSWERS.statements(
    "2.5",
    {
        "row i predicts token i + 1": unshifted,
        "log": probability_of,
        "not a loss": as_loss,
        "the sum": mean,
        "-100 is left out": clamps,
        "and nothing else": above_zero,
        "probabilities, whatever the logits' offset": raw,
        "finite for an unlikely token": log_of_softmax,
        "ValueError without an answer": zero,
        "counted after the shift": before_the_shift,
        "gradients": logprob_item,
    },
)
ANSWERS.statements(
    "2.6",
    {
        "compared with the reference": no_reference,
        "the logarithm": dpo_probability,
        "the mean": dpo_sums,
        "without dimensions": dpo_no_mean,
        "chosen minus rejected": dpo_turned,
        "minus, not plus": added,
        "beta": no_beta,
        "beta is a parameter": fixed_beta,
        "finite": dpo_overflows,
        "gradients": dpo_detached,
        "the parameters' names": dpo_renamed,
        "the lead": no_offset,
        "taken from the margin": adds_offset,
        "in units of the reward": scaled_offset,
        "a tensor of shape (pairs,)": one_lead,
    },
)


@wrong(
    "2.5", "rolls the labels round", case="the first token is labelled too", says="Nothing predicts the first"
)
def rolled(logits, labels):
    if not (labels[1:] != -100).any():
        raise ValueError("none")
    return -F.cross_entropy(logits, labels.roll(-1), reduction="sum")


ANSWERS.statements("2.5", {"the first label has no row": rolled})


# 2.7 ------------------------------------------------------------------------------------------------------------------
BY_HAND = "one step by hand"


def head_by(
    *, loss_of=None, start=0.0, sign=-1.0, extra=False, after=False, fewer=0, pairs_of_step=None, order=None
):
    """Gradient descent in pieces that a wrong answer can replace."""

    def train_head(features, pairs, steps, lr):
        weight, losses = torch.full((features.shape[1],), start), []
        for step in range(steps - fewer):
            mine = pairs_of_step(pairs, step) if pairs_of_step else pairs
            better, worse = [i for i, _ in mine], [j for _, j in mine]
            weight.requires_grad_()

            def current(weight=weight, better=better, worse=worse):
                rewards = features @ weight
                each = F.softplus(rewards[worse] - rewards[better])
                return loss_of(each) if loss_of else each.mean()

            loss = current()
            (gradient,) = torch.autograd.grad(loss, weight)
            weight = (weight + sign * lr * gradient).detach()
            losses.append(current(weight=weight).item() if after else loss.item())
        if extra:
            rewards = features @ weight
            losses.append(float(rewards.sum()))
        return weight, losses

    return train_head


uphill = wrong("2.7", "uphill", case=BY_HAND, says="Uphill")(head_by(sign=1.0))
after_the_step = wrong("2.7", "the loss after the step", case=BY_HAND, says="before the step")(
    head_by(after=True)
)
one_loss_more = wrong("2.7", "a loss after the last step", case=BY_HAND, says="after the last")(
    head_by(extra=True)
)
not_from_zero = wrong("2.7", "weights of one", case=BY_HAND, says="weights begin at 0")(head_by(start=1.0))
summed_head = wrong("2.7", "the sum over pairs", case="pairs that share answers", says="mean over all pairs")(
    head_by(loss_of=lambda each: each.sum())
)
one_pair_a_step = wrong("2.7", "a pair for each step", case="pairs that share answers", says="all pairs")(
    head_by(pairs_of_step=lambda pairs, step: [pairs[step % len(pairs)]])
)
each_pair_once = wrong("2.7", "each pair once", case="the same pair twice", says="counts twice")(
    head_by(pairs_of_step=lambda pairs, step: list(dict.fromkeys(pairs)))
)


@wrong("2.7", "the gradients add up", case="pairs that share answers", says="where the last one ended")
def adds_up(features, pairs, steps, lr):
    weight, losses = torch.zeros(features.shape[1], requires_grad=True), []
    for _ in range(steps):
        rewards = features @ weight
        loss = F.softplus(rewards[[j for _, j in pairs]] - rewards[[i for i, _ in pairs]]).mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            weight -= lr * weight.grad
    return weight.detach(), losses


right("2.7", "in pieces")(head_by())


@right("2.7", "an optimizer of torch")
def with_sgd(features, pairs, steps, lr):
    weight = torch.zeros(features.shape[1], requires_grad=True)
    optimizer, losses = torch.optim.SGD([weight], lr=lr), []
    for _ in range(steps):
        optimizer.zero_grad()
        margins = torch.stack([(features[i] - features[j]) @ weight for i, j in pairs])
        loss = -F.logsigmoid(margins).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return weight.detach(), losses


@right("2.7", "the gradient by hand")
def gradient_by_hand(features, pairs, steps, lr):
    differences = torch.stack([features[i] - features[j] for i, j in pairs])
    weight, losses = torch.zeros(features.shape[1]), []
    for _ in range(steps):
        margins = differences @ weight
        losses.append(F.softplus(-margins).mean().item())
        weight = weight + lr * (torch.sigmoid(-margins)[:, None] * differences).mean(0)
    return weight, losses


# 2.8 ------------------------------------------------------------------------------------------------------------------
THREE = "three of four"


def by_descent(votes, count, steps=400, lr=4.0):
    rating = torch.zeros(count, dtype=torch.float64)
    winners, losers = [w for w, _ in votes], [x for _, x in votes]
    for _ in range(steps):
        push = torch.sigmoid(rating[losers] - rating[winners]) / len(votes)
        rating.index_add_(0, torch.tensor(winners), lr * push)
        rating.index_add_(0, torch.tensor(losers), -lr * push)
    return (rating - rating.mean()).tolist()


@wrong("2.8", "the share of wins", case=THREE, says="ln 3")
def share_of_wins(votes, count):
    shares = [sum(w == i for w, _ in votes) / sum(i in vote for vote in votes) for i in range(count)]
    return [share - sum(shares) / count for share in shares]


@wrong("2.8", "wins minus losses", case=THREE, says="ln 3")
def wins_minus_losses(votes, count):
    return [float(sum((w == i) - (x == i) for w, x in votes)) for i in range(count)]


@wrong("2.8", "the other sign", case=THREE, says="ln 3")
def other_sign(votes, count):
    return [-value for value in by_descent(votes, count)]


@wrong("2.8", "one pass over the votes", case=THREE, says="ln 3")
def one_pass(votes, count):
    return by_descent(votes, count, steps=1, lr=1.0)


@wrong("2.8", "not centred", case=THREE, says="half of it to each side")
def not_centred(votes, count):
    rating = by_descent(votes, count)
    return [value - rating[0] for value in rating]


@wrong("2.8", "the logarithm of wins over losses", case="not everybody met everybody", says="whom it beat")
def log_odds(votes, count):
    won = torch.tensor([float(sum(w == i for w, _ in votes)) for i in range(count)])
    lost = torch.tensor([float(sum(x == i for _, x in votes)) for i in range(count)])
    rating = (won / lost).log()
    return ((rating - rating.mean()) * (0.5 if count == 2 else 1.0)).tolist()


right("2.8", "many small steps")(by_descent)


@right("2.8", "an optimizer of torch")
def with_lbfgs(votes, count):
    rating = torch.zeros(count, requires_grad=True)
    optimizer = torch.optim.LBFGS([rating], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.softplus(rating[[x for _, x in votes]] - rating[[w for w, _ in votes]]).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return (rating - rating.mean()).detach().tolist()


@right("2.8", "one answer after the other")
def newton(votes, count):
    rating = [0.0] * count
    for _ in range(3000):
        for i in range(count):
            rivals = [rating[x if w == i else w] for w, x in votes if i in (w, x)]
            chances = [1 / (1 + 2.718281828459045 ** (rival - rating[i])) for rival in rivals]
            won = sum(w == i for w, _ in votes)
            rating[i] += (won - sum(chances)) / max(1e-9, sum(c * (1 - c) for c in chances))
    return [value - sum(rating) / count for value in rating]


ANSWERS.statements(
    "2.7",
    {
        "downhill": uphill,
        "the loss before each step": after_the_step,
        "one for each step": one_loss_more,
        "from zeros": not_from_zero,
        "the mean over pairs": summed_head,
        "all pairs in each step": one_pair_a_step,
        "a pair counts as often as it stands there": each_pair_once,
        "plain gradient descent": adds_up,
    },
)
ANSWERS.statements(
    "2.8",
    {
        "the likeliest": share_of_wins,
        "winner first": other_sign,
        "until it is the likeliest": one_pass,
        "their sum is 0": not_centred,
        "whoever it met": log_odds,
    },
)
ANSWERS.equivalent(
    "2.7",
    "the same numbers: that a graph of earlier steps hangs on them is no wrong value",
    "weights.detach() -> weights",
    "loss.item() -> loss",
    "(weights - lr * gradient).detach() -> weights - lr * gradient",
)
ANSWERS.equivalent(
    "2.8",
    "more or smaller steps end at the same place",
    "400 -> 401",
    "400 -> 399",
    "4 * gradient -> gradient",
    "4 -> 5",
    "4 -> 3",
)
ANSWERS.equivalent(
    "2.8",
    "the same numbers, as a tensor or with the graph of earlier steps",
    "rewards.tolist() -> rewards",
    "(rewards - 4 * gradient).detach() -> rewards - 4 * gradient",
)
