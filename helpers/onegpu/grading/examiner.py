"""Examine one notebook from outside: start the student's process, send it inputs, judge what comes back.

Every ``check`` that the notebook reaches is examined at once, with the notebook as it is at that moment; after the last
cell, what isn't right yet is looked for by name. The first right answer counts: a name that is used again later, a check
cell that is gone, or a process that dies costs nothing that was right.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
import secrets
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from onegpu.exercises import Exercise, Outcome, examine, exercises_of
from onegpu.exercises.execution import Call
from onegpu.exercises.execution import call as call_here
from onegpu.exercises.exercise import TOPICS
from onegpu.grading.cases import other_cases
from onegpu.grading.channel import MOST_BYTES
from onegpu.grading.confinement import Confinement, environment
from onegpu.grading.notebook import Lab
from onegpu.grading.tracing import known_fingerprints
from onegpu.grading.values import bounded, read_signature, read_value, with_gradient

BORROWED = "borrowed"
"""The status of a function that lets the package answer: neither right nor wrong, and not paid."""

_MOST_DEATHS = 8
_ANSWER_S = 20.0  # beyond a call's own limit, for what can't be interrupted


@dataclass(frozen=True)
class Limits:
    """What a notebook may take.

    Attributes
    ----------
    cell_s
        Seconds for one cell; it is interrupted then, and the next one is run. All cells together get ten times that.
    memory_bytes
        For the student's process.
    """

    cell_s: float = 120.0
    memory_bytes: int = 8 * 2**30


@dataclass(frozen=True)
class Examined:
    """What came of a notebook.

    Attributes
    ----------
    outcomes
        For each exercise that has a function, what ``examine`` found; the status may also be "borrowed" or "failed".
    failed
        For each cell that raised, the error.
    notes
        What happened on the way, in sentences: cells that were stopped, a process that died.
    confinement
        What held for the student's process; None if it never ran.
    """

    outcomes: dict[str, Outcome]
    failed: dict[int, str]
    notes: tuple[str, ...]
    confinement: Confinement | None


def examine_lab(lab: Lab, topic: int, limits: Limits = Limits()) -> Examined:
    """Run a notebook in a process of its own and examine the functions of a lab in it.

    Parameters
    ----------
    lab
        The notebook.
    topic
        The lab whose exercises are examined.
    limits
        Time and memory.
    """
    return _Examination(lab, topic, limits).run()


class _Died(BaseException):
    """The student's process ended, or had to be ended; says why. No Exception: it must get through ``examine``."""


class _Examination:
    def __init__(self, lab: Lab, topic: int, limits: Limits) -> None:
        self._lab, self._topic, self._limits = lab, topic, limits
        self._exercises = {e.number: e for e in exercises_of(topic)}
        self._outcomes: dict[str, Outcome] = {}
        self._notes: dict[str, None] = {}
        self._failed: dict[int, str] = {}
        self._only_definitions: set[int] = set()
        self._fatal: set[tuple[str, int | str]] = set()
        self._target: int | str = ""
        self._cell = 0
        self._asked: Exercise | None = None
        self._case = ""
        self._confinement: Confinement | None = None
        self._seed = secrets.randbits(64)

    def run(self) -> Examined:
        deadline = time.monotonic() + 10 * self._limits.cell_s
        for _ in range(_MOST_DEATHS):
            try:
                with _process(self._start(), self._limits) as process:
                    self._serve(process, deadline)
                break
            except _Died as died:
                self._after_death(str(died))
                if time.monotonic() > deadline:
                    self._note(f"stopped after {10 * self._limits.cell_s:.0f} s for all cells together")
                    break
        else:
            self._note(f"its process died {_MOST_DEATHS} times: the rest wasn't run")
        return Examined(dict(self._outcomes), dict(self._failed), tuple(self._notes), self._confinement)

    def _start(self) -> dict[str, Any]:
        return {
            "cells": list(self._lab.cells),
            "only_definitions": set(self._only_definitions),
            "numbers": tuple(self._exercises),
            "tcp": TOPICS[self._topic] == "ray_scale_out",
            "memory_bytes": self._limits.memory_bytes,
            "processor_s": int(40 * self._limits.cell_s) + 60,
        }

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _after_death(self, why: str) -> None:
        """Keep what was right, and leave out next time what ended the process."""
        if self._asked is not None:
            number = self._asked.number
            text = f'{why} in the case "{self._case}"' if self._case else why
            message = f"✘ {number} {self._asked.title}: its process {text}"
            self._keep(Outcome(number, "wrong", message, self._case, f"Its process {why}."))
            self._fatal.add((number, self._target))
            self._asked = None
        elif self._cell in self._only_definitions or self._cell < 0:
            # Even its definitions, or the start, end the process.
            self._lab = replace(
                self._lab, cells=tuple("" if i == self._cell else c for i, c in enumerate(self._lab.cells))
            )
            self._note(
                f"cell {self._cell + 1} {why}" if self._cell >= 0 else f"the process {why} at its start"
            )
        else:
            self._only_definitions.add(self._cell)
            self._note(f"code cell {self._cell + 1} {why}: of it, only what it defines was kept")

    def _serve(self, process: _Process, deadline: float) -> None:
        self._cell = -1
        stop_at = min(deadline, time.monotonic() + 60 + self._limits.cell_s)
        interrupted = False
        while True:
            try:
                message = process.receive(stop_at - time.monotonic())
            except TimeoutError:
                if interrupted or time.monotonic() >= deadline:
                    raise _Died(
                        f"ran longer than {self._limits.cell_s:g} s and couldn't be interrupted"
                    ) from None
                self._note(
                    f"code cell {self._cell + 1} ran longer than {self._limits.cell_s:g} s and was stopped"
                )
                interrupted = process.interrupt()
                stop_at = time.monotonic() + _ANSWER_S
                continue
            if "confined" in message:
                files, network, memory = message["confined"]
                self._confinement = Confinement(str(files), str(network), bool(memory))
            elif "cell" in message:
                self._cell = int(message["cell"])
                stop_at = min(deadline, time.monotonic() + self._limits.cell_s)
                interrupted = False
            elif "failed" in message:
                self._failed[self._cell] = bounded(message["failed"], 300)
            elif "check" in message:
                began = time.monotonic()
                self._answer_check(process, message)
                stop_at += time.monotonic() - began
            elif "reference" in message:
                self._answer_reference(process, message)
            elif "end" in message:
                self._look_for_the_rest(process, message["end"])
                return

    def _answer_check(self, process: _Process, message: dict[str, Any]) -> None:
        exercise = self._exercises.get(str(message["check"]))
        if exercise is None:
            process.send({"do": "verdict", "status": "wrong", "message": "no such exercise"})
            return
        outcome = self._outcomes.get(exercise.number)
        offered = int(message["offered"])
        if outcome is None or (outcome.status != "right" and (exercise.number, offered) not in self._fatal):
            outcome = self._examine(process, exercise, offered, message)
            self._keep(outcome)
        process.send(
            {
                "do": "verdict",
                "status": "right" if outcome.status == BORROWED else outcome.status,
                "message": outcome.message,
                "name": exercise.function_name,
            }
        )

    def _keep(self, outcome: Outcome) -> None:
        """Keep an outcome; a right one stays, and an attempt counts more than none."""
        order = ("not attempted", "wrong", BORROWED, "right")
        before = self._outcomes.get(outcome.number)
        if before is None or order.index(outcome.status) >= order.index(before.status):
            self._outcomes[outcome.number] = outcome

    def _look_for_the_rest(self, process: _Process, named: dict[str, Any]) -> None:
        """Examine by name what no check has found right."""
        for exercise in self._exercises.values():
            for name in self._names(exercise):
                known = self._outcomes.get(exercise.number)
                if known is not None and known.status in ("right", BORROWED):
                    break
                if (
                    isinstance(described := named.get(name), dict)
                    and (exercise.number, name) not in self._fatal
                ):
                    self._keep(self._examine(process, exercise, name, described))

    def _names(self, exercise: Exercise) -> list[str]:
        """Names that an exercise's function may have, the likeliest first."""
        name = exercise.function_name
        wanted = tuple(inspect.signature(exercise.reference).parameters)
        taken = {e.function_name for e in self._exercises.values()}
        like = [n for n, p in self._lab.parameters.items() if wanted and p == wanted and n not in taken]
        return list(dict.fromkeys([name, *reversed(self._lab.checked.get(exercise.number, ())), *like]))

    def _examine(
        self, process: _Process, exercise: Exercise, target: int | str, described: dict[str, Any]
    ) -> Outcome:
        function = exercise.reference if described.get("is_reference") else _local(described)
        traces = _Traces(self._topic)
        tried = replace(
            exercise,
            cases=(*exercise.cases, *other_cases(exercise, Random(f"{self._seed}{exercise.number}"))),
        )
        names = iter([case.name for case in tried.cases])
        used = False

        def call(
            _: Any, arguments: tuple, keywords: dict[str, Any], *, run: Any = None, time_limit_s: float = 10.0
        ) -> Call:
            nonlocal used
            self._case = next(names, self._case)
            done = self._call(process, target, arguments, keywords, run, time_limit_s)
            traces.add(done, arguments)
            used = used or bool(done.get("own_reference"))
            return _made(done)

        self._asked, self._target, self._case = exercise, target, ""
        tried = replace(
            exercise,
            cases=(*exercise.cases, *other_cases(exercise, Random(f"{self._seed}{exercise.number}"))),
        )
        try:
            outcome = examine(tried, function, call=call)
        finally:
            if sys.exc_info()[0] is None:
                self._asked = None
        # The number of cases in the message is the lab's.
        why = "the reference that `check` handed out" if used else traces.borrowed()
        if why and outcome.status == "right":
            return Outcome(
                exercise.number,
                BORROWED,
                f"⚑ {exercise.number} {exercise.title}: its results come from {why}.",
                "",
                f"Its results come from {why}.",
            )
        return outcome

    def _call(
        self,
        process: _Process,
        target: int | str,
        arguments: tuple,
        keywords: Any,
        run: Any,
        time_limit_s: float,
    ) -> dict[str, Any]:
        assert self._asked is not None
        process.send(
            {
                "do": "call",
                "target": target,
                "arguments": arguments,
                "keywords": dict(keywords),
                "run": run,
                "time_limit_s": time_limit_s,
            }
        )
        stop_at = time.monotonic() + time_limit_s + _ANSWER_S
        own = False
        while True:
            try:
                message = process.receive(stop_at - time.monotonic())
            except TimeoutError:
                raise _Died(f"gave nothing within {time_limit_s:g} s and couldn't be interrupted") from None
            if "done" in message and isinstance(message["done"], dict):
                return message["done"] | {"own_reference": own}
            if "reference" in message:
                own = own or message["reference"] == self._asked.number
                self._answer_reference(process, message)

    def _answer_reference(self, process: _Process, message: dict[str, Any]) -> None:
        """Call the reference for a notebook that goes on with what ``check`` handed out."""
        answer: dict[str, Any] = {"do": "value", "value": None, "error": None}
        exercise = self._exercises.get(str(message["reference"]))
        try:
            if exercise is None:
                raise ValueError("no such exercise")
            made = call_here(
                exercise.reference,
                tuple(read_value(message["arguments"])),
                dict(read_value(message["keywords"])),
                time_limit_s=60,
            )
            answer |= {"value": made.result, "error": made.error}
            process.send(answer)
        except Exception as error:  # arguments that don't travel, results that don't pickle
            process.send(
                answer | {"value": None, "error": RuntimeError(f"the reference can't take this: {error}")}
            )


class _Traces:
    """What the calls of one function ran."""

    def __init__(self, topic: int) -> None:
        self._topic = topic
        self._called: set[str] = set()
        self._compiled: set[str] = set()
        self._removed = False

    def add(self, done: dict[str, Any], arguments: tuple) -> None:
        own = {type(a).__name__ for a in arguments}
        for name in done.get("called") or ():
            # Methods of what the case itself handed over are there to be called.
            if not own & set(str(name).split(".")):
                self._called.add(bounded(name, 200))
        self._compiled |= {str(c) for c in done.get("compiled") or ()}
        self._removed = self._removed or bool(done.get("removed"))

    def borrowed(self) -> str:
        """Where the results come from if not from the student, or ""."""
        if self._called:
            return f"onegpu.{min(self._called, key=len)}"
        if self._compiled & _known(self._topic):
            return "a copy of the course's own code, compiled from a text"
        return "a place that can't be seen: it switched the tracing off" if self._removed else ""


@cache
def _known(topic: int) -> set[str]:
    return known_fingerprints(topic)


def _local(described: dict[str, Any]) -> Any:
    """Something that looks like the student's function to ``examine``, which never calls it."""
    if described.get("value") is not None:
        try:
            return read_value(described["value"])
        except ValueError:
            return None

    def function(*_: Any, **__: Any) -> Any:
        raise RuntimeError("it runs in the student's process")

    function.__name__ = function.__qualname__ = str(described.get("name") or "function")[:100]
    signature = read_signature(described.get("parameters"))
    if signature is not None:
        function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _made(done: dict[str, Any]) -> Call:
    """A call's outcome, from what the student's process says of it."""
    try:
        result = read_value(done.get("result"))
        error = read_value(done["error"]) if done.get("error") is not None else None
        gradients = read_value(done.get("gradients"))
        if not isinstance(gradients, dict | None):
            raise ValueError("not gradients")
        if error is not None and not isinstance(error, Exception):
            raise ValueError("not an error")
    except (ValueError, KeyError) as broken:
        result, gradients, error = None, None, ValueError(f"the result can't be read: {broken}")
    return Call(
        result=result,
        error=error,
        line=bounded(done.get("line") or "", 300),
        out_of_time=bool(done.get("out_of_time")),
        printed=bounded(done.get("printed") or "", 2000),
        changed=bounded(done.get("changed") or "", 500),
        gradients=gradients,
    )


class _Process:
    """The student's process, from the examiner's side."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._buffer = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        content = _pickled(message)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(struct.pack(">Q", len(content)) + content)
            self._process.stdin.flush()
        except OSError:
            raise _Died(self._how()) from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for a message; ``TimeoutError`` if none comes, ``_Died`` if none will, or if it is none."""
        stop_at = time.monotonic() + timeout_s
        size = struct.unpack(">Q", self._exactly(8, stop_at))[0]
        if size > MOST_BYTES:
            raise _Died("wrote more than it may")
        content = self._exactly(8 + size, stop_at)[8:]
        del self._buffer[: 8 + size]
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise _Died("wrote what is no message")
        return message

    def _exactly(self, size: int, stop_at: float) -> bytes:
        """The first bytes that haven't been used yet; they stay, so that a wait that is cut short loses nothing."""
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        while len(self._buffer) < size:
            if not _ready(number, stop_at - time.monotonic()):
                raise TimeoutError
            piece = os.read(number, 1 << 20)
            if not piece:
                raise _Died(self._how())
            self._buffer += piece
        return bytes(self._buffer[:size])

    def interrupt(self) -> bool:
        """Interrupt the cell that runs."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGINT)
        return True

    def _how(self) -> str:
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code == -signal.SIGKILL:
            return "was killed by the system (out of memory?)"
        if code < 0:
            return f"died of {signal.Signals(-code).name}"
        return f"ended with status {code}"


def _ready(number: int, timeout_s: float) -> bool:
    if sys.platform == "win32":  # select can't wait for pipes there: reading blocks until the process ends
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(max(0, int(timeout_s * 1000))))


def _pickled(message: dict[str, Any]) -> bytes:
    """Pickle a message; what the exercises' modules define goes by value, since the student's process hasn't got them."""
    import io

    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is not None and type(value) is torch.nn.Parameter and value.grad is not None:
                return with_gradient, (value.data, value.requires_grad, value.grad)
            return super().reducer_override(value)

    content = io.BytesIO()
    modules = [sys.modules[n] for n in (f"onegpu.exercises.{t}" for t in TOPICS.values()) if n in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        Pickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
        return content.getvalue()
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


@contextlib.contextmanager
def _process(start: dict[str, Any], limits: Limits) -> Iterator[_Process]:
    """Start a student's process; afterwards it and all that it started are gone, and its folder too."""
    # A short path: Ray's sockets lie in it, and their names are limited to 107 characters.
    with tempfile.TemporaryDirectory(prefix="og-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder).resolve()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "onegpu.grading.student"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env=environment(scratch),
            start_new_session=True,
        )
        try:
            talk = _Process(process)
            talk.send(start | {"scratch": str(scratch)})
            yield talk
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    import psutil

    family = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    for child in family:
        with contextlib.suppress(psutil.Error):
            child.kill()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    process.wait()


def not_found(lab: Lab, exercise: Exercise, failed: dict[int, str]) -> str:
    """Why an exercise of a notebook has no outcome, in words."""
    name = exercise.function_name
    for number, source in enumerate(lab.cells):
        if name in source and number in failed:
            return f"{name} is not defined: code cell {number + 1} failed ({failed[number]})"
    return f"there is no function {name} in it"
