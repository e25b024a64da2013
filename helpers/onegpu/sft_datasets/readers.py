"""Read rows from files, the shipped sets or the Hugging Face hub, one at a time.

Nothing is converted on the way: a blank cell stays "", the text "null" stays text, and a row that can't be
read is an error with its line, never a shorter file. Memory doesn't grow with the file. ``read_rows`` is the
only way by which rows come into this package; ``onegpu.data.reading`` knows the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from onegpu import data

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
    split: str | None = "train",
    limit: int | None = None,
    fallback: Callable[[], Iterator[Row]] | None = None,
) -> Iterator[Row]:
    """Read rows as dicts, in file order.

    Parameters
    ----------
    source
        A file of JSON (an array of objects, one array inside an object, or one object a line), CSV, TSV,
        Parquet or Arrow, the text ones also as .gz, .zst, .bz2 or .xz; a folder of such files, or one that
        ``datasets`` saved; a pattern such as ``rows/*.jsonl``; a shipped set's name (``onegpu.data.names``); or a
        data set's name on the hub, as "owner/name" or "owner/name:configuration".
    columns
        New names for columns, {"question": "prompt", "answer": "completion"}. Columns that aren't named
        keep theirs.
    split
        Which split, where a folder, a shipped set or the hub has several; None takes the rows of all.
    limit
        Read at most so many rows.
    fallback
        Called for rows when the hub doesn't answer; a printed line says so. Data sets in ``HUB_SAMPLES``
        have one without it: the shipped sample with the same columns.

    Yields
    ------
    dict
        One row.

    Raises
    ------
    ValueError
        Unknown kind of file, broken JSON or CSV (with line or row number), a row that isn't an object, no rows, a
        column in ``columns`` that the file lacks, a hub name that can't be read.
    FileNotFoundError
        A file or folder that isn't there.

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
    name = str(source)
    if name in data.names():
        return iter(data.rows(name, split if split in data.splits(name) else None))
    if is_hub_name(name):
        return _read_hub(name, split or "train", fallback)
    return data.read_files(source, split)


def is_hub_name(source: str) -> bool:
    """Whether a source can only be a data set's name on the hub: owner/name or owner/name:configuration, and no file.

    Examples
    --------
    >>> is_hub_name("tatsu-lab/alpaca"), is_hub_name("rows/a.jsonl"), is_hub_name("./rows")
    (True, False, False)
    """
    named = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(:[\w.-]+)?", source)
    return bool(named) and Path(source).suffix.lower() not in _FILE_ENDINGS and not Path(source).exists()


_FILE_ENDINGS = {*data.SUFFIXES, *data.COMPRESSIONS, ".txt", ".yaml", ".yml"}


def _rename(rows, columns, source, limit) -> Iterator[Row]:
    for i, row in enumerate(islice(rows, limit)):
        yield rename(row, columns, i, source) if columns else row


def rename(row: Row, columns: Mapping[str, str], row_index: int, source: Any) -> Row:
    """Give columns of a row their new names.

    Raises
    ------
    ValueError
        For a column that isn't there, or a new name that another column has.
    """
    missing = next((name for name in columns if name not in row), None)
    if missing is not None:
        raise ValueError(
            f"{source}: row {row_index} has no column {missing!r}; found {', '.join(row)}. Correct `columns`."
        )
    renamed = {columns.get(name, name): value for name, value in row.items()}
    if len(renamed) < len(row):
        twice = next(new for name, new in columns.items() if new in row and new not in columns)
        raise ValueError(
            f"{source}: row {row_index} has a column {twice!r} already, and `columns` gives that name to another. Rename "
            "both, or take another name."
        )
    return renamed


def _read_hub(name: str, split: str, fallback) -> Iterator[Row]:
    from datasets import load_dataset

    from onegpu.runtime import hub_offline, hub_reachable

    if fallback is None and name in HUB_SAMPLES:
        fallback = partial(data.rows, HUB_SAMPLES[name])
    try:
        if not hub_offline():  # offline, load_dataset itself gives up at once
            reachable, answer = hub_reachable()
            if not reachable:
                raise ConnectionError(answer)
        repository, _, configuration = name.partition(":")
        which = (repository, configuration) if configuration else (repository,)
        rows = iter(load_dataset(*which, split=split, streaming=True))
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
