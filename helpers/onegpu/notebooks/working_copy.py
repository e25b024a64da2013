"""A learner's own copy of course/ and labs/, which ``onegpu lab`` opens.

Learners write into notebooks, and notebooks of a repository are tracked files: work done in them stands in the way of
the next ``git pull``, and a wheel has no folder to work in. So the shipped notebooks are copied once. A later version
brings what is new without touching what the learner changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import onegpu
from onegpu.notebooks.files import NotebookError

FOLDERS = ("course", "labs")
MANIFEST = ".onegpu-course.json"


@dataclass(frozen=True)
class Copied:
    """What ``copy_course`` did: places of files that are new, brought up to date, or kept as the learner changed them.

    Attributes
    ----------
    kept
        For each file that changed here and in this version, the file beside it that holds the new one.
    """

    folder: Path
    new: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = []
        if self.new:
            lines.append(f"{len(self.new)} files copied to {self.folder}")
        if self.updated:
            lines.append("brought up to date: " + ", ".join(self.updated))
        lines += [
            f"{ours}: changed by you, so left alone; this version's is {new}" for ours, new in self.kept
        ]
        return "\n".join(lines) or f"nothing new in {self.folder}"


def shipped() -> Path:
    """Return the folder that holds course/ and labs/ as shipped: the repository, or a folder of the installed wheel.

    Raises
    ------
    NotebookError
        When neither is there (a package copied by hand).
    """
    here = Path(__file__).resolve()
    for folder in (here.parents[3], here.parent / "shipped"):
        if all((folder / name).is_dir() for name in FOLDERS):
            return folder
    raise NotebookError(
        "the notebooks are not in this installation: install onegpu with pip, from its repository or a wheel."
    )


def copy_course(folder: Path, source: Path | None = None) -> Copied:
    """Copy course/ and labs/ into a learner's folder; bring an older copy up to date.

    A file that the learner changed is never written to: a newer one is put beside it, under the version's name. A
    notebook counts as changed when the text of a cell did; outputs don't count.

    Parameters
    ----------
    folder
        Made if it isn't there.
    source
        Where the shipped files are; by default ``shipped()``.

    Raises
    ------
    NotebookError
        When the folder is the repository itself, or a file, or can't be written.
    """
    source = source or shipped()
    folder = folder.resolve()
    if folder == source or (folder / "helpers" / "onegpu").is_dir():
        raise NotebookError(
            f"{folder} is the course's repository, whose notebooks are tracked files: name a new folder, such as "
            f"{folder / 'onegpu-course'}"
        )
    new, updated, kept = [], [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = _read_manifest(folder / MANIFEST)
        files = sorted(
            p for name in FOLDERS for p in (source / name).glob("*.*") if p.suffix in (".ipynb", ".md")
        )
        for path in files:
            place = path.relative_to(source).as_posix()
            theirs, ours = path.read_bytes(), folder / place
            digest = _digest(theirs)
            if not ours.exists():
                _replace(ours, theirs)
                new.append(place)
            elif (found := _digest(ours.read_bytes())) == known.get(place) != digest:
                _replace(ours, theirs)
                updated.append(place)
            elif found != digest != known.get(place):
                beside = ours.with_name(f"{ours.stem}.v{onegpu.__version__}{ours.suffix}")
                if not beside.exists():  # it may hold work too
                    _replace(beside, theirs)
                kept.append((place, beside.relative_to(folder).as_posix()))
            known[place] = digest
        content = {"version": onegpu.__version__, "files": known}
        _replace(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise NotebookError(
            f"{folder} can't be used ({error.strerror or error}): name a folder of your own, as in `onegpu lab my-course`"
        ) from None
    return Copied(folder, tuple(new), tuple(updated), tuple(kept))


def _digest(content: bytes) -> str:
    """What a learner may have changed: the cells' kinds and texts, or the bytes of a file that is no notebook."""
    try:
        cells = json.loads(content)["cells"]
        text = json.dumps([[cell["cell_type"], "".join(cell["source"])] for cell in cells])
    except (ValueError, KeyError, TypeError):
        return hashlib.sha1(content.replace(b"\r\n", b"\n")).hexdigest()
    return hashlib.sha1(text.encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["files"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # a first copy, or a damaged list: then nothing is overwritten
        return {}


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(content)
    os.replace(draft, path)
