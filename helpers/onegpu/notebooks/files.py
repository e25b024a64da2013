"""Where the notebooks are, and reading and writing them the same way each time."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

FOLDERS = ("course", "labs", "solutions")


class NotebookError(ValueError):
    """A notebook can't be read or used; the message says why and what to do."""


def root() -> Path:
    """Return the folder of the repository.

    Raises
    ------
    NotebookError
        When the package is installed without its repository.
    """
    folder = Path(__file__).resolve().parents[3]
    if (folder / "pyproject.toml").is_file() and (folder / "helpers" / "onegpu").is_dir():
        return folder
    raise NotebookError(
        "The notebooks are not here: the package was installed without its repository. Clone it and install it with "
        "pip install -e ."
    )


def repository(folder: Path | None = None) -> str:
    """Return the repository's address, from its pyproject's [project.urls], the one place where it stands.

    Parameters
    ----------
    folder
        The repository; by default the one this package is installed from.
    """
    return _address((folder or root()) / "pyproject.toml")


@cache
def _address(pyproject: Path) -> str:
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    address = content["project"].get("urls", {}).get("Repository", "")
    if not address.startswith("https://github.com/") or address.rstrip("/").count("/") != 4:
        raise NotebookError(
            f"{pyproject.name}: [project.urls] Repository is {address!r}, expected https://github.com/OWNER/NAME: badges "
            "and setup cells are made from it."
        )
    return address.rstrip("/").removesuffix(".git")


def notebook_paths(folder: Path, places: Iterable[str] = FOLDERS) -> list[Path]:
    """Return the notebooks in these folders, in order, without Jupyter's checkpoints."""
    return [path for place in places for path in sorted((folder / place).glob("*.ipynb"))]


def read(path: Path) -> Any:
    """Read a notebook of format 4.

    Raises
    ------
    NotebookError
        When it is no JSON, no notebook, or of an older format.
    """
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except UnicodeDecodeError as error:
        raise NotebookError(f"{path.name}: not a notebook: it isn't UTF-8 text ({error.reason}).") from None
    except json.JSONDecodeError as error:
        raise NotebookError(
            f"{path.name}: not a notebook: line {error.lineno} is not JSON ({error.msg}). If it holds <<<<<<< lines, "
            "a merge was left unfinished."
        ) from None
    version = content.get("nbformat") if isinstance(content, dict) else None
    if version is None:
        raise NotebookError(f"{path.name}: not a notebook: it has no nbformat number.")
    if version != 4:
        raise NotebookError(
            f"{path.name}: notebook format {version}, expected 4: open it in JupyterLab and save it, or run "
            f"jupyter nbconvert --to notebook --inplace {path.name}"
        )
    try:
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise NotebookError(f"{path.name}: not a valid notebook: {error.message.splitlines()[0]}") from None
    return notebook


def written(notebook: Any) -> str:
    """Return a notebook as the text that is stored: keys sorted, one space, a newline at the end."""
    import nbformat

    nbformat.validate(notebook)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def write(path: Path, notebook: Any) -> bool:
    """Write a notebook if its text changed; return whether it did."""
    text = written(notebook)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return True


def topic_of(path: Path) -> int:
    """Return the topic number of a notebook: 4 of 04_quantization.ipynb.

    Examples
    --------
    >>> topic_of(Path("labs/04_quantization.ipynb"))
    4
    """
    number = path.name.partition("_")[0]
    if not number.isdigit():
        raise NotebookError(f"{path.name}: a notebook's name starts with its topic's number, such as 04_.")
    return int(number)
