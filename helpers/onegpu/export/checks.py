"""Is the file the model? The next-token probabilities and the answers of llama.cpp beside those of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onegpu.chat.llama_cpp import Engine
from onegpu.chat.speakers import Reply, Sampling, TransformersSpeaker
from onegpu.qlora_finetune.evaluation import end_tokens

EXACT = {"f32": 0.01, "f16": 0.01, "bf16": 0.1, "q8_0": 0.1}
"""Nats per token by which a type's log-probabilities may differ on average from the merged model's.

llama.cpp multiplies in the type of the weights (q8_0 also rounds the activations) and keeps keys and values in fp16; a
wrong tensor, a wrong permutation or a wrong rope moves them by whole nats."""

NOTICED, LOST = 1.1, 2.0
"""Times the merged model's perplexity from which a 4- or 5-bit file is warned of, and refused.

SmolLM2-135M is that sensitive: with the blocks' plain extremes as scales, q4_0 of a run of it had eight times the
perplexity and answered in fragments, though each of its weights was written rightly."""

TOP = 256


@dataclass(frozen=True)
class Agreement:
    """Log-probabilities of held-out answers: the file's in llama.cpp against the merged model's.

    Attributes
    ----------
    tokens : int
        Supervised tokens compared.
    mean_difference, max_difference : float
        Of the tokens' log-probabilities, in nats, without sign.
    perplexity, reference_perplexity : float
        exp of the mean negative log-probability: of the file, of the merged model.
    """

    tokens: int
    mean_difference: float
    max_difference: float
    perplexity: float
    reference_perplexity: float

    def __str__(self) -> str:
        return (
            f"log-probabilities of {self.tokens} held-out tokens differ by {self.mean_difference:.4f} nats on average "
            f"(at most {self.max_difference:.3f}); perplexity {self.perplexity:.3f}, merged model "
            f"{self.reference_perplexity:.3f}"
        )


def compare_logprobs(engine: Engine, model: Any, examples: Sequence[Any]) -> Agreement:
    """Compare the log-probability of each supervised token.

    Parameters
    ----------
    engine
        The GGUF file.
    model
        The merged causal LM.
    examples
        Tokenized rows with ``input_ids`` and ``labels`` (-100 where not supervised).
    """
    ours, theirs = [], []
    for example in examples:
        ids, labels = list(example.input_ids), list(example.labels)
        places = [i for i in range(1, len(ids)) if labels[i] != -100]
        if not places:
            continue
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float()
        at = torch.tensor(places)
        reference = logits[at - 1].log_softmax(-1)[torch.arange(len(places)), torch.tensor(ids)[at]]
        theirs += reference.tolist()
        prompts = [ids[:i] for i in places]
        found = engine.next_token_logprobs(prompts, TOP)
        for k, (place, likely) in enumerate(zip(places, found, strict=True)):
            if ids[place] not in likely:  # rarer than the likeliest 256: ask for the whole vocabulary
                likely = engine.next_token_logprobs([prompts[k]], logits.shape[-1])[0]
            ours.append(likely[ids[place]])
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return Agreement(
        len(gaps), math.fsum(gaps) / len(gaps), max(gaps), math.exp(-math.fsum(ours) / len(ours)),
        math.exp(-math.fsum(theirs) / len(theirs)),
    )  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """Answers at temperature 0 to the same chats.

    Attributes
    ----------
    same, asked : int
    worst_gap : float
        Where answers part: how much likelier (nats) the merged model found its own token than llama.cpp's, at most. A
        near tie may fall either way without anything being wrong.
    first_difference : tuple of str or None
        The first answers that differ: transformers', llama.cpp's.
    """

    same: int
    asked: int
    worst_gap: float = 0.0
    first_difference: tuple[str, str] | None = None

    def __str__(self) -> str:
        said = f"{self.same} of {self.asked} answers at temperature 0 are the same as with transformers"
        if self.first_difference is not None:
            a, b = self.first_difference
            said += f"; first that differs: {_short(a)!r} / {_short(b)!r}"
        return said


def _short(text: str, around: int = 60) -> str:
    return text if len(text) <= around else text[:around] + "..."


def compare_answers(
    engine: Engine, speaker: TransformersSpeaker, chats: Sequence[Any], max_new_tokens: int
) -> Answers:
    """Answer chats with both, at temperature 0.

    The prompts must have the same number of tokens: llama.cpp renders the chat template in the file by itself.

    Raises
    ------
    ValueError
        If a prompt differs in length (another rendering of the chat template, or a beginning token twice), or one of
        the two stops where the other goes on although the texts agree.
    """
    sampling = Sampling(max_new_tokens=max_new_tokens)
    same, worst, first = 0, 0.0, None
    for chat in chats:
        here = speaker.reply(chat, lambda text: None, sampling)
        there = Reply(*engine.chat(chat, lambda text: None, sampling))
        if here.prompt_tokens != there.prompt_tokens:
            raise ValueError(
                f"llama.cpp renders a chat to {there.prompt_tokens} tokens, transformers to {here.prompt_tokens}: it reads "
                "the chat template or the tokenizer differently"
            )
        if here.text == there.text and here.stopped != there.stopped:
            raise ValueError(
                f"the same answer ends by a stop token in {'transformers' if here.stopped else 'llama.cpp'} alone: the "
                "stop tokens in the file are not the model's"
            )
        if here.text == there.text:
            same += 1
        else:
            first = first or (here.text, there.text)
            worst = max(worst, _gap(speaker, chat, here.text, there.text))
    return Answers(same, len(chats), worst, first)


@torch.no_grad()
def _gap(speaker: TransformersSpeaker, chat: Any, here: str, there: str) -> float:
    """How much likelier (nats) the model finds the first token in which its answer differs from the other."""
    end = end_tokens(speaker.model, speaker.tokenizer)[:1]
    a, b = (speaker.tokenizer(text, add_special_tokens=False)["input_ids"] + end for text in (here, there))
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if same is None:  # one is the beginning of the other, cut by the limit of tokens
        return 0.0
    ids = torch.tensor([speaker.prompt_ids(chat) + a[:same]], device=speaker.model.device)
    scores = speaker.model(input_ids=ids).logits[0, -1].float().log_softmax(-1)
    return float(scores[a[same]] - scores[b[same]])
