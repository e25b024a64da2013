"""A lab from a solution: the body between the markers becomes a stub that runs.

    def f(x):                                  def f(x):
        ### BEGIN SOLUTION                         return ...  # your code here
        return x + 1
        ### END SOLUTION

The markers are nbgrader's, so that a class can put nbgrader on the same source.
"""

from __future__ import annotations

import ast
import copy
import re
from typing import Any

from onegpu.notebooks.files import NotebookError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = "return ...  # your code here"
PLAIN_STUB = "...  # your code here"
SOLUTION_ONLY, LAB_ONLY = "solution-only", "lab-only"


def stubbed(source: str, where: str = "cell") -> str:
    """Return a cell's source with each solution replaced by a stub.

    Inside a function the stub is ``return ...  # your code here``, outside ``...  # your code here``.

    Raises
    ------
    NotebookError
        When a marker has no partner.

    Examples
    --------
    >>> print(stubbed("def f(x):\\n    ### BEGIN SOLUTION\\n    return x + 1\\n    ### END SOLUTION"))
    def f(x):
        return ...  # your code here
    """
    lines: list[str] = []
    inside: str | None = None
    for number, line in enumerate(source.splitlines(), 1):
        marker = line.strip()
        if marker == BEGIN:
            if inside is not None:
                raise NotebookError(f"{where}: line {number}: {BEGIN} inside another solution.")
            inside = line[: len(line) - len(line.lstrip())]
            lines.append(inside + (STUB if _in_function(lines, inside) else PLAIN_STUB))
        elif marker == END:
            if inside is None:
                raise NotebookError(f"{where}: line {number}: {END} without {BEGIN}.")
            inside = None
        elif inside is None:
            if marker.startswith(("### BEGIN", "### END")):
                raise NotebookError(
                    f"{where}: line {number}: {marker!r} is no marker: expected {BEGIN} or {END}."
                )
            lines.append(line)
    if inside is not None:
        raise NotebookError(f"{where}: {BEGIN} without {END}.")
    return "\n".join(lines)


def _in_function(before: list[str], indent: str) -> bool:
    """Whether a line with this indent, after these lines, belongs to a function's body."""
    for line in reversed(before):
        text = line.lstrip()
        if text and len(line) - len(text) < len(indent):
            if re.match(r"(async\s+)?def\b", text):
                return True
            if text.startswith("class ") or not line[:1].isspace():
                # A signature over several lines ends in a line such as `) -> int:`.
                if not text.startswith((")", "]")):
                    return False
                continue
            indent = line[: len(line) - len(text)]
    return False


def solution_lines(source: str) -> list[str]:
    """Return the lines inside the markers that would give a solution away (no bare ``return x``, no brackets alone)."""
    found, inside = [], False
    for line in source.splitlines():
        text = line.strip()
        if text in (BEGIN, END):
            inside = text == BEGIN
        elif inside and len(text) > 12 and not text.startswith("#"):
            found.append(text)
    return found


def lab_from(solution: Any, where: str = "solution") -> Any:
    """Return the lab of a solution notebook: stubs, no outputs, cells tagged ``solution-only`` left out."""
    lab = copy.deepcopy(solution)
    lab.cells = [cell for cell in lab.cells if SOLUTION_ONLY not in cell.metadata.get("tags", [])]
    lab.metadata.pop("onegpu", None)
    for number, cell in enumerate(lab.cells):
        if cell.cell_type != "code":
            continue
        cell.source = stubbed(cell.source, f"{where}, cell {number}")
        cell.outputs, cell.execution_count = [], None
        tags = [tag for tag in cell.metadata.get("tags", []) if not tag.startswith("nbval-")]
        cell.metadata = type(cell.metadata)({"tags": tags} if tags else {})
    return lab


def syntax_error(source: str) -> str:
    """Return what is wrong with a code cell's Python, or ""; lines of magic (%pip, !ls) are allowed."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    return ""
