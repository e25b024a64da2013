"""Notebooks as Markdown text, for writing them in an editor and reading their differences.

Text is Markdown cells, a fence that begins with exactly ```` ```python ```` is a code cell, and a line ``+++`` divides
two Markdown cells. Tags follow the word python:

    # NF4 by hand

    What you will be able to do: ...

    ```python tags=raises-exception
    quantize(None)
    ```

Code that is only shown goes into a ```` ```py ```` or ```` ```text ```` fence. Badge and setup cell are left out:
``build`` puts them in.
"""

from __future__ import annotations

import re
from typing import Any

from onegpu.notebooks.files import NotebookError
from onegpu.notebooks.parts import BADGE, is_setup

_FENCE = re.compile(r"^```python(?: tags=(?P<tags>[\w,-]+))?[ \t]*$")


def from_text(text: str) -> Any:
    """Return the notebook of a Markdown text, without badge, setup cell and outputs.

    Raises
    ------
    NotebookError
        When a fence isn't closed.

    Examples
    --------
    >>> notebook = from_text("# Title\\n\\nWords.\\n\\n```python\\n1 + 1\\n```\\n")
    >>> [(cell.cell_type, cell.source) for cell in notebook.cells]
    [('markdown', '# Title\\n\\nWords.'), ('code', '1 + 1')]
    """
    import nbformat

    notebook = nbformat.v4.new_notebook()
    words: list[str] = []

    def end_of_words() -> None:
        source = "\n".join(words).strip("\n")
        if source.strip():
            notebook.cells.append(nbformat.v4.new_markdown_cell(source))
        words.clear()

    lines = iter(enumerate(text.splitlines(), 1))
    shown = False  # inside a fence that is only shown
    for number, line in lines:
        fence = None if shown else _FENCE.match(line)
        if fence:
            end_of_words()
            code: list[str] = []
            for _, inner in lines:
                if inner.rstrip() == "```":
                    break
                code.append(inner)
            else:
                raise NotebookError(f"line {number}: this ```python fence is never closed by ```.")
            tags = {"tags": fence["tags"].split(",")} if fence["tags"] else {}
            notebook.cells.append(nbformat.v4.new_code_cell("\n".join(code).strip("\n"), metadata=tags))
            continue
        if line.startswith("```"):
            if not shown and line.startswith("```python"):
                raise NotebookError(f"line {number}: {line!r}: expected ```python or ```python tags=a,b")
            shown = not shown
        if line.rstrip() == "+++" and not shown:
            end_of_words()
        else:
            words.append(line)
    end_of_words()
    return notebook


def to_text(notebook: Any) -> str:
    """Return a notebook as Markdown text, without badge, setup cell and outputs; ``from_text`` reads it back."""
    parts: list[str] = []
    previous = ""
    for cell in notebook.cells:
        if is_setup(cell):
            continue
        if cell.cell_type == "markdown":
            source = re.sub(r"\n{3,}", "\n\n", BADGE.sub("", cell.source)).strip("\n")
            parts += ["+++"] * (previous == "markdown") + [source]
        else:
            tags = ",".join(cell.metadata.get("tags", []))
            parts.append(f"```python{' tags=' + tags if tags else ''}\n{cell.source}\n```")
        previous = cell.cell_type
    return "\n\n".join(parts) + "\n"
