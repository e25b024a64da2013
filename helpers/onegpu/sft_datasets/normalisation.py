"""Mend rows, changing only what you ask for and counting every change.

Every repair is off until named. What can't be mended is an error, or dropped and counted when you say so.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onegpu.sft_datasets.formats import Example, Message, RowError, format_of, read_chat, to_example


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
        Rows of any format, or ``Example`` values.
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
    wanted = {
        "strip": strip,
        "clean_characters": clean_characters,
        "nfc": nfc,
        "merge_turns": merge_turns,
        "fold_system": fold_system,
        "drop_leading_answer": drop_leading_answer,
        "drop_unanswered": drop_unanswered,
    }
    repairs = [name for name, on in wanted.items() if on]
    examples: list[Example] = []
    changes: Counter[str] = Counter()
    dropped: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        try:
            examples.append(mend(row, index, repairs, changes))
        except RowError as error:
            if not drop_bad:
                raise
            dropped.setdefault(error.problem.code, []).append(index)
    return Normalised(
        tuple(examples), dict(changes), {code: tuple(numbers) for code, numbers in dropped.items()}
    )


def mend(
    row: Mapping[str, Any] | Example, index: int | None, repairs: Sequence[str], changes: Counter[str]
) -> Example:
    """Mend one row with the repairs named and count those that changed it.

    Raises
    ------
    RowError
        If it still can't be trained on.
    ValueError
        For a repair that isn't one.
    """
    example = _unchecked(row, index)
    messages, text_input, changed = list(example.messages), example.input, []
    learned = [i not in example.not_learned for i in range(len(messages))]
    for name in repairs:
        if name not in REPAIRS:
            raise ValueError(f"repairs has {name!r}, expected names among {', '.join(REPAIRS)}")
        before = messages
        messages, learned = REPAIRS[name](messages, learned)
        if messages != before:
            changed.append(name)
            if name in ("strip", "clean_characters", "nfc"):
                text_input = REPAIRS[name]([Message(role="user", content=text_input)], [True])[0][0][
                    "content"
                ]
    to_example({"messages": messages}, index)  # is it right now?
    changes.update(changed)
    off = frozenset(i for i, on in enumerate(learned) if not on)
    return replace(example, messages=tuple(messages), input=text_input, not_learned=off)


def _unchecked(row, index) -> Example:
    """The example of a row whose turns may stand in any order; other problems than that are errors."""
    if isinstance(row, Example):
        return row
    chat = read_chat(row, index)
    if format_of(row) not in ("messages", "sharegpt", "prompt_completion"):
        return to_example(row, index)
    for problem in chat.problems():
        if problem.code not in REPAIRABLE:
            raise RowError(problem)
    return chat.example()


REPAIRABLE = (
    "roles_not_alternating",
    "no_answer",
    "empty_answer",
    "placeholder_answer",
    "empty_turn",
    "nothing_to_learn",
)
"""Codes of problems that a repair may mend; what is still there after it is an error."""


def _on_text(function):
    def repair(messages, learned):
        return [{**m, "content": function(m["content"])} for m in messages], learned

    return repair


def _clean(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in text if c in "\t\n" or (unicodedata.category(c) != "Cc" and c != "\ufeff"))


def _merge(messages, learned):
    merged, kept = [], []
    for message, on in zip(messages, learned, strict=True):
        same = merged and merged[-1]["role"] == message["role"] != "tool" and kept[-1] == on
        if same and not {*merged[-1], *message} - {"role", "content"}:
            text = "\n\n".join(part for part in (merged[-1]["content"], message["content"]) if part)
            merged[-1] = {**merged[-1], "content": text}
        else:
            merged.append(message)
            kept.append(on)
    return merged, kept


def _fold(messages, learned):
    if len(messages) > 1 and messages[0]["role"] == "system" and messages[1]["role"] == "user":
        folded = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        return [folded, *messages[2:]], learned[1:]
    return messages, learned


def _without_leading_answer(messages, learned):
    start = 1 if messages and messages[0]["role"] == "system" else 0
    end = start
    while end < len(messages) and messages[end]["role"] == "assistant":
        end += 1
    return messages[:start] + messages[end:], learned[:start] + learned[end:]


def _without_unanswered(messages, learned):
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return messages[: last + 1], learned[: last + 1]


REPAIRS = {
    "strip": _on_text(str.strip),
    "clean_characters": _on_text(_clean),
    "nfc": _on_text(lambda text: unicodedata.normalize("NFC", text)),
    "merge_turns": _merge,
    "fold_system": _fold,
    "drop_leading_answer": _without_leading_answer,
    "drop_unanswered": _without_unanswered,
}
"""Repairs by name: functions of messages and of which of them are learned."""
