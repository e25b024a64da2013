"""The rows of a fine-tune as a stream over many processes: read, validate, tokenize, mask, pack.

The one idea is the **window**: a fixed run of source rows (256 by default), cut before anything runs in parallel. A
window is read, tokenized and packed by one call, whatever process makes it, so the packed rows are the same for any
number of processes and blocks, and the same as without Ray. Ray sees a window as one row until ``pack`` turns it into
packed rows, each of which knows its place in the run (``index``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from onegpu.packed_training.packing import IGNORE_INDEX, pack_lengths
from onegpu.ray_scale_out.layout import StreamCounts
from onegpu.ray_scale_out.window import Window, rows_or_errors

if TYPE_CHECKING:
    import ray.data

FILLER_TOKENS = 2

WINDOWS = pa.schema(
    {
        "window": pa.int64(), "epoch": pa.int64(), "first_row": pa.int64(), "rows": pa.int64(), "path": pa.string(),
        "offset": pa.int64(), "n_bytes": pa.int64(), "first_line": pa.int64(), "text": pa.string(), "first_index": pa.int64(), "fillers": pa.int64(),
    }
)  # fmt: skip
TOKENIZED = pa.schema(
    {
        "window": pa.int64(), "epoch": pa.int64(), "first_index": pa.int64(), "fillers": pa.int64(), "read": pa.int64(),
        "rows": pa.list_(pa.int64()), "input_ids": pa.list_(pa.list_(pa.int32())), "labels": pa.list_(pa.list_(pa.int32())),
        "questions": pa.list_(pa.int64()), "dropped": pa.string(),
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
        "supervised": pa.int64(), "dropped": pa.string(), "bad_rows": pa.string(), "error": pa.string(), "rows": pa.list_(pa.int64()),
        "questions": pa.list_(pa.int64()),
        "longest": pa.int64(),
        "fingerprint": pa.string(), "systems": pa.string(),
    }
)  # fmt: skip


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
    bad_rows : {"stop", "skip"}
        What to do with a row that can't be trained on. Skipped rows are counted and named.
    turns, truncation, repairs, stop_tokens, columns
        As for ``onegpu.sft_datasets.tokenize_rows`` and ``read_rows``.
    seed : int
        Of the order of windows and of packed rows in a window. None keeps the source's order.
    left_out : frozenset of int
        Numbers of rows that aren't trained on, since they are for evaluation or over a share (``count_and_split``).
    """

    tokenizer: Any
    max_length: int
    packing: bool = True
    bad_rows: str = "stop"
    seed: int | None = 0
    turns: str = "all"
    truncation: str = "drop"
    repairs: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()
    columns: Mapping[str, str] | None = None
    left_out: frozenset[int] = frozenset()

    def __post_init__(self):
        if self.bad_rows not in ("stop", "skip"):
            raise ValueError(f"bad_rows is {self.bad_rows!r}, expected 'stop' or 'skip'")


def tokenize_window(window: Window, recipe: Recipe) -> dict[str, Any]:
    """Read, validate, tokenize and mask the rows of a window (a row of ``TOKENIZED``, and what ``count_window`` needs).

    Raises
    ------
    ValueError
        For a bad row, with its number, unless they are skipped.
    """
    from onegpu.sft_datasets.readers import rename
    from onegpu.sft_datasets.tokenization import RowTokenizer

    work = RowTokenizer(
        recipe.tokenizer, recipe.max_length, turns=recipe.turns, truncation=recipe.truncation, repairs=recipe.repairs,
        stop_tokens=recipe.stop_tokens,
    )  # fmt: skip
    kept, dropped, errors, good, bad = [], {}, {}, [], []
    for number, row in rows_or_errors(window):
        if number in recipe.left_out:
            continue
        if not isinstance(row, ValueError):
            try:
                good.append((number, rename(row, recipe.columns or {}, number, "the rows")))
                continue
            except ValueError as error:
                row = error
        errors[number] = row
    done = {number: pair for (number, _), pair in zip(good, work.batch(good), strict=True)}
    read = len(done) + len(errors)
    for number in sorted({*done, *errors}):
        one, error = done.get(number, (None, errors.get(number)))
        if error is not None:
            if recipe.bad_rows == "stop":
                raise error
            dropped.setdefault("bad_row", []).append(number)
            bad.append((number, str(error)))
        elif one.dropped:
            dropped.setdefault(one.dropped, []).append(number)
        else:
            kept.append((number, one))
    return {
        "longest": max((one.length for one, _ in done.values() if one is not None), default=0),
        "systems": sorted(work.systems, key=str),
        "window": window.window,
        "epoch": window.epoch,
        "first_index": window.first_index,
        "fillers": window.fillers,
        "read": read,
        "rows": [number for number, _ in kept],
        "input_ids": [list(done.input_ids) for _, done in kept],
        "labels": [list(done.labels) for _, done in kept],
        "questions": [done.question for _, done in kept],
        "dropped": json.dumps(dropped),
        "bad_rows": json.dumps(bad),
    }


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
            "bad_rows": "[]",
            "error": str(error),
            "rows": [],
            "questions": [],
            "fingerprint": "",
            "systems": "[]",
        }
    lengths = [len(ids) for ids in tokenized["input_ids"]]
    digest = hashlib.sha256()
    for example in zip(tokenized["input_ids"], tokenized["labels"], strict=True):
        for part in example:
            digest.update(np.array([len(part), *part], np.int64).tobytes())
    return {
        "longest": tokenized["longest"],
        "fingerprint": digest.hexdigest(),
        "systems": json.dumps(tokenized["systems"]),
        "window": tokenized["window"],
        "read": tokenized["read"],
        "kept": len(lengths),
        "packed": pack_lengths(lengths, recipe.max_length).n_rows if recipe.packing else len(lengths),
        "tokens": sum(lengths),
        # A label at position 0 is never used: nothing comes before it.
        "supervised": sum(label != IGNORE_INDEX for labels in tokenized["labels"] for label in labels[1:]),
        "dropped": tokenized["dropped"],
        "bad_rows": tokenized["bad_rows"],
        "error": "",
        "rows": tokenized["rows"],
        "questions": tokenized["questions"],
    }


# The same stages on Arrow tables, as Ray Data calls them: a batch is one window.


def sealed(recipe: Recipe) -> bytes:
    """Pickle a recipe, to be opened where a batch is: several of Ray's processes carry stages and run none.

    Its tokenizer would make each of them import transformers.
    """
    return pickle.dumps(recipe)


@functools.lru_cache(maxsize=4)
def opened(recipe: bytes) -> Recipe:
    """Return a sealed recipe, once a process."""
    return pickle.loads(recipe)


def tokenize_batch(batch: pa.Table, recipe: bytes) -> pa.Table:
    """Stage 1: windows to tokenized windows."""
    done = [tokenize_window(Window(**row), opened(recipe)) for row in batch.to_pylist()]
    return pa.Table.from_pylist(done, TOKENIZED)


def pack_batch(batch: pa.Table, recipe: bytes) -> pa.Table:
    """Stage 2: tokenized windows to packed rows."""
    done = [row for window in batch.to_pylist() for row in pack_window(window, opened(recipe))]
    return pa.Table.from_pylist(done, PACKED)


def count_batch(batch: pa.Table, recipe: bytes) -> pa.Table:
    """Instead of both: windows to their figures."""
    done = [count_window(Window(**row), opened(recipe)) for row in batch.to_pylist()]
    return pa.Table.from_pylist(done, COUNTED)


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
        .map_batches(functools.partial(tokenize_batch, recipe=sealed(recipe)), **stage)
        .map_batches(functools.partial(pack_batch, recipe=sealed(recipe)), **stage)
        .repartition(target_num_rows_per_block=1)
    )
    packed.context.execution_options.preserve_order = True
    return packed


def packed_rows(found: Sequence[Window], recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield the same packed rows in this process, without Ray."""
    for window in found:
        yield from pack_window(tokenize_window(window, recipe), recipe)


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
    return _counts(_figures(found, recipe, parallel, num_cpus))


def count_and_split(
    found: Sequence[Window],
    recipe: Recipe,
    choose: Callable[[Sequence[tuple[int, int]]], frozenset[int]],
    *,
    parallel: bool = True,
    num_cpus: float = 1.0,
) -> tuple[StreamCounts, Recipe]:
    """Count as ``count_rows``, leave rows out, and count what is left.

    Parameters
    ----------
    found, recipe, parallel, num_cpus
        As in ``count_rows``.
    choose
        Chooses the rows to leave out from (number of the question, row number) of all that can be trained on.

    Returns
    -------
    tuple
        The counts of what is left, and the recipe that leaves the others out.
    """
    figures = _figures(found, recipe, parallel, num_cpus)
    pairs = [pair for row in figures for pair in zip(row["questions"], row["rows"], strict=True)]
    chosen = choose(pairs)
    recipe = dataclasses.replace(recipe, left_out=chosen)
    touched = [w for w in found if any(n in chosen for n in range(w.first_row, w.first_row + w.rows))]
    if touched:
        again = {row["window"]: row for row in _figures(touched, recipe, parallel, num_cpus)}
        figures = [again.get(row["window"], row) for row in figures]
    return _counts(figures), recipe


def _figures(
    found: Sequence[Window], recipe: Recipe, parallel: bool, num_cpus: float
) -> list[dict[str, Any]]:
    """The figures of all windows, in their order."""
    if parallel:
        figures = (
            window_dataset(found)
            .map_batches(
                functools.partial(count_batch, recipe=sealed(recipe)),
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
    return figures


def _counts(figures: Sequence[Mapping[str, Any]]) -> StreamCounts:
    from onegpu.qlora_finetune.rows import only

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
        max((int(row["longest"]) for row in figures), default=0),
        hashlib.sha256("".join(row["fingerprint"] for row in figures).encode()).hexdigest()[:32],
        only(system for row in figures for system in json.loads(row["systems"])),
        tuple((number, said) for row in figures for number, said in json.loads(row["bad_rows"])),
    )  # fmt: skip
    if not counts.kept:
        raise ValueError(f"nothing left to train on. {counts}")
    return counts


def to_examples(row: Mapping[str, Any]) -> list[dict[str, list[int]]]:
    """Take a packed row apart into its examples, as ``onegpu.packed_training.collate_rows`` wants them."""
    examples, at = [], 0
    for n in row["seq_lens"]:
        part = slice(at, at + n)
        examples.append({"input_ids": list(row["input_ids"][part]), "labels": list(row["labels"][part])})
        at += n
    return examples
