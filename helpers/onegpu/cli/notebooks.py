"""``onegpu notebooks``."""

from __future__ import annotations

import sys

import typer

from onegpu.cli.app import app


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def notebooks(context: typer.Context) -> None:
    """For authors: build labs and badges, run the notebooks, check what is out of step."""
    from onegpu.notebooks.__main__ import main as run

    sys.exit(run(context.args))
