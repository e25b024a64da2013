"""``onegpu doctor``."""

from __future__ import annotations

import sys

from onegpu.cli.app import app


@app.command()
def doctor() -> None:
    """Say what this machine is and what is missing, with what to do about it."""
    from onegpu.doctor import doctor as examine

    sys.exit(0 if all(check.ok for check in examine()) else 1)
