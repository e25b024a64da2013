"""Rows to token ids and labels: every supervised token is an answer's or its end token's.

The rule for a token on the border: it is supervised if at least one of its characters belongs to a
supervised span. So no character of an answer goes untrained; at worst one space of the prompt is learned
with it. Padding plays no part here: labels come from positions in the text, so an end token stays
supervised also where pad == eos (transformers#23530).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tqdm.auto import tqdm

from onegpu.sft_datasets.duplicates import normalise_text
from onegpu.sft_datasets.formats import Example, Problem, RowError, read_chat, to_example, unused_keys
from onegpu.sft_datasets.normalisation import mend
from onegpu.sft_datasets.templates import TURNS, ChatTemplate, Rendered, control_tokens
from onegpu.sft_datasets.tokenized import FlatExamples, Tokenized, TokenizedSet

IGNORE = -100
"""The label that the loss skips."""

TRUNCATIONS = ("error", "drop", "turns", "right")


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
        An ``Example``, or a row of any format that ``to_example`` reads.
    tokenizer
        A fast transformers tokenizer (it must give character offsets).
    max_length
        The most tokens to keep; None for no limit.
    template, turns
        As in ``render``.
    truncation
        What to do with an example longer than ``max_length``. "error": raise. "drop": drop it whole.
        "turns": keep as many whole turns as end in a whole answer, drop the example if not even one
        fits. "right": cut at max_length, in the middle of an answer if need be; what was cut is in
        ``lost_supervised_tokens``. An example of which no supervised token is left is always dropped.
    row_index
        The row's number, for messages and ``Tokenized.row``.

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
    if row_index is None and isinstance(row, Mapping):
        row = to_example(row)
    one = [(row_index, row)]
    ((done, error),) = RowTokenizer(tokenizer, max_length, template, turns, truncation).batch(one)
    if error is not None:
        raise error
    return done


def system_prompt(example: Example) -> str | None:
    """The text of an example's first turn if that is the system's."""
    first = next(iter(example.messages), {})
    return first["content"] if first.get("role") == "system" else None


class RowTokenizer:
    """Rows to tokenized examples, a batch at a time, with one template.

    Parameters
    ----------
    tokenizer, max_length, template, turns, truncation, repairs, stop_tokens
        As in ``tokenize_rows``.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int | None = None,
        template: str = "model",
        turns: str = "all",
        truncation: str = "drop",
        stop_tokens: Iterable[str] = (),
        repairs: Sequence[str] = (),
    ):
        if truncation not in TRUNCATIONS:
            raise ValueError(f"truncation={truncation!r}: expected one of {', '.join(TRUNCATIONS)}.")
        if turns not in TURNS:
            raise ValueError(f"turns={turns!r}: expected 'all' or 'last'.")
        if max_length is not None and max_length < 2:
            raise ValueError(
                f"max_length={max_length}: expected at least 2 (one token to read and one to predict)."
            )
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(tokenizer).__name__} gives no character offsets, which the mask needs: load the fast "
                "tokenizer (AutoTokenizer does so by default)."
            )
        self.tokenizer, self.max_length, self.turns, self.truncation = (
            tokenizer,
            max_length,
            turns,
            truncation,
        )
        self.template = ChatTemplate(tokenizer, template, stop_tokens)
        self.control = control_tokens(tokenizer)
        self.end_ids: set[int] = set()
        self.systems: set[str | None] = set()
        self.repairs, self.changes, self.unused = tuple(repairs), Counter(), Counter()

    def batch(
        self, rows: Sequence[tuple[int | None, Any]]
    ) -> list[tuple[Tokenized | None, ValueError | None]]:
        """For each (number, row) the tokenized example, or what is wrong with the row."""
        rendered = [self._render(row, number) for number, row in rows]
        texts = [done[0].text for done in rendered if not isinstance(done, ValueError)]
        # add_special_tokens=False: the template has already written BOS where there is one.
        encoded = (
            self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
            if texts
            else None
        )
        encodings = iter(encoded.encodings if encoded else ())
        found = []
        for (number, _), done in zip(rows, rendered, strict=True):
            if isinstance(done, ValueError):
                found.append((None, done))
                continue
            try:
                found.append((self._finish(*done, next(encodings), number), None))
            except ValueError as error:
                found.append((None, error))
        return found

    def _render(self, row: Any, number: int | None) -> tuple[Rendered, int] | ValueError:
        """The row's text, and the number of its question; or what is wrong with it."""
        try:
            if isinstance(row, Example) or self.repairs:
                self.unused.update(unused_keys(row))
                example = mend(row, number, self.repairs, self.changes) if self.repairs else row
            else:
                chat = read_chat(row, number)
                self.unused.update(dict.fromkeys(chat.unused).keys())
                example = chat.checked()
            self._check_text(example, number)
            if len(self.systems) < 2:
                self.systems.add(system_prompt(example))
            return self.template.render(example, self.turns), question_number(example)
        except RowError as error:
            return error
        except ValueError as error:
            return ValueError(f"{'' if number is None else f'row {number}: '}{error}")

    def _check_text(self, example: Example, number: int | None) -> None:
        """A special token inside a text would be one for the model: a stop in the middle of an answer, another's turn."""
        for i, message in enumerate(example.messages):
            for text in (
                message["content"],
                message.get("reasoning_content", ""),
                str(message.get("tool_calls", "")),
            ):
                found = self.control.search(text)
                if found:
                    raise RowError(
                        Problem(
                            number, f"turn {i} ({message['role']})", "special_token_in_text", repr(found[0]),
                            "text without the tokenizer's special tokens", "Remove it, or write it with a space inside.",
                        )
                    )  # fmt: skip

    def _finish(self, rendered: Rendered, question: int, encoding: Any, number: int | None) -> Tokenized:
        where = "" if number is None else f"row {number}: "
        input_ids = encoding.ids
        bos = self.tokenizer.bos_token_id
        if bos is not None and bos != self.tokenizer.eos_token_id and input_ids[:2] == [bos, bos]:
            raise ValueError(
                f"{where}the text starts with two {self.tokenizer.bos_token!r}: the chat template writes it twice, "
                "or the first message begins with it. Remove one."
            )
        length = len(input_ids)
        labels = [IGNORE] * length
        spans = [token_span(encoding, start, end) for start, end in rendered.spans]
        for first, last in spans:
            labels[first : last + 1] = input_ids[first : last + 1]
            self.end_ids.add(input_ids[last])
        prompt_length, first_answer_end = spans[0][0], spans[0][1] + 1
        keep = length if self.max_length is None else min(length, self.max_length)
        dropped = None
        if keep < length:
            if self.truncation == "error":
                raise ValueError(
                    f"{where}{length} tokens, {prompt_length} of them before the first answer, are more than "
                    f"max_length={self.max_length}. Raise max_length, or set truncation='drop', 'turns' or 'right'."
                )
            if self.truncation == "drop":
                keep, dropped = 0, "too_long"
            elif self.truncation == "turns":
                keep = max((last + 1 for _, last in spans if last < keep), default=0)
                dropped = None if keep else "too_long"
        kept_ids, kept_labels = tuple(input_ids[:keep]), tuple(labels[:keep])
        supervised = _count(kept_labels)
        if not dropped and not supervised:
            kept_ids, kept_labels, dropped = (), (), "no_answer_left"
        return Tokenized(
            kept_ids, kept_labels, supervised, dropped, length - len(kept_ids), _count(labels) - supervised, length,
            prompt_length, first_answer_end, number, question,
        )  # fmt: skip


def token_span(encoding: Any, start: int, end: int) -> tuple[int, int]:
    """First and last token of a span of characters, by the rule of ``supervised_mask``, from a fast tokenizer's encoding."""
    first = next(t for t in map(encoding.char_to_token, range(start, end)) if t is not None)
    last = next(t for t in map(encoding.char_to_token, range(end - 1, start - 1, -1)) if t is not None)
    return first, last


def question_number(example: Example) -> int:
    """A number that examples with the same question share: of all turns but the last, white space and case apart (int64)."""
    text = normalise_text("\n".join(message["content"] for message in example.messages[:-1]))
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _count(labels: Sequence[int]) -> int:
    return len(labels) - labels.count(IGNORE) - (bool(labels) and labels[0] != IGNORE)


def tokenize_rows(
    rows: Iterable[Mapping[str, Any] | Example],
    tokenizer: Any,
    max_length: int | None = None,
    *,
    template: str = "model",
    turns: str = "all",
    truncation: str = "drop",
    bad_rows: str = "stop",
    repairs: Sequence[str] = (),
    stop_tokens: Iterable[str] = (),
    batch_size: int = 256,
    progress: bool = False,
    lay: Callable[[Iterable[Tokenized]], FlatExamples] = FlatExamples.of,
) -> TokenizedSet:
    """Tokenize rows and report what was dropped or truncated, by reason and row number.

    Parameters
    ----------
    rows
        Rows of any format that ``to_example`` reads, or ``Example`` values.
    tokenizer, max_length, template, turns, truncation
        As in ``tokenize``; here "drop" is the default.
    bad_rows
        What to do with a row that can't be trained on: "stop" with an error, or "skip" it; skipped rows are in
        ``bad_rows`` of the result, with what is wrong with each.
    repairs
        Names of repairs of ``normalise`` ("fold_system", "merge_turns", ...), applied before.
    stop_tokens
        As in ``render``.
    batch_size
        Rows tokenized at once, which the tokenizer spreads over the cores.
    progress
        Show a bar if it takes more than a few seconds (not where stderr is no terminal).
    lay
        What the examples are laid into, one after the other: memory, or a file (``cache``).

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
    if bad_rows not in BAD_ROWS:
        raise ValueError(f"bad_rows={bad_rows!r}: expected 'stop' or 'skip'.")
    work = RowTokenizer(tokenizer, max_length, template, turns, truncation, stop_tokens, repairs)
    found = _Found()
    with tqdm(desc="preparing rows", unit=" rows", delay=3, disable=None if progress else True) as bar:
        examples = lay(_kept(rows, work, bad_rows, batch_size, found, bar))
    if not found.count:
        raise ValueError(
            "No rows: found an empty list, expected at least one row. Check the file and its split."
        )
    if not len(examples) and found.shortest_row is None:
        raise ValueError(f"None of the {found.count:,} rows can be trained on. The first: {found.bad[0][1]}")
    if not len(examples):
        what = (
            "is shorter than every prompt"
            if max_length is not None and max_length <= found.shortest_prompt
            else "leaves no whole answer in any row"
        )
        raise ValueError(
            f"max_length={max_length} {what}, so nothing is left to train on: the shortest prompt has "
            f"{found.shortest_prompt} tokens and the shortest row {found.shortest_row}. The smallest max_length that "
            f"keeps a row is {found.smallest} (truncation={truncation!r})."
        )
    return TokenizedSet(
        examples, found.count, {reason: tuple(numbers) for reason, numbers in found.dropped.items()},
        tuple(found.truncated), found.lost, found.lost_supervised, tuple(found.bad), dict(work.unused.most_common()),
        dict(work.changes), tuple(sorted(work.end_ids)), tuple(sorted(work.systems, key=str)),
    )  # fmt: skip


BAD_ROWS = ("stop", "skip")


@dataclass
class _Found:
    """What is counted while rows are tokenized."""

    count: int = 0
    lost: int = 0
    lost_supervised: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)
    truncated: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    shortest_prompt: int | None = None
    shortest_row: int | None = None
    smallest: int | None = None


def _kept(
    rows, work: RowTokenizer, bad_rows: str, batch_size: int, found: _Found, bar: tqdm
) -> Iterator[Tokenized]:
    """The examples that are kept, while all else is counted."""
    numbered = enumerate(rows)
    while some := list(islice(numbered, batch_size)):
        bar.update(len(some))
        for (number, _), (one, error) in zip(some, work.batch(some), strict=True):
            found.count += 1
            if error is not None:
                if bad_rows == "stop":
                    raise error
                found.bad.append((number, str(error)))
                found.dropped.setdefault("bad_row", []).append(number)
                continue
            found.lost += one.lost_tokens
            found.lost_supervised += one.lost_supervised_tokens
            if one.dropped is None:
                if one.lost_tokens:
                    found.truncated.append(number)
                yield one
                continue
            found.dropped.setdefault(one.dropped, []).append(number)
            works = {
                "drop": one.length,
                "turns": one.first_answer_end,
                "right": max(2, one.prompt_length + 1),  # a label at position 0 does not count
            }.get(work.truncation, one.length)
            found.smallest = min(found.smallest or works, works)
            found.shortest_prompt = min(found.shortest_prompt or one.prompt_length, one.prompt_length)
            found.shortest_row = min(found.shortest_row or one.length, one.length)


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
