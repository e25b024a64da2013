"""What a student's notebook says, read without running it: its cells, its checks, the functions that it defines."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

from onegpu.exercises import exercises_of
from onegpu.exercises.exercise import TOPICS


class Unreadable(ValueError):
    """A file that can't be read as a notebook; the message says why."""


@dataclass(frozen=True)
class Lab:
    """A notebook as the grader needs it.

    Attributes
    ----------
    cells
        The source of each code cell, in order.
    topic
        The lab's number, None where nothing in the notebook says it.
    checked
        For each exercise, the names of functions that its check cells hand over, as the text has them.
    parameters
        For each function at the top level of a cell, the names of its parameters.
    """

    cells: tuple[str, ...]
    topic: int | None
    checked: dict[str, tuple[str, ...]]
    parameters: dict[str, tuple[str, ...]]


def read_lab(content: bytes) -> Lab:
    """Read a notebook of any format, with or without a byte order mark.

    Raises
    ------
    Unreadable
        If it isn't text, JSON, or a notebook.
    """
    cells = _code_cells(content)
    checked: dict[str, list[str]] = {}
    parameters: dict[str, tuple[str, ...]] = {}
    votes: Counter[int] = Counter()
    for source in cells:
        tree = parse(source)
        if tree is None:
            continue
        for number, name in _checks(tree):
            votes[int(number.partition(".")[0])] += 1
            if name:
                checked.setdefault(number, []).append(name)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                a = node.args
                parameters[node.name] = tuple(p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs))
    if not any(topic in TOPICS for topic in votes):
        # Without a check cell, the lab whose functions stand here.
        for topic in TOPICS:
            names = {exercise.function_name for exercise in exercises_of(topic)}
            votes[topic] = len(names & set(parameters))
    topic, count = max(votes.items(), key=lambda item: item[1], default=(None, 0))
    return Lab(
        tuple(cells),
        topic if count and topic in TOPICS else None,
        {number: tuple(dict.fromkeys(names)) for number, names in checked.items()},
        parameters,
    )


def parse(source: str) -> ast.Module | None:
    """Parse a cell, magics and all; None if it isn't Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SyntaxWarning for "\d" in a student's text
        try:
            body = re.sub(r"\A%%(time|timeit|capture|prun)\b.*\n", "", source)
            return ast.parse(TransformerManager().transform_cell(body))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _checks(tree: ast.AST) -> list[tuple[str, str]]:
    """(exercise, name of the function or "") of each call of ``check`` in a tree."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        given = dict(zip(("number", "function"), node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        number = given.get("number")
        if name != "check" or not isinstance(number, ast.Constant):
            continue
        if isinstance(number.value, str) and re.fullmatch(r"\d+\.\d+", number.value):
            handed = given.get("function")
            found.append((number.value, handed.id if isinstance(handed, ast.Name) else ""))
    return found


def _code_cells(content: bytes) -> list[str]:
    notebook = _json(content)
    version = notebook.get("nbformat") if isinstance(notebook, dict) else None
    if not isinstance(version, int):
        raise Unreadable("not a notebook: it has no nbformat number")
    cells: list[Any] = []
    if version >= 4:
        cells = notebook.get("cells") or []
    else:  # formats 1 to 3 kept the cells in work sheets, and their source as "input"
        for sheet in notebook.get("worksheets") or [notebook]:
            cells += sheet.get("cells") or []
    found = []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        found.append("".join(map(str, source)) if isinstance(source, list) else str(source))
    return found


def _json(content: bytes) -> Any:
    if not content.strip():
        raise Unreadable("the file is empty")
    encoding = "utf-8-sig"
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        raise Unreadable("not a notebook: it isn't text") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if "<<<<<<<" in text:
            raise Unreadable(
                "not a notebook: a merge of two versions was left unfinished (<<<<<<< lines)"
            ) from None
        if text.lstrip()[:1] == "<":
            raise Unreadable("not a notebook: it is a web page (saved with the browser?)") from None
        raise Unreadable(f"not a notebook: line {error.lineno} is not JSON ({error.msg})") from None
    except RecursionError:
        raise Unreadable("not a notebook: nested too deeply") from None


def definitions(source: str, after: int = 0) -> list[ast.stmt]:
    """Return a cell's definitions and imports that begin after a line: what still works when the rest of it failed."""
    tree = parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return [node for node in (tree.body if tree else ()) if isinstance(node, kinds) and node.lineno > after]
