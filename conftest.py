"""pytest's set-up for the notebooks: nbval's kernels get the environment that the stored outputs were made in.

`pytest --nbval labs/` works from any folder: the sanitize file is found here, and each notebook is one unit under
`-n 2 --dist loadfile`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from onegpu.notebooks.execution import ENVIRONMENT

ROOT = Path(__file__).resolve().parent

# Data for tests/test_exercises.py, not tests; they share names with test folders.
collect_ignore = ["tests/wrong_answers"]


def pytest_configure(config: pytest.Config) -> None:
    """Point nbval to this interpreter and to the sanitize file, whatever the working directory."""
    option = config.option
    if getattr(option, "nbval", False) or getattr(option, "nbval_lax", False):
        option.nbval_current_env = True  # whatever kernels this machine has
        if not option.nbval_sanitize_with:
            option.nbval_sanitize_with = str(ROOT / "tests" / "nbval_sanitize.cfg")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Start a notebook's kernel in the environment of the stored outputs; other tests keep their own."""
    if item.path.suffix != ".ipynb":
        return (yield)
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT | {"ONEGPU_STRICT": before.get("ONEGPU_STRICT", "")})
    try:
        return (yield)
    finally:
        os.environ.clear()
        os.environ.update(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what to run when a notebook's cell failed."""
    failed = sorted(
        {
            r.nodeid.partition("::")[0]
            for r in terminalreporter.stats.get("failed", ())
            if ".ipynb::" in r.nodeid
        }
    )
    if failed:
        terminalreporter.section("notebooks")
        for path in failed:
            if path.startswith("labs/"):
                terminalreporter.line(
                    f"{path}: an exercise is wrong, or a cell raised: the message above says which."
                )
            else:
                terminalreporter.line(f"{path}: if the new output is right: onegpu notebooks run {path}")
