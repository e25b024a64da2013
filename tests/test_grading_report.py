"""The pages of a class, its command line, and how values travel between the processes."""

import json
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
import torch
from grading_samples import CHECK, RIGHT, WRONG, lab
from onegpu.cli import app
from onegpu.exercises.comparison import difference
from onegpu.grading import Grade, Grades
from onegpu.grading.report import class_page, file_names, student_page, write_report
from onegpu.grading.values import read_value, write_value
from typer.testing import CliRunner

GRADES = Grades(
    (
        Grade("김민수", "0.1", "right", message="✔ 0.1 right"),
        Grade(
            "<b>kim</b>",
            "0.1",
            "wrong",
            "a <case>",
            "Use <, not >.",
            "✘ 0.1\n  got:  <x>\n  hint: Use <, not >.",
        ),
        Grade("lee", "0.1", "failed", reason="no function"),
    ),
    {"lee": ("2 files, counted once",)},
    "network kept off",
)


def test_a_student_s_page_says_what_failed_and_nothing_of_it_is_markup(tmp_path):
    page = student_page(GRADES, "<b>kim</b>")
    assert "<dt>got</dt><dd><code>&lt;x&gt;</code></dd>" in page
    assert "<dd>Use &lt;, not &gt;.</dd>" in page
    assert "<b>" not in page
    assert 'name="viewport"' in page


def test_the_class_s_page_links_to_every_student_and_says_what_to_explain(tmp_path):
    page = write_report(GRADES, tmp_path).read_text(encoding="utf-8")
    names = file_names(GRADES.students)
    for name in names.values():
        assert (tmp_path / "students" / name).is_file()
        assert f'href="students/{name}"' in page
    assert len(set(names.values())) == 3
    assert "<strong>1 of 1</strong>, in the case “a &lt;case&gt;”: Use &lt;, not &gt;." in page
    assert "lee: 2 files, counted once" in page
    write_report(Grades(GRADES.grades[:1]), tmp_path)  # nobody of an earlier class stays
    assert len(list((tmp_path / "students").iterdir())) == 1


def test_pages_have_what_axe_asks_for():
    page = class_page(GRADES, file_names(GRADES.students))
    assert page.count("<h1>") == 1
    assert '<html lang="en">' in page
    assert 'aria-label="not right yet"' in page


# The command ----------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["grade", *map(str, arguments)])


def test_the_command_writes_table_csv_and_pages(tmp_path):
    folder = tmp_path / "lab 0"
    folder.mkdir()
    (folder / "kim.ipynb").write_bytes(lab(RIGHT, CHECK))
    (folder / "lee.ipynb").write_bytes(lab(WRONG, CHECK))
    done = run(folder, "--csv", tmp_path / "more.csv", "--timeout", 30)
    assert done.exit_code == 0, done.output
    out = tmp_path / "lab 0-grades"
    assert "kim      ✔    1/1" in done.output
    assert "other files" in done.output
    assert (out / "class.html").is_file()
    assert (out / "grades.csv").read_bytes() == (tmp_path / "more.csv").read_bytes()
    kept = list((out / "kept").iterdir())
    assert len(kept) == 2
    (folder / "park.ipynb").write_bytes(lab(RIGHT, CHECK))
    assert run(folder, "--timeout", 30).exit_code == 0
    assert len(list((out / "kept").iterdir())) == 3
    assert set(kept) <= set((out / "kept").iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--timeout", "0"], "expected numbers above 0"),
        (["--jobs", "0"], "jobs is 0, expected at least 1"),
        (["--lab", "quantization"], "expected a lab's number, such as 4"),
        (["--lab", "12"], "there is no lab 12"),
        (["--out", "{folder}/grades"], "choose another folder"),
    ],
)
def test_options_that_make_no_sense_are_named(tmp_path, options, says):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "kim.ipynb").write_bytes(lab(RIGHT, CHECK))
    done = run(tmp_path / "class", *(o.format(folder=tmp_path / "class") for o in options))
    assert done.exit_code == 1
    assert says in str(done.exception)


def test_a_folder_that_is_missing_leaves_none_behind(tmp_path):
    assert run(tmp_path / "nothing").exit_code == 1
    assert not list(tmp_path.iterdir())


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, -(10**40), 2.5, math.inf, math.nan, 1 + 2j, "한글 \ud800", b"\x00\xff", Fraction(1, 3),
        [1, [2.0, "x"]], (1, (2,)), {1: "a", "b": [2]}, {1, 2}, range(3, 9, 2), np.int64(3), np.bool_(True),
        np.arange(6, dtype=np.int8).reshape(2, 3), torch.arange(6).view(2, 3), torch.tensor(1.5),
        torch.zeros(0, 3, dtype=torch.bfloat16), torch.tensor([1.5, -2], dtype=torch.float16),
        torch.arange(6.0).view(2, 3).T, torch.tensor([True, False]), pa.array([[1], None, [2, 3]]),
        pa.table({"a": [1, 2]}), pa.scalar(3),
    ],
    ids=lambda value: f"{type(value).__name__} {value}"[:30],
)  # fmt: skip
def test_a_value_arrives_as_it_was(value):
    again = read_value(json.loads(json.dumps(write_value(value))))
    assert difference(again, value, rtol=0, atol=0) is None
    assert type(again) is type(value)


def test_a_gradient_s_flags_arrive():
    leaf = torch.ones(2, requires_grad=True)
    for value in (leaf, leaf * 2, leaf.detach()):
        again = read_value(write_value(value))
        assert (again.requires_grad, again.is_leaf) == (value.requires_grad, value.is_leaf)


def test_an_error_arrives_with_its_kind_and_message():
    class Mine(KeyError):
        pass

    again = read_value(write_value(Mine("boundary")))
    assert isinstance(again, KeyError)
    assert (type(again).__name__, str(again)) == ("Mine", "'boundary'")


def test_what_does_not_travel_equals_nothing_and_says_what_it_was():
    again = read_value(write_value(torch.nn.ReLU()))
    assert (type(again).__name__, repr(again)) == ("ReLU", "ReLU()")
    assert difference(again, torch.nn.ReLU()) is not None
    loop = []
    loop.append(loop)
    read_value(write_value(loop))


@pytest.mark.parametrize(
    "content",
    [
        ["exec", "1"], [], {}, ["tensor", "float32", [9], "AAAA", False, True], ["tensor", "load", [1], "", False, True],
        ["array", "|O", [1], "AAAAAAAAAAA="], ["int", "0x"], ["list", 3], ["error", 1], ["arrow", "Array", "AAAA"],
    ],
    ids=str,
)  # fmt: skip
def test_what_no_writer_wrote_is_refused(content):
    with pytest.raises(ValueError, match=r".+"):
        read_value(content)
