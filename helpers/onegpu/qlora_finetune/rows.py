"""The rows of a run: read, tokenized, masked and packed."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from onegpu import data
from onegpu.packed_training import pack_lengths
from onegpu.qlora_finetune.config import FinetuneConfig, default_epochs
from onegpu.qlora_finetune.tasks import Task, task_of
from onegpu.qlora_finetune.trainer import PackedRows
from onegpu.sft_datasets import TokenizedSet, read_rows, tokenize_rows
from onegpu.token_counting import TokenCounts, TrainingSteps, training_steps


@dataclass(frozen=True)
class TrainingData:
    """Training and held-out rows of a run, tokenized and packed.

    Attributes
    ----------
    train, held_out : TokenizedSet or None
        Tokenized examples; None where there are no held-out rows.
    train_rows, held_out_rows : PackedRows
        The same, packed.
    raw_held_out : list of dict
        Held-out rows as they were read.
    task : Task
        What the held-out rows are for, and so how answers to them are scored.
    totals : TrainingSteps
        Steps, rows and padding of the run, from the lengths alone (``onegpu.token_counting``).
    steps : int
        Optimizer steps of the whole run, known before the first.
    """

    train: TokenizedSet
    train_rows: PackedRows
    held_out: TokenizedSet | None
    held_out_rows: PackedRows | None
    raw_held_out: list[dict[str, Any]]
    task: Task
    totals: TrainingSteps
    steps: int

    def fingerprint(self) -> str:
        """Tell other rows from these: ids and labels of all examples, in their order."""
        digest = hashlib.sha256()
        for tokenized in (self.train, self.held_out):
            for example in tokenized or ():
                for ids in (example.input_ids, example.labels):
                    digest.update(np.asarray(ids, np.int32).tobytes() + b"|")
            digest.update(b"held out")
        return digest.hexdigest()[:32]

    def __str__(self) -> str:
        room = f"{len(self.train_rows)} rows, {self.train.tokens / len(self.train_rows):,.0f} tokens each on average"
        return f"{self.train}\npacked: {room}; {self.steps} optimizer steps"


def prepare_data(config: FinetuneConfig, tokenizer: Any) -> TrainingData:
    """Read, tokenize, mask and pack the rows of a config.

    Raises
    ------
    ValueError
        For rows that can't be trained on, with row number and what to do.
    """
    examples = read_examples(config)
    train = tokenize_rows(examples.train, tokenizer, config.max_length)
    held, held_rows = prepare_held_out(examples, config, tokenizer)
    epochs = default_epochs(len(train)) if config.num_train_epochs is None else config.num_train_epochs
    totals = training_steps(
        token_counts(train), max_length=config.max_length, num_train_epochs=max(epochs, 1e-9),
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
    )  # fmt: skip
    steps = totals.packed_steps if config.packing else totals.padded_steps
    if config.max_steps > 0:
        steps = config.max_steps
    return TrainingData(
        train,
        _pack(train, config),
        held,
        held_rows,
        list(examples.raw_held_out),
        examples.task,
        totals,
        steps,
    )


@dataclass(frozen=True)
class Examples:
    """Rows of a config as they are tokenized, and the held-out ones also as they were read.

    Attributes
    ----------
    train, held_out, raw_held_out : list of dict
        Rows.
    task : Task
        Of the held-out rows.
    """

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    raw_held_out: list[dict[str, Any]]
    task: Task


def read_examples(config: FinetuneConfig) -> Examples:
    """Read the training and held-out rows of a config."""
    source = config.eval_data
    if source is None and config.data in data.names() and "heldout" in data.splits(config.data):
        source = config.data
    task = task_of(source or config.data)
    raw = (
        list(
            read_rows(source, split="heldout" if source in data.names() else "train", limit=config.eval_rows)
        )
        if source
        else []
    )
    train = map(task_of(config.data).to_row, read_rows(config.data))
    return Examples(list(train), [task.to_row(row) for row in raw], raw, task)


def prepare_held_out(
    examples: Examples, config: FinetuneConfig, tokenizer: Any
) -> tuple[TokenizedSet | None, PackedRows | None]:
    """Tokenize and pack the held-out rows; (None, None) where there are none."""
    if not examples.held_out:
        return None, None
    held = tokenize_rows(examples.held_out, tokenizer, config.max_length)
    return held, _pack(held, config)


def token_counts(tokenized: TokenizedSet) -> TokenCounts:
    """Count a tokenized set, as ``onegpu tokens`` counts a file."""
    lengths = Counter(len(example) for example in tokenized)
    masked = tokenized.tokens - tokenized.supervised_tokens
    return TokenCounts(
        len(tokenized), tokenized.tokens, tokenized.supervised_tokens, masked, dict(sorted(lengths.items()))
    )


def _pack(tokenized: TokenizedSet, config: FinetuneConfig) -> PackedRows:
    examples = [{"input_ids": list(e.input_ids), "labels": list(e.labels)} for e in tokenized]
    if config.packing:
        rows = pack_lengths([len(e) for e in tokenized], config.max_length).rows
    else:
        rows = [[i] for i in range(len(examples))]
    return PackedRows(examples, rows)
