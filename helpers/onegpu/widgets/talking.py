"""``chat``: talk to a model in a notebook, as ``onegpu chat`` does in a terminal.

A field, in which Enter sends, and the conversation above it, which grows while the model answers. What it shows in a
stored page, where nobody answers, is a sentence.
"""

from __future__ import annotations

import asyncio
import time
from html import escape
from pathlib import Path

import ipywidgets

from onegpu.chat import Conversation, Sampling, find_place, open_speaker, run_system_prompt
from onegpu.chat.speakers import Speaker, TransformersSpeaker
from onegpu.widgets.base import display_widget, live

LATE_S = 0.1
"""Within this time the field's text arrives, which the browser sends after the Enter that follows it."""

REDRAWN_S = 0.1


def chat(
    model: str | Path | Speaker,
    *,
    compare: bool = False,
    system: str | None = None,
    suggestion: str = "",
    max_new_tokens: int = 256,
    temperature: float = 0.0,
) -> None:
    """Show a small chat with a model; Enter sends, and each answer ends at the model's stop token.

    Parameters
    ----------
    model
        A run's, an adapter's or a model's folder, a catalogue name, a hub id or a GGUF file; or what ``open_speaker`` gives.
    compare
        Let the base model answer too, above the tuned one.
    system
        System prompt; "" for none. None: the one that all rows of the run share, if there is one.
    suggestion
        Stands in the field to begin with, so that Enter asks it.
    max_new_tokens, temperature
        As for ``onegpu chat``.

    Raises
    ------
    ValueError
        If there is nothing to talk to, or no base to compare with.

    Examples
    --------
    In a notebook, after ``result = finetune(config)``::

        from onegpu import widgets

        widgets.chat(result.adapter_dir, compare=True, suggestion="Where is my parcel?")
    """
    named = isinstance(model, str | Path)
    if named and system is None:
        system = run_system_prompt(find_place(model))
    speaker = open_speaker(model) if named else model
    speakers = [speaker]
    if compare:
        if not (isinstance(speaker, TransformersSpeaker) and hasattr(speaker.model, "disable_adapter")):
            raise ValueError(
                f"compare=True needs a run or an adapter, to show its base beside it: {speaker.name} is neither"
            )
        speakers.insert(0, speaker.without_adapters())
    sampling = Sampling(temperature, max_new_tokens=max_new_tokens)
    _Chat([Conversation(one, system or None, sampling) for one in speakers], suggestion).show()


class _Chat:
    """The widget: what was said, a field, and two buttons."""

    def __init__(self, sides: list[Conversation], suggestion: str):
        self.sides = sides
        self.said: list[tuple[str, str]] = []
        self.names = " and ".join(side.speaker.name for side in sides)
        self.place = ipywidgets.HTML()
        self.field = ipywidgets.Text(
            value=suggestion, description="your message", placeholder="a message, then Enter", continuous_update=False,
            style={"description_width": "initial"}, layout={"width": "60%"},
        )  # fmt: skip
        self.send = ipywidgets.Button(description="Send", layout={"width": "auto"})
        self.anew = ipywidgets.Button(description="New conversation", layout={"width": "auto"})
        row = ipywidgets.HBox([self.field, self.send, self.anew], layout={"flex_flow": "row wrap"})
        self.frame = ipywidgets.VBox([self.place, row])
        # `Text.on_submit` warns in ipywidgets 8; both 7.7 and 8 send this message for Enter.
        self.field.on_msg(lambda _, content, __: self._soon() if content.get("event") == "submit" else None)
        self.send.on_click(lambda _: self._soon())
        self.anew.on_click(lambda _: self._begin())
        self._draw()

    def show(self) -> None:
        words = f"A chat with {self.names}: run the notebook to talk to it."
        display_widget(self.frame, {"text/html": f"<p>{escape(words)}</p>", "text/plain": words})

    def _soon(self) -> None:
        try:
            asyncio.get_running_loop().call_later(LATE_S, self.ask)
        except RuntimeError:  # no loop, and so no browser that anything is late from
            self.ask()

    def _begin(self) -> None:
        for side in self.sides:
            side.reset()
        self.said.clear()
        self._draw()
        self._focus()

    def _focus(self) -> None:
        if hasattr(self.field, "focus"):  # ipywidgets 8; in 7.7 Enter leaves the cursor where it is
            self.field.focus()

    def ask(self) -> None:
        """Send what is in the field, and show the answers as they come."""
        text = self.field.value.strip()
        if not text:
            return
        self.field.value = ""
        self.said.append(("you", text))
        for side in self.sides:
            self._answer(side, text)
        self._focus()

    def _answer(self, side: Conversation, text: str) -> None:
        self.said.append((side.speaker.name, ""))
        self._draw(busy=True)
        drawn = time.monotonic()

        def write(part: str) -> None:
            nonlocal drawn
            name, so_far = self.said[-1]
            self.said[-1] = (name, so_far + part)
            if time.monotonic() - drawn >= REDRAWN_S:
                self._draw(busy=True)
                drawn = time.monotonic()

        try:
            reply = side.say(text, write)
            cut = "" if reply.stopped else f" … (cut at {side.sampling.max_new_tokens} tokens)"
            self.said[-1] = (side.speaker.name, (reply.text or "(nothing)") + cut)
        except ValueError as error:
            self.said[-1] = (side.speaker.name, f"({error})")
        self._draw()

    def _draw(self, busy: bool = False) -> None:
        lines = "".join(
            f'<p style="white-space:pre-wrap;margin:4px 0"><b>{escape(name)}:</b> {escape(text)}{"" if text else "…"}</p>'
            for name, text in self.said
        )
        self.place.value = live(
            f'<div role="log" aria-live="polite" aria-busy="{str(busy).lower()}" '
            f'aria-label="conversation with {escape(self.names)}">{lines}</div>'
        )
