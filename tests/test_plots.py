"""The shared style: figures that anybody can read, and `show`."""

import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from onegpu import plots
from onegpu.plots.base import (
    COLOURS,
    HATCHES,
    LINE_COLOURS,
    LINES,
    MARKERS,
    bars,
    figure,
    korean_font,
    png,
    show,
)

# Machado, Oliveira, Fernandes (2009), severity 1.0: what is left of linear RGB without one kind of cone.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def lightness_and_hues(rgb):
    """CIE L*, a*, b* of linear RGB."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def linear(colour):
    c = np.array(to_rgb(colour))
    return np.where(c > 0.04045, ((c + 0.055) / 1.055) ** 2.4, c / 12.92)


PAIRS = [(a, b) for i, a in enumerate(COLOURS) for b in COLOURS[i + 1 :]]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_colours_differ_without_one_kind_of_cone(a, b):
    for kind, matrix in BLIND.items():
        seen = [lightness_and_hues(np.array(matrix) @ linear(c)) for c in (a, b)]
        assert np.linalg.norm(seen[0] - seen[1]) > 11, kind


def test_neighbouring_colours_differ_in_grey_print():
    lightness = [lightness_and_hues(linear(c))[0] for c in COLOURS]
    assert all(abs(a - b) > 8 for i, a in enumerate(lightness[:5]) for b in lightness[i + 1 : 5])


def test_lines_bars_and_markers_differ_without_colour():
    for kinds in (LINES, MARKERS, HATCHES):
        assert len(set(kinds)) == len(COLOURS)


def test_a_figure_has_labelled_axes_and_stays_out_of_pyplot():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    made, axes = figure("Loss", "step", "loss (nats)")
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == (
        "step",
        "loss (nats)",
        "Loss",
    )
    assert plt.get_fignums() == before
    assert made.get_size_inches().tolist() == [7.0, 4.0]


def test_several_axes_share_title_and_labels():
    made, axes = figure("Loss", "step", "loss", columns=2, sharey=True)
    assert axes.shape == (2,)
    assert made.get_suptitle() == "Loss"


def test_the_same_figure_gives_the_same_bytes():
    assert png(bars("A", "GiB", {"x": 1.0})) == png(bars("A", "GiB", {"x": 1.0}))


@pytest.mark.skipif(korean_font() is None, reason="no Korean font on this machine")
def test_korean_letters_are_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing letter is a warning
        png(bars("토큰 수", "개", {"학습": 1.0}))


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, as (data, metadata)."""
    seen = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw=False, metadata=None: seen.append((data, metadata))
    )
    return seen


def test_show_gives_alt_text_and_the_same_sentence_visibly(shown):
    show(bars("A", "GiB", {"x": 1.0}), "The only bar is 1 GiB high.")
    (picture, metadata), (caption, _) = shown
    assert metadata["image/png"]["alt"] == "The only bar is 1 GiB high."
    assert picture["text/plain"] == "Figure: The only bar is 1 GiB high."
    assert picture["image/png"].startswith("iVBOR")
    assert caption.data == "*The only bar is 1 GiB high.*"


def test_show_closes_a_pyplot_figure_so_that_it_is_not_shown_twice(shown):
    import matplotlib.pyplot as plt

    made, axes = plt.subplots()
    axes.plot([1, 2])
    show(made, "A line goes up to 2.")
    assert made.number not in plt.get_fignums()


@pytest.mark.parametrize("alt", ["", "Loss curve"])
def test_show_refuses_an_alt_text_that_says_nothing(alt, shown):
    with pytest.raises(ValueError, match="say in a sentence"):
        show(bars("A", "GiB", {"x": 1.0}), alt)


def test_a_topics_module_is_found_by_its_name_and_an_unknown_one_is_not():
    assert plots.start_here.weights(10**9).axes
    with pytest.raises(AttributeError, match="no attribute 'no_such_topic'"):
        plots.no_such_topic  # noqa: B018


def test_importing_plots_loads_no_matplotlib():
    code = "import sys, onegpu.plots, onegpu.widgets; print('matplotlib' in sys.modules, 'ipywidgets' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_what_does_not_fit_is_hatched_as_well_as_coloured():
    drawn = plots.start_here.weights(10 * 10**9).axes[0].patches
    assert [bar.get_hatch() or "" for bar in drawn[:4]] == ["//", "//", "", ""]
    assert io.BytesIO(png(plots.start_here.weights(10**9)))


def test_lines_have_three_to_one_on_white_in_the_palettes_order():
    for line, fill in zip(LINE_COLOURS, COLOURS, strict=True):
        light = float(np.array([0.2126, 0.7152, 0.0722]) @ linear(line))
        assert 1.05 / (light + 0.05) >= 3
        assert line == fill or 1.05 / (float(np.array([0.2126, 0.7152, 0.0722]) @ linear(fill)) + 0.05) < 3


def test_a_bar_is_labelled_with_all_its_bytes_those_too_thin_to_draw_as_well():
    from onegpu.plots import gpu_memory

    sizes = {"weights": 10 * 2**30, "cublas_workspace": 2**24}
    made = gpu_memory.stacked({"full": sizes})
    assert [text.get_text() for text in made.axes[0].texts] == ["10.02"]
