"""How training scripts have counted tokens, to compare with: each returns (tokens, supervised tokens).

The last two are axolotl's ``calculate_total_num_steps`` before and after axolotl#3711, as its reports describe them,
written anew. With the first, 552 GB of data were seen to take 1.3 TB of memory (axolotl#2975); the second is fast, and reads
the table below the data set, so that rows which ``filter`` or ``select`` took out are counted all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

IGNORE_INDEX = -100


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep the bars of ``datasets`` off for what takes a moment."""
    import datasets

    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()


def count_with_python(dataset) -> tuple[int, int]:
    """Count row by row. Right, and slow: each token becomes a Python object.

    Examples
    --------
    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"input_ids": [[5, 6], [7]], "labels": [[-100, 6], [7]]})
    >>> count_with_python(rows), count_with_python(rows.select([1, 1, 1]))
    ((3, 2), (3, 3))
    """
    tokens = supervised = 0
    for row in dataset:
        tokens += len(row["input_ids"])
        supervised += sum(label != IGNORE_INDEX for label in row["labels"])
    return tokens, supervised


def count_with_map(dataset) -> tuple[int, int]:
    """Count with ``datasets.map``. Right, and slow: it also writes a new file."""

    def counts(row):
        return {
            "n_tokens": len(row["input_ids"]),
            "n_supervised": sum(label != IGNORE_INDEX for label in row["labels"]),
        }

    with no_progress_bars():
        counted = dataset.map(counts, remove_columns=dataset.column_names)
    return sum(counted["n_tokens"]), sum(counted["n_supervised"])


def count_with_pandas(dataset) -> tuple[int, int]:
    """Count with ``to_pandas`` (axolotl before #3711). Each row becomes a numpy object; the labels' indices are ignored."""
    tokens = np.sum(dataset.select_columns("input_ids").to_pandas()["input_ids"].apply(len).values)
    labels = dataset.data.column("labels").to_pandas()
    return int(tokens), int(labels.apply(lambda row: np.sum(np.array(row) != IGNORE_INDEX)).sum())


def count_with_table(dataset) -> tuple[int, int]:
    """Count in the Arrow table (axolotl's #3711). Fast; the indices of both columns are ignored."""
    table = dataset.data
    if "length" in table.column_names:
        tokens = pc.sum(table.column("length"), min_count=0).as_py()
    else:
        tokens = pc.sum(pc.list_value_length(table.column("input_ids")), min_count=0).as_py()
    supervised = 0
    for batch in table.to_batches(max_chunksize=1024):
        labels = batch.column("labels")
        if pa.types.is_list(labels.type) or pa.types.is_large_list(labels.type):
            labels = labels.flatten()
        supervised += int((labels.to_numpy(zero_copy_only=False) != IGNORE_INDEX).sum())
    return int(tokens), supervised


def steps_by_estimate(
    tokens: int, max_length: int, batch_size: int, epochs: int = 1, efficiency: float = 0.9
) -> int:
    """Guess the steps of packed training from a total (axolotl's formula, axolotl#3152). Can be negative.

    Examples
    --------
    >>> steps_by_estimate(1_000, max_length=2048, batch_size=8), steps_by_estimate(33_100, 2048, 8)
    (-1, 1)
    """
    return int(math.floor(0.99 * tokens / efficiency / max_length // batch_size) - 1) * epochs
