"""Fill a template once, and know which characters of it the model is to learn.

The one idea: the supervised part is decided on *characters*, in the finished text, before any token
exists. A span runs from the first character of an answer to the last of its end token. Tokenizing the
prompt alone and counting its tokens is the usual way, and it is wrong whenever a token reaches over the
boundary (trl#2054) or reads differently in context (trl#588).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
TEMPLATES = ("model", "chatml", "alpaca")


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


def render(example: Example, tokenizer: Any = None, template: str = "model", turns: str = "all") -> Rendered:
    """Render an example with a template and say which characters are supervised.

    Parameters
    ----------
    example
        The chat to render.
    tokenizer
        A transformers tokenizer. "model" takes its chat template, "alpaca" its end token.
    template
        "model": the tokenizer's own chat template, which needs no `{% generation %}` markers: the
        chat up to each answer is rendered and must be a prefix of the whole.
        "chatml": `<|im_start|>role\\ncontent<|im_end|>\\n` for each turn, no default system message.
        "alpaca": the template of stanford_alpaca, with or without input, one question and one answer,
        ended by the tokenizer's end token.
    turns
        "all" supervises every assistant turn, "last" only the last one.

    Raises
    ------
    ValueError
        When the tokenizer has no chat template, the template refuses the roles, changes or drops an
        answer, writes no end token, or renders earlier turns differently once later ones follow.

    Examples
    --------
    >>> chat = Example(({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}))
    >>> done = render(chat, template="chatml")
    >>> done.text
    '<|im_start|>user\\n2+2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>\\n'
    >>> done.spans, done.supervised
    (((54, 65),), ('4<|im_end|>',))
    """
    if turns not in ("all", "last"):
        raise ValueError(f"turns={turns!r}: expected 'all' or 'last'.")
    if template == "model":
        return _render_model(example, tokenizer, turns)
    if template == "chatml":
        rendered = _render_chatml(example)
    elif template == "alpaca":
        rendered = _render_alpaca(example, tokenizer)
    else:
        raise ValueError(f"template={template!r}: expected one of {', '.join(TEMPLATES)}.")
    bos = _own_bos(tokenizer)
    spans = rendered.spans[-1:] if turns == "last" else rendered.spans
    return Rendered(bos + rendered.text, tuple((a + len(bos), b + len(bos)) for a, b in spans))


def _own_bos(tokenizer: Any) -> str:
    """The BOS token, if this tokenizer puts one before a text; a chat template writes it itself."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return ""
    ids = tokenizer("a")["input_ids"]
    return tokenizer.bos_token if ids and ids[0] == tokenizer.bos_token_id else ""


def _render_chatml(example: Example) -> Rendered:
    text, spans = "", []
    for message in example.messages:
        text += f"<|im_start|>{message['role']}\n"
        start = len(text)
        text += f"{message['content']}<|im_end|>"
        if message["role"] == "assistant":
            spans.append((start, len(text)))
        text += "\n"
    return Rendered(text, tuple(spans))


def _render_alpaca(example: Example, tokenizer: Any) -> Rendered:
    if tokenizer is None or not tokenizer.eos_token:
        raise ValueError(
            "The Alpaca template ends in the tokenizer's end token, and there is none: pass a tokenizer "
            "that has an eos_token, or use template='chatml'."
        )
    roles = [message["role"] for message in example.messages]
    if roles != ["user", "assistant"]:
        raise ValueError(
            f"The Alpaca template holds one user and one assistant turn, found {', '.join(roles)}: use "
            "template='model' or 'chatml' for chats."
        )
    question, answer = (message["content"] for message in example.messages)
    if example.input:
        instruction = question.removesuffix(f"\n\n{example.input}")
        # One pass, so that braces or the other field's name inside a value stay as they are.
        prompt = ALPACA_WITH_INPUT.format(instruction=instruction, input=example.input)
    else:
        prompt = ALPACA_WITHOUT_INPUT.format(instruction=question)
    text = prompt + answer + tokenizer.eos_token
    return Rendered(text, ((len(prompt), len(text)),))


def _render_model(example: Example, tokenizer: Any, turns: str) -> Rendered:
    if tokenizer is None:
        raise ValueError("template='model' needs a tokenizer: pass it, or use template='chatml'.")
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path!r} has no chat template (a base model has none): use "
            "template='chatml' or 'alpaca', or set tokenizer.chat_template."
        )
    messages = example.messages
    text = _apply(tokenizer, messages, False)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if turns == "last":
        answers = answers[-1:]
    spans = []
    for i in answers:
        prompt = _apply(tokenizer, messages[:i], True)
        upto = text if i == len(messages) - 1 else _apply(tokenizer, messages[: i + 1], False)
        if not (text.startswith(upto) and upto.startswith(prompt)):
            raise ValueError(
                f"turn {i}: the chat template renders the turns up to this answer differently when the "
                "rest follows, so the answer can't be located. Use turns='last', one example for each "
                "answer, or another template."
            )
        answer = messages[i]["content"].strip()
        part = upto[len(prompt) :]
        at = part.find(answer)
        if at < 0:
            raise ValueError(
                f"turn {i}: the chat template doesn't show the answer {answer[:40]!r} as it is. Check "
                "the message keys (role, content) against the template."
            )
        if not part[at + len(answer) :].strip():
            raise ValueError(
                f"turn {i}: the chat template writes nothing after the answer, so the model would never "
                "learn to stop. Use template='chatml' or 'alpaca', or a chat template with an end token."
            )
        spans.append((len(prompt), len(upto.rstrip())))
    return Rendered(text, tuple(spans))


def _apply(tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"The chat template refuses the roles {roles}: {error}. normalise(rows, fold_system=True) moves "
            "a system message into the first user turn, merge_turns=True joins turns of one role."
        ) from error
