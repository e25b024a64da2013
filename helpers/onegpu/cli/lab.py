"""``onegpu lab``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer

from onegpu.cli.app import app


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[FOLDER] [OPTIONS OF JUPYTER LAB]",
)
def lab(context: typer.Context) -> None:
    """Copy course and labs into FOLDER (onegpu-course, if none is named) and open JupyterLab there.

    What you changed in the folder is never overwritten; a later version says what is new. Options go to jupyter lab
    (such as --no-browser or --port=9999).
    """
    from onegpu.notebooks.working_copy import copy_course

    arguments = list(context.args)
    named = bool(arguments) and not arguments[0].startswith("-")
    folder = Path(arguments.pop(0) if named else "onegpu-course")
    copied = copy_course(folder)
    print(copied, flush=True)
    command = [
        *(sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={copied.folder}"),
        "--LabApp.default_url=/lab/tree/course/00_start_here.ipynb",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    sys.exit(subprocess.call([*command, *arguments], cwd=copied.folder))
