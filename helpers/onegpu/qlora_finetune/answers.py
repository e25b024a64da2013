"""What the model answers before and after training, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onegpu.qlora_finetune.config import FinetuneConfig
from onegpu.qlora_finetune.evaluation import Scores, generate
from onegpu.qlora_finetune.rows import TrainingData
from onegpu.qlora_finetune.tasks import Task
from onegpu.sft_datasets import to_example

SAMPLES = 3
"""Answers that the report shows."""


def evaluate(
    trainer: Any, tokenizer: Any, prepared: TrainingData, config: FinetuneConfig
) -> tuple[Scores, list[str]]:
    """Measure the held-out loss and answer held-out rows; scores and answers."""
    if prepared.held_out_rows is None:
        return Scores(None), []
    loss = trainer.evaluate()["eval_loss"]
    task = prepared.task
    rows = prepared.raw_held_out[: task.answered_rows]
    if not rows:
        return Scores(loss), []
    with trainer.accelerator.autocast():
        answers = generate(
            trainer.model, tokenizer, [prompt_of(row, task) for row in rows], max_new_tokens=config.max_new_tokens,
            batch_size=config.generation_batch_size, is_hopeless=task.is_hopeless,
        )  # fmt: skip
    return task.score(answers, rows, loss), answers


def prompt_of(row: dict[str, Any], task: Task) -> list[dict[str, str]]:
    """Return the chat of a row up to its last answer."""
    return list(to_example(task.to_row(row)).messages)[:-1]


def samples(
    prepared: TrainingData, before: Sequence[str], after: Sequence[str]
) -> tuple[dict[str, str], ...]:
    """Put the first answers before and after training beside question and wanted answer."""
    found = []
    for row, b, a in list(zip(prepared.raw_held_out, before, after, strict=False))[:SAMPLES]:
        *_, question, wanted = to_example(prepared.task.to_row(row)).messages
        found.append({"question": question["content"], "before": b, "after": a, "wanted": wanted["content"]})
    return tuple(found)
