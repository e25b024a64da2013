"""`explore`: a control, a picture with alt text, the same in words, and errors that are seen."""

import re

import ipywidgets
import pytest
from matplotlib.colors import to_rgb
from onegpu import widgets
from onegpu.plots.base import bars
from onegpu.widgets.base import choice, explore, number, slider, switch, text

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw=False, metadata=None: seen.append((data, metadata))
    )
    return seen


@pytest.fixture
def pictures(monkeypatch):
    """The HTML widgets that are made."""
    made, make = [], ipywidgets.HTML

    def html(*args, **kwargs):
        made.append(make(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(ipywidgets, "HTML", html)
    return made


def draw(rank, kind="a"):
    if rank == 13:
        raise ValueError("13 is <unlucky>")
    return bars(kind, "parameters", {"lora": rank}), f'At rank {rank} & kind "{kind}".'


def test_the_picture_has_alt_text_and_the_same_in_words(shown, pictures):
    explore(draw, rank=slider("rank", 4, 1, 16), kind=choice("kind", ["a", "b"]))
    (picture,) = pictures
    assert 'alt="At rank 4 &amp; kind &quot;a&quot;."' in picture.value
    assert "<b>rank = 4, kind = a</b>: At rank 4 &amp; kind" in picture.value
    assert 'aria-live="polite"' in picture.value


def test_moving_a_control_draws_anew(shown, pictures):
    rank = slider("rank", 4, 1, 16)
    explore(draw, rank=rank)
    before = pictures[0].value
    rank.value = 9
    assert "rank = 9" in pictures[0].value
    assert pictures[0].value != before


def test_an_error_while_drawing_is_shown_and_the_next_value_works(shown, pictures):
    rank = slider("rank", 4, 1, 16)
    explore(draw, rank=rank)
    rank.value = 13
    assert pictures[0].value == '<p role="alert">ValueError: 13 is &lt;unlucky&gt;</p>'
    rank.value = 14
    assert "At rank 14" in pictures[0].value


def test_an_error_on_the_first_values_is_raised(shown):
    with pytest.raises(ValueError, match="unlucky"):
        explore(draw, rank=slider("rank", 13, 1, 16))


def test_a_preview_without_kernel_has_the_first_picture(shown):
    explore(draw, rank=slider("rank", 4, 1, 16))
    ((data, metadata),) = shown
    assert data["image/png"].startswith("iVBOR")
    assert data["text/plain"].startswith("rank = 4: At rank 4")
    assert data[WIDGET]["version_major"] == 2
    assert metadata["image/png"]["alt"].startswith("At rank 4")


def test_html_instead_of_a_figure(shown, pictures):
    explore(lambda word: (f"<mark>{word}</mark>", "One word is marked."), word=text("word", "cat"))
    ((data, _),) = shown
    assert data["text/html"] == "<mark>cat</mark><p>One word is marked.</p>"
    assert "<mark>cat</mark>" in pictures[0].value


def test_controls_have_their_label_and_wait_for_the_end_of_a_drag():
    assert isinstance(slider("n", 1, 0, 9), ipywidgets.IntSlider)
    assert isinstance(slider("n", 1.0, 0, 9, 0.5), ipywidgets.FloatSlider)
    for control in (slider("n", 1, 0, 9), text("n"), number("n", 1.5)):
        assert control.description == "n"
        assert control.continuous_update is False
    assert choice("n", ["a", "b"], "b").value == "b"
    assert switch("n", True).value is True


def test_a_slider_has_a_named_field_beside_it(monkeypatch):
    """The handle itself has no name for a screen reader."""
    frames = []
    monkeypatch.setattr("onegpu.widgets.base.display_widget", lambda frame, *_: frames.append(frame))
    explore(draw, rank=slider("rank", 4, 1, 16), kind=choice("kind", ["a", "b"]))
    field, handle = frames[0].children[0].children
    assert (type(field).__name__, field.description, field.value) == ("BoundedIntText", "rank", 4)
    assert (field.min, field.max, field.step) == (1, 16, 1)
    assert (handle.description, handle.readout) == ("", False)


def test_few_short_options_are_buttons_and_a_list_says_its_keys(shown, monkeypatch):
    frames = []
    monkeypatch.setattr("onegpu.widgets.base.display_widget", lambda frame, *_: frames.append(frame))
    few, many = choice("kind", ["a", "b"]), choice("kind", list("abcdefgh"), "c")
    long = choice("kind", ["a" * 20, "b" * 20])
    assert [type(c).__name__ for c in (few, many, long)] == ["ToggleButtons", "Dropdown", "Dropdown"]
    assert few.tooltips == ("kind: a", "kind: b")
    explore(draw, rank=slider("rank", 4, 1, 16), kind=few)
    explore(draw, rank=slider("rank", 4, 1, 16), kind=many)
    said = [[c.value for c in frame.children if isinstance(c, ipywidgets.Label)] for frame in frames]
    assert said == [[], ["Space opens the list, arrows choose, Enter takes it."]]


def test_a_live_table_has_room_between_its_columns_and_the_stored_one_stays_plain(shown, pictures):
    table = "<table><tr><th>weights</th><th>of the room</th></tr></table>"
    explore(lambda n: (table, "Two columns."), n=slider("n", 1, 0, 9))
    assert "td,.onegpu-live th{padding:2px 12px;text-align:right}" in pictures[0].value
    assert '<div class="onegpu-live"><table>' in pictures[0].value
    assert shown[0][0]["text/html"] == f"{table}<p>Two columns.</p>"


def test_bits_are_legible_whatever_the_theme(shown):
    """No button sets a background under the theme's text, each cell brings background and text colour."""
    explorer = widgets.dtype_sizing._BitExplorer("0.1", "bf16")
    assert {button.style.button_color for button in explorer.buttons.children} == {None}
    table, _ = explorer.html()
    cells = re.findall(r"<td style='background:(#\w+);color:(#\w+)", table)
    assert len(cells) == 16
    assert all(
        contrast(background, colour if len(colour) == 7 else "#000000") > 4.5 for background, colour in cells
    )
    for border, _, _ in widgets.dtype_sizing._FIELDS.values():
        assert min(contrast(border, "#ffffff"), contrast(border, "#111111")) > 3


def contrast(one, other):
    """WCAG's ratio."""
    light = [
        sum(
            w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
            for w, c in zip((0.2126, 0.7152, 0.0722), to_rgb(colour), strict=True)
        )
        for colour in (one, other)
    ]
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_only_what_ipywidgets_7_has_too():
    """Colab has ipywidgets 7.7, whose sliders and fields are these."""
    assert {type(c).__name__ for c in (slider("n", 1, 0, 9), choice("n", [1]), choice("n", range(9)), switch("n"), text("n"), number("n", 1.0))} <= {
        "IntSlider", "FloatSlider", "Dropdown", "ToggleButtons", "Checkbox", "Text", "FloatText",
    }  # fmt: skip


def test_the_explorer_of_start_here_says_what_fits(shown, pictures):
    widgets.start_here.weights_explorer()
    assert (
        "7 billion parameters take 13.04 GiB in 16 bits; on a T4 they fit in 16, 8 and 4 bits."
        in pictures[0].value
    )


def test_an_unknown_topic_has_no_widgets():
    with pytest.raises(AttributeError, match="no_such_topic"):
        widgets.no_such_topic  # noqa: B018
