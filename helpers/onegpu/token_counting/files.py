"""Parquet and Arrow files, folders of them, and what ``save_to_disk`` wrote."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import pyarrow as pa

from onegpu.data import reading
from onegpu.data.reading import arrow_batches, open_arrow
from onegpu.token_counting.counting import ROWS, Columns, Piece, count_pieces, pieces_of
from onegpu.token_counting.resident import Pages

_DECODED_BYTES = 2**20
"""About how much of a Parquet file is decoded at a time."""

_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}


@dataclasses.dataclass(frozen=True)
class Files:
    """Parquet or Arrow files that hold one data set together."""

    paths: tuple[Path, ...]
    kind: str

    def open(self, columns: Columns) -> tuple[Columns, Iterator[Piece]]:
        """Check all schemas, and the length column where there is one; then say how to go on.

        Raises
        ------
        ValueError
            Naming the file.
        """
        for path in self.paths:
            with _OPENERS[self.kind](path) as file:
                try:
                    columns.check(file.schema if self.kind == "arrow" else file.schema_arrow)
                except ValueError as error:
                    error.args = (f"{path}: {error}",)
                    raise
        if self.kind == "arrow":
            return columns, self._from_arrow(columns.names)
        if columns.length_column is not None:
            _compare_sample(self.paths, columns)
            columns = dataclasses.replace(columns, trust_length=True)
        return columns, self._from_parquet(columns.names)

    def _from_parquet(self, names: list[str]) -> Iterator[Piece]:
        for path in self.paths:
            with open_parquet(path) as file:
                yield from parquet_pieces(file, names, range(file.num_row_groups))

    def _from_arrow(self, names: list[str]) -> Iterator[Piece]:
        for path in self.paths:
            with open_arrow(path) as reader:
                pages = Pages(lasting=False)  # a compressed batch lies in memory that is used again
                for batch in arrow_batches(reader):
                    yield from pieces_of(pa.Table.from_batches([batch]).select(names), pages)


def open_parquet(path: Any) -> Any:
    """Open a Parquet file so that reading it holds little: no whole column chunks, a small buffer."""
    return reading.open_parquet(path, pre_buffer=False, buffer_size=1 << 20)


def parquet_pieces(file: Any, names: list[str], row_groups: Iterable[int]) -> Iterator[Piece]:
    """Decode row groups in pieces of about ``_DECODED_BYTES``."""
    for group in row_groups:
        meta = file.metadata.row_group(group)
        values = max((meta.column(i).num_values for i in range(meta.num_columns)), default=0)
        rows = max(1, min(ROWS, _DECODED_BYTES * meta.num_rows // (8 * max(1, values))))
        for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=names, use_threads=False):
            yield Piece(batch)


def _compare_sample(paths: Sequence[Path], columns: Columns) -> None:
    """Compare a Parquet length column with the lists in up to 8 row groups, evenly spread."""
    groups = []
    for path in paths:
        with open_parquet(path) as file:
            groups += [(path, group) for group in range(file.num_row_groups)]
    chosen = sorted({round(i * (len(groups) - 1) / 7) for i in range(8)}) if groups else []
    only_lengths = dataclasses.replace(columns, labels=None)
    for path, group in (groups[i] for i in chosen):
        with open_parquet(path) as file:
            first = next(parquet_pieces(file, only_lengths.names, [group]), None)
        try:
            count_pieces([first] if first else [], only_lengths, threads=1)
        except ValueError as error:
            error.args = (f"{path}, row group {group}: {error}",)
            raise


_OPENERS = {"parquet": open_parquet, "arrow": open_arrow}


def is_list_of_paths(source: Any) -> bool:
    """Whether this is a list or tuple of nothing but paths."""
    return isinstance(source, list | tuple) and all(isinstance(p, str | os.PathLike) for p in source)


def open_path(source: Any) -> Any:
    """Turn a path, glob or list of files into something that can be counted.

    Raises
    ------
    FileNotFoundError, ValueError
        Where there is nothing, or something ambiguous.
    """
    if isinstance(source, list | tuple):
        return _files([Path(p) for p in source], "the list")
    path = Path(source)
    if path.is_file():
        return _files([path], str(source))
    if path.is_dir():
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            import datasets

            return datasets.load_from_disk(str(path))
        found = sorted(
            p for p in path.rglob("*")
            if p.suffix in _SUFFIXES and p.is_file()
            and not any(part.startswith((".", "_")) for part in p.relative_to(path).parts)
        )  # fmt: skip
        if any(p.name.startswith("cache-") for p in found) and (path / "dataset_info.json").is_file():
            raise ValueError(
                f"{source} is a cache folder of datasets, whose files hold the same rows several times. Name the files "
                "that you mean (a glob pattern will do), or save the data set with save_to_disk"
            )
        return _files(found, str(source))
    if has_magic(str(source)):
        return _files([Path(p) for p in sorted(glob(str(source), recursive=True))], str(source))
    raise FileNotFoundError(f"{source}: no such file or folder (in {Path.cwd()})")


def _files(paths: list[Path], source: str) -> Files:
    if not paths:
        raise ValueError(f"{source}: no file ending in {', '.join(_SUFFIXES)} found there")
    kinds = {}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file (in {Path.cwd()})")
        kinds.setdefault(reading.columnar_kind(path) or "arrow", path)
    if len(kinds) > 1:
        raise ValueError(
            f"{source} holds Parquet files ({kinds['parquet'].name}) and Arrow files ({kinds['arrow'].name}), perhaps "
            "the same rows twice. Name those that you mean with a glob pattern"
        )
    return Files(tuple(paths), next(iter(kinds)))
