"""Widgets of topic 06: the Arrow buffer viewer, and padding by batch size and length limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from onegpu import plots
from onegpu.token_counting import TokenCounts, count_tokens, training_steps
from onegpu.token_counting.buffers import describe_buffers, shared_bytes
from onegpu.token_counting.recipes import no_progress_bars
from onegpu.widgets.base import choice, explore, slider


def five_rows() -> Any:
    """Return a Dataset of five rows with 1 to 5 tokens, 15 in all, in one chunk in memory."""
    import datasets

    rows = [[10 * n + i for i in range(n)] for n in range(1, 6)]
    return datasets.Dataset(
        pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), fingerprint="five rows"
    )


def _map(dataset: Any) -> Any:
    return dataset.map(
        lambda row: {"input_ids": row["input_ids"][:-1]}, keep_in_memory=True, load_from_cache_file=False
    )


def _filter(keep: Callable[[int], bool]) -> Callable[[Any], Any]:
    return lambda dataset: dataset.filter(
        lambda row: keep(len(row["input_ids"])), keep_in_memory=True, load_from_cache_file=False
    )


def _concatenate(dataset: Any) -> Any:
    import datasets

    return datasets.concatenate_datasets([dataset, dataset.select([4, 4])])


AS_LOADED = "none, as loaded"

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    AS_LOADED: lambda dataset: dataset,
    "select(range(1, 4))": lambda dataset: dataset.select(range(1, 4)),
    "select([0, 2, 4])": lambda dataset: dataset.select([0, 2, 4]),
    "filter: at most 3 tokens": _filter(lambda n: n <= 3),
    "filter: nothing kept": _filter(lambda n: False),
    "shuffle(seed=0)": lambda dataset: dataset.shuffle(seed=0, keep_in_memory=True),
    "map: cut the last token": _map,
    "select, then flatten_indices": lambda dataset: dataset.select([0, 2, 4]).flatten_indices(
        keep_in_memory=True
    ),
    "concatenate with select([4, 4])": _concatenate,
}
"""What can be done to the five rows, by the name in the menu."""


def view(operation: str) -> tuple[Any, str]:
    """Draw the five rows after an operation and say what became of their memory.

    Examples
    --------
    >>> view("select([0, 2, 4])")[1]
    'After select([0, 2, 4]) the table still holds 15 tokens, the data set has 9. Nothing was copied; an indices mapping says which rows count.'
    """
    before = _loaded()
    with no_progress_bars():
        after = OPERATIONS[operation](before)
    stored = count_tokens(after.data.table, labels=None).tokens
    tokens = count_tokens(after, labels=None).tokens
    table = [b for b in describe_buffers(after) if b.column != "(indices)"]
    shared = shared_bytes(describe_buffers(before), table)
    copied = sum(b.used_bytes for b in table) - shared
    sentence = (
        f"{'As loaded' if operation == AS_LOADED else f'After {operation}'} the table {'still ' if after._indices is not None else ''}holds {stored} tokens, the data set has {tokens}. "
        + (
            "Nothing was copied"
            if not copied
            else "All of it was copied"
            if not shared
            else f"{copied} bytes were copied"
        )
        + ("; an indices mapping says which rows count." if after._indices is not None else ".")
    )
    return plots.token_counting.memory_view(
        after, "Memory as loaded" if operation == AS_LOADED else f"Memory after {operation}"
    ), sentence


@cache
def _loaded() -> Any:
    return five_rows()


def buffer_viewer() -> None:
    """Show a table's buffers after slicing, selecting, filtering, mapping: choose the operation."""
    explore(view, operation=choice("operation", list(OPERATIONS), "select([0, 2, 4])"))


@cache
def chats() -> TokenCounts:
    """Return the lengths of 20,000 made-up chats: many short, few long (a log-normal law, median 150)."""
    lengths = np.minimum(np.random.default_rng(0).lognormal(5, 0.8, 20_000).astype(int) + 1, 4096)
    distinct, rows = np.unique(lengths, return_counts=True)
    by_length = dict(zip(distinct.tolist(), rows.tolist(), strict=True))
    return TokenCounts(20_000, int(lengths.sum()), None, None, by_length)


def padding_explorer() -> None:
    """Show the padding of 20,000 chats by strategy: choose batch size and length limit."""

    def draw(batch_size: int, max_length: int) -> tuple[Any, str]:
        steps = training_steps(chats(), per_device_train_batch_size=batch_size, max_length=max_length)
        waste = ", ".join(f"{name} {share:.0%}" for name, share in steps.waste.items())
        return plots.token_counting.padding(steps), (
            f"Padding: {waste}. {steps.padded_steps:,} steps padded, {steps.packed_steps:,} packed; "
            f"{steps.left_out['too long']:,} rows are too long."
        )

    explore(
        draw,
        batch_size=slider("batch size", 8, 1, 64),
        max_length=slider("max length", 1024, 256, 4096, 256),
    )
