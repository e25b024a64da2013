"""Pairs as a training run wants them: read from rows of any form, tokenized, both sides end to end in two flat arrays.

A pair is one example here: prompt and chosen answer, then the rejected answer, each up to its end token. The prompt stands
there once, but for its last token, which comes again before the rejected answer, whose first token is predicted from it.
``prompt_length`` of its figures is how many tokens both sides begin with, ``first_answer_end`` where the chosen side ends:
``parts_of`` cuts there, and ``sides_of`` puts the prompt before both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from onegpu.preference_data.logprobs import tokenize_sides
from onegpu.preference_data.rankings import (
    PreferencePair,
    load_rankings,
    split_rankings,
    to_pairs,
    to_ranking,
)
from onegpu.preference_data.validation import ULTRAFEEDBACK, to_pair, ultrafeedback_sample
from onegpu.sft_datasets import IGNORE, Tokenized, TokenizedSet, keys, read_rows
from onegpu.sft_datasets.tokenization import RowTokenizer
from onegpu.sft_datasets.tokenized import FlatExamples

SHIPPED = "rankings"
"""Name of the shipped rankings, as a data set (``onegpu.data``)."""

TRUNCATIONS = ("drop", "right")

READ = frozenset({"prompt", "chosen", "rejected", "answers", "ranks", "order", "reason"}) | keys.KNOWN
"""Keys of a row that are read here, or that change nothing. Others are counted."""


class NoPreferences(ValueError):
    """A row that holds no preferences at all, such as a chat."""


def row_pairs(row: Mapping[str, Any] | PreferencePair, row_index: int | None = None) -> list[PreferencePair]:
    """Read one row as pairs: one as ``to_pair`` reads it, or all those of a ranking (``to_ranking``).

    Raises
    ------
    ValueError
        Naming row, field, what was found, what was expected and what to do; ``NoPreferences`` for a row of another kind.

    Examples
    --------
    >>> [(p.chosen, p.rejected) for p in row_pairs({"prompt": "2+2?", "answers": ["5", "4", "four"], "ranks": [3, 1, 1]})]
    [('4', '5'), ('four', '5')]
    >>> row_pairs({"prompt": "2+2?", "completion": "4"}, 7)
    Traceback (most recent call last):
    ...
    onegpu.preference_data.pair_sets.NoPreferences: row 7: found prompt, completion, expected prompt, chosen and rejected, or prompt, answers and ranks.
    """
    if isinstance(row, PreferencePair):
        return [to_pair(row, row_index)]
    if row.get("answers") is not None and row.get("chosen") is None:
        pairs = to_pairs([to_ranking(row, row_index)])
        if not pairs:
            raise ValueError(
                f"{_where(row_index)}field 'ranks': found a tie of all answers, expected at least one pair. Leave the row out."
            )
        return pairs
    if not {"chosen", "rejected"} & row.keys():
        raise NoPreferences(
            f"{_where(row_index)}found {', '.join(map(str, row)) or 'nothing'}, expected prompt, chosen and rejected, or "
            "prompt, answers and ranks."
        )
    return [to_pair(row, row_index)]


def _where(row_index: int | None) -> str:
    return "" if row_index is None else f"row {row_index}: "


def read_preferences(
    source: str | os.PathLike,
    *,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Iterator[Mapping[str, Any] | PreferencePair]:
    """Read rows of preferences, as ``row_pairs`` takes them.

    Parameters
    ----------
    source, columns, limit
        As in ``sft_datasets.read_rows``.
    split
        "train" or "heldout", where the source has both: of the shipped rankings ``split_rankings`` makes them, and
        UltraFeedback's binarized set calls its own "train_prefs" and "test_prefs".

    Examples
    --------
    >>> train, held_out = (list(read_preferences("rankings", split=split)) for split in ("train", "heldout"))
    >>> len(train) + len(held_out), {pair.prompt for pair in train} & {pair.prompt for pair in held_out}
    (440, set())
    """
    if str(source) == SHIPPED:
        train, held_out = split_rankings(load_rankings())
        yield from islice(to_pairs(held_out if split == "heldout" else train), limit)
        return
    fallback = None
    if str(source) == ULTRAFEEDBACK:
        split, fallback = (
            {"train": "train_prefs", "heldout": "test_prefs"}.get(split, split),
            ultrafeedback_sample,
        )
    yield from read_rows(source, split=split, columns=columns, limit=limit, fallback=fallback)


def pairs_in(
    rows: Iterable[Mapping[str, Any] | PreferencePair],
) -> Iterator[tuple[int, PreferencePair | None, ValueError | None]]:
    """Read rows as pairs, one after the other.

    Yields
    ------
    tuple
        Row number, and a pair of that row or why it has none.

    Examples
    --------
    >>> rows = [{"prompt": "2+2?", "answers": ["5", "4", "four"], "order": "B>C>A"}, {"prompt": "3+3?", "chosen": "6"}]
    >>> [(row, pair and pair.chosen, bool(error)) for row, pair, error in pairs_in(rows)]
    [(0, '4', False), (0, '4', False), (0, 'four', False), (1, None, True)]
    """
    for number, row in enumerate(rows):
        try:
            found = row_pairs(row, number)
        except ValueError as error:
            yield number, None, error
            continue
        for pair in found:
            yield number, pair, None


@dataclass
class _Found:
    """What is counted while pairs are tokenized."""

    count: int = 0
    lost: int = 0
    lost_supervised: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)
    truncated: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    unused: Counter[str] = field(default_factory=Counter)
    smallest: int | None = None


def tokenize_pair_set(
    rows: Iterable[Mapping[str, Any] | PreferencePair],
    tokenizer: Any,
    max_length: int | None = None,
    *,
    template: str = "model",
    truncation: str = "drop",
    bad_rows: str = "stop",
    stop_tokens: Iterable[str] = (),
    lay: Callable[[Iterable[Tokenized]], FlatExamples] = FlatExamples.of,
) -> TokenizedSet:
    """Tokenize rows of preferences for training: each example of the result is a pair, its two sides end to end.

    Parameters
    ----------
    rows
        Rows that ``row_pairs`` reads; the pairs of a ranking follow each other.
    tokenizer, template, stop_tokens
        As in ``sft_datasets.tokenize_rows``.
    max_length
        The most tokens of a pair: its prompt and both answers. None: no limit.
    truncation
        "drop": drop a pair that is longer. "right": cut each side at half of ``max_length`` on its own.
    bad_rows
        "stop" with an error at a row that can't be trained on, or "skip" it.
    lay
        As in ``sft_datasets.tokenize_rows``.

    Returns
    -------
    TokenizedSet
        Numbers of rows in it are numbers of pairs, as ``pairs_in`` yields them; those in ``bad_rows`` are numbers of rows.

    Raises
    ------
    ValueError
        A bad row; no rows; or no pair left, with the smallest max_length that would keep one.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> rows = [{"prompt": "2+2?", "chosen": "4", "rejected": "five"}]
    >>> done = tokenize_pair_set(rows, tiny_tokenizer(), template="chatml")
    >>> [tiny_tokenizer().decode([i for i in side["labels"] if i != -100]) for side in sides_of(done[0])]
    ['4<|im_end|>', 'five<|im_end|>']
    """
    if truncation not in TRUNCATIONS:
        raise ValueError(f"truncation is {truncation!r}, expected 'drop' or 'right' for pairs")
    side_length = max_length // 2 if truncation == "right" and max_length is not None else None
    work = RowTokenizer(
        tokenizer, side_length, template, "all", "right" if side_length else "drop", stop_tokens
    )
    found = _Found()
    examples = lay(_kept(rows, work, max_length, bad_rows, found))
    if not found.count:
        raise ValueError(
            "No rows: found an empty list, expected at least one row. Check the file and its split."
        )
    if not len(examples) and found.smallest is None:
        raise ValueError(f"None of the {found.count:,} pairs can be trained on. The first: {found.bad[0][1]}")
    if not len(examples):
        raise ValueError(
            f"max_length={max_length} leaves no pair of {found.count:,}: a pair's prompt and both answers go into one row. The "
            f"smallest max_length that keeps one is {found.smallest} (truncation={truncation!r})."
        )
    return TokenizedSet(
        examples, found.count, {reason: tuple(numbers) for reason, numbers in found.dropped.items()},
        tuple(found.truncated), found.lost, found.lost_supervised, tuple(found.bad),
        dict(found.unused.most_common()), end_ids=tuple(sorted(work.end_ids)),
        systems=tuple(sorted(work.systems, key=str)), unit="pairs",
    )  # fmt: skip


def _kept(rows, work: RowTokenizer, max_length, bad_rows: str, found: _Found) -> Iterator[Tokenized]:
    """The pairs that are kept, as one example each, while all else is counted."""
    row_of: dict[int, int] = {}

    def seen() -> Iterator[Any]:
        for row in rows:
            if isinstance(row, Mapping):
                found.unused.update(
                    key for key, value in row.items() if key not in READ and value not in (None, "")
                )
            yield row

    def is_bad(number: int, row: int, error: ValueError) -> None:
        if bad_rows == "stop":
            raise error
        found.bad.append((row, str(error)))
        found.dropped.setdefault("bad_row", []).append(number)

    def good() -> Iterator[tuple[int, PreferencePair]]:
        for number, (row, pair, error) in enumerate(pairs_in(seen())):
            found.count += 1
            if error is not None:
                is_bad(number, row, error)
                continue
            row_of[number] = row
            yield number, pair

    for number, _, sides, error in tokenize_sides(good(), work):
        row = row_of.pop(number)
        if error is not None:
            is_bad(number, row, _of_row(error, number, row))
            continue
        one = _end_to_end(sides, number) if not any(side.dropped for side in sides) else None
        if one is None or (max_length is not None and len(one) > max_length):
            reason = next((side.dropped for side in sides if side.dropped), "too_long")
            found.dropped.setdefault(reason, []).append(number)
            found.lost += sum(side.length for side in sides)
            found.lost_supervised += sum(
                side.supervised_tokens + side.lost_supervised_tokens for side in sides
            )
            # Cut at the right, a side needs its prompt and one token more.
            works = 2 * (sides[0].prompt_length + 1) if work.max_length else len(one)
            found.smallest = min(found.smallest or works, works)
            continue
        lost = sum(side.lost_tokens for side in sides)
        if lost:
            found.truncated.append(number)
            found.lost += lost
            found.lost_supervised += sum(side.lost_supervised_tokens for side in sides)
        yield one


def _of_row(error: ValueError, number: int, row: int) -> ValueError:
    """The error with the number of the row in place of the pair's, where a row before had several pairs."""
    return error if number == row else ValueError(str(error).replace(f"row {number}", f"row {row}", 1))


def _end_to_end(sides: tuple[Tokenized, Tokenized], number: int) -> Tokenized:
    """Both sides, each up to its last supervised token: what a template writes after the end token teaches nothing."""
    chosen, rejected = (
        (side.input_ids[:end], side.labels[:end])
        for side in sides
        for end in [max(i for i, label in enumerate(side.labels) if label != IGNORE) + 1]
    )
    most = min(side.prompt_length for side in sides)
    common = next((i for i in range(most) if chosen[0][i] != rejected[0][i]), most)
    rest = slice(max(common - 1, 0), None)
    return Tokenized(
        chosen[0] + rejected[0][rest], chosen[1] + rejected[1][rest], sum(side.supervised_tokens for side in sides), None,
        sum(side.lost_tokens for side in sides), sum(side.lost_supervised_tokens for side in sides),
        sum(side.length for side in sides), common, len(chosen[0]), number, sides[0].question,
    )  # fmt: skip


Side = dict[str, list[int]]


def parts_of(pair: Tokenized) -> tuple[tuple[Side, Side], int]:
    """Take an example of ``tokenize_pair_set`` apart.

    Returns
    -------
    tuple
        (prompt and chosen answer, rejected answer after the prompt's last token), each with input_ids and labels; and
        how many tokens of the first part come before the second.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> (pair,) = tokenize_pair_set([{"prompt": "2+2?", "chosen": "4", "rejected": "5"}], tiny_tokenizer()).examples
    >>> (first, second), before = parts_of(pair)
    >>> first["input_ids"][before] == second["input_ids"][0], second["labels"][0]
    (True, -100)
    """
    first, second = (
        {"input_ids": list(pair.input_ids[part]), "labels": list(pair.labels[part])}
        for part in (slice(pair.first_answer_end), slice(pair.first_answer_end, None))
    )
    return (first, second), max(pair.prompt_length - 1, 0)


def sides_of(pair: Tokenized) -> tuple[Side, Side]:
    """Take an example of ``tokenize_pair_set`` apart: input_ids and labels of the chosen and of the rejected side."""
    (chosen, rejected), before = parts_of(pair)
    return chosen, {name: chosen[name][:before] + rejected[name] for name in rejected}
