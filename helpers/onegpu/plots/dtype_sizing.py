"""Figures of topic 03: where a format's numbers lie, and what models take in which format.

Each says in its caption what is to be seen, computed from what it draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from onegpu.dtype_sizing import FORMATS, ModelSize, count_between, decode, encode, format_bytes, neighbours
from onegpu.plots.base import COLOURS, HATCHES, LINE_COLOURS, LINES, MARKERS, captioned, figure, label_bars
from onegpu.plots.drawing import canvas, strip
from onegpu.runtime import COURSE_CARDS, GPUS

GIB = 2**30


def bit_fields(formats: Sequence[str] = ("fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")) -> Figure:
    """Draw how formats spend their bits: sign, exponent, mantissa.

    Examples
    --------
    >>> bit_fields(["fp16", "bf16"]).axes[0].get_yticklabels()[0].get_text()
    'fp16'
    """
    made, axes = figure("How a format spends its bits", "bits", "", size=(7.0, 0.8 + 0.42 * len(formats)))
    parts = (
        ("sign", "sign_bits"),
        ("exponent (range)", "exponent_bits"),
        ("mantissa (precision)", "mantissa_bits"),
    )
    places = range(len(formats))
    left = [0] * len(formats)
    for (label, name), colour, hatch in zip(
        parts, ("#6b6b6b", "#e9a13b", "#9ad1f5"), ("", "//", ""), strict=True
    ):
        widths = [getattr(FORMATS[fmt], name) for fmt in formats]
        drawn = axes.barh(
            places, widths, left=left, label=label, color=colour, hatch=hatch, edgecolor="white"
        )
        axes.bar_label(
            drawn, labels=[str(width) if width > 1 else "" for width in widths], label_type="center"
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(list(places), list(formats))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    said = (f"{name} {FORMATS[name].exponent_bits} and {FORMATS[name].mantissa_bits}" for name in formats)
    return captioned(
        made,
        f"Exponent and mantissa bits: {', '.join(said)}. Exponent bits buy range, mantissa bits precision.",
    )


def bit_strip(number: float, name: str = "fp16") -> Figure:
    """Draw the bits of a number in three groups, with the letters of the rule: s, E and M, and what they come to.

    Parameters
    ----------
    number
        One that the format holds, subnormal numbers apart.
    name
        A format with a sign.

    Examples
    --------
    >>> bit_strip(-6.5).onegpu_caption
    '-6.5 in fp16: s = 1, E = 17, M = 640, b = 15, so (-1)^1 x (1 + 640/1024) x 2^(17 - 15) = -6.5.'
    """
    fmt = FORMATS[name]
    bits = f"{encode(number, fmt):0{fmt.bits}b}"
    ends = (0, 1, 1 + fmt.exponent_bits, fmt.bits)
    s, exponent, mantissa = (int(bits[a:b], 2) for a, b in pairwise(ends))
    bias = 2 ** (fmt.exponent_bits - 1) - 1
    made, axes = canvas(f"{number:g} in {name}", fmt.bits + 0.2, 3.0, scale=0.5)
    looks = ((5, "s", s, "sign"), (3, "E", exponent, "exponent"), (4, "M", mantissa, "mantissa"))
    for (colour, letter, value, words), (start, end) in zip(looks, pairwise(ends), strict=True):
        strip(axes, 0.1 + start, 1.3, bits[start:end], [colour] * (end - start), height=0.8, fontsize=11)
        middle = 0.1 + (start + end) / 2
        axes.plot(
            [start + 0.2, end], [1.1, 1.1], color=LINE_COLOURS[colour], linewidth=2, marker="", linestyle="-"
        )
        axes.text(middle, 0.95, f"{letter} = {value}", ha="center", va="top", fontsize=12)
        axes.text(middle, 2.3, words, ha="center", va="bottom", fontsize=9)
    size = 2**fmt.mantissa_bits
    rule = f"(-1)^{s} x (1 + {mantissa}/{size}) x 2^({exponent} - {bias})"
    return captioned(
        made,
        f"{number:g} in {name}: s = {s}, E = {exponent}, M = {mantissa}, b = {bias}, so {rule} = {number:g}.",
    )


def rulers(around: Sequence[tuple[str, float]], update: float = 1.0) -> Figure:
    """Draw the numbers a format has around a place as ticks of a ruler, and where the place plus an update falls.

    Parameters
    ----------
    around
        Pairs of a format's name and a number that it has.
    update
        What is added.

    Examples
    --------
    >>> print(rulers([("bf16", 256.0)]).onegpu_caption)
    256 + 1 = 257 in bf16: the numbers there are 2 apart, so it becomes 256.
    """
    made, panels = figure(
        f"Adding {update:g}", "value", "", rows=len(around), size=(7.5, 0.9 + 1.3 * len(around))
    )
    said = []
    for panel, (name, place) in zip(np.atleast_1d(panels), around, strict=True):
        fmt = FORMATS[name]
        above = neighbours(encode(place, fmt), fmt)[1]
        gap = above - place
        target = place + update
        lands = decode(encode(target, fmt), fmt)
        low, high = place - 4.5 * gap, place + 4.5 * gap
        ticks, value = [], low
        code = encode(low, fmt)
        while (value := decode(code, fmt)) <= high:
            if value >= low:
                ticks.append(value)
            code += 1
        panel.vlines(ticks, 0, 0.34, color=COLOURS[0], linewidth=1.8)
        panel.axhline(0, color=COLOURS[0], linewidth=1)
        panel.plot([target], [0.85], color=COLOURS[1], marker=MARKERS[0], markersize=7)
        panel.text(
            target, 1.02, f"{place:g} + {update:g}", ha="center", va="bottom", color=COLOURS[1], fontsize=10
        )
        panel.annotate("", (lands, 0.38), (target, 0.8), arrowprops={"arrowstyle": "->", "color": COLOURS[1]})
        panel.set_ylim(0, 1.5)
        panel.set_xlim(low, high)
        panel.set_yticks([0.17], [name])
        panel.grid(visible=False)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:.6g}")
        said.append(
            f"{place:g} + {update:g} = {target:g} in {name}: the numbers there are {gap:g} apart, so it becomes {lands:g}"
        )
    return captioned(made, f"{'; '.join(said)}.")


def density(formats: Sequence[str] = ("fp32", "bf16", "fp16", "fp8_e5m2", "fp8_e4m3")) -> Figure:
    """Draw how many numbers each format has between a power of two and the next one.

    A flat line is constant relative precision; its ends are the format's range.

    Examples
    --------
    >>> len(density(["fp16", "bf16"]).axes[0].lines)
    2
    """
    made, axes = figure(
        "Numbers between one power of two and the next", "size of the number (power of two)", "numbers there"
    )
    for index, name in enumerate(formats):
        fmt = FORMATS[name]
        lowest = math.frexp(fmt.smallest_subnormal)[1] - 1
        highest = math.frexp(fmt.max)[1] - 1
        powers = list(range(lowest, highest + 1))
        counts = [count_between(2.0**p, 2.0 ** (p + 1), fmt) for p in powers]
        axes.plot(
            [powers[0], *powers, powers[-1]], [0.5, *counts, 0.5],
            label=f"{name}: 2^{lowest} to 2^{highest + 1}", color=LINE_COLOURS[index], linestyle=LINES[index],
            marker=MARKERS[index], markevery=[len(powers) // 2 + 1], linewidth=1.8,
        )  # fmt: skip
    axes.set_yscale("log", base=2)
    axes.set_ylim(bottom=0.7)
    axes.legend(loc="upper left", bbox_to_anchor=(0.13, 0.9), fontsize=9)
    said = ", ".join(f"{name} {2 ** FORMATS[name].mantissa_bits:,}" for name in formats)
    return captioned(
        made,
        f"Numbers in every doubling: {said}. A line is flat as far as the exponent bits reach, then falls.",
    )


def number_line(formats: Sequence[str], low: float = 0.0, high: float = 1.0) -> Figure:
    """Draw every number that small formats have in a range, one line of ticks a format.

    Examples
    --------
    >>> [text.get_text() for text in number_line(["int4", "nf4"], -1, 1).axes[0].texts]
    ['15', '16']
    """
    size = (7.0, 1.0 + 0.5 * len(formats))
    made, axes = figure(f"Every number between {low:g} and {high:g}", "value", "", size=size)
    found = {}
    for place, name in enumerate(formats):
        fmt = FORMATS[name]
        scale = 1.0 if fmt.kind == "float" and fmt.bits > 4 else fmt.max
        values = sorted({decode(code, fmt) / scale for code in range(2**fmt.bits)})
        inside = [value for value in values if low <= value <= high]
        axes.vlines(inside, place - 0.32, place + 0.32, color=LINE_COLOURS[place % 4], linewidth=1.3)
        found[name] = len(inside)
        axes.text(high + 0.06 * (high - low), place, str(len(inside)), va="center", fontsize=10)
    axes.set_yticks(range(len(formats)), list(formats))
    axes.set_xlim(low - 0.025 * (high - low), high + 0.025 * (high - low))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    said = ", ".join(f"{name} {count}" for name, count in found.items())
    return captioned(
        made,
        f"Numbers between {low:g} and {high:g}: {said}. Floating-point formats crowd around zero, integers are even. Formats of "
        f"four bits are drawn so that their largest number is 1.",
    )


def sizes_by_format(
    sizes: Mapping[str, Sequence[ModelSize]], gpus: Mapping[str, int] | None = None
) -> Figure:
    """Draw models' sizes in several formats, with lines where cards end.

    Parameters
    ----------
    sizes
        For each model its size in each format, the same formats for all.
    gpus
        Bytes of memory by card; T4, L4 and A100 if not given.

    Examples
    --------
    >>> from onegpu.dtype_sizing import model_size
    >>> rows = {name: [model_size(name, fmt) for fmt in ("bf16", "nf4-dq")] for name in ("gpt2", "llama-2-7b")}
    >>> len(sizes_by_format(rows).axes[0].collections)
    2
    """
    gpus = {name: GPUS[name].total_bytes for name in COURSE_CARDS} if gpus is None else gpus
    formats = [size.format for size in next(iter(sizes.values()))]
    made, axes = figure(
        "Weights alone, by format",
        "memory (GiB, logarithmic)",
        "",
        size=(7.5, 1.4 + 0.45 * len(sizes)),
    )
    places = range(len(sizes))
    for index, name in enumerate(formats):
        values = [row[index].total_bytes / GIB for row in sizes.values()]
        axes.scatter(
            values, places, label=name, color=LINE_COLOURS[index], marker=MARKERS[index], s=46, zorder=3
        )
    for card, memory in gpus.items():
        axes.axvline(memory / GIB, color="#6b6b6b", linestyle="--", linewidth=1.2)
        axes.annotate(  # above the frame, where no marker is
            card, (memory / GIB, 1), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
            rotation=35, ha="left", va="bottom", fontsize=9,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(list(places), list(sizes))
    axes.set_ylim(-0.6, len(sizes) - 0.4)
    axes.invert_yaxis()
    axes.legend(loc="lower left", fontsize=9)
    card, memory = next(iter(gpus.items()))
    said = []
    for index, name in enumerate(formats):
        fitting = [row[index] for row in sizes.values() if row[index].total_bytes <= memory]
        largest = max(fitting, key=lambda size: size.parameters, default=None)
        said.append(
            f"{largest.name} in {name} ({format_bytes(largest.total_bytes, 'GiB')})"
            if largest
            else f"none in {name}"
        )
    return captioned(
        made,
        f"The largest of these whose weights fit a {card} ({format_bytes(memory, 'GiB')}): {', '.join(said)}.",
    )


def dataset_columns(columns: Mapping[str, tuple[str, int]]) -> Figure:
    """Draw the bytes of a dataset's columns, each with its dtype.

    Examples
    --------
    >>> chart = dataset_columns({"input_ids": ("int32", 4_000_000), "labels": ("int64", 8_000_000)})
    >>> [text.get_text() for text in chart.axes[0].texts]
    ['4.0', '8.0']
    """
    made, axes = figure("A data set's columns", "", "MB", size=(6.0, 3.2))
    names = [f"{name}\n{dtype}" for name, (dtype, _) in columns.items()]
    values = [size / 1e6 for _, size in columns.values()]
    label_bars(
        axes,
        axes.bar(names, values, color=COLOURS[4], hatch=HATCHES[1], edgecolor=COLOURS[0], width=0.6),
        "{:.1f}",
    )
    axes.grid(axis="x", visible=False)
    said = ", ".join(f"{name} {size / 1e6:.1f} MB as {dtype}" for name, (dtype, size) in columns.items())
    return captioned(made, f"The same tokens, column by column: {said}.")
