"""``onegpu grade``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from onegpu.cli.app import app
from onegpu.cli.options import check_writable

_HELP = """\
Examine a class's labs and say who has what right, and what to explain again.

Each notebook runs in a process of its own and is judged from outside, also on inputs that the lab doesn't show: what it
prints, patches or calls "check" decides nothing, and a check cell that is gone costs nothing. A function whose results
come from the course's own code is marked and not paid.

That process has no solutions, none of your environment's secrets, a scratch folder, limits of time and memory, and no
network: kept by the system on Linux (Landlock, namespaces); elsewhere by hooks in Python, which hold off accidents but no
attack, and then a machine or container that may be thrown away is the place. The table's last line says which it was.

Not held off: an answer pasted as text, from a classmate or from the repository; code that deceives the tracing on purpose;
on Windows, a loop that Python can't interrupt.
"""


@app.command(help="\n\n".join(" ".join(part.split()) for part in _HELP.split("\n\n")))
def grade(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="What came back: a folder, a zip or a notebook. kim.ipynb, kim/04_quantization.ipynb and kim.zip give "
            "the student kim; Moodle's, Canvas's and nbgrader's downloads are read as they are.",
        ),
    ],
    lab: Annotated[
        str | None, typer.Option(help="The lab, such as 4. By default what each notebook says.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for class.html, students/*.html and grades.csv, by default FOLDER-grades. Run again, the command "
            "examines only what is new."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the CSV to this file as well.")] = None,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for a cell. It is stopped then, the next one is run; all cells get ten times that."
        ),
    ] = 120.0,
    memory: Annotated[float, typer.Option(help="GiB of memory for a notebook (on Linux).")] = 8.0,
    jobs: Annotated[
        int, typer.Option(help="Notebooks at a time. Each takes two processes, in most labs 1 to 2 GiB.")
    ] = 1,
) -> None:
    """Grade a class's labs; ``_HELP`` says the rest."""
    from onegpu.grading import Limits
    from onegpu.grading import grade as collect
    from onegpu.grading.report import write_report

    if timeout <= 0 or memory <= 0:
        raise ValueError(f"--timeout {timeout:g} --memory {memory:g}: expected numbers above 0")
    limits = Limits(timeout, int(memory * 2**30))
    folder = out or Path(f"{str(source.resolve()).removesuffix('.zip').removesuffix('.ipynb')}-grades")
    if folder.resolve() == source.resolve() or source.resolve() in folder.resolve().parents:
        raise ValueError(f"--out {folder} lies in {source}, among the students' files: choose another folder")
    if not source.exists():
        raise ValueError(
            f"{source}: no such folder or file: expected the students' notebooks, or a zip of them."
        )
    check_writable(csv, "--csv")
    check_writable(folder / "grades.csv")
    grades = collect(source, lab=_lab_number(lab), limits=limits, jobs=jobs, kept=folder / "kept")
    print(grades)
    grades.write_csv(folder / "grades.csv")
    if csv is not None:
        grades.write_csv(csv)
    print(f"\n{write_report(grades, folder)}: pages for the class and each student; grades.csv beside it")


def _lab_number(text: str | None) -> int | None:
    """Read 4, 04 or 04_quantization."""
    if text is None:
        return None
    found = re.fullmatch(r"(?:lab)?\s*0*(\d+)(?:[_ ].*)?", text.strip().removesuffix(".ipynb"))
    if not found:
        raise ValueError(f"--lab {text}: expected a lab's number, such as 4")
    return int(found[1])
