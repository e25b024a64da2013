"""The style that every figure shares, and ``show``, which gives a figure its alt text and a visible caption.

Colours are told apart by lightness too, so they survive grey printing and colour blindness; lines differ in dash and
marker as well, bars in hatching.
"""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

COLOURS = ("#12355b", "#b5432a", "#2a9d8f", "#e9a13b", "#9ad1f5", "#6b6b6b")
# Thin lines need 3:1 on white: the two light fills have a darker fellow, the others are dark enough.
LINE_COLOURS = ("#12355b", "#b5432a", "#2a9d8f", "#a86a12", "#2f86b8", "#6b6b6b")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "//", "..", "\\\\", "xx", "--")
SIZE_INCHES = (7.0, 4.0)
DPI = 110

KOREAN_FONTS = (
    "NanumGothic",
    "NanumBarunGothic",
    "Noto Sans CJK KR",
    "Noto Sans KR",
    "Malgun Gothic",
    "AppleGothic",
)


def style() -> dict[str, Any]:
    """Return the style as matplotlib settings."""
    korean = korean_font()
    return {
        "figure.figsize": SIZE_INCHES,
        "figure.dpi": DPI,
        "savefig.dpi": DPI,
        "figure.constrained_layout.use": True,
        "font.family": ["DejaVu Sans", *([korean] if korean else [])],
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titlelocation": "left",
        "axes.unicode_minus": False,  # Korean fonts lack U+2212
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#d9d9d9",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=LINE_COLOURS, linestyle=LINES, marker=MARKERS),
        "lines.markersize": 4,
        "legend.frameon": False,
    }


def use_style() -> None:
    """Use the style for figures that are drawn with plain matplotlib."""
    mpl.rcParams.update(style())


def figure(
    title: str,
    xlabel: str,
    ylabel: str,
    *,
    rows: int = 1,
    columns: int = 1,
    size: tuple[float, float] = SIZE_INCHES,
    **subplots: Any,
) -> tuple[Figure, Any]:
    """Return an empty figure in the course's style, and its axes (an array if there are several).

    Parameters
    ----------
    title, xlabel, ylabel
        Labels with their units, such as "memory (GiB)"; of the whole figure if there are several axes.
    rows, columns
        How many axes.
    size
        Inches.
    subplots
        Further arguments of ``Figure.subplots``, such as sharey=True.

    Examples
    --------
    >>> fig, ax = figure("Loss", "step", "loss (nats)")
    >>> ax.get_xlabel(), fig.get_size_inches().tolist()
    ('step', [7.0, 4.0])
    """
    with mpl.rc_context(style()):
        # A Figure of its own, not pyplot's: nothing stays open and nothing is shown twice.
        made = Figure(figsize=size, dpi=DPI, layout="constrained")
        axes = made.subplots(rows, columns, **subplots)
    if rows * columns == 1:
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title, loc="left")
    else:
        made.suptitle(title, x=0.01, ha="left", fontsize=12)
        made.supxlabel(xlabel, fontsize=11)
        made.supylabel(ylabel, fontsize=11)
    return made, axes


def bars(
    title: str,
    ylabel: str,
    values: Mapping[str, float],
    *,
    form: str = "{:,.2f}",
    size: tuple[float, float] = SIZE_INCHES,
) -> Figure:
    """Return a bar chart of named values, each bar with its number on it.

    Examples
    --------
    >>> chart = bars("Weights of SmolLM2-135M", "GiB", {"fp32": 0.50, "nf4": 0.07})
    >>> [text.get_text() for text in chart.axes[0].texts]
    ['0.50', '0.07']
    """
    made, axes = figure(title, "", ylabel, size=size)
    label_bars(axes, axes.bar(list(values), list(values.values()), color=COLOURS[0], width=0.6), form)
    axes.grid(axis="x", visible=False)
    return made


def label_bars(axes: Axes, container: BarContainer, form: str = "{:,.2f}") -> None:
    """Write each bar's number on it."""
    axes.bar_label(container, fmt=form, padding=2, fontsize=10)
    axes.margins(y=0.12)


def korean_font() -> str | None:
    """Return the name of a font with Korean letters, None if this machine has none.

    Looks among the installed fonts, then for the one that the package koreanize-matplotlib brings. Letters that
    DejaVu Sans lacks are then taken from it.
    """
    known = {font.name for font in font_manager.fontManager.ttflist}
    for name in KOREAN_FONTS:
        if name in known:
            return name
    for path in (
        *Path("/usr/share/fonts/truetype/nanum").glob(
            "NanumGothic.ttf"
        ),  # installed after matplotlib's own list
        *_koreanize_fonts(),
    ):
        font_manager.fontManager.addfont(path)
        return font_manager.FontProperties(fname=path).get_name()
    return None


def _koreanize_fonts() -> Iterator[Path]:
    # Found without importing it: its import fails on Python 3.12 and later without setuptools.
    import importlib.util

    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("koreanize_matplotlib")
        if spec and spec.origin:
            yield from Path(spec.origin).parent.glob("fonts/NanumGothic.ttf")


def png(drawn: Figure) -> bytes:
    """Return a figure as PNG; the same figure gives the same bytes on the same machine."""
    out = io.BytesIO()
    with mpl.rc_context({"font.family": style()["font.family"], "axes.unicode_minus": False}):
        drawn.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def captioned(drawn: Figure, caption: str) -> Figure:
    """Give a figure its caption, and return it: what a function of this package does with the figure it has drawn.

    Parameters
    ----------
    drawn
        The figure.
    caption
        One or two sentences that say what is to be seen. Their numbers come from what was drawn, in an f-string: a
        typed number stays when the data change.

    Raises
    ------
    ValueError
        When the caption is empty, or only names the figure.

    Examples
    --------
    >>> sizes = {"fp32": 0.50, "nf4": 0.07}
    >>> ratio = sizes["fp32"] / sizes["nf4"]
    >>> chart = captioned(bars("Weights", "GiB", sizes), f"In nf4 the weights take {ratio:.1f} times less than in fp32.")
    >>> caption_of(chart)
    'In nf4 the weights take 7.1 times less than in fp32.'
    """
    if len(caption.split()) < 4:
        raise ValueError(
            f"caption {caption!r}: say in a sentence what is to be seen, such as 'Memory grows linearly with ...'."
        )
    setattr(drawn, "onegpu_caption", caption)  # noqa: B010 - a figure has no such attribute for a type checker
    return drawn


def caption_of(drawn: Figure) -> str:
    """Return the caption that ``captioned`` gave a figure.

    Raises
    ------
    ValueError
        When it has none.
    """
    caption = getattr(drawn, "onegpu_caption", "")
    if not caption:
        raise ValueError("this figure has no caption: plots.captioned(figure, sentence) gives it one.")
    return caption


def show(drawn: Figure, alt: str | None = None) -> None:
    """Show a figure with its alt text, and the same sentence visibly under it.

    Parameters
    ----------
    drawn
        The figure.
    alt
        One or two sentences that say what is to be seen, with the numbers that matter; by default the figure's own
        caption (``captioned``). JupyterLab shows no alt text of a figure, so it is the caption as well.

    Raises
    ------
    ValueError
        When there is no sentence, or one that only names the figure.
    """
    from IPython.display import Markdown, display

    alt = caption_of(drawn if alt is None else captioned(drawn, alt))
    picture = base64.b64encode(png(drawn)).decode()
    display(
        {"image/png": picture, "text/plain": f"Figure: {alt}"},
        raw=True,
        metadata={"image/png": {"alt": alt}},
    )
    display(Markdown(f"*{alt}*"))
    if getattr(drawn, "number", None) is not None:  # one of pyplot's
        import matplotlib.pyplot as plt

        plt.close(drawn)  # or the inline backend shows it a second time
