"""A source tree for nbgrader: each solution as an assignment, its check cells worth points.

nbgrader takes a notebook's parts from cell metadata (its "schema version 3"): cells with a solution between the markers
are to be filled in, check cells are locked and graded. A check is a cell of its own there, since what follows it in the
lab shows the answer at work, with other exercises' functions too, and must cost no points.

Source: nbgrader's documentation, "Autograded tests cells" and "The nbgrader metadata format".
"""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from typing import Any

from onegpu.notebooks.files import NotebookError, notebook_paths, read, repository, root, write
from onegpu.notebooks.labs import BEGIN, SOLUTION_ONLY, STUB
from onegpu.notebooks.parts import number_cells, prepare
from onegpu.notebooks.report import Report

CONFIG = f'''\
"""nbgrader's settings for the labs of onegpu."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "onegpu"
# The labs' own stub, which runs: a lab that isn't finished can be run to its end.
c.ClearSolutions.code_stub = {{"python": "{STUB}"}}
# One cell may fine-tune a model.
c.ExecutePreprocessor.timeout = 600
# A wrong answer raises; the exercises after it are graded all the same.
c.ExecutePreprocessor.allow_errors = True
'''


def build_nbgrader(destination: Path, folder: Path | None = None) -> Report:
    """Write ``source/NN_topic/NN_topic.ipynb`` for each solution, and ``nbgrader_config.py`` where there is none.

    Parameters
    ----------
    destination
        The folder of the nbgrader course.
    folder
        The repository; by default the one this package is installed from.
    """
    folder = folder or root()
    address = repository(folder)
    done, problems = [], []
    for path in notebook_paths(folder, ("solutions",)):
        try:
            assignment = source_of(read(path), path.name, address)
        except NotebookError as error:
            problems.append(f"solutions/{path.name}: {error}")
            continue
        place = Path("source") / path.stem / path.name
        if write(destination / place, assignment):
            done.append(str(destination / place))
    config = destination / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf-8", newline="\n")
        done.append(str(config))
    elif STUB not in config.read_text(encoding="utf-8"):
        problems.append(
            f"{config} is yours and stays as it is; the labs' stub needs this line in it: "
            f'c.ClearSolutions.code_stub = {{"python": "{STUB}"}}'
        )
    return Report("build", tuple(done), tuple(problems))


def source_of(solution: Any, name: str, address: str) -> Any:
    """Return a solution notebook as nbgrader's source: the lab's badge, no outputs, its metadata on each cell.

    Raises
    ------
    NotebookError
        When a check's exercise has no solution cell, or a number is checked twice.
    """
    import nbformat

    source = prepare(copy.deepcopy(solution), f"labs/{name}", address)
    source.metadata.pop("onegpu", None)
    cells: list[Any] = []
    checked: set[str] = set()
    waiting: list[Any] = []  # solutions whose check hasn't come yet
    for cell in source.cells:
        if SOLUTION_ONLY in cell.metadata.get("tags", []):
            continue
        if cell.cell_type != "code":
            cells.append(cell)
            continue
        tags = [tag for tag in cell.metadata.get("tags", []) if not tag.startswith("nbval-")]
        for text, number in _parts(cell.source):
            part = nbformat.v4.new_code_cell(text, metadata={"tags": tags} if tags else {})
            if number:
                if number in checked:
                    raise NotebookError(f"{number} is checked twice: nbgrader would pay for it twice.")
                checked.add(number)
                part.metadata["nbgrader"] = _about(f"check_{number}", grade=True, points=1)
                for i, one in enumerate(waiting):
                    one.metadata["nbgrader"] = _about(
                        f"solution_{number}" + "bcdef"[i - 1] * (i > 0), solution=True
                    )
                waiting = []
            elif BEGIN in text:
                waiting.append(part)
            cells.append(part)
    if waiting or not checked:
        raise NotebookError(
            "a solution without a check after it: nbgrader would have nothing to grade it by."
        )
    source.cells = cells
    number_cells(source)
    return source


def _about(
    identifier: str, *, grade: bool = False, solution: bool = False, points: int = 0
) -> dict[str, Any]:
    about = {
        "grade": grade,
        "grade_id": identifier.replace(".", "_"),
        "locked": grade,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return about | ({"points": points} if grade else {})


def _parts(source: str) -> list[tuple[str, str]]:
    """Divide a cell into (text, exercise number): each check by itself, what stands around it in cells of its own."""
    if BEGIN in source or "check(" not in source:
        return [(source, "")]
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a line of magic
        return [(source, "")]
    lines = source.splitlines()
    parts: list[tuple[str, str]] = []
    begin = 0
    for statement in statements:
        found = re.search(
            r"""\bcheck\(\s*["'](\d+\.\d+)["']""", ast.get_source_segment(source, statement) or ""
        )
        if found:
            end = statement.end_lineno or statement.lineno
            parts += [("\n".join(lines[begin : statement.lineno - 1]), "")]
            parts += [("\n".join(lines[statement.lineno - 1 : end]), found[1])]
            begin = end
    parts.append(("\n".join(lines[begin:]), ""))
    return [(text.strip("\n"), number) for text, number in parts if text.strip()]
