import re

import pytest
from onegpu.sft_datasets import tokenize
from onegpu.widgets.sft_datasets import ROWS, in_words, mask_html


def spans(html):
    return re.findall(r'<span style="([^"]*)">(.*?)</span>', html)


@pytest.mark.parametrize("name", ROWS)
def test_every_token_is_drawn_and_learned_ones_are_underlined(tokenizer, name):
    done = tokenize(ROWS[name], tokenizer)
    drawn = spans(mask_html(done, tokenizer))
    assert len(drawn) == len(done)
    assert [("3px solid" in style) for style, _ in drawn] == [label != -100 for label in done.labels]


def test_text_of_a_row_is_shown_and_not_run_as_html(tokenizer):
    done = tokenize({"prompt": "<b>bold</b> & more", "completion": "<img src=x>"}, tokenizer)
    html = mask_html(done, tokenizer)
    assert "<b>" not in html
    assert "<img" not in html
    shown = "".join(text for _, text in spans(html)).replace("&nbsp;", " ")
    assert "&lt;img src=x&gt;&lt;|im_end|&gt;" in shown


def test_bytes_of_a_korean_character_are_dots_until_it_is_whole(make):
    tokenizer = make(text=["only English here"])  # each Korean syllable is three tokens
    done = tokenize({"prompt": "a", "completion": "네"}, tokenizer)
    learned = [text for style, text in spans(mask_html(done, tokenizer)) if "3px solid" in style]
    assert learned == ["·", "·", "네", "&lt;|im_end|&gt;"]


def test_the_sentence_counts_and_quotes_what_is_learned(tokenizer):
    done = tokenize(ROWS["two answers"], tokenizer)
    assert in_words(done, tokenizer) == (
        f"{done.supervised_tokens} of {len(done)} tokens are learned: “An apple.<|im_end|>” and “A fig.<|im_end|>”."
    )
