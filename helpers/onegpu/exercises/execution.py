"""One call of a learner's function, with what can go wrong caught: errors, endless loops, printing, changed input.

Nothing here knows what the right answer is.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onegpu.exercises.comparison import _cut, _kind, difference


class _OutOfTime(BaseException):
    """Raised inside the learner's function. No Exception, so that ``except Exception`` in a loop can't swallow it."""


@dataclass(frozen=True)
class Call:
    """What became of a call.

    Attributes
    ----------
    result
        What the function returned.
    error
        What it raised, or None.
    line
        The line of the learner's cell where it was raised, or "".
    out_of_time
        It was stopped at the time limit.
    printed
        What it wrote to stdout.
    changed
        Which argument it changed and how, in words, or "".
    gradients
        Where arguments require a gradient and the result is a tensor: for each such argument ("argument 1") the
        gradient of the result's sum, or None if none flows to it. None as a whole where nobody has looked.
    """

    result: Any = None
    error: Exception | None = None
    line: str = ""
    out_of_time: bool = False
    printed: str = ""
    changed: str = ""
    gradients: Mapping[str, Any] | None = None


def call(
    function: Callable[..., Any],
    arguments: tuple,
    keywords: Mapping[str, Any],
    *,
    run: Callable[..., Any] | None = None,
    time_limit_s: float = 10.0,
) -> Call:
    """Call a function on its own copy of the arguments and say what happened.

    Examples
    --------
    >>> call(lambda x: x.append(1), ([],), {}).changed
    'argument 1: expected 0 items, got 1'
    >>> call(lambda x: 1 / x, (0,), {}).error
    ZeroDivisionError('division by zero')
    """
    given, named = own_copy(arguments), own_copy(dict(keywords))
    states = [_state(value) for value in given]
    printed = io.StringIO()
    result, error, out_of_time = None, None, False
    try:
        with contextlib.redirect_stdout(printed), _torch_as_it_was():
            result = _within(
                time_limit_s,
                lambda: run(function, *given, **named) if run else function(*given, **named),
            )
    except _OutOfTime:
        out_of_time = True
    except Exception as raised:
        error = raised
    except SystemExit as raised:
        error = RuntimeError(f"it called exit({raised.code if raised.code is not None else ''})")
    # An exact comparison: a changed last digit is a change.
    changes = [
        f"{name}: {how}"
        for name, now, before in [
            *((f"argument {i}", g, a) for i, (g, a) in enumerate(zip(given, arguments, strict=True), 1)),
            *((f"{key}=", named[key], keywords[key]) for key in keywords),
            *((f"argument {i}", _state(g), s) for i, (g, s) in enumerate(zip(given, states, strict=True), 1)),
        ]
        if now is not before and (how := difference(now, before, rtol=0.0, atol=0.0))
    ]
    return Call(
        result,
        error,
        line_of(error, function) if error is not None else "",
        out_of_time,
        printed.getvalue(),
        changes[0] if changes else "",
        {} if error or out_of_time else _gradients(result, given),
    )


def own_copy(value: Any) -> Any:
    """Copy what a function could change in place; what can't be copied (a model, an iterator) is shared."""
    if _kind(value) == "tensor":
        return value.detach().clone().requires_grad_(value.requires_grad)
    if _kind(value) in ("array", "frame"):
        return value.copy()
    if type(value) in (list, tuple, set):
        return type(value)(own_copy(item) for item in value)
    if type(value) is dict:
        return {key: own_copy(item) for key, item in value.items()}
    if isinstance(value, bytearray) or _kind(value) in ("dataclass", "dict", "list", "set"):
        try:
            return copy.deepcopy(value)
        except Exception:  # a read-only view, which nobody can change
            return value
    return value


def _state(value: Any) -> Any:
    """What can be changed in an object that is handed on as it is: a model, an optimizer, a data set. Else None."""
    torch, datasets = sys.modules.get("torch"), sys.modules.get("datasets")
    if torch is not None and isinstance(value, torch.nn.Module):
        parts = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return {
            name: (own_copy(t.detach()), t.requires_grad, None if t.grad is None else own_copy(t.grad))
            for name, t in parts.items()
        } | {"training": value.training}
    if torch is not None and isinstance(value, torch.optim.Optimizer):
        return copy.deepcopy(value.state_dict())
    if datasets is not None and isinstance(value, datasets.Dataset):
        return {"format": value.format["type"], "columns": value.column_names, "rows": len(value)}
    return None


@contextlib.contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Undo what an answer may switch for the whole process: gradients off, another default dtype."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    gradient, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradient)
        torch.set_default_dtype(dtype)


def _gradients(result: Any, arguments: tuple) -> dict[str, Any]:
    leaves = {
        f"argument {i}": value
        for i, value in enumerate(arguments, 1)
        if _kind(value) == "tensor" and value.requires_grad and value.is_leaf
    }
    if not leaves or _kind(result) != "tensor":
        return {}
    if not result.requires_grad:
        return dict.fromkeys(leaves)
    import torch

    try:
        found = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True, retain_graph=True)
    except RuntimeError:  # the answer has run its own backward pass and freed the graph
        return dict.fromkeys(leaves)
    return dict(zip(leaves, found, strict=True))


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names of the parameters, in order; None where they can't be told or anything is taken (``*args``)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def cannot_bind(function: Callable[..., Any], arguments: tuple, keywords: Mapping[str, Any]) -> str:
    """Say why a function can't take these arguments, or ""."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        return (
            f"its parameters are {_cut(str(signature), 120)}, and the check calls it with "
            f"{len(arguments) + len(keywords)}: {error}"
        )
    return ""


def line_of(error: BaseException, function: Callable[..., Any]) -> str:
    """Name the line of the learner's cell where an error was raised, or "" if it wasn't raised there."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    trace, found = error.__traceback__, None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code.co_filename == code.co_filename:
            found = trace
        trace = trace.tb_next
    if found is None:
        return ""
    source = _cut(linecache.getline(found.tb_frame.f_code.co_filename, found.tb_lineno).strip(), 160)
    return f"line {found.tb_lineno}" + (f": {source}" if source else "")


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Run ``work``, raise ``_OutOfTime`` in it after ``seconds``.

    The main thread of a Unix process (a notebook's kernel) uses a timer signal, which also ends a sleep. Elsewhere (on
    Windows, in a worker thread) the work runs in a thread of its own that is interrupted between two bytecodes.
    """
    if os.environ.get("ONEGPU_NO_TIME_LIMIT"):  # for a debugger
        return work()
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and hasattr(signal, "setitimer"):
        with _alarm(seconds):
            return work()
    return _in_thread(seconds, work)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    started = time.monotonic()

    def stop(signum: int, frame: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    # Again every half second: a bare `except:` inside a loop swallows one.
    outer_s, outer_every_s = signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer_s:  # somebody else's timer (pytest-timeout) goes on
            left = max(0.01, outer_s - (time.monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, left, outer_every_s)


def _in_thread(seconds: float, work: Callable[[], Any]) -> Any:
    import ctypes

    outcome: dict[str, Any] = {}

    def target() -> None:
        try:
            outcome["result"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        for _ in range(20):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_OutOfTime)
            )
            thread.join(0.1)
            if not thread.is_alive():
                break
        raise _OutOfTime  # a thread that hangs in C code is left behind; it ends with the process
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
