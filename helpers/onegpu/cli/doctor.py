"""``onegpu doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from onegpu.cli.app import app

if TYPE_CHECKING:
    from onegpu.doctor import Check


@app.command()
def doctor() -> None:
    """Say what this machine is and what is missing, with what to do about it."""
    from onegpu.doctor import doctor as examine

    sys.exit(0 if all(check.ok for check in examine(further=(_notebooks, _korean_font))) else 1)


def _notebooks() -> Check:
    from onegpu.doctor import check_notebooks
    from onegpu.notebooks.files import NotebookError
    from onegpu.notebooks.working_copy import shipped

    try:
        return check_notebooks(shipped())
    except NotebookError:
        return check_notebooks(None)


def _korean_font() -> Check:
    from onegpu.doctor import check_korean_font
    from onegpu.plots.base import korean_font

    return check_korean_font(korean_font())
