"""`build`: badges, setup cells and cell ids in course/ and solutions/, and labs/ from solutions/."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from onegpu.notebooks.files import NotebookError, notebook_paths, read, repository, root, write, written
from onegpu.notebooks.labs import lab_from
from onegpu.notebooks.parts import number_cells, prepare
from onegpu.notebooks.report import Report


def build(folder: Path | None = None) -> Report:
    """Make what is generated: badges and setup cells everywhere, labs/ from solutions/.

    Stored outputs stay; `run` makes those.

    Parameters
    ----------
    folder
        The repository; by default the one this package is installed from.
    """
    folder = folder or root()
    address = repository(folder)
    done, problems = [], []
    for path in notebook_paths(folder, ("course", "solutions")):
        place = path.relative_to(folder).as_posix()
        try:
            notebook = prepare(read(path), place, address)
            if write(path, notebook):
                done.append(place)
            if path.parent.name == "solutions":
                lab = folder / "labs" / path.name
                if write(lab, lab_of(notebook, path.name, address)):
                    done.append(f"labs/{path.name}")
        except NotebookError as error:
            problems.append(f"{place}: {error}")
    for path in notebook_paths(folder, ("labs",)):
        if not (folder / "solutions" / path.name).is_file():
            problems.append(
                f"labs/{path.name}: no solutions/{path.name} to make it from: delete it or write one."
            )
    return Report("build", tuple(done), tuple(problems))


def lab_of(solution: Any, name: str, address: str) -> Any:
    """Return the lab notebook of a solution notebook, complete."""
    lab = prepare(lab_from(copy.deepcopy(solution), name), f"labs/{name}", address)
    number_cells(lab)
    return lab


def lab_text(solution: Any, name: str, address: str) -> str:
    """Return the text that labs/`name` must have."""
    return written(lab_of(solution, name, address))
