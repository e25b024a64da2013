"""Tokenized rows kept on disk, under a name made from everything that they hang on.

A file of rows that was prepared once is mapped into memory the next time. The name is a digest of the files' bytes, the
tokenizer with its chat template, the settings and the code; so nothing need ever be declared out of date. Each entry is
an Arrow file and, written after it, a JSON file with its size and check sum: what a kill or a bad disk leaves is seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from onegpu import __version__, data
from onegpu.models import cache_folder
from onegpu.sft_datasets.readers import is_hub_name
from onegpu.sft_datasets.tokenized import SCHEMA, FlatExamples, Tokenized, TokenizedSet, batches_of

LEAST_BYTES = 1 << 20
"""Files with less than this between them are prepared anew each time: it takes a second."""

_A_DAY = 86_400.0  # seconds

Lay = Callable[[Iterable[Tokenized]], FlatExamples]


def place(source: str, split: str, tokenizer: Any, settings: Mapping[str, Any]) -> Path | None:
    """Return where the prepared rows of a source belong (without an ending); None for one that isn't cached.

    Not cached are shipped sets and small files, and data sets of the hub, whose rows come as a stream.

    Parameters
    ----------
    source, split
        As for ``read_rows``.
    tokenizer
        With the chat template that is used.
    settings
        All else that the tokenized rows hang on: JSON types.
    """
    if source in data.names() or is_hub_name(source):
        return None
    files = data.find_files(source, split).files
    if sum(path.stat().st_size for path in files) < LEAST_BYTES:
        return None
    found = hashlib.sha256()
    for path in files:
        found.update(f"{''.join(path.suffixes)} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    found.update(
        json.dumps([split, settings, _about(tokenizer), _versions()], sort_keys=True, default=str).encode()
    )
    return cache_folder() / "rows" / found.hexdigest()[:32]


def _about(tokenizer: Any) -> list[Any]:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for changing in ("truncation", "padding"):  # of the last call, not of the tokenizer
        backend.pop(changing, None)
    return [
        type(tokenizer).__name__,
        hashlib.sha256(json.dumps(backend).encode()).hexdigest(),
        tokenizer.chat_template,
        tokenizer.special_tokens_map,
    ]


def _versions() -> list[Any]:
    """What the rows were made with; of this package the code itself, which in a working copy has no version of its own."""
    code, package = hashlib.sha256(), Path(data.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        code.update(path.read_bytes())
    libraries = (metadata.version(name) for name in ("transformers", "tokenizers", "jinja2"))
    return [code.hexdigest(), __version__, *libraries]


def read_or_make(
    entry: Path, make: Callable[[Lay], TokenizedSet], say: Callable[[str], None] = lambda line: None
) -> TokenizedSet:
    """Map prepared rows into memory, or make them, straight into the cache.

    Parameters
    ----------
    entry
        From ``place``.
    make
        Makes the rows, laid into what it is given (``tokenize_rows``'s ``lay``).
    say
        Gets a line on what was done.

    Raises
    ------
    ValueError
        As ``make``. A cache that can't be read or written is no error: the rows are made anew, in memory if need be.
    """
    rows, about = entry.with_suffix(".arrow"), entry.with_suffix(".json")
    if about.is_file():
        try:
            done = _read(rows, about)
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            say(f"prepared rows in {rows} are damaged ({error}): preparing them anew")
        else:
            say(f"prepared rows: taken from {rows} (cache_rows=False prepares them anew)")
            return done
    try:
        done = make(lambda examples: _write(rows, examples))
        figures = {f.name: getattr(done, f.name) for f in dataclasses.fields(done) if f.name != "examples"}
        sums = {"bytes": rows.stat().st_size, "check_sum": _check_sum(rows)}
        _replace(about, lambda part: part.write_text(json.dumps(figures | sums), encoding="utf-8"))
    except _NotWritten as error:
        say(f"prepared rows can't be kept in {rows.parent} ({error}): preparing them in memory")
        return make(FlatExamples.of)
    say(
        f"prepared rows: kept in {rows} ({sums['bytes'] / 2**20:,.0f} MiB; cache_rows=False keeps none, the environment "
        "variable ONEGPU_CACHE names another folder)"
    )
    return done


class _NotWritten(Exception):
    """What the disk said."""


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place and move it there."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(".*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > _A_DAY:
                left.unlink()
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise _NotWritten(error.strerror or str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _write(path: Path, examples: Iterable[Tokenized]) -> FlatExamples:
    def write(part: Path) -> None:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in batches_of(examples):
                writer.write_batch(batch)

    _replace(path, write)
    return _map(path)


def _map(path: Path) -> FlatExamples:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if reader.schema != SCHEMA:
        raise ValueError("its columns are others")
    return FlatExamples([reader.get_batch(i) for i in range(reader.num_record_batches)])


def _read(rows: Path, about: Path) -> TokenizedSet:
    known = json.loads(about.read_text(encoding="utf-8"))
    size, check_sum = known.pop("bytes"), known.pop("check_sum")
    if rows.stat().st_size != size:
        raise ValueError(f"it has {rows.stat().st_size:,} bytes, expected {size:,}")
    if _check_sum(rows) != check_sum:
        raise ValueError("its check sum is another")
    for name in ("truncated", "end_ids", "systems"):
        known[name] = tuple(known[name])
    known["dropped"] = {reason: tuple(numbers) for reason, numbers in known["dropped"].items()}
    known["bad_rows"] = tuple((number, said) for number, said in known["bad_rows"])
    return TokenizedSet(_map(rows), **known)


def _check_sum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found
