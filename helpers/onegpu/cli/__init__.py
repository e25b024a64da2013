"""The command line: ``onegpu lab``, ``finetune``, ``chat``, ``evaluate``, ``export``, ``merge``, ``doctor``, ``memory``, ``tokens``, ``notebooks``, ``grade``.

Each command is a few lines around a function of the package. An error that says what to do ends with status 1 and no
stack trace; ``--debug``, anywhere on the line, shows the trace.
"""

from __future__ import annotations

from onegpu.cli.app import app, main

# Importing a command's module registers it; `--help` lists the commands in this order.
from onegpu.cli import (  # isort: skip
    lab as _lab,  # noqa: F401
    finetune as _finetune,  # noqa: F401
    chat as _chat,  # noqa: F401
    evaluate as _evaluate,  # noqa: F401
    export as _export,  # noqa: F401
    merge as _merge,  # noqa: F401
    doctor as _doctor,  # noqa: F401
    tokens as _tokens,  # noqa: F401
    memory as _memory,  # noqa: F401
    grade as _grade,  # noqa: F401
    notebooks as _notebooks,  # noqa: F401
)

__all__ = ["app", "main"]
