"""`reveal`: asked first, answered after the guess; folded in a stored page; its value in the plain text."""

import re

import ipywidgets
import pytest
from onegpu.plots.base import bars, captioned
from onegpu.widgets import reveal
from onegpu.widgets.asking import compared

WIDGET = "application/vnd.jupyter.widget-view+json"
QUESTION = "How many codes do the others use?"


@pytest.fixture
def asked(monkeypatch):
    """Call reveal; return (stored output, field, button, place of the answer)."""
    seen, made = [], []

    class Collected(ipywidgets.VBox):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("IPython.display.display", lambda data, raw=False, metadata=None: seen.append(data))
    monkeypatch.setattr(ipywidgets, "VBox", Collected)

    def call(*args, **kwargs):
        assert reveal(*args, **kwargs) is None  # or a cell that ends in it would print it
        _, row, place = made[-1].children
        field, button = row.children[0], row.children[-1]
        return seen[-1], field, button, place

    return call


def press_enter(field):
    """What the browser sends for Enter, in ipywidgets 7.7 and 8."""
    field._handle_custom_msg({"event": "submit"}, [])


def test_the_stored_page_is_folded_and_the_plain_text_holds_the_value(asked):
    stored, *_ = asked(QUESTION, 18, unit="codes", why="A step is `0.47` now.")
    assert stored["text/plain"] == f"{QUESTION}\nAnswer: 18 codes. A step is 0.47 now."
    folded = stored["text/html"]
    summary = re.search("<summary>(.*)</summary>", folded)[1]
    assert QUESTION in summary
    assert "18" not in summary
    assert folded.startswith("<details><summary>")  # without "open"
    assert "<b>18 codes</b>" in folded
    assert "<code>0.47</code>" in folded
    assert stored[WIDGET]["version_major"] == 2


def test_the_button_shows_the_guess_beside_the_answer(asked):
    _, field, button, place = asked(QUESTION, 18, unit="codes")
    assert place.value == ""
    field.value = "200"
    assert place.value == ""
    button.click()
    assert "You said 200, it is 18 codes." in place.value
    assert field.disabled
    assert button.disabled


def test_enter_shows_it_too_and_the_last_letter_may_come_late(asked):
    _, field, _, place = asked(QUESTION, 18)
    field.value = "1"
    press_enter(field)
    assert "You said 1, it is 18." in place.value
    field.value = "18"
    assert "You said 18, and so it is." in place.value


def test_the_answer_can_be_seen_without_a_guess(asked):
    _, _, button, place = asked(QUESTION, 18)
    button.click()
    assert "<b>18</b>" in place.value
    assert "You said" not in place.value


def test_what_a_reader_types_is_shown_as_text(asked):
    _, field, button, place = asked("Which <tag>?", "the <b> one")
    field.value = "<img src=x>"
    button.click()
    assert "You said “&lt;img src=x&gt;”." in place.value
    assert "the &lt;b&gt; one" in place.value


def test_a_figure_a_table_and_several_lines(asked):
    class Table:
        def _repr_html_(self):
            return "<table><tr><td>1</td></tr></table>"

        def __str__(self):
            return "one: 1"

    chart = captioned(bars("A", "GiB", {"x": 1.0}), "The only bar is 1 GiB high.")
    stored, *_ = asked("What does it look like?", chart, Table(), "a\nb")
    assert '<img alt="The only bar is 1 GiB high." src="data:image/png;base64,iVBOR' in stored["text/html"]
    assert "<table>" in stored["text/html"]
    assert '<pre style="white-space:pre-wrap;font-family:monospace">a\nb</pre>' in stored["text/html"]
    assert (
        stored["text/plain"]
        == "What does it look like?\nAnswer: Figure: The only bar is 1 GiB high.\none: 1.\na\nb"
    )


@pytest.mark.parametrize(
    ("guess", "answer", "options", "sentence"),
    [
        ("1,000", 1000, {}, "You said 1,000, and so it is."),
        ("18.5", 18, {}, "You said 18.5, it is 18."),
        ("20 %", 19.7, {"unit": "%", "form": ".0f"}, "You said 20 %, and so it is."),
        ("5e-2", 0.05, {}, "You said 5e-2, and so it is."),
        ("-3", 3, {}, "You said -3, it is 3."),
        ("many", 3, {}, "You said many, it is 3."),
        (".5", 0.5, {}, "You said .5, and so it is."),
    ],
)
def test_guesses_as_people_write_them(guess, answer, options, sentence):
    assert compared(guess, answer, **options) == sentence


def test_a_question_without_an_answer_or_a_figure_without_a_caption_is_an_error():
    with pytest.raises(ValueError, match="without an answer"):
        reveal(QUESTION)
    with pytest.raises(ValueError, match="has no caption"):
        reveal(QUESTION, bars("A", "GiB", {"x": 1.0}))
