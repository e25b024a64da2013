"""Figures of topic 04: levels on the number line, what blocks buy, and real weights and activations.

Each says in its caption what is to be seen, computed from what it draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from onegpu.plots.base import COLOURS, HATCHES, LINE_COLOURS, LINES, MARKERS, captioned, figure
from onegpu.plots.drawing import box, canvas
from onegpu.quantization import (
    OUTLIER_THRESHOLD,
    LayerError,
    QuantizationError,
    QuantizedTensor,
    nf4_codebook,
    quantize_4bit,
    quantize_blockwise,
    unpack_4bit,
)

# A light fill alone has too little contrast with white; its outline reads.
HILL = {"histtype": "stepfilled", "facecolor": COLOURS[4], "edgecolor": LINE_COLOURS[4], "linewidth": 1.0}


def step_ruler(x: torch.Tensor) -> Figure:
    """Draw the ruler of int8 codes that absmax quantization lays over a few values: 255 ticks, the values as pins.

    Examples
    --------
    >>> [text.get_text() for text in step_ruler(torch.tensor([0.5, -1.27, 1.0])).axes[0].texts][0]
    '0.50\\ncode 50'
    """
    absmax = float(x.abs().max())
    step = absmax / 127
    made, axes = figure("A ruler of 255 ticks over three weights", "weight", "", size=(7.5, 2.3))
    codes = np.arange(-127, 128)
    for every, height in ((1, 0.10), (10, 0.2), (127, 0.32)):
        ticks = codes[codes % every == 0] * step
        axes.vlines(ticks, 0, height, color=COLOURS[0], linewidth=0.7)
    for value in x.tolist():
        axes.plot([value, value], [0.36, 0.72], color=COLOURS[1], linewidth=1.6, marker="", linestyle="-")
        axes.plot([value], [0.72], color=COLOURS[1], marker=MARKERS[0], markersize=7)
        axes.text(
            value, 0.84, f"{value:.2f}\ncode {round(value / step)}", ha="center", va="bottom", fontsize=10
        )
    axes.annotate(
        f"one step: {step:.3g}",
        (-20 * step, 0.22),
        (-20 * step, 0.84),
        ha="center",
        fontsize=10,
        arrowprops={"arrowstyle": "-[,widthB=0.12", "color": "#6b6b6b"},
    )
    axes.set_ylim(0, 1.4)
    axes.set_xlim(-1.15 * absmax, 1.15 * absmax)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    axes.grid(visible=False)
    return captioned(
        made,
        f"The ruler reaches exactly to the largest magnitude, {absmax:g}, with 127 steps of {step:.3g} on each side. "
        f"A code is the number of the tick.",
    )


def levels_line(x: torch.Tensor, q: QuantizedTensor) -> Figure:
    """Draw values above a number line, the levels as its ticks, and an arrow from each value to its level.

    Examples
    --------
    >>> from onegpu.quantization import quantize_absmax
    >>> x = torch.tensor([0.9, -0.4])
    >>> levels_line(x, quantize_absmax(x, bits=3)).axes[0].get_title(loc="left")
    '2 values and the 7 levels they are rounded to'
    """
    step = float(q.step()[0])
    levels = [step * code for code in range(-q.levels, q.levels + 1)]
    title = f"{x.numel()} values and the {len(levels)} levels they are rounded to"
    made, axes = figure(title, "value", "", size=(7.0, 2.4))
    axes.vlines(levels, -0.12, 0.12, color=COLOURS[0], linewidth=1.6)
    axes.axhline(0, color=COLOURS[0], linewidth=1)
    values, back = x.reshape(-1).tolist(), q.dequantize().reshape(-1).tolist()
    axes.scatter(values, [0.75] * len(values), color=COLOURS[1], marker=MARKERS[0], s=36, zorder=3)
    for value, level in zip(values, back, strict=True):
        axes.annotate("", (level, 0.14), (value, 0.7), arrowprops={"arrowstyle": "->", "color": COLOURS[1]})
    axes.set_ylim(-0.35, 1.05)
    axes.set_yticks([0, 0.75], ["levels", "values"])
    axes.grid(axis="y", visible=False)
    half = f"{step / 2:.2g}"
    return captioned(
        made,
        f"With {len(levels)} levels a step is {step:.2g}; the largest magnitude, {max(map(abs, values)):g}, is a level "
        f"itself, and every other value moves to the nearest one, by half a step ({half}) at most.",
    )


def shared_step(cases: Mapping[str, torch.Tensor], reach: float = 4.5) -> Figure:
    """Draw values as a hill with the ticks of their int8 ruler under it, one panel for each case.

    Parameters
    ----------
    cases
        Values by name, each quantized with one scale for all.
    reach
        How far to both sides is drawn; a value outside is pointed at.

    Examples
    --------
    >>> plain = torch.linspace(-3, 3, 100)
    >>> len(shared_step({"plain": plain, "an outlier": torch.cat([plain, torch.tensor([60.0])])}).axes)
    2
    """
    made, panels = figure(
        "One step for all", "weight", "number of weights", rows=len(cases), size=(7.5, 1.2 + 1.7 * len(cases)),
        sharex=True,
    )  # fmt: skip
    steps, used = [], []
    for index, (panel, (name, x)) in enumerate(zip(np.atleast_1d(panels), cases.items(), strict=True)):
        x = x.reshape(-1)
        step = float(x.abs().max()) / 127
        steps.append(step)
        inside = x[x.abs() <= reach]
        used.append(int(torch.round(inside / step).unique().numel()))
        counts, _, _ = panel.hist(inside.numpy(), bins=np.linspace(-reach, reach, 91), **HILL)
        top = counts.max()
        codes = np.arange(-math.floor(reach / step), math.floor(reach / step) + 1)
        codes = codes[np.abs(codes) <= 127]
        panel.vlines(codes * step, -0.22 * top, -0.05 * top, color=COLOURS[index], linewidth=1.0)
        panel.axhline(0, color="#6b6b6b", linewidth=0.6)
        panel.set_title(
            f"{name}: a step is {step:.3f}, {used[-1]} codes are used here", loc="left", fontsize=10
        )
        outside = x[x.abs() > reach]
        if len(outside):
            panel.annotate(
                f"a weight of {float(outside[0]):g} →",
                (reach, 0.55 * top),
                ha="right",
                fontsize=10,
                color=COLOURS[1],
            )
        panel.set_ylim(-0.26 * top, 1.1 * top)
        panel.set_yticks([])
        panel.grid(visible=False)
    return captioned(
        made,
        f"The hill is the same in both; the ticks under it are the ruler, to scale. The outlier makes a step "
        f"{steps[-1] / steps[0]:.0f} times as long, and {used[0]} codes become {used[-1]}.",
    )


def error_by_block(rows: Mapping[str, Sequence[tuple[int, QuantizationError, float]]]) -> Figure:
    """Draw SQNR against block size, and what each block size costs.

    Parameters
    ----------
    rows
        For each scheme ``(block size, error, bits per value)``, block sizes ascending.
    """
    made, axes = figure(
        "Smaller blocks: less error, more bits", "values that share a scale", "SQNR (dB, more is better)"
    )
    said = []
    for index, (name, points) in enumerate(rows.items()):
        sizes, decibels = [size for size, _, _ in points], [error.sqnr_db for _, error, _ in points]
        axes.plot(
            sizes, decibels, label=name, color=COLOURS[index], linestyle=LINES[index], marker=MARKERS[index]
        )
        for size, decibel, (_, _, bits) in list(zip(sizes, decibels, points, strict=True))[::2]:
            axes.annotate(f"{bits:.3g} bits", (size, decibel), (2, 6), textcoords="offset points", fontsize=9)
        said.append(
            f"from blocks of {sizes[-1]:,} to {sizes[0]} {name} gains {decibels[0] - decibels[-1]:.0f} dB and pays "
            f"{points[0][2] - points[-1][2]:.1f} bits"
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.margins(y=0.12)
    axes.legend(loc="center right")
    text = "; ".join(said)
    return captioned(made, f"{text[0].upper()}{text[1:]}.")


def block_bytes(blocksize: int = 64) -> Figure:
    """Draw what a block of 4-bit weights takes in memory, byte by byte: int8's scale, NF4's, double quantization's.

    Examples
    --------
    >>> len(block_bytes().axes[0].get_yticklabels())
    3
    """
    rows = {
        "int8": (blocksize, 4.0),
        "NF4": (blocksize // 2, 4.0),
        "NF4, scales\nin 8 bits": (blocksize // 2, 1 + 4 / 256),
    }
    made, axes = figure(f"{blocksize} weights in memory", "bytes", "", size=(8.0, 2.7))
    for place, (codes, scale) in enumerate(rows.values()):
        for byte in range(codes):
            axes.add_patch(
                Rectangle((byte, place - 0.3), 1, 0.6, facecolor=COLOURS[4], edgecolor=LINE_COLOURS[4])
            )
        for byte in range(math.ceil(scale)):
            width = min(1.0, scale - byte)
            axes.add_patch(
                Rectangle((codes + 0.6 + byte, place - 0.3), width, 0.6, facecolor=COLOURS[3], edgecolor=COLOURS[0],
                          hatch="//", linewidth=0.4)
            )  # fmt: skip
        total = 8 * (codes + scale) / blocksize
        axes.text(codes + scale + 1.4, place, f"{total:.4g} bits a weight", va="center", fontsize=10)
    on_white = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    for place, text in enumerate(("codes, one byte each", "codes, two to a byte", "codes, two to a byte")):
        middle = list(rows.values())[place][0] / 2
        axes.text(middle, place, text, ha="center", va="center", fontsize=10, bbox=on_white)
    axes.set_xlim(-0.5, blocksize * 1.32 + 4)
    axes.set_ylim(2.55, -0.55)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(visible=False)
    once, twice = (8 * (codes + scale) / blocksize for codes, scale in list(rows.values())[1:])
    return captioned(
        made,
        f"Codes are light, scales hatched. An fp32 scale is 4 bytes on {blocksize // 2} of codes, so NF4 takes {once:g} "
        f"bits a weight; a scale in one byte (and 1/256 of another scale) brings that to {twice:.4g}.",
    )


def zero_point_rulers(x: torch.Tensor) -> Figure:
    """Draw values over two rulers of int8 codes: one with a zero point, and absmax's, whose code 0 is the value 0.

    The range is that of the values alone, as in the lesson's first draft: the case that breaks it can be drawn too.

    Parameters
    ----------
    x
        A few values, not all equal.

    Examples
    --------
    >>> print(zero_point_rulers(torch.tensor([-0.55, 0.0, 0.8, 2.0])).onegpu_caption)
    With a zero point all 256 codes lie between low and high, and the value 0 has code z = -73. Without one, code 0 is the value 0, 92 codes have nothing to stand for, and a step is 1.6 times as long.
    """
    low, high = float(x.min()), float(x.max())
    step, absmax = (high - low) / 255, float(x.abs().max())
    zero = round(-128 - low / step)
    made, axes = figure("Where the codes of a byte lie", "value", "", size=(8.0, 3.2))
    rulers = ((1.0, step, zero, (-128, 127), 0), (0.0, absmax / 127, 0, (-127, 127), 5))
    for y, length, shift, ends, colour in rulers:
        places = (np.arange(ends[0], ends[1] + 1) - shift) * length
        axes.vlines(places, y - 0.11, y + 0.11, color=COLOURS[colour], linewidth=0.6)
        for place, code, side in zip(places[[0, -1]], ends, ("right", "left"), strict=True):
            axes.text(place, y, f" {code} ", ha=side, va="center", fontsize=10)
    unused = (-absmax, low) if low > -absmax else (high, absmax)
    idle = round((unused[1] - unused[0]) / (absmax / 127))
    axes.add_patch(
        Rectangle(
            (unused[0], -0.15), unused[1] - unused[0], 0.3, facecolor="none", edgecolor=COLOURS[1], hatch="//"
        )
    )
    axes.text(sum(unused) / 2, -0.22, f"{idle} codes never used", ha="center", va="top", fontsize=10)
    for value in x.tolist():
        axes.plot([value, value], [0.13, 1.72], color=COLOURS[1], linewidth=1, marker="", linestyle=":")
        axes.plot([value], [1.72], color=COLOURS[1], marker=MARKERS[0], markersize=7)
        axes.text(value, 1.84, f"{value:g}", ha="center", va="bottom", fontsize=10)
        if low < value < high:
            axes.text(value, 1.15, f" {round(value / step) + zero}", va="bottom", fontsize=10)
    fits = -128 <= zero <= 127
    axes.annotate(
        "",
        (0, 0.62),
        (-zero * step, 0.62),
        arrowprops={"arrowstyle": "-|>", "color": LINE_COLOURS[2], "lw": 1.6},
    )
    on_white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.text(-zero * step, 0.66, "  code 0", va="center", fontsize=10, bbox=on_white)
    axes.vlines([0, -zero * step], 0.56, 0.87, color=LINE_COLOURS[2], linewidth=1.2)
    axes.text(-zero * step / 2, 0.5, f"shift z = {zero}", ha="center", va="top", fontsize=10, bbox=on_white)
    if not fits:
        axes.plot([0], [1.0], marker="x", color=COLOURS[1], markersize=9, markeredgewidth=2)
    axes.set_ylim(-0.6, 2.2)
    axes.margins(x=0.09)
    axes.set_yticks([1.0, 0.0], ["with a\nzero point", "symmetric"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    if fits:
        said = (
            f"With a zero point all 256 codes lie between low and high, and the value 0 has code z = {zero}."
        )
    else:
        said = f"The value 0, at the cross, would have code z = {zero}: far outside the byte's -128 to 127."
    return captioned(
        made,
        f"{said} Without one, code 0 is the value 0, {idle} codes have nothing to stand for, and a step is "
        f"{absmax / 127 / step:.1f} times as long.",
    )


def minimum_ruler(x: torch.Tensor, bits: int = 4) -> Figure:
    """Draw the codes of one block over its minimum and step: a ruler from the smallest value to the largest.

    Examples
    --------
    >>> print(minimum_ruler(torch.tensor([-1.0, 0.52, 2.0, 1.0])).onegpu_caption)
    16 codes from the block's minimum, -1, to its maximum, 2: a step is 0.2. 0.52 becomes code 8, which stands for 0.6.
    """
    low, high, last = float(x.min()), float(x.max()), 2**bits - 1
    step = (high - low) / last
    made, axes = figure(f"One block and its {last + 1} codes", "value", "", size=(7.5, 2.3))
    axes.vlines(low + step * np.arange(last + 1), -0.14, 0.14, color=COLOURS[0], linewidth=1.6)
    axes.plot([low, high], [0, 0], color=COLOURS[0], linewidth=1, marker="", linestyle="-")
    for code in range(last + 1):
        axes.text(low + step * code, -0.26, str(code), ha="center", va="top", fontsize=10)
    codes = [round((value - low) / step) for value in x.tolist()]
    for value, code in zip(x.tolist(), codes, strict=True):
        axes.plot([value], [0.8], color=COLOURS[1], marker=MARKERS[0], markersize=7)
        axes.text(value, 0.95, f"{value:g}", ha="center", va="bottom", fontsize=10)
        arrow = {"arrowstyle": "->", "color": COLOURS[1]}
        axes.annotate("", (low + step * code, 0.16), (value, 0.74), arrowprops=arrow)
    axes.set_ylim(-0.75, 1.4)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    moved = max(range(len(codes)), key=lambda k: abs(low + step * codes[k] - float(x[k])))
    return captioned(
        made,
        f"{last + 1} codes from the block's minimum, {low:g}, to its maximum, {high:g}: a step is {step:.3g}. "
        f"{float(x[moved]):g} becomes code {codes[moved]}, which stands for {low + step * codes[moved]:.3g}.",
    )


def packed_codes(codes: Sequence[int]) -> Figure:
    """Draw 4-bit codes bit by bit, two to a byte, the first in the high half.

    Examples
    --------
    >>> print(packed_codes([15, 1, 7]).onegpu_caption)
    Each code is four bits. Two make a byte, the first its high half: 15 and 1 are 241, 7 and 0 are 112. The last half, dashed, was left over.
    """
    made, axes = canvas("Two codes, one byte", 9.6, 2.3, scale=0.8)
    even = [*codes, 0] if len(codes) % 2 else list(codes)
    said = []
    for k, (high, low) in enumerate(zip(even[::2], even[1::2], strict=True)):
        for half, code in enumerate((high, low)):
            x = 0.1 + 4.9 * k + 2.25 * half
            filler = 2 * k + half >= len(codes)
            axes.text(x + 1.05, 1.95, f"code {code}", ha="center", va="center", fontsize=10)
            for bit in range(4):
                text = str(code >> (3 - bit) & 1)
                box(axes, x + 0.53 * bit, 0.95, 0.5, 0.65, text, 4 * half, linestyle="--" if filler else "-")
        axes.text(5 * k + 2.3, 0.5, f"byte {16 * high + low}", ha="center", va="center", fontsize=11)
        said.append(f"{high} and {low} are {16 * high + low}")
    rest = " The last half, dashed, was left over." if len(codes) % 2 else ""
    return captioned(
        made,
        f"Each code is four bits. Two make a byte, the first its high half: {', '.join(said)}.{rest}",
    )


def levels_and_weights(weight: torch.Tensor, name: str = "weights", blocksize: int = 64) -> Figure:
    """Draw weights over their block's absmax with the levels of int4 and NF4 under them, and how often each code is used.

    Parameters
    ----------
    weight
        Any shape, whole blocks.
    name
        What weights these are, for the title.

    Examples
    --------
    >>> len(levels_and_weights(torch.randn(64, 64, generator=torch.Generator().manual_seed(0))).axes)
    2
    """
    x = weight.detach().reshape(-1, blocksize)
    ratios = (x / x.abs().amax(1, keepdim=True).clamp(min=1e-30)).reshape(-1)
    made, (top, bottom) = figure(
        f"Where the levels lie, and how often each is used: {name}", "", "", rows=2, size=(7.5, 5.2)
    )
    counts, _, _ = top.hist(ratios.numpy(), bins=np.linspace(-1, 1, 121), **HILL)
    height = np.sort(counts)[-3] * 1.15  # the two ends, where a block's absmax is, may stand out
    for index, levels in enumerate((np.linspace(-1, 1, 15), np.array(nf4_codebook()))):
        low, high = -(0.14 + 0.18 * index) * height, -(0.02 + 0.18 * index) * height
        top.vlines(levels, low, high, color=COLOURS[1 - index], linewidth=2)
    top.set_ylim(-0.36 * height, height)
    top.set_yticks([-0.08 * height, -0.26 * height], ["int4", "NF4"])
    top.grid(visible=False)
    top.set_xlabel("weight over its block's absmax")
    used = {
        "int4": torch.bincount(
            quantize_blockwise(x, blocksize, bits=4).codes.reshape(-1).int() + 7, minlength=15
        ),
        "NF4": torch.bincount(
            unpack_4bit(quantize_4bit(x, "nf4", blocksize).codes, x.numel()).int(), minlength=16
        ),
    }
    shares = {name: (100 * count / x.numel()).tolist() for name, count in used.items()}
    for index, (label, share) in enumerate(shares.items()):
        places = np.arange(len(share)) + (0.5 if label == "int4" else 0)
        bottom.bar(
            places, share, width=0.38, color=COLOURS[1 - index], hatch=HATCHES[1 - index], edgecolor="white",
            label=f"{label}, {len(share)} levels",
        )  # fmt: skip
    bottom.set_xlabel("level, from the lowest to the highest")
    bottom.set_ylabel("% of weights")
    bottom.set_xticks([])
    bottom.grid(axis="x", visible=False)
    bottom.legend(loc="upper right", fontsize=9)
    (a, b), (c, d) = ((min(share), max(share)) for share in shares.values())
    return captioned(
        made,
        f"Equal steps spend levels on the rare ends: int4's take {a:.0f} to {b:.0f} % of the weights each, NF4's {c:.0f} "
        f"to {d:.0f} %. Equal use would be {100 / 16:g} %.",
    )


def layer_errors(rows: Sequence[LayerError], kind: str, weights: str) -> Figure:
    """Draw each scheme's SQNR through the layers, for one kind of linear layer.

    Parameters
    ----------
    rows
        From ``onegpu.quantization.weight_errors``, whose layer names hold ``.layers.N.``.
    kind
        "q_proj", "down_proj"...
    weights
        Which weights were measured, for the caption.
    """
    made, axes = figure(f"Error of {kind} through the layers", "layer", "SQNR (dB, more is better)")
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    said = []
    for index, scheme in enumerate(schemes):
        mine = [row for row in rows if row.scheme == scheme and row.kind == kind]
        places = [int(row.layer.split(".layers.")[1].split(".")[0]) for row in mine]
        decibels = [row.error.sqnr_db for row in mine]
        axes.plot(
            places,
            decibels,
            label=scheme,
            color=COLOURS[index],
            linestyle=LINES[index],
            marker=MARKERS[index],
        )
        ends = list(dict.fromkeys(f"{d:.0f}" for d in (min(decibels), max(decibels))))
        said.append(f"{scheme} {' to '.join(ends)}")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(schemes))
    return captioned(
        made, f"In dB, lowest to highest of {len(places)} layers: {', '.join(said)}. Measured on {weights}."
    )


def activation_map(activations: torch.Tensor, layer: str) -> Figure:
    """Draw what enters a layer as a picture: a row a token, a column a feature, bright where the magnitude is large.

    Parameters
    ----------
    activations
        ``(tokens, features)``.
    layer
        Its name, for the title.

    Examples
    --------
    >>> x = torch.randn(9, 20, generator=torch.Generator().manual_seed(0))
    >>> x[:, 3] = 20
    >>> print(activation_map(x, "a layer").onegpu_caption)
    Column 3 of 20 is bright in every row: its magnitude is 6 or more in 9 of 9 tokens, and 28 times the median of all features.
    """
    size = activations.detach().abs().float()
    means = size.mean(0)
    column = int(means.argmax())
    made, axes = figure(f"What enters {layer}", "feature", "token", size=(8.0, 3.8))
    picture = axes.imshow(
        size.numpy(),
        cmap="magma",
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        vmax=OUTLIER_THRESHOLD,
    )
    made.colorbar(picture, ax=axes, label=f"magnitude, from {OUTLIER_THRESHOLD:g} on all the same")
    side = -1 if column > size.shape[1] / 2 else 1
    axes.annotate(
        f"feature {column}", (column, len(size) * 0.12), (column + side * 0.12 * size.shape[1], len(size) * 0.12),
        color="white", va="center", ha="right" if side < 0 else "left", arrowprops={"arrowstyle": "->", "color": "white"},
    )  # fmt: skip
    axes.grid(visible=False)
    large = int((size[:, column] >= OUTLIER_THRESHOLD).sum())
    return captioned(
        made,
        f"Column {column} of {size.shape[1]} is bright in every row: its magnitude is {OUTLIER_THRESHOLD:g} or more in "
        f"{large} of {len(size)} tokens, and {float(means[column] / size.median()):.0f} times the median of all features.",
    )


def perplexity_by_bits(points: Mapping[str, tuple[float, float, float]], weights: str) -> Figure:
    """Draw perplexity against the bits that a weight takes, with one standard error of the difference to the first.

    Parameters
    ----------
    points
        For each scheme (bits a weight, scales included; perplexity; standard error of its difference to the first).
        The first is the unquantized model.
    weights
        Which weights were measured, for the caption.

    Examples
    --------
    >>> points = {"fp32": (32, 25.9, 0), "bf16": (16, 25.9, 0.1), "nf4": (4.5, 30.4, 0.9)}
    >>> print(perplexity_by_bits(points, "made-up numbers").onegpu_caption)
    Down to 16 bits (bf16) perplexity stays within 3 % of fp32's 25.9; nf4 at 4.5 bits has 30.4. A bar is one standard error of the difference to fp32. Measured on made-up numbers.
    """
    first = next(iter(points))
    base = points[first][1]
    far = [value for _, value, _ in points.values() if value > 2 * base]
    errors = {(bits, value): error for bits, value, error in points.values()}
    made, panels = figure(
        "Perplexity against bits",
        "bits a weight, scales included (logarithmic)",
        "perplexity (less is better)",
        rows=1 + bool(far),
        size=(7.5, 4.8),
        sharex=True,
        height_ratios=[1, 3] if far else [1],
    )
    panels = np.atleast_1d(panels)
    panels[-1].axhline(base, color="#6b6b6b", linestyle="--", linewidth=1)
    for (bits, value), names in _same_place(points).items():
        axes = panels[0 if value > 2 * base else -1]
        axes.errorbar(
            [bits], [value], yerr=[errors[bits, value]], fmt="o", color=COLOURS[0 if first in names else 1], capsize=4,
            markersize=6, zorder=3,
        )  # fmt: skip
        # Of two points side by side the left one has its name on the left.
        beside = any(bits < b < 1.2 * bits and abs(v - value) < 0.03 * base for b, v, _ in points.values())
        # Of two above each other the names move apart.
        near = [v for b, v, _ in points.values() if b == bits and 0 < abs(v - value) < 0.1 * base]
        up = 3 if not near else 9 if value > near[0] else -7
        axes.annotate(
            ", ".join(names),
            (bits, value),
            (-8 if beside else 8, up),
            textcoords="offset points",
            fontsize=9,
            ha="right" if beside else "left",
            va="center",
        )
    panels[-1].set_xscale("log", base=2)
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if far:
        panels[0].set_ylim(0.8 * min(far), 1.2 * max(far))
        panels[0].spines["bottom"].set_visible(False)
    panels[-1].margins(y=0.12)
    reach = [bits for bits, _, _ in points.values()]
    panels[-1].set_xlim(0.65 * min(reach), 1.3 * max(reach))
    near = min((bits, name) for name, (bits, value, _) in points.items() if value < 1.03 * base)
    four = min((value, name) for name, (bits, value, _) in points.items() if 4 <= bits <= 5)
    return captioned(
        made,
        f"Down to {near[0]:.3g} bits ({near[1]}) perplexity stays within 3 % of {first}'s {base:.1f}; {four[1]} at "
        f"{points[four[1]][0]:.3g} bits has {four[0]:.1f}. A bar is one standard error of the difference to {first}. "
        f"Measured on {weights}.",
    )


def _same_place(points: Mapping[str, tuple[float, float, float]]) -> dict[tuple[float, float], list[str]]:
    """Names by place, those that lie on top of each other together."""
    places: dict[tuple[float, float], list[str]] = {}
    for name, (bits, value, _) in points.items():
        near = next((p for p in places if p[0] == bits and abs(p[1] / value - 1) < 0.004), (bits, value))
        places.setdefault(near, []).append(name)
    return places


def explorer(x: torch.Tensor, q: QuantizedTensor) -> Figure:
    """Draw a tensor's values with what they become, and a map of the errors.

    Parameters
    ----------
    x
        One dimension of at most a few thousand values.
    q
        The same, quantized.
    """
    back = q.dequantize()
    made, (left, right) = figure(str(q), "", "", columns=2, size=(9.0, 3.8))
    edges = np.linspace(float(x.min()), float(x.max()), 81)
    left.hist(x.numpy(), bins=edges, label="before", **HILL)
    left.hist(back.numpy(), bins=edges, histtype="step", color=COLOURS[1], linewidth=1.4, label="after")
    left.set_yscale("symlog", linthresh=10)
    left.set_xlabel("value")
    left.set_ylabel("number of values")
    left.set_title("Values", loc="left", fontsize=11)
    left.legend(loc="upper right", fontsize=9)
    width = math.isqrt(x.numel())
    errors = (back - x).abs()[: width * width].view(width, width)
    picture = right.imshow(
        errors.numpy(), cmap="cividis", interpolation="nearest", aspect="auto", vmin=0, vmax=0.25
    )
    made.colorbar(picture, ax=right, label="|error|, from 0.25 on all the same")
    right.set_title("Errors, in memory order row by row", loc="left", fontsize=11)
    right.grid(visible=False)
    right.set_xticks([])
    right.set_yticks([])
    return made
