"""Exercises of lab 08: a loader, an optimizer, shares, steps, a meter, and Ray itself: tasks, actors, a stage, a loop."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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


def tokens_column(
    dataset: Any, make_tokenizer: Callable[[], Callable[[str], Sequence[int]]], actors: int
) -> Any:
    """Return a Ray data set with the column "tokens": how many each "text" has; each actor makes its tokenizer once."""

    class Stage:
        def __init__(self) -> None:
            self.tokenizer = make_tokenizer()

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            batch["tokens"] = np.array([len(self.tokenizer(text)) for text in batch["text"]])
            return batch

    return dataset.map_batches(Stage, concurrency=actors)


def resumable_loop(train: Any, step_once: Callable[[Any, int], Any], steps: int, save_every: int) -> None:
    """Train as a worker of Ray Train, from the newest checkpoint on; rank 0 saves."""
    state, done = None, 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state, done = json.loads((Path(folder) / "state.json").read_text())
    saves = train.get_context().get_world_rank() == 0
    for step in range(done, steps):
        state = step_once(state, step)
        kept = None
        with tempfile.TemporaryDirectory() as folder:
            if saves and ((step + 1) % save_every == 0 or step + 1 == steps):
                (Path(folder) / "state.json").write_text(json.dumps([state, step + 1]))
                kept = train.Checkpoint.from_directory(folder)
            train.report({"step": step + 1}, checkpoint=kept)


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


class RowsHere:
    """A Ray data set in this process: ``map_batches`` in batches of two rows, with a note of its actors."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], actors: int = 0) -> None:
        self.rows, self.actors = list(rows), actors

    def __repr__(self) -> str:
        return f"a data set of {len(self.rows)} rows"

    def map_batches(
        self,
        stage: Any,
        *,
        batch_size: int | None = 2,
        concurrency: Any = None,
        compute: Any = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RowsHere:
        """Run a function, or ``concurrency`` actors of a class, over the batches."""
        count = concurrency if concurrency is not None else getattr(compute, "size", None) or 1
        count = count[0] if isinstance(count, tuple) else count
        is_class = isinstance(stage, type)
        make = functools.partial(stage, *fn_constructor_args, **(fn_constructor_kwargs or {}))
        stages = [make() for _ in range(count)] if is_class else [stage]
        size, rows = batch_size or len(self.rows), []
        for number, start in enumerate(range(0, len(self.rows), size)):
            part = self.rows[start : start + size]
            batch = {name: np.array([row[name] for row in part]) for name in part[0]}
            columns = stages[number % len(stages)](batch)
            for values in zip(*columns.values(), strict=True):
                plain = (value.item() if hasattr(value, "item") else value for value in values)
                rows.append(dict(zip(columns, plain, strict=True)))
        return RowsHere(rows, count if is_class else 0)


class TokenizersHere:
    """Makes tokenizers that split at spaces, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __repr__(self) -> str:
        return "make_tokenizer"

    def __call__(self) -> Callable[[str], list[int]]:
        self.made += 1
        return lambda text: [len(word) for word in text.split()]


def _stage_with_notes(
    function: Callable[..., Any], dataset: RowsHere, make_tokenizer: TokenizersHere, actors: int
) -> Any:
    """Call; return the rows, how many actors ran and how many tokenizers were made."""
    got = function(dataset, make_tokenizer, actors)
    if not isinstance(got, RowsHere):
        return got
    return {"rows": got.rows, "actors": got.actors, "tokenizers": make_tokenizer.made}


class _Killed(BaseException):
    """The worker is gone."""


class _CheckpointHere:
    """The files of a folder, as Ray keeps them when the worker is gone."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    @classmethod
    def from_directory(cls, folder: str | Path) -> _CheckpointHere:
        """Take what is in the folder now."""
        return cls({path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()})

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Lay the files out for as long as the block lasts."""
        with tempfile.TemporaryDirectory() as folder:
            yield self.to_directory(folder)

    def to_directory(self, folder: str | Path | None = None) -> str:
        """Lay the files out in a folder."""
        folder = folder or tempfile.mkdtemp()
        for name, content in self._files.items():
            (Path(folder) / name).write_bytes(content)
        return str(folder)


class TrainHere:
    """What a worker sees of the module ``ray.train``; ``dies_before`` is the step that it doesn't live to see."""

    Checkpoint = _CheckpointHere

    def __init__(
        self, dies_before: int = -1, rank: int = 0, checkpoint: _CheckpointHere | None = None
    ) -> None:
        self.dies_before, self.rank, self.checkpoint = dies_before, rank, checkpoint
        self.ran: list[int] = []
        self.reports: list[int] = []
        self.saved: list[int] = []
        self.state: Any = None

    def __repr__(self) -> str:
        return "ray.train"

    def get_checkpoint(self) -> _CheckpointHere | None:
        """Return the newest checkpoint of an earlier start, or None."""
        return self.checkpoint

    def get_context(self) -> TrainHere:
        """Return who this worker is."""
        return self

    def get_world_rank(self) -> int:
        """Return this worker's number."""
        return self.rank

    def report(self, metrics: Mapping[str, Any], checkpoint: _CheckpointHere | None = None) -> None:
        """Note a report, and its checkpoint."""
        self.reports.append(metrics["step"])
        if checkpoint is not None:
            self.checkpoint = checkpoint
            self.saved.append(metrics["step"])

    def live(self, function: Callable[..., Any], step_once: Callable[[Any, int], Any], *rest: Any) -> Any:
        """Run a worker's loop until its end or its death; return what it returns."""

        def watched(state: Any, step: int) -> Any:
            if step == self.dies_before:
                raise _Killed
            self.ran.append(step)
            self.state = step_once(state, step)
            return self.state

        with contextlib.suppress(_Killed):
            return function(self, watched, *rest)
        return None


def _two_starts(
    function: Callable[..., Any], train: TrainHere, step_once: Callable[[Any, int], Any], *rest: Any
) -> Any:
    """Run two workers until they die, then two new ones from what rank 0 had saved."""
    dies, found = train.dies_before, {}
    first = [TrainHere(dies, rank) for rank in (0, 1)]
    for worker in first:
        if (returned := worker.live(function, step_once, *rest)) is not None:
            return returned
    again = [TrainHere(-1, rank, first[0].checkpoint) for rank in (0, 1)] if dies >= 0 else []
    for worker in again:
        worker.live(function, step_once, *rest)
    for rank in (0, 1):
        lives = [group[rank] for group in (first, again) if group]
        found[f"rank {rank}"] = {
            "steps": [life.ran for life in lives],
            "reports": [life.reports for life in lives],
            "saved": [step for life in lives for step in life.saved],
            "state": lives[-1].state,
        }
    return found


def fold(state: int | None, step: int) -> int:
    """A step whose result depends on every step before it."""
    return 3 * (state or 0) + step + 1


def fold_to(steps: int) -> int:
    """Return the state after so many steps.

    Examples
    --------
    >>> [fold_to(n) for n in (1, 2, 3)]
    [1, 5, 18]
    """
    return functools.reduce(fold, range(steps), 0)


def _starts(*lives: Sequence[int], saved: Sequence[int]) -> dict[str, Any]:
    """What two workers should have done: the steps of each start, and what rank 0 saved."""
    both = {
        "steps": [list(life) for life in lives],
        "reports": [[step + 1 for step in life] for life in lives],
        "state": fold_to(lives[-1][-1] + 1),
    }
    return {"rank 0": both | {"saved": list(saved)}, "rank 1": both | {"saved": []}}


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
    Exercise(
        "8.10",
        "A stage with a memory",
        tokens_column,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "What happens once an actor, and what once a batch? Python has a method for each.",
            "A class: __init__ calls make_tokenizer and keeps it, __call__ takes a batch, puts one list of counts beside the "
            "texts and returns the batch. Hand the class itself to map_batches, with concurrency.",
        ),
        lesson="Is it the data?",
        run=_stage_with_notes,
        cases=(
            Case(
                "seven texts, 3 actors",
                lambda: (
                    RowsHere({"text": text} for text in ("a bb", "c", "d e f", "gg", "h i", "jj k l m", "n")),
                    TokenizersHere(),
                    3,
                ),
                "Three actors with a tokenizer each, and every text's number of tokens beside it.",
                expected={
                    "rows": [
                        {"text": text, "tokens": len(text.split())}
                        for text in ("a bb", "c", "d e f", "gg", "h i", "jj k l m", "n")
                    ],
                    "actors": 3,
                    "tokenizers": 3,
                },
                mistakes=(
                    Mistake(
                        lambda got: isinstance(got, list),
                        "These are rows. Return the data set that map_batches gives: nothing has to be read yet.",
                    ),
                    Mistake(
                        lambda got: got["tokenizers"] > 3,
                        "A tokenizer is made for every batch. Make it in the actor's __init__, which runs once.",
                    ),
                    Mistake(
                        lambda got: got["actors"] == 0,
                        "Tasks, no actors: the one tokenizer was made here and would have to travel to them. Hand over a class "
                        "that makes its own.",
                    ),
                    Mistake(
                        lambda got: got["tokenizers"] == 1 and got["actors"] == 3,
                        "The tokenizer was made here and travels to the actors; a large one shouldn't. Make it in __init__.",
                    ),
                    Mistake(
                        lambda got: got["actors"] == 1,
                        "One actor: concurrency says how many.",
                    ),
                    Mistake(
                        lambda got: "text" not in got["rows"][0],
                        "The texts are gone: return the batch with one column more.",
                    ),
                    Mistake(
                        lambda got: got["rows"][0].get("tokens") == 4,
                        "These are characters: hand each text to the tokenizer, and count what it returns.",
                    ),
                    Mistake(
                        lambda got: got["rows"][0].get("tokens") == 3,
                        "Each text has a number of its own, not the sum of its batch.",
                    ),
                ),
            ),
            Case(
                "an empty text, and another column",
                lambda: (RowsHere([{"n": 4, "text": ""}, {"n": 5, "text": "up up"}]), TokenizersHere(), 1),
                "An empty text has 0 tokens; other columns stay.",
                expected={
                    "rows": [{"n": 4, "text": "", "tokens": 0}, {"n": 5, "text": "up up", "tokens": 2}],
                    "actors": 1,
                    "tokenizers": 1,
                },
            ),
        ),
    ),
    Exercise(
        "8.11",
        "A worker that may be killed",
        resumable_loop,
        level="stretch",
        difficulty=4,
        importance=5,
        minutes=30,
        hints=(
            "What does a new worker have to know to go on as if nothing had happened? Who tells it?",
            "Before the loop: get_checkpoint; if there is one, read state and number of steps from its folder. In the loop: a "
            "step; then, on rank 0 and only when it is time, write both to a file in a new folder and make a checkpoint of it; "
            "then report, always, with the checkpoint or None.",
        ),
        lesson="Where this goes wrong",
        run=_two_starts,
        cases=(
            Case(
                "ten steps, saved every three, killed before step 7",
                lambda: (TrainHere(dies_before=7), functools.partial(fold), 10, 3),
                "Steps 0 to 6, then 6 to 9 from the checkpoint of six steps. Rank 0 saves after 3, 6, 9 and 10.",
                expected=_starts(range(7), range(6, 10), saved=[3, 6, 9, 10]),
                mistakes=(
                    Mistake(
                        lambda got: got["rank 0"]["steps"][1][0] == 0,
                        "The second start begins at step 0: ask get_checkpoint before the loop.",
                    ),
                    Mistake(
                        lambda got: got["rank 1"]["saved"] != [],
                        "Every worker saves the same. Only rank 0 should; the others report without a checkpoint.",
                    ),
                    Mistake(
                        lambda got: len(got["rank 0"]["saved"]) > 8,
                        "It saves too often: after save_every steps, and after the last one.",
                    ),
                    Mistake(
                        lambda got: got["rank 0"]["steps"][1][0] == 5,
                        "A step that was done is done twice: save the number of steps that are done, step + 1.",
                    ),
                    Mistake(
                        lambda got: got["rank 0"]["steps"][1][0] == 7,
                        "A step was left out: what is saved must be the steps that are in the state.",
                    ),
                    Mistake(
                        lambda got: got["rank 1"]["reports"] == [[], []],
                        "Rank 1 never reports. Ray waits for a report of every worker, so all must call it each time.",
                    ),
                    Mistake(
                        lambda got: got["rank 0"]["reports"][0] == [3, 6],
                        "There is no report between two checkpoints: report every step, the checkpoint may be None.",
                    ),
                    Mistake(
                        lambda got: got["rank 0"]["saved"][-1] == 9,
                        "The last steps aren't saved: the end of a run is a time to save, too.",
                    ),
                    Mistake(
                        lambda got: got["rank 0"]["state"] < fold_to(10),
                        "The steps are right and the state isn't: it began anew. Save and read it along.",
                    ),
                ),
            ),
            Case(
                "killed before the first checkpoint",
                lambda: (TrainHere(dies_before=1), functools.partial(fold), 6, 4),
                "There is nothing to go on from: get_checkpoint gives None, and the run begins at 0.",
                expected=_starts(range(1), range(6), saved=[4, 6]),
            ),
            Case(
                "nobody dies",
                lambda: (TrainHere(), functools.partial(fold), 4, 2),
                "The last step is one to save anyway: once is enough.",
                expected=_starts(range(4), saved=[2, 4]),
            ),
        ),
    ),
)
