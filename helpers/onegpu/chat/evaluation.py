"""A finished model's scores on rows: the same loss and answers as before and after training."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onegpu.chat.places import find_place
from onegpu.chat.speakers import open_speaker
from onegpu.qlora_finetune import FinetuneConfig, Scores, generate
from onegpu.qlora_finetune.answers import example_of
from onegpu.qlora_finetune.rows import read_examples
from onegpu.sft_datasets import tokenize_rows

SAMPLES = 3


@dataclass(frozen=True)
class Evaluation:
    """Scores on rows.

    Attributes
    ----------
    model, data : str
    scores : Scores
    base_scores : Scores or None
        Of the base model, where it was asked for.
    perplexity : float
        exp of the loss.
    rows, tokens : int
        Rows, and supervised tokens of them.
    dropped : dict
        Rows that couldn't be used, by reason.
    answers : tuple of dict
        ``question``, ``answer`` and ``wanted`` of the first rows.
    """

    model: str
    data: str
    scores: Scores
    base_scores: Scores | None
    perplexity: float
    rows: int
    tokens: int
    dropped: dict[str, int]
    answers: tuple[dict[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON types."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        named = [("base", self.base_scores)] if self.base_scores else []
        named.append(("model", self.scores))
        lines = [
            f"{self.model} on {self.data}: {self.rows:,} rows, {self.tokens:,} supervised tokens"
            + "".join(f", {n} dropped ({reason})" for reason, n in self.dropped.items()),
            f"{'':<24}" + "".join(f"{name:>10}" for name, _ in named),
        ]
        for what, field, form in (
            ("loss (nats per token)", "loss", "{:.3f}"), ("valid JSON", "valid_json", "{:.0%}"),
            ("intent right", "intent_accuracy", "{:.0%}"), ("urgency right", "urgency_accuracy", "{:.0%}"),
        ):  # fmt: skip
            values = [getattr(scores, field) for _, scores in named]
            if values[-1] is not None:
                lines.append(f"{what:<24}" + "".join(f"{form.format(v):>10}" for v in values))
        lines.append(f"{'perplexity':<24}" + f"{self.perplexity:>{10 * len(named)}.3f}")
        for i, sample in enumerate(self.answers, 1):
            lines += ["", f"sample {i}"]
            for name in ("question", "answer", "wanted"):
                text = textwrap.shorten(sample[name], 300, placeholder=" ...") or "(empty)"
                lines.append(
                    textwrap.fill(text, 80, initial_indent=f"  {name:<9}", subsequent_indent=" " * 11)
                )
        return "\n".join(lines)


def evaluate(
    name: str | Path,
    source: str,
    *,
    rows: int | None = None,
    compare: bool = False,
    max_new_tokens: int = 72,
    base: str | None = None,
) -> Evaluation:
    """Score a run, an adapter or a model on rows.

    Parameters
    ----------
    name
        As for ``open_speaker``; not a GGUF file.
    source
        A shipped set (its held-out rows) or a file of rows.
    rows
        Take only the first so many.
    compare
        Score the base of an adapter too.
    max_new_tokens
        Of an answer at most.

    Raises
    ------
    ValueError
        If there is nothing to score, or nothing to score it on.
    """
    import math

    place = find_place(name)
    if place.kind == "gguf":
        raise ValueError(f"{name} is a GGUF file: evaluate the run or model that it was made from")
    if compare and place.kind != "adapter":
        raise ValueError(f"--compare needs a run or an adapter: {name} is a {place.kind}")
    if rows is not None and rows < 1:
        raise ValueError(f"rows is {rows}, expected at least 1")
    examples = read_examples(FinetuneConfig(data=source, eval_data=source, eval_rows=rows))
    if not examples.held_out:
        raise ValueError(f"{source} has no rows")
    speaker = open_speaker(name, base=base)
    tokenized = tokenize_rows(examples.held_out, speaker.tokenizer)
    task = examples.task

    def score(speaker):
        loss, tokens = mean_loss(speaker, tokenized)
        asked = examples.raw_held_out[: task.answered_rows]
        with speaker.voice():
            answers = generate(
                speaker.model, speaker.tokenizer, [example_of(row, task) for row in asked],
                max_new_tokens=max_new_tokens, is_hopeless=task.is_hopeless,
            )  # fmt: skip
        return task.score(answers, asked, loss), answers, tokens

    base_scores = score(speaker.without_adapters())[0] if compare else None
    scores, answers, tokens = score(speaker)
    shown = []
    for row, answer in list(zip(examples.held_out, answers, strict=False))[:SAMPLES]:
        from onegpu.sft_datasets import to_example

        *_, question, wanted = to_example(row).messages
        shown.append({"question": question["content"], "answer": answer, "wanted": wanted["content"]})
    return Evaluation(
        str(name), source, scores, base_scores, math.exp(scores.loss), len(tokenized), tokens,
        {reason: len(found) for reason, found in tokenized.dropped.items()}, tuple(shown),
    )  # fmt: skip


@torch.no_grad()
def mean_loss(speaker: Any, tokenized: Any) -> tuple[float, int]:
    """Mean cross-entropy (nats) over the supervised tokens, each row on its own, and their number."""
    total, tokens = 0.0, 0
    with speaker.voice():
        for example in tokenized:
            ids = torch.tensor([list(example.input_ids)], device=speaker.model.device)
            targets = torch.tensor(list(example.labels), device=speaker.model.device)[1:]
            at = (targets != -100).nonzero()[:, 0]
            logits = speaker.model(input_ids=ids, logits_to_keep=at).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, targets[at], reduction="sum").item()
            tokens += at.numel()
    return total / tokens, tokens
