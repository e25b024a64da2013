"""``reveal``: a question that is answered after the reader has guessed.

Where there is a kernel: a field for a guess, a button, and then the answer with the guess beside it. In a stored page
(GitHub, a site, JupyterLab before Run All): the question, with the answer folded under it. As plain text: both, so that
nbval compares the answer.
"""

from __future__ import annotations

import base64
import re
from html import escape
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from onegpu.plots.base import caption_of, png
from onegpu.widgets.base import display_widget

BUTTON = "Show the answer"
_WORDS = "font-size:1em;line-height:1.5;white-space:normal"


def reveal(question: str, *answers: Any, unit: str = "", form: str = "", why: str = "") -> None:
    """Ask a question, and show its answer when the reader has guessed (or asks for it without a guess).

    Compute the answer in the cell and hand it over; the question and the answer are not printed anywhere else.

    Parameters
    ----------
    question
        What is asked, in a sentence. ``code`` may stand in backticks, here and in ``why``.
    answers
        The answer: a number, a text, a figure that has a caption (``onegpu.plots.captioned``), or anything with a
        ``_repr_html_``, such as a table. Several are shown below each other; a guess is compared with the first.
    unit
        What a number counts: "codes", "GiB", "%".
    form
        Format of a number, such as ".3f"; by default ``","`` for whole numbers, three digits for others.
    why
        A sentence or two that explain the answer.

    Raises
    ------
    ValueError
        When there is no answer, or a figure without a caption.

    Examples
    --------
    In a lesson::

        from onegpu.widgets import reveal

        reveal("How many of the 255 codes are in use?", len(codes.unique()), unit="codes", why="A step is 0.47 now.")

    What nbval and a terminal see:

    >>> print(in_plain_text("How many?", (18,), unit="codes", why="A step is `0.47` now."))
    How many?
    Answer: 18 codes. A step is 0.47 now.
    """
    if not answers:
        raise ValueError('reveal(question) without an answer: hand it over, as in reveal("How many?", 18).')
    shown = _answer_html(answers, unit, form, why)
    asked = _inline(question)

    heading = ipywidgets.HTML(f'<p style="{_WORDS}"><b>{asked}</b></p>')
    field = ipywidgets.Text(
        description="your guess", placeholder="a guess, then Enter", style={"description_width": "initial"}
    )
    button = ipywidgets.Button(description=BUTTON, layout={"width": "auto"})
    place = ipywidgets.HTML()
    row = [field, ipywidgets.Label(unit), button] if unit else [field, button]
    frame = ipywidgets.VBox([heading, ipywidgets.HBox(row, layout={"flex_flow": "row wrap"}), place])

    def show(_: Any = None) -> None:
        said = compared(field.value, answers[0], unit, form)
        place.value = (
            f'<div role="status" style="{_WORDS}">{f"<p>{escape(said)}</p>" if said else ""}{shown}</div>'
        )
        field.disabled = button.disabled = True

    def typed(_: Any) -> None:  # the last letter may arrive after the Enter that follows it
        if button.disabled:
            show()

    button.on_click(show)
    # `Text.on_submit` warns in ipywidgets 8; both 7.7 and 8 send this message for Enter.
    field.on_msg(lambda _, content, __: show() if content.get("event") == "submit" else None)
    field.observe(typed, names="value")
    folded = f"<details><summary><b>{asked}</b> ({BUTTON.lower()})</summary>{shown}</details>"
    display_widget(
        frame, {"text/html": folded, "text/plain": in_plain_text(question, answers, unit, form, why)}
    )


def compared(guess: str, answer: Any, unit: str = "", form: str = "") -> str:
    """Return a sentence that sets a guess beside the answer; empty if nothing was guessed.

    Examples
    --------
    >>> compared("200", 18, "codes")
    'You said 200, it is 18 codes.'
    >>> compared("18 codes", 18, "codes")
    'You said 18 codes, and so it is.'
    >>> compared("0.5", 0.13817)
    'You said 0.5, it is 0.138.'
    >>> compared("the first", "the second")
    'You said “the first”.'
    >>> compared("  ", 18)
    ''
    """
    guess = guess.strip()
    if not guess:
        return ""
    if not _is_number(answer):
        return f"You said “{guess}”."
    number = _number_in(guess)
    if isinstance(answer, int):
        same = number == answer
    else:  # as exact as what is shown
        same = number is not None and _formatted(number, "", form) == _formatted(answer, "", form)
    return f"You said {guess}, {'and so it is' if same else f'it is {_formatted(answer, unit, form)}'}."


def in_plain_text(question: str, answers: Any, unit: str = "", form: str = "", why: str = "") -> str:
    """Return question and answer as plain text."""
    texts = []
    for answer in answers:
        if isinstance(answer, Figure):
            texts.append(f"Figure: {caption_of(answer)}")
        else:
            text = _formatted(answer, unit, form) if _is_number(answer) else str(answer)
            texts.append(text if "\n" in text else _sentence(text))
    if why:
        texts[-1:] = [texts[-1], why] if "\n" in texts[-1] else [f"{texts[-1]} {why}"]
    return "\n".join([question, f"Answer: {texts[0]}", *texts[1:]]).replace("`", "")


def _answer_html(answers: Any, unit: str, form: str, why: str) -> str:
    parts = []
    for answer in answers:
        if isinstance(answer, Figure):
            sentence = escape(caption_of(answer))
            data = base64.b64encode(png(answer)).decode()
            parts.append(
                f'<img alt="{sentence}" src="data:image/png;base64,{data}" style="max-width:100%">'
                f"<p><i>{sentence}</i></p>"
            )
        elif _is_number(answer):
            parts.append(f"<p>Answer: <b>{escape(_formatted(answer, unit, form))}</b></p>")
        elif hasattr(answer, "_repr_html_"):
            parts.append(answer._repr_html_())
        elif "\n" in str(answer):
            parts.append(
                f'<pre style="white-space:pre-wrap;font-family:monospace">{escape(str(answer))}</pre>'
            )
        else:
            parts.append(f"<p>Answer: <b>{_inline(str(answer))}</b></p>")
    return "".join([*parts, f"<p>{_inline(why)}</p>" if why else ""])


def _is_number(answer: Any) -> bool:
    return isinstance(answer, int | float) and not isinstance(answer, bool)


def _formatted(number: float, unit: str, form: str) -> str:
    text = format(number, form or ("," if isinstance(number, int) else ".3g"))
    return f"{text} {unit}" if unit and unit != "%" else f"{text}{' %' if unit else ''}"


def _number_in(guess: str) -> float | None:
    found = re.match(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?", guess.replace(" ", ""))
    return float(found[0].replace(",", "")) if found else None


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
