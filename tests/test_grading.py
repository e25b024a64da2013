"""Grading a class of labs: what students hand in, what the teacher reads."""

import csv

import nbformat
import pytest
from onegpu.grading import Grade, Grades, grade

RIGHT = "def weights_bytes(parameters, bits):\n    return (parameters * bits + 7) // 8"
CHECK = 'weights_bytes = check("0.1", weights_bytes)'


def lab(*cells):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(c) for c in ("from onegpu.exercises import check", *cells)]
    return nbformat.writes(notebook)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    files = {
        "김.ipynb": lab(RIGHT, CHECK),
        "wrong.ipynb": lab("def weights_bytes(p, b):\n    return p * b", CHECK),
        "stub.ipynb": lab("def weights_bytes(p, b):\n    return ...", CHECK),
        "by hand/00_start_here.ipynb": lab(
            "def weights_bytes(p, b):\n    return p * b",
            "print('✔ 0.1 right')  # check(\"0.1\", weights_bytes)",
        ),
        "syntax.ipynb": lab("def weights_bytes(p, b:\n    return 1", CHECK),
        "dies.ipynb": lab("import os; os._exit(1)", RIGHT, CHECK),
        "loops.ipynb": lab("while True: pass", RIGHT, CHECK),
        "broken/00_start_here.ipynb": "{",
        "empty.ipynb": lab("x = 1"),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return grade(folder, timeout_s=8)


@pytest.mark.parametrize(
    ("student", "status", "reason"),
    [
        ("김", "right", ""),
        ("wrong", "wrong", "These are bits"),
        ("stub", "not attempted", ""),
        ("by hand", "wrong", "These are bits"),
        ("syntax", "failed", "weights_bytes is not defined"),
        ("dies", "failed", "the kernel died"),
        ("loops", "right", ""),
        ("broken", "failed", "line 1 is not JSON"),
        ("empty", "failed", "no check in it"),
    ],
)
def test_each_notebook_gets_its_grade(graded, student, status, reason):
    (found,) = [g for g in graded.grades if g.student == student]
    assert found.status == status
    assert reason in found.reason


def test_the_table_says_who_has_what_and_what_to_explain_again(graded):
    text = str(graded)
    assert '0.1: 2 wrong, 2 of them in the case "a model of 1,000 parameters in 32 bits"' in text
    assert any(
        line.split() == ["김", "✔", "1/1"] or line.split() == ["김", "", "✔", "1/1"]
        for line in text.splitlines()
    )
    assert "<td>✔</td>" in graded._repr_html_()


def test_the_csv_has_a_row_for_each_student_and_exercise(graded, tmp_path):
    graded.write_csv(tmp_path / "grades.csv")
    raw = (tmp_path / "grades.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")  # or a spreadsheet shows Korean names as noise
    rows = list(csv.DictReader(raw.decode("utf-8-sig").splitlines()))
    assert {"student": "김", "exercise": "0.1", "status": "right", "case": "", "reason": ""} in rows
    assert len(rows) == len(graded.grades)


def test_exercises_are_in_order_of_their_numbers():
    grades = Grades(tuple(Grade("a", n, "right") for n in ("4.10", "4.9", "3.2")))
    assert grades.numbers == ("3.2", "4.9", "4.10")
    assert grades.score("a") == 3


@pytest.mark.parametrize(("make", "says"), [(False, "no such folder"), (True, "no notebooks in it")])
def test_a_folder_without_notebooks_is_named(tmp_path, make, says):
    folder = tmp_path / "class"
    if make:
        folder.mkdir()
    with pytest.raises(ValueError, match=says):
        grade(folder)
