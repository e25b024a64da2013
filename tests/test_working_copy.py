"""A learner's own copy of the notebooks: made once, brought up to date, never written over."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from onegpu.notebooks import working_copy
from onegpu.notebooks.files import NotebookError
from onegpu.notebooks.working_copy import copy_course, shipped

ROOT = Path(__file__).resolve().parents[1]
LAB = "labs/04_quantization.ipynb"


def notebook(*sources, outputs=()):
    cells = [
        {
            "cell_type": "code",
            "source": [s],
            "outputs": list(outputs),
            "metadata": {},
            "execution_count": None,
        }
        for s in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def release(tmp_path):
    """A small release: one lesson, one lab, the glossary."""
    folder = tmp_path / "release"
    (folder / "course").mkdir(parents=True)
    (folder / "labs").mkdir()
    (folder / "course" / "00_start_here.ipynb").write_text(notebook("1 + 1"))
    (folder / "course" / "glossary.md").write_text("absmax\n")
    (folder / LAB).write_text(notebook("def f(x):\n    return ..."))
    return folder


def test_a_first_copy_has_every_file_and_a_second_changes_nothing(release, tmp_path):
    first = copy_course(tmp_path / "mine", release)
    assert set(first.new) == {"course/00_start_here.ipynb", "course/glossary.md", LAB}
    assert (tmp_path / "mine" / LAB).read_bytes() == (release / LAB).read_bytes()
    second = copy_course(tmp_path / "mine", release)
    assert (second.new, second.updated, second.kept) == ((), (), ())
    assert "nothing new" in str(second)


def test_a_new_version_reaches_what_was_only_run(release, tmp_path):
    mine = tmp_path / "mine"
    copy_course(mine, release)
    ran = notebook(
        "def f(x):\n    return ...", outputs=[{"output_type": "stream", "name": "stdout", "text": ["1"]}]
    )
    (mine / LAB).write_text(ran)
    (release / LAB).write_text(notebook("def f(x, y):\n    return ..."))
    assert copy_course(mine, release).updated == (LAB,)
    assert "f(x, y)" in (mine / LAB).read_text()


def test_what_the_learner_wrote_stays_and_the_new_version_lies_beside(release, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    copy_course(mine, release)
    (mine / LAB).write_text(notebook("def f(x):\n    return x + 1"))
    assert copy_course(mine, release).kept == ()  # nothing new was shipped
    (release / LAB).write_text(notebook("def f(x, y):\n    return ..."))
    monkeypatch.setattr("onegpu.__version__", "0.2.0")
    copied = copy_course(mine, release)
    beside = "labs/04_quantization.v0.2.0.ipynb"
    assert copied.kept == ((LAB, beside),)
    assert f"{LAB}: changed by you, so left alone" in str(copied)
    assert "x + 1" in (mine / LAB).read_text()
    assert "f(x, y)" in (mine / beside).read_text()
    assert copy_course(mine, release).kept == ()  # said once


def test_with_a_damaged_list_nothing_is_written_over(release, tmp_path):
    mine = tmp_path / "mine"
    copy_course(mine, release)
    (mine / working_copy.MANIFEST).write_text("{")
    (mine / LAB).write_text(notebook("my work"))
    assert copy_course(mine, release).updated == ()
    assert "my work" in (mine / LAB).read_text()


def test_the_repository_itself_is_refused():
    with pytest.raises(NotebookError, match="is the course's repository"):
        copy_course(ROOT)


def test_a_file_in_the_way_is_named(release, tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(NotebookError, match=r"mine can't be used .*onegpu lab my-course"):
        copy_course(tmp_path / "mine", release)


def test_the_checkout_ships_its_own_notebooks():
    assert shipped() == ROOT


@pytest.mark.slow
def test_the_wheel_brings_the_notebooks_and_lab_opens_them(tmp_path):
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("onegpu-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("course", "labs"):
        assert {
            f"onegpu/notebooks/shipped/{folder}/{p.name}" for p in (ROOT / folder).glob("*.ipynb")
        } <= names
    assert not [name for name in names if "solutions" in name]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "onegpu.cli",
            "lab",
            "mine",
            "--version",
        ],  # jupyter lab prints its version and ends
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "files copied to" in done.stdout
    assert (tmp_path / "mine" / LAB).read_bytes() == (ROOT / LAB).read_bytes()
