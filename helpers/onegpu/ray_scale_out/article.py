"""The design of an article on fine-tuning with Ray, in small and as it stands, with what each of its parts really does.

Loader actors and trainer actors, as in the article, on a linear model with two weights. What is kept: a loader
that makes a new iterator at each call, an optimizer that was made by the driver and travelled beside the model, no word
between the trainers, and a driver that waits for each call. Lesson 08 mends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

# torch is imported where it is used: a loader's process starts in a second without it, in four with it.


def two_weights() -> torch.nn.Linear:
    """Return a linear model of two weights, both 0, without bias: y = w1 x1 + w2 x2."""
    import torch

    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return model


def points(n: int = 12, seed: int = 0) -> list[tuple[list[float], float]]:
    """Return n points ([x1, x2], y) of y = 3 x1 - 2 x2: what the two weights should become."""
    x = np.random.default_rng(seed).normal(size=(n, 2)).round(3)
    return [(row, round(3 * row[0] - 2 * row[1], 3)) for row in x.tolist()]


def as_tensors(rows: Sequence[Any]) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Number rows and turn their numbers into tensors."""
    import torch

    return [(i, torch.tensor(x), torch.tensor([y])) for i, (x, y) in enumerate(rows)]


class Loader:
    """The article's loader: ``next(iter(...))`` starts from the beginning at each call."""

    def __init__(self, rows: Sequence[Any], batch_size: int):
        # A list of batches does as well as a DataLoader here, and its process needn't import torch.
        numbered = list(enumerate(rows))
        self.dataloader = [numbered[i : i + batch_size] for i in range(0, len(numbered), batch_size)]

    def get_next_batch(self) -> Any:
        """Return the next batch, or so it says."""
        try:
            return next(iter(self.dataloader))
        except StopIteration:
            return None


class Trainer:
    """The article's trainer: gets a model and an optimizer, which arrive as copies that don't know each other."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer

    def train_step(self, batch: Any) -> float:
        """Compute a loss, its gradients, and step the optimizer: of whatever parameters it has."""
        import torch

        x = torch.tensor([x for _, (x, _) in batch])
        y = torch.tensor([[y] for _, (_, y) in batch])
        loss = (self.model(x) - y).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def weights(self) -> list[float]:
        """Return the model's weights as they are in this process."""
        return self.model.weight.detach()[0].tolist()

    def optimizer_has_this_model(self) -> bool:
        """Say whether the optimizer's parameters are the model's."""
        mine = {id(p) for p in self.model.parameters()}
        return all(id(p) in mine for group in self.optimizer.param_groups for p in group["params"])


@dataclass(frozen=True)
class ArticleRun:
    """What the article's design did.

    Attributes
    ----------
    batches : list of list of list of int
        For each loader the row numbers of each batch that it gave.
    losses : list of list of float
        For each trainer its losses.
    driver_weights : list of float
        Of the model that the driver holds, and would save.
    actor_weights : list of list of float
        Of each trainer's copy.
    optimizer_has_model : bool
        Whether the optimizers step the models beside them.
    ended : bool
        Whether a loader said that its rows are over.
    """

    batches: list[list[list[int]]]
    losses: list[list[float]]
    driver_weights: list[float]
    actor_weights: list[list[float]]
    optimizer_has_model: bool
    ended: bool

    def __str__(self) -> str:
        return "\n".join(
            [
                f"rows of each batch       {self.batches[0]}",
                f"losses                   {[round(x, 3) for x in self.losses[0]]}",
                f"weights in the actor     {[round(x, 3) for x in self.actor_weights[0]]}",
                f"weights in the driver    {[round(x, 3) for x in self.driver_weights]}",
                f"optimizer has this model {self.optimizer_has_model}",
                f"the data came to an end  {self.ended}",
            ]
        )


def run_article(rows: Sequence[Any], batch_size: int = 4, calls: int = 5, actors: int = 1) -> ArticleRun:
    """Run the article's loop on a connected Ray, at most ``calls`` times each actor: left alone, it would not end."""
    import ray
    import torch

    model = two_weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaders = [ray.remote(num_cpus=0.1)(Loader).remote(rows, batch_size) for _ in range(actors)]
    trainers = [ray.remote(num_cpus=0.1)(Trainer).remote(model, optimizer) for _ in range(actors)]
    batches: list[list[list[int]]] = [[] for _ in range(actors)]
    losses: list[list[float]] = [[] for _ in range(actors)]
    ended = False
    for i in range(actors):
        for _ in range(calls):
            batch = ray.get(loaders[i].get_next_batch.remote())
            if batch is None:
                ended = True
                break
            batches[i].append([number for number, _ in batch])
            losses[i].append(ray.get(trainers[i].train_step.remote(batch)))
    return ArticleRun(
        batches,
        losses,
        model.weight.detach()[0].tolist(),
        ray.get([t.weights.remote() for t in trainers]),
        all(ray.get([t.optimizer_has_this_model.remote() for t in trainers])),
        ended,
    )


def run_in_one_process(
    rows: Sequence[Any], batch_size: int, epochs: int = 1, lr: float = 0.1
) -> tuple[list[float], list[float]]:
    """Train without Ray, with the batch that all workers have together; return losses and weights."""
    import torch

    model = two_weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        for _, x, y in torch.utils.data.DataLoader(as_tensors(rows), batch_size=batch_size):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model.weight.detach()[0].tolist()
