"""Mend rows, changing only what you ask for and counting every change.

Every repair is off until named. What can't be mended is an error, or dropped and counted when you say so.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onegpu.sft_datasets.formats import Example, Message, RowError, _turns, format_of, problems, to_example


@dataclass(frozen=True)
class Normalised:
    """Mended examples and what was done to them.

    Attributes
    ----------
    examples
        In row order.
    changes
        Rows changed, by repair.
    dropped
        Row numbers dropped, by the code of their first problem.
    """

    examples: tuple[Example, ...]
    changes: Mapping[str, int]
    dropped: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        lines = [f"{len(self.examples):,} examples"]
        lines += [f"changed, {name}: {count:,} rows" for name, count in self.changes.items()]
        lines += [f"dropped, {code}: {len(rows):,} rows" for code, rows in self.dropped.items()]
        return "\n".join(lines)

    def __iter__(self):
        return iter(self.examples)

    def __len__(self) -> int:
        return len(self.examples)


def normalise(
    rows: Iterable[Mapping[str, Any] | Example],
    *,
    strip: bool = False,
    clean_characters: bool = False,
    nfc: bool = False,
    merge_turns: bool = False,
    fold_system: bool = False,
    drop_leading_answer: bool = False,
    drop_unanswered: bool = False,
    drop_bad: bool = False,
) -> Normalised:
    """Bring rows into the common form with the repairs you name, in the order in which they are listed.

    Parameters
    ----------
    rows
        Rows of any format, or `Example` values.
    strip
        Remove white space at both ends of every turn.
    clean_characters
        Remove control characters (all of Unicode's class Cc but tab and newline, and U+FEFF); turn
        "\\\\r\\\\n" and lone "\\\\r" into "\\\\n".
    nfc
        Compose characters (Unicode NFC), so that a Korean syllable is one character, not two or three.
    merge_turns
        Join turns of the same role that follow each other, with an empty line between.
    fold_system
        Move a leading system message into the user turn after it, with an empty line between.
    drop_leading_answer
        Remove assistant turns before the first user turn.
    drop_unanswered
        Remove turns after the last assistant turn.
    drop_bad
        Drop rows that still can't be trained on, and count them; else the first one is an error.

    Raises
    ------
    RowError
        A row that the named repairs don't mend, unless drop_bad.

    Examples
    --------
    >>> row = {"messages": [{"role": "user", "content": "Hi."}, {"role": "user", "content": "2+2?"},
    ...                     {"role": "assistant", "content": "4 "}]}
    >>> done = normalise([row], merge_turns=True)
    >>> done.examples[0].messages[0]["content"], done.examples[0].messages[1]["content"], done.changes
    ('Hi.\\n\\n2+2?', '4 ', {'merge_turns': 1})
    """
    repairs = {
        "strip": _on_text(str.strip) if strip else None,
        "clean_characters": _on_text(_clean) if clean_characters else None,
        "nfc": _on_text(lambda text: unicodedata.normalize("NFC", text)) if nfc else None,
        "merge_turns": _merge if merge_turns else None,
        "fold_system": _fold if fold_system else None,
        "drop_leading_answer": _without_leading_answer if drop_leading_answer else None,
        "drop_unanswered": _without_unanswered if drop_unanswered else None,
    }
    examples: list[Example] = []
    changes: Counter[str] = Counter()
    dropped: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        try:
            messages, text_input = _raw(row, index)
            changed = []
            for name, repair in repairs.items():
                if repair is not None:
                    before = messages
                    messages = repair(messages)
                    if messages != before:
                        changed.append(name)
                        if name in ("strip", "clean_characters", "nfc"):
                            text_input = repair([("user", text_input)])[0][1]
            chat = {"messages": [Message(role=role, content=text) for role, text in messages]}
            examples.append(Example(to_example(chat, index).messages, text_input))
            changes.update(changed)
        except RowError as error:
            if not drop_bad:
                raise
            dropped.setdefault(error.problem.code, []).append(index)
    return Normalised(
        tuple(examples), dict(changes), {code: tuple(numbers) for code, numbers in dropped.items()}
    )


def _raw(row, index) -> tuple[list[tuple[str, str]], str]:
    """(role, content) of each turn before any check of their order, and the Alpaca input."""
    if isinstance(row, Example) or format_of(row) in (None, "alpaca"):
        example = to_example(row, index)
        return [(m["role"], m["content"]) for m in example.messages], example.input
    for problem in problems(row, index):
        if problem.code in ("not_messages", "not_text", "no_messages"):  # nothing to repair on
            raise RowError(problem)
    return [(role, content) for _, role, content in _turns(row)], ""


def _on_text(function):
    def repair(messages):
        return [(role, function(text) if isinstance(text, str) else text) for role, text in messages]

    return repair


def _clean(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in text if c in "\t\n" or (unicodedata.category(c) != "Cc" and c != "\ufeff"))


def _merge(messages):
    merged: list[tuple[str, str]] = []
    for role, text in messages:
        if merged and merged[-1][0] == role and role != "tool":
            merged[-1] = (role, "\n\n".join(part for part in (merged[-1][1], text) if part))
        else:
            merged.append((role, text))
    return merged


def _fold(messages):
    if len(messages) > 1 and messages[0][0] == "system" and messages[1][0] == "user":
        return [("user", f"{messages[0][1]}\n\n{messages[1][1]}"), *messages[2:]]
    return messages


def _without_leading_answer(messages):
    start = 1 if messages and messages[0][0] == "system" else 0
    end = start
    while end < len(messages) and messages[end][0] == "assistant":
        end += 1
    return messages[:start] + messages[end:]


def _without_unanswered(messages):
    last = max((i for i, (role, _) in enumerate(messages) if role == "assistant"), default=-1)
    return messages[: last + 1]
