"""Windows: a source cut into fixed runs of rows, before anything runs in parallel.

Rows travel as JSON text: each row may have other columns, and nothing is converted on the way (ray#46855, #54186).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onegpu import data
from onegpu.sft_datasets import read_rows

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
    path, offset, n_bytes, first_line
        The part of a JSONL file that holds it, and the number of its first line.
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
    first_line: int = 1
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
        the file must be where all machines see it). Anything else that ``sft_datasets.read_rows`` reads. Or rows, such
        as a list or a ``datasets.Dataset``: they are taken in the order that iterating gives, so a selection or a
        shuffle counts (ray#36141).
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
    if isinstance(source, (str, Path)) and data.is_lines(Path(source)):
        found = _file_windows(Path(source).expanduser().resolve(), window_rows)
    else:
        rows = read_rows(source) if isinstance(source, (str, Path)) else source
        found = _row_windows(rows, window_rows)
    if not found:
        raise ValueError(f"{source if isinstance(source, (str, Path)) else 'source'} has no rows")
    return found


def _file_windows(path: Path, size: int) -> list[Window]:
    found: list[Window] = []
    start = at = rows = first = first_line = 0
    with path.open("rb") as file:
        for line_number, line in data.numbered_lines(file, path):
            at += len(line)
            rows += bool(line.strip())
            if rows == size:
                found.append(_place(path, len(found), first, rows, start, at, first_line))
                start, first, rows, first_line = at, first + rows, 0, line_number
    if rows:
        found.append(_place(path, len(found), first, rows, start, at, first_line))
    return found


def _place(path: Path, window: int, first: int, rows: int, start: int, end: int, lines_before: int) -> Window:
    return Window(window, first, rows, str(path), start, end - start, lines_before + 1)


def _row_windows(rows: Iterable[Mapping[str, Any]], size: int) -> list[Window]:
    found: list[Window] = []
    part: list[str] = []
    for row in rows:
        part.append(json.dumps(row, ensure_ascii=False, default=_not_json))
        if len(part) == size:
            found.append(Window(len(found), len(found) * size, size, text="\n".join(part)))
            part = []
    if part:
        found.append(Window(len(found), len(found) * size, len(part), text="\n".join(part)))
    return found


def _not_json(value: Any) -> dict[str, str]:
    """What stands in for a date or bytes of a Parquet file: no text, so where text is due it is refused."""
    return {type(value).__name__: str(value)}


def read_window(window: Window) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a window with their numbers in the source.

    Raises
    ------
    ValueError
        For a line that isn't a JSON object, with file and line.
    """
    for number, row in rows_or_errors(window):
        if isinstance(row, ValueError):
            raise row
        yield number, row


def rows_or_errors(window: Window) -> Iterator[tuple[int, Any]]:
    """As ``read_window``, with the error in place of a row that isn't JSON."""
    row_number = window.first_row
    for line_number, line in enumerate(_lines(window), window.first_line):
        if line.strip():
            try:
                yield row_number, data.parse_line(line, f"{window.path or 'source'}, line {line_number}")
            except ValueError as error:
                yield row_number, error
            row_number += 1


def _lines(window: Window) -> list[bytes]:
    if not window.path:
        return window.text.encode().split(b"\n")
    with open(window.path, "rb") as file:
        file.seek(window.offset)
        return file.read(window.n_bytes).split(b"\n")
