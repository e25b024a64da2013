"""What an exercise is: a reference function, named cases, and the mistakes that people make in them.

An exercise "4.2" is the second of lab 04. Its topic's module (``TOPICS``) holds a tuple ``EXERCISES``.
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

LEVELS = ("warm-up", "core", "stretch")
"""Warm-up: one to three lines. Core: the idea, five to fifteen. Stretch: open-ended, checked by a property or a score."""


class NoSuchExercise(ValueError):
    """``check`` was called with a number that no lab has. IPython shows it as one line, without a stack trace."""

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
        The positional arguments, or a function without parameters that makes them anew for each call. Each call gets
        its own copy of numbers, texts, containers, tensors, arrays, data frames and dataclasses; everything else (a
        model, a data set, an iterator) must be made in a function, so that no answer can spoil it for the next one.
        Tensors that require a gradient ask for one: the learner's gradients are compared with the reference's.
    hint
        Said when the result is wrong and no ``mistakes`` entry fits.
    expected
        The right result; by default what the reference gives. A number that a reader can check by hand is worth more.
    raises
        The kind of exception that is right here; ``match`` is a text that its message must hold.
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
    level
        One of ``LEVELS``.
    difficulty, importance
        1 to 5.
    minutes
        To spend at most, before one looks at the solution.
    hints
        What ``hint`` says: first a nudge, then the plan in words, never the code.
    lesson
        The heading in the topic's lesson (course/) where the idea is explained, without its # signs.
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
    level: str = "core"
    difficulty: int = 3
    importance: int = 3
    minutes: int = 10
    hints: tuple[str, str] = ("", "")
    lesson: str = ""
    run: Callable[..., Any] | None = None
    may_change_input: bool = False
    time_limit_s: float = 10.0

    @property
    def topic(self) -> int:
        """The topic's number."""
        return int(self.number.partition(".")[0])

    @property
    def function_name(self) -> str:
        """The name that the lab gives the function."""
        return self.reference.__name__

    @property
    def place(self) -> str:
        """Where the lesson explains it: file and heading."""
        return f'course/{self.topic:02d}_{TOPICS[self.topic]}.ipynb, "{self.lesson}"'

    @property
    def facts(self) -> str:
        """One line of Markdown for the lab: level, difficulty, importance, minutes; ``onegpu notebooks build`` puts it in.

        Examples
        --------
        >>> Exercise("4.3", "blocks", abs, (), "stretch", 4, 2, 20).facts
        '*Stretch ★* · difficulty ●●●●○ · importance ●●○○○ · at most 20 minutes · `hint("4.3")`'
        """
        dots = ["●" * n + "○" * (5 - n) for n in (self.difficulty, self.importance)]
        return (
            f"*{self.level.capitalize()}{' ★' * (self.level == 'stretch')}* · difficulty {dots[0]} · "
            f'importance {dots[1]} · at most {self.minutes} minutes · `hint("{self.number}")`'
        )


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
