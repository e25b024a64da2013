"""Exercises that check themselves: ``fn = check("4.1", fn)``.

An exercise is data (`Exercise`, `Case`, `Mistake`), one module per lab; `check` compares a learner's function with the
reference on named cases. Read it in this order: `exercise` (what an exercise is), `checking` (what `check` says),
`execution` (one call: time limit, printing, changed input), `comparison` (are two results the same, and where not).
"""

from onegpu.exercises.checking import NotAttempted, Outcome, WrongAnswer, check, examine
from onegpu.exercises.exercise import Case, Exercise, Mistake, NoSuchExercise, exercises_of, find

__all__ = [
    "Case",
    "Exercise",
    "Mistake",
    "NoSuchExercise",
    "NotAttempted",
    "Outcome",
    "WrongAnswer",
    "check",
    "examine",
    "exercises_of",
    "find",
]
