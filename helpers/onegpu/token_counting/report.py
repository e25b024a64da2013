"""``onegpu tokens``: the counts of a file, folder or data set by name, its histogram and its training steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from onegpu import models
from onegpu.token_counting.columns import MissingColumn
from onegpu.token_counting.counts import TokenCounts
from onegpu.token_counting.files import open_path
from onegpu.token_counting.sources import count_tokens
from onegpu.token_counting.steps import TrainingSteps, training_steps

_ARROW = {".parquet", ".arrow", ".feather", ".ipc"}
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int64()))])


@dataclass(frozen=True, repr=False)
class TokenReport:
    """Counts and steps of a data set.

    Attributes
    ----------
    source : str
        What was counted.
    counts : TokenCounts
        Of all of it; with ``splits`` if it has some.
    steps : dict of str to TrainingSteps
        By split; under "" where there are no splits.
    notes : tuple of str
        What else the reader must know.
    """

    source: str
    counts: TokenCounts
    steps: Mapping[str, TrainingSteps]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON types: ``rows``, ``tokens``, ``supervised_tokens`` ... and ``steps``."""
        out = {"source": self.source, **self.counts.to_json(), "notes": list(self.notes)}
        if not self.counts.splits:
            return out | {"steps": self.steps[""].to_json()}
        for name, steps in self.steps.items():
            out["splits"][name]["steps"] = steps.to_json()
        return out

    def __str__(self) -> str:
        parts = self.counts.splits or {"": self.counts}
        out = [self.source, *self.notes]
        for name, counts in parts.items():
            out += ["", *([f"split {name}"] if name else []), str(counts)]
            out += ["", "rows by tokens", counts.histogram_text(), "", str(self.steps[name])]
        return "\n".join(out)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def report(
    source: str | Path,
    *,
    column: str = "input_ids",
    labels: str = "labels",
    ignore_index: int = -100,
    length_column: str | None = None,
    model: str = "smollm2-135m",
    tokenizer: Any = None,
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    columns: Mapping[str, str] | None = None,
    template: str = "model",
    turns: str = "all",
    truncation: str = "drop",
    bad_rows: str = "stop",
    repairs: Sequence[str] = (),
    **settings: Any,
) -> TokenReport:
    """Count the tokens of a path or a data set by name, and predict the training steps.

    What holds token ids is counted as it is. What holds text (a shipped data set, JSON, JSONL, CSV, or any rows that
    ``onegpu.sft_datasets`` reads) is rendered and tokenized first, a few hundred rows at a time.

    Parameters
    ----------
    source
        A path as for ``count_tokens``, a file of text rows, the name of a shipped data set, or a hub name (owner/name).
    column, labels, ignore_index, length_column
        As for ``count_tokens``. Where there are no labels the tokens alone are counted, and a note says so.
    model
        Whose tokenizer and chat template to use for text.
    tokenizer
        A tokenizer to use for text instead.
    prepare
        Applied to each row of text before it is read, for rows of a form of their own.
    columns
        New names for columns of text rows, as for ``onegpu.sft_datasets.read_rows``.
    template, turns, truncation, bad_rows, repairs
        How rows of text become tokens, as for ``onegpu.sft_datasets.tokenize_rows``. Rows are cut at ``max_length`` where
        truncation is "turns" or "right"; else those over it are counted whole, and named in the steps.
    settings
        As for ``training_steps``.

    Raises
    ------
    ValueError, FileNotFoundError
        As ``count_tokens``, ``training_steps`` and ``onegpu.sft_datasets``.

    Examples
    --------
    >>> import tempfile, pyarrow.parquet
    >>> path = tempfile.mkdtemp() + "/rows.parquet"
    >>> pyarrow.parquet.write_table(pa.table({"input_ids": [[1, 2], [3]], "labels": [[-100, 2], [3]]}), path)
    >>> found = report(path, per_device_train_batch_size=2)
    >>> found.counts.supervised_tokens, found.steps[""].padded_steps
    (2, 1)
    """
    from onegpu import data
    from onegpu.sft_datasets.readers import is_hub_name
    from onegpu.sft_datasets.tokenization import RowTokenizer

    if bad_rows not in ("stop", "skip"):
        raise ValueError(f"bad_rows={bad_rows!r}: expected 'stop' or 'skip'")
    notes: list[str] = []
    opened = _open(str(source))
    if not isinstance(opened, _Rows):
        try:
            counts = _count(opened, column, labels, ignore_index, length_column, notes)
        except MissingColumn as error:
            if error.argument != "column" or column != "input_ids":
                raise
            if isinstance(opened, Mapping) and is_hub_name(str(source)):
                opened = _Rows(opened)
            else:
                opened = _text_rows(str(source), data.find_files(source, None).splits)
    if isinstance(opened, _Rows):
        work = RowTokenizer(
            tokenizer or models.load_tokenizer(model), settings.get("max_length") if truncation != "drop" else None, template,
            turns, truncation, repairs=repairs,
        )  # fmt: skip
        counts = _count_text(opened, work, prepare, columns or {}, bad_rows, notes)
    steps = {name: training_steps(part, **settings) for name, part in (counts.splits or {"": counts}).items()}
    return TokenReport(str(source), counts, steps, tuple(notes))


@dataclass(frozen=True)
class _Rows:
    """Rows of text, by split ("" where there are none)."""

    splits: Mapping[str, Iterable[Mapping[str, Any]]]


def _open(source: str) -> Any:
    """Open what may hold token ids as such, and everything else as rows of text."""
    from onegpu import data
    from onegpu.sft_datasets.readers import is_hub_name

    if source in data.names():
        return _text_rows(source, data.splits(source))
    if is_hub_name(source):
        return _hub(source)
    files, splits = data.find_files(source, None)
    if all(path.suffix.lower() in _ARROW or not path.suffix for path in files):
        return open_path(source)
    return _text_rows(source, splits)


def _text_rows(source: str, splits: Sequence[str]) -> _Rows:
    from onegpu.sft_datasets import read_rows

    return _Rows({name: read_rows(source, split=name or None) for name in splits or ("",)})


def _hub(name: str) -> Any:
    from datasets import load_dataset

    repository, _, configuration = name.partition(":")
    try:
        return load_dataset(*(repository, configuration) if configuration else (repository,), streaming=True)
    except Exception as error:  # the hub client raises a dozen kinds
        raise ValueError(
            f"{name}: no such file or folder, and the hub gave no data set of that name ({type(error).__name__}). "
            "Check the name and the connection"
        ) from error


def _count(
    opened: Any, column: str, labels: str, ignore_index: int, length_column: str | None, notes: list[str]
):
    options = {"ignore_index": ignore_index, "length_column": length_column}
    try:
        return count_tokens(opened, column, labels, **options)
    except MissingColumn as error:
        if error.argument != "labels":
            raise
        if labels != "labels":
            said = str(error).replace("give labels=None", "leave labels out")
            raise MissingColumn(said, error.argument) from None
        notes.append("no column 'labels': tokens alone are counted")
        return count_tokens(opened, column, None, **options)


def _count_text(
    rows: _Rows,
    work: Any,
    prepare: Callable | None,
    columns: Mapping[str, str],
    bad_rows: str,
    notes: list[str],
) -> TokenCounts:
    tokenizer = work.tokenizer
    notes.append(f"rendered and tokenized with {type(tokenizer).__name__} of {len(tokenizer):,} tokens")
    parts = {}
    for name, split in rows.splits.items():
        left_out: Counter[str] = Counter()
        unused: Counter[str] = Counter()
        batches = _tokenized(split, work, prepare, columns, bad_rows, left_out, unused)
        parts[name] = count_tokens(pa.RecordBatchReader.from_batches(_SCHEMA, batches))
        where = name or "rows"
        notes += [
            f"{where}: {n:,} counted as empty ({reason})"
            for reason, n in left_out.items()
            if reason != "bad_row"
        ]
        if left_out["bad_row"]:
            notes.append(f"{where}: {left_out['bad_row']:,} left out, since they can't be trained on")
        notes += [f"{where}: the key {key!r} of {n:,} isn't used" for key, n in unused.items()]
    return parts[""] if list(parts) == [""] else TokenCounts.total(parts)


def _tokenized(
    split, work, prepare, columns, bad_rows, left_out: Counter, unused: Counter
) -> Iterator[pa.RecordBatch]:
    from onegpu.sft_datasets.readers import rename

    numbered = enumerate(split)
    while some := list(itertools.islice(numbered, 256)):
        renamed = [(i, rename(row, columns, i, "the rows") if columns else row) for i, row in some]
        prepared = [(i, prepare(row) if prepare else row) for i, row in renamed]
        done = []
        for one, error in work.batch(prepared):
            if error is None:
                done.append(one)
                left_out.update([one.dropped] if one.dropped else [])
            elif bad_rows == "stop":
                raise error
            else:
                left_out["bad_row"] += 1
        unused.update(work.unused)
        work.unused.clear()
        columns_of = [[list(one.input_ids) for one in done], [list(one.labels) for one in done]]
        yield pa.record_batch(
            [pa.array(c, kind) for c, kind in zip(columns_of, _SCHEMA.types, strict=True)], schema=_SCHEMA
        )
