"""`check`: look at a learner's function, say one line, hand back a function that works.

Right: one line, and the learner's function comes back. Not attempted (the function still returns `...`): one line, and
the reference comes back, so that the rest of the lab runs. Wrong: `WrongAnswer`, shown without a stack trace.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onegpu.exercises.comparison import difference, show
from onegpu.exercises.execution import Call, call, cannot_bind
from onegpu.exercises.exercise import FROM_REFERENCE, Case, Exercise, find

WIDTH = 92
"""Characters in a line of a message: what JupyterLab shows beside its file browser."""


class WrongAnswer(AssertionError):
    """An exercise is not right yet. IPython shows its message alone, without a stack trace."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class NotAttempted(WrongAnswer):
    """An exercise still returns `...`; raised in the grader's mode (``ONEGPU_STRICT=1``) only."""


@dataclass(frozen=True)
class Outcome:
    """What `examine` found.

    Attributes
    ----------
    number
        The exercise.
    status
        "right", "wrong" or "not attempted".
    message
        What a learner is to read: one line, or several when wrong.
    case
        The name of the first case that failed, or "".
    hint
        The hint that was shown, or "".
    """

    number: str
    status: str
    message: str
    case: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return self.message


def check(number: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Check an exercise: ``fn = check("4.1", fn)``.

    Parameters
    ----------
    number
        The exercise's number, as text.
    function
        The learner's function itself, without parentheses.

    Returns
    -------
    callable
        The learner's function if it is right, else the reference.

    Raises
    ------
    WrongAnswer
        With the first case that fails: input, expected, got, hint.
    NotAttempted
        If the function still returns `...` and the environment says ``ONEGPU_STRICT=1``.
    NoSuchExercise
        With the numbers that there are.
    """
    exercise = find(number)
    outcome = examine(exercise, function)
    if outcome.status == "wrong":
        raise WrongAnswer(outcome.message)
    if outcome.status == "right":
        print(outcome.message)
        return function
    if os.environ.get("ONEGPU_STRICT", "") not in ("", "0"):
        raise NotAttempted(outcome.message)
    print(outcome.message)
    return exercise.reference


def examine(exercise: Exercise, function: Any, *, call: Callable[..., Call] = call) -> Outcome:
    """Try a function on an exercise's cases, and never raise because of it.

    Parameters
    ----------
    exercise
        Whose cases are tried.
    function
        The learner's.
    call
        How to call it, `execution.call` by default. Grading calls it in another process.
    """
    name = f"{exercise.number} {exercise.title}"

    def not_attempted(why: str) -> Outcome:
        return Outcome(exercise.number, "not attempted", f"○ {name}: not attempted. {why}")

    if function is exercise.reference:
        return not_attempted(
            "This is the reference that an earlier check handed out: run the cell with your function again, then this one."
        )
    if function is ...:
        return not_attempted("Replace the ... by your code, then run both cells again.")
    if not callable(function):
        return _wrong(
            exercise,
            None,
            {"got": show(function)},
            f'Hand over the function itself, without calling it: check("{exercise.number}", name_of_the_function).',
        )
    for case in exercise.cases:
        arguments = _arguments(case)
        expected = _expected(exercise, case)
        made = call(function, arguments, case.keywords, run=exercise.run, time_limit_s=exercise.time_limit_s)
        if _unfinished(made):
            where = "" if case is exercise.cases[0] else f' (in the case "{case.name}")'
            return not_attempted(f"Put your code where ... stands{where}; the reference stands in.")
        failed = _judge(exercise, case, arguments, expected, function, made)
        if failed:
            return failed
    count = len(exercise.cases)
    return Outcome(exercise.number, "right", f"✔ {name}: right ({count} case{'s' * (count != 1)})")


def _arguments(case: Case) -> tuple:
    return case.arguments() if callable(case.arguments) else case.arguments


def _expected(exercise: Exercise, case: Case) -> Any:
    """The right result, from arguments of the reference's own.

    An exception the reference raises by mistake is a fault of the course and comes through.
    """
    if case.raises is not None:
        return None
    if case.expected is not FROM_REFERENCE:
        return case.expected
    made = call(exercise.reference, _arguments(case), case.keywords, run=exercise.run, time_limit_s=600)
    if made.error is not None:
        raise made.error
    return made.result


def _unfinished(made: Call) -> bool:
    return isinstance(made.error, NotImplementedError) or _holds_ellipsis(made.result)


def _holds_ellipsis(value: Any, depth: int = 3) -> bool:
    if value is ...:
        return True
    if depth and type(value) in (list, tuple):
        return any(_holds_ellipsis(item, depth - 1) for item in value[:50])
    if depth and type(value) is dict:
        return any(_holds_ellipsis(item, depth - 1) for item in value.values())
    return False


def _judge(
    exercise: Exercise, case: Case, arguments: tuple, expected: Any, function: Any, made: Call
) -> Outcome | None:
    """Return what is wrong with one call, None if it is right."""
    wanted = show(expected) if case.raises is None else _wanted_error(case)
    facts = {"input": _call_text(function, arguments, case), "expected": wanted}
    # Shown with every fault: a learner prints to find out what happens.
    printed = {"printed": show(made.printed, 200)} if made.printed.strip() else {}
    if made.out_of_time:
        facts["got"] = f"nothing within {exercise.time_limit_s:g} s"
        hint = "It was stopped. Does every loop come to an end? Does the work grow with something that is large here?"
        return _wrong(exercise, case, facts | printed, hint)
    if isinstance(made.error, TypeError) and (why := cannot_bind(function, arguments, case.keywords)):
        return _wrong(exercise, case, facts, f"Keep the parameters as the lab gives them: {why}.")
    if made.error is not None:
        return _judge_error(exercise, case, facts | printed, made)
    facts["got"] = show(made.result)
    if case.raises is not None:
        hint = _mistake(case, made.result) or case.hint
        return _wrong(exercise, case, facts | printed, hint)
    compare = case.compare or (lambda got, right: difference(got, right, rtol=case.rtol, atol=case.atol))
    try:
        differs = compare(made.result, expected)
    except Exception as error:  # an exercise's own compare met a result it wasn't made for
        differs = f"expected {show(expected)}, got {show(made.result)} ({type(error).__name__}: {error})"
    if differs:
        if made.result is None and not _mistake(case, None):
            hint = "It returns None: is the `return` missing?"
            if made.printed.strip():
                hint = "It prints and returns None: print() only shows a value, `return` hands it on."
            return _wrong(exercise, case, facts | printed, hint)
        known = _mistake(case, made.result)
        changed = f" It also changed its input ({made.changed})." if made.changed else ""
        return _wrong(
            exercise,
            case,
            facts | {"differs": differs} | printed,
            (known or case.hint) + (changed if not known else ""),
        )
    if made.changed and not exercise.may_change_input:
        return _wrong(
            exercise,
            case,
            facts | {"differs": f"its input, afterwards: {made.changed}"},
            "The result is right, but the function changes its input: the caller still needs it. Work on a copy.",
        )
    return None


def _judge_error(exercise: Exercise, case: Case, facts: dict, made: Call) -> Outcome | None:
    error = made.error
    text = show(str(error), 200)[1:-1] if str(error) else ""
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    facts |= {"got": described} | ({"raised in": made.line} if made.line else {})
    if case.raises is None:
        hint = f"Your function raised {type(error).__name__}. {case.hint}"
        return _wrong(exercise, case, facts, _mistake(case, error) or hint)
    if not isinstance(error, case.raises):
        return _wrong(exercise, case, facts, _mistake(case, error) or case.hint)
    if case.match and case.match.lower() not in str(error).lower():
        facts["differs"] = f"the message doesn't say {case.match!r}"
        return _wrong(exercise, case, facts, _mistake(case, error) or case.hint)
    return None


def _mistake(case: Case, result: Any) -> str:
    for mistake in case.mistakes:
        try:
            if callable(mistake.got):
                hit = bool(mistake.got(result))
            else:
                hit = difference(result, mistake.got, rtol=case.rtol, atol=case.atol) is None
        except Exception:
            hit = False
        if hit:
            return mistake.hint
    return ""


def _wanted_error(case: Case) -> str:
    kind = case.raises.__name__ if case.raises else ""
    return f"{kind} with {case.match!r} in its message" if case.match else kind


def _call_text(function: Any, arguments: tuple, case: Case) -> str:
    parts = [show(a, 100) for a in arguments] + [f"{k}={show(v, 60)}" for k, v in case.keywords.items()]
    return f"{getattr(function, '__name__', type(function).__name__)}({', '.join(parts)})"


def _wrong(exercise: Exercise, case: Case | None, facts: dict[str, str], hint: str) -> Outcome:
    head = f"✘ {exercise.number} {exercise.title}: " + (
        f'wrong in the case "{case.name}"' if case else "wrong"
    )
    width = max(map(len, [*facts, "hint"])) + 1
    lines = []
    for key, value in (facts | {"hint": hint}).items():
        first = f"  {key + ':':<{width}} "
        # Wrapped here, between words: JupyterLab would break in the middle of one.
        lines += textwrap.wrap(
            value,
            WIDTH,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first]
    return Outcome(exercise.number, "wrong", "\n".join([head, *lines]), case.name if case else "", hint)
