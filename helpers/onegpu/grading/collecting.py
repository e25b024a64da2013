"""Find what a class handed in: whose each notebook is, in whatever way the files came back.

Layouts that are known, at the top of a folder or of a zip, and zips inside them:

    kim.ipynb                                                   a notebook for each student
    kim/04_quantization.ipynb                                   a folder for each student
    kim.zip                                                     a zip for each student
    Kim Minsu_1234567_assignsubmission_file_/lab.ipynb          Moodle ("download all submissions")
    Kim Minsu_1234567_assignsubmission_file_lab.ipynb           Moodle, without folders
    kimminsu_LATE_12345_6789012_lab-1.ipynb                     Canvas ("download submissions")
    submitted/kim/lab04/04_quantization.ipynb                   nbgrader, from the course's folder or from submitted/

Nothing is unpacked to the disk: a zip's notebooks are read into memory, up to a limit, and other files left alone.
"""

from __future__ import annotations

import io
import itertools
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOST_NOTEBOOK_BYTES = 100 * 2**20
_MOST_ZIP_DEPTH = 3
_MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?P<kind>file|onlinetext)_?(?P<rest>.*)$")
_CANVAS = re.compile(r"^(?P<name>[^_]+?)_(?:LATE_)?(?P<id>\d+)_\d+_(?P<rest>.+)$")


@dataclass(frozen=True)
class Submission:
    """One file that was handed in.

    Attributes
    ----------
    student
        The student's name, as the report shows it.
    place
        Where the file is, relative to what was collected; a zip's name stands in it like a folder's.
    content
        The file's bytes.
    problem
        Why there is nothing to read, or "": an archive that is damaged or locked, a file that is too large.
    """

    student: str
    place: str
    content: bytes = b""
    problem: str = ""


def collect(source: Path) -> list[Submission]:
    """Find the notebooks that a class handed in.

    Parameters
    ----------
    source
        A folder, a zip, or one notebook.

    Raises
    ------
    ValueError
        When it isn't there, or holds nothing that a student could have handed in.
    """
    if not source.exists():
        raise ValueError(
            f"{source}: no such folder or file: expected the students' notebooks, or a zip of them."
        )
    if source.is_dir():
        found = list(_of_folder(source))
    elif source.suffix.lower() == ".zip":
        found = list(_of_zip(source.read_bytes(), PurePosixPath("."), 0))
        if len(found) == 1 and found[0][2] and not found[0][1]:
            raise ValueError(f"{source}: {found[0][2]}.")
    else:
        found = [(PurePosixPath(source.name), _read(source), "")]
    paths = [path for path, _, _ in found]
    strip = _common_root(paths)
    places: list[tuple[tuple[str, str], str, bytes, str]] = []
    for path, content, problem in found:
        if not path.is_relative_to(strip):  # nbgrader's release/, autograded/, ... beside submitted/
            continue
        owner = _owner(path.relative_to(strip))
        if owner is not None:
            places.append((owner, str(path), content, problem))
    if not places:
        raise ValueError(
            f"{source}: no notebooks in it: expected kim.ipynb, kim/04_quantization.ipynb, or a zip of such files."
        )
    # Two students of one name are told apart by the number that the platform gave them.
    ids: dict[str, set[str]] = {}
    for (name, number), *_ in places:
        ids.setdefault(name, set()).add(number)
    return [
        Submission(f"{name} ({number})" if len(ids[name]) > 1 and number else name, place, content, problem)
        for (name, number), place, content, problem in places
    ]


_Found = tuple[PurePosixPath, bytes, str]


def _of_folder(folder: Path) -> Iterator[_Found]:
    for path in sorted(folder.rglob("*")):
        inner = PurePosixPath(path.relative_to(folder).as_posix())
        if path.is_file() and _wanted(inner):
            try:
                content = _read(path)
            except OSError as error:
                yield inner, b"", f"can't be opened: {error.strerror or error}"
                continue
            if path.suffix.lower() == ".zip":
                yield from _of_zip(content, inner, 1)
            elif len(content) > MOST_NOTEBOOK_BYTES:
                yield inner, b"", f"larger than {MOST_NOTEBOOK_BYTES // 2**20} MiB"
            else:
                yield inner, content, ""


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        limit = -1 if path.suffix.lower() == ".zip" else MOST_NOTEBOOK_BYTES + 1
        return file.read(limit)


def _of_zip(content: bytes, place: PurePosixPath, depth: int) -> Iterator[_Found]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            any_wanted = False
            for member in sorted(archive.infolist(), key=lambda m: m.filename):
                # A name is only a label here, so "../" in it leads nowhere.
                inner = PurePosixPath(
                    *[part for part in _name(member).split("/") if part not in ("", ".", "..")]
                )
                if member.is_dir() or not inner.parts or not _wanted(inner):
                    continue
                any_wanted = True
                if member.file_size > MOST_NOTEBOOK_BYTES:
                    yield place / inner, b"", f"larger than {MOST_NOTEBOOK_BYTES // 2**20} MiB"
                    continue
                try:
                    with archive.open(member) as file:
                        data = file.read(MOST_NOTEBOOK_BYTES + 1)
                except (RuntimeError, NotImplementedError, zipfile.BadZipFile, OSError, EOFError) as error:
                    locked = member.flag_bits & 1
                    why = "the zip is locked with a password" if locked else f"damaged in its zip ({error})"
                    yield place / inner, b"", why
                    continue
                if inner.suffix.lower() == ".zip":
                    if depth < _MOST_ZIP_DEPTH:
                        yield from _of_zip(data, place / inner, depth + 1)
                else:
                    yield place / inner, data, ""
            if not any_wanted:
                yield place, b"", "a zip without a notebook in it"
    except (zipfile.BadZipFile, OSError, EOFError, ValueError):
        yield place, b"", "not a zip that can be opened"


def _name(member: zipfile.ZipInfo) -> str:
    """A member's name: UTF-8 where the zip says so; else what Windows in Korea writes, or UTF-8 without saying so."""
    if member.flag_bits & 0x800:
        return member.filename
    try:
        raw = member.filename.encode("cp437")
    except UnicodeEncodeError:
        return member.filename
    for encoding in ("utf-8", "cp949"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return member.filename


def _wanted(path: PurePosixPath) -> bool:
    hidden = any(p.startswith((".", "._")) or p in ("__MACOSX", "__pycache__") for p in path.parts)
    return not hidden and path.suffix.lower() in (".ipynb", ".zip")


def _common_root(paths: list[PurePosixPath]) -> PurePosixPath:
    """The folder whose folders and files are students: nbgrader's submitted/, else the last one that holds everything.

    Where that one holds one student's labs, or a single file, it is the student, and the root is the one above.
    """
    for path in paths:
        if "submitted" in path.parts[:-1]:
            return PurePosixPath(*path.parts[: path.parts.index("submitted") + 1])
    shared = zip(*(path.parent.parts for path in paths), strict=False)
    common = PurePosixPath(*[parts[0] for parts in itertools.takewhile(lambda p: len(set(p)) == 1, shared)])
    inside = {path.relative_to(common).parts[0] for path in paths}
    labs = all(re.match(r"(lab[ _-]?)?0?\d(\D|$)", name.lower()) for name in inside)
    return common.parent if len(inside) < 2 or labs else common


def _owner(path: PurePosixPath) -> tuple[str, str] | None:
    """(name, the platform's number or "") of the student whose file this is; None for what is no submission."""
    for part in path.parts:
        if found := _MOODLE.match(part):
            return (_clean(found["name"]), found["id"]) if found["kind"] == "file" else None
        if found := _CANVAS.match(part):
            return _clean(found["name"]), found["id"]
    if len(path.parts) > 1:
        first = path.parts[0]
        return _clean(first.removesuffix(".zip")), ""
    return _clean(re.sub(r"[ _]*(\(\d+\)|- ?(copy|Copy|복사본))$", "", path.stem) or path.stem), ""


def _clean(name: str) -> str:
    """A name as it is written: composed letters (macOS stores Korean names in parts), no line breaks."""
    return " ".join(unicodedata.normalize("NFC", name).split()) or "?"


def commonest(topics: list[int | None]) -> int | None:
    """Return the lab that most of a class's notebooks are of: the one an unreadable file is counted for."""
    known = Counter(topic for topic in topics if topic is not None)
    return known.most_common(1)[0][0] if known else None
