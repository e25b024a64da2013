"""The notebook system on small notebooks made here, and the course's own notebooks as they are committed."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegpu.notebooks import NotebookError, build, check, from_text, run, to_text
from onegpu.notebooks.__main__ import main
from onegpu.notebooks.execution import digest, execute, stabilise
from onegpu.notebooks.files import read, repository, root, write
from onegpu.notebooks.labs import lab_from, stubbed
from onegpu.notebooks.parts import lesson_minutes, ref, setup_source
from onegpu.notebooks.rules import code_lines, problems_of, shows_something

NAME = "00_start_here.ipynb"
SOLUTION = '''# A lab

You will be able to count bytes. 5 minutes.

```python
from onegpu.exercises import check
```

## Bytes

```python
def weights_bytes(parameters, bits):
    """Return bytes."""
    ### BEGIN SOLUTION
    whole, rest = divmod(parameters * bits, 8)
    return whole + (rest > 0)
    ### END SOLUTION
```

```python
weights_bytes = check("0.1", weights_bytes)
weights_bytes(3, 4)
```
'''


def make_repository(folder: Path) -> Path:
    """A repository with one solution, built, whose pyproject names another address."""
    shutil.copy(root() / "conftest.py", folder / "conftest.py")
    (folder / "tests").mkdir()
    shutil.copy(root() / "tests" / "nbval_sanitize.cfg", folder / "tests" / "nbval_sanitize.cfg")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "course"\n[project.urls]\nRepository = "https://github.com/school/course"\n'
        "[tool.pytest.ini_options]\n"
        'addopts = "--nbval --nbval-current-env --nbval-cell-timeout=300"\n'
        'testpaths = ["course", "labs", "solutions"]\n'
    )
    write(folder / "solutions" / NAME, from_text(SOLUTION))
    assert build(folder).ok
    return folder


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """A built and executed repository; copy it before you change it."""
    folder = make_repository(tmp_path_factory.mktemp("repository"))
    assert run(folder=folder).ok
    return folder


@pytest.fixture
def repo(executed, tmp_path):
    """A copy of the executed repository, for a test to break."""
    return Path(shutil.copytree(executed, tmp_path / "repo"))


def change(path, edit):
    """Edit a notebook in place."""
    notebook = read(path)
    edit(notebook)
    write(path, notebook)


def cell_with(notebook, text):
    return next(cell for cell in notebook.cells if text in cell.source)


# The course as it is committed ------------------------------------------------------------------------------------------


def test_the_notebooks_of_the_course_are_in_step():
    report = check()
    assert report.ok, (
        f"{report}\n\nEach line says what to run. After `run` and `build`, commit course/, labs/ and solutions/."
    )


def test_an_exercise_without_its_statement_is_named():
    place = "solutions/05_gpu_memory.ipynb"
    notebook = read(root() / place)
    for cell in notebook.cells:
        cell.source = cell.source.replace("## 5.7 ", "## Once ")
    (problem,) = [said for said in problems_of(notebook, place, root()) if "statement" in said]
    assert problem.startswith(
        "exercise 5.7: its statement is missing, expected a Markdown cell with the heading"
    )


def test_the_map_has_the_minutes_that_the_notebooks_say():
    from onegpu.notebooks.overview import TOPICS

    wrong = []
    for topic in TOPICS:
        for folder, minutes in (("course", topic.lesson_minutes), ("labs", topic.lab_minutes)):
            path = root() / folder / topic.file
            if path.is_file():
                said = int(re.search(r"(\d+) minutes", read(path).cells[0].source)[1])
                if said != minutes:
                    wrong.append(
                        f"{folder}/{topic.file} says {said} minutes, the map (notebooks/overview.py) {minutes}"
                    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("number", range(1, 9))
def test_the_minutes_are_counted_as_the_start_says(number):
    from onegpu.exercises import exercises_of
    from onegpu.notebooks.overview import TOPICS

    topic = TOPICS[number - 1]
    counted = lesson_minutes(read(root() / "course" / topic.file))
    assert abs(topic.lesson_minutes - counted) <= 7, f"{counted:.0f} minutes by words, cells and guesses"
    most = sum(one.minutes for one in exercises_of(number) if one.level != "stretch")
    assert topic.lab_minutes == -(-most // 5) * 5


def test_every_notebook_is_on_the_map():
    from onegpu.notebooks.overview import TOPICS

    known = {topic.file for topic in TOPICS} | {"00_start_here.ipynb"}
    assert {
        path.name for place in ("course", "labs", "solutions") for path in (root() / place).glob("*.ipynb")
    } <= known


# Labs from solutions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "stub"),
    [
        (
            "def f(x):\n    y = 1\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n",
            "def f(x):\n    y = 1\n    return ...  # your code here",
        ),
        (
            "def f(\n    x: int,\n) -> int:\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION",
            "def f(\n    x: int,\n) -> int:\n    return ...  # your code here",
        ),
        (
            'def f(x):\n    """Doc\n    more.\n    """\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION',
            'def f(x):\n    """Doc\n    more.\n    """\n    return ...  # your code here',
        ),
        (
            "def f(x):\n    if x:\n        ### BEGIN SOLUTION\n        return x\n        ### END SOLUTION\n    return 0",
            "def f(x):\n    if x:\n        return ...  # your code here\n    return 0",
        ),
        (
            "class A:\n    def f(self):\n        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION",
            "class A:\n    def f(self):\n        return ...  # your code here",
        ),
        (
            "class A:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION",
            "class A:\n    ...  # your code here",
        ),
        (
            "def f():\n    class A:\n        ### BEGIN SOLUTION\n        x = 1\n        ### END SOLUTION",
            "def f():\n    class A:\n        ...  # your code here",
        ),
        ("### BEGIN SOLUTION\nx = 1\n### END SOLUTION\nprint(1)", "...  # your code here\nprint(1)"),
        (
            "def f():\n    return 1\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION",
            "def f():\n    return 1\n...  # your code here",
        ),
        ("x = 1", "x = 1"),
    ],
)
def test_a_solution_becomes_a_stub_that_is_valid_python(source, stub):
    assert stubbed(source) == stub
    compile(stub, "stub", "exec")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("### BEGIN SOLUTION\nx", "without ### END"),
        ("x\n### END SOLUTION", "line 2: ### END SOLUTION without"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION", "inside another"),
        ("### BEGIN SOLUTIONS\nx\n### END SOLUTION", "is no marker"),
    ],
)
def test_markers_without_partner_are_named(source, says):
    with pytest.raises(NotebookError, match=says):
        stubbed(source)


def test_no_line_of_a_solution_is_in_the_lab(executed):
    lab = (executed / "labs" / NAME).read_text()
    assert "divmod" not in lab
    assert "rest > 0" not in lab
    assert lab.count("your code here") == 1


def test_a_lab_has_no_outputs_and_another_badge(executed):
    lab, solution = read(executed / "labs" / NAME), read(executed / "solutions" / NAME)
    assert all(not cell.get("outputs") for cell in lab.cells)
    assert "blob/v0.1.0/labs/00" in lab.cells[0].source
    assert "blob/v0.1.0/solutions/00" in solution.cells[0].source


def test_a_cell_tagged_solution_only_is_left_out():
    solution = from_text("# T\n\n```python tags=solution-only\nsecret = 1\n```\n\n```python\nx = 1\n```")
    assert [cell.source for cell in lab_from(solution).cells] == ["# T", "x = 1"]


def test_building_twice_changes_nothing(repo):
    assert build(repo).done == ()


def test_badge_and_setup_cell_come_from_the_one_address(repo):
    text = (repo / "pyproject.toml").read_text()
    assert "/github/school/course/blob/" in read(repo / "labs" / NAME).cells[0].source
    (repo / "pyproject.toml").write_text(text.replace("school/course", "fork/of-it"))
    repository.__globals__["_address"].cache_clear()
    assert len(build(repo).done) == 2
    assert "/github/fork/of-it/blob/" in read(repo / "labs" / NAME).cells[0].source
    assert "git+https://github.com/fork/of-it@" in read(repo / "solutions" / NAME).cells[1].source
    assert check(repo).ok, check(repo)  # outputs are still those of the same code


@pytest.mark.parametrize("address", ["", "https://example.org/a/b", "https://github.com/onlyowner"])
def test_an_address_that_cannot_be_used_is_named(tmp_path, address):
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname="x"\n[project.urls]\nRepository = "{address}"\n'
    )
    with pytest.raises(NotebookError, match=re.escape("expected https://github.com/OWNER/NAME")):
        repository(tmp_path)


def test_build_puts_the_setup_cell_back_and_keeps_outputs(repo):
    change(repo / "solutions" / NAME, lambda nb: nb.cells.pop(1))
    assert any("no setup cell" in p for p in check(repo).problems)
    build(repo)
    solution = read(repo / "solutions" / NAME)
    assert solution.cells[1].source == setup_source("https://github.com/school/course")
    assert cell_with(solution, '"0.1"').outputs


def test_build_formats_code_without_making_outputs_stale(repo):
    path = repo / "solutions" / NAME
    change(path, lambda nb: nb.cells.append(nbformat.v4.new_code_cell("x = {  'a':1 }", execution_count=5)))
    change(path, lambda nb: nb.metadata.update(onegpu={"executed": digest(nb)}))
    build(repo)
    assert read(path).cells[-2].source == 'x = {"a": 1}'
    assert check(repo).ok, check(repo)


def test_build_does_not_stamp_outputs_that_are_stale(repo):
    change(repo / "solutions" / NAME, edit_output)
    build(repo)
    assert any("changed since it was executed" in p for p in check(repo).problems)


def test_the_last_cell_leads_on_and_a_changed_one_is_found(repo):
    path = repo / "labs" / NAME
    last = read(path).cells[-1].source
    assert "[lesson 01 sft datasets](../course/01_sft_datasets.ipynb)" in last
    assert f"blob/{ref()}/course/01_sft_datasets.ipynb" in last
    change(path, lambda nb: nb.cells.pop())
    assert any("the last cell isn't the generated one" in p for p in check(repo).problems)


def test_build_changes_nothing_in_the_course_as_committed(tmp_path):
    for name in ("course", "labs", "solutions"):
        shutil.copytree(root() / name, tmp_path / name)
    shutil.copy(root() / "pyproject.toml", tmp_path)
    assert build(tmp_path).done == ()


# Text -------------------------------------------------------------------------------------------------------------------


def test_pictures_leave_an_output_before_any_other_pattern_searches_it():
    # A pattern that begins with any number of letters takes time quadratic in the length of a picture's.
    patterns = (root() / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8")
    first = re.search(r"^regex: (.*)$", patterns, re.MULTILINE)[1]
    assert re.sub(first, "", f"<img src='data:image/png;base64,{'iVBORw0K' * 1000}'>") == "<img src=''>"


words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
    lambda s: s.strip() and not s.startswith(("`", "~", "+++", "#"))
)


@given(st.lists(st.tuples(st.sampled_from(["markdown", "code"]), words), max_size=6))
def test_text_and_notebook_are_the_same_thing(cells):
    notebook = nbformat.v4.new_notebook()
    for kind, source in cells:
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        notebook.cells.append(make(source.strip()))
    back = from_text(to_text(notebook))
    assert [(c.cell_type, c.source) for c in back.cells] == [(c.cell_type, c.source) for c in notebook.cells]


def test_tags_and_shown_code_survive_the_text():
    text = "# T\n\n```py\nx = 1\n+++\n```\n\n+++\n\nMore.\n\n```python tags=a,b-c\ny\n```\n"
    notebook = from_text(text)
    assert [c.cell_type for c in notebook.cells] == ["markdown", "markdown", "code"]
    assert notebook.cells[2].metadata.tags == ["a", "b-c"]
    assert to_text(notebook) == text


@pytest.mark.parametrize("text", ["```python\nx", "```python tag=a\nx\n```"])
def test_a_fence_that_is_not_closed_or_not_understood_is_named(text):
    with pytest.raises(NotebookError, match="line 1"):
        from_text(text)


# Execution --------------------------------------------------------------------------------------------------------------


def test_executing_twice_stores_the_same_bytes(repo):
    before = (repo / "solutions" / NAME).read_bytes()
    assert run([repo / "solutions" / NAME], folder=repo).ok
    assert (repo / "solutions" / NAME).read_bytes() == before


def test_what_differs_each_time_is_taken_out(tmp_path):
    notebook = from_text(
        "```python\nprint(object(), __import__('os').getcwd())\n```\n\n"
        "```python\nimport ipywidgets\nipywidgets.IntSlider(3)\n```\n\n"
        "```python tags=raises-exception\nimport json\njson.loads('x')\n```\n\n"
        "```python\nprint({'a', 'b', 'c'})\n```\n"
    )
    other = copy.deepcopy(notebook)
    for nb in (notebook, other):
        assert execute(nb, tmp_path) == ""
        stabilise(nb, tmp_path)
    assert notebook == other
    address, widget, error, _ = (cell.outputs[0] for cell in notebook.cells)
    assert address.text == "<object object at 0xADDRESS> …/onegpu\n"
    assert list(widget.data) == ["text/plain"]
    assert error.traceback == ["JSONDecodeError: Expecting value: line 1 column 1 (char 0)"]
    assert set(notebook.metadata) == {"accelerator", "colab", "kernelspec", "language_info", "onegpu"}


def test_an_inlined_picture_keeps_its_bytes(tmp_path):
    """Base64 may hold what looks like an address; a picture of lesson 04 was stored broken."""
    html = '<img src="data:image/png;base64,iVBORw0x0123abcd+/==">at 0x0123abcd'
    out = nbformat.v4.new_output("display_data", {"text/html": html})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[out])])
    stabilise(notebook, tmp_path)
    stored = notebook.cells[0].outputs[0].data["text/html"]
    assert stored == html.replace(">at 0x0123abcd", ">at 0xADDRESS")


def test_a_cell_that_fails_is_named_and_nothing_is_stored(repo):
    path = repo / "solutions" / NAME
    change(path, lambda nb: setattr(nb.cells[-2], "source", "1 / 0"))
    before = path.read_bytes()
    report = run([path], folder=repo)
    assert re.search(
        r"solutions/00_start_here.ipynb: cell \d+ raised ZeroDivisionError: division by zero", str(report)
    )
    assert path.read_bytes() == before


def test_a_kernel_that_dies_is_named(tmp_path):
    notebook = from_text("```python\nimport os\nos._exit(1)\n```")
    assert "kernel died" in execute(notebook, tmp_path)


def test_a_cell_that_never_ends_is_named(tmp_path):
    assert "longer than 1 s" in execute(
        from_text("```python\nwhile True:\n    pass\n```"), tmp_path, timeout_s=1
    )


# What check finds: each rule on a bad example ---------------------------------------------------------------------------


def add_code(source, **more):
    def edit(notebook):
        notebook.cells.append(nbformat.v4.new_code_cell(source, **more))

    return edit


def add_words(source):
    def edit(notebook):
        notebook.cells.append(nbformat.v4.new_markdown_cell(source))

    return edit


def edit_setup(notebook):
    notebook.cells[1].source += "\nimport os"


def edit_output(notebook):
    cell_with(notebook, '"0.1"').outputs[0].text = "✔ 0.1 bytes of a model's weights: right (4 cases)\n"


def edit_code(notebook):
    cell = cell_with(notebook, "divmod")
    cell.source = cell.source.replace("rest > 0", "rest >= 1")


def edit_badge(notebook):
    notebook.cells[0].source = notebook.cells[0].source.replace("solutions/00", "solutions/02")


def drop_badge(notebook):
    notebook.cells[0].source = re.sub(r"\[!\[.*", "", notebook.cells[0].source)


def drop_output(notebook):
    cell_with(notebook, '"0.1"').outputs = []


def keep_widgets(notebook):
    notebook.metadata["widgets"] = {}


def drop_minutes(notebook):
    notebook.cells[0].source = notebook.cells[0].source.replace("5 minutes", "a while")


def add_output(text, name="stdout"):
    return add_code("x", execution_count=9, outputs=[nbformat.v4.new_output("stream", name=name, text=text)])


def add_figure(metadata):
    data = {"image/png": "aGVsbG8=", "text/plain": "x"}
    return add_code(
        "x", execution_count=9, outputs=[nbformat.v4.new_output("display_data", data, metadata=metadata)]
    )


def ignore_seven(notebook):
    for _ in range(7):
        add_code("x", metadata={"tags": ["nbval-ignore-output"]}, execution_count=9)(notebook)
    add_code("x", execution_count=9)(notebook)


BAD = {
    "a stored output changed": (edit_output, "changed since it was executed: run `onegpu notebooks run solutions/00"),
    "code changed": (edit_code, "changed since it was executed"),
    "setup cell edited": (edit_setup, "the setup cell was edited by hand: run `onegpu notebooks build`"),
    "badge of another file": (edit_badge, "the badge opens solutions/02_start_here.ipynb, which doesn't exist"),
    "no badge": (drop_badge, "there is no Colab badge"),
    "no minutes": (drop_minutes, "say how long it takes"),
    "output missing": (drop_output, "has no stored output, but should have one"),
    "widget state": (keep_widgets, "metadata holds widgets"),
    "heading skipped": (add_words("#### Deep"), "the heading 'Deep' skips a level (from 2 to 4): use ###"),
    "two titles": (add_words("# Again"), "2 headings of level 1"),
    "picture without alt": (add_words("![](attachment:a.png)"), "has no alt text"),
    "picture beside the file": (add_words("![A curve](img/a.png)"), "isn't in the file"),
    "img without alt": (add_words('<img src="data:x">'), "<img> without alt text"),
    "figure without alt": (add_figure({}), "a figure without alt text: show it with onegpu.plots.show"),
    "long cell": (add_code("\n".join(f"x{i} = 1" for i in range(16))), "16 lines of code, at most 15"),
    "syntax error": (add_code("def f(:"), "not valid Python: line 1"),
    "semicolon": (add_code("x = 1;"), "ends in `;`"),
    "skipped cell": (add_code("x = 1", metadata={"tags": ["nbval-skip"]}), "every cell runs in CI"),
    "ignored outputs": (ignore_seven, "at most 6 of a notebook may be"),
    "ignored without a result": (
        add_code("x", metadata={"tags": ["nbval-ignore-output"]}, execution_count=9),
        "no cell after it prints its result",
    ),
    "stderr": (add_output("careful", "stderr"), "writes to stderr"),
    "progress bar": (add_output(" 50%|##   | 1/2 [00:00<00:00, 3.1it/s]"), "a progress bar"),
    "absolute path": (add_output("saved to /home/kim/run"), "an absolute path in its output, '/home/kim/run'"),
    "not executed": (add_code("x = 1"), "not executed"),
    "unknown check": (add_code('f = check("0.9", f)', execution_count=9), "it checks 0.1, 0.9, expected 0.1, in"),
    "check without name": (add_code('check("0.1", f)', execution_count=9), "so that the lab goes on"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_check_names(kind, repo):
    edit, says = BAD[kind]
    change(repo / "solutions" / NAME, edit)
    problems = check(repo).problems
    assert any(says in p and p.startswith("solutions/00_start_here.ipynb: ") for p in problems), "\n".join(
        problems
    )


def test_check_finds_nothing_in_a_good_repository(executed):
    assert check(executed).ok, check(executed)


def test_check_names_the_users_name_in_an_output(repo, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "hongkildong")
    change(repo / "solutions" / NAME, add_output("hello hongkildong"))
    assert any("the user's name 'hongkildong'" in p for p in check(repo).problems)


def test_check_names_an_error_that_is_no_lesson(repo):
    error = nbformat.v4.new_output("error", ename="KeyError", evalue="'a'", traceback=["KeyError: 'a'"])
    change(repo / "solutions" / NAME, add_code("x", execution_count=9, outputs=[error]))
    assert any("raises KeyError" in p for p in check(repo).problems)


def test_check_names_a_lab_edited_by_hand(repo):
    change(
        repo / "labs" / NAME, lambda nb: setattr(nb.cells[0], "source", nb.cells[0].source + " Good luck.")
    )
    assert any(
        "out of step with solutions/00" in p and "onegpu notebooks build" in p for p in check(repo).problems
    )


def test_check_names_a_solution_left_in_a_lab(repo):
    line = "whole, rest = divmod(parameters * bits, 8)"
    change(repo / "labs" / NAME, add_code(line))
    assert any("a line of the solution is left in the lab" in p for p in check(repo).problems)


def test_check_names_a_lab_with_outputs(repo):
    change(repo / "labs" / NAME, add_output("x"))
    assert any("a lab is stored without outputs" in p for p in check(repo).problems)


def test_check_names_labs_and_solutions_without_partner(repo):
    shutil.copy(repo / "labs" / NAME, repo / "labs" / "02_lost.ipynb")
    (repo / "labs" / NAME).unlink()
    problems = check(repo).problems
    assert any(p.startswith("labs/00_start_here.ipynb: missing") for p in problems)
    assert any("no solutions/02_lost.ipynb" in p for p in problems)


BROKEN = {
    "not JSON": ("{", "line 1 is not JSON"),
    "a merge": ('{\n<<<<<<< HEAD\n"cells": []}', "a merge was left unfinished"),
    "no notebook": ("[1]", "it has no nbformat number"),
    "format 3": (
        json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}),
        "notebook format 3, expected 4",
    ),
    "invalid": (
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{}]}),
        "not a valid notebook",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_notebook_that_cannot_be_read_gets_a_clear_message(kind, repo):
    text, says = BROKEN[kind]
    for place in ("solutions", "labs"):
        (repo / place / "02_preference_data.ipynb").write_text(text)
    for report in (check(repo), build(repo), run([repo / "labs" / "02_preference_data.ipynb"], folder=repo)):
        assert says in str(report)
        assert not report.ok


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("x = 1", False),
        ("x = 1\nx", True),
        ("print(1)", True),
        ("for i in y:\n    print(i)", False),
        ("f(1)", False),
        ('f = check("0.1", f)', True),
        ("def f():\n    print(1)", False),
        ("%pip list", False),
    ],
)
def test_which_cells_should_have_an_output(source, shows):
    assert shows_something(source) is shows


def test_docstrings_comments_and_blank_lines_are_no_code_lines():
    assert (
        code_lines(
            '"""Doc."""\n\n# why\nx = 1\n\n\ndef f():\n    """One\n    two."""\n    return 1\n%pip list'
        )
        == 5
    )


# Under pytest -----------------------------------------------------------------------------------------------------------


def nbval(*arguments, cwd="/", **environment):
    """Run pytest in a process of its own; return its status and what it said."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ONEGPU"))} | environment
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--color=no", *map(str, arguments)],
        cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def second_exercise(folder):
    """Add another function to the lab that is checked by the same exercise."""

    def edit(notebook):
        for cell in [cell_with(notebook, "def weights_bytes"), cell_with(notebook, 'check("0.1"')]:
            again = copy.deepcopy(cell)
            again.source, again.id = cell.source.replace("weights_bytes", "size_bytes"), cell.id[::-1]
            notebook.cells.append(again)

    change(folder / "labs" / NAME, edit)


def solve(folder, name, body):
    """Write a learner's function into a lab."""

    def edit(notebook):
        cell_with(notebook, f"def {name}").source = f"def {name}(parameters, bits):\n    {body}"

    change(folder / "labs" / NAME, edit)


RIGHT = "return (parameters * bits + 7) // 8"


def test_a_lab_as_shipped_passes_from_any_folder_twice_and_in_two_processes(repo):
    for arguments in ((repo / "labs",), (repo / "labs", repo / "solutions", "-n", "2", "--dist", "loadfile")):
        status, said = nbval("--nbval", *arguments)
        assert status == 0, said


def test_strict_fails_exactly_at_the_exercises_not_attempted(repo):
    second_exercise(repo)
    solve(repo, "weights_bytes", RIGHT)
    status, said = nbval("--nbval", "labs", cwd=repo, ONEGPU_STRICT="1")
    assert status == 1
    assert len(re.findall(r"^FAILED ", said, re.M)) == 1, said
    assert "size_bytes = check" in said
    assert "0.1 bytes of a model's weights: not attempted" in said


def test_a_lab_solved_right_passes_strict_too(repo):
    second_exercise(repo)
    for name in ("weights_bytes", "size_bytes"):
        solve(repo, name, RIGHT)
    status, said = nbval("--nbval", "labs", cwd=repo, ONEGPU_STRICT="1")
    assert status == 0, said


def test_a_wrong_answer_fails_at_its_check_with_its_message(repo):
    second_exercise(repo)
    solve(repo, "size_bytes", "return parameters * bits")
    status, said = nbval("--nbval", "labs/" + NAME, cwd=repo)
    assert status == 1
    assert len(re.findall(r"^FAILED ", said, re.M)) == 1, said
    assert "These are bits. A byte has 8 of them." in said
    assert "checking.py" not in said  # no stack trace of ours


def test_a_changed_character_of_a_stored_output_fails_and_says_what_to_run(repo):
    change(repo / "solutions" / NAME, edit_output)
    status, said = nbval("solutions", cwd=repo)
    assert status == 1
    assert f"if the new output is the right one: onegpu notebooks run solutions/{NAME}" in said


def test_a_lab_with_a_syntax_error_or_of_format_3_gets_a_clear_message(repo):
    solve(repo, "weights_bytes", "return (")
    (repo / "labs" / "02_old.ipynb").write_text(BROKEN["format 3"][0])
    status, said = nbval("--continue-on-collection-errors", "labs", cwd=repo)
    assert status == 1
    assert "SyntaxError" in said
    assert "02_old.ipynb: notebook format 3, expected 4" in said
    assert "nbformat.reader" not in said  # no stack trace of nbval's


# Command line -----------------------------------------------------------------------------------------------------------


def test_the_command_line_says_what_is_wrong_and_ends_with_1(repo, capsys, monkeypatch):
    monkeypatch.setattr("onegpu.notebooks.rules.root", lambda: repo)
    assert main(["check"]) == 0
    (repo / "labs" / NAME).unlink()
    assert main(["check"]) == 1
    assert "labs/00_start_here.ipynb: missing" in capsys.readouterr().out


def test_text_and_back_on_the_command_line(repo, capsys, tmp_path):
    assert main(["text", str(repo / "solutions" / NAME)]) == 0
    text = capsys.readouterr().out
    (tmp_path / "t.md").write_text(text)
    assert main(["from-text", str(tmp_path / "t.md"), str(tmp_path / "t.ipynb")]) == 0
    assert to_text(read(tmp_path / "t.ipynb")) == text


def test_a_missing_file_is_a_message_and_no_stack_trace(capsys):
    assert main(["run", "no_such.ipynb"]) == 1
    assert "there is no such file" in capsys.readouterr().out
    assert main(["text", "no_such.ipynb"]) == 1
    assert "no_such.ipynb" in capsys.readouterr().err


def test_the_digest_leaves_the_setup_cell_out(executed):
    notebook = read(executed / "solutions" / NAME)
    before = digest(notebook)
    notebook.cells[1].source += "\n# another version"
    assert digest(notebook) == before
