"""A conversation in the terminal: streamed, several turns, or two models side by side."""

from __future__ import annotations

import itertools
import shutil
import sys
import unicodedata
from collections.abc import Callable

from onegpu.chat.conversation import Comparison, Conversation

HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /quit (or Ctrl-D) ends"


def answer_once(talk: Conversation | Comparison, text: str) -> None:
    """Print one answer (to stdout, nothing else there), or both side by side."""
    if isinstance(talk, Comparison):
        replies = talk.say(text, _notice)
        print(side_by_side(*zip(talk.names, (reply.text for reply in replies), strict=True)))
        return
    reply = talk.say(text, _print_part)
    print()
    if not reply.stopped:
        print(f"(cut at {talk.sampling.max_new_tokens} tokens: --max-new-tokens)", file=sys.stderr)


def converse(talk: Conversation | Comparison, read: Callable[[str], str] = input) -> None:
    """Ask for a line, answer it, and so on until Ctrl-D or ``/quit``. Ctrl-C ends an answer, or the conversation."""
    print(HELP)
    while True:
        try:
            line = read("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not line:
            continue
        command, _, rest = line.partition(" ")
        if command in ("/quit", "/exit"):
            return
        if command == "/reset":
            talk.reset()
            print("a new conversation")
        elif command == "/system":
            for side in talk.sides if isinstance(talk, Comparison) else (talk,):
                side.system = rest.strip() or None
            talk.reset()
            print(
                "a new conversation "
                + (f"under {rest.strip()!r}" if rest.strip() else "without a system prompt")
            )
        elif command.startswith("/") and command[1:].isalpha():
            print(f"no command {command}: {HELP}")
        else:
            try:
                answer_once(talk, line)
            except KeyboardInterrupt:
                print("\n(cut off; the turn is forgotten)")
            except ValueError as error:
                print(f"error: {error} (/reset)")


def _print_part(text: str) -> None:
    print(text, end="", flush=True)


def _notice(name: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{name} is answering ...", end="\r", file=sys.stderr, flush=True)


def side_by_side(left: tuple[str, str], right: tuple[str, str], width: int | None = None) -> str:
    """Lay two titled texts in columns of the terminal's width.

    Examples
    --------
    >>> print(side_by_side(("base", "I can only imagine"), ("tuned", "Yes."), width=21))
    base      | tuned
    --------- | ---------
    I can     | Yes.
    only      |
    imagine   |
    """
    width = width or shutil.get_terminal_size().columns
    column = max((width - 3) // 2, 9)
    rows = [(left[0], right[0]), ("-" * column, "-" * column)]
    rows += itertools.zip_longest(_wrap(left[1], column), _wrap(right[1], column), fillvalue="")
    return "\n".join(f"{a}{' ' * (column - _cells(a))} | {b}".rstrip() for a, b in rows)


def _cells(text: str) -> int:
    """Columns that a text takes on a terminal: Korean letters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _wrap(text: str, width: int) -> list[str]:
    """Break a text at spaces into lines of at most ``width`` cells; longer words are cut."""
    lines = []
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in paragraph.split(" "):
            if line and _cells(line) + 1 + _cells(word) > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
            while _cells(line) > width:
                cut = next(n for n in range(len(line), 0, -1) if _cells(line[:n]) <= width)
                lines.append(line[:cut])
                line = line[cut:]
        lines.append(line)
    return lines
