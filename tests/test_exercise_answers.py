"""Every exercise against what people hand in: wrong answers are caught by the case and hint that name the mistake.

The answers are data in tests/wrong_answers, one file per topic. The table exercise x wrong answers is printed at the end
of the run (see the root conftest).
"""

import dataclasses
import functools
import inspect
import itertools

import nbformat
import numpy as np
import pytest
import torch
from answer_files import ANSWERS, FILES
from onegpu.exercises import examine, exercises_of, find
from onegpu.exercises.checking import _arguments
from onegpu.exercises.comparison import difference
from onegpu.exercises.execution import call, parameters_of
from onegpu.exercises.exercise import FROM_REFERENCE, LEVELS, TOPICS
from onegpu.notebooks.files import root

LEAST_WRONG, LEAST_RIGHT = 6, 3
EXERCISES = [exercise for topic in TOPICS for exercise in exercises_of(topic)]
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)


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


@each_exercise
def test_exercise_has_enough_answers(exercise):
    wrong = [a for a in ANSWERS if a.number == exercise.number and a.case is not None]
    right = [a for a in ANSWERS if a.number == exercise.number and a.case is None]
    where = f"add some to tests/wrong_answers/{TOPICS[int(exercise.number.partition('.')[0])]}.py"
    assert len(wrong) >= LEAST_WRONG, f"{exercise.number}: {len(wrong)} wrong answers, {where}"
    assert len(right) >= LEAST_RIGHT, f"{exercise.number}: {len(right)} right answers, {where}"


@each_exercise
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


@each_exercise
def test_stub_is_not_attempted(exercise):
    assert examine(exercise, lambda *args, **kwargs: ...).status == "not attempted"


@each_exercise
def test_no_constant_passes(exercise):
    for constant in (None, 0, 1, "", [], True, float("nan")):
        assert examine(exercise, lambda *args, c=constant, **kwargs: c).status == "wrong", constant


# Statements, cases, mistakes ---------------------------------------------------------------------------------------------


@each_exercise
def test_every_statement_has_an_answer_that_ignores_it(exercise):
    """The answer's own case is the one that decides: `test_wrong_answer_is_caught_...` looks at that."""
    tables = [answers.ignored.get(exercise.number, {}) for answers in FILES.values()]
    statements = {text: function for table in tables for text, function in table.items()}
    wrong = [a.function for a in ANSWERS if a.number == exercise.number and a.case is not None]
    assert len(statements) >= 2, f"{exercise.number}: list its text's statements with ANSWERS.statements"
    for text, function in statements.items():
        assert function in wrong, (
            f"{exercise.number}: {text!r}: {function.__name__} is no wrong answer of this exercise"
        )


@each_exercise
def test_two_known_mistakes_never_give_the_same_result(exercise):
    """Else the hint would name a mistake that somebody didn't make."""
    for case in exercise.cases:
        made = [
            (answer, call(answer.function, _arguments(case), case.keywords, run=exercise.run))
            for answer in ANSWERS
            if answer.number == exercise.number and answer.case == case.name
        ]
        clear = [
            (a, m)
            for a, m in made
            if m.error is None and not m.changed and not m.printed and not m.out_of_time
        ]
        for (one, first), (other, second) in itertools.combinations(clear, 2):
            if (
                one.says != other.says
                and difference(first.result, second.result, rtol=1e-7, atol=0.0) is None
            ):
                gradient = difference(first.gradients, second.gradients) is not None
                assert gradient, (
                    f"{exercise.number}, case {case.name!r}: {one.why!r} and {other.why!r} both give {first.result!r}: "
                    "choose numbers that tell them apart, or let both expect the same hint"
                )


@each_exercise
def test_no_number_can_stand_for_another(exercise):
    """Each plain parameter takes several values, and in some case all plain numbers differ from each other."""
    names = parameters_of(exercise.reference) or ()
    defaults = {p.name: p.default for p in inspect.signature(exercise.reference).parameters.values()}
    defaults = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}
    rows = [
        {**defaults, **dict(zip(names, _arguments(case), strict=False)), **case.keywords}
        for case in exercise.cases
        if case.raises is None
    ]
    plain = [name for name in names if all(isinstance(row.get(name, 0), int | float | str) for row in rows)]
    for name in plain:
        values = {row[name] for row in rows if name in row}
        assert len(values) > 1 or len(rows) == 1, f"{exercise.number}: {name} is {values} in every case"
    numbers = [[row[n] for n in plain if n in row and type(row[n]) in (int, float)] for row in rows]
    assert any(len(set(found)) == len(found) for found in numbers), (
        f"{exercise.number}: two numbers are equal everywhere"
    )


@each_exercise
def test_a_case_cannot_be_spoilt(exercise):
    """What isn't copied for each call is made anew for each call."""
    for case in exercise.cases:
        first, second = _arguments(case), _arguments(case)
        for one, other in zip(first, second, strict=True):
            shared = one is other and not isinstance(one, COPIED) and not dataclasses.is_dataclass(one)
            assert not shared, (
                f"{exercise.number}, case {case.name!r}: make the {type(one).__name__} in a function"
            )


COPIED = (type(None), bool, int, float, str, bytes, list, tuple, dict, set, torch.Tensor)


@each_exercise
def test_what_a_lab_says_of_an_exercise(exercise):
    assert exercise.level in LEVELS
    assert 1 <= exercise.difficulty <= 5
    assert 1 <= exercise.importance <= 5
    assert 1 <= exercise.minutes <= 60
    assert len(exercise.hints) == 2
    assert all(len(hint) > 20 for hint in exercise.hints), "a nudge and a plan"
    headings = headings_of(exercise.topic)
    assert exercise.lesson in headings, (
        f"{exercise.number} points to {exercise.lesson!r}, which isn't a heading of lesson {exercise.topic:02d}: change "
        f"lesson= in onegpu/exercises/{TOPICS[exercise.topic]}.py to one of {headings}"
    )


@functools.cache
def headings_of(topic):
    path = root() / "course" / f"{topic:02d}_{TOPICS[topic]}.ipynb"
    texts = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("#")]
    return [line.lstrip("#").strip() for line in lines]


def functions_of(topic):
    """The name and parameters of each function that a solution notebook asks for."""
    import ast

    found = {}
    for path in (root() / "solutions").glob(f"{topic:02d}_*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "code" and "### BEGIN SOLUTION" in cell.source:
                for node in ast.parse(cell.source).body:
                    if isinstance(node, ast.FunctionDef):
                        found[node.name] = tuple(a.arg for a in node.args.args)
    return found


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic])
def test_the_lab_and_the_reference_name_everything_alike(topic):
    asked = functions_of(topic)
    for exercise in exercises_of(topic):
        assert asked.get(exercise.function_name) == parameters_of(exercise.reference), exercise.number


# Faults that are the same in every exercise -------------------------------------------------------------------------------


def spoilt(exercise, spoil):
    """The reference with something done to its result."""

    @functools.wraps(exercise.reference)
    def function(*arguments, **keywords):
        return spoil(exercise.reference(*arguments, **keywords), arguments)

    return function


def renamed(exercise):
    names = parameters_of(exercise.reference)
    defaults = [p.default for p in inspect.signature(exercise.reference).parameters.values()]

    def function(*arguments, **keywords):
        return exercise.reference(*arguments, **keywords)

    function.__signature__ = inspect.Signature(
        [
            inspect.Parameter(f"my_{name}", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
            for name, default in zip(names, defaults, strict=True)
        ]
    )
    return function


ONE_VALUE = [e for e in EXERCISES if e.cases[0].compare is None and e.run is None]


@pytest.mark.parametrize(
    "exercise", [e for e in EXERCISES if parameters_of(e.reference)], ids=lambda e: e.number
)
def test_other_parameter_names_are_named(exercise):
    assert "later cells call the function by these names" in examine(exercise, renamed(exercise)).hint


@each_exercise
def test_printing_is_named(exercise):
    outcome = examine(exercise, spoilt(exercise, lambda result, _: print(result)))
    assert "print" in outcome.hint or exercise.run


@pytest.mark.parametrize("exercise", ONE_VALUE, ids=lambda e: e.number)
def test_the_right_value_as_another_type_is_named(exercise):
    def other_type(result, _):
        if isinstance(result, torch.Tensor):
            return result.tolist()
        if isinstance(result, bool):
            return int(result)
        if isinstance(result, float):
            return str(result)
        if isinstance(result, int):
            return float(result)
        if isinstance(result, list):
            return iter(result)
        if isinstance(result, tuple):
            return iter(result)
        if isinstance(result, dict):
            other = {int: float}  # an array without dimensions is welcome for a number
            return {
                n: v.tolist() if hasattr(v, "tolist") else other.get(type(v), np.array)(v)
                for n, v in result.items()
            }
        return None if result is None else NotImplemented

    first = exercise.reference(*_arguments(exercise.cases[0]))
    if isinstance(first, str):
        pytest.skip("a text has no other type with its value")
    assert "only its type is not" in examine(exercise, spoilt(exercise, other_type)).hint


@each_exercise
def test_a_changed_argument_is_named(exercise):
    def change(result, arguments):
        for value in arguments:
            if isinstance(value, list):
                value.append(None)
            elif isinstance(value, dict):
                value["changed"] = None
            elif isinstance(value, torch.Tensor) and value.numel():
                value.data.add_(1)
            elif isinstance(value, torch.nn.Module):
                value.requires_grad_(not next(value.parameters()).requires_grad)
            elif hasattr(value, "set_format"):
                value.set_format("numpy")
            else:
                continue
            return result
        pytest.skip("nothing that could be changed")

    outcome = examine(exercise, spoilt(exercise, change))
    assert "changes its input" in outcome.hint or exercise.run, outcome


@pytest.mark.parametrize(
    "exercise",
    [
        e
        for e in EXERCISES
        if any(getattr(a, "requires_grad", 0) is True for c in e.cases for a in _arguments(c))
    ],
    ids=lambda e: e.number,
)
def test_a_cut_gradient_is_named_and_float64_is_welcome(exercise):
    for cut in (lambda r, _: r.detach(), lambda r, _: torch.tensor(r.tolist())):
        assert "nothing can be trained" in examine(exercise, spoilt(exercise, cut)).hint
    assert examine(exercise, spoilt(exercise, lambda r, _: r.double())).status == "right"


@pytest.mark.parametrize(
    "exercise", [e for e in EXERCISES if any(c.raises for c in e.cases)], ids=lambda e: e.number
)
def test_an_exception_that_is_returned_is_named(exercise):
    @functools.wraps(exercise.reference)
    def returns_it(*arguments, **keywords):
        try:
            return exercise.reference(*arguments, **keywords)
        except ValueError as error:
            return error

    assert "raise it" in examine(exercise, returns_it).hint
