"""``build``: badges, setup cells and cell ids in course/ and solutions/, labs/ from solutions/, the README's table."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from onegpu.notebooks.execution import digest
from onegpu.notebooks.files import NotebookError, notebook_paths, read, repository, root, write, written
from onegpu.notebooks.labs import lab_from
from onegpu.notebooks.overview import readme_table
from onegpu.notebooks.parts import number_cells, prepare, ref
from onegpu.notebooks.report import Report

CELL_COLUMNS = 88  # what JupyterLab shows without a scroll bar in a window of 1,200 pixels
README_BEGIN = "<!-- topics: made by `onegpu notebooks build` -->"
README_END = "<!-- end of topics -->"


def build(folder: Path | None = None) -> Report:
    """Make what is generated: badges and setup cells everywhere, labs/ from solutions/; format the code with ruff.

    Stored outputs stay; ``run`` makes those.

    Parameters
    ----------
    folder
        The repository; by default the one this package is installed from.
    """
    folder = folder or root()
    address = repository(folder)
    done, problems = [], []
    sources = notebook_paths(folder, ("course", "solutions"))
    before = {path: path.read_bytes() for path in sources}
    in_step = {path for path in sources if _outputs_in_step(path)}
    _format(sources)
    for path in sources:
        place = path.relative_to(folder).as_posix()
        try:
            notebook = prepare(read(path), place, address)
            if path in in_step:  # formatting changes no output
                notebook.metadata["onegpu"] = {"executed": digest(notebook)}
            write(path, notebook)
            if path.read_bytes() != before[path]:
                done.append(place)
            if path.parent.name == "solutions":
                lab = folder / "labs" / path.name
                if write(lab, lab_of(notebook, path.name, address)):
                    done.append(f"labs/{path.name}")
        except NotebookError as error:
            problems.append(f"{place}: {error}")
    if _update_readme(folder / "README.md", address):
        done.append("README.md")
    for path in notebook_paths(folder, ("labs",)):
        if not (folder / "solutions" / path.name).is_file():
            problems.append(
                f"labs/{path.name}: no solutions/{path.name} to make it from: delete it or write one."
            )
    return Report("build", tuple(done), tuple(problems))


def _update_readme(path: Path, address: str) -> bool:
    """Write the table of topics between its markers in the README, if it has them; return whether it changed."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    right = f"{before}{begin}\n{readme_table(address, ref())}\n{end}{after}"
    if not end or right == text:
        return False
    path.write_text(right, encoding="utf-8", newline="\n")
    return True


def _outputs_in_step(path: Path) -> bool:
    try:
        notebook = read(path)
    except NotebookError:
        return False
    return notebook.metadata.get("onegpu", {}).get("executed") == digest(notebook)


def _format(paths: list[Path]) -> None:
    """Format the code of notebooks with ruff, to the width of a cell; left as it is where ruff isn't installed."""
    if paths and importlib.util.find_spec("ruff"):
        options = ["--quiet", "--no-cache", f"--line-length={CELL_COLUMNS}"]
        command = [sys.executable, "-m", "ruff", "format", *options, *map(str, paths)]
        # What ruff can't read, `read` names.
        subprocess.run(command, check=False, capture_output=True)


def lab_of(solution: Any, name: str, address: str) -> Any:
    """Return the lab notebook of a solution notebook, complete."""
    lab = prepare(lab_from(copy.deepcopy(solution), name), f"labs/{name}", address)
    number_cells(lab)
    return lab


def lab_text(solution: Any, name: str, address: str) -> str:
    """Return the text that labs/``name`` must have."""
    return written(lab_of(solution, name, address))
