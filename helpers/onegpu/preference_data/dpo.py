"""A short DPO run, written out: reference log-probabilities once, then pairs, loss, step.

The policy starts as the reference, so the reference's log-probabilities are the policy's own before the
first step: one pass over the pairs, and no second model in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onegpu.preference_data.logprobs import TokenizedPair, pair_logprobs
from onegpu.preference_data.losses import dpo_loss, pair_accuracy


@dataclass(frozen=True)
class DpoStep:
    """Means over one step's batch, before the step's update."""

    step: int
    loss: float
    margin: float
    accuracy: float
    chosen_reward: float
    rejected_reward: float
    chosen_logprob: float
    rejected_logprob: float

    def __str__(self) -> str:
        return (
            f"step {self.step}: loss {self.loss:.4f}, margin {self.margin:+.3f}, accuracy {self.accuracy:.0%}, "
            f"rewards {self.chosen_reward:+.3f} / {self.rejected_reward:+.3f}"
        )


def _batches(pairs: Sequence, batch_size: int) -> Iterator[Sequence]:
    return (pairs[i : i + batch_size] for i in range(0, len(pairs), batch_size))


@torch.no_grad()
def reference_logprobs(
    model: Any,
    pairs: Sequence[TokenizedPair],
    pad_token_id: int,
    *,
    batch_size: int = 8,
    average: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of chosen and rejected under the model as it is now, each of shape (pairs,)."""
    model.eval()
    parts = [
        pair_logprobs(model, part, pad_token_id, average=average) for part in _batches(pairs, batch_size)
    ]
    chosen, rejected = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(rejected)


def train_dpo(
    model: Any,
    pairs: Sequence[TokenizedPair],
    pad_token_id: int,
    *,
    steps: int,
    batch_size: int = 4,
    learning_rate: float = 1e-4,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    kind: str = "sigmoid",
    seed: int = 0,
    progress: bool = False,
) -> list[DpoStep]:
    """Train the model's trainable parameters on pairs and return what each step saw.

    Parameters
    ----------
    model
        A causal language model, usually with LoRA adapters; it is the reference as it comes in. It runs
        in eval mode (no dropout), so that policy and reference differ by training alone.
    pairs
        From ``tokenize_pairs``.
    pad_token_id
        For batches.
    steps, batch_size, learning_rate, seed
        For AdamW without weight decay; batches are drawn in shuffled epochs.
    beta, label_smoothing, kind
        As in ``dpo_loss``; "ipo" takes means over tokens, "sigmoid" sums.
    progress
        Show a bar.

    Raises
    ------
    ValueError
        No pairs, or no parameter that requires a gradient: the loss would stay at ln 2.

    Examples
    --------
    >>> from onegpu.models import tiny_model, tiny_tokenizer
    >>> from onegpu.preference_data import PreferencePair, tokenize_pairs
    >>> pairs = tokenize_pairs([PreferencePair("2+2?", "4", "five")], tiny_tokenizer())
    >>> history = train_dpo(tiny_model(), pairs.pairs, 3, steps=3, learning_rate=1e-3)
    >>> round(history[0].loss, 4), history[2].margin > 0
    (0.6931, True)
    """
    pairs = list(pairs)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not pairs or not parameters:
        missing = "no pairs" if not pairs else "no parameter that requires a gradient"
        raise ValueError(f"Can't train: found {missing}. Give pairs, and attach adapters to a frozen model.")
    average = kind == "ipo"
    reference = reference_logprobs(model, pairs, pad_token_id, batch_size=batch_size, average=average)
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    history = []
    numbers = range(steps)
    if progress:
        from tqdm.auto import tqdm

        numbers = tqdm(numbers, desc="DPO", unit="step")
    for step in numbers:
        while len(order) < min(batch_size, len(pairs)):
            order += torch.randperm(len(pairs), generator=generator).tolist()
        batch, order = order[:batch_size], order[batch_size:]
        chosen, rejected = pair_logprobs(model, [pairs[i] for i in batch], pad_token_id, average=average)
        done = dpo_loss(
            chosen,
            rejected,
            reference[0][batch],
            reference[1][batch],
            beta=beta,
            label_smoothing=label_smoothing,
            kind=kind,
        )
        loss = done.losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(
            DpoStep(
                step,
                loss.item(),
                done.margins.mean().item(),
                pair_accuracy(done.chosen_rewards, done.rejected_rewards).value,
                done.chosen_rewards.mean().item(),
                done.rejected_rewards.mean().item(),
                chosen.mean().item(),
                rejected.mean().item(),
            )
        )
    return history
