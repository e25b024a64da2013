"""The process that runs a student's notebook: ``python -m onegpu.grading.student``, started by the examiner.

It runs the cells in order, in an IPython shell of its own. ``check`` doesn't judge here: it offers the function to the
examiner, which sends each case's inputs and gets back what the function made of them. Nothing that a notebook patches,
prints or displays takes part in a mark, and no reference is within reach.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import onegpu.exercises
from onegpu.exercises import checking
from onegpu.exercises.checking import WrongAnswer
from onegpu.exercises.execution import call
from onegpu.exercises.exercise import TOPICS, NoSuchExercise
from onegpu.grading.channel import Closed, StudentSide
from onegpu.grading.confinement import confine, hidden_files, limit
from onegpu.grading.notebook import definitions
from onegpu.grading.tracing import CELL, Tracer
from onegpu.grading.values import bounded, write_error, write_signature, write_value

_NO_SHELL = ("pip", "conda", "mamba", "uv", "system", "sx", "sc", "load", "run", "edit", "notebook")
_NO_SCRIPT = ("bash", "sh", "script", "perl", "ruby", "system", "sx", "!", "javascript", "html")


class Session:
    """One notebook's shell, and its talk with the examiner."""

    def __init__(self, channel: StudentSide, numbers: tuple[str, ...]) -> None:
        self._channel = channel
        self._numbers = numbers
        self._offered: list[Any] = []
        self._stand_ins: list[Any] = []
        self._held: dict[str, Any] = {}
        self._calling = False
        self._shell = _shell()

    def run(self, cells: list[str], only_definitions: set[int]) -> None:
        """Run the cells; of those that ended the process before, only what they define."""
        for number, source in enumerate(cells):
            self._channel.send({"cell": number})
            if number in only_definitions:
                self._define(definitions(source))
                continue
            result = self._shell.run_cell(source, store_history=True)
            self._hold()
            error = result.error_in_exec or result.error_before_exec
            if error is not None:
                self._channel.send({"failed": bounded(f"{type(error).__name__}: {error}", 300)})
            if result.error_in_exec is not None:
                self._define(definitions(source, _failed_line(error.__traceback__)))
                self._hold()

    def _hold(self) -> None:
        """Remember the functions that there are: a name that is used again later for a number costs nothing."""
        self._held |= {
            name: value
            for name, value in list(self._shell.user_ns.items())
            if not name.startswith("_") and (callable(value) or value is ...)
        }

    def _define(self, nodes: list[ast.stmt]) -> None:
        """Run definitions and imports, each for itself."""
        for node in nodes:
            source = ast.unparse(node)
            name = f"{CELL}definition-{len(linecache.cache)}>"
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            try:
                exec(compile(source, name, "exec"), self._shell.user_ns)
            except BaseException:
                continue

    def check(self, number: Any, function: Any) -> Any:
        """Offer a function to the examiner, and do what the lab's ``check`` does with the verdict."""
        if not isinstance(number, str) or number not in self._numbers:
            raise NoSuchExercise(f"There is no exercise {number!r} in this lab.")
        if self._calling:
            raise RuntimeError("check was called by a function that is being checked")
        self._offered.append(function)
        message = {"check": number, "offered": len(self._offered) - 1} | self._described(function)
        verdict = self._serve(message)
        if verdict["status"] == "right":
            return function
        if verdict["status"] == "not attempted":
            return self._stand_in(number, verdict["name"])
        raise WrongAnswer(verdict["message"])

    def end(self) -> None:
        """Say which functions there are now, and answer the examiner until it has done."""
        self._hold()
        named = {name: self._described(value) for name, value in self._held.items()}
        self._serve({"end": named})

    def _serve(self, message: dict[str, Any]) -> dict[str, Any]:
        self._channel.send(message)
        while True:
            request = self._channel.receive()
            if request["do"] == "call":
                self._channel.send({"done": self._call(request)})
            elif request["do"] == "verdict":
                return request

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        target = request["target"]
        function = self._offered[target] if isinstance(target, int) else self._held.get(target)
        tracer = Tracer()
        self._calling = True
        try:
            with tracer:
                made = call(
                    function,
                    request["arguments"],
                    request["keywords"],
                    run=request["run"],
                    time_limit_s=request["time_limit_s"],
                )
        finally:
            self._calling = False
        try:
            result, gradients, error = write_value(made.result), write_value(made.gradients), made.error
        except Exception as raised:
            result, gradients, error = None, None, raised
        return {
            "result": result,
            "gradients": gradients,
            "error": write_error(error) if error is not None else None,
            "line": bounded(made.line, 300),
            "out_of_time": made.out_of_time,
            "printed": bounded(made.printed, 2000),
            "changed": bounded(made.changed, 500),
            "called": sorted(tracer.called)[:50],
            "compiled": sorted(tracer.compiled)[:500],
            "removed": tracer.removed,
        }

    def _stand_in(self, number: str, name: str) -> Callable[..., Any]:
        """Return what ``check`` hands out for an exercise that isn't attempted: the reference, which stays outside."""

        def reference(*arguments: Any, **keywords: Any) -> Any:
            self._channel.send(
                {
                    "reference": number,
                    "arguments": write_value(arguments),
                    "keywords": write_value(keywords),
                }
            )
            while True:
                answer = self._channel.receive()
                if answer["do"] == "value":
                    break
            if answer["error"] is not None:
                raise answer["error"]
            return answer["value"]

        reference.__name__ = reference.__qualname__ = name
        self._stand_ins.append(reference)
        return reference

    def _described(self, function: Any) -> dict[str, Any]:
        return {
            "name": bounded(getattr(function, "__name__", type(function).__name__), 100),
            "parameters": write_signature(function),
            "value": None if callable(function) else write_value(function),
            "is_reference": any(function is one for one in self._stand_ins),
        }


def _failed_line(trace: TracebackType | None) -> int:
    """The line of a cell's own statement that raised."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(CELL):
            return trace.tb_lineno
        trace = trace.tb_next
    return 0


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=settings)
    shell.ask_exit = lambda: None
    # A shell's commands are no part of an answer, and an installation would wait for a network that isn't there.
    shell.system = shell.system_raw = shell.system_piped = lambda command: None
    shell.getoutput = lambda command, split=True, depth=0: [] if split else ""
    for name in _NO_SHELL:
        shell.register_magic_function(lambda line="": None, "line", name)
    for name in _NO_SCRIPT:
        shell.register_magic_function(lambda line="", cell="": None, "cell", name)
    builtins.input = lambda prompt="": ""
    return shell


def _take_over() -> StudentSide:
    """Keep stdin and stdout for the examiner; what a notebook reads and prints goes nowhere."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    return StudentSide(incoming, outgoing)


def main() -> None:
    """Run the notebook that the examiner sends."""
    # The examiner's worker ignores Ctrl-C, and so would this process and the cells that it stops.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel = _take_over()
    start = channel.receive()
    scratch = Path(start["scratch"])
    os.chdir(scratch)
    sys.path.insert(0, "")
    # Before anything else is imported: a process with threads can't have a network of its own.
    files, network = confine(scratch, hidden_files(), tcp=start["tcp"])
    memory = limit(start["memory_bytes"], start["processor_s"])
    channel.send({"confined": [files, network, memory]})
    session = Session(channel, start["numbers"])
    for module in (onegpu.exercises, checking):
        module.check = session.check  # type: ignore[attr-defined]
        module.hint = lambda number: None  # type: ignore[attr-defined]
    for name in TOPICS.values():
        sys.modules[f"onegpu.exercises.{name}"] = None  # type: ignore[assignment]
    try:
        session.run(start["cells"], start["only_definitions"])
        session.end()
    except Closed:
        pass
    # Threads and Ray's helpers don't keep a finished process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
