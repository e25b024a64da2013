"""The rows of a fine-tune as a stream over many processes: read, validate, tokenize, mask, pack.

The one idea is the **window**: a fixed run of source rows (256 by default), cut before anything runs in parallel. A
window is read, tokenized and packed by one call, whatever process makes it, so the packed rows are the same for any
number of processes and blocks, and the same as without Ray. Ray sees a window as one row until ``pack`` turns it into
packed rows, each of which knows its place in the run (``index``).

Rows travel as JSON text: each row may have other columns, and nothing is converted on the way (ray#46855, #54186).

Shares of the workers: packed row ``i`` goes to worker ``i % workers``. Ray Data splits a stream into equal shares by
leaving out the rows that are over; here filler rows without a supervised token make them even, so that no row is lost
and the loss, which is weighted by supervised tokens, doesn't notice.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from onegpu.packing import IGNORE_INDEX, pack_lengths

if TYPE_CHECKING:
    import ray.data

WINDOW_ROWS = 256
FILLER_TOKENS = 2

WINDOWS = pa.schema(
    {
        "window": pa.int64(), "epoch": pa.int64(), "first_row": pa.int64(), "rows": pa.int64(), "path": pa.string(),
        "offset": pa.int64(), "n_bytes": pa.int64(), "text": pa.string(), "first_index": pa.int64(), "fillers": pa.int64(),
    }
)  # fmt: skip
TOKENIZED = pa.schema(
    {
        "window": pa.int64(), "epoch": pa.int64(), "first_index": pa.int64(), "fillers": pa.int64(), "read": pa.int64(),
        "rows": pa.list_(pa.int64()), "input_ids": pa.list_(pa.list_(pa.int32())), "labels": pa.list_(pa.list_(pa.int32())),
        "dropped": pa.string(),
    }
)  # fmt: skip
PACKED = pa.schema(
    {
        "index": pa.int64(), "window": pa.int64(), "rows": pa.list_(pa.int64()), "input_ids": pa.list_(pa.int32()),
        "labels": pa.list_(pa.int32()), "seq_lens": pa.list_(pa.int32()),
    }
)  # fmt: skip
COUNTED = pa.schema(
    {
        "window": pa.int64(), "read": pa.int64(), "kept": pa.int64(), "packed": pa.int64(), "tokens": pa.int64(),
        "supervised": pa.int64(), "dropped": pa.string(), "error": pa.string(),
    }
)  # fmt: skip


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
    if window.path:
        with open(window.path, "rb") as file:
            file.seek(window.offset)
            lines = file.read(window.n_bytes).split(b"\n")
    else:
        lines = window.text.encode().split(b"\n")
    number = window.first_row
    for line in lines:
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


@dataclass(frozen=True)
class Recipe:
    """How rows become packed rows: what each stage needs, in one thing that travels to the workers.

    Attributes
    ----------
    tokenizer
        A fast transformers tokenizer with a chat template.
    max_length : int
        Tokens of a packed row, and the longest example.
    packing : bool
        False: each example is a row of its own.
    bad_rows : {"raise", "skip"}
        What to do with a row that can't be trained on. Skipped rows are counted and named.
    seed : int
        Of the order of windows and of packed rows in a window. None keeps the source's order.
    """

    tokenizer: Any
    max_length: int
    packing: bool = True
    bad_rows: str = "raise"
    seed: int | None = 0

    def __post_init__(self):
        if self.bad_rows not in ("raise", "skip"):
            raise ValueError(f"bad_rows is {self.bad_rows!r}, expected 'raise' or 'skip'")


def tokenize_window(window: Window, recipe: Recipe) -> dict[str, Any]:
    """Read, validate, tokenize and mask the rows of a window (a row of ``TOKENIZED``).

    Raises
    ------
    ValueError
        For a bad row, with its number, unless they are skipped.
    """
    from onegpu.sft_datasets import tokenize

    kept, dropped, read = [], {}, 0
    rows = _rows_or_errors(window) if recipe.bad_rows == "skip" else read_window(window)
    for number, row in rows:
        read += 1
        try:
            if isinstance(row, ValueError):
                raise row
            done = tokenize(row, recipe.tokenizer, recipe.max_length, truncation="drop", row_index=number)
        except ValueError:
            if recipe.bad_rows == "raise":
                raise
            dropped.setdefault("bad_row", []).append(number)
            continue
        if done.dropped:
            dropped.setdefault(done.dropped, []).append(number)
        else:
            kept.append((number, done))
    return {
        "window": window.window,
        "epoch": window.epoch,
        "first_index": window.first_index,
        "fillers": window.fillers,
        "read": read,
        "rows": [number for number, _ in kept],
        "input_ids": [list(done.input_ids) for _, done in kept],
        "labels": [list(done.labels) for _, done in kept],
        "dropped": json.dumps(dropped),
    }


def _rows_or_errors(window: Window) -> Iterator[tuple[int, Any]]:
    """As ``read_window``, with the error in place of a row that isn't JSON: one line a window of its own."""
    if window.path:
        with open(window.path, "rb") as file:
            file.seek(window.offset)
            lines = file.read(window.n_bytes).split(b"\n")
    else:
        lines = window.text.encode().split(b"\n")
    number = window.first_row
    for line in lines:
        if line.strip():
            one = Window(window.window, number, 1, text=line.decode(errors="replace"))
            try:
                yield from read_window(one)
            except ValueError as error:
                yield number, error
            number += 1


def pack_window(tokenized: Mapping[str, Any], recipe: Recipe) -> list[dict[str, Any]]:
    """Pack the examples of a tokenized window and give each packed row its place in the run (rows of ``PACKED``)."""
    lengths = [len(ids) for ids in tokenized["input_ids"]]
    if recipe.packing:
        rows = pack_lengths(lengths, recipe.max_length).rows
    else:
        rows = [[i] for i in range(len(lengths))]
    if recipe.seed is not None:
        seed = [recipe.seed, tokenized["epoch"], tokenized["window"]]
        rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    packed = []
    for examples in rows:
        packed.append(
            {
                "index": tokenized["first_index"] + len(packed),
                "window": tokenized["window"],
                "rows": [tokenized["rows"][i] for i in examples],
                "input_ids": [token for i in examples for token in tokenized["input_ids"][i]],
                "labels": [label for i in examples for label in tokenized["labels"][i]],
                "seq_lens": [lengths[i] for i in examples],
            }
        )
    for _ in range(tokenized["fillers"]):
        packed.append(
            {
                "index": tokenized["first_index"] + len(packed), "window": tokenized["window"], "rows": [],
                "input_ids": [0] * FILLER_TOKENS, "labels": [IGNORE_INDEX] * FILLER_TOKENS, "seq_lens": [FILLER_TOKENS],
            }
        )  # fmt: skip
    return packed


def count_window(window: Window, recipe: Recipe) -> dict[str, Any]:
    """Tokenize a window and return its figures only (a row of ``COUNTED``); a bad row's message is in ``error``.

    An error is handed on as text, not raised: in a worker process it would come out of Ray below its own stack trace,
    and which of several bad rows came first would be chance.
    """
    try:
        tokenized = tokenize_window(window, recipe)
    except ValueError as error:
        return dict.fromkeys(COUNTED.names, 0) | {
            "window": window.window,
            "dropped": "{}",
            "error": str(error),
        }
    lengths = [len(ids) for ids in tokenized["input_ids"]]
    return {
        "window": tokenized["window"],
        "read": tokenized["read"],
        "kept": len(lengths),
        "packed": pack_lengths(lengths, recipe.max_length).n_rows if recipe.packing else len(lengths),
        "tokens": sum(lengths),
        # A label at position 0 is never used: nothing comes before it.
        "supervised": sum(label != IGNORE_INDEX for labels in tokenized["labels"] for label in labels[1:]),
        "dropped": tokenized["dropped"],
        "error": "",
    }


# The same stages on Arrow tables, as Ray Data calls them: a batch is one window.


def tokenize_batch(batch: pa.Table, recipe: Recipe) -> pa.Table:
    """Stage 1: windows to tokenized windows."""
    done = [tokenize_window(Window(**row), recipe) for row in batch.to_pylist()]
    return pa.Table.from_pylist(done, TOKENIZED)


def pack_batch(batch: pa.Table, recipe: Recipe) -> pa.Table:
    """Stage 2: tokenized windows to packed rows."""
    done = [row for window in batch.to_pylist() for row in pack_window(window, recipe)]
    return pa.Table.from_pylist(done, PACKED)


def count_batch(batch: pa.Table, recipe: Recipe) -> pa.Table:
    """Instead of both: windows to their figures."""
    return pa.Table.from_pylist([count_window(Window(**row), recipe) for row in batch.to_pylist()], COUNTED)


def to_table(found: Sequence[Window]) -> pa.Table:
    """Return windows as an Arrow table, one a row."""
    return pa.Table.from_pylist([dataclasses.asdict(window) for window in found], WINDOWS)


def window_dataset(found: Sequence[Window], blocks: int | None = None) -> ray.data.Dataset:
    """Return a Ray data set of windows, one a row.

    Parameters
    ----------
    found
        Windows.
    blocks
        Into how many blocks they are laid; each is one task of the next stage. None: one a window, at most 1,000.
    """
    import ray.data

    table = to_table(found)
    blocks = max(1, min(blocks or 1000, len(found)))
    edges = [len(found) * i // blocks for i in range(blocks + 1)]
    return ray.data.from_arrow([table.slice(a, b - a) for a, b in itertools.pairwise(edges)])


def packed_dataset(
    found: Sequence[Window],
    recipe: Recipe,
    *,
    blocks: int | None = None,
    num_cpus: float = 1.0,
    at_most: int | None = None,
) -> ray.data.Dataset:
    """Return a Ray data set of packed rows, in the order of the windows. Nothing runs until its rows are asked for.

    It has one row a block, so that ``streaming_split`` hands rows out one by one: row i to worker ``i % workers``.

    Parameters
    ----------
    found, recipe
        Windows, and how to make rows of them.
    blocks
        As in ``window_dataset``.
    num_cpus
        That a task asks for. As many tasks run side by side as fit.
    at_most
        Tasks side by side, where fewer are wanted than fit.
    """
    stage = {"batch_size": 1, "batch_format": "pyarrow", "num_cpus": num_cpus, "concurrency": at_most}
    packed = (
        window_dataset(found, blocks)
        .map_batches(functools.partial(tokenize_batch, recipe=recipe), **stage)
        .map_batches(functools.partial(pack_batch, recipe=recipe), **stage)
        .repartition(target_num_rows_per_block=1)
    )
    packed.context.execution_options.preserve_order = True
    return packed


def packed_rows(found: Sequence[Window], recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield the same packed rows in this process, without Ray."""
    for window in found:
        yield from pack_window(tokenize_window(window, recipe), recipe)


@dataclass(frozen=True)
class StreamCounts:
    """What a pass over the stream found: what a stream without length doesn't know about itself.

    Attributes
    ----------
    packed : tuple of int
        Packed rows of each window.
    read, kept, tokens, supervised : int
        Rows read, examples kept, their tokens, and the supervised ones.
    dropped : dict of str to tuple of int
        Row numbers by reason.
    """

    packed: tuple[int, ...]
    read: int
    kept: int
    tokens: int
    supervised: int
    dropped: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        lines = [
            f"{self.read:,} rows: {self.kept:,} kept, {self.tokens:,} tokens, {self.supervised:,} supervised, in "
            f"{sum(self.packed):,} packed rows"
        ]
        for reason, rows in self.dropped.items():
            some = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            lines.append(f"dropped, {reason}: {len(rows):,} (rows {some})")
        return "\n".join(lines)


def count_rows(
    found: Sequence[Window], recipe: Recipe, *, parallel: bool = True, num_cpus: float = 1.0
) -> StreamCounts:
    """Tokenize every row once, keep only figures. Bad rows are found here, before any training.

    Parameters
    ----------
    found, recipe
        As in ``packed_dataset``.
    parallel
        Over the connected Ray; else in this process.
    num_cpus
        Of a task.

    Raises
    ------
    ValueError
        A bad row, with its number; or nothing is left to train on.
    """
    if parallel:
        figures = (
            window_dataset(found)
            .map_batches(
                functools.partial(count_batch, recipe=recipe),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=num_cpus,
            )
            .take_all()
        )
    else:
        figures = [count_window(window, recipe) for window in found]
    figures.sort(key=lambda row: row["window"])
    for row in figures:
        if row["error"]:
            raise ValueError(row["error"])
    dropped: dict[str, list[int]] = {}
    for row in figures:
        for reason, rows in json.loads(row["dropped"]).items():
            dropped.setdefault(reason, []).extend(rows)
    total = Counter()
    for row in figures:
        total.update({name: int(row[name]) for name in ("read", "kept", "tokens", "supervised")})
    counts = StreamCounts(
        tuple(int(row["packed"]) for row in figures), total["read"], total["kept"], total["tokens"],
        total["supervised"], {reason: tuple(sorted(rows)) for reason, rows in dropped.items()},
    )  # fmt: skip
    if not counts.kept:
        raise ValueError(f"nothing left to train on. {counts}")
    return counts


def steps_per_epoch(packed_rows: int, workers: int, batch_size: int, accumulation: int = 1) -> int:
    """Return the optimizer steps of one epoch: the last one may be part filler, none is left out.

    Examples
    --------
    100 packed rows, 2 workers with 4 rows each and 3 micro-batches: 24 rows a step.

    >>> steps_per_epoch(100, workers=2, batch_size=4, accumulation=3)
    5
    """
    return math.ceil(packed_rows / (workers * batch_size * accumulation))


def schedule(
    found: Sequence[Window],
    counts: StreamCounts,
    *,
    workers: int,
    batch_size: int,
    accumulation: int = 1,
    epochs: float = 1.0,
    max_steps: int = -1,
    seed: int | None = 0,
) -> tuple[list[Window], int]:
    """Lay out a whole run: the windows of all epochs, each with its place, and the number of steps.

    Each epoch takes the windows in an order of its own and ends with as many filler rows as its last step lacks.

    Returns
    -------
    tuple
        Windows in the order of the run, and optimizer steps.
    """
    total = sum(counts.packed)
    a_step = workers * batch_size * accumulation
    each = steps_per_epoch(total, workers, batch_size, accumulation)
    steps = max_steps if max_steps > 0 else math.ceil(epochs * each)
    placed: list[Window] = []
    index = 0
    for epoch in range(math.ceil(steps / each)):
        order = (
            np.arange(len(found))
            if seed is None
            else np.random.default_rng([seed, epoch]).permutation(len(found))
        )
        for place, w in enumerate(order):
            last = place == len(found) - 1
            fillers = -total % a_step if last else 0
            placed.append(dataclasses.replace(found[w], epoch=epoch, first_index=index, fillers=fillers))
            index += counts.packed[w] + fillers
    return placed, steps


def shard(rows: Sequence[Any], workers: int) -> list[list[Any]]:
    """Share rows out: row i to worker ``i % workers``, all shares equally long, None where there is no row left.

    Examples
    --------
    >>> shard([10, 11, 12], 2)
    [[10, 12], [11, None]]
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}, expected at least 1")
    padded = [*rows, *[None] * (-len(rows) % workers)]
    return [padded[rank::workers] for rank in range(workers)]


def to_examples(row: Mapping[str, Any]) -> list[dict[str, list[int]]]:
    """Take a packed row apart into its examples, as ``onegpu.packing.collate_packed`` wants them."""
    examples, at = [], 0
    for n in row["seq_lens"]:
        part = slice(at, at + n)
        examples.append({"input_ids": list(row["input_ids"][part]), "labels": list(row["labels"][part])})
        at += n
    return examples
