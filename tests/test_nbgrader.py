"""nbgrader's source tree, and what the real nbgrader makes of it: solved gets all points, untouched and wrong nothing.

nbgrader has an environment of its own: its folder of programs is named by ONEGPU_NBGRADER (`.ci/run` makes one).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from onegpu.exercises import NotAttempted, check, exercises_of
from onegpu.notebooks import build_nbgrader
from onegpu.notebooks.__main__ import main
from onegpu.notebooks.files import notebook_paths, root, topic_of
from onegpu.notebooks.labs import solution_lines
from onegpu.notebooks.nbgrader import source_of
from onegpu.notebooks.parts import ref

SOLUTIONS = notebook_paths(root(), ("solutions",))
HERE = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nbgrader")
    report = build_nbgrader(folder)
    assert report.ok, report
    return folder


def about(notebook):
    return [(cell, cell.metadata["nbgrader"]) for cell in notebook.cells if "nbgrader" in cell.metadata]


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.stem)
def test_each_exercise_has_one_point_and_a_cell_to_fill_in(course, solution):
    source = nbformat.read(course / "source" / solution.stem / solution.name, as_version=4)
    numbers = [exercise.number for exercise in exercises_of(topic_of(solution))]
    graded = [(cell, a) for cell, a in about(source) if a["grade"]]
    assert [a["grade_id"] for _, a in graded] == [f"check_{n.replace('.', '_')}" for n in numbers]
    assert {(a["points"], a["locked"], a["solution"]) for _, a in graded} == {(1, True, False)}
    for (cell, _), number in zip(graded, numbers, strict=True):  # nothing else in it can fail
        assert cell.source.count("\n") == 0
        assert f'check("{number}"' in cell.source
    filled = [a["grade_id"] for _, a in about(source) if a["solution"]]
    assert filled == [f"solution_{n.replace('.', '_')}" for n in numbers]


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.stem)
def test_the_source_says_what_the_lab_says(course, solution):
    source = nbformat.read(course / "source" / solution.stem / solution.name, as_version=4)
    lab = nbformat.read(root() / "labs" / solution.name, as_version=4)
    texts = [
        "".join(c.source for c in notebook.cells if c.cell_type == "markdown") for notebook in (source, lab)
    ]
    assert texts[0] == texts[1]  # the badge too: not that of the solution
    assert not any(cell.get("outputs") for cell in source.cells)
    assert not any(solution_lines(cell.source) for cell in lab.cells)


def test_a_second_build_writes_nothing_and_a_teacher_s_settings_stay(course, capsys):
    before = (course / "nbgrader_config.py").read_text(encoding="utf-8")
    assert build_nbgrader(course).done == ()
    (course / "nbgrader_config.py").write_text("c = get_config()\n", encoding="utf-8")
    assert main(["build", "--nbgrader", str(course)]) == 1
    assert (
        'c.ClearSolutions.code_stub = {"python": "return ...  # your code here"}' in capsys.readouterr().out
    )
    assert (course / "nbgrader_config.py").read_text(encoding="utf-8") == "c = get_config()\n"
    (course / "nbgrader_config.py").write_text(before, encoding="utf-8")


def test_a_solution_without_a_check_is_named():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION")
    ]
    with pytest.raises(ValueError, match="a solution without a check"):
        source_of(notebook, "01_x.ipynb", "https://github.com/school/course")


def test_nbgrader_s_own_variable_makes_a_stub_fail(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(NotAttempted):
        check("0.1", lambda parameters, bits: ...)
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    check("0.1", lambda parameters, bits: ...)


# The real nbgrader ----------------------------------------------------------------------------------------------------


def programs():
    folder = os.environ.get("ONEGPU_NBGRADER", "")
    if not folder or not (Path(folder) / "nbgrader").exists():
        pytest.skip(
            "nbgrader isn't here: python -m venv E && E/bin/pip install nbgrader, then ONEGPU_NBGRADER=E/bin"
        )
    return Path(folder)


def nbgrader(folder, *arguments):
    """Run nbgrader in a course; its kernel is this interpreter, which has the course's package."""
    place = programs()
    kernel = folder / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "env": {"PYTHONPATH": str(HERE / "helpers")},
    }
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "ONEGPU_STRICT")
    }
    environment |= {
        "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
        "JUPYTER_PATH": str(folder / "jupyter"),
        "HOME": str(folder / "home"),
        "HF_HOME": os.environ.get("HF_HOME", str(Path.home() / ".cache" / "huggingface")),
        "ONEGPU_CACHE": os.environ.get("ONEGPU_CACHE", str(Path.home() / ".cache" / "onegpu")),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(place / "nbgrader"), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def hand_in(folder, student, lab, notebook):
    path = folder / "submitted" / student / lab / f"{lab}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def filled(release, source, change=lambda text: text):
    """The release with its cells filled in from the source."""
    answers = {a["grade_id"]: cell.source for cell, a in about(source) if a["solution"]}
    for cell, a in about(release):
        if a["solution"]:
            cell.source = change(answers[a["grade_id"]])
    return release


def wrong(text):
    before, _, rest = text.partition("    ### BEGIN SOLUTION")
    return before + '    return "wrong"' + rest.partition("### END SOLUTION")[2]


@pytest.mark.nbgrader
@pytest.mark.slow
@pytest.mark.parametrize("lab", os.environ.get("ONEGPU_NBGRADER_LABS", "01_sft_datasets").split(","))
def test_solved_gets_all_untouched_and_wrong_nothing(course, lab):
    nbgrader(course, "generate_assignment", lab)
    path = course / "release" / lab / f"{lab}.ipynb"
    text = path.read_text(encoding="utf-8")
    source = nbformat.read(course / "source" / lab / f"{lab}.ipynb", as_version=4)
    lab_text = (root() / "labs" / f"{lab}.ipynb").read_text(encoding="utf-8")
    given_away = [line for cell in source.cells for line in solution_lines(cell.source)]
    given_away = [
        line for line in given_away if json.dumps(line)[1:-1] not in lab_text
    ]  # a formula in the text
    assert given_away
    assert not [line for line in given_away if json.dumps(line)[1:-1] in text]
    assert text.count("return ...  # your code here") == len(exercises_of(int(lab[:2])))
    assert f"/blob/{ref()}/labs/{lab}.ipynb" in text

    def release():
        return nbformat.read(path, as_version=4)

    hand_in(course, "untouched", lab, release())
    hand_in(course, "solved", lab, filled(release(), source))
    hand_in(course, "wrong", lab, filled(release(), source, wrong))
    nbgrader(course, "autograde", lab, "--create")
    nbgrader(course, "export", "--to", f"{lab}.csv")
    rows = (course / f"{lab}.csv").read_text(encoding="utf-8").splitlines()
    head = rows[0].split(",")
    scores = {}
    for row in rows[1:]:
        cells = dict(zip(head, row.split(","), strict=False))
        if cells["assignment"] == lab:
            scores[cells["student_id"]] = (float(cells["score"]), float(cells["max_score"]))
    most = float(len(exercises_of(int(lab[:2]))))
    assert scores == {"solved": (most, most), "untouched": (0.0, most), "wrong": (0.0, most)}
