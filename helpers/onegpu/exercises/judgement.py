"""What is wrong with one call of a learner's function, and the hint for it.

The order decides how good a message is. First what is a fault in every exercise: other parameters, too slow, an
exception that is returned, printing, the right value as the wrong type, no gradient. Then the known mistakes of the
case, then its general hint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from onegpu.exercises.comparison import (
    _cut,
    difference,
    only_arrangement_differs,
    only_type_differs,
    show,
)
from onegpu.exercises.execution import Call, cannot_bind, parameters_of
from onegpu.exercises.exercise import Case, Exercise


@dataclass(frozen=True)
class Fault:
    """What a learner reads about a case that failed.

    Attributes
    ----------
    facts
        "input", "expected", "got" and so on, in the order of the message.
    hint
        What was misunderstood, or how to go on.
    """

    facts: dict[str, str]
    hint: str


def judge(
    exercise: Exercise, case: Case, arguments: tuple, right: Call, function: Callable[..., Any], made: Call
) -> Fault | None:
    """Return what is wrong with a call, None if it is right.

    Parameters
    ----------
    arguments
        What the function was called with, as it was before.
    right
        What became of the reference's call, or an expected result; unused where an exception is right.
    made
        What became of the learner's call.
    """
    expected = right.result
    facts = {
        "input": _call_text(function, arguments, case),
        "expected": show(expected) if case.raises is None else _wanted_error(case),
    }
    # Shown with every fault: a learner prints to find out what happens.
    printed = {"printed": show(made.printed, 200)} if made.printed.strip() else {}
    if made.out_of_time:
        facts["got"] = f"nothing within {exercise.time_limit_s:g} s"
        hint = "It was stopped. Does every loop come to an end? Does the work grow with something that is large here?"
        return Fault(facts | printed, hint)
    if isinstance(made.error, TypeError) and (why := cannot_bind(function, arguments, case.keywords)):
        return Fault(facts, f"Keep the parameters as the lab gives them: {_cut(why, 300)}.")
    if why := _other_names(exercise, function):
        return Fault(
            why, "Keep the parameters as the lab gives them: later cells call the function by these names."
        )
    if made.error is not None:
        return _judge_error(case, facts | printed, made)
    facts["got"] = show(made.result)
    if _is_exception(made.result):
        return Fault(
            facts | printed,
            f"It returns the exception; raise it: `raise {_name(made.result)}(...)`. "
            "A caller that doesn't look at the result must not go on.",
        )
    if case.raises is not None:
        return Fault(facts | printed, known_mistake(case, made.result) or _not_raised(case, made))
    try:
        differs = compare(case, made.result, expected)
    except Exception as error:  # an exercise's own compare met a result it wasn't made for
        differs = f"expected {show(expected)}, got {show(made.result)} ({type(error).__name__}: {error})"
    if differs:
        hint = _hint(exercise, case, made, expected, _cut(differs, 300))
        return Fault(facts | {"differs": _cut(differs, 300)} | printed, hint)
    if made.changed and not exercise.may_change_input:
        return Fault(
            facts | {"differs": f"its input, afterwards: {_cut(made.changed, 300)}"},
            "The result is right, but the function changes its input: the caller still needs it. Work on a copy.",
        )
    return _judge_gradients(facts, right, made)


def compare(case: Case, got: Any, expected: Any) -> str | None:
    """Return None if a result is right in a case, else what differs."""
    if case.compare is not None:
        return case.compare(got, expected)
    return difference(got, expected, rtol=case.rtol, atol=case.atol)


def known_mistake(case: Case, result: Any) -> str:
    """Return the hint of the first known mistake that gives this result (or raises this exception), or ""."""
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


def _hint(exercise: Exercise, case: Case, made: Call, expected: Any, differs: str) -> str:
    got, tolerance = made.result, {"rtol": case.rtol, "atol": case.atol}
    if got is None and made.printed.strip():
        return "It prints and returns None: print() only shows a value, `return` hands it on."
    if isinstance(got, Iterator):  # it can be read only once
        got = list(itertools.islice(got, 10_000))
    known = known_mistake(case, got)
    none_is_an_answer = any(other.expected is None for other in exercise.cases)
    if got is None and not known and not none_is_an_answer:
        return "It returns None: is a `return` missing, perhaps on one of the ways through the function?"
    if case.compare is None:
        try:
            if only_type_differs(got, expected, **tolerance):
                return f"The value is right, only its type is not: see `differs`. {known}".rstrip()
            arranged = "" if known else only_arrangement_differs(got, expected, **tolerance)
        except Exception:  # values that can't be taken apart
            arranged = ""
        if arranged == "shape":
            return f"The values are right, but nested or shaped in another way: see `differs`. {case.hint}"
        if arranged == "order":
            return "These are the right values, in another order: see in which one they are asked for."
    return known or case.hint + (
        f" It also changed its input ({_cut(made.changed, 200)})." if made.changed else ""
    )


def _judge_error(case: Case, facts: dict[str, str], made: Call) -> Fault | None:
    error = made.error
    text = show(str(error), 200)[1:-1] if str(error) else ""
    name = _cut(type(error).__name__, 60)
    facts |= {"got": f"{name}: {text}" if text else name} | ({"raised in": made.line} if made.line else {})
    known = known_mistake(case, error)
    if case.raises is None:
        return Fault(facts, known or f"Your function raised {name}. {case.hint}")
    if not isinstance(error, case.raises):
        asked = f"It raises {name}, and {case.raises.__name__} was asked for"
        if isinstance(error, AssertionError):
            asked += " (a failed `assert` raises AssertionError, and none at all under python -O)"
        return Fault(facts, known or f"{asked}. {case.hint}")
    if case.match and case.match.lower() not in str(error).lower():
        facts["differs"] = f"the message doesn't say {case.match!r}"
        return Fault(facts, known or f"{name} is right; its message must have {case.match!r} in it.")
    return None


def _judge_gradients(facts: dict[str, str], right: Call, made: Call) -> Fault | None:
    if not right.gradients or made.gradients is None:
        return None
    cut_off = [
        name for name, g in right.gradients.items() if g is not None and made.gradients.get(name) is None
    ]
    if cut_off:
        hint = (
            "The value is right, but nothing can be trained with it: .item(), .detach(), .data, torch.tensor(...), NumPy "
            "and no_grad() all cut the gradient off. Compute with the tensors themselves."
        )
        return Fault(facts | {"differs": f"no gradient reaches {' and '.join(cut_off)}"}, hint)
    for name, gradient in right.gradients.items():
        if gradient is not None and (how := difference(made.gradients[name], gradient, rtol=1e-3, atol=1e-5)):
            hint = (
                "The value is right, but its gradient is another one: a part is computed without gradient, or through "
                "something that has none (rounding, comparing, a copy)."
            )
            return Fault(facts | {"differs": f"the gradient of {name}: {how}"}, hint)
    return None


def _other_names(exercise: Exercise, function: Callable[..., Any]) -> dict[str, str]:
    """The lab's parameter names and the learner's, where they differ."""
    wanted, mine = parameters_of(exercise.reference), parameters_of(function)
    if wanted is None or mine is None or mine[: len(wanted)] == wanted:
        return {}
    name = exercise.function_name
    return {
        "expected": f"{name}({', '.join(wanted)})",
        "got": _cut(f"{name}({', '.join(mine)})", 200),
    }


def _not_raised(case: Case, made: Call) -> str:
    wanted = _wanted_error(case)
    if made.result is None and made.printed.strip():
        return f"It prints; raise {wanted}, so that nobody can overlook it. {case.hint}"
    if isinstance(made.result, str) and case.match and case.match.lower() in made.result.lower():
        return f"It returns the message; raise it: `raise {case.raises.__name__}(...)`."
    return case.hint


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException))


def _name(exception: Any) -> str:
    return _cut(exception.__name__ if isinstance(exception, type) else type(exception).__name__, 60)


def _wanted_error(case: Case) -> str:
    kind = case.raises.__name__ if case.raises else ""
    return f"{kind} with {case.match!r} in its message" if case.match else kind


def _call_text(function: Any, arguments: tuple, case: Case) -> str:
    parts = [show(a, 100) for a in arguments] + [f"{k}={show(v, 60)}" for k, v in case.keywords.items()]
    return f"{_cut(getattr(function, '__name__', type(function).__name__), 60)}({', '.join(parts)})"
