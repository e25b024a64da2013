"""Fill a template once, and know which characters of it the model is to learn.

The one idea: the supervised part is decided on *characters*, in the finished text, before any token
exists. A span runs from where the generation prompt would end to the end of the token that stops generation. Tokenizing
the prompt alone and counting its tokens is the usual way, and it is wrong whenever a token reaches over the
boundary (trl#2054) or reads differently in context (trl#588).

How an answer is found in the finished text: the chat is rendered a second time with a mark (a private-use character) in
each turn. Where the marks come out, the turns are, also in templates that move, strip or leave out parts of earlier
turns. What stands between two turns belongs to the prompt as far as the generation prompt goes, and to the answer from
there on (an empty ``<think></think>`` that the model has to write itself).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onegpu.sft_datasets.formats import Example, Message

ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
CHATML_JINJA = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _alpaca_jinja() -> str:
    """The two Alpaca templates in Jinja; ``input``, where it is given, stands apart from the question it ends."""
    plain = repr(ALPACA_WITHOUT_INPUT).replace("{instruction}", "' + question + '")
    with_input = repr(ALPACA_WITH_INPUT).replace("{instruction}", "' + question[:-(input|length) - 2] + '")
    with_input = with_input.replace("{input}", "' + input + '")
    return (
        "{% set roles = messages|map(attribute='role')|join(', ') %}"
        "{% if roles not in ('user', 'user, assistant') %}{{ raise_exception('The Alpaca template holds one user and "
        "one assistant turn, found ' + roles) }}{% endif %}{% set question = messages[0].content %}"
        f"{{% if input %}}{{{{ {with_input} }}}}{{% else %}}{{{{ {plain} }}}}{{% endif %}}"
        "{% if messages|length > 1 %}{{ messages[1].content + eos_token }}{% endif %}"
    )


ALPACA_JINJA = _alpaca_jinja()
TEMPLATES = ("model", "chatml", "alpaca")
TURNS = ("all", "last")


@dataclass(frozen=True)
class Rendered:
    """A filled template.

    Attributes
    ----------
    text
        What the model reads, from the first to the last character.
    spans
        (start, end) in characters of each supervised part: an answer and its end token.
    """

    text: str
    spans: tuple[tuple[int, int], ...]

    @property
    def supervised(self) -> tuple[str, ...]:
        """The supervised parts as text."""
        return tuple(self.text[start:end] for start, end in self.spans)

    def __str__(self) -> str:
        return f"{len(self.text)} characters, supervised: {list(self.supervised)}"


def render(
    example: Example,
    tokenizer: Any = None,
    template: str = "model",
    turns: str = "all",
    stop_tokens: Iterable[str] = (),
) -> Rendered:
    """Render an example with a template and say which characters are supervised.

    Parameters
    ----------
    example
        The chat to render.
    tokenizer
        A transformers tokenizer. "model" takes its chat template, "alpaca" its end token.
    template
        "model": the tokenizer's own chat template, which needs no ``{% generation %}`` markers.
        "chatml": ``<|im_start|>role\\ncontent<|im_end|>\\n`` for each turn, no default system message.
        "alpaca": the template of stanford_alpaca, with or without input, one question and one answer,
        ended by the tokenizer's end token. Or the path of a file with a Jinja template.
    turns
        "all" supervises every assistant turn, "last" only the last one. Turns that the row switches off
        (``Example.not_learned``) are never supervised.
    stop_tokens
        Special tokens at which generation stops, besides the tokenizer's own end token and the one that the
        template writes after an answer.

    Raises
    ------
    ValueError
        When the tokenizer has no chat template, the template refuses the roles, changes or drops a turn or a tool call,
        or writes no special token after an answer.

    Examples
    --------
    >>> chat = Example(({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}))
    >>> done = render(chat, template="chatml")
    >>> done.text
    '<|im_start|>user\\n2+2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>\\n'
    >>> done.spans, done.supervised
    (((54, 65),), ('4<|im_end|>',))
    """
    return ChatTemplate(tokenizer, template, stop_tokens).render(example, turns)


def template_text(tokenizer: Any, template: str = "model") -> str:
    """The Jinja text of a template, for ``tokenizer.chat_template``: what serves the model must write what trained it.

    Raises
    ------
    ValueError
        For a tokenizer without a chat template, a template that isn't known, or a file that isn't there.
    """
    if template == "model":
        if tokenizer is None:
            raise ValueError("template='model' needs a tokenizer: pass it, or set template='chatml'.")
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"The tokenizer {tokenizer.name_or_path!r} has no chat template (a base model has none): set template "
                "to 'alpaca' (one question, one answer), to 'chatml' if the tokenizer has its tokens, or to the path of "
                "a Jinja file."
            )
        return tokenizer.get_chat_template()
    if template in TEMPLATES:
        text = {"chatml": CHATML_JINJA, "alpaca": ALPACA_JINJA}[template]
        return "{{ bos_token }}" + text if _adds_bos(tokenizer) else text
    if Path(template).is_file():
        return Path(template).read_text(encoding="utf-8")
    raise ValueError(
        f"template='{template}': expected one of {', '.join(TEMPLATES)}, or the path of a file with a Jinja template."
    )


def _adds_bos(tokenizer: Any) -> bool:
    """Whether this tokenizer puts its BOS before a text; a chat template has to write it itself."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return False
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id


def prompt_text(chat: Example | Sequence[Message], tokenizer: Any) -> str:
    """What the model reads before it answers: a chat up to a user's (or tool's) turn, and the generation prompt.

    Parameters
    ----------
    chat
        Messages, or an ``Example``, whose last answer is then left out and whose tools and input are used.
    tokenizer
        Its chat template is used.
    """
    if isinstance(chat, Example):
        messages, arguments = list(chat.messages[:-1]), _arguments(chat)
    else:
        messages, arguments = list(chat), {}
    return ChatTemplate(tokenizer).apply(messages, True, arguments)


def _arguments(example: Example) -> dict[str, Any]:
    arguments = dict(example.template_arguments)
    if example.tools:
        arguments["tools"] = list(example.tools)
    if example.input:
        arguments["input"] = example.input
    return arguments


class ChatTemplate:
    """A chat template, ready to render many examples: its text, and the tokens that end an answer in it.

    Parameters
    ----------
    tokenizer, template, stop_tokens
        As in ``render``.
    """

    def __init__(self, tokenizer: Any = None, template: str = "model", stop_tokens: Iterable[str] = ()):
        if template == "alpaca" and not getattr(tokenizer, "eos_token", None):
            raise ValueError(
                "The Alpaca template ends in the tokenizer's end token, and there is none: pass a tokenizer "
                "that has an eos_token, or set template='chatml'."
            )
        self.tokenizer, self.name = tokenizer, template
        self.source = template_text(tokenizer, template)
        self.own = template == "model" and tokenizer is not None
        self.variables, self.attributes = _mentions(self.source)
        self.in_parts = self._wants_parts()
        self._compiled = _compiled(self.source)
        self._tokens = {} if tokenizer is None else tokenizer.special_tokens_map
        self._frames: dict[tuple[str, ...], _Frame] = {}
        self.special = _special_tokens(tokenizer)
        if tokenizer is None:
            self.special = ("<|im_start|>", "<|im_end|>")
        self._special = re.compile(
            "|".join(map(re.escape, sorted(self.special, key=len, reverse=True))) or r"(?!)"
        )
        stops = [getattr(tokenizer, "eos_token", None), *stop_tokens]
        self.ends = tuple(dict.fromkeys(end for end in [*self._probe_ends(), *stops] if end in self.special))
        self._end = re.compile("|".join(map(re.escape, sorted(self.ends, key=len, reverse=True))) or r"(?!)")

    def apply(self, messages: Sequence[Mapping[str, Any]], prompt: bool, arguments: Mapping[str, Any]) -> str:
        """Fill the template.

        Raises
        ------
        ValueError
            What the template says against the chat, and what to do.
        """
        from jinja2 import TemplateError

        try:
            return self._fill(messages, prompt, arguments)
        except (TemplateError, TypeError) as error:
            if isinstance(error, TypeError) and any(message.get("tool_calls") for message in messages):
                try:  # some templates (DeepSeek's) put the arguments of a call into the text as they are
                    return self._fill(
                        [_with_text_arguments(message) for message in messages], prompt, arguments
                    )
                except (TemplateError, TypeError):
                    pass
            roles = ", ".join(message["role"] for message in messages)
            said = str(error).removesuffix(".")
            if said.startswith("The Alpaca template"):
                raise ValueError(f"{said}: set template to 'model' or 'chatml' for chats.") from error
            raise ValueError(
                f"The chat template refuses the roles {roles}: {said}. The repair fold_system moves a system message into "
                "the first user turn, merge_turns joins turns of one role."
            ) from error

    def _fill(self, messages: Sequence[Mapping[str, Any]], prompt: bool, arguments: Mapping[str, Any]) -> str:
        messages = self._as_wanted([self._named(message) for message in messages])
        if self.own:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt, **arguments
            )
        from transformers.utils.chat_template_utils import render_jinja_template

        tokens = {} if self.tokenizer is None else self.tokenizer.special_tokens_map
        done = render_jinja_template(
            conversations=[messages],
            chat_template=self.source,
            add_generation_prompt=prompt,
            **tokens | dict(arguments),
        )
        return done[0][0] if isinstance(done, tuple) else done[0]

    def _as_wanted(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages with their content as this template takes it, as text or as a list of parts."""
        if not self.in_parts:
            return [dict(message) for message in messages]
        return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]

    def _wants_parts(self) -> bool:
        """Whether the template shows a text only as a list of parts, as those of models for images do."""
        self.in_parts = False
        if "type" not in self.attributes:
            return False
        for self.in_parts in (False, True):
            try:
                if "What?" in self.apply([Message(role="user", content="What?")], True, {}):
                    return self.in_parts
            except ValueError:
                pass
        return False

    def _named(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message with its reasoning under the name that this template has for it."""
        if "reasoning_content" not in message or "reasoning_content" in self.attributes:
            return message
        name = next((name for name in ("thinking", "reasoning") if name in self.attributes), None)
        if name is None:
            return message
        message = dict(message)
        message[name] = message.pop("reasoning_content")
        return message

    def render(self, example: Example, turns: str = "all") -> Rendered:
        """Render an example; as the function ``render``."""
        if turns not in TURNS:
            raise ValueError(f"turns={turns!r}: expected 'all' or 'last'.")
        messages, arguments = example.messages, _arguments(example)
        if example.tools and "tools" not in self.variables:
            raise ValueError(
                "the chat template has no place for the row's tools, so the model would be trained to call what it isn't "
                "shown. Use a model with a template for tools, or remove the tools from the row."
            )
        learned = example.learned[-1:] if turns == "last" else example.learned
        if turns == "last" and example.learned and example.learned[-1] != len(messages) - 1:
            learned = ()
        # A thought or a special token in a text may be part of what the template itself writes elsewhere.
        plain = not arguments and all(
            len(message) == 2
            and message["content"].strip()
            and "think>" not in message["content"]
            and not self._special.search(message["content"])
            for message in messages
        )
        if plain and learned:
            known = self._render_by_frame(messages, learned)
            if known is not None:
                return known
        text = self.apply(messages, False, arguments)
        marks = _Marks(messages, text)
        marked = self.apply(marks.messages, False, arguments)
        places = marks.places(marked)
        if marks.clean(marked) != text:
            marks = _Marks(messages, text, answers_only=True)
            places = marks.places(self.apply(marks.messages, False, arguments))
        self._check_shown(example, marks, places)
        spans = [self._span(i, text, messages, marks, places, arguments) for i in learned]
        if not spans and (example.learned or example.not_learned):
            raise ValueError(
                "the row says not to learn its last answer, and turns='last' learns no other: set turns='all'."
            )
        if plain:
            self._learn_frame(messages, text, places, dict(zip(learned, spans, strict=True)))
        return Rendered(text, tuple(sorted(spans)))

    def _render_by_frame(self, messages: Sequence[Message], learned: Sequence[int]) -> Rendered | None:
        """Render a chat whose roles are known with one filling in place of three or more; None if it is none of that kind.

        The text is the template's own. That it is the known frame around the turns, to the last character, says where they are.
        """
        frame = self._frames.get(tuple(message["role"] for message in messages))
        if frame is None or not frame.edges.keys() >= set(learned):
            return None
        try:
            text = self._fill_plain(messages)
        except Exception:  # the general way says what the template has against this chat
            return None
        parts, starts, at = [], [], 0
        for before, message in zip(frame.around, messages, strict=False):
            starts.append(at + len(before))
            at = starts[-1] + len(message["content"])
            parts += (before, message["content"])
        if text != "".join((*parts, frame.around[-1])):
            return None
        spans = []
        for i in learned:
            before, after = frame.edges[i]
            spans.append((starts[i] - before, starts[i] + len(messages[i]["content"]) + after))
        return Rendered(text, tuple(spans))

    def _learn_frame(self, messages, text, places, spans: Mapping[int, tuple[int, int]]) -> None:
        """Keep what stands around the turns of a chat, where they are shown as they are and every prompt is a beginning."""
        roles = tuple(message["role"] for message in messages)
        if self._compiled is None or len(self._frames) >= _MOST_FRAMES or self._fill_plain(messages) != text:
            return
        around, edges, at = [], {}, 0
        for i, message in enumerate(messages):
            content = message["content"]
            start = places.get(f"text {i}", -1) - _mark_at(content, message["role"] == "assistant")
            if start < at or text[start : start + len(content)] != content:
                return
            around.append(text[at:start])
            at = start + len(content)
            if i in spans:
                first, end = spans[i]
                prompt = self.apply(messages[:i], True, {})
                if len(prompt) != first or not text.startswith(prompt) or first > start or end < at:
                    return
                edges[i] = (start - first, end - at)
        known = self._frames.get(roles)
        self._frames[roles] = _Frame((*around, text[at:]), edges | (known.edges if known else {}))

    def _fill_plain(self, messages: Sequence[Message]) -> str:
        """Fill the template with texts alone, without what transformers does for tools, pictures and objects."""
        return self._compiled.render(
            messages=self._as_wanted(messages),
            tools=None,
            documents=None,
            add_generation_prompt=False,
            **self._tokens,
        )

    def _check_shown(self, example: Example, marks: _Marks, places: Mapping[str, int]) -> None:
        for i, message in sorted(
            enumerate(example.messages), key=lambda turn: turn[1]["role"] != "assistant"
        ):
            content = message["content"].strip()
            if f"text {i}" in marks.put and f"text {i}" not in places:
                who = "the answer" if message["role"] == "assistant" else f"the {message['role']} message"
                raise ValueError(
                    f"turn {i}: the chat template doesn't show {who} {content[:40]!r} as it is. Check the message keys "
                    "(role, content) against the template, or set another template."
                )
            if f"call {i}" in marks.put and f"call {i}" not in places:
                raise ValueError(
                    f"turn {i}: the chat template has no place for the tool call, so the model would be taught not to call. "
                    "Use a model with a template for tools, or write the call into the content."
                )
        last = len(example.messages) - 1
        if f"thought {last}" in marks.put and f"thought {last}" not in places:
            raise ValueError(
                f"turn {last}: the chat template leaves out the reasoning, which would be lost. Remove it from the row, or "
                "set template to the path of a Jinja file that shows it."
            )

    def _span(self, i, text, messages, marks, places, arguments) -> tuple[int, int]:
        """Where answer i is in the text: from the end of its prompt to the end of the token that ends it."""
        content_end = max(places[name] + 1 for name in (f"text {i}", f"call {i}") if name in places)
        before = marks.messages[:i]
        marked_prompt = self.apply(before, True, arguments)
        prompt = marks.clean(marked_prompt)
        if text.startswith(prompt) and len(prompt) < content_end:
            start = len(prompt)
        else:
            start = self._start(i, text, messages, places, marks.places(marked_prompt), prompt, content_end)
        later = [place for place in places.values() if place >= content_end]
        end = self._end.search(text, content_end, min(later, default=len(text)))
        if end is None:
            after = text[content_end : min(later, default=len(text))]
            what = f"found {after[:40]!r}" if after.strip() else "it writes nothing after the answer"
            others = " turns='last', if it ends the last answer;" if later else ""
            raise ValueError(
                f"turn {i}: the chat template ends this answer in no special token that stops generation ({what}), so the "
                f"model would never learn to stop. Set{others} template='alpaca' (it ends in the tokenizer's end token), "
                "or a template with an end token that this tokenizer has."
            )
        return start, end.end()

    def _start(self, i, text, messages, places, prompt_places, prompt, content_end) -> int:
        """Where answer i starts in a text that doesn't begin with its prompt: what follows the turn before it decides."""
        name = f"text {i - 1}"
        if name not in places or name not in prompt_places:
            raise ValueError(
                f"turn {i}: the chat template renders the turns before this answer differently when the rest follows, so "
                "the answer can't be located. Set turns='last', or another template."
            )
        tail = len(messages[i - 1]["content"].rstrip()) - _mark_at(messages[i - 1]["content"])
        asked = prompt[prompt_places[name] + tail :]
        at = places[name] + tail
        gap = text[at:content_end]
        same = next(
            (n for n, (a, b) in enumerate(zip(asked, gap, strict=False)) if a != b), min(len(asked), len(gap))
        )
        for part in (asked, gap):  # not in the middle of a special token
            for token in self._special.finditer(part, 0, len(part)):
                if token.start() < same < token.end():
                    same = token.start()
        return at + same

    def _probe_ends(self) -> list[str]:
        """Special tokens that the template writes after an answer, whether or not a further turn follows."""
        question, answer = {"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}
        after = []
        try:
            for more in ([], [question]):
                messages = [question, answer, *more]
                text = self.apply(messages, False, {})
                marks = _Marks(messages, text)
                places = marks.places(self.apply(marks.messages, False, {}))
                end = places["text 1"] + 1
                after.append(text[end : places.get("text 2", len(text))])
        except (ValueError, KeyError):
            return []
        alone, middle = ([token[0] for token in self._special.finditer(part)] for part in after)
        both = [a for a, b in zip(alone, middle, strict=False) if a == b]
        return both[-1:] or alone[:1]


@dataclass(frozen=True)
class _Frame:
    """What a template writes around the turns of a plain chat.

    Attributes
    ----------
    around
        The texts before each turn's content and after the last.
    edges
        For answers: how many characters before their content are learned with it, and how many after.
    """

    around: tuple[str, ...]
    edges: Mapping[int, tuple[int, int]]


_MOST_FRAMES = 1000


def _compiled(source: str) -> Any:
    """The template as transformers compiles it; None where another version does it otherwise, or it doesn't parse."""
    from transformers.utils import chat_template_utils

    try:
        return chat_template_utils._compile_jinja_template(source)
    except Exception:
        return None


def _special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Texts that the tokenizer always reads as one token."""
    return tuple(getattr(tokenizer, "get_added_vocab", dict)())


def control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern of the tokenizer's special tokens that have no business in a row's text.

    Tokens around thoughts and tool calls are left out: they stand in answers on purpose.
    """
    found = {
        token.content for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special
    } | set(getattr(tokenizer, "all_special_tokens", ()))
    found = {token for token in found if token.strip() and not re.search("think|tool", token, re.IGNORECASE)}
    return re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True))) or r"(?!)")


@functools.lru_cache(maxsize=16)
def _mentions(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Variables that a Jinja template reads, and names of attributes and keys that it mentions."""
    from jinja2 import meta, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    compiled = _compiled(source)  # where it doesn't parse, rendering will say so
    environment = ImmutableSandboxedEnvironment() if compiled is None else compiled.environment
    try:
        tree = environment.parse(source)
    except Exception:
        return frozenset(), frozenset()
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    attributes |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(meta.find_undeclared_variables(tree)), frozenset(attributes)


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    import json

    if not message.get("tool_calls"):
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


_TAIL = 17


def _mark_at(content: str, answer: bool = False) -> int:
    """Where a turn's mark goes: before a character that isn't white space, so that no stripping moves it.

    In an answer it is the last one; in other turns, far enough from both ends that a template which asks how a text begins
    or ends gets the same reply (Qwen3 looks for ``</tool_response>``).
    """
    last = len(content.rstrip()) - 1
    if answer or last < 2 * _TAIL:
        return last
    at = last - _TAIL
    while content[at].isspace():
        at -= 1
    return at


class _Marks:
    """A chat with a mark in each turn, and what says where the marks came out."""

    FIRST = 0xF0000  # a private-use plane, in no one's text; if it is, the next one

    def __init__(self, messages: Sequence[Mapping[str, Any]], text: str, answers_only: bool = False):
        first = self.FIRST if not re.search("[\U000f0000-\U000ffffd]", text) else 0x100000
        self.put: dict[str, str] = {}  # name of the mark -> its character
        self.messages = []
        for i, message in enumerate(messages):
            marked = dict(message)
            answer = message["role"] == "assistant"
            if message["content"].strip() and (answer or not answers_only):
                at = _mark_at(message["content"], answer)
                mark = self._mark(f"text {i}", first)
                marked["content"] = message["content"][:at] + mark + message["content"][at:]
            if answer and message.get("tool_calls"):
                *others, call = message["tool_calls"]
                mark = self._mark(f"call {i}", first)
                name = call["function"]["name"]
                marked["tool_calls"] = [
                    *others,
                    {**call, "function": {**call["function"], "name": name[:-1] + mark + name[-1:]}},
                ]
            thought, closed, _ = message["content"].rpartition("</think>")
            if answer and closed and thought.replace("<think>", "").strip():
                at = _mark_at(thought, True)  # of a thought that stands in the content itself
                marked["content"] = thought[:at] + self._mark(f"thought {i}", first) + marked["content"][at:]
            elif answer and message.get("reasoning_content", "").strip():
                at = _mark_at(message["reasoning_content"], True)
                mark = self._mark(f"thought {i}", first)
                marked["reasoning_content"] = (
                    message["reasoning_content"][:at] + mark + message["reasoning_content"][at:]
                )
            self.messages.append(marked)
        self._table = dict.fromkeys(map(ord, self.put.values()))
        self._names = {mark: name for name, mark in self.put.items()}
        self._any = re.compile("[" + "".join(self.put.values()) + "]") if self.put else re.compile(r"(?!)")

    def _mark(self, name: str, first: int) -> str:
        self.put[name] = chr(first + len(self.put))
        return self.put[name]

    def clean(self, marked: str) -> str:
        """The text without marks."""
        return marked.translate(self._table)

    def places(self, marked: str) -> dict[str, int]:
        """Name of each mark that came out, and its place in the text without marks."""
        return {
            self._names[found[0]]: found.start() - n for n, found in enumerate(self._any.finditer(marked))
        }
