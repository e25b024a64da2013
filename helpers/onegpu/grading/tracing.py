"""Whose code ran: which of the package's functions a student's function called, and which code came out of a text.

The tracer looks at Python calls while a student's function runs. It keeps the functions of the package's topics that
were entered from other code, whichever way the student got hold of them, and a fingerprint of code that was compiled
from a text (``exec``), to be compared with the package's and the solutions' own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from onegpu.exercises.exercise import TOPICS, exercises_of
from onegpu.grading.confinement import PACKAGE

_ROOT = str(PACKAGE) + os.sep
_TOPICS = {*TOPICS.values(), "packed_training"}
CELL = "<ipython-input-"
"""How the file name of a notebook's cell begins."""


class Tracer:
    """Hand it to ``sys.setprofile``, or use it as a ``with`` block.

    Attributes
    ----------
    called
        The package's functions that were entered, such as "quantization.absmax.quantize_absmax".
    compiled
        Fingerprints of code that was compiled from a text, neither a file nor a cell.
    removed
        Whether the student's code switched the tracer off.
    """

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.compiled: set[str] = set()
        self.removed = False
        self._seen: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        known = self._seen.get(code)
        if known is None:
            known = self._seen[code] = self._look(code)
        if known and not (frame.f_back and self._seen.get(frame.f_back.f_code)):
            self.called.add(_name(code))

    def _look(self, code: CodeType) -> bool:
        """Whether it is a topic's code; keep its fingerprint if it is nobody's."""
        file = code.co_filename
        if file.startswith(_ROOT):
            return file[len(_ROOT) :].partition(os.sep)[0].removesuffix(".py") in _TOPICS
        if not file.startswith(CELL) and not os.path.isabs(file) and not file.startswith("<frozen"):
            self.compiled.add(fingerprint(code))
        return False

    def __enter__(self) -> Tracer:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.removed = self.removed or sys.getprofile() is not self
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _name(code: CodeType) -> str:
    module = code.co_filename[len(_ROOT) :].removesuffix(".py").removesuffix(os.sep + "__init__")
    return f"{module.replace(os.sep, '.')}.{code.co_qualname}"


def fingerprint(code: CodeType) -> str:
    """Return a digest of what a function does: the same wherever its text stands and whatever its docstring says."""
    constants = [
        fingerprint(c) if isinstance(c, CodeType) else repr(c)
        for c in code.co_consts
        if not (isinstance(c, str) and ("\n" in c or len(c) > 60))
    ]
    parts = [code.co_code.hex(), code.co_names, code.co_varnames, sorted(constants)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def fingerprints(sources: Iterable[str]) -> set[str]:
    """Return the fingerprints of all functions in texts of Python; texts that aren't are left out."""
    found: set[str] = set()

    def walk(code: CodeType) -> None:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                if not constant.co_name.startswith("<"):
                    found.add(fingerprint(constant))
                walk(constant)

    for source in sources:
        try:
            # Annotations and docstrings aside, a function that stands in a class or a file compiles to the same code.
            walk(compile(ast.parse(source), "<text>", "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            continue
    return found


def known_fingerprints(topic: int) -> set[str]:
    """Return the fingerprints of what answers a topic's exercises: references, the package's functions, solutions."""
    name = TOPICS[topic]
    files: list[Path] = []
    for place in (PACKAGE / name, PACKAGE / "packed_training"):
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    sources = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    solution = PACKAGE.parents[1] / "solutions" / f"{topic:02}_{name}.ipynb"
    if solution.is_file():
        cells = json.loads(solution.read_text(encoding="utf-8"))["cells"]
        sources += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    # Of the exercises' module only the references: what calls a student's function comes from there too.
    return fingerprints(sources) | {fingerprint(e.reference.__code__) for e in exercises_of(topic)}
