"""``check``: what is out of step in the notebooks, one sentence each, with what to do.

Each rule is a function of one notebook that yields problems; ``check`` adds what needs several files.
"""

from __future__ import annotations

import ast
import getpass
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onegpu.notebooks.building import lab_text
from onegpu.notebooks.execution import digest
from onegpu.notebooks.files import NotebookError, notebook_paths, read, repository, root, topic_of
from onegpu.notebooks.labs import SOLUTION_ONLY, solution_lines, syntax_error
from onegpu.notebooks.parts import (
    BADGE,
    BADGE_IMAGE,
    METADATA,
    badge,
    footer_source,
    is_footer,
    is_setup,
    setup_source,
)
from onegpu.notebooks.prose import problems_of_prose
from onegpu.notebooks.report import Report

MOST_LINES = 15
MOST_IGNORED_OUTPUTS = 6
"""Of one notebook: cells tagged nbval-ignore-output. An experiment's own figures differ a little between machines."""

BUILD = "run `onegpu notebooks build`"


def check(folder: Path | None = None) -> Report:
    """Look at every notebook and say what is out of step.

    Parameters
    ----------
    folder
        The repository; by default the one this package is installed from.
    """
    folder = (folder or root()).resolve()
    done, problems = [], []
    for path in notebook_paths(folder):
        place = path.relative_to(folder).as_posix()
        done.append(place)
        try:
            problems += [f"{place}: {problem}" for problem in problems_of(read(path), place, folder)]
        except NotebookError as error:
            problems.append(f"{place}: {error}")
    problems += _between_files(folder)
    return Report("check", tuple(done), tuple(problems))


def problems_of(notebook: Any, place: str, folder: Path) -> Iterator[str]:
    """Yield what is wrong with one notebook.

    Parameters
    ----------
    notebook
        The notebook.
    place
        Its path from the repository's root, such as "course/04_quantization.ipynb".
    folder
        The repository.
    """
    yield from _head(notebook, place, folder, repository(folder))
    yield from _headings(notebook)
    yield from _alt_texts(notebook)
    yield from _cells(notebook)
    yield from problems_of_prose(notebook, place, folder)
    kind = place.partition("/")[0]
    if kind == "labs":
        yield from _lab(notebook)
    else:
        yield from _stored_outputs(notebook, place)
        if kind == "solutions":
            yield from _checks(notebook, topic_of(Path(place)))
        yield from _private(notebook, folder)


def _head(notebook: Any, place: str, folder: Path, address: str) -> Iterator[str]:
    """Title, badge, setup cell, metadata."""
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield "cell 0: expected a Markdown cell that begins with the title, `# ...`."
        return
    badges = [
        match[0]
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for match in BADGE.finditer(cell.source)
    ]
    if badges != [badge(place, address)]:
        found = f"the badge is {badges[0][-60:]}" if badges else "there is no Colab badge"
        yield f"cell 0: {found}, expected …{badge(place, address)[-60:]}: {BUILD}."
    for opened in re.findall(
        r"colab\.research\.google\.com/github/[^/]+/[^/]+/blob/[^/]+/([^)\s]+)", first.source
    ):
        if not (folder / opened).is_file():
            yield f"cell 0: the badge opens {opened}, which doesn't exist: {BUILD}."
    if not re.search(r"\d+ minutes", first.source):
        yield "cell 0: say how long it takes, such as '40 minutes'."
    setups = [number for number, cell in enumerate(notebook.cells) if is_setup(cell)]
    if not setups:
        yield f"there is no setup cell: {BUILD}."
    elif setups != [1]:
        yield f"the setup cell is cell {setups}, expected one, cell 1: {BUILD}."
    elif notebook.cells[1].source != setup_source(address):
        yield f"cell 1: the setup cell was edited by hand: {BUILD}."
    if [cell.source for cell in notebook.cells if is_footer(cell)] != [footer_source(place, address)] or (
        not is_footer(notebook.cells[-1])
    ):
        yield f"the last cell isn't the generated one, with the links onwards: {BUILD}."
    extra = sorted(set(notebook.metadata) - set(METADATA) - {"onegpu"})
    if extra:
        yield f"metadata holds {', '.join(extra)} (a Colab or Jupyter save): {BUILD}."


def _headings(notebook: Any) -> Iterator[str]:
    level, titles = 0, 0
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        for text in _outside_fences(cell.source):
            heading = re.match(r"(#{1,6})\s+(.*)", text)
            if not heading:
                continue
            here = len(heading[1])
            titles += here == 1
            if here > level + 1:
                yield f"cell {number}: the heading {heading[2]!r} skips a level (from {level} to {here}): use {'#' * (level + 1)}."
            level = here
    if titles > 1:
        yield f"there are {titles} headings of level 1, expected one, the title."


def _outside_fences(source: str) -> Iterator[str]:
    shown = False
    for line in source.splitlines():
        if line.startswith(("```", "~~~")):
            shown = not shown
        elif not shown:
            yield line


def _alt_texts(notebook: Any) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            text = "\n".join(_outside_fences(cell.source))
            for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", text):
                if not alt.strip():
                    yield f"cell {number}: the picture {target[-40:]} has no alt text: ![what it shows](...)."
                elif BADGE_IMAGE not in target and not target.startswith(("attachment:", "data:")):
                    yield f"cell {number}: the picture {target[-40:]} isn't in the file, so Colab can't show it: attach it or plot it."
            yield from (f"cell {number}: an <img> without alt text." for _ in _bare_images(text))
            continue
        for out in cell.get("outputs", []):
            for kind, content in out.get("data", {}).items():
                if kind in ("image/png", "image/jpeg", "image/svg+xml"):
                    alt = out.metadata.get(kind, {}).get("alt", "")
                    if not alt.strip():
                        yield f"cell {number}: a figure without alt text: show it with onegpu.plots.show(figure, alt)."
                elif kind == "text/html":
                    yield from (
                        f"cell {number}: an <img> without alt text in its output."
                        for _ in _bare_images(content)
                    )


def _bare_images(html: str) -> Iterator[str]:
    for tag in re.findall(r"<img\b[^>]*>", html):
        if not re.search(r"""\balt\s*=\s*("[^"]+"|'[^']+')""", tag):
            yield tag


def _cells(notebook: Any) -> Iterator[str]:
    """Length, syntax, a trailing ``;``, ignored outputs."""
    ignored = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.get("tags", [])
        if "nbval-ignore-output" in tags or "NBVAL_IGNORE_OUTPUT" in cell.source:
            ignored.append(number)
        if "nbval-skip" in tags or "NBVAL_SKIP" in cell.source:
            yield f"cell {number}: nbval-skip: every cell runs in CI; make it short instead."
        wrong = syntax_error(cell.source)
        if wrong:
            yield f"cell {number}: not valid Python: {wrong}."
            continue
        if not is_setup(cell) and (count := code_lines(cell.source)) > MOST_LINES:
            yield f"cell {number}: {count} lines of code, at most {MOST_LINES}: divide it, or move a part into the helper module."
        last = next((line for line in reversed(cell.source.splitlines()) if line.strip()), "")
        if last.rstrip().endswith(";") and not last.lstrip().startswith("#"):
            yield f"cell {number}: ends in `;`, which nbval doesn't honour: end in plots.show(...) or an assignment."
    if len(ignored) > MOST_IGNORED_OUTPUTS:
        yield (
            f"cells {ignored} are tagged nbval-ignore-output, at most {MOST_IGNORED_OUTPUTS} of a notebook may be: print the "
            "result in a way that is the same each time."
        )
    for number in ignored:
        later = [cell for cell in notebook.cells[number + 1 :] if cell.cell_type == "code"]
        if not later:
            yield f"cell {number}: tagged nbval-ignore-output, and no cell after it prints its result: add one."


def code_lines(source: str) -> int:
    """Count lines that hold code: no blank lines, comments, docstrings or markers.

    Examples
    --------
    >>> code_lines('def f(x):\\n    \\"\\"\\"Two\\n    lines.\\"\\"\\"\\n\\n    # why\\n    return x\\n')
    2
    """
    from IPython.core.inputtransformer2 import TransformerManager

    text = TransformerManager().transform_cell(source)
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def _lab(notebook: Any) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            yield f"cell {number}: a lab is stored without outputs: {BUILD}."


def _stored_outputs(notebook: Any, place: str) -> Iterator[str]:
    mend = f"run `onegpu notebooks run {place}`"
    stamp = notebook.metadata.get("onegpu", {}).get("executed")
    code = [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    if stamp is None:
        yield f"its outputs were not made by the course's own command: {mend}."
        return
    if stamp != digest(notebook):
        yield f"code or a stored output changed since it was executed: {mend}."
    for number, cell in code:
        tags = cell.metadata.get("tags", [])
        if cell.execution_count is None:
            yield f"cell {number}: not executed: {mend}."
        elif not cell.outputs and shows_something(cell.source):
            yield f"cell {number}: has no stored output, but should have one: {mend}."
        for out in cell.outputs:
            if out.output_type == "error" and "raises-exception" not in tags:
                yield f"cell {number}: raises {out.ename}: mend it, or tag it raises-exception if that is the lesson."
            if out.output_type == "stream" and out.name == "stderr":
                yield f"cell {number}: writes to stderr ({out.text.strip()[:60]!r}): mend the cause or quiet it."
            if any(
                isinstance(v, str) and "%|" in v and "it/s" in v
                for v in [out.get("text", ""), *out.get("data", {}).values()]
            ):
                yield f"cell {number}: a progress bar in a stored output: use tqdm.auto and {mend}."


def shows_something(source: str) -> bool:
    """Whether a cell surely writes an output: it ends in an expression that isn't a call, or prints at its top level."""
    if syntax_error(source):
        return False
    from IPython.core.inputtransformer2 import TransformerManager

    body = ast.parse(TransformerManager().transform_cell(source)).body
    if (
        body
        and isinstance(body[-1], ast.Expr)
        and not isinstance(body[-1].value, ast.Call | ast.Constant | ast.Await)
    ):
        return True
    calls = [
        node.value
        for node in body
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call)
    ]
    return any(
        isinstance(call.func, ast.Name) and call.func.id in ("print", "check", "display") for call in calls
    )


def _private(notebook: Any, folder: Path) -> Iterator[str]:
    """Paths and names of the machine it was executed on, in outputs."""
    absolute = re.compile(
        r"(?<![\w.:/~…])/(?:home|Users|root|private|var|opt|mnt|work|workspace|content|builds?)/[\w./-]+|[A-Z]:\\\\?Users\\"
    )
    names = {name for name in (_user(), Path.home().name) if len(name) > 3}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        for out in cell.outputs:
            data = [
                value
                for kind, value in out.get("data", {}).items()
                if isinstance(value, str) and not kind.startswith("image/")
            ]
            text = "\n".join([out.get("text", ""), out.get("evalue", ""), *out.get("traceback", []), *data])
            text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
            if found := absolute.search(text):
                yield f"cell {number}: an absolute path in its output, {found[0][:60]!r}: print a relative path or its name."
            for name in names:
                if re.search(rf"\b{re.escape(name)}\b", text):
                    yield f"cell {number}: the user's name {name!r} in its output: don't print it."


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


CHECK = re.compile(r"""^(\w+) = check\(["']([^"']+)["'], (\w+)\)""", re.M)


def checks_in(notebook: Any) -> list[tuple[str, str]]:
    """Return (exercise number, function's name) of each check in a notebook, in order."""
    return [
        (match[2], match[3])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for match in CHECK.finditer(cell.source)
    ]


def _checks(notebook: Any, topic: int) -> Iterator[str]:
    """Each exercise of the topic is checked once; each has a statement, and its solution markers."""
    from onegpu.exercises import exercises_of
    from onegpu.exercises.exercise import TOPICS

    found = [number for number, _ in checks_in(notebook)]
    wanted = [exercise.number for exercise in exercises_of(topic)] if topic in TOPICS else []
    if found != wanted:
        yield f'it checks {", ".join(found) or "nothing"}, expected {", ".join(wanted)}, in this order (fn = check("{topic}.1", fn)).'
    marked = "\n".join(cell.source for cell in notebook.cells if "### BEGIN SOLUTION" in cell.source)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for number, name in checks_in(notebook):
        if topic and not re.search(rf"^## {re.escape(number)} ", text, re.M):
            yield f"exercise {number}: its statement is missing, expected a Markdown cell with the heading `## {number} ...`."
        if not re.search(rf"^(async )?def {name}\(", marked, re.M):
            yield f"exercise {number}: the cell that defines {name} has no ### BEGIN SOLUTION."
    for number, cell in enumerate(notebook.cells):
        for match in re.finditer(r"(?<!\w)check\(", cell.source if cell.cell_type == "code" else ""):
            line = cell.source[cell.source.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
            if not CHECK.match(line) and not line.startswith("#"):
                yield f'cell {number}: {line.strip()[:50]!r}: expected fn = check("{topic}.1", fn), so that the lab goes on.'


def _between_files(folder: Path) -> Iterator[str]:
    """Labs against solutions."""
    for path in notebook_paths(folder, ("solutions",)):
        lab = folder / "labs" / path.name
        try:
            solution = read(path)
            if not lab.is_file():
                yield f"labs/{path.name}: missing: {BUILD}."
                continue
            if lab.read_text(encoding="utf-8") != lab_text(solution, path.name, repository(folder)):
                yield f"labs/{path.name}: out of step with solutions/{path.name}: {BUILD} (labs are never edited by hand)."
            yield from _left_over(solution, read(lab), path.name)
        except NotebookError as error:
            if lab.is_file():  # what is wrong with one file alone was said already
                yield f"labs/{path.name}: can't be compared with its solution: {error}"
    for path in notebook_paths(folder, ("labs",)):
        if not (folder / "solutions" / path.name).is_file():
            yield f"labs/{path.name}: no solutions/{path.name} to make it from: delete it or write one."


def _left_over(solution: Any, lab: Any, name: str) -> Iterator[str]:
    """No line of a solution stands in the lab."""
    secrets = {
        line: number
        for number, cell in enumerate(solution.cells)
        if cell.cell_type == "code"
        for line in solution_lines(cell.source)
    }
    shown = {
        line.strip()
        for cell in solution.cells
        if SOLUTION_ONLY not in cell.metadata.get("tags", [])
        for line in _outside(cell)
    }
    for number, cell in enumerate(lab.cells):
        lines = {line.strip() for line in cell.source.splitlines()}
        for line in sorted(lines & secrets.keys() - shown):
            yield f"labs/{name}: cell {number}: a line of the solution is left in the lab, {line[:50]!r}: {BUILD}."


def _outside(cell: Any) -> Iterator[str]:
    """Lines of a cell outside its solution markers."""
    inside = False
    for line in cell.source.splitlines():
        if line.strip() in ("### BEGIN SOLUTION", "### END SOLUTION"):
            inside = not inside
        elif not inside:
            yield line
