"""Drawn inputs are fair, and a judgement from outside is the one that the student saw."""

import functools
import json
from dataclasses import replace
from random import Random

import pytest
from answer_files import FILES
from onegpu.exercises import examine, exercises_of, find
from onegpu.exercises.execution import call
from onegpu.exercises.exercise import TOPICS
from onegpu.grading.cases import WITHOUT, other_cases
from onegpu.grading.examiner import _made
from onegpu.grading.values import write_error, write_value

EXERCISES = [exercise for topic in TOPICS for exercise in exercises_of(topic)]


def from_outside(*arguments, **keywords):
    """Call as usual, then let everything travel as it does between the processes."""
    made = call(*arguments, **keywords)
    content = {
        "result": write_value(made.result),
        "gradients": write_value(made.gradients),
        "error": None if made.error is None else write_error(made.error),
        "line": made.line,
        "out_of_time": made.out_of_time,
        "printed": made.printed[:2000],
        "changed": made.changed[:500],
    }
    return _made(json.loads(json.dumps(content)))


@pytest.mark.parametrize("topic", TOPICS)
def test_from_outside_every_answer_is_judged_as_in_the_notebook(topic):
    found = []
    for answer in FILES[TOPICS[topic]]:
        for time_limit_s in (1.0, 30.0):  # the longer one where a busy machine made the difference
            exercise = replace(find(answer.number), time_limit_s=time_limit_s)
            here = examine(exercise, answer.function)
            there = examine(exercise, answer.function, call=from_outside)
            same = (here.status, here.case, here.hint) == (there.status, there.case, there.hint)
            if same:
                break
        if not same:
            found.append(f"{answer.number} {answer.why}:\n{here}\n{there}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_a_right_answer_is_right_for_drawn_inputs(exercise):
    if exercise.number in WITHOUT:
        assert other_cases(exercise, Random(0)) == ()
        return
    right = [
        a.function for a in FILES[TOPICS[exercise.topic]] if a.number == exercise.number and a.case is None
    ]
    assert right
    for seed in range(5):
        cases = other_cases(exercise, Random(seed))
        assert cases, f"{exercise.number}: add a draw to grading/cases.py, or its number to WITHOUT"
        for function in (
            functools.partial(exercise.reference),
            *right,
        ):
            outcome = examine(replace(exercise, cases=cases), function)
            assert outcome.status == "right", str(outcome)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_an_answer_that_knows_the_lab_s_results_fails_for_drawn_inputs(exercise):
    if exercise.number in WITHOUT:
        return
    case = next(case for case in exercise.cases if case.raises is None)
    arguments = case.arguments() if callable(case.arguments) else case.arguments
    known = call(exercise.reference, arguments, case.keywords, run=exercise.run)
    drawn = replace(exercise, cases=other_cases(exercise, Random(1)))
    memory = functools.wraps(exercise.reference)(lambda *_: None)
    outcome = examine(drawn, memory, call=lambda *_, **__: known)
    assert outcome.status == "wrong", "its drawn inputs give what the lab's first case gives"
