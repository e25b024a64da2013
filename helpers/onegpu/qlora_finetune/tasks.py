"""What a data set is for: how a row becomes a chat, how answers are scored, when an answer is hopeless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onegpu import data
from onegpu.qlora_finetune.evaluation import Scores, cannot_be_triage, score_triage, triage_example

Row = dict[str, Any]


def _as_it_is(row: Row) -> Row:
    return row


def _loss_only(answers: Sequence[str], rows: Sequence[Row], loss: float | None = None) -> Scores:
    return Scores(loss, rows=len(rows))


@dataclass(frozen=True)
class Task:
    """What a data set is for.

    Attributes
    ----------
    name : str
    to_row : callable
        Turns a row as it was read into one that ``onegpu.sft_datasets`` knows.
    score : callable
        Scores answers: (answers, rows as they were read, held-out loss) to ``Scores``.
    is_hopeless : callable or None
        Says of the beginning of an answer that no continuation can be right (``generate`` stops there).
    answered_rows : int or None
        How many held-out rows are answered before and after training; None: all, since their answers are scored.
    """

    name: str
    to_row: Callable[[Row], Row] = _as_it_is
    score: Callable[..., Scores] = _loss_only
    is_hopeless: Callable[[str], bool] | None = None
    answered_rows: int | None = 3


CHATS = Task("chats")
"""Any rows of chats: the loss is measured, and a few answers are shown."""

TRIAGE = Task("support triage", triage_example, score_triage, cannot_be_triage, answered_rows=None)
"""The shipped task, scored by what its answers are for."""


def _chosen(row: Row) -> Row:
    return {"prompt": row["prompt"], "completion": row["chosen"]}


PAIRS = Task("preferences", _chosen)
"""Pairs of preferences (prompt, chosen, rejected): margins are measured, and a few prompts answered; wanted is chosen."""


def task_of(source: str, method: str = "sft") -> Task:
    """Return the task of a data set, by its name or path and by what it is trained with.

    Examples
    --------
    >>> task_of("support_triage").name, task_of("my_rows.jsonl").name, task_of("my_pairs.jsonl", "dpo").name
    ('support triage', 'chats', 'preferences')
    """
    if method == "dpo":
        return PAIRS
    return TRIAGE if source in data.names() and "intent" in data.rows(source)[0] else CHATS
