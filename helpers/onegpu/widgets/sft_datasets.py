"""The mask viewer of topic 01: a row, a template, and which tokens the model learns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from onegpu.sft_datasets import IGNORE, Tokenized, to_example, tokenize
from onegpu.widgets.base import choice, explore, text

ROWS: Mapping[str, Mapping[str, Any]] = {
    "a question": {"prompt": "Name a fruit.", "completion": "An apple."},
    "an Alpaca row with input": {"instruction": "Add the numbers.", "input": "2 and 3", "output": "5"},
    "two answers": {
        "messages": [
            {"role": "user", "content": "Name a fruit."},
            {"role": "assistant", "content": "An apple."},
            {"role": "user", "content": "Another one?"},
            {"role": "assistant", "content": "A fig."},
        ]
    },
    "a system message": {
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": "Name a fruit."},
            {"role": "assistant", "content": "Fig"},
        ]
    },
    "Korean": {"prompt": "과일 하나를 말해 보세요.", "completion": "사과입니다."},
}
OWN = "your own, below"

_LEARNED = "background:#cfe8e4;border-bottom:3px solid #12355b;color:#000"
_MASKED = "background:#f2f2f2;border-bottom:1px dotted #6b6b6b;color:#444"


def mask_html(done: Tokenized, tokenizer: Any) -> str:
    """Draw a tokenized row as HTML: learned tokens on colour with a thick underline, the others grey and dotted.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> row = tokenize({"prompt": "Hi", "completion": "Yes"}, tiny_tokenizer())
    >>> mask_html(row, tiny_tokenizer()).count("3px solid") == row.supervised_tokens
    True
    """
    parts = []
    for group, learned in _characters(done, tokenizer):
        shown = escape(group).replace(" ", "&nbsp;").replace("\n", "⏎<br>")
        style = _LEARNED if learned else _MASKED
        parts.append(f'<span style="{style};padding:0 1px;margin:0 1px;white-space:pre-wrap">{shown}</span>')
    return f'<div style="font-family:monospace;line-height:2.1">{"".join(parts)}</div>'


def _characters(done: Tokenized, tokenizer: Any) -> Sequence[tuple[str, bool]]:
    """(text, learned) of each token; the tokens of one character (bytes of Korean) stay apart as "·"."""
    shown, before = [], ""
    for end, label in enumerate(done.labels, start=1):
        whole = tokenizer.decode(done.input_ids[:end])
        # Half a character decodes to U+FFFD, which the next token replaces.
        new = (
            whole[len(before.rstrip("\ufffd")) :]
            if whole.startswith(before.rstrip("\ufffd"))
            else whole[len(before) :]
        )
        shown.append((re.sub("\ufffd+", "·", new), label != IGNORE))
        before = whole
    return shown


def in_words(done: Tokenized, tokenizer: Any) -> str:
    """Say what is learned of a row, in words.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> print(in_words(tokenize({"prompt": "Hi", "completion": "Yes"}, tiny_tokenizer()), tiny_tokenizer()))
    3 of 23 tokens are learned: “Yes<|im_end|>”.
    """
    pieces, piece = [], []
    for label in (*done.labels, IGNORE):
        if label != IGNORE:
            piece.append(label)
        elif piece:
            pieces.append(f"“{tokenizer.decode(piece)}”")
            piece = []
    learned = " and ".join(pieces)
    return f"{done.supervised_tokens} of {len(done)} tokens are learned: {learned}."


def mask_viewer(tokenizer: Any = None, rows: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Show the mask viewer.

    Parameters
    ----------
    tokenizer
        The course's tiny tokenizer if none is given.
    rows
        Named rows to pick from.
    """
    if tokenizer is None:
        from onegpu.models import tiny_tokenizer

        tokenizer = tiny_tokenizer()
    rows = dict(ROWS if rows is None else rows)

    def draw(row: str, template: str, turns: str, question: str, answer: str) -> tuple[str, str]:
        picked = {"prompt": question, "completion": answer} if row == OWN else rows[row]
        done = tokenize(to_example(picked), tokenizer, template=template, turns=turns)
        return mask_html(done, tokenizer), in_words(done, tokenizer)

    explore(
        draw,
        row=choice("row", [*rows, OWN]),
        template=choice("template", ["model", "chatml", "alpaca"]),
        turns=choice("answers learned", ["all", "last"]),
        question=text("your question", "What is your name?"),
        answer=text("your answer", "I am a small model."),
    )
