"""Grading a class: what students hand in gets the mark that it deserves, and nothing else decides it."""

import csv
import os

import pytest
from grading_samples import CHECK, RIGHT, STUB, WRONG, lab, samples
from onegpu.exercises import exercises_of
from onegpu.grading import Grade, Grades, Limits, grade
from onegpu.grading.results import columns, harmless

SAMPLES = samples()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    for sample in SAMPLES:
        (folder / sample.name).write_bytes(sample.content)
    os.environ["A_SECRET_TOKEN"] = "x"
    try:
        return grade(folder, limits=Limits(cell_s=8), jobs=2)
    finally:
        del os.environ["A_SECRET_TOKEN"]


def test_there_are_sixty_samples_and_more():
    assert len({sample.name for sample in SAMPLES}) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.student)
def test_each_notebook_gets_its_mark(graded, sample):
    (found,) = graded.of(sample.student)
    if sample.status:
        assert found.status == sample.status, f"{found.reason} {found.message}"
    else:
        assert found.status != "right"
    assert sample.reason in found.reason


@pytest.mark.slow
def test_what_happened_on_the_way_is_said(graded):
    assert "code cell 2 was killed by the system (out of memory?)" in graded.notes["dies in the middle"][0]
    assert graded.notes["loops in a cell"] == ("code cell 4 ran longer than 8 s and was stopped",)
    assert "plain" not in graded.notes


# A class, small ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """A class of three, and a call of `grade` on it."""
    folder = tmp_path / "class"
    for name, content in {
        "kim.ipynb": lab(RIGHT, CHECK),
        "lee/lab-1.ipynb": lab(WRONG, CHECK),
        "lee/lab-2.ipynb": lab(RIGHT, CHECK),
        "park.ipynb": b"{",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_two_files_of_a_student_count_once_and_it_says_which(small):
    grades = grade(small)
    assert grades.students == ("kim", "lee", "park")
    assert [g.status for g in grades.grades] == ["right", "right", "failed"]
    assert grades.notes["lee"] == (
        "2 files, counted once: lee/lab-2.ipynb (1 right), not lee/lab-1.ipynb (0)",
    )
    assert "lee      ✔    1/1" in str(grades)


def test_what_was_examined_is_not_run_again(small, tmp_path, monkeypatch):
    first = grade(small, kept=tmp_path / "kept")
    monkeypatch.setattr("onegpu.grading.running._examine_one", None)  # nothing is left for a worker
    assert grade(small, kept=tmp_path / "kept") == first
    next((tmp_path / "kept").glob("*.json")).write_text("{", encoding="utf-8")  # cut off when it was written
    monkeypatch.undo()
    assert grade(small, kept=tmp_path / "kept") == first


def test_a_file_that_cannot_be_read_is_a_row_of_the_class_s_lab(tmp_path):
    for name in ("kim", "lee"):
        (tmp_path / f"{name}.ipynb").write_bytes(lab(RIGHT, CHECK))
    (tmp_path / "05_park.ipynb").write_bytes(b"{")
    grades = grade(tmp_path)
    assert grades.numbers == ("0.1",)
    assert [g.status for g in grades.of("05_park")] == ["failed"]


def test_another_lab_is_named_where_one_was_asked_for(tmp_path):
    (tmp_path / "kim.ipynb").write_bytes(lab(RIGHT, CHECK))
    found = grade(tmp_path, lab=2)
    assert [g.number for g in found.grades] == [e.number for e in exercises_of(2)]
    assert {g.reason for g in found.grades} == {"this is lab 00_start_here"}


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (None, {}, "no such folder or file"),
        ({}, {}, "no notebooks in it"),
        ({"kim.ipynb": b"{"}, {}, "Say which: --lab 2"),
        ({"kim.ipynb": b"{"}, {"lab": 12}, "there is no lab 12: expected a number from 0 to 8"),
        ({"class.zip": b"PK"}, {}, "no notebook says which lab"),
    ],
)
def test_what_cannot_be_graded_is_named(tmp_path, make, options, says):
    folder = tmp_path / "class"
    if make is not None:
        folder.mkdir()
        for name, content in make.items():
            (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        grade(folder, **options)


# Larger labs, with torch ----------------------------------------------------------------------------------------------

PREFERENCES = {
    "own": (
        "def make_pairs(answers, ranks):\n    n = range(len(ranks))\n"
        "    found = {(answers[i], answers[j]) for i in n for j in n if ranks[i] < ranks[j]}\n"
        "    return sorted(pair for pair in found if pair[0] != pair[1])",
        "right",
        "",
    ),
    "imported": (
        "import onegpu.preference_data as p\n"
        "def make_pairs(answers, ranks):\n    found = {(answers[i], answers[j]) for i, j in p.pairs_of(ranks)}\n"
        "    return sorted(pair for pair in found if pair[0] != pair[1])",
        "borrowed",
        "pairs_of",
    ),
    "by its text": (
        "import inspect, onegpu.preference_data as p\nspace = dict(vars(inspect.getmodule(p.pairs_of)))\n"
        "exec(inspect.getsource(p.pairs_of), space)\npairs = space['pairs_of']\n"
        "def make_pairs(answers, ranks):\n    found = {(answers[i], answers[j]) for i, j in pairs(ranks)}\n"
        "    return sorted(pair for pair in found if pair[0] != pair[1])",
        "borrowed",
        "compiled from a text",
    ),
    "tracing off": (
        "import sys\ndef make_pairs(answers, ranks):\n    sys.setprofile(None)\n    n = range(len(ranks))\n"
        "    found = {(answers[i], answers[j]) for i in n for j in n if ranks[i] < ranks[j]}\n"
        "    return sorted(pair for pair in found if pair[0] != pair[1])",
        "borrowed",
        "switched the tracing off",
    ),
}


@pytest.fixture(scope="module")
def preferences(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab02")
    for name, (source, _, _) in PREFERENCES.items():
        (folder / f"{name}.ipynb").write_bytes(lab(source, 'make_pairs = check("2.1", make_pairs)'))
    return grade(folder, jobs=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PREFERENCES)
def test_an_answer_of_the_package_is_not_paid(preferences, name):
    found = preferences.of(name)[0]
    assert (found.number, found.status) == ("2.1", PREFERENCES[name][1]), found.message
    assert PREFERENCES[name][2] in found.reason


# Tables and files -----------------------------------------------------------------------------------------------------


def test_korean_names_stand_in_straight_columns():
    grades = Grades((Grade("김민수", "0.1", "right"), Grade("kim", "0.1", "wrong", "a case", "a hint")))
    lines = str(grades).splitlines()
    assert [columns(line[: line.index(mark)]) for line, mark in zip(lines[1:3], "✔✘", strict=True)] == [9, 9]
    assert '1 in the case "a case": a hint' in str(grades)


def test_no_line_of_the_table_is_wider_than_a_terminal():
    numbers = [e.number for topic in range(1, 9) for e in exercises_of(topic)]
    long = Grade("김" * 60, "1.1", "wrong", "c" * 70, "한글 " * 80)
    grades = Grades((long, *(Grade("kim", n, "failed", reason="no function") for n in numbers)))
    assert max(map(columns, str(grades).splitlines())) <= 80


def test_exercises_are_in_order_of_their_numbers():
    grades = Grades(tuple(Grade("a", n, "right") for n in ("4.10", "4.9", "3.2")))
    assert grades.numbers == ("3.2", "4.9", "4.10")
    assert grades.score("a") == 3


def test_the_csv_has_a_row_for_each_student_and_exercise(tmp_path):
    grades = Grades(
        (Grade("김", "0.1", "right"), Grade("=HYPERLINK(1)", "0.1", "wrong", "c", "-1 is +1", file="@f"))
    )
    grades.write_csv(tmp_path / "grades.csv")
    raw = (tmp_path / "grades.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")  # or a spreadsheet shows Korean names as noise
    rows = list(csv.DictReader(raw.decode("utf-8-sig").splitlines()))
    assert rows[0] == {
        "student": "김",
        "exercise": "0.1",
        "status": "right",
        "points": "1",
        "case": "",
        "reason": "",
        "file": "",
    }
    assert (rows[1]["student"], rows[1]["reason"], rows[1]["file"]) == ("'=HYPERLINK(1)", "'-1 is +1", "'@f")


@pytest.mark.parametrize("cell", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "＝1"])
def test_no_cell_is_a_formula(cell):
    assert harmless(cell) == "'" + cell


def test_the_commonest_fault_comes_first():
    grades = Grades(
        tuple(
            Grade(s, "0.1", "wrong", "c", hint)
            for s, hint in zip("abc", ("bits", "bytes", "bytes"), strict=True)
        )
    )
    assert grades.commonest_faults()["0.1"].most_common(1) == [(("c", "bytes"), 2)]
    assert '2 in the case "c": bytes' in str(grades)


def test_the_stub_of_the_samples_is_the_lab_s():
    assert "return ...  # your code here" in STUB
