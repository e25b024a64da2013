"""Rules of ``check`` on what a reader reads: captions, results, widths, links, terms.

A typed number in a caption stays when the data change; ``True`` tells a reader less than the number behind it; a term
that isn't explained where it first stands loses them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from onegpu.notebooks.files import topic_of
from onegpu.notebooks.parts import is_footer, is_setup

MOST_COLUMNS = 88

EVERYDAY = frozenset(
    (
        "actor",
        "code",
        "evaluation",
        "margin",
        "node",
        "rank",
        "ranking",
        "scale",
        "step",
        "task",
        "validation",
        "worker",
    )
)
"""Terms of the glossary that are words of every day as well: their use can't be told from the other one."""


def problems_of_prose(notebook: Any, place: str, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a notebook for its reader.

    Parameters
    ----------
    notebook
        The notebook.
    place
        Its path from the repository's root.
    folder
        The repository.
    """
    yield from _links(notebook, place, folder)
    yield from _captions(notebook)
    yield from _booleans(notebook)
    yield from _widths(notebook)
    if place.startswith("course/"):
        yield from _terms(notebook, topic_of(Path(place)), folder)


# A number that stands alone: not the 135 of SmolLM2-135M or the 4 of NF4.
_TYPED = re.compile(r"(?<![\w.\-])\d[\d,.]*(?![\w-])")


def _captions(notebook: Any) -> Iterator[str]:
    for number, tree in _code(notebook):
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in ("show", "captioned") and len(call.args) > 1:
                caption = "".join(
                    node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
                    for node in _outside_braces(call.args[1])
                )
                if typed := _TYPED.search(caption):
                    yield (
                        f"cell {number}: the number {typed[0].rstrip('.,')} is typed into a caption: compute it from what "
                        "is drawn (an f-string, or a caption that the plot function makes with plots.captioned)."
                    )


def _outside_braces(node: ast.AST) -> Iterator[ast.AST]:
    """A caption's literal text, without the expressions and formats inside braces; a computed one gives nothing."""
    if isinstance(node, ast.JoinedStr):
        yield from (part for part in node.values if isinstance(part, ast.Constant))
    elif isinstance(node, ast.BinOp):
        yield from (*_outside_braces(node.left), *_outside_braces(node.right))
    elif isinstance(node, ast.Constant):
        yield node


_ALONE = re.compile(r"(?:^|[:=] ?)(True|False)$|^[\[(](?:True|False)(?:, (?:True|False))*,?[\])]$", re.M)


def _booleans(notebook: Any) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        for out in cell.get("outputs", []):
            text = out.get("text") or out.get("data", {}).get("text/plain", "")
            if found := _ALONE.search(text):
                line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
                yield (
                    f"cell {number}: it shows a verdict, {line[-60:]!r}: show the number behind it, and assert in tests/."
                )


def _widths(notebook: Any) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and not is_setup(cell):
            for line in cell.source.splitlines():
                if len(line) > MOST_COLUMNS:
                    yield f"cell {number}: a line of {len(line)} columns, at most {MOST_COLUMNS}: {line.strip()[:40]!r}."


_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(<?([^)\s>]+)>?\)")


def _links(notebook: Any, place: str, folder: Path) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and not is_footer(
            cell
        ):  # the footer is compared with what `build` makes
            for target in _LINK.findall(_without_code(cell.source)):
                if re.match(r"https?://[\w.-]+\.\w+(/|$)|mailto:", target):
                    continue  # another site: not asked, a test without a network must be able to pass
                path, _, anchor = target.partition("#")
                file = (folder / place).parent / unquote(path) if path else folder / place
                if re.match(r"\w+:", target) or not file.exists():
                    yield f"cell {number}: the link to {target} leads nowhere from {place}."
                elif anchor and file.suffix == ".md" and anchor not in _anchors(file.read_text("utf-8")):
                    yield f"cell {number}: {file.name} has no place #{anchor}."


@cache
def _anchors(text: str) -> frozenset[str]:
    headings = (
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)
    )
    return frozenset(re.findall(r'<a id="([^"]+)">', text)) | frozenset(headings)


@cache
def glossary_terms(text: str) -> tuple[tuple[str, tuple[str, ...], int], ...]:
    """Return (anchor, names, first topic) of each row of the glossary.

    Examples
    --------
    >>> glossary_terms('| <a id="chosen"></a>chosen, rejected | ... | The two of a pair | [02](02_preference_data.ipynb) |')
    (('chosen', ('chosen', 'rejected'), 2),)
    """
    rows = re.findall(r'^\| <a id="([^"]+)"></a>(.+?) \|.*?\[(\d\d)\]\([^|]*\|$', text, re.M)
    return tuple(
        (anchor, tuple(re.sub(r" \(.*\)", "", name.strip()) for name in names.split(",")), int(topic))
        for anchor, names, topic in rows
    )


def _terms(notebook: Any, topic: int, folder: Path) -> Iterator[str]:
    """Terms of this lesson or a later one: explained (in italics or bold) or linked where they first stand."""
    glossary = folder / "course" / "glossary.md"
    if not glossary.is_file():
        return
    texts = [
        (number, _without_code(cell.source))
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "markdown" and not is_footer(cell)
    ]
    for anchor, names, explained_in in glossary_terms(glossary.read_text("utf-8")):
        if explained_in < topic or EVERYDAY & set(names):
            continue
        found = [
            (number, match.start(), text, match)
            for number, text in texts
            for name in names
            if (match := re.search(rf"(?<![\w/]){re.escape(name)}s?(?!\w)", text, _case(name)))
        ]
        if found:
            number, _, text, match = min(found, key=lambda one: one[:2])
            if not _introduced(text, match):
                mend = f"[{match[0]}](glossary.md#{anchor})"
                yield f"cell {number}: {match[0]!r} first stands here without a word about it: explain it (*{match[0]}*), or link {mend}."


def _case(name: str) -> int:
    """Abbreviations are told by their case (PPO, nat); words are not."""
    return 0 if name.isupper() else re.I


def _introduced(text: str, match: re.Match) -> bool:
    """Whether a match stands in italics, bold, a heading or a link."""
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    line = text[start : end if end >= 0 else len(text)]
    at = match.start() - start
    marked = [m.span() for m in re.finditer(r"\*[^*]+\*|\[[^\]]+\]\([^)]+\)", line)]
    return line.startswith("#") or any(a <= at < b for a, b in marked)


def _without_code(source: str) -> str:
    """Markdown without fenced and inline code and formulas, each replaced by as many spaces."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    source = re.sub(r"^(```|~~~).*?^\1", blank, source, flags=re.S | re.M)
    return re.sub(r"`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$", blank, source, flags=re.S)


def _code(notebook: Any) -> Iterator[tuple[int, ast.Module]]:
    from IPython.core.inputtransformer2 import TransformerManager

    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            try:
                yield number, ast.parse(TransformerManager().transform_cell(cell.source))
            except SyntaxError:  # said by another rule
                continue
