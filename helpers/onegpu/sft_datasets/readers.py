"""Read rows from JSON, JSONL, CSV, TSV, Parquet or the Hugging Face hub, one at a time.

Nothing is converted on the way: a blank cell stays "", the text "null" stays text, and a row that can't be
read is an error with its line, never a shorter file. Memory doesn't grow with the file.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HUB_SAMPLES = {
    "tatsu-lab/alpaca": "alpaca_sample",
    "yahma/alpaca-cleaned": "alpaca_sample",
    "beomi/KoAlpaca-v1.1a": "koalpaca_sample",
}
"""Data sets on the hub and the shipped sample that has their columns."""


def read_rows(
    source: str | os.PathLike,
    *,
    columns: Mapping[str, str] | None = None,
    split: str = "train",
    limit: int | None = None,
    fallback: Callable[[], Iterator[Row]] | None = None,
) -> Iterator[Row]:
    """Read rows as dicts, in file order.

    Parameters
    ----------
    source
        A file ending in .json (an array of objects, or one array inside an object), .jsonl, .ndjson,
        .csv, .tsv or .parquet; or a data set's name on the hub, as "owner/name".
    columns
        New names for columns, {"question": "prompt", "answer": "completion"}. Columns that aren't named
        keep theirs.
    split
        The split of a hub data set.
    limit
        Read at most so many rows.
    fallback
        Called for rows when the hub doesn't answer; a printed line says so. Data sets in `HUB_SAMPLES`
        have one without it: the shipped sample with the same columns.

    Yields
    ------
    dict
        One row.

    Raises
    ------
    ValueError
        Unknown kind of file, broken JSON or CSV (with line or row number), a row that isn't an object, a
        column in `columns` that the file lacks, a hub name that can't be read.
    FileNotFoundError
        A file that isn't there.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "rows.csv")
    >>> _ = path.write_text("question,answer\\n2+2?,4\\n")
    >>> list(read_rows(path, columns={"question": "prompt", "answer": "completion"}))
    [{'prompt': '2+2?', 'completion': '4'}]
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: expected None or a number of rows.")
    rows = _open(source, split, fallback)
    return _rename(rows, dict(columns or {}), source, limit)


def _open(source, split, fallback) -> Iterator[Row]:
    path = Path(source)
    reader = _READERS.get(path.suffix.lower())
    if reader is not None:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file. Check the path; it is relative to {Path.cwd()}.")
        return reader(path)
    if path.exists() or str(source).count("/") != 1 or str(source).startswith((".", "/")):
        raise ValueError(
            f"{source}: expected a file ending in {', '.join(_READERS)}, or a hub name as owner/name."
        )
    return _read_hub(str(source), split, fallback)


def _rename(rows, columns, source, limit) -> Iterator[Row]:
    for i, row in enumerate(islice(rows, limit)):
        missing = [name for name in columns if name not in row]
        if missing:
            raise ValueError(
                f"{source}: row {i} has no column {missing[0]!r}; found {', '.join(row)}. Correct `columns`."
            )
        yield {columns.get(name, name): value for name, value in row.items()} if columns else row


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: found {line[:60]!r}, expected one JSON object ({error.msg}, "
                    f"column {error.colno}). Mend or remove the line."
                ) from error
            yield _object(row, f"{path}, line {number}")


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: found a {type(row).__name__}, expected an object with named columns.")
    return row


_CHUNK_CHARACTERS = 1 << 16
_BETWEEN = re.compile(r"[\s,]*")


def _read_json(path: Path) -> Iterator[Row]:
    """The objects of the first array in the file, parsed as they come, a chunk in memory at a time."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8-sig") as file:
        head = file.read(_CHUNK_CHARACTERS)
        start = head.find("[")
        if start < 0 or head.lstrip()[:1] not in ("[", "{"):
            raise ValueError(
                f"{path}: found {head[:60]!r}, expected a JSON array of objects. If each line is an object, "
                "name the file .jsonl."
            )
        buffer, at, number = head, start + 1, 0
        while True:
            at = _BETWEEN.match(buffer, at).end()
            if buffer.startswith("]", at):
                return
            try:
                row, at = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError as error:
                # Perhaps the row goes on in the next chunk.
                chunk = file.read(max(_CHUNK_CHARACTERS, len(buffer) - at))
                if not chunk:
                    raise ValueError(
                        f"{path}, row {number}: found {buffer[at : at + 60]!r}, expected an object, or ']' at "
                        f"the end ({error.msg}). The file is cut off or broken there; get it again or mend it."
                    ) from error
                buffer, at = buffer[at:] + chunk, 0
                continue
            yield _object(row, f"{path}, row {number}")
            number += 1


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            header = next(reader, [])
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


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()


def _read_hub(name: str, split: str, fallback) -> Iterator[Row]:
    from datasets import load_dataset

    from onegpu.runtime import hub_offline, hub_reachable

    if fallback is None and name in HUB_SAMPLES:
        fallback = partial(_shipped, HUB_SAMPLES[name])
    try:
        if not hub_offline():  # offline, load_dataset itself gives up at once
            reachable, answer = hub_reachable()
            if not reachable:
                raise ConnectionError(answer)
        rows = iter(load_dataset(name, split=split, streaming=True))
        first = next(rows, None)
    except Exception as error:  # the hub client raises a dozen kinds
        if fallback is None:
            raise ValueError(
                f"{name}: the hub gave no data set of this name and split {split!r} "
                f"({type(error).__name__}). Check the name and the connection, or give a file."
            ) from error
        print(f"{name}: the hub gave no rows ({type(error).__name__}), so this is the shipped sample.")
        yield from fallback()
        return
    if first is not None:
        yield first
        yield from rows


def _shipped(name: str) -> Iterator[Row]:
    from onegpu import data

    return iter(data.rows(name))


_READERS = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
