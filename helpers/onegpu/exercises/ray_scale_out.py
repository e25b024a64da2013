"""Exercises of lab 08: a loader, an optimizer, shares, steps, a meter, and Ray itself: tasks asked together, an actor."""

from __future__ import annotations

import functools
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


def share_waiting(waiting: Sequence[float], computing: Sequence[float]) -> float:
    """Return the share of the time that waits, without the first step."""
    return StepTimes(tuple(waiting), tuple(computing)).without_first().share_waiting


def loaders_for(waiting: float, computing: float) -> int:
    """Return how many CPUs must prepare batches so that a step of so many seconds never waits."""
    return loaders_needed(waiting, computing)


def ask_all(ray: Any, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Run function(item) as a Ray task for each item, all asked before one is waited for; the results in order."""
    task = ray.remote(function)
    return ray.get([task.remote(item) for item in items])


def running_total(ray: Any, shares: Sequence[Sequence[float]], workers: int) -> tuple[float, list[int]]:
    """Sum up shares in ``workers`` actors, share i in actor i % workers; return the total and each actor's calls."""

    class Counter:
        def __init__(self) -> None:
            self.total, self.calls = 0.0, 0

        def add(self, numbers: Sequence[float]) -> None:
            self.total += sum(numbers)
            self.calls += 1

        def read(self) -> tuple[float, int]:
            return self.total, self.calls

    actors = [ray.remote(Counter).remote() for _ in range(workers)]
    for i, share in enumerate(shares):
        actors[i % workers].add.remote(share)
    found = ray.get([actor.read.remote() for actor in actors])
    return sum(total for total, _ in found), [calls for _, calls in found]


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


class _Reference:
    """What a call gives at once, in place of its result."""


class _Remote:
    """What ``.remote`` is called on."""

    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a remote function or class can't be called directly: use .remote(...)")


class _ActorHandle:
    """An actor as its caller sees it: every method has a ``.remote``."""

    def __init__(self, ray: RayHere, made: Any) -> None:
        self._ray, self._made = ray, made

    def __getattr__(self, name: str) -> _Remote:
        method = getattr(self._made, name)
        return _Remote(lambda *a, **k: self._ray.ask("call", method, a, k))


class RayHere:
    """Ray's ``remote`` and ``get`` in this process, with a note of who asked and who waited, in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._results: dict[int, tuple[_Reference, Any]] = {}

    def __repr__(self) -> str:
        return "ray"

    def remote(self, what: Any = None, /, **options: Any) -> Any:
        """Make a task of a function, or an actor class of a class."""
        if what is None:
            return self.remote
        if isinstance(what, type):
            return _Remote(lambda *a, **k: self._actor(what, a, k))
        return _Remote(lambda *a, **k: self.ask("task", what, a, k))

    def get(self, references: Any) -> Any:
        """Wait for one reference, or for a list of them."""
        self.notes.append("get")
        if isinstance(references, _Reference):
            return self._results[id(references)][1]
        if not isinstance(references, list) or not all(isinstance(r, _Reference) for r in references):
            raise ValueError("ray.get takes what .remote(...) returned, or a list of such")
        return [self._results[id(r)][1] for r in references]

    def ask(self, kind: str, function: Callable[..., Any], arguments: tuple, keywords: dict) -> _Reference:
        """Note the call; its arguments and result are copies, as between processes."""
        self.notes.append(kind)
        arguments, keywords = pickle.loads(pickle.dumps((arguments, keywords)))
        reference = _Reference()
        self._results[id(reference)] = reference, function(*arguments, **keywords)
        return reference

    def _actor(self, kind: type, arguments: tuple, keywords: dict) -> _ActorHandle:
        self.notes.append("actor")
        return _ActorHandle(self, kind(*pickle.loads(pickle.dumps(arguments)), **keywords))


def _with_notes(function: Callable[..., Any], ray: RayHere, *arguments: Any) -> dict[str, Any]:
    """Call with Ray's stand-in; return the result, who was asked, and how often somebody was waited for too early."""
    got = function(ray, *arguments)
    asks = [i for i, note in enumerate(ray.notes) if note in ("task", "call")]
    return {
        "result": got,
        "asked": {kind: ray.notes.count(kind) for kind in ("task", "actor")},
        "waited before all were asked": sum(note == "get" for note in ray.notes[: max(asks, default=0)]),
        "waited": "get" in ray.notes,
    }


def _total_with_notes(
    function: Callable[..., Any], ray: RayHere, shares: list, workers: int
) -> dict[str, Any]:
    noted = _with_notes(function, ray, shares, workers)
    del noted["waited"]
    noted["waited before all were asked"] = min(
        1, max(0, noted["waited before all were asked"] - workers + 1)
    )
    return noted


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
        share_waiting,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "Which step says nothing about the others? And does a long step weigh as much as a short one?",
            "Leave the first step out, sum both lists, and divide the waiting by waiting and computing together.",
        ),
        lesson="Is it the data?",
        cases=(
            Case(
                "a slow tokenizer",
                ([9.0, 0.25, 0.5, 0.25], [5.0, 0.25, 0.05, 0.2]),
                "Without the first step: 1 s waiting and 0.5 s computing in all.",
                expected=2 / 3,
                mistakes=(
                    Mistake(
                        10 / 15.5,
                        "The first step counts here: in it the pipeline fills and libraries load. Leave it out.",
                    ),
                    Mistake(2.0, "The share is waiting over all the time, so it is never above 1."),
                    Mistake(1 / 3, "This is the share that computes."),
                    Mistake(
                        (1 / 2 + 10 / 11 + 5 / 9) / 3,
                        "The mean of the steps' shares: a long step weighs more, so sum first and divide once.",
                    ),
                    Mistake(
                        0.25 / 0.45,
                        "This is the last step alone: all steps but the first count.",
                    ),
                    Mistake(
                        9.75 / 15.05,
                        "The last step is left out, not the first.",
                    ),
                    Mistake(100 * 2 / 3, "A share lies between 0 and 1; this is in percent."),
                ),
                rtol=1e-6,
            ),
            Case(
                "data that is ready",
                ([2.0, 0.0, 0.0], [1.0, 0.2, 0.2]),
                "Nothing waits: 0.0.",
                expected=0.0,
            ),
        ),
    ),
    Exercise(
        "8.7",
        "How many loaders",
        loaders_for,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "While one step computes, how much of a batch does one CPU get done?",
            "Waiting over computing, rounded up, at least 1; take off a hair before rounding up, because a quotient of "
            "floats may lie a hair above a whole number.",
        ),
        lesson="Is it the data?",
        cases=(
            Case(
                "0.5 s a batch, 0.2 s a step",
                (0.5, 0.2),
                "2.5 CPUs would keep up, so 3 do.",
                expected=3,
                mistakes=(
                    Mistake(2, "Two CPUs are too few for 2.5: round up."),
                    Mistake(2.5, "There is no half CPU: an int, rounded up."),
                    Mistake(1, "The quotient is the wrong way round: a batch takes longer than a step here."),
                    Mistake(
                        4,
                        "One too many: the CPUs that prepare are counted, and 3 keep up.",
                    ),
                ),
            ),
            Case(
                "a hair above a whole number",
                (0.9 + 0.9 + 0.9, 0.3 + 0.3 + 0.3),
                "Three CPUs keep up exactly.",
                expected=3,
                mistakes=(
                    Mistake(
                        4,
                        "In floats the quotient is 3.0000000000000004, and ceil makes 4 of it: take a hair off before you "
                        "round up.",
                    ),
                ),
            ),
            Case(
                "exactly two",
                (0.5, 0.25),
                "Two CPUs keep up with twice the time.",
                expected=2,
                mistakes=(Mistake(3, "Two keep up exactly: don't add one where nothing is left over."),),
            ),
            Case(
                "data that is ready",
                (0.0, 0.2),
                "Somebody has to prepare the rows: at least 1.",
                expected=1,
            ),
        ),
    ),
    Exercise(
        "8.8",
        "Ask all, then wait",
        ask_all,
        level="core",
        difficulty=3,
        importance=5,
        minutes=12,
        hints=(
            "What does .remote(...) return, and when? What does ray.get do to the loop that it stands in?",
            "Make a task of the function with ray.remote. Call .remote once for each item and keep what comes back in a "
            "list; then one ray.get for the whole list.",
        ),
        lesson="Start a Ray",
        run=_with_notes,
        cases=(
            Case(
                "squares of three numbers",
                lambda: (RayHere(), functools.partial(pow, exp=2), [3, 1, 2]),
                "One task an item, all asked before anybody waits; the results in the order of the items.",
                expected={
                    "result": [9, 1, 4],
                    "asked": {"task": 3, "actor": 0},
                    "waited before all were asked": 0,
                    "waited": True,
                },
                mistakes=(
                    Mistake(
                        lambda got: got["waited before all were asked"] > 0,
                        "It waits for a task before the next one is asked, so only one ever runs: ray.get belongs behind the "
                        "loop.",
                    ),
                    Mistake(
                        lambda got: not got["waited"] and got["asked"]["task"] > 0,
                        "These are references to results that may not be there yet: ray.get waits for them.",
                    ),
                    Mistake(
                        lambda got: got["asked"]["task"] == 0,
                        "No task was asked: it ran in this process. ray.remote(function) makes a task, .remote(item) asks it.",
                    ),
                    Mistake(
                        lambda got: got["asked"]["task"] == 1,
                        "One task for all items runs on one CPU: ask one an item.",
                    ),
                    Mistake(
                        lambda got: got["asked"]["task"] == 6,
                        "Each item is asked twice.",
                    ),
                    Mistake(
                        lambda got: got["result"] in ([1, 4, 9], [4, 1, 9]),
                        "The results are in another order than their items.",
                    ),
                ),
            ),
            Case(
                "two alike",
                lambda: (RayHere(), functools.partial(str.upper), ["go", "on", "go", "up"]),
                "Two items alike are two tasks and two results.",
                expected={
                    "result": ["GO", "ON", "GO", "UP"],
                    "asked": {"task": 4, "actor": 0},
                    "waited before all were asked": 0,
                    "waited": True,
                },
            ),
        ),
    ),
    Exercise(
        "8.9",
        "Actors that remember",
        running_total,
        level="core",
        difficulty=4,
        importance=5,
        minutes=20,
        hints=(
            "Where does a number live between two calls? And which calls could run at the same time?",
            "A class with a sum and a number of calls, a method that adds a share and one that reads both. Make one actor a "
            "worker from it; ask share i of actor i % workers, without waiting; then ask all for their state and get it.",
        ),
        lesson="Actors that do work",
        run=_total_with_notes,
        cases=(
            Case(
                "five shares, 2 workers",
                lambda: (RayHere(), [[1.0, 2.0], [10.0], [100.0, 200.0, 300.0], [1000.0], [5.0]], 2),
                "Actor 0 gets shares 0, 2 and 4, actor 1 gets 1 and 3: 1,618 in all, [3, 2] calls.",
                expected={
                    "result": (1618.0, [3, 2]),
                    "asked": {"task": 0, "actor": 2},
                    "waited before all were asked": 0,
                },
                mistakes=(
                    Mistake(
                        lambda got: got["waited before all were asked"] > 0,
                        "It waits for a call before the next share is asked, so one actor works while the others rest: an "
                        "actor keeps the order of its calls by itself.",
                    ),
                    Mistake(
                        lambda got: got["asked"]["actor"] == 0,
                        "No actor was made: ray.remote(Class).remote() starts one.",
                    ),
                    Mistake(
                        lambda got: got["asked"]["actor"] == 5,
                        "An actor for each share remembers nothing of the others: make `workers` of them.",
                    ),
                    Mistake(
                        lambda got: got["asked"]["actor"] == 1,
                        "All shares went to one actor: make `workers` of them.",
                    ),
                    Mistake(
                        lambda got: got["result"][1] == [2, 3],
                        "Share i goes to actor i % workers; here they go to another one.",
                    ),
                    Mistake(
                        lambda got: got["result"][0] == 1005.0,
                        "Each actor kept its last share only: add to what it has.",
                    ),
                    Mistake(
                        lambda got: got["result"][1] in ([6, 2], [4, 3]),
                        "These are numbers or readings; a call is one share.",
                    ),
                ),
            ),
            Case(
                "more workers than shares",
                lambda: (RayHere(), [[4.0, 0.5]], 3),
                "Two actors get nothing and have 0 calls, and they are in the list.",
                expected={
                    "result": (4.5, [1, 0, 0]),
                    "asked": {"task": 0, "actor": 3},
                    "waited before all were asked": 0,
                },
            ),
            Case(
                "an empty share",
                lambda: (RayHere(), [[], [7.0], [], [7.0]], 3),
                "A share without numbers is a call, too: [2, 1, 1].",
                expected={
                    "result": (14.0, [2, 1, 1]),
                    "asked": {"task": 0, "actor": 3},
                    "waited before all were asked": 0,
                },
            ),
        ),
    ),
)
