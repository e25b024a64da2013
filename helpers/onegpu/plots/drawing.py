"""Drawings of ideas, beside the charts of data: boxes, arrows and strips of tokens on an empty canvas.

Units are those of the canvas; text is dark on light, so that a drawing reads in print and beside a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onegpu.plots.base import LINE_COLOURS, figure

TINTS = ("#dbe4ee", "#f3d9d2", "#cfe8e4", "#fbe8cb", "#e4f3fd", "#eeeeee")
"""Light fills that go with LINE_COLOURS, in the same order; dark text stands on each."""


def canvas(title: str, width: float, height: float, scale: float = 0.7) -> tuple[Figure, Axes]:
    """Return an empty figure without axes, ``width`` by ``height`` units, and its axes to draw on.

    Parameters
    ----------
    title
        What is drawn.
    width, height
        Units; (0, 0) is the lower left corner.
    scale
        Inches of a unit.

    Examples
    --------
    >>> made, axes = canvas("Two boxes", 10, 4)
    >>> made.get_size_inches().tolist()
    [7.0, 3.3]
    """
    made, axes = figure(title, "", "", size=(width * scale, height * scale + 0.5))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return made, axes


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str,
    colour: int = 0,
    fontsize: float = 10,
    **more: Any,
) -> tuple[float, float]:
    """Draw a box with text, its lower left corner at (x, y); return its middle.

    Parameters
    ----------
    axes
        Of a ``canvas``.
    x, y, width, height
        In units of the canvas.
    text
        What stands in it; ``\\n`` begins a new line.
    colour
        Number of the colour, 0 to 5: its tint fills the box, itself is the edge.
    fontsize
        Points.
    more
        Further arguments of the patch, such as linestyle="--".
    """
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12"
    patch = FancyBboxPatch(
        (x, y), width, height, boxstyle=style, facecolor=TINTS[colour], edgecolor=LINE_COLOURS[colour], **more
    )
    axes.add_patch(patch)
    axes.text(
        x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=fontsize, color="#111111"
    )
    return x + width / 2, y + height / 2


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    bend: float = 0.0,
    colour: int = 5,
    **more: Any,
) -> None:
    """Draw an arrow from start to end, with words at its middle.

    Parameters
    ----------
    axes
        Of a ``canvas``.
    start, end
        Points.
    text
        Stands above its middle.
    bend
        How far it is bent to one side, as a share of its length.
    colour
        Number of the colour.
    more
        Further arrow properties, such as linestyle="--".
    """
    props = {
        "arrowstyle": "-|>",
        "color": LINE_COLOURS[colour],
        "connectionstyle": f"arc3,rad={bend}",
        "lw": 1.4,
    }
    axes.annotate("", end, start, arrowprops=props | {"shrinkA": 2, "shrinkB": 2} | more)
    if text:
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.08)
        axes.text(*middle, text, ha="center", va="bottom", fontsize=9, color="#333333")


def strip(
    axes: Axes,
    x: float,
    y: float,
    texts: Sequence[str],
    colours: Sequence[int],
    width: float = 1.0,
    height: float = 0.7,
    fontsize: float = 9,
) -> list[tuple[float, float]]:
    """Draw a row of equal cells, one for each text; return their middles.

    Examples
    --------
    >>> made, axes = canvas("Tokens", 3, 1)
    >>> strip(axes, 0, 0, ["a", "b"], [0, 2])
    [(0.5, 0.35), (1.5, 0.35)]
    """
    return [
        box(axes, x + k * width + 0.03, y, width - 0.06, height, text, colour, fontsize)
        for k, (text, colour) in enumerate(zip(texts, colours, strict=True))
    ]
