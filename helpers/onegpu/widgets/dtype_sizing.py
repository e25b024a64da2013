"""Widgets of topic 03: the bit explorer, and what fits on a card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from html import escape

import ipywidgets

from onegpu.dtype_sizing import (
    FORMATS,
    Stored,
    decode,
    flip_bit,
    format_bytes,
    models_that_fit,
    neighbours,
    store,
)
from onegpu.runtime import COURSE_CARDS, GPUS
from onegpu.widgets.base import LIST_KEYS, choice, explore, live, present, slider, text

# The page's own text colour can't be known (and not be set on a button of ipywidgets 7): buttons keep the theme's
# colours and get a border, 3:1 on white and on black; cells of the table bring their background and black text.
_FIELDS = {
    "sign": ("#808080", "double", "#e4e4e4"),
    "exponent": ("#c2701c", "solid", "#f6d9a8"),
    "mantissa": ("#3f84c4", "dashed", "#d3e9f8"),
}
"""Border colour, border style and background by field."""
_BIT_WIDTH = "30px"


def bit_explorer(value: float | str = 0.1, fmt: str = "bf16") -> None:
    """Show a number in a format, bit by bit: type another, choose another format, or flip a bit.

    Every bit is a button: click it, or move to it with Tab and press Space. The number that the new pattern stands
    for, its neighbours and the distance from what was typed are written below.
    """
    explorer = _BitExplorer(str(value), fmt)
    present(explorer.frame, *explorer.html(), explorer.in_words())


class _BitExplorer:
    def __init__(self, typed: str, fmt: str) -> None:
        self.typed = text("number", typed)
        self.format = choice("format", list(FORMATS), fmt)
        self.buttons = ipywidgets.HBox(layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.picture = ipywidgets.HTML()
        controls = ipywidgets.HBox(
            [self.typed, self.format, ipywidgets.Label(LIST_KEYS)],
            layout=ipywidgets.Layout(flex_flow="row wrap"),
        )
        self.frame = ipywidgets.VBox([controls, self.buttons, self.picture])
        self.code, self.shown = 0, ""
        self.kept: Stored | None = None
        self.typed.observe(self.read, names="value")
        self.format.observe(self.read, names="value")
        self.read()

    def read(self, _=None) -> None:
        """Take the number and format as typed, and show their bits."""
        try:
            self.kept = store(_number(self.typed.value), self.format.value)
        except ValueError as error:
            self.kept = None
            self.buttons.children, self.shown = (), ""
            self.picture.value = f'<p role="alert">{escape(str(error))}</p>'
            return
        self.code = self.kept.code
        self.show()

    def flip(self, position: int) -> None:
        """Flip a bit, 0 the leftmost."""
        self.code = flip_bit(self.code, position, self.format.value)
        self.show()

    def show(self) -> None:
        fmt = FORMATS[self.format.value]
        bits = f"{self.code:0{fmt.bits}b}"
        if self.shown != fmt.name:
            self.shown = fmt.name
            self.buttons.children = tuple(self._button(position) for position in range(fmt.bits))
        for button, bit in zip(self.buttons.children, bits, strict=True):
            button.description = bit
        table, sentence = self.html()
        self.picture.value = live(f'{table}<p aria-live="polite">{escape(sentence)}</p>')

    def _button(self, position: int) -> ipywidgets.Button:
        fmt = FORMATS[self.format.value]
        part = field_of(position, self.format.value)
        colour, line, _ = _FIELDS[part]
        layout = ipywidgets.Layout(
            width=_BIT_WIDTH, padding="0px", margin="1px", border=f"3px {line} {colour}"
        )
        if position in (fmt.sign_bits, fmt.sign_bits + fmt.exponent_bits) and position:
            layout.margin = "1px 1px 1px 10px"
        button = ipywidgets.Button(tooltip=f"bit {position}, {part}: press to flip", layout=layout)
        button.on_click(lambda _: self.flip(position))
        return button

    def in_words(self) -> str:
        return f"number = {self.typed.value}, format = {self.format.value}"

    def html(self) -> tuple[str, str]:
        """The table under the bits, and the sentence that says the same."""
        if self.kept is None:
            return "", "Type a number, such as 0.1 or 65520."
        return describe(self.code, self.kept)


def field_of(position: int, fmt: str) -> str:
    """Say which field a bit belongs to, 0 the leftmost.

    Examples
    --------
    >>> [field_of(position, "fp16") for position in (0, 1, 6)]
    ['sign', 'exponent', 'mantissa']
    """
    layout = FORMATS[fmt]
    if position < layout.sign_bits:
        return "sign"
    return "exponent" if position < layout.sign_bits + layout.exponent_bits else "mantissa"


def describe(code: int, kept: Stored) -> tuple[str, str]:
    """Describe a bit pattern beside the number that was typed: an HTML table, and a sentence.

    Examples
    --------
    >>> print(describe(store(0.1, "bf16").code, store(0.1, "bf16"))[1])
    0.1 is stored in bf16 as 0.10009765625: off by 0.098 %. The numbers next to it are 0.099609375 and 0.1005859375.
    """
    fmt, value = kept.format, decode(code, kept.format)
    below, above = neighbours(code, fmt)
    bits = f"{code:0{fmt.bits}b}"
    cells = "".join(
        f"<td style='background:{_FIELDS[field_of(i, fmt.name)][2]};color:#000;font-family:monospace;padding:0 4px'>{bit}</td>"
        for i, bit in enumerate(bits)
    )
    error = value - kept.given
    rows = [
        ("stored", repr(value)),
        ("number before", "none" if below is None else repr(below)),
        ("number after", "none" if above is None else repr(above)),
        ("error", f"{error:+.6g}" if math.isfinite(error) else "not finite"),
    ]
    body = "".join(
        f"<tr><th scope='row' style='text-align:left'>{name}</th><td style='text-align:left'>{escape(cell)}</td></tr>"
        for name, cell in rows
    )
    table = (
        f"<table aria-label='bits'><tr>{cells}</tr></table>"
        f"<table><caption style='text-align:left'>{fmt.name}: {_layout(fmt.name)}</caption>{body}</table>"
    )
    if not math.isfinite(value):
        how = "there is no number for it"
    elif value == kept.given:
        how = "exactly"
    elif kept.given and math.isfinite(kept.given):
        times = value / kept.given
        how = (
            f"off by {100 * abs(error / kept.given):.2g} %"
            if abs(times) < 10
            else f"{times:,.0f} times as large"
        )
    else:
        how = f"off by {error:+.3g}"
    beside = " and ".join(repr(x) for x in (below, above) if x is not None)
    if code == kept.code:
        first = f"{kept.given!r} is stored in {fmt.name} as {value!r}: {how}."
    else:
        first = f"This pattern stands for {value!r} in {fmt.name}, not the nearest to {kept.given!r}: {how}."
    return table, f"{first} The numbers next to it are {beside}." if beside else first


def _layout(name: str) -> str:
    fmt = FORMATS[name]
    if fmt.kind == "codebook":
        return f"a table of {2**fmt.bits} levels, times the scale of its block"
    if fmt.kind == "integer":
        return f"{fmt.bits} bits, two's complement"
    scaled = ", times the scale of its block" if fmt.block_size else ""
    return f"{fmt.sign_bits} sign, {fmt.exponent_bits} exponent, {fmt.mantissa_bits} mantissa bits{scaled}"


def _number(typed: str) -> float:
    try:
        return float(typed.strip().replace(",", "").replace("_", ""))
    except ValueError:
        raise ValueError(f"{typed!r} is no number: type one such as 0.1, -3, 65520, 1e-8 or inf") from None


@cache
def _fitting(card: str, fmt: str, reserve: int) -> tuple[str, str]:
    found = models_that_fit(card, fmt, reserve=f"{reserve} GiB")
    room = GPUS[card].total_bytes - reserve * 2**30
    rows = "".join(
        f"<tr><td style='text-align:left'>{size.name}</td><td>{format_bytes(size.total_bytes, 'GiB')}</td>"
        f"<td>{100 * size.total_bytes / room:.0f} %</td></tr>"
        for size in found[:8]
    )
    head = "<tr><th scope='col'>model</th><th scope='col'>weights</th><th scope='col'>of the room</th></tr>"
    if not found:
        return (
            "<p>Nothing fits.</p>",
            f"No model of the catalogue fits {format_bytes(max(room, 0), 'GiB')} in {fmt}.",
        )
    sentence = (
        f"{len(found)} models of the catalogue fit the {format_bytes(room, 'GiB')} left on a {card} in {fmt}; the "
        f"largest is {found[0].name} with {format_bytes(found[0].total_bytes, 'GiB')}."
    )
    return f"<table>{head}{rows}</table>", sentence


def what_fits(formats: Sequence[str] = ("bf16", "fp16", "fp32", "int8", "nf4", "nf4-dq")) -> None:
    """Choose a card, a format and how much to keep free, and see which models' weights fit."""
    explore(
        _fitting,
        card=choice("card", list(COURSE_CARDS)),
        fmt=choice("format", formats),
        reserve=slider("keep free (GiB)", 0, 0, 12),
    )
