"""``onegpu grade``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onegpu.cli.app import app
from onegpu.cli.options import check_writable


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="A notebook or a folder for each student.")],
    csv: Annotated[Path | None, typer.Option(help="Write student, exercise and status to this file.")] = None,
) -> None:
    """Run a class's labs and print who has what right. It runs their code: use a machine that may be thrown away."""
    from onegpu.grading import grade as collect

    check_writable(csv)
    grades = collect(folder)
    print(grades)
    if csv is not None:
        grades.write_csv(csv)
