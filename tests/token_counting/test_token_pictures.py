"""Figures and widgets of topic 06: the words under them are computed, and true."""

import pytest
from matplotlib.figure import Figure
from onegpu import plots
from onegpu.token_counting import count_tokens, training_steps
from onegpu.widgets import token_counting as widgets

EXPECTED = {  # operation: tokens in the table, in the data set, what was copied, whether there is a mapping
    "none, as loaded": (15, 15, "Nothing was copied", False),
    "select(range(1, 4))": (9, 9, "Nothing was copied", False),
    "select([0, 2, 4])": (15, 9, "Nothing was copied", True),
    "filter: at most 3 tokens": (15, 6, "Nothing was copied", True),
    "filter: nothing kept": (15, 0, "Nothing was copied", True),
    "shuffle(seed=0)": (15, 15, "Nothing was copied", True),
    "map: cut the last token": (10, 10, "All of it was copied", False),
    "select, then flatten_indices": (9, 9, "All of it was copied", False),
    "concatenate with select([4, 4])": (30, 25, "Nothing was copied", True),
}


@pytest.mark.parametrize("operation", widgets.OPERATIONS)
def test_viewer_says_what_became_of_the_memory(operation, capsys):
    drawn, sentence = widgets.view(operation)
    stored, tokens, copied, mapped = EXPECTED[operation]
    assert f"holds {stored} tokens, the data set has {tokens}." in sentence
    assert copied in sentence
    assert ("indices mapping" in sentence) == mapped
    labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert labels == ["values", "offsets", *(["indices"] if mapped else [])]
    assert capsys.readouterr().err == ""


def test_rows_that_do_not_count_are_drawn_grey():
    drawn, _ = widgets.view("select([0, 2, 4])")
    cells = {}  # the last patch drawn at a place is the one that is seen
    for patch in drawn.axes[0].patches:
        cells[patch.get_xy()] = patch.get_hatch()
    assert [bool(cells[x, 0]) for x in range(15)] == [
        False,
        True,
        True,
        *[False] * 3,
        *[True] * 4,
        *[False] * 5,
    ]


def test_every_figure_is_drawn():
    counts = count_tokens(widgets.five_rows(), labels=None)
    for drawn in (
        plots.token_counting.row_layout([[1], [2, 3], []]),
        plots.token_counting.lengths(counts),
        plots.token_counting.padding(training_steps(counts, per_device_train_batch_size=2)),
        plots.token_counting.cost_of_counting({"a": {"seconds": 0.1, "own": 1.0, "file": 2.0}}),
        plots.token_counting.batches([3, 1, 2], batch_size=2, max_length=4),
        plots.token_counting.tokens_by_language({"a": {"English": 0.3, "Korean": 2.0}}),
    ):
        assert isinstance(drawn, Figure)
        assert plots.png(drawn)


def test_widgets_show_a_picture_and_a_sentence(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **more: shown.append(data))
    widgets.buffer_viewer()
    widgets.padding_explorer()
    assert shown[0]["text/plain"].startswith(
        "operation = select([0, 2, 4]): After select([0, 2, 4]) the table still holds 15 tokens, the data set has 9."
    )
    assert "batch size = 8, max length = 1024: Padding: max length" in shown[1]["text/plain"]
