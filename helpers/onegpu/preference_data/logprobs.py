"""Pairs to tokens, and the log-probability of exactly the completion.

A sequence's log-probability is the sum over its supervised tokens: the answer and its end token, never the
prompt, never padding. Padding more changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from onegpu.preference_data.rankings import PreferencePair
from onegpu.preference_data.validation import to_pair
from onegpu.sft_datasets import IGNORE, Tokenized, collate
from onegpu.sft_datasets.tokenization import RowTokenizer


@dataclass(frozen=True)
class TokenizedPair:
    """Both sides of a pair, tokenized with the prompt; ``row`` is its number."""

    chosen: Tokenized
    rejected: Tokenized
    row: int
    group: int = 0


@dataclass(frozen=True)
class TokenizedPairs:
    """Tokenized pairs, and the rows that were dropped or cut, by reason."""

    pairs: tuple[TokenizedPair, ...]
    rows: int
    dropped: Mapping[str, tuple[int, ...]]
    truncated: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self):
        return iter(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]

    def __str__(self) -> str:
        lines = [f"{self.rows:,} pairs: {len(self):,} kept"]
        lines += [f"dropped, {reason}: {len(rows):,}" for reason, rows in self.dropped.items()]
        return "\n".join(lines + ([f"truncated: {len(self.truncated):,}"] if self.truncated else []))


def tokenize_pairs(
    pairs: Iterable[PreferencePair | Mapping[str, Any]],
    tokenizer: Any,
    max_length: int | None = None,
    *,
    template: str = "model",
    truncation: str = "drop",
) -> TokenizedPairs:
    """Tokenize both sides of each pair; a pair is dropped whole if one side has no completion left.

    Parameters
    ----------
    pairs
        ``PreferencePair``s or rows that ``to_pair`` reads.
    tokenizer, max_length, template
        As in ``sft_datasets.tokenize``.
    truncation
        "drop": drop a pair of which one side is too long. "right": cut each side at max_length on its
        own, so that a long answer doesn't shorten the other; what is left of each completion is
        max_length minus the prompt's tokens.

    Raises
    ------
    ValueError
        A bad pair, or nothing left, with the shortest prompt's length.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> pairs = [PreferencePair("2+2?", "4", "5"), PreferencePair("2+2?", "4", "five " * 40)]
    >>> tokenize_pairs(pairs, tiny_tokenizer(), max_length=64).dropped
    {'too_long': (1,)}
    """
    if truncation not in ("drop", "right"):
        raise ValueError(f"truncation={truncation!r}: expected 'drop' or 'right'.")
    work = RowTokenizer(tokenizer, max_length, template, truncation=truncation)
    kept, truncated, count = [], [], 0
    dropped: dict[str, list[int]] = {}
    prompt_lengths = []
    for index, pair, sides, error in tokenize_sides(
        ((index, to_pair(row, index)) for index, row in enumerate(pairs)), work
    ):
        if error is not None:
            raise error
        count += 1
        prompt_lengths.append(sides[0].prompt_length)
        reason = next((side.dropped for side in sides if side.dropped), None)
        if reason:
            dropped.setdefault(reason, []).append(index)
            continue
        if any(side.lost_tokens for side in sides):
            truncated.append(index)
        kept.append(TokenizedPair(*sides, index, pair.group))
    if not kept:
        shortest = f"; the shortest prompt has {min(prompt_lengths)} tokens" if prompt_lengths else ""
        raise ValueError(
            f"No pair is left of {count} with max_length={max_length} and truncation={truncation!r}{shortest}. "
            "Raise max_length or check the pairs."
        )
    return TokenizedPairs(
        tuple(kept), count, {reason: tuple(rows) for reason, rows in dropped.items()}, tuple(truncated)
    )


def tokenize_sides(
    pairs: Iterable[tuple[int, PreferencePair]], work: RowTokenizer, batch_size: int = 128
) -> Iterator[tuple[int, PreferencePair, tuple[Tokenized, Tokenized] | None, ValueError | None]]:
    """Tokenize both sides of numbered pairs, many at a time.

    Yields
    ------
    tuple
        Number, pair, and (chosen, rejected) or what is wrong with one of them.
    """
    pairs = iter(pairs)
    while some := list(islice(pairs, batch_size)):
        rows = [
            (number, {"prompt": pair.prompt, "completion": text})
            for number, pair in some
            for text in (pair.chosen, pair.rejected)
        ]
        done = iter(work.batch(rows))
        for (number, pair), (chosen, wrong), (rejected, wrong_too) in zip(some, done, done, strict=True):
            error = wrong or wrong_too
            yield number, pair, None if error else (chosen, rejected), error


def sequence_logprobs(logits: Tensor, labels: Tensor, *, average: bool = False) -> Tensor:
    """Sum the log-probabilities of the supervised tokens of each sequence.

    Parameters
    ----------
    logits
        Shape (batch, length, vocabulary), as the model gives them: position i predicts token i + 1.
    labels
        Shape (batch, length), -100 where not supervised, not shifted.
    average
        Mean instead of sum (IPO; DPO takes sums).

    Returns
    -------
    Tensor
        Shape (batch,), float32 or wider, never 0 but for a model that is certain.

    Raises
    ------
    ValueError
        A sequence without a supervised token: its sum would be 0 and its mean 0/0.

    Examples
    --------
    Two tokens of a vocabulary of 4, all equally likely: 2 log(1/4).

    >>> logits, labels = torch.zeros(1, 3, 4), torch.tensor([[-100, 2, 1]])
    >>> round(sequence_logprobs(logits, labels).item(), 4)
    -2.7726
    """
    targets = labels[:, 1:]
    mask = targets != IGNORE
    counts = mask.sum(-1)
    if bool((counts == 0).any()):
        row = int((counts == 0).nonzero()[0])
        raise ValueError(
            f"sequence {row} of the batch has no supervised token, expected a completion. Drop such pairs "
            "(tokenize_pairs does) and check the mask."
        )
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores = logits[:, :-1].to(wide).log_softmax(-1)
    per_token = scores.gather(-1, targets.clamp(min=0)[..., None])[..., 0].masked_fill(~mask, 0.0)
    total = per_token.sum(-1)
    return total / counts if average else total


def pair_logprobs(
    model: Any, pairs: Sequence[TokenizedPair], pad_token_id: int, *, average: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the model once over both sides of a batch of pairs.

    The head is applied only from the first supervised token on: on the prompt it would be pure waste.

    Returns
    -------
    (Tensor, Tensor)
        Log-probabilities of chosen and rejected, each of shape (pairs,).

    Examples
    --------
    >>> from onegpu.models import tiny_model, tiny_tokenizer
    >>> pairs = tokenize_pairs([PreferencePair("2+2?", "4", "five")], tiny_tokenizer())
    >>> with torch.no_grad(): chosen, rejected = pair_logprobs(tiny_model(), pairs.pairs, 3)
    >>> bool(chosen < 0), bool(rejected < chosen)  # a random model; the second has more tokens
    (True, True)
    """
    sides = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    batch = {name: tensor.to(model.device) for name, tensor in collate(sides, pad_token_id).items()}
    labels = batch.pop("labels")
    first = int((labels[:, 1:] != IGNORE).any(0).nonzero()[0])
    logits = model(**batch, logits_to_keep=labels.shape[1] - first, use_cache=False).logits
    scores = sequence_logprobs(logits, labels[:, first:], average=average)
    return scores[: len(pairs)], scores[len(pairs) :]


@torch.no_grad()
def reference_logprobs(
    model: Any,
    pairs: Sequence[TokenizedPair],
    pad_token_id: int,
    *,
    batch_size: int = 8,
    average: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of chosen and rejected under the model as it is now, each of shape (pairs,)."""
    model.eval()
    batches = (pairs[i : i + batch_size] for i in range(0, len(pairs), batch_size))
    parts = [pair_logprobs(model, batch, pad_token_id, average=average) for batch in batches]
    chosen, rejected = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(rejected)
