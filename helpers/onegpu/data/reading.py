"""Rows from files: JSON, JSON Lines, CSV, TSV, Parquet, Arrow, folders of them, compressed or not, one row at a time.

What a file is, its first bytes say where they can (compression, Parquet, Arrow, the encoding of text, an array or
lines of JSON), and its name's ending where they can't. Nothing is converted: a blank cell stays "", the text "null"
stays text. Memory doesn't grow with the file, not even where it is broken: a row has a longest length.

Sources: RFC 8259 (JSON), jsonlines.org (lines end at a line feed, so U+2028 and the like stay inside), RFC 4180 (CSV),
Apache Parquet and Arrow; the folders that ``datasets.Dataset.save_to_disk`` writes.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import glob
import gzip
import io
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]

LONGEST_ROW = 1 << 25
"""Characters of one row of text. A longer one is a broken file, which needn't fill the memory first."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc")
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")

_BATCH_ROWS = 256
_CHUNK = 1 << 16
_NOT_ROWS = re.compile(
    r"readme.*|license.*|.*\.md|dataset_infos?\.json|dataset_dict\.json|state\.json|.*\.(?:lock|sha256)",
    re.IGNORECASE,
)
_SPLITS = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation",
    "valid": "validation", "val": "validation", "dev": "validation", "eval": "validation", "heldout": "heldout",
}  # fmt: skip
_PARTS = {
    "messages", "conversations", "conversation", "prompt", "completion", "chosen", "rejected", "history", "answers",
    "instances", "tools", "functions", "documents",
}  # fmt: skip
"""Keys whose arrays are parts of a row: an object with one of them is a row, not a file of rows."""

_SPACE = re.compile(r"[ \t\r\n]*")


class Place(NamedTuple):
    """Files that hold one data set together."""

    files: tuple[Path, ...]
    splits: tuple[str, ...] = ()


def find_files(source: str | Path, split: str | None = "train") -> Place:
    """Say which files a path, folder or pattern stands for, and which splits there are to choose from.

    Parameters
    ----------
    source
        A file, a folder of files (also as ``datasets`` saves one), or a pattern such as ``rows/*.jsonl``.
    split
        Which to take where a folder holds several; None takes the files of all.

    Raises
    ------
    FileNotFoundError
        Where there is nothing.
    ValueError
        For a folder without this split, of several kinds of files, or with files that can't be read.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return Place((path,))
    if path.is_dir():
        return _in_folder(path, split)
    if glob.has_magic(str(path)):
        found = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
        if found:
            return Place(tuple(found))
        raise FileNotFoundError(f"{source}: no file fits this pattern (in {Path.cwd()})")
    if path.name == str(source) and not path.suffix:  # perhaps a name, mistyped
        from onegpu import data

        raise FileNotFoundError(
            f"{source}: no such file or folder (in {Path.cwd()}), and no shipped data set of that name "
            f"({', '.join(data.names())})"
        )
    raise FileNotFoundError(
        f"{source}: no such file or folder. Check the path; it is relative to {Path.cwd()}"
    )


def _in_folder(folder: Path, split: str | None) -> Place:
    names = folder / "dataset_dict.json"
    if names.is_file():
        splits = tuple(_load(names).get("splits", ()))
        chosen = splits if split is None else _chosen(folder, split, splits)
        return Place(tuple(f for name in chosen for f in _in_folder(folder / name, None).files), splits)
    if (folder / "state.json").is_file():
        return Place(tuple(folder / file["filename"] for file in _load(folder / "state.json")["_data_files"]))
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
        and not _NOT_ROWS.fullmatch(path.name)
    ]
    unknown = next((path for path in found if _suffix(path) not in SUFFIXES), None)
    if unknown or not found:
        what = f"found {unknown.name}" if unknown else "found no file of rows"
        raise ValueError(
            f"{folder}: {what}, expected files ending in {', '.join(SUFFIXES)}. Move other files out, or name those "
            "that you mean with a pattern such as rows/*.jsonl"
        )
    if any(path.name.startswith("cache-") for path in found) and (folder / "dataset_info.json").is_file():
        raise ValueError(
            f"{folder}: found a cache folder of datasets, whose files hold the same rows several times. Name the files "
            "that you mean with a pattern, or save the data set with save_to_disk"
        )
    named = {path: _split_of(path.relative_to(folder)) for path in found}
    splits = tuple(dict.fromkeys(name for name in named.values() if name))
    if splits and split is not None:
        (wanted,) = _chosen(folder, _SPLITS.get(split, split), splits)
        found = [path for path in found if named[path] == wanted]
    kinds = {_kind(path): path.name for path in found}
    if len(kinds) > 1:
        (one, a), (two, b) = list(kinds.items())[:2]
        raise ValueError(
            f"{folder}: found {one} ({a}) and {two} ({b}) files, perhaps the same rows twice. Name those that you mean "
            "with a pattern such as rows/*.jsonl"
        )
    return Place(tuple(found), splits)


def _chosen(folder: Path, split: str, splits: tuple[str, ...]) -> tuple[str]:
    if split not in splits and len(splits) == 1 and split == "train":
        return (splits[0],)
    if split not in splits:
        raise ValueError(f"{folder}: found the splits {', '.join(splits)}, expected {split!r} among them")
    return (split,)


def _split_of(path: Path) -> str | None:
    """The split that a file's name or folder says it is of (train-00000-of-00002.parquet, test/rows.jsonl)."""
    words = [word for part in reversed(path.parts) for word in re.split(r"[^a-z]+", part.lower())]
    return next((_SPLITS[word] for word in words if word in _SPLITS), None)


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: found no JSON in it ({error}). Save the data set again") from error


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return Path(name).suffix


def _kind(path: Path) -> str:
    return {".parquet": "Parquet", ".csv": "CSV", ".tsv": "CSV"}.get(
        _suffix(path), "JSON" if _suffix(path) in SUFFIXES[:3] else "Arrow"
    )


def read_files(source: str | Path, split: str | None = "train") -> Iterator[Row]:
    """Read the rows of a file, folder or pattern (``find_files``), in the order of the files' names.

    Raises
    ------
    ValueError
        For what isn't rows: file, line or row number, what was found, what was expected. At the first row, not before.
    """
    place = find_files(source, split)
    return _rows(place, source)


def _rows(place: Place, source: str | Path) -> Iterator[Row]:
    empty = True
    for path in place.files:
        for row in _read_file(path):
            empty = False
            yield row
    if empty:
        raise ValueError(f"{source}: found no rows, expected at least one. Check the file")


def columnar_kind(path: Path) -> str | None:
    """Whether a file is "parquet" or "arrow", by its first bytes or else its ending; None if it is neither.

    Raises
    ------
    ValueError
        For a Parquet ending on something else.
    """
    with path.open("rb") as file:
        head = file.read(6)
    if head[:4] == b"PAR1":
        return "parquet"
    if _suffix(path) == ".parquet":
        raise ValueError(
            f"{path}: found a Parquet ending, but no Parquet file ({head!r} at its beginning). Get the file again"
        )
    return "arrow" if head == b"ARROW1" or _suffix(path) in (".arrow", ".feather", ".ipc") else None


def _read_file(path: Path) -> Iterator[Row]:
    kind = columnar_kind(path)
    if kind:
        return _read_columnar(path, kind)
    with path.open("rb") as file:
        if file.read(24) == b"version https://git-lfs.":
            raise ValueError(
                f"{path}: found a pointer of Git LFS in place of the file. Get the file with git lfs pull"
            )
    suffix = _suffix(path)
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: found the ending {suffix or '(none)'!r}, expected one of {', '.join(SUFFIXES)}, the text ones "
            f"also with {', '.join(COMPRESSIONS)} after it"
        )
    return _named(_read_csv(path) if suffix in (".csv", ".tsv") else _read_json(path), path)


def _named(rows: Iterator[Row], path: Path) -> Iterator[Row]:
    """The rows, with the file's name in what decompressing and decoding may raise."""
    number = 0
    try:
        for number, row in enumerate(rows, 1):  # noqa: B007
            yield row
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, after row {number}: found the byte 0x{error.object[error.start]:02x}, which is not "
            f"{error.encoding.upper()}. Save the file as UTF-8"
        ) from error
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{path}, after row {number}: can't be read on ({error}). Get the file again"
        ) from error


@contextlib.contextmanager
def _open_bytes(path: Path) -> Iterator[tuple[io.BufferedReader, str]]:
    """Open a text file, decompressed as its first bytes ask for, and say its encoding."""
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(path.open("rb"))
        magic = raw.read(6)
        raw.seek(0)
        if magic[:2] == b"\x1f\x8b":
            raw = stack.enter_context(gzip.GzipFile(fileobj=raw))
        elif magic[:3] == b"BZh":
            raw = stack.enter_context(bz2.BZ2File(raw))
        elif magic == b"\xfd7zXZ\x00":
            raw = stack.enter_context(lzma.LZMAFile(raw))
        elif magic[:4] == b"\x28\xb5\x2f\xfd":
            import pyarrow as pa

            raw = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"))
        file = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
        yield file, json.detect_encoding(file.peek(4)[:4])


@contextlib.contextmanager
def _open_text(path: Path, newline: str) -> Iterator[io.TextIOWrapper]:
    with _open_bytes(path) as (file, encoding), io.TextIOWrapper(file, encoding, newline=newline) as text:
        yield text


def is_lines(path: Path) -> bool:
    """Whether a file is JSON Lines in UTF-8 and not compressed, so that a part of it can be read by its place."""
    if _suffix(path) not in (".jsonl", ".ndjson") or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(1024)
    return (
        json.detect_encoding(head[:4]).startswith("utf-8")
        and head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    )


def parse_line(line: str | bytes, where: str) -> Row:
    """Read one line of JSON Lines.

    Raises
    ------
    ValueError
        With ``where``, what was found and what to do.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        text = line if isinstance(line, str) else line.decode(errors="replace")
        what = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(
            f"{where}: found {text.strip()[:60]!r}, expected one JSON object ({what}). Mend or remove the line."
        ) from error
    return _object(row, where)


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: found a {type(row).__name__}, expected an object with named columns.")
    return row


def _read_json(path: Path) -> Iterator[Row]:
    """Lines, an array, or an object around an array: the text says which."""
    with _open_bytes(path) as (file, encoding):
        start = file.peek(_CHUNK).decode(encoding, errors="replace").lstrip()[:1]
    if start == "{" and _suffix(path) != ".json":
        yield from _read_lines(path)
        return
    with _open_text(path, "\n") as file:
        text = _Json(file, path)
        start = text.peek()
        if start == "[":
            yield from text.array()
        elif start == "{" and text.first_line_is_a_row():
            yield from _read_lines(path)
            return
        elif start == "{":
            yield from text.object()
        elif start:
            text.fail("an array of objects, or one object a line")
        text.end()


def _read_lines(path: Path) -> Iterator[Row]:
    """The object of each line; a line ends at a line feed and nowhere else."""
    with _open_bytes(path) as (file, encoding):
        lines: Any = file if encoding.startswith("utf-8") else io.TextIOWrapper(file, encoding, newline="\n")
        for number, line in numbered_lines(lines, path):
            if line.strip():
                yield parse_line(line, f"{path}, line {number}")


def numbered_lines(file: Any, path: str | Path) -> Iterator[tuple[int, Any]]:
    """Number the lines of an open file, from 1, and refuse one that no row can be as long as."""
    number = 0
    while line := file.readline(LONGEST_ROW):
        number += 1
        if len(line) == LONGEST_ROW:
            raise ValueError(
                f"{path}, line {number}: found more than {LONGEST_ROW:,} characters, expected a row. Check that it is "
                "the file you mean"
            )
        yield number, line


class _Json:
    """JSON read from a file as it is needed: at most one row and a chunk are held."""

    decoder = json.JSONDecoder()

    def __init__(self, file: io.TextIOWrapper, path: Path):
        self.file, self.path = file, path
        self.buffer, self.at, self.line, self.rows = "", 0, 1, 0

    def _more(self, wanted: int = _CHUNK) -> bool:
        chunk = self.file.read(wanted)
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0
        return bool(chunk)

    def fail(self, expected: str, why: str = "") -> None:
        found = self.buffer[self.at : self.at + 60]
        what = repr(found) if found else "the end of the file"
        raise ValueError(
            f"{self.path}, line {self.line} (row {self.rows}): found {what}, expected {expected}{why}. The file is "
            "broken or cut off there: get it again or mend it."
        )

    def peek(self) -> str:
        """The next character that isn't white space; "" at the end."""
        while True:
            start, self.at = self.at, _SPACE.match(self.buffer, self.at).end()
            self.line += self.buffer.count("\n", start, self.at)
            if self.at < len(self.buffer) or not self._more():
                return self.buffer[self.at : self.at + 1]

    def take(self, allowed: str, expected: str) -> str:
        found = self.peek()
        if not found or found not in allowed:
            self.fail(expected)
        self.at += 1
        return found

    def value(self, expected: str) -> Any:
        """Read the value that starts here."""
        self.peek()
        while True:
            try:
                found, end = self.decoder.raw_decode(self.buffer, self.at)
                # A number may go on in the next chunk.
                if end < len(self.buffer) or isinstance(found, (str, dict, list)) or not self._more():
                    self.line += self.buffer.count("\n", self.at, end)
                    self.at = end
                    return found
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self.buffer) - 8
                held = len(self.buffer) - self.at
                if held > LONGEST_ROW:
                    self.fail(f"{expected} of at most {LONGEST_ROW:,} characters")
                if not cut or not self._more(max(_CHUNK, held)):
                    self.fail(expected, f" ({error.msg}, {error.pos - self.at} characters on)")
            except RecursionError:
                self.fail(f"{expected} that isn't nested so deep")

    def array(self) -> Iterator[Row]:
        """Yield the objects of the array that starts here."""
        self.take("[", "an array")
        if self.peek() == "]":
            self.at += 1
            return
        while True:
            where = f"{self.path}, line {self.line} (row {self.rows})"
            yield _object(self.value("an object"), where)
            self.rows += 1
            if self.take(",]", "a comma and the next object, or ']'") == "]":
                return

    def object(self) -> Iterator[Row]:
        """Yield the rows of the one array of objects in the object that starts here, or the object if it is a row."""
        self.take("{", "an object")
        row: Row = {}
        holder = None
        while self.peek() != "}":
            name = self.value("a name in quotes")
            self.take(":", "a colon")
            if self.peek() == "[" and name not in _PARTS and not _PARTS & set(row) and self._holds_objects():
                if holder is not None:
                    raise ValueError(
                        f"{self.path}: found two arrays of objects, {holder!r} and {name!r}, expected one. Write each "
                        "into a file of its own."
                    )
                holder = name
                yield from self.array()
            else:
                row[name] = self.value("a value")
            if self.take(",}", "a comma or '}'") == "}":
                break
        else:
            self.at += 1
        if holder is None:
            if not _PARTS & set(row) and not any(isinstance(value, str) for value in row.values()):
                raise ValueError(
                    f"{self.path}: found an object with {', '.join(row) or 'nothing in it'}, expected an array of "
                    'objects, by itself or as {"data": [...]}.'
                )
            yield row

    def _holds_objects(self) -> bool:
        while len(self.buffer) - self.at < _CHUNK and self._more():
            pass
        return self.buffer[self.at + 1 :].lstrip()[:1] == "{"

    def first_line_is_a_row(self) -> bool:
        """Whether the first line is an object by itself and others follow: lines, whatever the file's name ends in."""
        end = -1
        while end < 0 and len(self.buffer) - self.at <= LONGEST_ROW:
            end = self.buffer.find("\n", self.at)
            if end < 0 and not self._more(max(_CHUNK, len(self.buffer) - self.at)):
                return False
        while not self.buffer[end:].strip():
            held = len(self.buffer)
            self.buffer += self.file.read(_CHUNK)
            if len(self.buffer) == held:
                return False
        try:
            json.loads(self.buffer[self.at : end])
        except ValueError:
            return False
        return True

    def end(self) -> None:
        """See that nothing follows."""
        if self.peek():
            self.fail("the end of the file")


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(max(LONGEST_ROW, csv.field_size_limit()))
    with _open_text(path, "") as file:
        header_line = file.readline(LONGEST_ROW)
        tabs = _suffix(path) == ".tsv"
        delimiter = "\t" if tabs else next((d for d in ",;\t" if d in header_line), ",")
        reader = csv.reader(
            itertools.chain([header_line], (line for _, line in numbered_lines(file, path))),
            delimiter=delimiter,
            strict=True,
        )
        try:
            header = next(reader, [])
            twice = next((name for name in header if header.count(name) > 1), None)
            if twice is not None:
                raise ValueError(
                    f"{path}, line 1: found the column {twice!r} twice, expected each once. Rename one."
                )
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: found {len(cells)} cells, expected {len(header)} "
                        f"({', '.join(header)}). Quote cells that hold a comma or a line break."
                    )
                yield dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}. Mend the quotes there.") from error


@contextlib.contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[Any]:
    """Open a Parquet file; options as ``pyarrow.parquet.ParquetFile``'s.

    Raises
    ------
    ValueError
        Naming the file, if it is damaged; also while it is open.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, **options) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: found no whole Parquet file ({error}). Get the file again") from error


@contextlib.contextmanager
def open_arrow(path: Path) -> Iterator[Any]:
    """Open an Arrow file of either format (file or stream), memory-mapped: a reader of record batches.

    Raises
    ------
    ValueError
        Naming the file, if it is damaged; also while it is open.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as mapped:
            is_file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            yield pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: found no whole Arrow file ({error}). Get the file again") from error


def arrow_batches(reader: Any) -> Iterator[Any]:
    """Yield the record batches of what ``open_arrow`` gives."""
    if hasattr(reader, "get_batch"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def _read_columnar(path: Path, kind: str) -> Iterator[Row]:
    with open_parquet(path) if kind == "parquet" else open_arrow(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS) if kind == "parquet" else arrow_batches(file):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from batch.slice(start, _BATCH_ROWS).to_pylist()
