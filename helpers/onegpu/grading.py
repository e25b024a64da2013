"""Collect a class's labs: run each one and say, for each student and exercise, right, wrong or not attempted.

After a student's cells have run, in the grader's mode, the exercises are examined once more from here, on the functions
that the notebook has defined: a check cell that was deleted, changed or printed by hand makes no difference. It runs
students' code on this machine; use an account or container that may be thrown away.
"""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from onegpu.exercises import examine, exercises_of, find
from onegpu.exercises.exercise import TOPICS
from onegpu.notebooks.execution import execute
from onegpu.notebooks.files import NotebookError, read

MARKS = {"right": "✔", "wrong": "✘", "not attempted": "○", "failed": "!"}
_MIME = "application/x-onegpu-grades+json"


@dataclass(frozen=True)
class Grade:
    """One exercise of one student.

    Attributes
    ----------
    student
        The notebook's name or its folder's.
    number
        The exercise.
    status
        "right", "wrong", "not attempted", or "failed": the notebook couldn't be read or run, or the function is missing.
    case
        The first case that failed.
    reason
        The hint that the student saw, or why it failed.
    """

    student: str
    number: str
    status: str
    case: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Grades:
    """All grades of a class; prints as a table, `write_csv` writes one row for each student and exercise."""

    grades: tuple[Grade, ...]

    @property
    def students(self) -> tuple[str, ...]:
        """The students, in order."""
        return tuple(dict.fromkeys(grade.student for grade in self.grades))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The exercises, in order."""
        found = {grade.number for grade in self.grades if grade.number}
        return tuple(sorted(found, key=lambda number: tuple(map(int, number.split(".")))))

    def score(self, student: str) -> int:
        """How many exercises a student has right."""
        return sum(grade.student == student and grade.status == "right" for grade in self.grades)

    def commonest_faults(self) -> dict[str, Counter[str]]:
        """For each exercise, how many students failed which case: what to explain again."""
        faults: dict[str, Counter[str]] = {}
        for grade in self.grades:
            if grade.status == "wrong":
                faults.setdefault(grade.number, Counter())[grade.case] += 1
        return faults

    def write_csv(self, path: Path) -> None:
        """Write student, exercise, status, case, reason; with a mark that spreadsheets need to read Korean names."""
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["student", "exercise", "status", "case", "reason"])
            rows.writerows([g.student, g.number, g.status, g.case, g.reason] for g in self.grades)

    def _rows(self) -> Iterable[list[str]]:
        marks = {(grade.student, grade.number): MARKS[grade.status] for grade in self.grades}
        for student in self.students:
            own = [marks.get((student, number), "") for number in self.numbers]
            yield [student, *own, f"{self.score(student)}/{sum(map(bool, own))}"]

    def __str__(self) -> str:
        table = [["student", *self.numbers, "right"], *self._rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        lines.append("✔ right  ✘ wrong  ○ not attempted  ! failed to run")
        for number, faults in sorted(self.commonest_faults().items()):
            case, count = faults.most_common(1)[0]
            lines.append(f'{number}: {faults.total()} wrong, {count} of them in the case "{case}"')
        lines += sorted({f"{g.student}: {g.reason}" for g in self.grades if g.status == "failed"})
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in ["student", *self.numbers, "right"])
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


def grade(folder: Path | str, *, timeout_s: float = 120.0) -> Grades:
    """Run the labs in a folder and grade them.

    Parameters
    ----------
    folder
        Holds a notebook for each student (``kim.ipynb``), or a folder for each student (``kim/04_quantization.ipynb``,
        also nbgrader's ``kim/04/...``). The topic is read from the exercise numbers in the notebook.
    timeout_s
        For one cell; a cell that runs longer is interrupted and the next one run.

    Raises
    ------
    ValueError
        When there is no such folder, or no notebook in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder: expected one that holds the students' notebooks.")
    paths = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not paths:
        raise ValueError(f"{folder}: no notebooks in it: expected kim.ipynb or kim/04_quantization.ipynb.")
    from tqdm.auto import tqdm

    found: list[Grade] = []
    for path in tqdm(paths, desc="labs", unit="lab"):
        inner = path.relative_to(folder)
        student = inner.parts[0] if len(inner.parts) > 1 else path.stem
        found += grade_notebook(path, student, timeout_s=timeout_s)
    return Grades(tuple(found))


def grade_notebook(path: Path, student: str, *, timeout_s: float = 120.0) -> list[Grade]:
    """Run one student's notebook and grade every exercise of its topic."""
    import nbformat

    try:
        notebook = read(path)
    except NotebookError as error:
        return _all_failed(student, _topic_of(path.name), str(error))
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    numbers = Counter(re.findall(r"""check\(\s*["'](\d+)\.\d+["']""", code))
    topic = int(numbers.most_common(1)[0][0]) if numbers else _topic_of(path.name)
    exercises = exercises_of(topic) if topic in TOPICS else ()
    if not exercises:
        return _all_failed(student, topic, f"{path.name}: no check in it, so its topic isn't known")
    # The last check of an exercise counts, as it does in the notebook.
    names = dict(re.findall(r"""check\(\s*["'](\d+\.\d+)["'],\s*(\w+)\s*\)""", code))
    names = {number: name for number, name in names.items() if number in {e.number for e in exercises}}
    notebook.cells.append(
        nbformat.v4.new_code_cell(f"from onegpu.grading import _examine_all\n_examine_all({names!r})")
    )
    with tempfile.TemporaryDirectory() as work:
        failed = execute(
            notebook, Path(work), timeout_s, allow_errors=True, environment={"ONEGPU_STRICT": "1"}
        )
    results = _results(notebook.cells[-1])
    grades = []
    for exercise in exercises:
        status, case, reason = results.get(
            exercise.number, ("failed", "", failed or "its check is not in the notebook")
        )
        grades.append(Grade(student, exercise.number, status, case, reason))
    return grades


def _topic_of(name: str) -> int | None:
    found = re.search(r"(?<!\d)(0\d)_", name)
    return int(found[1]) if found else None


def _all_failed(student: str, topic: int | None, reason: str) -> list[Grade]:
    """A grade for each exercise of the topic; for none in particular if the topic isn't known."""
    numbers = [exercise.number for exercise in exercises_of(topic)] if topic in TOPICS else []
    return [Grade(student, number, "failed", reason=reason) for number in numbers or [""]]


def _results(cell: Any) -> dict[str, tuple[str, str, str]]:
    for out in cell.get("outputs", []):
        if _MIME in out.get("data", {}):
            return {number: tuple(result) for number, result in out.data[_MIME].items()}
    return {}


def _examine_all(names: dict[str, str]) -> None:
    """Examine the functions of a student's notebook, inside its kernel, and hand the results out."""
    from IPython import get_ipython
    from IPython.display import display

    namespace = get_ipython().user_ns
    results = {}
    for number, name in names.items():
        if name in namespace:
            outcome = examine(find(number), namespace[name])
            results[number] = (outcome.status, outcome.case, outcome.hint)
        else:
            results[number] = ("failed", "", f"{name} is not defined: its cell failed")
    display({_MIME: json.loads(json.dumps(results)), "text/plain": ""}, raw=True)
