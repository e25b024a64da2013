"""Answers and scores on held-out rows.

The shipped task is scored by what its answers are for: can a program read them (valid JSON with the right fields) and
is the intent right. The loss on the same rows is beside them: it moves first, but nobody ships a loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onegpu.data import INTENTS, URGENCIES
from onegpu.qlora_finetune.config import SYSTEM_PROMPT
from onegpu.sft_datasets.templates import prompt_text

if TYPE_CHECKING:
    import torch

GIVE_UP_AFTER = 4  # tokens


def triage_example(row: dict[str, Any]) -> dict[str, Any]:
    """Turn a row of the shipped task into chat messages, with the answer as one line of JSON.

    Examples
    --------
    >>> row = {"message": "Where is it?", "intent": "track_order", "urgency": "normal", "reply": "On its way."}
    >>> triage_example(row)["messages"][2]["content"]
    '{"intent": "track_order", "urgency": "normal", "reply": "On its way."}'
    """
    answer = {name: row[name] for name in ("intent", "urgency", "reply")}
    return {
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": row["message"]},
            {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
        ]
    }


def read_triage(answer: str) -> dict[str, str] | None:
    """Read an answer as the JSON object that was asked for; None if it isn't one.

    It must be one object with exactly the fields intent, urgency and reply, all strings, with the labels of the task.

    Examples
    --------
    >>> read_triage('{"intent": "track_order", "urgency": "low", "reply": "Tomorrow."}')["urgency"]
    'low'
    >>> read_triage('Sure! {"intent": "track_order"}') is None
    True
    """
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(found, dict) or set(found) != {"intent", "urgency", "reply"}:
        return None
    fits = found["intent"] in INTENTS and found["urgency"] in URGENCIES
    return found if fits and isinstance(found["reply"], str) and found["reply"].strip() else None


@dataclass(frozen=True)
class Scores:
    """Held-out scores.

    Attributes
    ----------
    loss : float or None
        Mean cross-entropy (nats) over the supervised tokens of the held-out rows; of DPO the mean over pairs (nats).
    valid_json, intent_accuracy, urgency_accuracy : float or None
        Shares of the answered rows, 0 to 1; an answer that can't be read counts as wrong. None for data other than
        the shipped task.
    rows : int
        How many rows were answered; where shares are given, how many they are of.
    pairs : int
        Pairs of preferences that were scored; 0 for other data.
    margin, margin_deviation : float or None
        Mean and standard deviation over the pairs of the reward of chosen minus that of rejected.
    margins_above_0, chosen_likelier : int or None
        Pairs whose margin is above 0 (a margin of 0 is not), and pairs whose chosen side has the higher log-probability.
    """

    loss: float | None
    valid_json: float | None = None
    intent_accuracy: float | None = None
    urgency_accuracy: float | None = None
    rows: int = 0
    pairs: int = 0
    margin: float | None = None
    margin_deviation: float | None = None
    margins_above_0: int | None = None
    chosen_likelier: int | None = None


def score_triage(answers: Sequence[str], rows: Sequence[dict[str, Any]], loss: float | None = None) -> Scores:
    """Score answers to rows of the shipped task.

    Raises
    ------
    ValueError
        If there are not as many answers as rows, or none.
    """
    if len(answers) != len(rows) or not rows:
        raise ValueError(f"{len(answers)} answers to {len(rows)} rows, expected as many, at least one")
    read = [read_triage(answer) for answer in answers]

    def share(field):
        return sum(r is not None and r[field] == row[field] for r, row in zip(read, rows, strict=True)) / len(
            rows
        )

    return Scores(
        loss, sum(r is not None for r in read) / len(rows), share("intent"), share("urgency"), len(rows)
    )


def generate(
    model: torch.nn.Module,
    tokenizer: Any,
    chats: Sequence[Any],
    max_new_tokens: int = 96,
    batch_size: int = 50,
    is_hopeless: Callable[[str], bool] | None = None,
) -> list[str]:
    """Answer chats greedily, in batches of similar length, and return the texts in the order asked.

    Parameters
    ----------
    chats
        Messages of each chat, ending with a user turn; or examples (``sft_datasets.Example``), whose last answer is left
        out and whose tools are shown.
    is_hopeless
        Says of the first ``GIVE_UP_AFTER`` tokens of an answer that no continuation can be right: it ends there. An
        untrained model goes on until it is stopped, which is most of the time of an evaluation.
    """
    import torch
    from transformers import StoppingCriteriaList

    prompts = [prompt_text(chat, tokenizer) for chat in chats]
    ids = [tokenizer(p, add_special_tokens=False)["input_ids"] for p in prompts]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    end = end_tokens(model, tokenizer)
    answers = [""] * len(ids)
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    # The last position is cut out of a batch as a view, on which the product with the head's weight is 10 times slower.
    contiguous = model.get_output_embeddings().register_forward_pre_hook(
        lambda m, args: (args[0].contiguous(),)
    )
    try:
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            width = max(len(ids[i]) for i in part)
            # Padding goes to the left, so that every answer starts where its prompt ends.
            input_ids = torch.tensor([[end[0]] * (width - len(ids[i])) + ids[i] for i in part], device=device)
            mask = torch.tensor(
                [[0] * (width - len(ids[i])) + [1] * len(ids[i]) for i in part], device=device
            )
            out = model.generate(
                input_ids=input_ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False,
                eos_token_id=end, pad_token_id=end[0], temperature=None, top_p=None, top_k=None,
                stopping_criteria=StoppingCriteriaList([_GiveUp(tokenizer, width, is_hopeless)] if is_hopeless else []),
            )  # fmt: skip
            for i, row in zip(part, out[:, width:].tolist(), strict=True):
                stop = next((k for k, token in enumerate(row) if token in end), len(row))
                answers[i] = tokenizer.decode(row[:stop], skip_special_tokens=True).strip()
    finally:
        contiguous.remove()
        model.train(was_training)
    return answers


class _GiveUp:
    """End the answers that are hopeless after ``GIVE_UP_AFTER`` tokens."""

    def __init__(self, tokenizer: Any, prompt_width: int, is_hopeless: Callable[[str], bool]):
        self.tokenizer, self.at, self.is_hopeless = tokenizer, prompt_width + GIVE_UP_AFTER, is_hopeless
        self.width = prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        import torch

        if input_ids.shape[1] != self.at:
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        texts = self.tokenizer.batch_decode(input_ids[:, self.width :], skip_special_tokens=True)
        return torch.tensor([self.is_hopeless(text) for text in texts], device=input_ids.device)


def cannot_be_triage(start: str) -> bool:
    """Say whether no text that starts like this can be the JSON object of the shipped task.

    Examples
    --------
    >>> cannot_be_triage("I am sorry to hear"), cannot_be_triage(' {"intent": "tra')
    (True, False)
    """
    return not start.lstrip().startswith("{")


def end_tokens(model: torch.nn.Module, tokenizer: Any) -> list[int]:
    """Return all ids that end an answer: the tokenizer's, and those of the generation config (chat models may have two)."""
    return stop_ids(tokenizer, model.generation_config)


def stop_at(model: torch.nn.Module, tokenizer: Any, ids: Sequence[int]) -> None:
    """Make generation stop at further ids too, and so what is saved of the model: those that answers were taught to end in."""
    model.generation_config.eos_token_id = list(dict.fromkeys([*end_tokens(model, tokenizer), *ids]))


def stop_ids(tokenizer: Any, generation_config: Any = None) -> list[int]:
    """Ids that stop generation: the tokenizer's end token, and those of a generation config."""
    found = [tokenizer.eos_token_id]
    more = getattr(generation_config, "eos_token_id", None)
    found += more if isinstance(more, list) else [more]
    return list(dict.fromkeys(t for t in found if t is not None))
