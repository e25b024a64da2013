"""Find what is wrong with rows before a GPU does: a report by row, field and reason.

Errors keep a row from being trained on; warnings are rows that train on something you may not want. The
warnings follow the kinds of defect that AlpacaDataCleaned lists for the Alpaca data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onegpu.sft_datasets.formats import (
    NO_INPUT,
    Example,
    Problem,
    RowError,
    format_of,
    is_blank,
    problems,
    to_example,
    unused_keys,
)
from onegpu.sft_datasets.templates import control_tokens

SPECIAL_TOKENS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "<s>", "</s>",
    "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip
"""Text that common tokenizers read as one special token wherever it stands."""

_COMMON = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))

_MERGED = re.compile(r"^[ \t]*\d+\.\s*(?:Instruction|Input|Output):", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd\ufeff]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}")
_URL = re.compile(r"https?://\S+|www\.\S+")
_IMAGE = re.compile(
    r"\b(?:generate|draw|create|design|produce|paint|show)\b.{0,30}"
    r"\b(?:image|picture|photo|photograph|drawing|painting|logo|illustration)\b",
    re.IGNORECASE,
)
_EMPTY_CODE = re.compile(r"```\w*\s*```")

WARNINGS = {
    "merged_instructions": "several tasks run together in one answer",
    "control_characters": "stray escape or control characters",
    "special_token_in_text": "text that the tokenizer reads as a special token",
    "web_reference": "a link that a model without a browser can't follow",
    "image_request": "a request for an image from a text model",
    "empty_code": "a code block without code",
    "placeholder_input": "a word that stands for 'no input'",
    "answer_repeats_question": "an answer that only repeats the question",
    "unused_key": "a key that nothing uses, so that it isn't learned",
}
"""Codes of the warnings and what they mean."""


@dataclass(frozen=True)
class ValidationReport:
    """What ``validate`` found.

    Attributes
    ----------
    rows, clean_rows, bad_rows
        Rows read; without any finding; with at least one error.
    counts
        Findings by code, the most frequent first.
    problems
        The findings themselves, in row order, at most ``keep`` of ``validate``.
    """

    rows: int
    clean_rows: int
    bad_rows: int
    counts: Mapping[str, int]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """True when every row can be trained on."""
        return not self.bad_rows

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows: {self.clean_rows:,} clean, {self.bad_rows:,} can't be trained on, "
            f"{self.rows - self.clean_rows - self.bad_rows:,} with warnings only"
        ]
        for code, count in self.counts.items():
            first = next((p for p in self.problems if p.code == code), None)
            kind = "warning" if code in WARNINGS else "error"
            lines.append(f"{kind} {code}: {count:,}" + (f" (first: {first})" if first else ""))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        cells = "".join(
            f"<tr><td>{p.row}</td><td>{escape(p.field)}</td><td>{p.code}</td><td>{escape(p.found)}</td>"
            f"<td>{escape(p.expected)}</td><td>{escape(p.fix)}</td></tr>"
            for p in self.problems[:20]
        )
        more = f"<p>and {len(self.problems) - 20:,} more</p>" if len(self.problems) > 20 else ""
        return (
            f"<p>{escape(str(self).splitlines()[0])}</p><table><thead><tr><th>row</th><th>field</th>"
            f"<th>code</th><th>found</th><th>expected</th><th>what to do</th></tr></thead>"
            f"<tbody>{cells}</tbody></table>{more}"
        )


def validate(
    rows: Iterable[Mapping[str, Any] | Example],
    *,
    strict: bool = False,
    keep: int = 1000,
    tokenizer: Any = None,
) -> ValidationReport:
    """Check rows of any format, one at a time.

    Parameters
    ----------
    rows
        Rows or ``Example`` values; a stream is fine.
    strict
        Raise at the first error instead of going on.
    keep
        How many findings to keep whole; all are counted.
    tokenizer
        Whose special tokens to look for in texts; without one, those that are common.

    Raises
    ------
    RowError
        With strict, at the first row that can't be trained on.

    Examples
    --------
    >>> report = validate([{"instruction": "Add 2, 2", "output": "4"}, {"instruction": "Add 3, 3", "output": ""}])
    >>> report.ok, dict(report.counts)
    (False, {'empty_answer': 1})
    >>> print(report.problems[0])
    row 1, field 'output': found '', expected an answer. Write the answer or leave the row out.
    """
    counts: Counter[str] = Counter()
    kept: list[Problem] = []
    total = clean = bad = 0
    special = None if tokenizer is None else control_tokens(tokenizer)
    for index, row in enumerate(rows):
        total += 1
        errors = [] if isinstance(row, Example) else list(problems(row, index))
        if errors and strict:
            raise RowError(errors[0])
        found = errors or list(warnings(row, index, special))
        bad += bool(errors)
        clean += not found
        counts.update(problem.code for problem in found)
        kept.extend(found[: keep - len(kept)])
    return ValidationReport(total, clean, bad, dict(counts.most_common()), tuple(kept))


def warnings(
    row: Mapping[str, Any] | Example,
    row_index: int | None = None,
    special_tokens: re.Pattern[str] | None = None,
) -> Iterator[Problem]:
    """Yield what is suspicious in a row that can be trained on.

    Examples
    --------
    >>> row = {"instruction": "Name a fruit.", "output": "Apple\\n##\\n18. Instruction: Name a tree."}
    >>> [problem.code for problem in warnings(row)]
    ['merged_instructions']
    """

    def warn(field: str, code: str, found: str, fix: str) -> Problem:
        return Problem(row_index, field, code, f"{found.strip()[:60]!r}, {WARNINGS[code]}", "none of it", fix)

    example = to_example(row, row_index)
    for key in unused_keys(row):
        yield warn(key, "unused_key", key, "Remove it, or rename it to what it is called here.")
    if isinstance(row, Mapping) and format_of(row) == "alpaca":
        text_input = row.get("input")
        if not is_blank(text_input) and is_blank(text_input, NO_INPUT):
            yield warn("input", "placeholder_input", text_input, "It is read as no input; leave it empty.")
    for i, message in enumerate(example.messages):
        role, text = message["role"], message["content"]
        field = f"turn {i} ({role})"
        if match := _CONTROL.search(text):
            yield warn(field, "control_characters", match[0], "normalise(rows, clean_characters=True)")
        if special := (special_tokens or _COMMON).search(text):
            yield warn(
                field, "special_token_in_text", special[0], "Remove it, or write it with a space inside."
            )
        if role == "user":
            if match := _URL.search(text):
                yield warn(field, "web_reference", match[0], "Put the page's text into the row, or drop it.")
            if match := _IMAGE.search(text):
                yield warn(field, "image_request", match[0], "Drop the row, or let the answer decline.")
        if role == "assistant":
            if match := _MERGED.search(text):
                yield warn(field, "merged_instructions", match[0].strip(), "Split the row or cut the answer.")
            if match := _EMPTY_CODE.search(text):
                yield warn(field, "empty_code", match[0], "Write the code or drop the row.")
            previous = example.messages[i - 1]["content"] if i else ""
            if text.strip() and text.strip() == previous.strip():
                yield warn(field, "answer_repeats_question", text, "Write an answer or drop the row.")
