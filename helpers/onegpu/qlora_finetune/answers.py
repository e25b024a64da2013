"""What the model answers before and after training, and what that is worth."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from onegpu.qlora_finetune.config import FinetuneConfig
from onegpu.qlora_finetune.evaluation import Scores, generate
from onegpu.qlora_finetune.rows import TrainingData
from onegpu.qlora_finetune.tasks import PAIRS, Task
from onegpu.sft_datasets import Example
from onegpu.sft_datasets.normalisation import mend

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
        return dataclasses.replace(Scores(loss), **trainer.measured), []
    with trainer.accelerator.autocast():
        answers = generate(
            trainer.model, tokenizer, [example_of(row, task, config.repairs) for row in rows], max_new_tokens=config.max_new_tokens,
            batch_size=config.generation_batch_size, is_hopeless=task.is_hopeless,
        )  # fmt: skip
    return dataclasses.replace(task.score(answers, rows, loss), **trainer.measured), answers


def example_of(row: dict[str, Any], task: Task, repairs: Sequence[str] = ()) -> Example:
    """Return a row as the example that the model is asked, with repairs (``sft_datasets.normalise``)."""
    return mend(task.to_row(row), None, repairs, Counter())


def sample_answers(
    trainer: Any, tokenizer: Any, prepared: TrainingData, config: FinetuneConfig
) -> list[dict[str, str]]:
    """Answer the first held-out rows as the model stands now: question, answer and what was wanted."""
    rows = prepared.raw_held_out[:SAMPLES]
    if not rows:
        return []
    with trainer.accelerator.autocast():
        answers = generate(
            trainer.model, tokenizer, [example_of(row, prepared.task, config.repairs) for row in rows],
            max_new_tokens=config.max_new_tokens, is_hopeless=prepared.task.is_hopeless,
        )  # fmt: skip
    found = []
    for row, answer in zip(rows, answers, strict=True):
        *_, question, wanted = example_of(row, prepared.task, config.repairs).messages
        found.append({"question": question["content"], "answer": answer, "wanted": wanted["content"]})
    return found


def samples(
    prepared: TrainingData, config: FinetuneConfig, before: Sequence[str], after: Sequence[str]
) -> tuple[dict[str, str], ...]:
    """Put the first answers before and after training beside question and wanted answer."""
    found = []
    for row, b, a in list(zip(prepared.raw_held_out, before, after, strict=False))[:SAMPLES]:
        *_, question, wanted = example_of(row, prepared.task, config.repairs).messages
        one = {"question": question["content"], "before": b, "after": a, "wanted": wanted["content"]}
        found.append(one | ({"rejected": row["rejected"]} if prepared.task is PAIRS else {}))
    return tuple(found)
