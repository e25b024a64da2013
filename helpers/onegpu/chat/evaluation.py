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
from onegpu.packed_training.loss import example_logprobs
from onegpu.preference_data import dpo_loss, tokenize_pair_set
from onegpu.qlora_finetune import FinetuneConfig, Scores, generate
from onegpu.qlora_finetune.answers import example_of
from onegpu.qlora_finetune.preferences import PairRows, collate_pairs, pair_scores
from onegpu.qlora_finetune.report import score_lines
from onegpu.qlora_finetune.rows import holds_preferences, new_prompts_first, read_examples
from onegpu.qlora_finetune.tasks import PAIRS
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
    perplexity : float or None
        exp of the loss; None for preferences.
    rows, tokens : int
        Rows (or pairs), and supervised tokens of them.
    dropped : dict
        Rows that couldn't be used, by reason.
    answers : tuple of dict
        ``question``, ``answer`` and ``wanted`` of the first rows.
    """

    model: str
    data: str
    scores: Scores
    base_scores: Scores | None
    perplexity: float | None
    rows: int
    tokens: int
    dropped: dict[str, int]
    answers: tuple[dict[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON types."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        unit = "pairs" if self.scores.pairs else "rows"
        lines = [
            f"{self.model} on {self.data}: {self.rows:,} {unit}, {self.tokens:,} supervised tokens"
            + "".join(f", {n} dropped ({reason})" for reason, n in self.dropped.items())
        ]
        columns = ({"base": self.base_scores} if self.base_scores else {}) | {"model": self.scores}
        lines += score_lines("", columns)
        if self.scores.margin is not None:
            lines.append("margins are against the base, adapters off")
        if self.perplexity is not None:
            lines.append(f"{'perplexity':<24}" + f"{self.perplexity:>{10 * len(columns)}.3f}")
        for i, sample in enumerate(self.answers, 1):
            lines += ["", f"sample {i}"]
            for name, said in sample.items():
                text = textwrap.shorten(said, 300, placeholder=" ...") or "(empty)"
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
        A shipped set (its held-out rows) or a file of rows, chats or preferences.
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
    method = "dpo" if holds_preferences(source) else "sft"
    config = FinetuneConfig(method=method, data=source, eval_data=source, eval_rows=rows)
    examples = read_examples(config)
    if not examples.held_out:
        raise ValueError(f"{source} has no rows")
    speaker = open_speaker(name, base=base)
    task = examples.task
    pairs = task is PAIRS
    raw = new_prompts_first(examples.raw_held_out) if pairs else examples.raw_held_out
    tokenized = (tokenize_pair_set if pairs else tokenize_rows)(
        raw if pairs else examples.held_out, speaker.tokenizer
    )
    beta = (place.run_config or {}).get("beta") or config.beta

    def score(speaker):
        loss, measured = None, {}
        if pairs:
            measured = pair_measures(speaker, tokenized, beta)
            loss = measured["loss"]
        else:
            loss = mean_loss(speaker, tokenized)
        asked = raw[: task.answered_rows]
        with speaker.voice():
            answers = generate(
                speaker.model, speaker.tokenizer, [example_of(row, task) for row in asked],
                max_new_tokens=max_new_tokens, is_hopeless=task.is_hopeless,
            )  # fmt: skip
        return dataclasses.replace(task.score(answers, asked, loss), **measured), answers

    base_scores = score(speaker.without_adapters())[0] if compare else None
    scores, answers = score(speaker)
    shown = []
    for row, answer in list(zip(raw, answers, strict=False))[:SAMPLES]:
        *_, question, wanted = example_of(row, task).messages
        one = {"question": question["content"], "answer": answer, "wanted": wanted["content"]}
        shown.append(one | ({"rejected": row["rejected"]} if pairs else {}))
    return Evaluation(
        str(name), source, scores, base_scores, None if pairs else math.exp(scores.loss), len(tokenized),
        tokenized.supervised_tokens, {reason: len(found) for reason, found in tokenized.dropped.items()}, tuple(shown),
    )  # fmt: skip


@torch.no_grad()
def pair_measures(speaker: Any, pairs: Any, beta: float) -> dict[str, Any]:
    """What ``Scores`` has of pairs; margins are those of the adapters against the base, and none without adapters."""
    found = []
    adapted = speaker.adapters and hasattr(speaker.model, "disable_adapter")
    for [pair] in PairRows(pairs, [[i] for i in range(len(pairs))]):
        batch = {
            name: value.to(speaker.model.device) if isinstance(value, torch.Tensor) else value
            for name, value in collate_pairs([[pair]], shared=False).items()
        }
        with speaker.voice():
            logprobs = example_logprobs(speaker.model, batch, packed=False)
        reference = logprobs
        if adapted:
            with speaker.without_adapters().voice():
                reference = example_logprobs(speaker.model, batch, packed=False)
        done = dpo_loss(*logprobs[:, None], *reference[:, None], beta=beta)
        found.append(
            torch.stack([done.losses, done.chosen_rewards, done.rejected_rewards, *logprobs[:, None]], 1)
        )
    scores = pair_scores(torch.cat(found))
    return (
        scores
        if adapted
        else scores | dict.fromkeys(("loss", "margin", "margin_deviation", "margins_above_0"))
    )


@torch.no_grad()
def mean_loss(speaker: Any, tokenized: Any) -> float:
    """Mean cross-entropy (nats) over the supervised tokens, each row on its own."""
    total, tokens = 0.0, 0
    with speaker.voice():
        for example in tokenized:
            ids = torch.tensor([list(example.input_ids)], device=speaker.model.device)
            targets = torch.tensor(list(example.labels), device=speaker.model.device)[1:]
            at = (targets != -100).nonzero()[:, 0]
            logits = speaker.model(input_ids=ids, logits_to_keep=at).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, targets[at], reduction="sum").item()
            tokens += at.numel()
    return total / tokens
