"""Figures of the course: one style, one function a figure, one module per topic.

    from onegpu import plots
    plots.show(plots.quantization.error_by_block(...))

A figure that says itself what is to be seen has a caption (``captioned``), computed from what is drawn.
A topic's module is imported when it is first named.
"""

from __future__ import annotations

import importlib
from typing import Any

_BASE = (
    "COLOURS",
    "HATCHES",
    "LINES",
    "MARKERS",
    "bars",
    "caption_of",
    "captioned",
    "figure",
    "korean_font",
    "label_bars",
    "png",
    "show",
    "use_style",
)


def __getattr__(name: str) -> Any:
    if name in _BASE:
        return getattr(importlib.import_module("onegpu.plots.base"), name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"onegpu.plots.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"onegpu.plots.{name}":
                raise
    raise AttributeError(f"module 'onegpu.plots' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_BASE)
