"""``check``: look at a learner's function, say one line, hand back a function that works. ``hint``: help before that.

Right: one line, and the learner's function comes back. Not attempted (the function still returns ``...``): one line, and
the reference comes back, so that the rest of the lab runs. Wrong: ``WrongAnswer``, shown without a stack trace; from the
second time on it names the place in the lesson.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onegpu.exercises.comparison import show
from onegpu.exercises.execution import Call, call
from onegpu.exercises.exercise import FROM_REFERENCE, Case, Exercise, find
from onegpu.exercises.judgement import judge

WIDTH = 92
"""Characters in a line of a message: what JupyterLab shows beside its file browser."""

_wrong_in_a_row: Counter[str] = Counter()
_hints_given: Counter[str] = Counter()


class WrongAnswer(AssertionError):
    """An exercise is not right yet. IPython shows its message alone, without a stack trace."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class NotAttempted(WrongAnswer):
    """An exercise still returns ``...``; raised in the grader's mode (``ONEGPU_STRICT=1``) only."""


class Interrupted(KeyboardInterrupt):
    """A check was stopped. IPython shows one line, without a stack trace."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@dataclass(frozen=True)
class Outcome:
    """What ``examine`` found.

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
        With the first case that fails: input, expected, got, hint; from the second wrong answer in a row on also with
        the place in the lesson.
    NotAttempted
        If the function still returns ``...`` and the environment says ``ONEGPU_STRICT=1`` or ``NBGRADER_EXECUTION=autograde``.
    NoSuchExercise
        With the numbers that there are.
    Interrupted
        If the kernel was interrupted meanwhile.
    """
    exercise = find(number)
    try:
        outcome = examine(exercise, function)
    except KeyboardInterrupt:
        raise Interrupted(f"{exercise.number} {exercise.title}: the check was interrupted.") from None
    if outcome.status == "wrong":
        _wrong_in_a_row[exercise.number] += 1
        raise WrongAnswer(outcome.message + _pointer(exercise))
    if outcome.status == "right":
        _wrong_in_a_row[exercise.number] = 0
        print(outcome.message)
        return function
    if _graded():
        raise NotAttempted(outcome.message)
    print(outcome.message)
    return exercise.reference


def hint(number: str) -> None:
    """Print a hint for an exercise: at the first call a nudge, from the second on the plan. Never the code.

    Parameters
    ----------
    number
        The exercise's number, as text.

    Raises
    ------
    NoSuchExercise
        With the numbers that there are.
    """
    exercise = find(number)
    given = min(_hints_given[exercise.number], len(exercise.hints) - 1)
    _hints_given[exercise.number] += 1
    more = (
        f'hint("{exercise.number}") once more gives the plan.'
        if given == 0
        else f"The lesson explains it: {exercise.place}."
    )
    print(textwrap.fill(f"{exercise.number} {exercise.title}: {exercise.hints[given]}", WIDTH))
    print(textwrap.fill(more, WIDTH))


def _pointer(exercise: Exercise) -> str:
    """From the second wrong answer in a row on: where to read, and that there are hints."""
    if _wrong_in_a_row[exercise.number] < 2 or not exercise.lesson:
        return ""
    return "\n" + _lines({"lesson": f'{exercise.place}; or hint("{exercise.number}")'}, 9)


def _graded() -> bool:
    """Whether a grader runs this: ours, or nbgrader, which says so in a variable of its own."""
    return (
        os.environ.get("ONEGPU_STRICT", "") not in ("", "0")
        or os.environ.get("NBGRADER_EXECUTION") == "autograde"
    )


def examine(exercise: Exercise, function: Any, *, call: Callable[..., Call] = call) -> Outcome:
    """Try a function on an exercise's cases, and never raise because of it.

    Parameters
    ----------
    exercise
        Whose cases are tried.
    function
        The learner's.
    call
        How to call it, ``execution.call`` by default. Grading calls it in another process.
    """
    name = f"{exercise.number} {exercise.title}"

    def not_attempted(why: str) -> Outcome:
        return Outcome(exercise.number, "not attempted", f"○ {name}: not attempted. {why}")

    if function is exercise.reference:
        return not_attempted(
            f"This is the reference that an earlier check handed out. Run the cell with your function again, then this one; is "
            f"your function still called {exercise.function_name}?"
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
        right = _right(exercise, case)
        made = call(function, arguments, case.keywords, run=exercise.run, time_limit_s=exercise.time_limit_s)
        if _unfinished(made):
            where = "" if case is exercise.cases[0] else f' (in the case "{case.name}")'
            return not_attempted(f"Put your code where ... stands{where}; the reference stands in.")
        fault = judge(exercise, case, arguments, right, function, made)
        if fault:
            return _wrong(exercise, case, fault.facts, fault.hint)
    count = len(exercise.cases)
    return Outcome(exercise.number, "right", f"✔ {name}: right ({count} case{'s' * (count != 1)})")


def _arguments(case: Case) -> tuple:
    return case.arguments() if callable(case.arguments) else case.arguments


def _right(exercise: Exercise, case: Case) -> Call:
    """The right result, from arguments of the reference's own.

    An exception the reference raises by mistake is a fault of the course and comes through.
    """
    if case.raises is not None:
        return Call()
    if case.expected is not FROM_REFERENCE:
        return Call(case.expected)
    made = call(exercise.reference, _arguments(case), case.keywords, run=exercise.run, time_limit_s=600)
    if made.error is not None:
        raise made.error
    return made


def _unfinished(made: Call) -> bool:
    # By name: an error that came from another process (grading) is a stand-in. Arrow's own has another name.
    return type(made.error).__name__ == "NotImplementedError" or _holds_ellipsis(made.result)


def _holds_ellipsis(value: Any, depth: int = 3) -> bool:
    if value is ...:
        return True
    if depth and type(value) in (list, tuple):
        return any(_holds_ellipsis(item, depth - 1) for item in value[:50])
    if depth and type(value) is dict:
        return any(_holds_ellipsis(item, depth - 1) for item in value.values())
    return False


def _wrong(exercise: Exercise, case: Case | None, facts: dict[str, str], hint: str) -> Outcome:
    head = f"✘ {exercise.number} {exercise.title}: " + (
        f'wrong in the case "{case.name}"' if case else "wrong"
    )
    facts = facts | {"hint": hint}
    text = _lines(facts, max(map(len, facts)) + 1)
    return Outcome(exercise.number, "wrong", f"{head}\n{text}", case.name if case else "", hint)


def _lines(facts: dict[str, str], width: int) -> str:
    """Name and text on lines of at most ``WIDTH``, wrapped between words: JupyterLab would break in the middle of one."""
    lines = []
    for key, value in facts.items():
        first = f"  {key + ':':<{width}} "
        lines += textwrap.wrap(
            value,
            WIDTH,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first]
    return "\n".join(lines)
