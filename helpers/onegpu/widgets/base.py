"""``explore``: controls, and a picture with real alt text that is drawn anew when one of them moves.

The picture is an ``<img alt=...>`` inside an HTML widget, with the controls' values and the same sentence under it in
text: JupyterLab shows no alt text of plain figures. A stored notebook keeps the first picture, so that a preview without
a kernel shows something.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

from onegpu.plots.base import png

BUTTONS, BUTTON_LETTERS = 4, 32
"""The most options, and letters of all of them, that are buttons; they stay on a line of 800 pixels."""
LIST_KEYS = "Space opens the list, arrows choose, Enter takes it."
"""JupyterLab takes the arrow keys of a closed list for itself, and goes to the next cell."""

# JupyterLab styles tables of outputs, not those inside an HTML widget.
_STYLE = (
    "<style>.onegpu-live{white-space:normal;overflow-wrap:anywhere;line-height:1.5}"
    ".onegpu-live table{border-collapse:collapse;overflow-wrap:normal;margin:4px 0}"
    ".onegpu-live caption{white-space:nowrap;text-align:left}"
    ".onegpu-live td,.onegpu-live th{padding:2px 12px;text-align:right}"
    ".onegpu-live td:first-child,.onegpu-live th:first-child{text-align:left}</style>"
)


def slider(label: str, value: float, low: float, high: float, step: float = 1) -> Any:
    """Return a slider; of whole numbers if all its numbers are."""
    whole = all(isinstance(number, int) for number in (value, low, high, step))
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    # A redraw for each pixel of a drag would queue up: one when the mouse is let go, one for each key.
    return kind(
        value=value, min=low, max=high, step=step, description=label, continuous_update=False, style=_WIDE
    )


def choice(label: str, options: Sequence[Any], value: Any = None) -> Any:
    """Return a choice of one option; the first, if none is given.

    A few short options are buttons side by side, which Tab and Space reach; more of them are a list that opens.
    """
    chosen = options[0] if value is None else value
    about = {"options": list(options), "value": chosen, "description": label}
    if len(options) <= BUTTONS and sum(len(str(option)) for option in options) <= BUTTON_LETTERS:
        return ipywidgets.ToggleButtons(
            **about,
            tooltips=[f"{label}: {option}" for option in options],
            style=_WIDE | {"button_width": "auto"},
        )
    return ipywidgets.Dropdown(**about, style=_WIDE)


def switch(label: str, value: bool = False) -> Any:
    """Return a checkbox."""
    return ipywidgets.Checkbox(value=value, description=label, indent=False)


def text(label: str, value: str = "") -> Any:
    """Return a line of text to type; it counts when Enter is pressed or the field is left."""
    return ipywidgets.Text(value=value, description=label, continuous_update=False, style=_WIDE)


def number(label: str, value: float) -> Any:
    """Return a field for a number."""
    return ipywidgets.FloatText(value=value, description=label, continuous_update=False, style=_WIDE)


_WIDE = {"description_width": "initial"}


def explore(draw: Callable[..., tuple[Any, str]], **controls: Any) -> None:
    """Show controls and what ``draw`` makes of their values.

    Parameters
    ----------
    draw
        Called as ``draw(name=value, ...)``; returns (figure, sentence) or (HTML text, sentence). The sentence says what
        is to be seen; it is the alt text and stands below the picture.
    controls
        Widgets by the name of the parameter they set, such as ``block_size=slider("block size", 64, 16, 4096)``.

    Raises
    ------
    Exception
        What ``draw`` raises on the first values. Later errors are shown in place of the picture.
    """
    picture = ipywidgets.HTML()
    lists = any(isinstance(control, ipywidgets.Dropdown) for control in controls.values())
    keys = [ipywidgets.Label(LIST_KEYS)] if lists else []
    labels = {name: control.description for name, control in controls.items()}
    shown_controls = [_with_field(control) for control in controls.values()]
    frame = ipywidgets.VBox([*shown_controls, *keys, picture])

    def values() -> dict[str, Any]:
        return {name: control.value for name, control in controls.items()}

    def words() -> str:
        return ", ".join(f"{labels[name]} = {value}" for name, value in values().items())

    def refresh(_: Any = None) -> None:
        try:
            picture.value = _html(*draw(**values()), words())
        except Exception as error:
            picture.value = f'<p role="alert">{escape(type(error).__name__)}: {escape(str(error))}</p>'

    shown, sentence = draw(**values())
    picture.value = _html(shown, sentence, words())
    for control in controls.values():
        control.observe(refresh, names="value")
    present(frame, shown, sentence, words())


def _with_field(control: Any) -> Any:
    """Return a slider with a field for its number in place of its label and readout; any other control as it is.

    A field has a name for a screen reader and takes a number from the keyboard; ipywidgets gives a slider's handle none.
    """
    fields = {
        ipywidgets.IntSlider: ipywidgets.BoundedIntText,
        ipywidgets.FloatSlider: ipywidgets.BoundedFloatText,
    }
    kind = fields.get(type(control))
    if kind is None:
        return control
    field = kind(
        value=control.value,
        min=control.min,
        max=control.max,
        step=control.step,
        description=control.description,
        style=_WIDE,
        layout={"width": "auto"},
    )
    control.description, control.readout = "", False
    ipywidgets.jslink((field, "value"), (control, "value"))
    return ipywidgets.HBox([field, control], layout={"flex_flow": "row wrap"})


def present(frame: Any, shown: Any, sentence: str, words: str) -> None:
    """Display a widget, and in its place in a stored notebook what it shows first.

    Parameters
    ----------
    frame
        The widget.
    shown
        A figure, or HTML text.
    sentence
        What is to be seen.
    words
        The controls' values in words.
    """
    still = (
        {"text/html": f"{shown}<p>{escape(sentence)}</p>"}
        if isinstance(shown, str)
        else {"image/png": base64.b64encode(png(shown)).decode()}
    )
    display_widget(frame, still | {"text/plain": f"{words}: {sentence}"}, sentence)


def display_widget(frame: Any, stored: dict[str, str], alt: str = "") -> None:
    """Display a widget; ``stored`` is what stands in its place where there is no kernel, by MIME type."""
    from IPython.display import display

    display(
        stored
        | {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2,
                "version_minor": 0,
                "model_id": frame.model_id,
            },
        },
        raw=True,
        metadata={"image/png": {"alt": alt}} if "image/png" in stored else {},
    )


def _html(shown: Any, sentence: str, values: str) -> str:
    if not isinstance(shown, str):
        data = base64.b64encode(png(shown)).decode()
        shown = f'<img alt="{escape(sentence)}" src="data:image/png;base64,{data}" style="max-width:100%">'
    return live(f'{shown}<p aria-live="polite"><b>{escape(values)}</b>: {escape(sentence)}</p>')


def live(html: str) -> str:
    """Return HTML for an ``ipywidgets.HTML``: its tables have room between columns, its lines break at the window."""
    return f'{_STYLE}<div class="onegpu-live">{html}</div>'
