"""Rows of every common SFT format in one form: an `Example`, a tuple of chat messages.

Alpaca, ShareGPT, messages and prompt/completion rows say the same thing with other keys. Everything
after this module sees only `Example`, so that a wrong key is found here, by name, and not as an empty
prompt three steps later.

Sources: the formats as their data sets publish them (tatsu-lab/stanford_alpaca, ShareGPT exports read by
axolotl and FastChat, TRL's conversational and prompt/completion formats).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

ROLE_NAMES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What other formats call the four roles."""

NO_INPUT = frozenset({"", "<noinput>", "noinput", "no input", "<no input>", "n/a", "none", "nan"})
"""What stands in an `input` field when there is no input, lower case."""

NO_OUTPUT = frozenset({"<no output>", "<nooutput>", "no output", "<noinput>", "<no input>", "n/a", "nan"})
"""What stands in an answer field when there is no answer, lower case."""


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Example:
    """One training example: a chat whose last turn is the assistant's.

    Attributes
    ----------
    messages
        The turns: an optional system message, then user and assistant in turn (a tool's result may
        stand between two assistant turns).
    input
        The `input` of an Alpaca row, without which the Alpaca template can't be filled as its authors
        meant it. It also ends the user message, after an empty line. Empty for all other formats.
    """

    messages: tuple[Message, ...]
    input: str = ""

    def __str__(self) -> str:
        return "\n".join(f"{m['role']}: {m['content']}" for m in self.messages)


@dataclass(frozen=True)
class Problem:
    """What is wrong with one field of one row, and what to do about it.

    `code` names the kind (`empty_answer`, `unknown_role`, ...); reports count by it.
    """

    row: int | None
    field: str
    code: str
    found: str
    expected: str
    fix: str

    def __str__(self) -> str:
        where = "row" if self.row is None else f"row {self.row}"
        return f"{where}, field {self.field!r}: found {self.found}, expected {self.expected}. {self.fix}"


class RowError(ValueError):
    """A row that can't become an `Example`; `problem` holds row, field, code, found, expected, fix."""

    def __init__(self, problem: Problem):
        super().__init__(str(problem))
        self.problem = problem

    def __reduce__(self):
        return type(self), (self.problem,)


def to_example(row: Mapping[str, Any] | Example, row_index: int | None = None) -> Example:
    """Bring one row of any known format into the common form.

    The first of these that the row has (with a value other than None) decides its format:
    `messages`; `conversations` (ShareGPT); `prompt` with `completion`, both text or both lists of
    messages; `instruction` with `output` or `response` (Alpaca).

    Parameters
    ----------
    row
        The row. An `Example` is returned as it is.
    row_index
        The row's number, for error messages.

    Raises
    ------
    RowError
        (a `ValueError`) naming row, field, what was found, what was expected and what to do: unknown
        keys or role, no answer, turns that don't alternate, a value that isn't text.

    Examples
    --------
    >>> to_example({"instruction": "Add.", "input": "2 and 3", "output": "5"}).messages
    ({'role': 'user', 'content': 'Add.\\n\\n2 and 3'}, {'role': 'assistant', 'content': '5'})
    >>> to_example({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]})
    Example(messages=({'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}), input='')
    >>> to_example({"instruction": "Add.", "input": "2 and 3", "output": None}, row_index=7)
    Traceback (most recent call last):
    ...
    onegpu.sft_datasets.formats.RowError: row 7, field 'output': found None, expected an answer. \
Write the answer or leave the row out.
    """
    if isinstance(row, Example):
        return row
    problem = next(problems(row, row_index), None)
    if problem is not None:
        raise RowError(problem)
    if format_of(row) == "alpaca":
        text_input = row.get("input")
        text_input = "" if is_blank(text_input, NO_INPUT) else text_input
        question = row["instruction"] + (f"\n\n{text_input}" if text_input else "")
        return Example(
            (
                Message(role="user", content=question),
                Message(role="assistant", content=row[_answer_key(row)]),
            ),
            input=text_input,
        )
    return Example(tuple(Message(role=role, content=content) for _, role, content in _turns(row)))


def format_of(row: Mapping[str, Any]) -> str | None:
    """Say which format a row has: "messages", "sharegpt", "prompt_completion", "alpaca" or None.

    Examples
    --------
    >>> format_of({"prompt": "2+2=", "completion": "4"})
    'prompt_completion'
    >>> format_of({"question": "2+2?", "answer": "4"}) is None
    True
    """

    def has(key: str) -> bool:
        return row.get(key) is not None

    if has("messages"):
        return "messages"
    if has("conversations"):
        return "sharegpt"
    if has("prompt") and "completion" in row:
        return "prompt_completion"
    if "instruction" in row and ("output" in row or "response" in row):
        return "alpaca"
    return None


def is_blank(value: Any, placeholders: frozenset[str] = frozenset()) -> bool:
    """Tell whether a field holds nothing: None, NaN, white space only, or one of `placeholders`.

    Examples
    --------
    >>> [is_blank(v, NO_INPUT) for v in (None, float("nan"), "  ", "<noinput>", "0")]
    [True, True, True, True, False]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return isinstance(value, str) and (not value.strip() or value.strip().lower() in placeholders)


def problems(row: Mapping[str, Any], row_index: int | None = None) -> Iterator[Problem]:
    """Yield everything that keeps a row from becoming an `Example`, in the order of its fields.

    Examples
    --------
    >>> [p.code for p in problems({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": ""}]})]
    ['unknown_role', 'empty_turn', 'no_answer']
    """
    if not isinstance(row, Mapping):
        yield Problem(
            row_index,
            "(row)",
            "not_a_mapping",
            f"a {type(row).__name__}",
            "a mapping from column to value",
            "Give each row as a dict.",
        )
        return
    kind = format_of(row)
    if kind is None:
        yield Problem(
            row_index,
            "(columns)",
            "unknown_format",
            f"columns {', '.join(map(str, row)) or '(none)'}",
            "messages, conversations, prompt + completion, or instruction + output",
            "Rename the columns, for example with read_rows(..., columns={'question': 'prompt', ...}).",
        )
    elif kind == "alpaca":
        yield from _alpaca_problems(row, row_index)
    else:
        yield from _chat_problems(row, row_index)


def _answer_key(row: Mapping[str, Any]) -> str:
    return "output" if "output" in row else "response"


def _show(value: Any) -> str:
    """Show a found value so that it can be searched for, at most 60 characters of it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _alpaca_problems(row: Mapping[str, Any], row_index: int | None) -> Iterator[Problem]:
    key = _answer_key(row)
    for field in ("instruction", "input", key):
        value = row.get(field)
        if field == "input" and is_blank(value):
            continue
        if not isinstance(value, str) and not is_blank(value):
            yield _not_text(row_index, field, value)
        elif field == "instruction" and is_blank(value):
            yield Problem(
                row_index,
                field,
                "empty_instruction",
                _show(value),
                "an instruction",
                "Write the instruction or leave the row out.",
            )
        elif field == key and is_blank(value, NO_OUTPUT):
            yield _no_answer(row_index, field, value)


def _not_text(row_index: int | None, field: str, value: Any) -> Problem:
    return Problem(
        row_index,
        field,
        "not_text",
        f"{_show(value)} of type {type(value).__name__}",
        "text",
        "Convert it to text where it is read (pandas: dtype=str, keep_default_na=False).",
    )


def _no_answer(row_index: int | None, field: str, value: Any) -> Problem:
    code = "placeholder_answer" if isinstance(value, str) and value.strip() else "empty_answer"
    return Problem(
        row_index, field, code, _show(value), "an answer", "Write the answer or leave the row out."
    )


def _turns(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(field, role, content) of each turn; roles are renamed where they are known."""
    if format_of(row) == "prompt_completion":
        sides = [("prompt", "user", row["prompt"]), ("completion", "assistant", row["completion"])]
    else:
        key = "messages" if row.get("messages") is not None else "conversations"
        sides = [(key, "", row[key])]
    turns = []
    for field, role, value in sides:
        if role and (isinstance(value, str) or not isinstance(value, Sequence)):
            turns.append((field, role, value))
            continue
        for i, turn in enumerate(value):
            name = turn.get("role", turn.get("from"))
            content = turn.get("content", turn.get("value"))
            name = ROLE_NAMES.get(name.lower(), name) if isinstance(name, str) else name
            turns.append((f"{field}[{i}]", name, content))
    return turns


def _chat_problems(row: Mapping[str, Any], row_index: int | None) -> Iterator[Problem]:
    for field in ("messages", "conversations", "prompt", "completion"):
        value = row.get(field)
        if value is None or (isinstance(value, str) and field in ("prompt", "completion")):
            continue
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_list or not all(isinstance(turn, Mapping) for turn in value):
            if field in ("messages", "conversations"):
                expected = "a list of messages, each with role and content"
                yield Problem(
                    row_index, field, "not_messages", _show(value), expected, "Put each turn in a dict."
                )
                return
            if is_list:
                yield Problem(
                    row_index,
                    field,
                    "not_messages",
                    _show(value),
                    "text or a list of messages",
                    "Put each turn in a dict.",
                )
                return
    turns = _turns(row)
    if not turns:
        yield Problem(
            row_index,
            "messages" if "messages" in row else "conversations",
            "no_messages",
            "an empty list",
            "at least a user turn and an assistant turn",
            "Leave the row out.",
        )
        return
    known = set(ROLE_NAMES.values())
    previous = None
    for i, (field, role, content) in enumerate(turns):
        last = i == len(turns) - 1
        if role not in known:
            yield Problem(
                row_index,
                field,
                "unknown_role",
                f"role {_show(role)}",
                f"one of {', '.join(sorted(ROLE_NAMES))}",
                "Rename the role before reading.",
            )
        elif not _may_follow(previous, role):
            before = "the start" if previous is None else f"a {previous} turn"
            expected = " or ".join(_FOLLOWERS.get(previous, ("user", "assistant")))
            yield Problem(
                row_index,
                field,
                "roles_not_alternating",
                f"a {role} turn after {before} (turn {i})",
                expected,
                "Merge or drop the turn: normalise(rows, merge_turns=True) joins turns of one role.",
            )
        if is_blank(content, NO_OUTPUT) if role == "assistant" else is_blank(content):
            if role == "assistant":
                yield _no_answer(row_index, field, content)
            else:
                yield Problem(
                    row_index, field, "empty_turn", _show(content), "text", "Fill the turn or drop the row."
                )
        elif not isinstance(content, str):
            yield _not_text(row_index, field, content)
        if last and role != "assistant":
            yield Problem(
                row_index,
                field,
                "no_answer",
                f"a last turn by {_show(role)}",
                "a last turn by the assistant",
                "Add the answer, or drop the turns after the last answer.",
            )
        previous = role


_FOLLOWERS = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def _may_follow(previous: str | None, role: str) -> bool:
    return role in _FOLLOWERS.get(previous, ("user", "assistant", "tool"))
