"""`check`: what it says to a learner, whatever they hand in."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onegpu.exercises import (
    Case,
    Exercise,
    Interrupted,
    Mistake,
    NoSuchExercise,
    NotAttempted,
    WrongAnswer,
    check,
    checking,
    examine,
    find,
    hint,
)
from onegpu.exercises.comparison import difference, show
from onegpu.exercises.execution import call, own_copy


def double(x):
    return [2 * value for value in x]


def another_double(x):
    return double(x)


DOUBLE = Exercise(
    "0.1",
    "double",
    double,
    (
        Case(
            "two numbers",
            ([1, 2],),
            "Multiply each number by two.",
            expected=[2, 4],
            mistakes=(
                Mistake([1, 4], "You squared them."),
                Mistake(lambda got: got == [3, 4], "You added two."),
            ),
        ),
        Case("none", ([],), "An empty list has an empty double."),
    ),
    time_limit_s=0.3,
)


def message(function, exercise=DOUBLE):
    outcome = examine(exercise, function)
    assert outcome.status == "wrong", outcome
    return " ".join(outcome.message.split())  # as before it was wrapped


# What a learner hands in ------------------------------------------------------------------------------------------------


def test_right_answer_is_one_line_and_comes_back(capsys):
    def mine(parameters, bits):
        return (parameters * bits + 7) // 8

    assert check("0.1", mine) is mine
    assert capsys.readouterr().out == "✔ 0.1 bytes of a model's weights: right (3 cases)\n"


def test_not_attempted_is_one_line_and_the_reference_comes_back(capsys, monkeypatch):
    monkeypatch.delenv("ONEGPU_STRICT", raising=False)
    given_back = check("0.1", lambda parameters, bits: ...)
    out = capsys.readouterr().out
    assert out.startswith("○ 0.1 bytes of a model's weights: not attempted. ")
    assert out.count("\n") == 1
    assert given_back(3, 4) == 2


@pytest.mark.parametrize("value", ["1", "yes"])
def test_strict_makes_not_attempted_fail(value, monkeypatch):
    monkeypatch.setenv("ONEGPU_STRICT", value)
    with pytest.raises(NotAttempted, match="not attempted"):
        check("0.1", lambda parameters, bits: ...)


def test_strict_zero_is_not_strict(monkeypatch, capsys):
    monkeypatch.setenv("ONEGPU_STRICT", "0")
    check("0.1", lambda parameters, bits: ...)
    assert capsys.readouterr().out.startswith("○")


def test_wrong_answer_shows_case_input_expected_got_and_hint():
    with pytest.raises(WrongAnswer) as caught:
        check("0.1", lambda parameters, bits: parameters * bits)
    assert str(caught.value).splitlines() == [
        '✘ 0.1 bytes of a model\'s weights: wrong in the case "a model of 1,000 parameters in 32 bits"',
        "  input:    <lambda>(1000, 32)",
        "  expected: 4000",
        "  got:      32000",
        "  differs:  expected 4000, got 32000",
        "  hint:     These are bits. A byte has 8 of them.",
    ]


def test_ipython_shows_a_wrong_answer_without_a_stack_trace():
    assert WrongAnswer("✘ one\n  two")._render_traceback_() == ["✘ one", "  two"]


def test_the_first_failing_case_is_shown():
    assert 'case "none"' in message(lambda x: [2 * v for v in x] or None)


def test_a_known_wrong_result_gets_its_own_hint():
    assert "You squared them." in message(lambda x: [v * v for v in x])
    assert "You added two." in message(lambda x: [v + 2 for v in x])
    assert "Multiply each" in message(lambda x: [0 for v in x])


def test_returning_none_asks_for_return():
    assert "is a `return` missing" in message(lambda x: None)


def test_printing_instead_of_returning_is_named_and_shown():
    said = message(lambda x: print([2 * v for v in x]))
    assert "print() only shows a value" in said
    assert "[2, 4]" in said


def test_printing_beside_a_right_answer_is_not_shown(capsys):
    def chatty(x):
        print("looking at", x)
        return double(x)

    assert examine(DOUBLE, chatty).status == "right"
    assert capsys.readouterr().out == ""


def test_an_error_names_its_line_and_no_line_of_ours():
    def divides(x):
        return [2 / 0 for _ in x]

    said = message(divides)
    assert "ZeroDivisionError: division by zero" in said
    assert "return [2 / 0 for _ in x]" in said
    assert "Traceback" not in said
    assert "execution.py" not in said


def test_not_implemented_is_not_attempted():
    def stub(x):
        raise NotImplementedError

    assert examine(DOUBLE, stub).status == "not attempted"


def test_half_done_is_not_attempted_and_names_the_case():
    outcome = examine(DOUBLE, lambda x: double(x) if x else ...)
    assert outcome.status == "not attempted"
    assert '"none"' in outcome.message


def test_an_ellipsis_inside_the_result_is_not_attempted():
    assert examine(DOUBLE, lambda x: (2, ...)).status == "not attempted"


@pytest.mark.parametrize("swallows", [False, True])
def test_an_endless_loop_is_stopped(swallows):
    def forever(x):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                if not swallows:
                    raise

    started = time.monotonic()
    assert "nothing within 0.3 s" in message(forever)
    assert time.monotonic() - started < 5


def test_an_endless_loop_with_a_bare_except_is_stopped():
    def stubborn(x):
        tries = 0
        while True:
            try:
                while True:
                    time.sleep(0.01)
            except:  # noqa: E722
                tries += 1
                if tries > 1:
                    raise

    assert "nothing within" in message(stubborn)


def test_an_endless_loop_is_stopped_in_a_thread_too():
    outcomes = []

    def forever(x):
        while True:
            pass

    thread = threading.Thread(target=lambda: outcomes.append(examine(DOUBLE, forever)))
    thread.start()
    thread.join(10)
    assert "nothing within 0.3 s" in outcomes[0].message


def test_the_time_limit_works_without_timer_signals(monkeypatch):
    import signal

    monkeypatch.delattr(signal, "setitimer")  # as on Windows
    assert "nothing within" in message(lambda x: [0 for _ in iter(int, 1)])
    assert examine(DOUBLE, another_double).status == "right"


def test_somebody_elses_timer_goes_on():
    import signal

    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        call(lambda: None, (), {})
        time.sleep(0.4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rang


def test_endless_recursion_is_an_error_like_others():
    def deeper(x):
        return deeper(x)

    assert "RecursionError" in message(deeper)


def test_exit_does_not_end_the_session():
    assert "exit(" in message(lambda x: sys.exit(3))


def test_a_changed_input_is_named_though_the_result_is_right():
    def in_place(x):
        for i, value in enumerate(x):
            x[i] = 2 * value
        return x

    said = message(in_place)
    assert "Work on a copy" in said
    assert "argument 1: at [0]: expected 1, got 2" in said


def test_an_exercise_may_allow_changes():
    def in_place(x):
        x[:] = double(x)
        return x

    allowed = dataclasses.replace(DOUBLE, may_change_input=True)
    assert examine(allowed, in_place).status == "right"


def test_a_changed_argument_does_not_reach_the_next_case_or_call():
    def in_place(x):
        x.clear()
        return x

    assert examine(DOUBLE, in_place).status == "wrong"
    assert examine(DOUBLE, another_double).status == "right"


@pytest.mark.parametrize(
    ("function", "says"), [(lambda: [2, 4], "parameters are ()"), (lambda x, y: [2, 4], "(x, y)")]
)
def test_wrong_parameters_are_named(function, says):
    said = message(function)
    assert "Keep the parameters as the lab gives them" in said
    assert says in said


def test_a_called_function_asks_for_the_function_itself():
    said = message([2, 4])
    assert "without calling it" in said
    assert 'check("0.1", name_of_the_function)' in said


def test_a_bare_ellipsis_is_not_attempted():
    assert examine(DOUBLE, ...).status == "not attempted"


def test_the_reference_that_was_handed_out_earns_nothing():
    outcome = examine(DOUBLE, DOUBLE.reference)
    assert outcome.status == "not attempted"
    assert "reference" in outcome.message


def test_a_generator_is_told_from_a_list():
    assert "expected a list, got a generator" in message(lambda x: (2 * v for v in x))


def test_an_expected_error_must_be_raised():
    needs = Exercise(
        "0.2", "refuse", abs, (Case("text", ("a",), "Refuse it.", raises=TypeError, match="number"),)
    )
    said = message(lambda x: None, needs)
    assert "expected: TypeError with 'number' in its message" in said

    def other(x):
        raise ValueError("a number, please")

    def silent(x):
        raise TypeError("no")

    def right(x):
        raise TypeError("not a Number")

    assert "ValueError: a number, please" in message(other, needs)
    assert "the message doesn't say 'number'" in message(silent, needs)
    assert examine(needs, right).status == "right"


def test_run_calls_the_function_its_own_way():
    counts = Exercise("0.3", "count", range, (Case("three", (3,), "Count."),), run=lambda f, n: list(f(n)))

    def mine(n):
        yield from [0, 1, 2]

    assert examine(counts, mine).status == "right"


def test_a_comparison_that_breaks_is_a_wrong_answer():
    odd = Exercise("0.4", "odd", len, (Case("a", ("a",), "h", compare=lambda got, right: got["missing"]),))
    assert "got 1" in message(lambda x: 1, odd)


def test_a_broken_reference_comes_through():
    def broken(x):
        raise KeyError("the course's fault")

    faulty = Exercise("0.5", "broken", broken, (Case("a", (1,), "h"),))
    with pytest.raises(KeyError, match="fault"):
        examine(faulty, lambda x: 1)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("0.9", "Lab 0 has: 0.1"),
        ("99.1", "labs have the numbers 0 to 8"),
        ("one", "labs have the numbers 0 to 8"),
        (4.1, "put it in quotes"),
    ],
)
def test_unknown_numbers_say_which_there_are(number, says):
    with pytest.raises(NoSuchExercise, match=says) as caught:
        check(number, double)
    assert len(caught.value._render_traceback_()) == 1


def test_importing_checks_is_quick_and_loads_no_torch():
    code = "import sys, onegpu.exercises; print('torch' in sys.modules, 'transformers' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert out.stdout.split() == ["False", "False"]


# Faults that are the same everywhere --------------------------------------------------------------------------------------


def test_a_renamed_function_is_asked_about():
    assert "is your function still called double?" in examine(DOUBLE, DOUBLE.reference).message


def test_other_parameter_names_are_named_before_the_result():
    said = message(lambda values: [0])
    assert "expected: double(x)" in said
    assert "got: double(values)" in said


def test_more_parameters_are_welcome_where_they_have_a_value():
    assert examine(DOUBLE, lambda x, factor=2: [factor * v for v in x]).status == "right"
    assert examine(DOUBLE, lambda *numbers: [2 * v for v in numbers[0]]).status == "right"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: {2, 4}, "expected a list, got a set"),
        (lambda x: np.array([2, 4]), "got a NumPy array"),
        (lambda x: torch.tensor([2, 4]), "got a torch.Tensor"),
        (lambda x: [2.0, 4.0], "at [0]: expected an int, got the float 2.0"),
        (lambda x: ["2", "4"], "got the str '2'"),
        (lambda x: map(int, [2, 4]), "got a map"),
    ],
)
def test_a_right_value_as_another_type_is_said(function, says):
    said = message(function)
    assert "The value is right, only its type is not" in said
    assert said.count(says) == 1  # once, not in two rows


def test_right_values_elsewhere_are_said():
    assert "in another order" in message(lambda x: [4, 2])
    assert "nested or shaped in another way" in message(lambda x: [[2], [4]])


def test_an_exception_that_is_returned_is_named():
    assert "raise it: `raise ValueError(...)`" in message(lambda x: ValueError("no"))
    assert "raise it" in message(lambda x: ValueError)


def times(x, factor):
    return (x * factor).sum()


TRAINED = Exercise(
    "0.6",
    "times",
    times,
    (
        Case("a number", (torch.tensor([2.0]), 3.0), "Multiply.", expected=torch.tensor(6.0)),
        Case(
            "a gradient",
            lambda: (torch.tensor([2.0, 1.0], requires_grad=True), 3.0),
            "It is trained with this.",
        ),
    ),
)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, factor: (x * factor).sum().detach(), "no gradient reaches argument 1"),
        (lambda x, factor: torch.tensor((x * factor).sum().item()), "no gradient reaches argument 1"),
        (lambda x, factor: (x * factor).detach().sum() + 0 * x.sum(), "its gradient is another one"),
    ],
)
def test_a_gradient_is_asked_for_where_an_argument_requires_one(function, says):
    assert says in message(function, TRAINED)


def test_float64_is_welcome_and_half_precision_is_not():
    assert examine(TRAINED, lambda x, factor: (x.double() * factor).sum()).status == "right"
    assert "float16" in message(lambda x, factor: (x * factor).sum().half(), TRAINED)


def test_an_answer_cannot_switch_gradients_off_for_the_next():
    def switches(x, factor):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        return times(x, factor)

    assert examine(TRAINED, switches).status == "wrong"
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert examine(TRAINED, lambda x, factor: factor * x.sum()).status == "right"


@dataclasses.dataclass(frozen=True)
class Shelf:
    books: dict


def test_a_case_is_not_spoilt_by_what_an_answer_does_to_it():
    shelf = Exercise(
        "0.7", "count", lambda s: len(s.books), (Case("two", (Shelf({"a": 1, "b": 2}),), "Count."),)
    )

    def clears(s):
        count = len(s.books)
        s.books.clear()
        return count

    assert "changes its input" in message(clears, shelf)
    assert examine(shelf, lambda s: len(s.books)).status == "right"


def test_a_changed_model_is_noticed():
    def weights(model):
        return sum(p.numel() for p in model.parameters())

    counted = Exercise(
        "0.8", "weights", weights, (Case("one layer", lambda: (torch.nn.Linear(2, 2),), "Count."),)
    )

    def freezes(model):
        return weights(model.requires_grad_(False))

    assert "changes its input" in message(freezes, counted)
    assert examine(counted, lambda model: sum(p.nelement() for p in model.parameters())).status == "right"


class Vast:
    def __repr__(self):
        return "vast " * 1_000_000


@pytest.mark.parametrize(
    "result",
    [list(range(1_000_000)), "x" * 1_000_000, {i: i for i in range(100_000)}, Vast(), 10**5000],
    ids=["list", "text", "dict", "object", "int"],
)
def test_messages_are_bounded(result):
    assert len(examine(DOUBLE, lambda x: result).message) < 1500


def test_a_list_that_holds_itself_is_shown():
    def round_and_round(x):
        x = [1, 2]
        x[0] = x
        return x

    assert "[[[" in message(round_and_round)


def test_an_error_without_end_is_bounded():
    def shouts(x):
        raise ValueError("no " * 100_000)

    assert len(examine(DOUBLE, shouts).message) < 1500


def test_arrows_own_not_implemented_is_no_stub():
    def sums_lists(x):
        return pa.compute.sum(pa.array([[1]]))

    assert "ArrowNotImplementedError" in message(sums_lists)


def test_an_interrupted_check_is_one_line(monkeypatch):
    def stopped(parameters, bits):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        check("0.1", stopped)
    assert caught.value._render_traceback_() == ["0.1 bytes of a model's weights: the check was interrupted."]


def test_a_second_wrong_answer_points_to_the_lesson(monkeypatch, capsys):
    monkeypatch.setattr(checking, "_wrong_in_a_row", Counter())

    def wrong(parameters, bits):
        return 0

    said = []
    for _ in range(2):
        with pytest.raises(WrongAnswer) as caught:
            check("0.1", wrong)
        said.append(str(caught.value))
    assert "lesson:" not in said[0]
    assert f'course/00_start_here.ipynb, "{find("0.1").lesson}"' in " ".join(said[1].split())
    assert 'hint("0.1")' in said[1]
    check("0.1", lambda parameters, bits: -(-parameters * bits // 8))
    with pytest.raises(WrongAnswer) as caught:
        check("0.1", wrong)
    assert "lesson:" not in str(caught.value)


def test_hint_gives_a_nudge_then_the_plan_and_no_code(monkeypatch, capsys):
    monkeypatch.setattr(checking, "_hints_given", Counter())
    assert hint("0.1") is None
    first = " ".join(capsys.readouterr().out.split())
    assert find("0.1").hints[0] in first
    assert "once more gives the plan" in first
    for _ in range(2):
        hint("0.1")
        again = " ".join(capsys.readouterr().out.split())
        assert find("0.1").hints[1] in again
        assert "course/00_start_here.ipynb" in again
    with pytest.raises(NoSuchExercise, match="put it in quotes"):
        hint(0.1)


# Comparison -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        (
            torch.tensor([1]),
            torch.tensor([1], dtype=torch.int8),
            "expected the dtype torch.int8, got torch.int64",
        ),
        (torch.zeros(2, 1), torch.zeros(2), "expected the shape (2,), got (2, 1)"),
        (
            torch.tensor([[1, 2], [3, 5]]),
            torch.tensor([[1, 2], [3, 4]]),
            "1 of 4 values differ, first at [1, 1]",
        ),
        (torch.tensor(2.0), torch.tensor(3.0), "expected 3.0, got 2.0"),
        ([1.0], torch.tensor([1.0]), "expected a torch.Tensor, got a list"),
        (np.zeros(2), torch.zeros(2), "expected a torch.Tensor, got a NumPy array"),
        (torch.tensor([1]), [1], "expected a list, got a torch.Tensor"),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "first at [1]: expected 2.0, got nan"),
        (2.0, 2, "expected an int, got the float 2.0"),
        (True, 1, "expected the int 1, got the bool True"),
        (1, True, "expected the bool True, got the int 1"),
        ("1", 1, "expected the int 1, got the str '1'"),
        (1.1, 1.0, "expected 1.0, got 1.1"),
        (None, 1, "got None"),
        ([1], [1, 2], "expected 2 items, got 1"),
        ({"a": 1}, {"b": 1}, "the key 'b' is missing, the key 'a' is not expected"),
        ({"a": [1, 3]}, {"a": [1, 2]}, "at ['a'][1]: expected 2, got 3"),
        ({1, 2}, {1, 3}, "[3] missing, [2] not expected"),
        (Point(1, 2.5), Point(1, 2.0), "at .y: expected 2.0, got 2.5"),
        ((1, 2.0), Point(1, 2.0), "expected a Point, got a tuple"),
        ("abc", "abd", "expected 'abd', got 'abc'"),
        ("x" * 50 + "a", "x" * 50 + "b", "the same up to character 50"),
        (b"a", "a", "expected str, got bytes"),
        (pa.array([1]), pa.array([1], pa.int32()), "expected the type int32, got int64"),
        (pa.array([1, None]), pa.array([1, 2]), "at [1]: expected the int 2, got None"),
        (pa.table({"a": [1]}), pa.table({"b": [1]}), "expected the columns ['b'], got ['a']"),
        (pa.table({"a": [[1]]}), pa.table({"a": [[2]]}), "at ['a'][0][0]: expected 2, got 1"),
        (pd.DataFrame({"a": [1.0]}), pd.DataFrame({"a": [1]}), "column 'a': expected the dtype int64"),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]}), "at ['a'][0]: expected 2, got 1"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_difference_says_what_differs(got, expected, says):
    assert says in difference(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ((1, 2), [1, 2]),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (np.bool_(True), True),
        (1, 1.0),
        (float("nan"), float("nan")),
        (float("-inf"), float("-inf")),
        (1.0 + 1e-9, 1.0),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0], dtype=torch.bfloat16)),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (pa.chunked_array([[1], [2]]), pa.chunked_array([[1, 2]])),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Point(1, 2.0), Point(1, 2.0)),
        (None, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_computes_the_same_is_the_same(got, expected):
    assert difference(got, expected) is None


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(nested)
def test_a_value_equals_its_own_copy(value):
    assert difference(own_copy(value), value, rtol=0, atol=0) is None


@given(nested, nested)
def test_comparing_never_raises_and_showing_fits_one_short_line(a, b):
    said = difference(a, b)
    assert said is None or "\n" not in said
    assert len(show(a, 80)) <= 80
    assert "\n" not in show(a, 80)


def test_showing_a_large_tensor_is_short():
    assert show(torch.zeros(10_000, 3)).startswith("float32 tensor of shape (10000, 3): [0.0, 0.0")
    assert len(show(torch.zeros(10_000, 3))) <= 160


def test_objects_are_shown_without_addresses():
    assert show([object()]) == "[<object>]"


def test_own_copy_keeps_gradients_and_shares_opaque_objects():
    leaf = torch.ones(2, requires_grad=True)
    opaque = object()
    tensor, same = own_copy((leaf, opaque))
    assert tensor is not leaf
    assert tensor.requires_grad
    assert same is opaque


def test_long_lines_of_a_message_are_wrapped_between_words():
    outcome = examine(DOUBLE, lambda x: "word " * 60)
    assert all(len(line) <= 92 for line in outcome.message.splitlines())
    assert "word word" in outcome.message
