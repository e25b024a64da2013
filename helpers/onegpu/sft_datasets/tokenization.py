"""Rows to token ids and labels: every supervised token is an answer's or its end token's.

The rule for a token on the border: it is supervised if at least one of its characters belongs to a
supervised span. So no character of an answer goes untrained; at worst one space of the prompt is learned
with it. Padding plays no part here: labels come from positions in the text, so an end token stays
supervised also where pad == eos (transformers#23530).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onegpu.sft_datasets.formats import Example, to_example
from onegpu.sft_datasets.templates import Rendered, render

IGNORE = -100
"""The label that the loss skips."""

TRUNCATIONS = ("error", "drop", "turns", "right")


@dataclass(frozen=True)
class Tokenized:
    """One tokenized example.

    Attributes
    ----------
    input_ids, labels
        Of equal length; labels are the ids where supervised, else -100. Both are empty when `dropped`.
    supervised_tokens
        How many labels count in the loss: those from position 1 on (the model predicts token i from
        the tokens before it, so a label at position 0 is never used).
    dropped
        Why the example can't be trained on, or None: "too_long", "no_answer_left".
    lost_tokens, lost_supervised_tokens
        What truncation or dropping took away.
    length, prompt_length, first_answer_end
        Tokens before truncation; how many of them come before the first supervised one; and how many
        it takes to hold the first answer whole.
    row
        The row's number, when the caller gave it.
    """

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    supervised_tokens: int
    dropped: str | None = None
    lost_tokens: int = 0
    lost_supervised_tokens: int = 0
    length: int = 0
    prompt_length: int = 0
    first_answer_end: int = 0
    row: int | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def __str__(self) -> str:
        if self.dropped:
            return f"dropped ({self.dropped}): {self.length} tokens, {self.prompt_length} of them prompt"
        lost = f", {self.lost_tokens} cut off" if self.lost_tokens else ""
        return f"{len(self)} tokens, {self.supervised_tokens} supervised{lost}"


@dataclass(frozen=True)
class TokenizedSet:
    """Tokenized examples and what became of the rows.

    Attributes
    ----------
    examples
        The kept ones, in row order.
    rows
        How many rows were read.
    dropped
        Row numbers by reason.
    truncated
        Numbers of the rows that lost tokens but were kept.
    lost_tokens, lost_supervised_tokens
        Over all rows, dropped ones included.
    """

    examples: tuple[Tokenized, ...]
    rows: int
    dropped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    truncated: tuple[int, ...] = ()
    lost_tokens: int = 0
    lost_supervised_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the kept examples."""
        return sum(len(example) for example in self.examples)

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens of the kept examples."""
        return sum(example.supervised_tokens for example in self.examples)

    @property
    def longest(self) -> int:
        """Tokens of the longest kept example."""
        return max(map(len, self.examples))

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Tokenized]:
        return iter(self.examples)

    def __getitem__(self, index):
        return self.examples[index]

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows: {len(self):,} kept, {self.tokens:,} tokens, "
            f"{self.supervised_tokens:,} supervised ({self.supervised_tokens / max(1, self.tokens):.1%})"
        ]
        for reason, rows in self.dropped.items():
            lines.append(f"dropped, {reason}: {len(rows):,} (rows {_some(rows)})")
        if self.truncated:
            lines.append(f"truncated: {len(self.truncated):,} (rows {_some(self.truncated)})")
        if self.lost_tokens:
            lines.append(
                f"lost: {self.lost_tokens:,} tokens, {self.lost_supervised_tokens:,} of them supervised"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def _some(rows: tuple[int, ...], most: int = 5) -> str:
    return ", ".join(map(str, rows[:most])) + (", ..." if len(rows) > most else "")


def supervised_mask(offsets: Iterable[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> list[bool]:
    """Say for each token whether it is supervised, from character offsets alone.

    A token covers the characters from the end of the token before it (some tokenizers leave a leading
    space out of their offsets) to its own end, and is supervised if it shares a character with a span.

    Parameters
    ----------
    offsets
        (start, end) in characters of each token, in order.
    spans
        (start, end) of the supervised parts, in order.

    Examples
    --------
    The text "Q: hi A: no" with the answer "no" at (9, 11), in three tokens; the last one straddles:

    >>> supervised_mask([(0, 2), (2, 8), (8, 11)], [(9, 11)])
    [False, False, True]
    """
    spans, mask, at, previous = list(spans), [], 0, 0
    for start, end in offsets:
        low = min(start, previous)
        previous = max(previous, end)
        while at < len(spans) and spans[at][1] <= low:
            at += 1
        if at == len(spans):
            mask.append(False)
        elif low == end:  # nothing but white space that the offsets leave out
            mask.append(spans[at][0] <= low)
        else:
            mask.append(spans[at][0] < end)
    return mask


def tokenize(
    row: Mapping[str, Any] | Example,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    template: str = "model",
    turns: str = "all",
    truncation: str = "error",
    row_index: int | None = None,
) -> Tokenized:
    """Render and tokenize one example, with labels on exactly the answers and their end tokens.

    Parameters
    ----------
    row
        An `Example`, or a row of any format that `to_example` reads.
    tokenizer
        A fast transformers tokenizer (it must give character offsets).
    max_length
        The most tokens to keep; None for no limit.
    template, turns
        As in `render`.
    truncation
        What to do with an example longer than `max_length`. "error": raise. "drop": drop it whole.
        "turns": keep as many whole turns as end in a whole answer, drop the example if not even one
        fits. "right": cut at max_length, in the middle of an answer if need be; what was cut is in
        `lost_supervised_tokens`. An example of which no supervised token is left is always dropped.
    row_index
        The row's number, for messages and `Tokenized.row`.

    Raises
    ------
    ValueError
        Bad row, bad template, a tokenizer without offsets, two BOS tokens, or an example that is too
        long under truncation="error".

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> done = tokenize({"prompt": "2+2?", "completion": "4"}, tiny_tokenizer(), template="chatml")
    >>> tiny_tokenizer().decode([i for i in done.labels if i != -100])
    '4<|im_end|>'
    """
    if truncation not in TRUNCATIONS:
        raise ValueError(f"truncation={truncation!r}: expected one of {', '.join(TRUNCATIONS)}.")
    if max_length is not None and max_length < 2:
        raise ValueError(
            f"max_length={max_length}: expected at least 2 (one token to read and one to predict)."
        )
    example = to_example(row, row_index)
    where = "" if row_index is None else f"row {row_index}: "
    try:
        rendered = render(example, tokenizer, template, turns)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error
    input_ids, labels = _encode(rendered, tokenizer, where)
    length = len(input_ids)
    prompt_length = next((i for i, label in enumerate(labels) if label != IGNORE), length)
    first_answer_end = next((i for i in range(prompt_length, length) if labels[i] == IGNORE), length)

    keep = length if max_length is None else min(length, max_length)
    dropped = None
    if keep < length:
        if truncation == "error":
            raise ValueError(
                f"{where}{length} tokens, {prompt_length} of them before the first answer, are more than "
                f"max_length={max_length}. Raise max_length, or choose truncation='drop', 'turns' or "
                "'right'."
            )
        if truncation == "drop":
            keep, dropped = 0, "too_long"
        elif truncation == "turns":
            keep = _end_of_last_whole_answer(labels, keep)
            dropped = None if keep else "too_long"
    kept_ids, kept_labels = tuple(input_ids[:keep]), tuple(labels[:keep])
    supervised = _count(kept_labels)
    if not dropped and not supervised:
        kept_ids, kept_labels, dropped = (), (), "no_answer_left"
    return Tokenized(
        kept_ids,
        kept_labels,
        supervised,
        dropped,
        lost_tokens=length - len(kept_ids),
        lost_supervised_tokens=_count(labels) - supervised,
        length=length,
        prompt_length=prompt_length,
        first_answer_end=first_answer_end,
        row=row_index,
    )


def _count(labels) -> int:
    return sum(label != IGNORE for label in labels[1:])


def _encode(rendered: Rendered, tokenizer: Any, where: str) -> tuple[list[int], list[int]]:
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} gives no character offsets, which the mask needs: load the fast "
            "tokenizer (AutoTokenizer does so by default)."
        )
    # add_special_tokens=False: the template has already written BOS where there is one.
    encoded = tokenizer(rendered.text, add_special_tokens=False, return_offsets_mapping=True)
    input_ids = encoded["input_ids"]
    bos = tokenizer.bos_token_id
    eos_is_bos = bos is not None and bos == tokenizer.eos_token_id
    if bos is not None and not eos_is_bos and input_ids[:2] == [bos, bos]:
        raise ValueError(
            f"{where}the text starts with two {tokenizer.bos_token!r}: the chat template writes it twice, "
            "or the first message begins with it. Remove one."
        )
    mask = supervised_mask(encoded["offset_mapping"], rendered.spans)
    return input_ids, [i if m else IGNORE for i, m in zip(input_ids, mask, strict=True)]


def _end_of_last_whole_answer(labels: list[int], limit: int) -> int:
    """Where to cut so that the last kept answer is whole, or 0 if none fits."""
    for end in range(limit, 0, -1):
        if labels[end - 1] != IGNORE and (end == len(labels) or labels[end] == IGNORE):
            return end
    return 0


def tokenize_rows(
    rows: Iterable[Mapping[str, Any] | Example],
    tokenizer: Any,
    max_length: int | None = None,
    *,
    template: str = "model",
    turns: str = "all",
    truncation: str = "drop",
) -> TokenizedSet:
    """Tokenize rows and report what was dropped or truncated, by reason and row number.

    Parameters
    ----------
    rows
        Rows of any format that `to_example` reads, or `Example` values.
    tokenizer, max_length, template, turns, truncation
        As in `tokenize`; here "drop" is the default.

    Raises
    ------
    ValueError
        A bad row (the message has its number); no rows; or nothing left to train on, with the
        smallest max_length that would keep a row.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> rows = [{"prompt": "2+2?", "completion": "4"}, {"prompt": "Count." * 50, "completion": "1 2 3"}]
    >>> done = tokenize_rows(rows, tiny_tokenizer(), max_length=64, template="chatml")
    >>> len(done), done.dropped
    (1, {'too_long': (1,)})
    """
    kept: list[Tokenized] = []
    dropped: dict[str, list[int]] = {}
    truncated: list[int] = []
    lost = lost_supervised = count = 0
    shortest_prompt = shortest_row = smallest = None
    for count, row in enumerate(rows, start=1):
        done = tokenize(
            row,
            tokenizer,
            max_length,
            template=template,
            turns=turns,
            truncation=truncation,
            row_index=count - 1,
        )
        lost += done.lost_tokens
        lost_supervised += done.lost_supervised_tokens
        if done.dropped is None:
            kept.append(done)
            if done.lost_tokens:
                truncated.append(count - 1)
            continue
        dropped.setdefault(done.dropped, []).append(count - 1)
        if not kept:
            works = {
                "drop": done.length,
                "turns": done.first_answer_end,
                "right": max(2, done.prompt_length + 1),  # a label at position 0 does not count
            }.get(truncation, done.length)
            smallest = works if smallest is None else min(smallest, works)
            shortest_prompt = min(shortest_prompt or done.prompt_length, done.prompt_length)
            shortest_row = min(shortest_row or done.length, done.length)
    if not count:
        raise ValueError(
            "No rows: found an empty list, expected at least one row. Check the file and its split."
        )
    if not kept:
        what = (
            "is shorter than every prompt"
            if max_length is not None and max_length <= shortest_prompt
            else "leaves no whole answer in any row"
        )
        raise ValueError(
            f"max_length={max_length} {what}, so nothing is left to train on: the shortest prompt has "
            f"{shortest_prompt} tokens and the shortest row {shortest_row}. The smallest max_length that "
            f"keeps a row is {smallest} (truncation={truncation!r})."
        )
    return TokenizedSet(
        tuple(kept),
        count,
        {reason: tuple(numbers) for reason, numbers in dropped.items()},
        tuple(truncated),
        lost,
        lost_supervised,
    )


def collate(examples: Iterable[Tokenized], pad_token_id: int, *, multiple_of: int = 1) -> dict[str, Any]:
    """Pad examples on the right into a batch of tensors.

    Labels are padded with -100 and the attention mask comes from lengths, so nothing depends on which
    token pads. Labels stay in place: the model shifts them itself.

    Returns
    -------
    dict
        input_ids, attention_mask and labels, int64, shape (examples, longest rounded up to multiple_of).

    Raises
    ------
    ValueError
        No examples, or one that was dropped.

    Examples
    --------
    >>> batch = collate([Tokenized((263, 1), (263, 1), 1), Tokenized((263, 264, 272, 1), (-100, 264, 272, 1), 3)], 1)
    >>> batch["labels"].tolist(), batch["attention_mask"].tolist()
    ([[263, 1, -100, -100], [-100, 264, 272, 1]], [[1, 1, 0, 0], [1, 1, 1, 1]])
    """
    import torch

    examples = list(examples)
    empty = next((i for i, example in enumerate(examples) if not example.input_ids), None)
    if not examples or empty is not None:
        found = "no examples" if not examples else f"example {empty} without tokens"
        raise ValueError(f"Can't make a batch: found {found}. Leave dropped examples out.")
    width = -(-max(map(len, examples)) // multiple_of) * multiple_of

    def padded(sequences, value):
        return torch.tensor([[*sequence, *[value] * (width - len(sequence))] for sequence in sequences])

    return {
        "input_ids": padded([e.input_ids for e in examples], pad_token_id),
        "attention_mask": padded([[1] * len(e) for e in examples], 0),
        "labels": padded([e.labels for e in examples], IGNORE),
    }
