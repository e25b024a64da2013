"""Every exercise against what people hand in: wrong answers are caught by the case and hint that name the mistake.

The answers are data in tests/wrong_answers, one file per topic. The table exercise x wrong answers is printed at the end
of the run (see the root conftest).
"""

import importlib.util
from pathlib import Path

import pytest
from onegpu.exercises import examine, exercises_of, find
from onegpu.exercises.checking import _arguments
from onegpu.exercises.comparison import difference
from onegpu.exercises.execution import call
from onegpu.exercises.exercise import FROM_REFERENCE, TOPICS

FOLDER = Path(__file__).parent / "wrong_answers"
LEAST_WRONG, LEAST_RIGHT = 6, 3


def load(name):
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        return []
    spec = importlib.util.spec_from_file_location(f"wrong_answers_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.ANSWERS)


EXERCISES = [exercise for topic in TOPICS for exercise in exercises_of(topic)]
ANSWERS = [answer for name in TOPICS.values() for answer in load(name)]


def name(answer):
    return f"{answer.number}-{answer.function.__name__}"


@pytest.mark.parametrize("answer", [a for a in ANSWERS if a.case is not None], ids=name)
def test_wrong_answer_is_caught_by_the_hint_that_names_it(answer, record_property):
    outcome = examine(find(answer.number), answer.function)
    record_property("wrong_answer", f"{answer.number}|{answer.why}")
    assert outcome.status == "wrong", f"{answer.number}: the wrong answer {answer.why!r} survives"
    assert outcome.case == answer.case, f"caught by another case:\n{outcome}"
    assert answer.says in outcome.hint, f"the hint doesn't say {answer.says!r}:\n{outcome}"


@pytest.mark.parametrize("answer", [a for a in ANSWERS if a.case is None], ids=name)
def test_right_answer_written_differently_passes(answer):
    outcome = examine(find(answer.number), answer.function)
    assert outcome.status == "right", f"{answer.why}:\n{outcome}"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_exercise_has_enough_answers(exercise):
    wrong = [a for a in ANSWERS if a.number == exercise.number and a.case is not None]
    right = [a for a in ANSWERS if a.number == exercise.number and a.case is None]
    where = f"add some to tests/wrong_answers/{TOPICS[int(exercise.number.partition('.')[0])]}.py"
    assert len(wrong) >= LEAST_WRONG, f"{exercise.number}: {len(wrong)} wrong answers, {where}"
    assert len(right) >= LEAST_RIGHT, f"{exercise.number}: {len(right)} right answers, {where}"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_reference_passes_its_own_cases(exercise):
    for case in exercise.cases:
        made = call(exercise.reference, _arguments(case), case.keywords, run=exercise.run, time_limit_s=60)
        if case.raises is not None:
            assert isinstance(made.error, case.raises), case.name
            assert case.match.lower() in str(made.error).lower(), case.name
            continue
        assert made.error is None, f"{case.name}: {made.error!r}"
        assert not made.changed or exercise.may_change_input, f"{case.name}: {made.changed}"
        if case.expected is not FROM_REFERENCE:
            compare = case.compare or (lambda g, e, c=case: difference(g, e, rtol=c.rtol, atol=c.atol))
            assert compare(made.result, case.expected) is None, case.name


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_stub_is_not_attempted(exercise):
    assert examine(exercise, lambda *args, **kwargs: ...).status == "not attempted"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_no_constant_passes(exercise):
    for constant in (None, 0, 1, "", [], True, float("nan")):
        assert examine(exercise, lambda *args, c=constant, **kwargs: c).status == "wrong", constant
