import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegpu.sft_datasets import (
    answer_type,
    first_word,
    packing_figures,
    profile,
    script_of,
    to_dataset,
    to_example,
    tokenize,
)


def test_profile_counts_inputs_systems_turns_and_verbs():
    rows = [
        {"instruction": "Please name a fruit.", "output": "Apple"},
        {"instruction": "Add.", "input": "2, 3", "output": "5"},
        {"instruction": "Add.", "input": "<noinput>", "output": "5 apples and 3 more than that."},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Name a tree."},
                {"role": "assistant", "content": "Oak"},
                {"role": "user", "content": "Another."},
                {"role": "assistant", "content": "Elm"},
            ]
        },
    ]
    done = profile(rows)
    assert (done.rows, done.turns, done.with_input, done.with_system) == (4, 5, 1, 1)
    assert done.verbs == {"name": 2, "add": 2}
    assert done.answer_types == {"label": 2, "number": 1, "sentence": 1}
    assert done.answer_lengths.counts == {1: 3, 7: 1}
    assert done.answer_lengths.quantile(1.0) == 7
    assert "first words: 2 different; name 50.0%, add 50.0%" in str(done)


def test_lengths_are_in_tokens_with_a_tokenizer(tokenizer):
    done = profile([{"prompt": "Say yes.", "completion": "yes yes yes"}], tokenizer)
    assert done.answer_lengths.unit == "tokens"
    assert done.answer_lengths.total == len(tokenizer("yes yes yes", add_special_tokens=False)["input_ids"])


def test_an_empty_set_has_a_profile():
    assert profile([]).rows == 0
    assert "rows: 0" in str(profile([]))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ('[1, "a"]', "json"),
        ("[INST] not json", "label"),
        ("Use this:\n```\nx\n```", "code"),
        ("import os\nx = 1", "code"),
        ("1. a\n2. b", "list"),
        ("-3.5 %", "number"),
        ("$1,200", "number"),
        ("매우 좋음", "label"),
        ("I would take the train, since it is faster.", "sentence"),
        ("One line.\nAnother line of this text.", "text"),
    ],
)
def test_answer_types(answer, kind):
    assert answer_type(answer) == kind


def test_first_word_skips_politeness_and_punctuation():
    assert [
        first_word(t) for t in ("Can you please list it?", "  «Write» it", "I want you to act", "1+1?")
    ] == [
        "list",
        "write",
        "act",
        "1",
    ]


def test_script_is_that_of_most_letters():
    assert [script_of(t) for t in ("안녕하세요 ok", "こんにちは", "привет", "12 + 3")] == [
        "hangul",
        "hiragana",
        "cyrillic",
        "none",
    ]


def test_packing_figures_by_hand():
    done = packing_figures([3, 9, 4, 2, 99], max_length=10, batch_size=2)
    assert (done.tokens, done.padded_to_max, done.padded_to_batch, done.packed, done.too_long) == (
        18,
        40,
        26,
        20,
        1,
    )
    with pytest.raises(ValueError, match="batch_size=0"):
        packing_figures([1], 4, 0)


@given(st.lists(st.integers(1, 32), min_size=1, max_size=60))
def test_packing_lies_between_the_bound_and_twice_the_bound(lengths):
    done = packing_figures(lengths, max_length=32)
    bound = -(-sum(lengths) // 32)
    assert bound <= done.packed_rows <= max(1, 2 * bound)
    assert done.packed_rows <= len(lengths)


# --- tables


def test_a_column_missing_from_the_first_row_is_kept():
    # Dataset.from_list takes its columns from the first row and loses the input.
    rows = [{"instruction": "a", "output": "b"}, {"instruction": "a", "input": "x", "output": "b"}]
    assert to_dataset(rows).to_list() == [
        {"instruction": "a", "output": "b", "input": None},
        {"instruction": "a", "output": "b", "input": "x"},
    ]


def test_examples_and_tokens_make_columns(tokenizer):
    example = to_example({"instruction": "Add.", "input": "2, 3", "output": "5"})
    table = to_dataset([example])
    assert to_example(table[0]).messages == example.messages
    done = tokenize(example, tokenizer)
    assert to_dataset([done])[0] == {"input_ids": list(done.input_ids), "labels": list(done.labels)}


def test_mixed_types_name_column_and_rows():
    with pytest.raises(ValueError, match="column 'output': found str in row 0 and number in row 2"):
        to_dataset([{"output": "4"}, {"output": None}, {"output": 4.0}])
    with pytest.raises(ValueError, match="No rows"):
        to_dataset([])


def test_a_dropped_example_is_refused(tokenizer):
    gone = tokenize({"prompt": "hi", "completion": "yes"}, tokenizer, max_length=2, truncation="drop")
    with pytest.raises(ValueError, match="row 0: it was dropped"):
        to_dataset([gone])
