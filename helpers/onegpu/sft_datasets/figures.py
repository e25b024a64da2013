"""What a data set looks like: lengths, instruction verbs, answer types, languages, and what packing saves.

Figures to read before training, not scores: a set whose instructions all start with one word, or whose
answers are all of one kind, teaches that and little else (LIMA, arXiv 2305.11206).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from onegpu.packed_training import count_packed_rows
from onegpu.sft_datasets.formats import Example, to_example

_POLITE = re.compile(r"^(?:please|kindly|can you|could you|would you|i want you to|i need you to)\s+", re.I)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_SCRIPTS = ("HANGUL", "LATIN", "CJK", "HIRAGANA", "KATAKANA", "CYRILLIC", "ARABIC", "DEVANAGARI", "GREEK")


@dataclass(frozen=True)
class Lengths:
    """How long something is over all rows: count of rows by length, and the unit."""

    counts: Mapping[int, int]
    unit: str

    @property
    def total(self) -> int:
        """The sum of all lengths."""
        return sum(length * count for length, count in self.counts.items())

    def quantile(self, q: float) -> int:
        """The smallest length that at least a share q of the rows doesn't exceed.

        Examples
        --------
        >>> Lengths({1: 2, 5: 1, 100: 1}, "words").quantile(0.5)
        1
        """
        rows, seen = sum(self.counts.values()), 0
        for length in sorted(self.counts):
            seen += self.counts[length]
            if seen >= q * rows:
                return length
        return 0

    def __str__(self) -> str:
        low, middle, high, top = (self.quantile(q) for q in (0.05, 0.5, 0.95, 1.0))
        return f"5 % {low:,}, median {middle:,}, 95 % {high:,}, longest {top:,} {self.unit}"


@dataclass(frozen=True)
class Profile:
    """Figures of a data set; see ``profile``.

    Attributes
    ----------
    rows, turns
        Rows, and assistant turns in them.
    with_input, with_system
        Rows with an Alpaca input; with a system message.
    prompt_lengths, answer_lengths
        In words, or in tokens when ``profile`` had a tokenizer.
    verbs
        First words of the instructions, after "please" and the like, the most frequent first.
    languages
        Rows by the script that most letters of the row are in.
    answer_types
        Last answers by kind: json, code, list, number, label (one to three words), sentence, text.
    distinct_bigrams
        Different pairs of neighbouring words in the answers as a share of all pairs, 0 to 1.
    """

    rows: int
    turns: int
    with_input: int
    with_system: int
    prompt_lengths: Lengths
    answer_lengths: Lengths
    verbs: Mapping[str, int]
    languages: Mapping[str, int]
    answer_types: Mapping[str, int]
    distinct_bigrams: float

    def __str__(self) -> str:
        def shares(counts: Mapping[str, int], most: int = 8) -> str:
            total = sum(counts.values()) or 1
            return ", ".join(f"{name} {count / total:.1%}" for name, count in list(counts.items())[:most])

        rows = self.rows or 1
        return "\n".join(
            [
                f"rows: {self.rows:,} with {self.turns:,} answers; input {self.with_input / rows:.1%}, "
                f"system message {self.with_system / rows:.1%}",
                f"prompts: {self.prompt_lengths}",
                f"answers: {self.answer_lengths}",
                f"first words: {len(self.verbs):,} different; {shares(self.verbs)}",
                f"languages: {shares(self.languages)}",
                f"answer types: {shares(self.answer_types)}",
                f"distinct bigrams: {self.distinct_bigrams:.1%}",
            ]
        )

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def profile(rows: Iterable[Mapping[str, Any] | Example], tokenizer: Any = None) -> Profile:
    """Count what a data set is made of, in one pass.

    Parameters
    ----------
    rows
        Rows of any format, or ``Example`` values.
    tokenizer
        Measure lengths in its tokens (of the bare text) instead of words.

    Examples
    --------
    >>> rows = [{"instruction": "Please name a fruit.", "output": "Apple"},
    ...         {"instruction": "Write JSON.", "input": "a is 1", "output": '{"a": 1}'}]
    >>> done = profile(rows)
    >>> done.with_input, dict(done.verbs), dict(done.answer_types)
    (1, {'name': 1, 'write': 1}, {'label': 1, 'json': 1})
    """
    prompts, answers = Counter(), Counter()
    verbs, languages, types, bigrams = Counter(), Counter(), Counter(), Counter()
    count = turns = with_input = with_system = 0

    def length(text: str) -> int:
        if tokenizer is None:
            return len(text.split())
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    for index, row in enumerate(rows):
        example = to_example(row, index)
        count += 1
        with_input += bool(example.input)
        with_system += example.messages[0]["role"] == "system"
        prompt = "\n".join(turn["content"] for turn in example.messages[:-1])
        answer = example.messages[-1]["content"]
        prompts[length(prompt)] += 1
        answers[length(answer)] += 1
        first_question = next(turn["content"] for turn in example.messages if turn["role"] == "user")
        verbs[first_word(first_question)] += 1
        languages[script_of(f"{prompt}\n{answer}")] += 1
        types[answer_type(answer)] += 1
        for turn in example.messages:
            if turn["role"] == "assistant":
                turns += 1
                words = _WORD.findall(turn["content"].lower())
                bigrams.update(pairwise(words))
    unit = "words" if tokenizer is None else "tokens"
    return Profile(
        count,
        turns,
        with_input,
        with_system,
        Lengths(dict(sorted(prompts.items())), unit),
        Lengths(dict(sorted(answers.items())), unit),
        dict(verbs.most_common()),
        dict(languages.most_common()),
        dict(types.most_common()),
        len(bigrams) / bigrams.total() if bigrams else 0.0,
    )


def first_word(instruction: str) -> str:
    """The word that an instruction starts with, lower case, after words of politeness; often its verb.

    Examples
    --------
    >>> first_word("Could you please Translate this?"), first_word("번역해 주세요."), first_word("?")
    ('translate', '번역해', '')
    """
    text = instruction.strip()
    while match := _POLITE.match(text):
        text = text[match.end() :]
    word = _WORD.search(text)
    return word[0].lower() if word else ""


def script_of(text: str) -> str:
    """The script that most letters are in: "latin", "hangul", ..., "other", or "none" without letters.

    Examples
    --------
    >>> script_of("한국어 model"), script_of("all in English"), script_of("1 + 1")
    ('latin', 'latin', 'none')
    >>> script_of("한국어 문장입니다 ok")
    'hangul'
    """
    counts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if character.isalpha():
            name = unicodedata.name(character, "OTHER")
            counts[next((s for s in _SCRIPTS if name.startswith(s)), "OTHER").lower()] += count
    return counts.most_common(1)[0][0] if counts else "none"


def answer_type(answer: str) -> str:
    """What kind of text an answer is, by simple rules, the first that fits.

    json: parses as an object or array. code: holds a code fence, or two lines that start like code.
    list: two lines or more that start with a bullet or number. number: nothing but a number, perhaps with
    a unit of one word. label: one to three words. sentence: one line of at most 30 words. text: the rest.

    Examples
    --------
    >>> [answer_type(a) for a in ('{"a": 1}', "- a\\n- b", "3.5 km", "Very happy", "It is so, I think.")]
    ['json', 'list', 'number', 'label', 'sentence']
    """
    text = answer.strip()
    if text[:1] in ("{", "["):
        try:
            json.loads(text)
            return "json"
        except json.JSONDecodeError:
            pass
    lines = [line for line in text.splitlines() if line.strip()]
    code = sum(
        bool(re.match(r"\s*(def |class |import |from \w+ import|return\b|#include|for \(|\w+ = )", li))
        for li in lines
    )
    if "```" in text or code >= 2:
        return "code"
    if sum(bool(re.match(r"\s*(?:[-*•]|\d+[.)])\s", line)) for line in lines) >= 2:
        return "list"
    if re.fullmatch(r"[-+$€£₩]?\d[\d,.]*\s?%?(?:\s?[^\W\d]+)?", text):
        return "number"
    words = len(text.split())
    if words <= 3:
        return "label"
    return "sentence" if len(lines) == 1 and words <= 30 else "text"


@dataclass(frozen=True)
class PackingFigures:
    """How many token positions a data set takes, laid out in three ways; see ``packing_figures``.

    Attributes
    ----------
    tokens
        Real tokens.
    padded_to_max, padded_to_batch
        Positions when every row is padded to max_length; to the longest row of its batch.
    packed_rows, packed
        Rows of max_length after packing (best fit decreasing), and their positions.
    too_long
        Examples over max_length, not counted in anything else.
    """

    tokens: int
    padded_to_max: int
    padded_to_batch: int
    packed_rows: int
    packed: int
    too_long: int

    def __str__(self) -> str:
        def line(name: str, positions: int) -> str:
            return (
                f"{name}: {positions:,} positions, {self.tokens / max(1, positions):.1%} of them real tokens"
            )

        lines = [
            line("padded to max_length", self.padded_to_max),
            line("padded to the longest of the batch", self.padded_to_batch),
            line(f"packed into {self.packed_rows:,} rows", self.packed),
        ]
        return "\n".join(lines + ([f"too long: {self.too_long:,} examples"] if self.too_long else []))


def packing_figures(lengths: Sequence[int], max_length: int, batch_size: int = 8) -> PackingFigures:
    """Say what packing would save, before anything is packed.

    Parameters
    ----------
    lengths
        Tokens of each example, in training order.
    max_length
        Tokens in a row.
    batch_size
        Examples in a padded batch.

    Examples
    --------
    >>> print(packing_figures([3, 9, 4, 2], max_length=10, batch_size=2))
    padded to max_length: 40 positions, 45.0% of them real tokens
    padded to the longest of the batch: 26 positions, 69.2% of them real tokens
    packed into 2 rows: 20 positions, 90.0% of them real tokens
    """
    if max_length < 1 or batch_size < 1:
        raise ValueError(f"max_length={max_length}, batch_size={batch_size}: expected at least 1 for both.")
    fitting = [length for length in lengths if length <= max_length]
    batches = [fitting[i : i + batch_size] for i in range(0, len(fitting), batch_size)]
    rows = count_packed_rows(Counter(length for length in fitting if length), max_length)
    return PackingFigures(
        sum(fitting),
        len(fitting) * max_length,
        sum(len(batch) * max(batch) for batch in batches),
        rows,
        rows * max_length,
        len(lengths) - len(fitting),
    )
