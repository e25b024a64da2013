"""Exercises that check themselves: ``fn = check("4.1", fn)``; ``hint("4.1")`` helps before.

An exercise is data (``Exercise``, ``Case``, ``Mistake``), one module per lab; ``check`` compares a learner's function with the
reference on named cases. Read it in this order: ``exercise`` (what an exercise is), ``checking`` (what ``check`` and ``hint``
say), ``judgement`` (what is wrong with one call, and the hint), ``execution`` (one call: time limit, printing, changed
input, gradients), ``comparison`` (are two results the same, and where not). docs/exercises.md says how to add one.
"""

from onegpu.exercises.checking import Interrupted, NotAttempted, Outcome, WrongAnswer, check, examine, hint
from onegpu.exercises.exercise import Case, Exercise, Mistake, NoSuchExercise, exercises_of, find

__all__ = [
    "Case",
    "Exercise",
    "Interrupted",
    "Mistake",
    "NoSuchExercise",
    "NotAttempted",
    "Outcome",
    "WrongAnswer",
    "check",
    "examine",
    "exercises_of",
    "find",
    "hint",
]
