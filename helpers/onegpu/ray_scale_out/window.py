"""Windows: a source cut into fixed runs of rows, before anything runs in parallel.

Rows travel as JSON text: each row may have other columns, and nothing is converted on the way (ray#46855, #54186).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WINDOW_ROWS = 256
"""Rows that are read, tokenized and packed together."""


@dataclass(frozen=True)
class Window:
    """A run of source rows: where it is, or the rows themselves.

    Attributes
    ----------
    window : int
        Its number.
    first_row, rows : int
        Number of its first row in the source, and how many it has.
    path, offset, n_bytes
        The part of a JSONL file that holds it.
    text
        The rows as JSON, one a line, where there is no file.
    epoch, first_index, fillers : int
        Its place in a run (``schedule``): the epoch, the index of its first packed row, and how many filler rows
        follow it.
    """

    window: int
    first_row: int
    rows: int
    path: str = ""
    offset: int = 0
    n_bytes: int = 0
    text: str = ""
    epoch: int = 0
    first_index: int = 0
    fillers: int = 0


def windows(source: str | Path | Iterable[Mapping[str, Any]], window_rows: int = WINDOW_ROWS) -> list[Window]:
    """Cut a source into windows, without parsing it.

    Parameters
    ----------
    source
        A JSONL file: only the places of its lines are noted, each window is read where it is needed (so on a cluster
        the file must be where all machines see it). Or rows, such as a list or a ``datasets.Dataset``: they are taken
        in the order that iterating gives, so a selection or a shuffle counts (ray#36141).
    window_rows
        Rows of a window; packing looks no further.

    Raises
    ------
    ValueError
        If there are no rows, or window_rows is below 1.

    Examples
    --------
    >>> [(w.first_row, w.rows) for w in windows([{"n": i} for i in range(5)], window_rows=2)]
    [(0, 2), (2, 2), (4, 1)]
    """
    if window_rows < 1:
        raise ValueError(f"window_rows is {window_rows}, expected at least 1")
    found = (
        _file_windows(Path(source), window_rows)
        if isinstance(source, (str, Path))
        else _row_windows(source, window_rows)
    )
    if not found:
        raise ValueError(f"{source if isinstance(source, (str, Path)) else 'source'} has no rows")
    return found


def _file_windows(path: Path, size: int) -> list[Window]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    found: list[Window] = []
    start = at = rows = first = 0
    with path.open("rb") as file:
        for line in file:
            at += len(line)
            rows += bool(line.strip())
            if rows == size:
                found.append(Window(len(found), first, rows, str(path.resolve()), start, at - start))
                start, first, rows = at, first + rows, 0
    if rows:
        found.append(Window(len(found), first, rows, str(path.resolve()), start, at - start))
    return found


def _row_windows(rows: Iterable[Mapping[str, Any]], size: int) -> list[Window]:
    found: list[Window] = []
    part: list[str] = []
    for row in rows:
        part.append(json.dumps(row, ensure_ascii=False))
        if len(part) == size:
            found.append(Window(len(found), len(found) * size, size, text="\n".join(part)))
            part = []
    if part:
        found.append(Window(len(found), len(found) * size, len(part), text="\n".join(part)))
    return found


def read_window(window: Window) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a window with their numbers in the source.

    Raises
    ------
    ValueError
        For a line that isn't a JSON object, with its row number.
    """
    number = window.first_row
    for line in _lines(window):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a {type(row).__name__}")
        except ValueError as error:
            place = f"{window.path}: " if window.path else ""
            raise ValueError(
                f"{place}row {number}: found {line[:60].decode(errors='replace')!r}, expected one JSON object "
                f"({error}). Mend or remove the line."
            ) from error
        yield number, row
        number += 1


def _lines(window: Window) -> list[bytes]:
    if not window.path:
        return window.text.encode().split(b"\n")
    with open(window.path, "rb") as file:
        file.seek(window.offset)
        return file.read(window.n_bytes).split(b"\n")


def rows_or_errors(window: Window) -> Iterator[tuple[int, Any]]:
    """As ``read_window``, with the error in place of a row that isn't JSON: one line a window of its own."""
    number = window.first_row
    for line in _lines(window):
        if line.strip():
            one = Window(window.window, number, 1, text=line.decode(errors="replace"))
            try:
                yield from read_window(one)
            except ValueError as error:
                yield number, error
            number += 1
