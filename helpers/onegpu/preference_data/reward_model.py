"""A small reward model: one linear layer on what a frozen language model knows about an answer.

The language model reads prompt and answer once; its last hidden states over the answer are the features.
The head turns them into one number and learns from rankings alone. It starts at zero, so every reward is
equal and the first loss is ln 2, whatever the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onegpu.preference_data.losses import Accuracy, pair_accuracy, ranking_loss
from onegpu.preference_data.rankings import Ranking, pairs_of
from onegpu.sft_datasets import IGNORE, collate, tokenize

POOLING = ("mean", "last")


@torch.no_grad()
def answer_features(
    model: Any,
    tokenizer: Any,
    rankings: Sequence[Ranking],
    *,
    pooling: str = "last",
    layers: int | None = None,
    template: str = "model",
    batch_size: int = 16,
    progress: bool = False,
) -> list[Tensor]:
    """Run the frozen model over every answer once.

    Parameters
    ----------
    model, tokenizer
        A causal language model of transformers and its tokenizer.
    rankings
        The answers to read.
    pooling
        "last": the hidden state at the end token, as large reward models do. "mean": the mean over the
        answer and its end token.
    layers
        Run only the first so many layers; None for all.
    template
        As in ``sft_datasets.render``.
    batch_size
        Answers in a forward pass; they are sorted by length first.
    progress
        Show a bar.

    Returns
    -------
    list of Tensor
        For each ranking, float32 of shape (answers, hidden size).

    Examples
    --------
    >>> from onegpu.models import tiny_model, tiny_tokenizer
    >>> features = answer_features(tiny_model(), tiny_tokenizer(), [Ranking("2+2?", ("4", "5"), (1, 2))])
    >>> features[0].shape
    torch.Size([2, 64])
    """
    if pooling not in POOLING:
        raise ValueError(f"pooling={pooling!r}: expected one of {', '.join(POOLING)}.")
    places, tokens = [], []
    for group, ranking in enumerate(rankings):
        for answer in ranking.answers:
            places.append(group)
            row = {"prompt": ranking.prompt, "completion": answer}
            tokens.append(tokenize(row, tokenizer, template=template, row_index=group))
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    if progress:
        from tqdm.auto import tqdm

        batches = tqdm(batches, desc="reading answers", unit="batch")
    rows: dict[int, Tensor] = {}
    body, was_training = model.base_model, model.training
    every_layer = body.config.num_hidden_layers
    if layers is not None and not 1 <= layers <= every_layer:
        raise ValueError(f"layers={layers}: expected 1 to {every_layer}, or None for all.")
    model.eval()
    for batch_of in batches:
        batch = collate([tokens[i] for i in batch_of], tokenizer.pad_token_id or 0)
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        answer = batch.pop("labels") != IGNORE
        try:  # transformers runs config.num_hidden_layers of the layers there are
            body.config.num_hidden_layers = layers or every_layer
            states = body(**batch, use_cache=False).last_hidden_state.float()
        finally:
            body.config.num_hidden_layers = every_layer
        if pooling == "mean":
            pooled = (states * answer[..., None]).sum(1) / answer.sum(1, keepdim=True)
        else:
            positions = torch.arange(answer.shape[1], device=answer.device)
            last = (answer * positions).argmax(1)
            pooled = states[torch.arange(len(states), device=last.device), last]
        rows.update(zip(batch_of, pooled.cpu(), strict=True))
    model.train(was_training)
    features: list[list[Tensor]] = [[] for _ in rankings]
    for i, group in enumerate(places):
        features[group].append(rows[i])
    return [torch.stack(group) for group in features]


class RewardHead(nn.Module):
    """features -> reward: standardise, then one linear layer that starts at zero.

    It has no bias: only differences of rewards are ever compared, so a bias can't be learned.
    """

    def __init__(self, mean: Tensor, std: Tensor):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std.clamp(min=1e-6))
        self.weight = nn.Parameter(torch.zeros_like(mean))

    def forward(self, features: Tensor) -> Tensor:
        """Rewards of shape (...), for features of shape (..., hidden size)."""
        return ((features - self.mean) / self.std) @ self.weight


@dataclass(frozen=True)
class RewardTraining:
    """A trained head and how it got there.

    Attributes
    ----------
    head
        The ``RewardHead`` after the last epoch. (Choosing the epoch by held-out loss and then reporting
        held-out accuracy would make the accuracy too good.)
    train_loss, held_out_loss
        After each epoch, the first value before any training; ``held_out_loss`` is empty without held-out
        rankings.
    train_accuracy, held_out_accuracy
        Of ``head``.
    """

    head: RewardHead
    train_loss: tuple[float, ...]
    held_out_loss: tuple[float, ...]
    train_accuracy: Accuracy
    held_out_accuracy: Accuracy | None

    def __str__(self) -> str:
        lines = [f"train: loss {self.train_loss[0]:.4f} -> {self.train_loss[-1]:.4f}, {self.train_accuracy}"]
        if self.held_out_accuracy is not None:
            lines.append(
                f"held out: loss {self.held_out_loss[0]:.4f} -> {self.held_out_loss[-1]:.4f}, "
                f"{self.held_out_accuracy}; chance 50 %"
            )
        return "\n".join(lines)


def train_reward_head(
    features: Sequence[Tensor],
    rankings: Sequence[Ranking],
    held_out: tuple[Sequence[Tensor], Sequence[Ranking]] | None = None,
    *,
    epochs: int = 30,
    learning_rate: float = 3e-4,
    weight_decay: float = 0.1,
    batch_size: int = 16,
    seed: int = 0,
) -> RewardTraining:
    """Train a head on rankings; one prompt with all its pairs is one batch element.

    Parameters
    ----------
    features
        From ``answer_features``, one tensor for each ranking.
    rankings
        With at least one pair each.
    held_out
        Features and rankings that are never trained on, to report loss and accuracy on.
    epochs, learning_rate, weight_decay, batch_size, seed
        For AdamW; batch_size counts prompts.

    Examples
    --------
    >>> rankings = [Ranking("a", ("good", "bad"), (1, 2)), Ranking("b", ("bad", "good"), (2, 1))]
    >>> features = [torch.tensor([[1.0, 0.3], [0.0, 0.3]]), torch.tensor([[0.0, 0.9], [1.0, 0.9]])]
    >>> done = train_reward_head(features, rankings, epochs=100, learning_rate=0.05)
    >>> round(done.train_loss[0], 4), done.train_accuracy.right
    (0.6931, 2)
    """
    if len(features) != len(rankings) or not rankings:
        raise ValueError(
            f"found {len(features)} features and {len(rankings)} rankings, expected as many of each, at least 1."
        )
    generator = torch.Generator().manual_seed(seed)
    together = torch.cat(list(features))
    head = RewardHead(together.mean(0), together.std(0, correction=0))
    optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=weight_decay)

    def mean_loss(some_features, some_rankings) -> Tensor:
        losses = [ranking_loss(head(f), r.ranks) for f, r in zip(some_features, some_rankings, strict=True)]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def record() -> None:
        train_loss.append(mean_loss(features, rankings).item())
        if held_out is not None:
            held_out_loss.append(mean_loss(*held_out).item())

    train_loss: list[float] = []
    held_out_loss: list[float] = []
    record()
    for _ in range(epochs):
        order = torch.randperm(len(rankings), generator=generator).tolist()
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            loss = mean_loss([features[i] for i in batch], [rankings[i] for i in batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        record()
    return RewardTraining(
        head,
        tuple(train_loss),
        tuple(held_out_loss),
        reward_accuracy(head, features, rankings),
        None if held_out is None else reward_accuracy(head, *held_out),
    )


@torch.no_grad()
def reward_accuracy(head: nn.Module, features: Sequence[Tensor], rankings: Sequence[Ranking]) -> Accuracy:
    """Accuracy over all pairs of all rankings; ties in the rewards are wrong."""
    chosen, rejected = [], []
    for group, ranking in zip(features, rankings, strict=True):
        rewards = head(group)
        for i, j in pairs_of(ranking.ranks):
            chosen.append(rewards[i])
            rejected.append(rewards[j])
    return pair_accuracy(torch.stack(chosen), torch.stack(rejected))
