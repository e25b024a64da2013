"""The Bradley-Terry and DPO losses, and what to read off them.

Both are -log sigmoid(difference), written as softplus(-difference): the sigmoid of -100 is 0 in fp32, and
its logarithm minus infinity, while softplus gives 100.

Sources: InstructGPT (arXiv 2203.02155), DPO (arXiv 2305.18290), IPO (arXiv 2310.12036).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from onegpu.preference_data.rankings import pairs_of


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """-log P(chosen beats rejected) of each pair, P = sigmoid(chosen - rejected - margin).

    Parameters
    ----------
    chosen, rejected
        Rewards, any one shape, floating point.
    margin
        By how much the chosen answer should be better.

    Returns
    -------
    Tensor
        Of that shape; take the mean over pairs.

    Examples
    --------
    >>> from torch import tensor
    >>> loss = bradley_terry_loss(tensor([0.0, 1.0]), tensor([0.0, 0.0]))
    >>> [round(value, 6) for value in loss.tolist()]
    [0.693147, 0.313262]
    """
    return softplus(-(chosen - rejected - margin))


def ranking_loss(rewards: Tensor, ranks: Sequence[int]) -> Tensor:
    """Mean Bradley-Terry loss over all pairs of one prompt's answers, one batch element of InstructGPT.

    Parameters
    ----------
    rewards
        Shape (K,), one for each answer: K forward passes serve K(K-1)/2 pairs.
    ranks
        1 is best; ties make no pair.

    Raises
    ------
    ValueError
        When all answers tie, so that there is nothing to learn.

    Examples
    --------
    >>> from torch import tensor
    >>> round(ranking_loss(tensor([2.0, 1.0, -0.5]), [1, 2, 3]).item(), 6)
    0.197855
    """
    pairs = pairs_of(ranks)
    if not pairs:
        raise ValueError(
            f"ranks {list(ranks)}: all answers tie, expected at least one pair. Leave the prompt out."
        )
    better, worse = (list(side) for side in zip(*pairs, strict=True))
    return bradley_terry_loss(rewards[better], rewards[worse]).mean()


@dataclass(frozen=True)
class Accuracy:
    """How often the chosen answer got the higher reward. Ties are wrong, and counted."""

    right: int
    ties: int
    pairs: int

    @property
    def value(self) -> float:
        """Right pairs as a share of all, 0 to 1."""
        return self.right / self.pairs if self.pairs else 0.0

    def __str__(self) -> str:
        return f"{self.right} of {self.pairs} pairs right ({self.value:.1%}), {self.ties} ties"


def pair_accuracy(chosen: Tensor, rejected: Tensor) -> Accuracy:
    """Count the pairs whose chosen reward is strictly higher.

    Examples
    --------
    >>> from torch import tensor
    >>> print(pair_accuracy(tensor([1.0, 0.0, 2.0]), tensor([1.0, 1.0, 1.0])))
    1 of 3 pairs right (33.3%), 1 ties
    """
    return Accuracy(int((chosen > rejected).sum()), int((chosen == rejected).sum()), chosen.numel())


@dataclass(frozen=True)
class DpoLoss:
    """The DPO loss of each pair, and the rewards that it implies.

    Attributes
    ----------
    losses
        Shape (pairs,).
    chosen_rewards, rejected_rewards
        beta times the log-ratio of policy to reference, shape (pairs,), without gradient. The chosen
        one may fall while training goes well; the margin between them is what should grow.
    """

    losses: Tensor
    chosen_rewards: Tensor
    rejected_rewards: Tensor

    @property
    def margins(self) -> Tensor:
        """chosen_rewards - rejected_rewards."""
        return self.chosen_rewards - self.rejected_rewards


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    kind: str = "sigmoid",
) -> DpoLoss:
    """Compute the DPO loss from sequence log-probabilities.

    Parameters
    ----------
    policy_chosen, policy_rejected, reference_chosen, reference_rejected
        Log-probabilities of whole completions, shape (pairs,): sums over their tokens for "sigmoid",
        means for "ipo" (see ``sequence_logprobs``).
    beta
        How strongly the policy is held to the reference; over 0.
    label_smoothing
        Chance that a label is the wrong way round, 0 to 0.5 ("sigmoid" only).
    kind
        "sigmoid" (DPO) or "ipo".

    Examples
    --------
    >>> from torch import tensor
    >>> one = [tensor([value]) for value in (-10.0, -20.0, -15.0, -15.0)]
    >>> round(dpo_loss(*one).losses.item(), 6), round(dpo_loss(*one, kind="ipo", beta=0.1).losses.item(), 4)
    (0.313262, 25.0)
    """
    if beta <= 0 or not 0 <= label_smoothing <= 0.5:
        raise ValueError(
            f"beta={beta}, label_smoothing={label_smoothing}: expected beta over 0 and smoothing 0 to 0.5."
        )
    chosen_ratio = policy_chosen - reference_chosen
    rejected_ratio = policy_rejected - reference_rejected
    h = chosen_ratio - rejected_ratio
    if kind == "sigmoid":
        losses = (1 - label_smoothing) * softplus(-beta * h) + label_smoothing * softplus(beta * h)
    elif kind == "ipo":
        losses = (h - 1 / (2 * beta)) ** 2
    else:
        raise ValueError(f"kind={kind!r}: expected 'sigmoid' or 'ipo'.")
    return DpoLoss(losses, (beta * chosen_ratio).detach(), (beta * rejected_ratio).detach())


def diagnose(
    loss: float, chosen_logprob: float, rejected_logprob: float, margin: float, step: int
) -> tuple[str, ...]:
    """Say what figures of a DPO run point at, if anything.

    Parameters
    ----------
    loss, chosen_logprob, rejected_logprob, margin
        Means over a batch, as logged.
    step
        Optimizer steps done when they were logged.

    Returns
    -------
    tuple of str
        Empty when nothing is wrong. A chosen reward that falls, alone, isn't.

    Examples
    --------
    >>> diagnose(loss=0.6931, chosen_logprob=0.0, rejected_logprob=0.0, margin=0.0, step=50)[0][:39]
    'Log-probabilities of exactly 0: all com'
    >>> diagnose(loss=0.6931, chosen_logprob=-41.2, rejected_logprob=-38.9, margin=0.0, step=0)
    ()
    """
    import math

    found = []
    if not math.isfinite(loss):
        found.append(
            "The loss is not a finite number: use logsigmoid or softplus, never log(sigmoid(x)), and look for "
            "completions of no tokens whose mean is 0/0."
        )
    if chosen_logprob == 0.0 or rejected_logprob == 0.0:
        found.append(
            "Log-probabilities of exactly 0: all completion tokens are masked. Look at the mask, and whether "
            "the prompt fills max_length."
        )
    elif step > 0 and margin == 0.0 and abs(loss - math.log(2)) < 1e-4:
        found.append(
            "The loss is still ln 2 and the margin exactly 0 after the first step: the policy doesn't change "
            "(nothing requires a gradient, learning rate 0), chosen equals rejected, or the reference is the "
            "policy itself."
        )
    return tuple(found)
