"""Turns with one model, or the same turns with two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onegpu.chat.speakers import Reply, Sampling, Speaker, Write


class Conversation:
    """What was said so far, and the one who answers.

    Examples
    --------
    >>> class Parrot:
    ...     name = "parrot"
    ...     def reply(self, messages, write, sampling=None):
    ...         return Reply(messages[-1]["content"], True, 1)
    >>> talk = Conversation(Parrot(), system="Be brief.")
    >>> talk.say("hello").text, [m["role"] for m in talk.messages]
    ('hello', ['system', 'user', 'assistant'])
    """

    def __init__(self, speaker: Speaker, system: str | None = None, sampling: Sampling | None = None):
        self.speaker, self.system, self.sampling = speaker, system, sampling or Sampling()
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget what was said; the system prompt stays."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def say(self, text: str, write: Write = lambda text: None) -> Reply:
        """Say something and return the answer, which ``write`` gets piece by piece as it comes.

        A turn whose answer fails, or is cut short by Ctrl-C, isn't kept.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        reply = self.speaker.reply(asked, write, self.sampling)
        self.messages = [*asked, {"role": "assistant", "content": reply.text}]
        return reply


class Comparison:
    """The same user turns to two models, each of which remembers its own answers."""

    def __init__(self, left: Conversation, right: Conversation):
        self.sides = (left, right)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two speakers."""
        left, right = self.sides
        return left.speaker.name, right.speaker.name

    def reset(self) -> None:
        """Forget what was said, on both sides."""
        for side in self.sides:
            side.reset()

    def say(self, text: str, on_side: Callable[[str], Any] = lambda name: None) -> tuple[Reply, Reply]:
        """Say something to both; ``on_side`` is told whose turn it is."""
        replies = []
        for side in self.sides:
            on_side(side.speaker.name)
            replies.append(side.say(text))
        return tuple(replies)
