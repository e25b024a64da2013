"""Wrong and right answers to the exercises, for tests/wrong_answers.

A wrong answer names the case that must reject it and words of the hint that must be shown; a right one is written
differently from the reference and must pass. An exercise that lets a wrong answer live, or names another mistake, fails
its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One written answer to an exercise.

    Attributes
    ----------
    number
        The exercise.
    function
        What a learner could hand in.
    why
        What the learner misunderstood (wrong), or how it is written (right).
    case
        The case that must reject it; None for a right answer.
    says
        Words that the hint must hold.
    """

    number: str
    function: Callable[..., Any]
    why: str
    case: str | None = None
    says: str = ""


class Answers(list[Answer]):
    """The answers of one file; ``wrong`` and ``right`` are its decorators.

    Attributes
    ----------
    ignored
        For each exercise the statements of its text, each with a wrong answer that ignores it.
    equivalents
        For each exercise the mutants of its solution that compute the same, each with the reason.

    Examples
    --------
    >>> answers = Answers()
    >>> @answers.wrong("1.1", "forgets to return", case="one turn", says="return")
    ... def prints(messages):
    ...     print(messages)
    >>> len(answers), answers[0].case
    (1, 'one turn')
    """

    def __init__(self) -> None:
        super().__init__()
        self.ignored: dict[str, dict[str, Callable]] = {}
        self.equivalents: dict[str, dict[str, str]] = {}

    def statements(self, number: str, table: Mapping[str, Callable]) -> None:
        """List what an exercise's text says; to each statement belongs a wrong answer that ignores it."""
        self.ignored.setdefault(number, {}).update(table)

    def equivalent(self, number: str, why: str, *names: str) -> None:
        """Name mutants (see tests/mutants.py) of an exercise's solution that no check can tell from it, and say why."""
        self.equivalents.setdefault(number, {}).update(dict.fromkeys(names, why))

    def wrong(self, number: str, why: str, *, case: str, says: str) -> Callable[[Callable], Callable]:
        """Add a wrong answer."""
        if not says:
            raise ValueError(f"{number} {why}: give words of the hint that names this mistake (says=...)")
        return self._add(number, why, case, says)

    def right(self, number: str, why: str) -> Callable[[Callable], Callable]:
        """Add a right answer."""
        return self._add(number, why, None, "")

    def _add(self, number: str, why: str, case: str | None, says: str) -> Callable[[Callable], Callable]:
        def add(function: Callable) -> Callable:
            self.append(Answer(number, function, why, case, says))
            return function

        return add
