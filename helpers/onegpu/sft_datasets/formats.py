"""Rows of every common SFT format in one form: an ``Example``, a tuple of chat messages.

Alpaca, ShareGPT, messages and prompt/completion rows say the same thing with other keys. Everything
after this module sees only ``Example``, so that a wrong key is found here, by name, and not as an empty
prompt three steps later. ``keys`` lists what rows carry besides, and what becomes of it.

Sources: the formats as their data sets publish them (tatsu-lab/stanford_alpaca, yizhongw/self-instruct, ShareGPT
exports read by axolotl and FastChat, TRL's conversational and prompt/completion formats).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NotRequired, TypedDict

from onegpu.sft_datasets import keys

ROLE_NAMES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
"""What other formats call the four roles."""

CALL_ROLES = ("function_call", "tool_call")
"""Roles (LLaMA-Factory, ms-swift) whose text is a tool call as JSON."""

NO_INPUT = frozenset({"", "<noinput>", "noinput", "no input", "<no input>", "n/a", "none", "nan"})
"""What stands in an ``input`` field when there is no input, lower case."""

NO_OUTPUT = frozenset({"<no output>", "<nooutput>", "no output", "<noinput>", "<no input>", "n/a", "nan"})
"""What stands in an answer field when there is no answer, lower case."""

WRITE_ANSWER = "Write the answer or leave the row out."


class Message(TypedDict):
    """One turn of a chat, with what the chat template may want of it."""

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True)
class Example:
    """One training example: a chat whose last turn is the assistant's.

    Attributes
    ----------
    messages
        The turns: an optional system message, then user and assistant in turn (a tool's result may
        stand between two assistant turns).
    input
        The ``input`` of an Alpaca row, without which the Alpaca template can't be filled as its authors
        meant it. It also ends the user message, after an empty line. Empty for all other formats.
    tools
        Tools on offer, as the chat template wants them.
    template_arguments
        More that the chat template is called with (documents, TRL's chat_template_kwargs).
    not_learned
        Numbers of the assistant turns that the row says not to learn.
    """

    messages: tuple[Message, ...]
    input: str = ""
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    template_arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    not_learned: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def learned(self) -> tuple[int, ...]:
        """Numbers of the assistant turns that are learned."""
        answers = (i for i, message in enumerate(self.messages) if message["role"] == "assistant")
        return tuple(i for i in answers if i not in self.not_learned)

    def __str__(self) -> str:
        return "\n".join(f"{m['role']}: {m['content']}" for m in self.messages)


@dataclass(frozen=True)
class Problem:
    """What is wrong with one field of one row, and what to do about it.

    ``code`` names the kind (``empty_answer``, ``unknown_role``, ...); reports count by it.
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
    """A row that can't become an ``Example``; ``problem`` holds row, field, code, found, expected, fix."""

    def __init__(self, problem: Problem):
        super().__init__(str(problem))
        self.problem = problem

    def __reduce__(self):
        return type(self), (self.problem,)


def to_example(row: Mapping[str, Any] | Example, row_index: int | None = None) -> Example:
    """Bring one row of any known format into the common form.

    The first of these that the row has (with a value other than None) decides its format:
    ``messages``; ``conversations`` (ShareGPT); ``prompt`` with ``completion``, both text or both lists of
    messages; ``instruction`` with ``output`` or ``response`` (Alpaca) or with ``instances`` (Self-Instruct).

    Parameters
    ----------
    row
        The row. An ``Example`` is returned as it is.
    row_index
        The row's number, for error messages.

    Raises
    ------
    RowError
        (a ``ValueError``) naming row, field, what was found, what was expected and what to do: unknown
        keys or role, no answer, turns that don't alternate, a value that isn't text, a key that would change
        what is learned and can't be honoured.

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
    return read_chat(row, row_index).checked()


def format_of(row: Mapping[str, Any]) -> str | None:
    """Say which format a row has: "messages", "sharegpt", "prompt_completion", "alpaca", "self_instruct" or None.

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
    if "instruction" in row and has("instances"):
        return "self_instruct"
    return None


def is_blank(value: Any, placeholders: frozenset[str] = frozenset()) -> bool:
    """Tell whether a field holds nothing: None, NaN, white space only, or one of ``placeholders``.

    Examples
    --------
    >>> [is_blank(v, NO_INPUT) for v in (None, float("nan"), "  ", "<noinput>", "0")]
    [True, True, True, True, False]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return isinstance(value, str) and (not value.strip() or value.strip().lower() in placeholders)


def problems(row: Mapping[str, Any], row_index: int | None = None) -> Iterator[Problem]:
    """Yield everything that keeps a row from becoming an ``Example``, in the order of its fields.

    Examples
    --------
    >>> [p.code for p in problems({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": ""}]})]
    ['unknown_role', 'empty_turn', 'no_answer']
    """
    yield from read_chat(row, row_index).problems()


def unused_keys(row: Mapping[str, Any] | Example) -> tuple[str, ...]:
    """Name the keys of a row that hold something and are used for nothing, those of turns as ``messages[].key``.

    Examples
    --------
    >>> unused_keys({"prompt": "2+2?", "completion": "4", "id": 7, "mood": "curious"})
    ('mood',)
    """
    if isinstance(row, Example) or not isinstance(row, Mapping):
        return ()
    return tuple(dict.fromkeys(read_chat(row, None).unused))


class Turn(NamedTuple):
    """A turn as a row has it: where it stands, its role as it is called here, its text, the turn itself.

    It is plain if it has nothing but role and text, as nearly all turns.
    """

    field: str
    role: Any
    content: Any
    given: Mapping[str, Any]
    plain: bool = True


_PLAIN_KEYS = frozenset({"role", "content", "from", "value"})


class Chat:
    """A row taken apart, before anything is known to be right with it."""

    def __init__(self, row: Any, row_index: int | None):
        self.row, self.index = row, row_index
        self.found: list[Problem] = []
        self.unused: list[str] = []
        self.turns: list[Turn] = []
        self.text_input = ""

    def problem(self, where: str, code: str, found: str, expected: str, fix: str) -> Problem:
        return Problem(self.index, where, code, found, expected, fix)

    def add(self, *problem: str) -> None:
        """Note a problem of the row as a whole."""
        self.found.append(self.problem(*problem))

    def problems(self) -> Iterator[Problem]:
        """Yield what keeps the row from becoming an example."""
        yield from self.found
        if not self.turns:
            return
        previous, answers, learned = None, 0, 0
        for i, turn in enumerate(self.turns):
            role = turn.role
            if role not in _ROLES:
                yield self.problem(
                    turn.field, "unknown_role", f"role {show(role)}", f"one of {', '.join(sorted(ROLE_NAMES))}",
                    "Rename the role before reading.",
                )  # fmt: skip
            elif not _may_follow(previous, role):
                before = "the start" if previous is None else f"a {previous} turn"
                yield self.problem(
                    turn.field, "roles_not_alternating", f"a {role} turn after {before} (turn {i})",
                    " or ".join(_FOLLOWERS.get(previous, ("user", "assistant"))),
                    "Merge or drop the turn; the repair merge_turns joins turns of one role.",
                )  # fmt: skip
            yield from self._content_problems(turn)
            if not turn.plain:
                yield from self._key_problems(turn)
            if role == "assistant":
                answers += 1
                learned += self.is_learned(turn)
            elif i == len(self.turns) - 1:
                yield self.problem(
                    turn.field, "no_answer", f"a last turn by {show(role)}", "a last turn by the assistant",
                    "Add the answer, or drop the turns after the last answer.",
                )  # fmt: skip
            previous = role
        if answers and not learned:
            yield self.problem(
                self.turns[-1].field, "nothing_to_learn", "every answer switched off (weight 0 or the like)",
                "at least one answer to learn", "Leave the row out.",
            )  # fmt: skip

    def _content_problems(self, turn: Turn) -> Iterator[Problem]:
        text = as_text(turn.content)
        if turn.role == "assistant":
            if is_blank(text, NO_OUTPUT) and not calls_of(turn):
                yield _no_answer(self, turn.field, turn.content)
            elif text is not None and not isinstance(text, str) and not is_blank(text):
                yield _not_text(self, turn.field, turn.content)
        elif is_blank(text):
            what = ("empty_turn", show(turn.content), "text", "Fill the turn or drop the row.")
            if turn.role == "system" and isinstance(
                text, str
            ):  # an empty system message is none; a template has a default
                return
            if turn.role != "tool":  # a tool may return nothing
                yield self.problem(turn.field, *what)
        elif not isinstance(text, str):
            yield _not_text(self, turn.field, turn.content)

    def _key_problems(self, turn: Turn) -> Iterator[Problem]:
        given = turn.given
        for key in keys.REFUSED_IN_TURNS:
            if _holds(given.get(key)):
                yield _refused(self, f"{turn.field}.{key}", given[key])
        for key in keys.LEARN + keys.IGNORE_TURN:
            value = given.get(key)
            if value is None:
                continue
            if value not in (0, 1) or isinstance(value, str):
                yield self.problem(
                    f"{turn.field}.{key}", "bad_weight", show(value), "0 or 1 (false or true)",
                    "A turn is learned or it isn't: round the weight, or leave the row out.",
                )  # fmt: skip
            elif turn.role != "assistant" and bool(value) == (key in keys.LEARN):
                yield self.problem(
                    f"{turn.field}.{key}", "bad_weight", f"{show(value)} on a {turn.role} turn",
                    "it on assistant turns only", "Only answers are learned: set it to 0 there or remove it.",
                )  # fmt: skip
        for key in keys.REASONING:
            if _holds(given.get(key)) and not isinstance(given[key], str):
                yield _not_text(self, f"{turn.field}.{key}", given[key])
        if turn.role == "assistant" and not isinstance(calls_of(turn), list):
            yield self.problem(
                f"{turn.field}.tool_calls", "bad_tools", show(given.get("tool_calls") or turn.content),
                "a list of calls, each with the name of a function and its arguments as an object",
                "Correct the call.",
            )  # fmt: skip

    def is_learned(self, turn: Turn) -> bool:
        """Whether no switch of an assistant turn is off."""
        if turn.plain:
            return True
        on = all(turn.given.get(key) in (None, 1) for key in keys.LEARN)
        return on and not any(turn.given.get(key) for key in keys.IGNORE_TURN)

    def checked(self) -> Example:
        """The example; RowError with the row's first problem if it has one."""
        problem = next(self.problems(), None)
        if problem is not None:
            raise RowError(problem)
        return self.example()

    def example(self) -> Example:
        """The example, of a row without problems."""
        messages, not_learned = [], set()
        for turn in self.turns:
            text = as_text(turn.content)
            if turn.role == "system" and is_blank(text):
                continue
            message = Message(role=turn.role, content="" if text is None else text)
            if turn.plain:
                messages.append(message)
                continue
            for key in keys.HANDED_ON_IN_TURNS:
                if _holds(turn.given.get(key)):
                    message[key] = turn.given[key]
            if turn.role == "assistant":
                thought = next(
                    (turn.given[key] for key in keys.REASONING if _holds(turn.given.get(key))), None
                )
                if thought is not None:
                    message["reasoning_content"] = thought
                calls = calls_of(turn)
                if calls:
                    message["tool_calls"] = calls
                    if turn.given.get("from", turn.given.get("role")) in CALL_ROLES:
                        message["content"] = ""
                if not self.is_learned(turn):
                    not_learned.add(len(messages))
            messages.append(message)
        return Example(
            tuple(messages),
            self.text_input,
            tuple(self.tools() or ()),
            self.template_arguments(),
            frozenset(not_learned),
        )

    def tools(self) -> list[Mapping[str, Any]] | None:
        """The row's tools, [] without; None if they can't be read."""
        name = next((key for key in keys.TOOLS if _holds(self.row.get(key))), None)
        if name is None:
            return []
        tools = _from_json(self.row[name])
        if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
            return None
        # A bare function, as OpenAI's older form and LLaMA-Factory have it, gets the frame that templates expect.
        tools = [without_nulls(tool) for tool in tools]
        return [
            {"type": "function", "function": t} if "name" in t and "function" not in t else t for t in tools
        ]

    def template_arguments(self) -> dict[str, Any]:
        """What else the chat template is called with."""
        arguments = dict(self.row.get("chat_template_kwargs") or {})
        if _holds(self.row.get("documents")):
            arguments["documents"] = self.row["documents"]
        return arguments


def read_chat(row: Any, row_index: int | None) -> Chat:
    """Take a row apart."""
    chat = Chat(row, row_index)
    if not isinstance(row, Mapping):
        chat.add(
            "(row)",
            "not_a_mapping",
            f"a {type(row).__name__}",
            "a mapping from column to value",
            "Give each row as a dict.",
        )
        return chat
    kind = format_of(row)
    if kind is None:
        chat.add(
            "(columns)", "unknown_format", f"columns {', '.join(map(str, row)) or '(none)'}",
            "messages, conversations, prompt + completion, or instruction + output",
            "Set columns to what yours are called here, for example {'question': 'prompt', 'answer': 'completion'}.",
        )  # fmt: skip
        return chat
    {"alpaca": _read_alpaca, "self_instruct": _read_instances}.get(kind, _read_turns)(chat, kind)
    _read_row_keys(chat, kind)
    return chat


def _read_turns(chat: Chat, kind: str) -> None:
    row = chat.row
    sides = {
        "messages": [("messages", "")], "sharegpt": [("conversations", "")],
        "prompt_completion": [("prompt", "user"), ("completion", "assistant")],
    }[kind]  # fmt: skip
    for name, role in sides:
        value = _from_json(row[name]) if not role else row[name]
        if role and (isinstance(value, str) or not isinstance(value, Sequence)):
            chat.turns.append(Turn(name, role, value, {}))
        elif (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or not all(isinstance(t, Mapping) for t in value)
        ):
            expected = (
                "text or a list of messages" if role else "a list of messages, each with role and content"
            )
            chat.add(name, "not_messages", show(value), expected, "Put each turn in a dict.")
            chat.turns.clear()
            return
        else:
            chat.turns += [turn_of(turn, f"{name}[{i}]") for i, turn in enumerate(value)]
    if not chat.turns:
        chat.add(
            sides[0][0],
            "no_messages",
            "an empty list",
            "at least a user turn and an assistant turn",
            "Leave the row out.",
        )
    for turn in chat.turns:
        if turn.plain:
            continue
        path = f"{turn.field.partition('[')[0]}[]"
        chat.unused += [
            f"{path}.{key}"
            for key, value in turn.given.items()
            if key not in keys.TURN_KEYS and key not in keys.KNOWN and _holds(value)
        ]


def turn_of(turn: Mapping[str, Any], where: str) -> Turn:
    """Read one turn of a chat under the names that its form has for role and text."""
    name = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value", turn.get("text")))
    if is_blank(content) and _holds(turn.get("refusal")):
        content = turn["refusal"]
    plain = turn.keys() <= _PLAIN_KEYS and name not in CALL_ROLES
    return Turn(
        where, ROLE_NAMES.get(name.lower(), name) if isinstance(name, str) else name, content, turn, plain
    )


def _read_alpaca(chat: Chat, kind: str) -> None:
    row = chat.row
    key = "output" if "output" in row else "response"
    field_of_input = (
        "input" if not is_blank(row.get("input"), NO_INPUT) or is_blank(row.get("context")) else "context"
    )
    _read_question(chat, row.get(field_of_input), field_of_input)
    for i, pair in enumerate(row.get("history") or ()):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            chat.add(
                f"history[{i}]", "not_messages", show(pair), "a question and its answer", "Correct the pair."
            )
            return
        at = len(chat.turns) - 1
        chat.turns[at:at] = [
            Turn(f"history[{i}]", role, text, {})
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    chat.turns.append(Turn(key, "assistant", row.get(key), {}))
    if chat.found:
        _check_answer(chat, key, row.get(key))


def _read_instances(chat: Chat, kind: str) -> None:
    instances = chat.row["instances"]
    if not isinstance(instances, Sequence) or len(instances) != 1 or not isinstance(instances[0], Mapping):
        chat.add(
            "instances",
            "not_messages",
            show(instances),
            "one instance, with input and output",
            "Write one row for each.",
        )
        return
    _read_question(chat, instances[0].get("input"), "instances[0].input")
    chat.turns.append(Turn("instances[0].output", "assistant", instances[0].get("output"), {}))


def _read_question(chat: Chat, text_input: Any, field_of_input: str) -> None:
    instruction = chat.row.get("instruction")
    blank = is_blank(text_input, NO_INPUT)
    if is_blank(instruction):
        chat.add(
            "instruction", "empty_instruction", show(instruction), "an instruction",
            "Write the instruction or leave the row out.",
        )  # fmt: skip
    elif not isinstance(instruction, str):
        chat.found.append(_not_text(chat, "instruction", instruction))
    if not blank and not isinstance(text_input, str):
        chat.found.append(_not_text(chat, field_of_input, text_input))
    if not chat.found:
        chat.text_input = "" if blank else text_input
        chat.turns.append(
            Turn("instruction", "user", instruction + (f"\n\n{text_input}" if not blank else ""), {})
        )


def _check_answer(chat: Chat, key: str, value: Any) -> None:
    """The answer's own problem, in a row whose question has one."""
    chat.turns.clear()
    if is_blank(value, NO_OUTPUT):
        chat.found.append(_no_answer(chat, key, value))
    elif not isinstance(value, str):
        chat.found.append(_not_text(chat, key, value))


def _read_row_keys(chat: Chat, kind: str) -> None:
    row = chat.row
    for key, value in row.items():
        if key in keys.FORM_KEYS[kind] or key in keys.KNOWN or not _holds(value):
            continue
        if key in keys.REFUSED_IN_ROWS:
            chat.found.append(_refused(chat, key, value))
        elif key in keys.ROW_WEIGHTS:
            if value not in (1, True):
                chat.add(
                    key, "bad_weight", show(value), "no weight, or 1",
                    "Rows aren't weighed: leave the row out, or repeat it.",
                )  # fmt: skip
        elif key in keys.VERDICTS and isinstance(value, bool):
            if not value:
                chat.add(
                    key, "unwanted_answer", "False: an answer that is not wanted", "answers to learn only",
                    "Leave the row out.",
                )  # fmt: skip
        elif key not in keys.ROW_KEYS and not _says_the_same(value, chat.turns):
            chat.unused.append(key)
    if not chat.turns:
        return
    given = {key: as_text(row[key]) for key in keys.SYSTEM if _holds(row.get(key))}
    systems = {key: value for key, value in given.items() if not is_blank(value)}
    has = chat.turns[0].role == "system" and as_text(chat.turns[0].content)
    for key, value in systems.items():
        if not isinstance(value, str):
            chat.found.append(_not_text(chat, key, value))
        elif has and has != value:
            chat.add(
                key, "system_differs", show(value), f"the same system message as in {chat.turns[0].field} ({show(has)})",
                "Remove one of the two.",
            )  # fmt: skip
        elif not has:
            chat.turns.insert(0, Turn(key, "system", value, {}))
            has = value
    if chat.tools() is None:
        name = next(key for key in keys.TOOLS if _holds(row.get(key)))
        chat.add(
            name,
            "bad_tools",
            show(row[name]),
            "a list of tools, each an object (or that as JSON)",
            "Correct the list.",
        )
    arguments = row.get("chat_template_kwargs")
    if _holds(arguments) and not isinstance(arguments, Mapping):
        chat.add(
            "chat_template_kwargs",
            "bad_tools",
            show(arguments),
            "an object with names and values",
            "Correct it.",
        )


def _says_the_same(value: Any, turns: Sequence[Turn]) -> bool:
    """Whether a text stands in the chat already (UltraChat's prompt), or holds all of it (Alpaca's text)."""
    if not isinstance(value, str):
        return False
    texts = [text for text in (as_text(turn.content) for turn in turns) if isinstance(text, str)]
    return value in texts or (len(texts) > 1 and all(text in value for text in texts))


def _holds(value: Any) -> bool:
    """Whether a key's value is anything: what a table without it is filled with (None, NaN) isn't, nor an empty list."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    return not (isinstance(value, (str, Sequence, Mapping)) and len(value) == 0)


def as_text(content: Any) -> Any:
    """Text of a content: text as it is, a list of text parts joined; anything else as it is."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return content
    parts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS else None
        for part in content
    ]
    return "".join(parts) if parts and all(isinstance(part, str) for part in parts) else content


_TEXT_PARTS = ("text", "input_text", "output_text")


def calls_of(turn: Turn) -> list[dict[str, Any]] | None:
    """Tool calls of an assistant turn, [] without; None if they can't be read."""
    given = turn.given
    if given.get("role", given.get("from")) in CALL_ROLES:
        calls = _from_json(turn.content)
        calls = [calls] if isinstance(calls, Mapping) else calls
    elif _holds(given.get("tool_calls")):
        calls = _from_json(given["tool_calls"])
    elif _holds(given.get("function_call")):
        calls = [given["function_call"]]
    else:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        return None
    read = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        arguments = _from_json(function.get("arguments") or {}) if isinstance(function, Mapping) else None
        if not isinstance(arguments, Mapping) or not isinstance(function.get("name"), str):
            return None
        named = {"id": call["id"]} if _holds(call.get("id")) else {}
        # Templates write arguments with tojson: as an object they come out as JSON, as text they would as a quoted string.
        function = {"name": function["name"], "arguments": without_nulls(arguments)}
        read.append(named | {"type": "function", "function": function})
    return read


def without_nulls(value: Any) -> Any:
    """An object without the None that a table fills in where another row has a key."""
    if isinstance(value, Mapping):
        return {key: without_nulls(v) for key, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    """Read a text that is JSON (Parquet and CSV files carry lists so); anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value


def show(value: Any) -> str:
    """Show a found value so that it can be searched for, at most 60 characters of it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _not_text(chat: Chat, where: str, value: Any) -> Problem:
    part = (
        next((p for p in value if isinstance(p, Mapping) and p.get("type") not in (*_TEXT_PARTS, None)), None)
        if isinstance(value, list)
        else None
    )
    if part is not None:
        return chat.problem(
            where,
            "not_text",
            f"a part of type {part['type']!r}",
            "text parts only",
            "Only text is trained on: leave the row out.",
        )
    return chat.problem(
        where, "not_text", f"{show(value)} of type {type(value).__name__}", "text",
        "Convert it to text where it is read (pandas: dtype=str, keep_default_na=False).",
    )  # fmt: skip


def _no_answer(chat: Chat, where: str, value: Any) -> Problem:
    code = "placeholder_answer" if isinstance(value, str) and value.strip() else "empty_answer"
    return chat.problem(where, code, show(value), "an answer", WRITE_ANSWER)


def _refused(chat: Chat, where: str, value: Any) -> Problem:
    return chat.problem(
        where, "refused_key", show(value), "no such key: it changes what is learned and isn't supported",
        "Leave the row out, or remove the key if it should change nothing.",
    )  # fmt: skip


_ROLES = frozenset(ROLE_NAMES.values())

_FOLLOWERS = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def _may_follow(previous: str | None, role: str) -> bool:
    return role in _FOLLOWERS.get(previous, ("user", "assistant", "tool"))
