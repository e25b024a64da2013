"""Whose each notebook is, in all the ways in which a class's files come back."""

import io
import unicodedata
import zipfile

import pytest
from grading_samples import CHECK, RIGHT, lab
from onegpu.grading import collect
from onegpu.grading.notebook import read_lab


def written(folder, names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zipped(names[name]) if isinstance(names, dict) and name.endswith(".zip") else b"{}")
    return folder


def zipped(names):
    """A zip with notebooks of these names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, names[name] if isinstance(names, dict) else b"{}")
    return file.getvalue()


def students(source):
    return sorted((s.student, s.place) for s in collect(source))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["kim.ipynb", "lee.ipynb"], ["kim", "lee"]),
        (["kim/04_quantization.ipynb", "lee/04_quantization.ipynb"], ["kim", "lee"]),
        (["kim/01_a.ipynb", "kim/02_b.ipynb"], ["kim", "kim"]),
        (["kim/lab01/x.ipynb", "kim/lab02/x.ipynb"], ["kim", "kim"]),
        (["lab 2/kim.ipynb", "lab 2/lee.ipynb"], ["kim", "lee"]),
        (["class/lab2/kim/x.ipynb", "class/lab2/lee/x.ipynb"], ["kim", "lee"]),
        (
            [
                "Kim Minsu_1234567_assignsubmission_file_/lab02.ipynb",
                "Kim Minsu_1234567_assignsubmission_onlinetext_/onlinetext.ipynb",
                "박 지민_7_assignsubmission_file_/lab 2 (최종).ipynb",
            ],
            ["Kim Minsu", "박 지민"],
        ),
        (["Kim Minsu_1_assignsubmission_file_lab02.ipynb"], ["Kim Minsu"]),
        (
            ["김민수_1_assignsubmission_file_/a.ipynb", "김민수_2_assignsubmission_file_/a.ipynb"],
            ["김민수 (1)", "김민수 (2)"],
        ),
        (
            ["kimminsu_12345_6789012_lab02.ipynb", "leejimin_LATE_2345_789012_lab02-1.ipynb"],
            ["kimminsu", "leejimin"],
        ),
        (
            [
                "submitted/kim/lab04/x.ipynb",
                "submitted/lee/lab04/x.ipynb",
                "source/lab04/x.ipynb",
                "autograded/kim/lab04/x.ipynb",
                "release/lab04/x.ipynb",
            ],
            ["kim", "lee"],
        ),
        (["kim/lab04/x.ipynb", "lee/lab04/x.ipynb"], ["kim", "lee"]),
        (["kim (1).ipynb", "kim.ipynb", "kim - 복사본.ipynb"], ["kim", "kim", "kim"]),
        (["kim/.ipynb_checkpoints/x-checkpoint.ipynb", "kim/x.ipynb", "__MACOSX/kim/._x.ipynb"], ["kim"]),
        ([unicodedata.normalize("NFD", "김민수") + ".ipynb"], ["김민수"]),
    ],
)
def test_layouts(tmp_path, names, expected):
    assert [student for student, _ in students(written(tmp_path, names))] == expected
    archive = tmp_path / "all.zip"
    archive.write_bytes(zipped(names))
    assert [student for student, _ in students(archive)] == expected


def test_zips_among_the_files(tmp_path):
    folder = written(
        tmp_path,
        {
            "kim.ipynb": None,
            "lee.zip": ["lab/04.ipynb"],
            "박지민_7_assignsubmission_file_/all.zip": ["x/y.ipynb"],
        },
    )
    assert [student for student, _ in students(folder)] == ["kim", "lee", "박지민"]


@pytest.mark.parametrize("encoding", ["cp949", "utf-8"])
def test_korean_names_in_a_zip_that_does_not_say_its_encoding(tmp_path, encoding):
    raw = "김민수".encode(encoding)  # as Windows in Korea writes it, without the mark for UTF-8
    plain = b"x" * len(raw)
    (tmp_path / "all.zip").write_bytes(zipped([f"{plain.decode()}.ipynb"]).replace(plain, raw))
    assert students(tmp_path / "all.zip") == [("김민수", "김민수.ipynb")]


def test_what_cannot_be_opened_is_a_row(tmp_path):
    (tmp_path / "kim.zip").write_bytes(b"PK\x03\x04 cut off")
    (tmp_path / "lee.zip").write_bytes(zipped([]))
    (tmp_path / "park.zip").write_bytes(zipped(["report.docx"]))
    assert {s.student: s.problem for s in collect(tmp_path)} == {
        "kim": "not a zip that can be opened",
        "lee": "a zip without a notebook in it",
        "park": "a zip without a notebook in it",
    }


def test_a_zip_that_grows_beyond_the_limit_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("onegpu.grading.collecting.MOST_NOTEBOOK_BYTES", 1000)
    (tmp_path / "kim.zip").write_bytes(zipped({"x.ipynb": b" " * 2000}))
    (tmp_path / "lee.ipynb").write_bytes(b" " * 2000)
    assert {s.student: s.problem[:6] for s in collect(tmp_path)} == {"kim": "larger", "lee": "larger"}


def test_a_zip_writes_nothing_outside(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "kim.zip").write_bytes(zipped(["../../out.ipynb"]))
    assert len(collect(tmp_path / "in")) == 1
    assert not list(tmp_path.rglob("out.ipynb"))


# What a notebook says -------------------------------------------------------------------------------------------------


def test_checks_are_read_from_the_tree_not_from_the_text():
    found = read_lab(
        lab(
            RIGHT,
            '# check("0.1", first_try)',
            'check(\n    "0.1",\n    weights_bytes,\n)',
            'check(function=other, number="0.1")',
            "text = 'check(\"0.1\", in_a_text)'",
        )
    )
    assert found.topic == 0
    assert found.checked == {"0.1": ("weights_bytes", "other")}
    assert found.parameters == {"weights_bytes": ("parameters", "bits")}


def test_the_lab_of_a_notebook_without_checks_is_that_of_its_functions():
    cells = [f"def {name}(x):\n    return x" for name in ("make_pairs", "preference_loss", "accuracy")]
    assert read_lab(lab(*cells, first="")).topic == 2
    assert read_lab(lab("x = 1", first="")).topic is None


def test_a_cell_that_is_no_python_hides_no_other():
    assert read_lab(lab("def f(:", RIGHT, CHECK)).checked == {"0.1": ("weights_bytes",)}
