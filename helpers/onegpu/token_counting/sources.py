"""Count tokens in anything that holds Arrow: what each kind of source hands to the counting, piece by piece."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from onegpu.token_counting.counting import ROWS, Columns, Piece, count_pieces
from onegpu.token_counting.counts import TokenCounts
from onegpu.token_counting.resident import Pages

_WINDOW_ROWS = 1 << 24
"""Rows of an index-mapped table whose weights are held at a time (one byte each)."""

_STREAM_ROWS = 256
"""Rows asked for at a time where a source makes them on the way (streams, Ray)."""

_DECODED_BYTES = 2**20
"""About how much of a Parquet file is decoded at a time."""

_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}


def count_tokens(
    dataset: Any,
    column: str = "input_ids",
    labels: str | None = "labels",
    ignore_index: int = -100,
    *,
    length_column: str | None = None,
    threads: int | None = None,
) -> TokenCounts:
    """Count the tokens that training on a data set would see.

    Only the needed columns are read, nothing becomes a Python object, and memory doesn't grow with rows. A
    ``datasets.Dataset`` is counted through its indices mapping: what ``select``, ``filter``, ``shuffle`` or
    ``train_test_split`` left out isn't counted, what they doubled counts twice.

    Parameters
    ----------
    dataset
        A ``datasets.Dataset``, ``IterableDataset``, ``DatasetDict`` or ``IterableDatasetDict``; a pyarrow Table,
        RecordBatch, RecordBatchReader or ``pyarrow.dataset``; a Ray Dataset; a path of a Parquet or Arrow file, of a
        folder of them or one that ``save_to_disk`` wrote, a glob pattern, or a list of files. An ``IterableDataset``
        and a RecordBatchReader are read to their end.
    column
        Column of token ids.
    labels
        Column of labels, or None to count tokens alone (that takes only the offsets, so no time per token).
    ignore_index
        Label that the loss skips.
    length_column
        Column that holds each row's length, to be used instead of ``column``. It is compared with the lists on every
        row where that costs nothing, in Parquet on a sample of row groups, and refused when it is stale.
    threads
        Threads that count; None for as many as there are cores, at most 4.

    Returns
    -------
    TokenCounts
        With ``splits`` for a ``DatasetDict``.

    Raises
    ------
    ValueError
        A column that is missing or not lists of integers (with the column, its type and what to do), a stale length
        column, a data set with a transform that is applied on access, files of two kinds in one folder.
    TypeError
        A kind of data set that isn't known.

    Notes
    -----
    A label at the first position is counted, although a causal language model never predicts it: that is how the
    counts of other tools are meant (axolotl#3711). Source of the method: Arrow's columnar format, variable-size lists.

    Examples
    --------
    >>> table = pa.table({"input_ids": [[5, 6, 7], [8, 9]], "labels": [[-100, -100, 7], [-100, 9]]})
    >>> counts = count_tokens(table)
    >>> counts.rows, counts.tokens, counts.supervised_tokens
    (2, 5, 2)

    Rows that an indices mapping leaves out don't count:

    >>> import datasets
    >>> count_tokens(datasets.Dataset(table).select([1])).tokens
    2
    """
    columns = Columns(column, labels, ignore_index, length_column)
    if isinstance(dataset, str | os.PathLike) or _is_list_of_paths(dataset):
        dataset = _open_path(dataset)
    if isinstance(dataset, Mapping):  # DatasetDict, IterableDatasetDict
        parts = {}
        for name, split in dataset.items():
            try:
                parts[str(name)] = count_tokens(
                    split, column, labels, ignore_index, length_column=length_column, threads=threads
                )
            except ValueError as error:
                raise ValueError(f"split {name!r}: {error}") from error
        return TokenCounts.total(parts)
    columns, pieces, lies_ready = _open(dataset, columns)
    # Pieces that are made on the way take memory each, so there they are counted one at a time.
    with closing(pieces):
        return count_pieces(pieces, columns, threads if lies_ready else 1)


class _Opened(NamedTuple):
    """How to read a source: its pieces, and whether they lie in memory or a mapped file already."""

    columns: Columns
    pieces: Iterator[Piece]
    lies_ready: bool = False


def _open(dataset: Any, columns: Columns) -> _Opened:
    """Choose how a data set is read. Types are checked here, before anything is read."""
    kind, module = type(dataset).__name__, type(dataset).__module__.partition(".")[0]
    if isinstance(dataset, pa.RecordBatch):
        dataset = pa.Table.from_batches([dataset])
    if isinstance(dataset, pa.Table):
        columns.check(dataset.schema)
        return _Opened(columns, _from_table(dataset.select(columns.names), Pages(lasting=True)), True)
    if isinstance(dataset, pa.RecordBatchReader):
        columns.check(dataset.schema)
        return _Opened(columns, _from_batches(dataset, columns))
    if isinstance(dataset, _Files):
        return dataset.open(columns)
    if module == "pyarrow" and hasattr(dataset, "scanner"):
        columns.check(dataset.schema)
        return _Opened(columns, _from_batches(_scan(dataset, columns.names), columns))
    if module == "datasets" and hasattr(dataset, "data"):
        return _Opened(columns, _from_dataset(dataset, columns), True)
    if module == "datasets" and hasattr(dataset, "with_format"):
        return _Opened(columns, _from_stream(dataset, columns))
    if module == "ray" and hasattr(dataset, "iter_batches"):
        return _Opened(columns, _from_ray(dataset, columns))
    raise TypeError(
        f"can't count tokens in a {type(dataset).__module__}.{kind}: expected a datasets.Dataset, IterableDataset or "
        "DatasetDict, a pyarrow Table, RecordBatchReader or dataset, a Ray Dataset, or a path"
    )


def _from_table(table: pa.Table, pages: Pages) -> Iterator[Piece]:
    for batch in table.to_batches(max_chunksize=ROWS):
        yield Piece(batch, None, pages)


def _from_batches(batches: Iterable[pa.RecordBatch | pa.Table], columns: Columns) -> Iterator[Piece]:
    pages = Pages(lasting=False)  # they may come from files that are opened and closed on the way
    for batch in batches:
        columns.check(batch.schema)
        yield from _from_table(pa.table({name: batch.column(name) for name in columns.names}), pages)


def _scan(dataset: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Read a pyarrow.dataset. Its own scan decodes whole row groups; here Parquet comes a few rows at a time."""
    options = {"batch_size": _STREAM_ROWS, "batch_readahead": 0, "use_threads": False}
    if dataset._scan_options:  # a filter
        yield from dataset.to_batches(columns=names, fragment_readahead=0, **options)
        return
    for fragment in dataset.get_fragments():
        if hasattr(fragment, "row_groups") and set(names) <= set(fragment.physical_schema.names):
            with _parquet(fragment.open()) as file:
                for piece in _parquet_pieces(file, names, [group.id for group in fragment.row_groups]):
                    yield piece.batch
        else:
            yield from fragment.to_batches(schema=dataset.schema, columns=names, **options)


def _from_dataset(dataset: Any, columns: Columns) -> Iterator[Piece]:
    if dataset.format["type"] == "custom":
        raise ValueError(
            "the data set has a transform that is applied when a row is read (set_transform), so the stored tokens "
            "aren't those that training sees. Apply it with map first, or count without it: dataset.with_format(None)"
        )
    table = dataset.data.table
    columns.check(table.schema)
    table = table.select(columns.names)
    pages = Pages(lasting=True)
    if dataset._indices is None:
        return _from_table(table, pages)
    return _from_indexed(table, dataset._indices.table.column(0), pages)


def _from_indexed(table: pa.Table, indices: pa.ChunkedArray, pages: Pages) -> Iterator[Piece]:
    """Rows in the order in which they are stored, each with how often the indices name it."""
    for first in range(0, table.num_rows, _WINDOW_ROWS):
        window = table.slice(first, _WINDOW_ROWS)
        weights = _occurrences(indices, first, window.num_rows)
        at = 0
        for batch in window.to_batches(max_chunksize=ROWS):
            yield Piece(batch, weights[at : at + batch.num_rows], pages)
            at += batch.num_rows


def _occurrences(indices: pa.ChunkedArray, first: int, n_rows: int) -> np.ndarray:
    """Count how often each of the rows first to first + n_rows occurs among the indices."""
    seen = np.zeros(n_rows, bool)
    total = 0
    for part in _index_blocks(indices, first, n_rows):
        seen[part] = True
        total += part.size
    if np.count_nonzero(seen) == total:  # no row twice: the usual case, and a byte a row is enough
        return seen
    times = np.zeros(n_rows, np.int32)
    for part in _index_blocks(indices, first, n_rows):
        np.add.at(times, part, 1)
    return times


def _index_blocks(indices: pa.ChunkedArray, first: int, n_rows: int) -> Iterator[np.ndarray]:
    for chunk in indices.chunks:
        for start in range(0, len(chunk), ROWS):
            block = chunk.slice(start, ROWS).to_numpy().astype(np.int64) - first
            yield block[(block >= 0) & (block < n_rows)]


def _from_stream(dataset: Any, columns: Columns) -> Iterator[Piece]:
    if dataset.features is not None:
        columns.check(dataset.features.arrow_schema)
        batches = dataset.select_columns(columns.names).with_format("arrow").iter(batch_size=_STREAM_ROWS)
        return _from_batches(batches, columns)
    return _from_batches(_batches_of_rows(dataset.with_format(None), columns), columns)


def _batches_of_rows(dataset: Any, columns: Columns) -> Iterator[pa.Table]:
    # The rows of a stream with unknown features are made in Python, and datasets makes Arrow of each alone, where an
    # empty list has another type than a full one. So batches are made here.
    for batch in dataset.iter(batch_size=_STREAM_ROWS):
        _check_names(list(batch), columns)
        yield pa.table({name: pa.array(batch[name]) for name in columns.names})


def _check_names(names: list[str], columns: Columns) -> None:
    """Check names alone, where types aren't known yet."""
    if not set(columns.names) <= set(names):
        columns.check(pa.schema([(name, pa.null()) for name in names]))


def _from_ray(dataset: Any, columns: Columns) -> Iterator[Piece]:
    schema = dataset.schema()
    if schema is None:
        return iter(())
    _check_names(schema.names, columns)
    batches = dataset.select_columns(columns.names).iter_batches(
        batch_format="pyarrow", batch_size=_STREAM_ROWS
    )
    return _from_batches(batches, columns)


# Files


@dataclasses.dataclass(frozen=True)
class _Files:
    """Parquet or Arrow files that hold one data set together."""

    paths: tuple[Path, ...]
    kind: str

    def open(self, columns: Columns) -> _Opened:
        for path in self.paths:
            with _OPENERS[self.kind](path) as file:
                try:
                    columns.check(file.schema if self.kind == "arrow" else file.schema_arrow)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from None
        if self.kind == "arrow":
            return _Opened(columns, self._from_arrow(columns.names))
        if columns.length_column is not None:
            _compare_sample(self.paths, columns)
            columns = dataclasses.replace(columns, trust_length=True)
        return _Opened(columns, self._from_parquet(columns.names))

    def _from_parquet(self, names: list[str]) -> Iterator[Piece]:
        for path in self.paths:
            with _parquet(path) as file:
                yield from _parquet_pieces(file, names, range(file.num_row_groups))

    def _from_arrow(self, names: list[str]) -> Iterator[Piece]:
        for path in self.paths:
            with _arrow(path) as reader:
                pages = Pages(lasting=True)
                for batch in _batches(reader):
                    yield from _from_table(pa.Table.from_batches([batch]).select(names), pages)


def _parquet(path: Any) -> Any:
    import pyarrow.parquet as pq

    # Without pre_buffer, and through a small buffer: else whole column chunks are held.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


def _parquet_pieces(file: Any, names: list[str], row_groups: Iterable[int]) -> Iterator[Piece]:
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
        with _parquet(path) as file:
            groups += [(path, group) for group in range(file.num_row_groups)]
    chosen = sorted({round(i * (len(groups) - 1) / 7) for i in range(8)}) if groups else []
    only_lengths = dataclasses.replace(columns, labels=None)
    for path, group in (groups[i] for i in chosen):
        with _parquet(path) as file:
            first = next(_parquet_pieces(file, only_lengths.names, [group]), None)
        try:
            count_pieces([first] if first else [], only_lengths, threads=1)
        except ValueError as error:
            raise ValueError(f"{path}, row group {group}: {error}") from None


@contextmanager
def _arrow(path: Path) -> Iterator[Any]:
    """Open an Arrow file of either format, memory-mapped."""
    with pa.memory_map(str(path)) as mapped:
        try:
            is_file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            reader = pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"{path} is no Arrow file that can be read ({error}). Check that it is whole"
            ) from None
        yield reader


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


_OPENERS = {"parquet": _parquet, "arrow": _arrow}


def _is_list_of_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(isinstance(p, str | os.PathLike) for p in source)


def _open_path(source: Any) -> Any:
    """Turn a path, glob or list of files into something that can be counted."""
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


def _files(paths: list[Path], source: str) -> _Files:
    if not paths:
        raise ValueError(f"{source}: no file ending in {', '.join(_SUFFIXES)} found there")
    kinds = {}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file (in {Path.cwd()})")
        with path.open("rb") as file:
            kinds.setdefault("parquet" if file.read(4) == b"PAR1" else "arrow", path)
    if len(kinds) > 1:
        raise ValueError(
            f"{source} holds Parquet files ({kinds['parquet'].name}) and Arrow files ({kinds['arrow'].name}), perhaps "
            "the same rows twice. Name those that you mean with a glob pattern"
        )
    return _Files(tuple(paths), next(iter(kinds)))
