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
    """Measure the held-out loss and answer held-out rows, those of each task as it wants: scores and answers.

    The answers are to the rows of ``asked``, in its order.
    """
    if prepared.held_out_rows is None:
        return Scores(None), []
    loss = trainer.evaluate()["eval_loss"]
    rows = asked(prepared)
    answers = _answer(trainer, tokenizer, rows, config)
    found = Scores(loss, rows=len(rows))
    for task in dict.fromkeys(task for _, task in rows):
        mine = [(answer, row) for answer, (row, of) in zip(answers, rows, strict=True) if of == task]
        scores = task.score([answer for answer, _ in mine], [row for _, row in mine], loss)
        if task.answered_rows is None:  # its answers are scored: shares and their number are of these
            found = scores
    return dataclasses.replace(found, **trainer.measured), answers


def asked(prepared: TrainingData) -> list[tuple[dict[str, Any], Task]]:
    """The held-out rows that are answered: of each task the first, as many as it wants."""
    found, answered = [], Counter[Task]()
    for row, task in zip(prepared.raw_held_out, prepared.tasks, strict=True):
        if task.answered_rows is None or answered[task] < task.answered_rows:
            found.append((row, task))
            answered[task] += 1
    return found


def _answer(
    trainer: Any, tokenizer: Any, rows: Sequence[tuple[dict[str, Any], Task]], config: FinetuneConfig
) -> list[str]:
    """Answer rows, those of one task together, since they are hopeless in the same way."""
    answers = [""] * len(rows)
    for task in dict.fromkeys(task for _, task in rows):
        at = [i for i, (_, of) in enumerate(rows) if of == task]
        with trainer.accelerator.autocast():
            said = generate(
                trainer.model, tokenizer, [example_of(rows[i][0], task, config.repairs) for i in at],
                max_new_tokens=config.max_new_tokens, batch_size=config.generation_batch_size, is_hopeless=task.is_hopeless,
            )  # fmt: skip
        for i, answer in zip(at, said, strict=True):
            answers[i] = answer
    return answers


def example_of(row: dict[str, Any], task: Task, repairs: Sequence[str] = ()) -> Example:
    """Return a row as the example that the model is asked, with repairs (``sft_datasets.normalise``)."""
    return mend(task.to_row(row), None, repairs, Counter())


def sample_answers(
    trainer: Any, tokenizer: Any, prepared: TrainingData, config: FinetuneConfig
) -> list[dict[str, str]]:
    """Answer the first held-out rows as the model stands now: question, answer and what was wanted."""
    rows = asked(prepared)[:SAMPLES]
    found = []
    for (row, task), answer in zip(rows, _answer(trainer, tokenizer, rows, config), strict=True):
        *_, question, wanted = example_of(row, task, config.repairs).messages
        found.append({"question": question["content"], "answer": answer, "wanted": wanted["content"]})
    return found


def samples(
    prepared: TrainingData, config: FinetuneConfig, before: Sequence[str], after: Sequence[str]
) -> tuple[dict[str, str], ...]:
    """Put the first answers before and after training beside question and wanted answer."""
    found = []
    for (row, task), b, a in list(zip(asked(prepared), before, after, strict=False))[:SAMPLES]:
        *_, question, wanted = example_of(row, task, config.repairs).messages
        one = {"question": question["content"], "before": b, "after": a, "wanted": wanted["content"]}
        found.append(one | ({"rejected": row["rejected"]} if task is PAIRS else {}))
    return tuple(found)
