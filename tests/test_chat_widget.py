"""`widgets.chat`: Enter sends, the answer grows, the focus comes back; errors are said in the conversation."""

import ipywidgets
import pytest
from onegpu import widgets
from onegpu.chat import Reply

WIDGET = "application/vnd.jupyter.widget-view+json"


class Parrot:
    """Says the last message again, letter by letter, and stops by itself unless it is long."""

    name = "parrot <3"

    def __init__(self):
        self.asked = []

    def reply(self, messages, write, sampling=None):
        self.asked.append(list(messages))
        text = messages[-1]["content"]
        if text == "too long":
            raise ValueError("the conversation has 9,999 tokens: start a new one")
        for letter in text:
            write(letter)
        return Reply(text, len(text) < 20, 1)


@pytest.fixture
def shown(monkeypatch):
    """Call chat; return (stored output, field, send, new conversation, place, states of the place)."""
    seen, made, states = [], [], []

    class Collected(ipywidgets.VBox):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("IPython.display.display", lambda data, raw=False, metadata=None: seen.append(data))
    monkeypatch.setattr(ipywidgets, "VBox", Collected)

    def call(*args, **kwargs):
        assert widgets.chat(*args, **kwargs) is None
        place, row = made[-1].children
        place.observe(lambda change: states.append(change["new"]), names="value")
        return seen[-1], *row.children, place, states

    return call


def press_enter(field):
    """What the browser sends for Enter, in ipywidgets 7.7 and 8."""
    field._handle_custom_msg({"event": "submit"}, [])


def test_enter_sends_the_field_and_empties_it_and_the_answer_grows(shown, monkeypatch):
    monkeypatch.setattr("onegpu.widgets.talking.REDRAWN_S", 0.0)
    parrot = Parrot()
    stored, field, _, _, place, states = shown(parrot, system="Be brief.")
    focused = []
    monkeypatch.setattr(type(field), "focus", lambda self: focused.append(self.description), raising=False)
    field.value = "hello <b>"
    assert parrot.asked == []
    press_enter(field)
    assert field.value == ""
    assert focused == ["your message"]
    assert "<b>you:</b> hello &lt;b&gt;" in place.value
    assert "<b>parrot &lt;3:</b> hello &lt;b&gt;" in place.value
    assert 'role="log"' in place.value
    assert 'aria-busy="false"' in place.value
    grows = [state.split("parrot &lt;3:</b> ")[1].split("<")[0] for state in states if "3:</b>" in state]
    assert grows[:5] == ["…", "h", "he", "hel", "hell"]
    assert all('aria-busy="true"' in state for state in states[:-1])
    field.value = "again"
    press_enter(field)
    assert [m["content"] for m in parrot.asked[-1]] == ["Be brief.", "hello <b>", "hello <b>", "again"]
    assert "run the notebook to talk" in stored["text/plain"]
    assert stored[WIDGET]["version_major"] == 2


def test_a_suggestion_is_sent_by_the_button_and_a_new_conversation_forgets(shown):
    parrot = Parrot()
    _, field, send, anew, place, _ = shown(parrot, suggestion="Where is it?")
    assert field.description == "your message"
    send.click()
    assert "<b>you:</b> Where is it?" in place.value
    send.click()  # an empty field is no message
    assert len(parrot.asked) == 1
    anew.click()
    assert "Where is it?" not in place.value
    field.value = "hi"
    press_enter(field)
    assert parrot.asked[-1] == [{"role": "user", "content": "hi"}]


def test_an_answer_that_was_cut_says_so_and_an_error_is_part_of_the_conversation(shown):
    _, field, _, _, place, _ = shown(Parrot(), max_new_tokens=7)
    field.value = "a" * 30
    press_enter(field)
    assert "(cut at 7 tokens)" in place.value
    field.value = "too long"
    press_enter(field)
    assert "(the conversation has 9,999 tokens: start a new one)" in place.value
    field.value = "b"
    press_enter(field)
    assert "<b>parrot &lt;3:</b> b</p>" in place.value


def test_comparing_needs_an_adapter(shown):
    with pytest.raises(ValueError, match="compare=True needs a run or an adapter"):
        shown(Parrot(), compare=True)
