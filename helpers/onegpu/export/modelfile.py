"""A Modelfile for Ollama: the GGUF file, the chat template in Ollama's language, the system prompt, the stop tokens.

Ollama's templates are Go's, not Jinja. What stands between the turns is read off the model's own renderings, and the
result is compared with them; a template that does more than put text around turns is left out, and Ollama then takes
what it makes of the template inside the GGUF file.

Source: the Modelfile reference in Ollama's documentation (FROM, TEMPLATE, SYSTEM, PARAMETER stop).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Turns:
    """What a chat template writes around the texts of a conversation.

    Attributes
    ----------
    system, first_user : str
        Before a system prompt; before a user's text that opens the conversation (with a default system prompt, if the
        template has one).
    after_system, after_answer : str
        Between a system prompt and the user's text; between an answer and the user's text.
    answer, generation : str
        Between the user's text and an answer; after the user's last text, where the model goes on.
    """

    system: str
    first_user: str
    after_system: str
    after_answer: str
    answer: str
    generation: str

    def render(self, messages: Messages) -> str:
        """Render a conversation that ends with a user turn."""
        text = ""
        for i, message in enumerate(messages):
            before = {
                "system": self.system,
                "user": (self.first_user, self.after_system)[i] if i < 2 else self.after_answer,
                "assistant": self.answer,
            }[message["role"]]
            text += before + message["content"]
        return text + self.generation

    def to_go(self) -> str:
        """Write the same as a Go template over ``.Messages``."""
        return (
            '{{ range $i, $m := .Messages }}{{ if eq $m.Role "system" }}'
            + self.system
            + '{{ else if eq $m.Role "user" }}{{ if eq $i 0 }}'
            + self.first_user
            + "{{ else if eq $i 1 }}"
            + self.after_system
            + "{{ else }}"
            + self.after_answer
            + "{{ end }}{{ else }}"
            + self.answer
            + "{{ end }}{{ $m.Content }}{{ end }}"
            + self.generation
        )


def find_turns(tokenizer: Any, add_bos: bool = False) -> Turns | None:
    """Read off a tokenizer's chat template what stands around the turns; None if that isn't all it does.

    Parameters
    ----------
    add_bos
        Whether the engine puts the beginning token in front by itself: then it is left out here.

    Examples
    --------
    >>> from onegpu.models import tiny_tokenizer
    >>> turns = find_turns(tiny_tokenizer())
    >>> turns.first_user, turns.answer
    ('<|im_start|>user\\n', '<|im_end|>\\n<|im_start|>assistant\\n')
    """

    def chat(*texts: str, system: bool) -> list[dict[str, str]]:
        roles = (["system"] if system else []) + ["user", "assistant"] * len(texts)
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]

    def render(messages: Messages) -> str:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        bos = tokenizer.bos_token
        return text.removeprefix(bos) if add_bos and bos else text

    words = ("Alpha", "Beta", "Gamma", "Delta")
    tests = [
        chat("Zwei", system=False),
        chat("Eins", "Zwei", system=True),
        chat("Eins", "Zwei", "Drei", system=False),
        chat("Eins", "Zwei", "Drei", "Vier", "Drei", "Acht", system=True),
    ]
    try:
        (system, after_system, answer, after_answer, generation) = _split(
            render(chat(*words, system=True)), words
        )
        (first_user, _) = _split(render(chat("Alpha", system=False)), words[:1])
        turns = Turns(system, first_user, after_system, after_answer, answer, generation)
        if any(mark in part for part in vars(turns).values() for mark in ("{{", "}}", '"""')):
            return None
        return turns if all(turns.render(test) == render(test) for test in tests) else None
    except (
        Exception
    ):  # a template refuses what it doesn't take with any kind of error (a system prompt, for instance)
        return None


def _split(text: str, words: Sequence[str]) -> list[str]:
    parts = []
    for word in words:
        before, found, text = text.partition(word)
        if not found:
            raise ValueError(f"{word} isn't in the rendering")
        parts.append(before)
    return [*parts, text]


def modelfile(gguf_name: str, turns: Turns | None, stop: Sequence[str], system: str | None = None) -> str:
    """Write a Modelfile.

    Examples
    --------
    >>> print(modelfile("m.gguf", None, ["<|im_end|>"], "Be brief."))
    FROM ./m.gguf
    SYSTEM \"\"\"Be brief.\"\"\"
    PARAMETER temperature 0
    PARAMETER stop "<|im_end|>"
    <BLANKLINE>
    """
    lines = [f"FROM ./{gguf_name}"]
    if turns is not None:
        lines.append(f'TEMPLATE """{turns.to_go()}"""')
    if system:
        if '"""' in system:
            raise ValueError(
                'the system prompt holds """, which a Modelfile can\'t: give another with --system'
            )
        lines.append(f'SYSTEM """{system}"""')
    lines.append("PARAMETER temperature 0")
    lines += [f'PARAMETER stop "{token}"' for token in stop]
    return "\n".join(lines) + "\n"
