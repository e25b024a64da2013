"""``onegpu lab``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer

from onegpu.cli.app import app


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the course. Further options go to jupyter lab (such as --no-browser or --port 9999)."""
    folder = Path(__file__).resolve().parents[3]
    if not (
        folder / "pyproject.toml"
    ).is_file():  # installed without its repository: the notebooks are not here
        folder = Path.cwd()
    start = folder / "course" / "00_start_here.ipynb"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    if start.is_file():
        command.append(f"--LabApp.default_url=/lab/tree/{start.relative_to(folder)}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    sys.exit(subprocess.call([*command, *context.args], cwd=folder))
