"""Exercises of lab 08: a loader that ends, an optimizer that moves its model, shares, steps, and a meter."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.ray_scale_out.bottleneck import StepTimes, loaders_needed
from onegpu.ray_scale_out.layout import shard, steps_per_epoch


def batches_once(batches: Iterable[Any]) -> Callable[[], Any]:
    """Return a function that gives one batch a call, each once, then None."""
    iterator = iter(batches)
    return lambda: next(iterator, None)


def own_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer of the same kind and settings that steps this model's parameters."""
    return type(optimizer)(model.parameters(), **optimizer.defaults)


def mean_loss(losses: Sequence[float], tokens: Sequence[int]) -> float:
    """Return the mean loss over all tokens of all workers."""
    if not sum(tokens):
        raise ValueError("no worker has a supervised token")
    return sum(loss * n for loss, n in zip(losses, tokens, strict=True) if n) / sum(tokens)


def equal_shares(rows: Sequence[Any], workers: int) -> list[list[Any]]:
    """Share rows out: row i to worker i % workers, filled up with None."""
    return shard(rows, workers)


def stream_steps(
    windows: Iterable[int], workers: int, batch_size: int, accumulation: int, epochs: float
) -> int:
    """Return the optimizer steps of a run over a stream, from the packed rows of its windows."""
    return math.ceil(epochs * steps_per_epoch(sum(windows), workers, batch_size, accumulation))


def read_meter(waiting: Sequence[float], computing: Sequence[float]) -> tuple[float, int]:
    """Return (share of the time that waits, CPUs that must prepare batches), without the first step."""
    times = StepTimes(tuple(waiting), tuple(computing)).without_first()
    n = len(times)
    return times.share_waiting, loaders_needed(sum(times.waiting) / n, sum(times.computing) / n)


# How the answers are called -------------------------------------------------------------------------------------------


def _drain(function: Callable[..., Any], batches: list) -> list:
    """Call for the batches, and twice more."""
    next_batch = function(batches)
    if not callable(next_batch):
        return next_batch
    return [next_batch() for _ in range(len(batches) + 2)]


def _step_a_copy(function: Callable[..., Any], kind: str, settings: dict[str, float]) -> Any:
    """Send a model and its optimizer to an actor, as two pickles; step there; return kind, lr and the model's weights."""
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
    there, optimizer = pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(optimizer))
    mine = function(there, optimizer)
    if not isinstance(mine, torch.optim.Optimizer):
        return mine
    (there(torch.tensor([[1.0, 2.0]])) - 1).pow(2).sum().backward()
    mine.step()
    kept = {name: mine.param_groups[0][name] for name in sorted(settings)}
    return type(mine).__name__, kept, [round(w, 6) for w in there.weight.detach()[0].tolist()]


def _stuck(got: Any) -> bool:
    return isinstance(got, tuple) and len(got) == 3 and got[2] == [0.0, 0.0]


def _other_kind(got: Any) -> bool:
    return isinstance(got, tuple) and len(got) == 3 and got[0] != "Adam"


def _other_settings(got: Any) -> bool:
    return isinstance(got, tuple) and len(got) == 3 and got[1] != {"lr": 0.01, "weight_decay": 0.5}


def _repeats(got: Any) -> bool:
    return isinstance(got, list) and len(got) > 1 and got[0] is not None and got[0] == got[1]


EXERCISES = (
    Exercise(
        "8.1",
        "Each batch once, then None",
        batches_once,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "Who has to remember how far the reading is?",
            "Make one iterator when the function is called, outside the inner function. The inner one"
            " takes the next batch each time, with None for the end.",
        ),
        lesson="A design that looks right",
        cases=(
            Case(
                "three batches, five calls",
                ([[0, 1], [2, 3], [4]],),
                "Make one iterator when the loader is made, and keep it: each call takes its next batch.",
                expected=[[0, 1], [2, 3], [4], None, None],
                mistakes=(
                    Mistake(
                        _repeats,
                        "Each call makes a new iterator, so each gets the first batch: the article's first fault. "
                        "Make the iterator outside the inner function.",
                    ),
                    Mistake(
                        [[0, 1], [2, 3], [4], [0, 1], [2, 3]],
                        "It starts again after the last batch, so a loop that waits for None never ends.",
                    ),
                    Mistake(
                        [[2, 3], [4], None, None, None],
                        "The first batch is taken when the loader is made, and lost.",
                    ),
                    Mistake(
                        [[4], [2, 3], [0, 1], None, None],
                        "The batches come from the end: pop() takes the last.",
                    ),
                    Mistake(
                        [[0, 1], [2, 3], None, None, None],
                        "The last batch is missing: it is short, but full of rows.",
                    ),
                    Mistake(
                        lambda got: isinstance(got, list) and len(got) == 3,
                        "This returns the batches. Return a function that gives one of them at each call.",
                    ),
                ),
            ),
            Case(
                "no batches",
                ([],),
                "Without batches the first call returns None already.",
                expected=[None, None],
            ),
        ),
        run=_drain,
    ),
    Exercise(
        "8.2",
        "An optimizer that moves its model",
        own_optimizer,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "Which parameters does the optimizer that arrived hold?",
            "Take the class of the optimizer and make a new one over this model's parameters, with "
            "all of the old one's default settings.",
        ),
        lesson="A design that looks right",
        cases=(
            Case(
                "SGD in an actor",
                ("SGD", {"lr": 0.1}),
                "The model and the optimizer came as two pickles: make an optimizer of the same kind from "
                "model.parameters().",
                expected=("SGD", {"lr": 0.1}, [0.2, 0.4]),
                mistakes=(
                    Mistake(
                        _stuck,
                        "The weights did not move: this optimizer still holds the parameters of the driver's model, not "
                        "those of this one.",
                    ),
                ),
            ),
            Case(
                "Adam with weight decay",
                ("Adam", {"lr": 0.01, "weight_decay": 0.5}),
                "type(optimizer) is its kind, optimizer.defaults holds its settings.",
                mistakes=(
                    Mistake(_other_kind, "It was an Adam and has become another kind: use type(optimizer)."),
                    Mistake(
                        _other_settings,
                        "The settings changed on the way: optimizer.defaults holds all of them, not only lr.",
                    ),
                ),
            ),
        ),
        run=_step_a_copy,
    ),
    Exercise(
        "8.3",
        "The mean loss of all workers",
        mean_loss,
        level="warm-up",
        difficulty=2,
        importance=5,
        minutes=8,
        hints=(
            "What does one token weigh, whichever worker has it?",
            "No token at all is an error. Else weigh each worker's mean with its tokens, leaving out "
            "those with none, and divide by all tokens.",
        ),
        lesson="Ray Train",
        cases=(
            Case(
                "2 workers, 10 and 30 tokens",
                ([1.0, 2.0], [10, 30]),
                "Each worker's loss is a mean over its own tokens: weigh it by their number.",
                expected=1.75,
                mistakes=(
                    Mistake(
                        1.5,
                        "This is the mean of the means: a token of the first worker counts three times one of the second.",
                    ),
                    Mistake(1.25, "The weights are turned round: 30 tokens belong to the loss 2.0."),
                    Mistake(70.0, "This is the sum over all tokens; divide by how many there are."),
                    Mistake(
                        35.0, "Divide by the number of tokens of all workers, not by the number of workers."
                    ),
                    Mistake(
                        2.0, "This is the loss of the worker with the most tokens; the other one counts too."
                    ),
                ),
            ),
            Case(
                "a loss of 0.0",
                ([0.0, 2.0], [30, 10]),
                "A mean loss of 0.0 is a loss, and its 30 tokens count: only workers without tokens are left out.",
                expected=0.5,
                mistakes=(
                    Mistake(
                        2.0,
                        "The worker with loss 0.0 is left out. Ask whether it has tokens, not for its loss.",
                    ),
                ),
            ),
            Case(
                "two workers alike",
                ([2.0, 2.0, 5.0], [4, 4, 1]),
                "Two workers with the same numbers are two: (8 + 8 + 5) / 9.",
                expected=21 / 9,
            ),
            Case(
                "a worker with a filler row",
                ([1.5, math.nan], [20, 0]),
                "A worker without a supervised token has a mean over nothing, nan. It must not count: 0 times nan is nan.",
                expected=1.5,
                mistakes=(
                    Mistake(
                        lambda got: isinstance(got, float) and math.isnan(got),
                        "0 times nan is nan: leave workers without tokens out before you multiply.",
                    ),
                ),
            ),
            Case(
                "nobody has a token",
                ([math.nan, math.nan], [0, 0]),
                "There is no mean over nothing: raise a ValueError.",
                raises=ValueError,
            ),
        ),
    ),
    Exercise(
        "8.4",
        "Equal shares",
        equal_shares,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "How many rows must there be for equal shares?",
            "Fill up with None to a multiple of the workers, then each worker takes every n-th row, "
            "beginning with its own number.",
        ),
        lesson="Ray Train",
        cases=(
            Case(
                "six rows, 2 workers",
                ([0, 1, 2, 3, 4, 5], 2),
                "Row i goes to worker i % workers.",
                expected=[[0, 2, 4], [1, 3, 5]],
                mistakes=(
                    Mistake(
                        [[0, 1, 2], [3, 4, 5]],
                        "These are halves one after the other: a step would then train on rows 0 and 3, not on 0 and 1, "
                        "which one process would take.",
                    ),
                    Mistake(
                        [[0, 1], [2, 3], [4, 5]], "There is one share a step here; give one share a worker."
                    ),
                    Mistake(
                        [[0, 1, 2, 3, 4, 5]] * 2, "Each worker gets all rows: every row is trained twice."
                    ),
                ),
            ),
            Case(
                "seven rows, 3 workers",
                ([0, 1, 2, 3, 4, 5, 6], 3),
                "All shares must be equally long, or the others wait for a step that never comes: fill up with None.",
                expected=[[0, 3, 6], [1, 4, None], [2, 5, None]],
                mistakes=(
                    Mistake(
                        [[0, 3], [1, 4], [2, 5]],
                        "Row 6 is lost: Ray Data makes shares equal in this way. Fill up instead.",
                    ),
                    Mistake(
                        [[0, 3, 6], [1, 4], [2, 5]],
                        "The shares are not equally long: two workers would wait in the third step without end.",
                    ),
                    Mistake(
                        [[0, 3, 6], [1, 4, 0], [2, 5, 1]],
                        "Rows 0 and 1 are trained twice: fill up with None.",
                    ),
                    Mistake(
                        [[0, 3, 6], [1, 4, 6], [2, 5, 6]], "Row 6 is trained three times: fill up with None."
                    ),
                ),
            ),
            Case(
                "more workers than rows",
                (["a"], 3),
                "Two workers get nothing but a None.",
                expected=[["a"], [None], [None]],
            ),
        ),
    ),
    Exercise(
        "8.5",
        "Steps of a stream",
        stream_steps,
        level="core",
        difficulty=3,
        importance=4,
        minutes=12,
        hints=(
            "What is rounded up once an epoch, and what once a run?",
            "Add up the rows of all windows. Rows over rows a step, rounded up, are the steps of one "
            "epoch; times epochs, rounded up again.",
        ),
        lesson="Rows as a stream",
        cases=(
            Case(
                "windows of 25, 35 and 30 packed rows",
                lambda: (iter([25, 35, 30]), 3, 2, 5, 1.0),
                "90 rows, and 3 workers with 2 rows and 5 micro-batches take 30 a step.",
                expected=3,
                mistakes=(
                    Mistake(9, "The workers are missing: each of the 3 takes rows of its own."),
                    Mistake(6, "batch_size is missing: a micro-batch takes 2 rows."),
                    Mistake(15, "The micro-batches are missing: 5 of them share one step."),
                    Mistake(90, "These are rows. A step takes workers x batch x accumulation of them."),
                    Mistake(
                        4,
                        "The rows of each window were rounded up by themselves: a step may take rows of two windows.",
                    ),
                ),
            ),
            Case(
                "rows that don't come out even, four epochs",
                lambda: (iter([8, 6]), 3, 2, 1, 4.0),
                "14 rows, 6 a step: three steps an epoch, the last with filler rows; four epochs.",
                expected=12,
                mistakes=(
                    Mistake(
                        8, "The rows that are left over at the end of an epoch need a step too: round up."
                    ),
                    Mistake(
                        lambda got: got in (9, 10),
                        "The rounding is for one epoch: each epoch ends with filler rows of its own.",
                    ),
                    Mistake(3, "These are the steps of one epoch."),
                ),
            ),
            Case(
                "half an epoch",
                lambda: (iter([30]), 2, 3, 1, 0.5),
                "5 steps an epoch; half of them, rounded up.",
                expected=3,
                mistakes=(Mistake(2, "Half of five steps is rounded up, as transformers does."),),
            ),
        ),
    ),
    Exercise(
        "8.6",
        "Read the meter",
        read_meter,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "Leave the first step out, then sum both lists.",
            "The share is waiting over waiting and computing together. CPUs: waiting over computing, "
            "rounded up, at least 1; take off a hair before rounding up, because sums of floats may "
            "lie a hair above a whole number.",
        ),
        lesson="Is it the data?",
        cases=(
            Case(
                "a slow tokenizer",
                ([9.0, 0.25, 0.5, 0.25], [5.0, 0.25, 0.05, 0.2]),
                "Without the first step: 1 s waiting and 0.5 s computing in all.",
                expected=(2 / 3, 2),
                mistakes=(
                    Mistake(
                        lambda got: abs(got[0] - 10 / 15.5) < 1e-6,
                        "The first step counts here: in it the pipeline fills and libraries load. Leave it out.",
                    ),
                    Mistake(
                        lambda got: abs(got[0] - 2.0) < 1e-6,
                        "The share is waiting over all the time, so it is never above 1.",
                    ),
                    Mistake(lambda got: abs(got[0] - 1 / 3) < 1e-6, "This is the share that computes."),
                    Mistake(
                        lambda got: abs(got[0] - (1 / 2 + 10 / 11 + 5 / 9) / 3) < 1e-6,
                        "The mean of the steps' shares: a long step weighs more, so sum first and divide once.",
                    ),
                    Mistake(
                        (2 / 3, 3),
                        "One CPU takes twice as long for its batches as a step computes: two keep up.",
                    ),
                    Mistake((2 / 3, 1), "One CPU is too slow by a factor of two here."),
                ),
                rtol=1e-6,
            ),
            Case(
                "a hair above a whole number",
                ([9.0, 0.9, 0.9, 0.9], [5.0, 0.3, 0.3, 0.3]),
                "Three CPUs keep up exactly.",
                expected=(0.75, 3),
                mistakes=(
                    Mistake(
                        (0.75, 4),
                        "In floats the sums give 3.0000000000000004, and ceil makes 4 of it: take a hair off before you "
                        "round up.",
                    ),
                ),
                rtol=1e-6,
            ),
            Case(
                "rounded up",
                ([1.0, 0.5, 0.5], [1.0, 0.2, 0.2]),
                "2.5 CPUs would keep up, so 3 do.",
                expected=(0.5 / 0.7, 3),
                mistakes=(
                    Mistake(
                        lambda got: got[1] == 2,
                        "Two CPUs are too few for 2.5: round up.",
                    ),
                ),
                rtol=1e-6,
            ),
            Case(
                "data that is ready",
                ([2.0, 0.0, 0.0], [1.0, 0.2, 0.2]),
                "Nothing waits, and one CPU is still needed to prepare.",
                expected=(0.0, 1),
                mistakes=(
                    Mistake(
                        lambda got: got[1] == 0,
                        "Somebody has to prepare the rows: at least 1.",
                    ),
                ),
            ),
        ),
    ),
)
