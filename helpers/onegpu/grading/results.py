"""What a class has right: ``Grade`` for one exercise of one student, ``Grades`` for all, as table and CSV."""

from __future__ import annotations

import csv
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from onegpu.exercises import exercises_of, find

MARKS = {"right": "✔", "wrong": "✘", "not attempted": "○", "borrowed": "⚑", "failed": "!"}
LEGEND = "✔ right  ✘ wrong  ○ not attempted  ⚑ the course's own code  ! nothing to examine"
WIDTH = 80


@dataclass(frozen=True)
class Grade:
    """One exercise of one student.

    Attributes
    ----------
    student
        The student's name, from the file or folder.
    number
        The exercise.
    status
        "right", "wrong", "not attempted", "borrowed" (it lets the package answer), or "failed": the notebook couldn't
        be read or run, or the function is missing.
    case
        The first case that failed.
    reason
        The hint that the student saw, or why there is nothing to examine.
    message
        What the student's check says, in full.
    file
        The notebook that was counted.
    """

    student: str
    number: str
    status: str
    case: str = ""
    reason: str = ""
    message: str = ""
    file: str = ""


@dataclass(frozen=True)
class Grades:
    """All grades of a class; prints as a table, ``write_csv`` writes one row for each student and exercise.

    Attributes
    ----------
    grades
        One for each student and exercise.
    notes
        For each student, what a teacher should know: which of two files was counted, cells that were stopped.
    confinement
        What held for the students' processes, in words; "" where none ran.
    """

    grades: tuple[Grade, ...]
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    confinement: str = ""

    @property
    def students(self) -> tuple[str, ...]:
        """The students, in order."""
        return tuple(dict.fromkeys(grade.student for grade in self.grades))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The exercises, in order."""
        return tuple(sorted({grade.number for grade in self.grades}, key=_order))

    def of(self, student: str) -> tuple[Grade, ...]:
        """Return a student's grades, in the exercises' order."""
        return tuple(
            sorted((g for g in self.grades if g.student == student), key=lambda grade: _order(grade.number))
        )

    def score(self, student: str) -> int:
        """How many exercises a student has right."""
        return sum(grade.status == "right" for grade in self.of(student))

    def commonest_faults(self) -> dict[str, Counter[tuple[str, str]]]:
        """For each exercise, how many students failed with which (case, hint): what to explain again."""
        faults: dict[str, Counter[tuple[str, str]]] = {}
        for number in self.numbers:
            found = Counter(
                (g.case, g.reason) for g in self.grades if g.number == number and g.status == "wrong"
            )
            if found:
                faults[number] = found
        return faults

    def write_csv(self, path: Path) -> None:
        """Write student, exercise, status, points, case, reason, file.

        With the mark that spreadsheets need to read Korean names, and an apostrophe before a text that one of them
        would run as a formula (OWASP: CSV injection).
        """
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["student", "exercise", "status", "points", "case", "reason", "file"])
            for g in self.grades:
                points = str(int(g.status == "right"))
                row = [g.student, g.number, g.status, points, g.case, g.reason, g.file]
                rows.writerow([harmless(cell) for cell in row])

    def as_dict(self) -> dict[str, Any]:
        """Return the content for JSON."""
        return asdict(self)

    def _rows(self) -> Iterable[list[str]]:
        for student in self.students:
            own = {grade.number: grade for grade in self.of(student)}
            marks = [MARKS[own[number].status] if number in own else "" for number in self.numbers]
            yield [student, *marks, f"{self.score(student)}/{len(own)}"]

    def __str__(self) -> str:
        rows = list(self._rows())
        students = max((columns(row[0]) for row in rows), default=7)
        students = max(7, min(students, 40))
        # As many exercises beside each other as 80 columns hold; a further block for the rest.
        each = [max(3, len(number)) for number in self.numbers]
        blocks: list[list[int]] = [[]]
        for i in range(len(each)):
            if blocks[-1] and students + 2 + 7 + sum(each[j] + 2 for j in [*blocks[-1], i]) > WIDTH:
                blocks.append([])
            blocks[-1].append(i)
        lines = []
        for block in blocks:
            last = block is blocks[-1]
            head = [self.numbers[i] for i in block] + ["right"] * last
            lines.append("  ".join([pad("student", students), *head]))
            for row in rows:
                cells = [pad(row[1 + i], each[i]) for i in block] + [row[-1]] * last
                lines.append("  ".join([pad(cut(row[0], students), students), *cells]).rstrip())
        lines += ["", LEGEND]
        for number, faults in self.commonest_faults().items():
            (case, reason), count = faults.most_common(1)[0]
            title = f"{number} {find(number).title}: {faults.total()} wrong"
            lines += [
                title,
                *wrapped(f'{count} in the case "{case}": {reason}' if case else f"{count}: {reason}"),
            ]
        for student in self.students:
            reasons = Counter(g.reason for g in self.of(student) if g.status in ("failed", "borrowed"))
            said = []
            for reason, count in reasons.items():
                numbers = ", ".join(g.number for g in self.of(student) if g.reason == reason)
                said.append(reason if count == len(self.of(student)) else f"{numbers}: {reason}")
            said += self.notes.get(student, ())
            lines += [line for text in said for line in wrapped(f"{student}: {text}", "")]
        if self.confinement:
            lines += wrapped(f"Students' code ran with: {self.confinement}.", "")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in ["student", *self.numbers, "right"])
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


def _order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split(".") if part.isdigit())


def all_failed(student: str, topic: int, reason: str, file: str) -> list[Grade]:
    """A grade for each exercise of a lab of which nothing can be examined."""
    return [Grade(student, e.number, "failed", reason=reason, file=file) for e in exercises_of(topic)]


def harmless(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula.

    Examples
    --------
    >>> harmless("=HYPERLINK(1)"), harmless("kim")
    ("'=HYPERLINK(1)", 'kim')
    """
    return (
        f"'{cell}"
        if cell.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
        else cell
    )


def columns(text: str) -> int:
    """Return how many columns a text takes in a terminal: Korean letters take two, accents none.

    Examples
    --------
    >>> columns("kim"), columns("김민수")
    (3, 6)
    """
    return sum(
        0 if unicodedata.combining(c) or unicodedata.category(c) in ("Cf", "Cc", "Mn", "Me")
        else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )  # fmt: skip


def pad(text: str, width: int) -> str:
    """Return a text filled up with spaces to a width in columns."""
    return text + " " * (width - columns(text))


def cut(text: str, width: int) -> str:
    """Return the start of a text that fits a width in columns."""
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)
    if columns(text) <= width:
        return text
    while columns(text) > width - 1:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Return a text in lines of at most 80 columns, the further ones indented."""
    lines, line = [], indent
    for word in text.split():
        if line.strip() and columns(line) + 1 + columns(word) > WIDTH:
            lines.append(line)
            line = "    " + word
        else:
            line += (" " if line.strip() else "") + word
    return [*lines, line]
