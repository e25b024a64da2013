"""Figures of topic 04: levels on the number line, what blocks buy, and real weights and activations."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
import torch
from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, HATCHES, LINES, MARKERS, figure, label_bars
from onegpu.quantization import (
    LayerError,
    LayerOutliers,
    QuantizationError,
    QuantizedTensor,
    nf4_codebook,
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
    return made


def codes_used(cases: Mapping[str, QuantizedTensor]) -> Figure:
    """Draw how often each int8 code is used, one panel for each case.

    Examples
    --------
    >>> from onegpu.quantization import quantize_absmax
    >>> len(codes_used({"plain": quantize_absmax(torch.randn(100)), "zeros": quantize_absmax(torch.zeros(9))}).axes)
    2
    """
    size = (7.0, 1.1 + 1.35 * len(cases))
    made, axes = figure("Which codes are used", "code", "values", rows=len(cases), size=size, sharex=True)
    for index, (panel, (name, q)) in enumerate(zip(np.atleast_1d(axes), cases.items(), strict=True)):
        codes = q.codes.reshape(-1).int()
        panel.hist(codes.numpy(), bins=np.arange(-128, 129, 2), color=COLOURS[index])
        panel.set_title(f"{name}: {codes.unique().numel()} of 255 codes", loc="left", fontsize=10)
    return made


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
    for index, (name, points) in enumerate(rows.items()):
        sizes, decibels = [size for size, _, _ in points], [error.sqnr_db for _, error, _ in points]
        axes.plot(
            sizes, decibels, label=name, color=COLOURS[index], linestyle=LINES[index], marker=MARKERS[index]
        )
        for size, decibel, (_, _, bits) in list(zip(sizes, decibels, points, strict=True))[::2]:
            axes.annotate(f"{bits:.3g} bits", (size, decibel), (2, 6), textcoords="offset points", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.margins(y=0.12)
    axes.legend(loc="center right")
    return made


def normal_quantiles() -> Figure:
    """Draw the normal distribution cut where NF4's levels lie, beside 15 equally spaced levels.

    Examples
    --------
    >>> len(normal_quantiles().axes[0].collections) >= 2
    True
    """
    made, axes = figure(
        "NF4: levels where the weights are", "weight over the block's absmax", "frequency of weights"
    )
    reach = NormalDist().inv_cdf(0.9677083)
    grid = np.linspace(-1.15, 1.15, 400)
    density = np.exp(-((grid * reach) ** 2) / 2)
    axes.fill_between(grid, density, color=COLOURS[4], alpha=0.6, linewidth=0)
    levels = np.array(nf4_codebook())
    axes.vlines(
        levels,
        0,
        np.exp(-((levels * reach) ** 2) / 2),
        color=COLOURS[0],
        linewidth=2,
        label="16 levels of NF4",
    )
    axes.vlines(
        np.linspace(-1, 1, 15), -0.16, -0.06, color=COLOURS[1], linewidth=2, label="15 equal steps of int4"
    )
    axes.set_ylim(-0.2, 1.12)
    axes.set_yticks([])
    axes.legend(loc="upper right", fontsize=9)
    return made


def layer_errors(rows: Sequence[LayerError], kind: str = "down_proj") -> Figure:
    """Draw each scheme's SQNR through the layers, for one kind of linear layer.

    Parameters
    ----------
    rows
        From `onegpu.quantization.weight_errors`, whose layer names hold ``.layers.N.``.
    kind
        "q_proj", "down_proj"...
    """
    made, axes = figure(f"Error of {kind} through the layers", "layer", "SQNR (dB, more is better)")
    schemes = list(dict.fromkeys(row.scheme for row in rows))
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
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(schemes))
    return made


def outliers_by_layer(found: Sequence[LayerOutliers], kind: str = "down_proj") -> Figure:
    """Draw the largest and the median magnitude that enter each layer of a kind, and the outlier threshold."""
    mine = [row for row in found if row.layer.endswith(kind)]
    places = [int(row.layer.split(".layers.")[1].split(".")[0]) for row in mine]
    made, axes = figure(f"What goes into {kind}", "layer", "magnitude (logarithmic)")
    for index, (name, values) in enumerate(
        {"largest": [row.largest for row in mine], "median": [row.median for row in mine]}.items()
    ):
        axes.plot(
            places, values, label=name, color=COLOURS[index], linestyle=LINES[index], marker=MARKERS[index]
        )
    axes.axhline(6, color="#6b6b6b", linestyle=":", linewidth=1.5)
    axes.text(places[-1], 6.6, "threshold 6", ha="right", fontsize=9)
    axes.set_yscale("log")
    axes.legend(loc="upper left")
    return made


def perplexities(values: Mapping[str, float]) -> Figure:
    """Draw perplexity by scheme, as bars from the unquantized model's on.

    Examples
    --------
    >>> [text.get_text() for text in perplexities({"fp32": 25.9, "nf4": 30.4}).axes[0].texts]
    ['25.9', '30.4']
    """
    made, axes = figure("Perplexity on held-out text", "", "perplexity (less is better)", size=(7.5, 4.0))
    names = [textwrap.fill(name, 12) for name in values]
    colours = [COLOURS[0] if index == 0 else COLOURS[4] for index in range(len(values))]
    hatches = ["" if index == 0 else HATCHES[1] for index in range(len(values))]
    drawn = axes.bar(
        names, list(values.values()), color=colours, hatch=hatches, edgecolor=COLOURS[0], width=0.6
    )
    label_bars(axes, drawn, "{:.1f}")
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(axis="x", visible=False)
    return made


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
    left.hist(x.numpy(), bins=edges, color=COLOURS[4], label="before")
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
