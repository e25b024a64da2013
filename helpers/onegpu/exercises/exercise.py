"""What an exercise is: a reference function, named cases, and the mistakes that people make in them.

An exercise "4.2" is the second of lab 04. Its topic's module (`TOPICS`) holds a tuple `EXERCISES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOPICS: Mapping[int, str] = {
    0: "start_here",
    1: "sft_datasets",
    2: "preference_data",
    3: "dtype_sizing",
    4: "quantization",
    5: "gpu_memory",
    6: "token_counting",
    7: "qlora_finetune",
    8: "ray_scale_out",
}
"""Topic number (of the notebooks) to module name."""


class _FromReference:
    def __repr__(self) -> str:
        return "what the reference gives"


FROM_REFERENCE = _FromReference()


class NoSuchExercise(ValueError):
    """`check` was called with a number that no lab has. IPython shows it as one line, without a stack trace."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@dataclass(frozen=True)
class Mistake:
    """A wrong result that people really get in a case, and the hint that names how it came about.

    Attributes
    ----------
    got
        The wrong result, or a function of the result that says whether this mistake was made.
    hint
        What the learner misunderstood, in one or two sentences.
    """

    got: Any
    hint: str


@dataclass(frozen=True)
class Case:
    """One call of the learner's function.

    Attributes
    ----------
    name
        What the case is about, in a few words; it stands in the message.
    arguments
        The positional arguments, or a function without parameters that makes them (for what is slow or large to
        build). Each call gets its own copy of lists, dicts, sets, tensors, arrays and data frames; other objects are
        handed on as they are, so make those in a function.
    hint
        Said when the result is wrong and no `mistakes` entry fits.
    expected
        The right result; by default what the reference gives. A number that a reader can check by hand is worth more.
    raises
        The kind of exception that is right here; `match` is a text that its message must hold.
    mistakes
        Known wrong results with their own hints, looked at in order.
    keywords
        Keyword arguments.
    rtol, atol
        For floats and float tensors: abs(got - expected) <= atol + rtol * abs(expected).
    compare
        Replaces the comparison: takes (got, expected), returns None if they agree, else how they differ in words.
    """

    name: str
    arguments: tuple | Callable[[], tuple]
    hint: str
    expected: Any = FROM_REFERENCE
    raises: type[Exception] | None = None
    match: str = ""
    mistakes: tuple[Mistake, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-8
    compare: Callable[[Any, Any], str | None] | None = None


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    Attributes
    ----------
    number
        "<topic>.<k>".
    title
        A few words; stands after the number in every message.
    reference
        The right function: the topic module's own, or a thin wrapper of it.
    cases
        From easy to hard; the first one that fails is shown.
    run
        How to call a function on a case's arguments: ``run(function, *arguments)``. By default ``function(*arguments)``.
        For functions whose result isn't the answer yet, such as a generator or a function that returns a function.
    may_change_input
        For exercises that work in place.
    time_limit_s
        For one call.
    """

    number: str
    title: str
    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    run: Callable[..., Any] | None = None
    may_change_input: bool = False
    time_limit_s: float = 10.0


def exercises_of(topic: int) -> tuple[Exercise, ...]:
    """Return the exercises of a topic, in order; none if the topic has no module yet.

    Examples
    --------
    >>> [exercise.number for exercise in exercises_of(1)][:2]
    ['1.1', '1.2']
    """
    name = f"onegpu.exercises.{TOPICS[topic]}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return ()
    return tuple(module.EXERCISES)


def find(number: str) -> Exercise:
    """Return the exercise with this number.

    Raises
    ------
    NoSuchExercise
        Says which numbers there are.
    """
    if not isinstance(number, str):
        raise NoSuchExercise(
            f'An exercise number is a text such as "4.1", found {number!r}: put it in quotes.'
        )
    topic, _, _ = number.partition(".")
    if not topic.isdigit() or int(topic) not in TOPICS:
        raise NoSuchExercise(
            f"There is no exercise {number!r}: labs have the numbers {min(TOPICS)} to {max(TOPICS)}, "
            'and the third exercise of lab 4 is "4.3".'
        )
    there = exercises_of(int(topic))
    for exercise in there:
        if exercise.number == number:
            return exercise
    numbers = ", ".join(exercise.number for exercise in there) or "none yet"
    raise NoSuchExercise(f"There is no exercise {number!r}. Lab {int(topic)} has: {numbers}.")
