"""Grades as pages: one for the class, one for each student, each a single file that a phone shows well."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from onegpu.exercises import find
from onegpu.exercises.exercise import TOPICS
from onegpu.grading.results import LEGEND, MARKS, Grade, Grades

_WORDS = {
    "right": "right",
    "wrong": "not right yet",
    "not attempted": "not attempted",
    "borrowed": "the course’s own code",
    "failed": "nothing to examine",
}
_STYLE = """
:root { color-scheme: light dark; --line: #c9ced6; --soft: #f3f5f8; --good: #1a6b3c; --bad: #a12a1f; --quiet: #555d68 }
@media (prefers-color-scheme: dark) {
  :root { --line: #4a5260; --soft: #23272e; --good: #7fd6a3; --bad: #ff9d92; --quiet: #b4bcc8 }
}
* { box-sizing: border-box }
body { font: 1rem/1.5 system-ui, "Noto Sans CJK KR", "NanumGothic", sans-serif; margin: 0 auto; padding: 1rem;
  max-width: 60rem; overflow-wrap: anywhere }
h1 { font-size: 1.4rem; margin: 0 0 .5rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem }
table { border-collapse: collapse; white-space: nowrap; min-width: 100% }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: center }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--soft); max-width: 11rem;
  overflow: hidden; text-overflow: ellipsis }
section { border: 1px solid var(--line); border-radius: .4rem; padding: .7rem .9rem; margin: .8rem 0 }
section h2 { margin: 0 }
dl { margin: .5rem 0 0 } dt { color: var(--quiet); font-size: .9rem; margin-top: .4rem } dd { margin: 0 }
code { font: .9rem/1.45 ui-monospace, monospace; white-space: pre-wrap }
.right { color: var(--good) } .wrong, .borrowed, .failed { color: var(--bad) } .quiet { color: var(--quiet) }
ul { margin: .4rem 0; padding-left: 1.4rem } li { margin: .3rem 0 }
"""


def write_report(grades: Grades, folder: Path) -> Path:
    """Write ``class.html`` and a page for each student into ``students/``; return the class's page."""
    students = folder / "students"
    students.mkdir(parents=True, exist_ok=True)
    for old in students.glob("*.html"):  # of a class that was graded into this folder before
        old.unlink()
    names = file_names(grades.students)
    for student, name in names.items():
        (students / name).write_text(student_page(grades, student), encoding="utf-8")
    page = folder / "class.html"
    page.write_text(class_page(grades, names), encoding="utf-8")
    return page


def file_names(students: tuple[str, ...]) -> dict[str, str]:
    """Return a file name for each student's page: a number, so that no two are the same, and what of the name is plain."""
    width = len(str(len(students)))
    plain = {student: re.sub(r"[^\w-]+", "_", student).strip("_")[:40] or "student" for student in students}
    return {student: f"{number:0{width}}_{plain[student]}.html" for number, student in enumerate(students, 1)}


def student_page(grades: Grades, student: str) -> str:
    """Return a student's page: for each exercise, what failed, what was expected, what came, and the hint."""
    own = grades.of(student)
    parts = [
        f"<h1>{escape(student)}</h1>",
        f"<p>{grades.score(student)} of {len(own)} exercises are right.</p>",
    ]
    parts += [_section(grade) for grade in own]
    notes = grades.notes.get(student, ())
    if notes:
        parts += ["<h2>About your notebook</h2>", _list([escape(note) for note in notes])]
    files = ", ".join(dict.fromkeys(grade.file for grade in own if grade.file))
    if files:
        parts.append(f'<p class="quiet">Read from {escape(files)}.</p>')
    return _page(student, parts)


def _section(grade: Grade) -> str:
    lines = [
        f'<h2><span class="{_css(grade)}">{MARKS[grade.status]} {escape(_WORDS[grade.status])}</span> '
        f"{escape(grade.number)} {escape(find(grade.number).title)}</h2>"
    ]
    facts = message_facts(grade.message)
    if grade.status in ("failed", "borrowed"):
        lines.append(f"<p>{escape(grade.reason)}</p>")
    elif grade.status == "wrong":
        if grade.case:
            lines.append(f"<p>In the case “{escape(grade.case)}”:</p>")
        code = {"input", "expected", "got", "raised in", "printed", "differs"}
        shown = facts or {"hint": grade.reason}
        lines.append(
            "<dl>"
            + "".join(
                f"<dt>{escape(key)}</dt><dd>{f'<code>{escape(value)}</code>' if key in code else escape(value)}</dd>"
                for key, value in shown.items()
            )
            + "</dl>"
        )
    return f"<section>{''.join(lines)}</section>"


def message_facts(message: str) -> dict[str, str]:
    """Return a check's message by its keys (input, expected, got, ..., hint), its wrapped lines joined again.

    Examples
    --------
    >>> message_facts("✘ 1.1 x: wrong\\n  got:   3\\n  hint:  two\\n         words")
    {'got': '3', 'hint': 'two words'}
    """
    facts: dict[str, str] = {}
    key = ""
    for line in message.splitlines()[1:]:
        if found := re.match(r"  ([a-z][a-z ]*):\s+(.*)", line):
            key = found[1]
            facts[key] = found[2]
        elif key:
            facts[key] += " " + line.strip()
    return facts


def class_page(grades: Grades, pages: dict[str, str]) -> str:
    """Return the class's page: who has what right, and what to explain again.

    Parameters
    ----------
    grades
        Of the class.
    pages
        For each student, the name of the page in ``students/``.
    """
    numbers = grades.numbers
    head = "".join(f'<th scope="col">{escape(n)}</th>' for n in ("student", "right", *numbers))
    body = []
    for student in grades.students:
        own = {g.number: g for g in grades.of(student)}
        cells = "".join(
            f'<td class="{_css(own[n])}" title="{escape(own[n].reason)}">'
            f'<span role="img" aria-label="{_WORDS[own[n].status]}">{MARKS[own[n].status]}</span></td>'
            if n in own
            else "<td></td>"
            for n in numbers
        )
        link = f'<a href="students/{escape(pages[student])}">{escape(student)}</a>'
        body.append(f"<tr><td>{link}</td><td>{grades.score(student)}/{len(own)}</td>{cells}</tr>")
    count = len(grades.students)
    labs = sorted({int(n.partition(".")[0]) for n in numbers})
    title = "The class, " + ", ".join(f"lab {lab:02} {TOPICS[lab].replace('_', ' ')}" for lab in labs)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{count} student{'s' * (count != 1)}. {escape(LEGEND.replace('  ', ' · '))}</p>",
        f'<div class="scroll" tabindex="0" role="region" aria-label="marks">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>",
    ]
    faults = grades.commonest_faults()
    if faults:
        parts.append("<h2>What to explain again</h2>")
    for number, found in faults.items():
        items = [
            f"<strong>{n} of {found.total()}</strong>"
            + (f", in the case “{escape(case)}”" if case else "")
            + f": {escape(reason)}"
            for (case, reason), n in found.most_common(4)
        ]
        head = f"{escape(number)} {escape(find(number).title)}: {found.total()} wrong"
        parts.append(f"<section><h2>{head}</h2>{_list(items)}</section>")
    notes = [f"{escape(s)}: {escape(note)}" for s, said in grades.notes.items() for note in said]
    for student in grades.students:
        reasons: dict[str, list[str]] = {}
        for g in grades.of(student):
            if g.status in ("failed", "borrowed"):
                reasons.setdefault(g.reason, []).append(g.number)
        every = len(grades.of(student))
        notes += [
            f"{escape(student)}{'' if len(ns) == every else ', ' + ', '.join(ns)}: {escape(reason)}"
            for reason, ns in reasons.items()
        ]
    if notes:
        parts += ["<h2>Look at these</h2>", _list(notes)]
    if grades.confinement:
        parts.append(f'<p class="quiet">Students’ code ran with: {escape(grades.confinement)}.</p>')
    return _page(title, parts)


def _css(grade: Grade) -> str:
    return "quiet" if grade.status == "not attempted" else grade.status


def _list(items: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _page(title: str, parts: list[str]) -> str:
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            *parts,
            "</body></html>\n",
        ]
    )
