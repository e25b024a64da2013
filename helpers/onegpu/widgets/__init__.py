"""Widgets of the course: a control, a picture that follows it, and the same in words. One module per topic.

    from onegpu import widgets
    widgets.quantization.explorer()

``explore`` is the pattern that they use; ``reveal`` asks a question and answers it after the reader has guessed; ``chat`` talks
to a model. Only what ipywidgets 7.7 (Colab) and 8 share, and no ``interact`` and no ``Output``, whose results nbval and
previews don't see.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = dict.fromkeys(("choice", "explore", "number", "slider", "switch", "text"), "base") | {
    "chat": "talking",
    "reveal": "asking",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"onegpu.widgets.{_NAMES[name]}"), name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"onegpu.widgets.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"onegpu.widgets.{name}":
                raise
    raise AttributeError(f"module 'onegpu.widgets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_NAMES)
