import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.sft_datasets import (
    IGNORE,
    Example,
    Tokenized,
    collate,
    supervised_mask,
    to_example,
    tokenize,
    tokenize_rows,
)

ROW = {"prompt": "Say yes or no.", "completion": "Yes"}
CHAT = {
    "messages": [
        {"role": "user", "content": "Two plus two?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "What is the answer?"},
        {"role": "assistant", "content": "The answer is yes."},
    ]
}


def test_end_token_is_supervised_with_pad_equal_to_eos_transformers_23530(tokenizer, supervised_text):
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert supervised_text(tokenize(ROW, tokenizer), tokenizer) == ["Yes<|im_end|>"]
    assert tokenize(ROW, tokenizer).labels[-2] == tokenizer.eos_token_id  # the newline after it is not


def test_all_assistant_turns_or_the_last(tokenizer, supervised_text):
    both = supervised_text(tokenize(CHAT, tokenizer), tokenizer)
    assert both == ["Four.<|im_end|>", "The answer is yes.<|im_end|>"]
    last = supervised_text(tokenize(CHAT, tokenizer, turns="last"), tokenizer)
    assert last == ["The answer is yes.<|im_end|>"]


def test_ids_are_those_of_the_text_as_a_whole_trl_588(tokenizer):
    # Never tokens of the parts put together: the template's tokens read differently in context.
    text = tokenizer.apply_chat_template(CHAT["messages"], tokenize=False)
    assert list(tokenize(CHAT, tokenizer).input_ids) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_lengths_are_of_the_ids_and_not_of_a_dict_trl_6105(tokenizer):
    done = tokenize(ROW, tokenizer)
    ids = tokenizer.apply_chat_template(to_example(ROW).messages, tokenize=True, return_dict=False)
    assert len(done) == len(ids) == len(done.labels)
    assert done.prompt_length > 2


@pytest.mark.parametrize(
    "prompt", ["### Response: ", "### Response:\n\n", "### Response:", "### Response:\n"]
)
def test_no_answer_character_goes_unsupervised_at_a_merged_boundary_trl_2054(make, prompt):
    # Templates that end like this, from the field; with "### Response: " the token " Yes" straddles.
    template = (
        "{{ messages[0]['content'] }}{% if not add_generation_prompt %}{{ messages[1]['content'] }}"
        + ("<|im_end|>{% endif %}")
    )
    for tokenizer in (make(chat_template=template), make(chat_template=template, trim_offsets=True)):
        done = tokenize({"prompt": prompt, "completion": "Yes"}, tokenizer)
        trained = tokenizer.decode([label for label in done.labels if label != IGNORE])
        assert trained.lstrip(" ") == "Yes<|im_end|>"
        assert done.supervised_tokens >= 2


def test_a_straddling_token_is_supervised_and_an_adjacent_one_is_not():
    assert supervised_mask([(0, 3), (3, 7), (7, 9)], [(4, 9)]) == [False, True, True]
    assert supervised_mask([(0, 4), (4, 7), (7, 9)], [(4, 7)]) == [False, True, False]


def test_bytes_of_one_character_share_its_fate():
    assert supervised_mask([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [(1, 2)]) == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_whitespace_tokens_without_characters_belong_to_the_gap_before_them():
    # ByteLevel(trim_offsets=True) gives "\n" as (4, 4) or (5, 5) between (0, 4) and (5, 8).
    assert supervised_mask([(0, 4), (5, 5), (5, 8)], [(5, 8)]) == [False, False, True]
    assert supervised_mask([(0, 4), (4, 4), (5, 8)], [(0, 8)]) == [True, True, True]


def test_bos_appears_once_and_is_not_supervised_openrlhf_393(make):
    template = (
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        + ("{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    )
    tokenizer = make(adds_bos=True, chat_template=template)
    for kind in ("model", "chatml", "alpaca"):
        done = tokenize(ROW, tokenizer, template=kind)
        assert done.input_ids.count(tokenizer.bos_token_id) == 1
        assert done.input_ids[0] == tokenizer.bos_token_id
        assert done.labels[0] == IGNORE


def test_a_template_that_writes_bos_twice_is_refused_trl_1400(make):
    tokenizer = make(
        chat_template="{{ bos_token }}{{ bos_token }}{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    with pytest.raises(ValueError, match=r"row 4: the text starts with two '<s>'"):
        tokenize(ROW, tokenizer, row_index=4)


def test_first_answer_token_is_supervised_alpaca_lora_306(tokenizer):
    done = tokenize(ROW, tokenizer, template="alpaca")
    first = next(label for label in done.labels if label != IGNORE)
    assert tokenizer.decode([first]) in "Yes"
    assert tokenizer.decode(done.input_ids[: done.prompt_length]).endswith("### Response:\n")


def test_stock_template_without_generation_markers_still_gives_a_mask_transformers_34172(tokenizer):
    assert "generation %}" not in tokenizer.chat_template
    assert tokenize(ROW, tokenizer).supervised_tokens > 0


def test_an_answer_that_starts_at_token_0_does_not_mark_the_rest_transformers_47325():
    offsets = [(0, 3), (3, 6), (6, 9)]
    assert supervised_mask(offsets, [(0, 3)]) == [True, False, False]


def test_an_answer_cut_by_max_length_keeps_its_mask_transformers_34494(tokenizer):
    whole = tokenize(ROW, tokenizer)
    cut = tokenize(ROW, tokenizer, max_length=len(whole) - 1, truncation="right")
    assert cut.labels == whole.labels[:-1]
    assert cut.supervised_tokens > 0


def test_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False
        bos_token_id = None
        eos_token = "</s>"

    with pytest.raises(ValueError, match="Slow gives no character offsets"):
        tokenize(ROW, Slow(), template="chatml")


def test_metaspace_tokenizer_supervises_exactly_the_answer(make, supervised_text):
    tokenizer = make("metaspace")
    pieces = supervised_text(tokenize(CHAT, tokenizer), tokenizer)
    assert [p.replace(" ", "") for p in pieces] == ["Four.<|im_end|>", "Theanswerisyes.<|im_end|>"]


def test_too_long_is_an_error_by_default_and_names_the_row(tokenizer):
    with pytest.raises(
        ValueError, match=r"row 2: \d+ tokens, \d+ of them before the first answer.*max_length=8"
    ):
        tokenize(ROW, tokenizer, max_length=8, row_index=2)


def test_max_length_equal_to_the_length_keeps_everything(tokenizer):
    length = len(tokenize(ROW, tokenizer))
    assert tokenize(ROW, tokenizer, max_length=length) == tokenize(ROW, tokenizer)


def test_right_truncation_reports_what_the_answer_lost(tokenizer):
    whole = tokenize(CHAT, tokenizer)
    cut = tokenize(CHAT, tokenizer, max_length=len(whole) - 3, truncation="right")
    assert cut.dropped is None
    assert cut.lost_tokens == 3
    assert cut.lost_supervised_tokens == whole.supervised_tokens - cut.supervised_tokens == 2


def test_right_truncation_that_leaves_no_answer_drops_the_row_trl_6668(tokenizer):
    prompt = tokenize(ROW, tokenizer).prompt_length
    gone = tokenize(ROW, tokenizer, max_length=prompt, truncation="right")
    assert (gone.dropped, gone.input_ids, gone.labels) == ("no_answer_left", (), ())
    one = tokenize(ROW, tokenizer, max_length=prompt + 1, truncation="right")
    assert (one.dropped, one.supervised_tokens) == (None, 1)


def test_a_label_at_position_0_does_not_count_trl_6320(make):
    # The loss predicts labels[1:], so an answer that is the text's first token alone would give nan.
    tokenizer = make(
        chat_template="{% if not add_generation_prompt %}{{ messages[1]['content'] }}<|im_end|>{{ messages[0]['content'] }}"
        "{% endif %}"
    )
    done = tokenize({"prompt": "hi", "completion": "y"}, tokenizer)
    assert (done.labels[0] != IGNORE, done.supervised_tokens) == (True, 1)


def test_turns_truncation_keeps_whole_answers_only(tokenizer, supervised_text):
    whole = tokenize(CHAT, tokenizer)
    cut = tokenize(CHAT, tokenizer, max_length=len(whole) - 3, truncation="turns")
    assert supervised_text(cut, tokenizer) == ["Four.<|im_end|>"]
    assert cut.labels[-1] == tokenizer.eos_token_id
    assert len(cut) == whole.first_answer_end
    assert tokenize(CHAT, tokenizer, max_length=len(cut) - 1, truncation="turns").dropped == "too_long"


def test_rows_are_counted_by_reason(tokenizer):
    long = {"prompt": "Say yes. " * 40, "completion": "Yes"}
    done = tokenize_rows([ROW, long, ROW, long], tokenizer, max_length=60)
    assert (len(done), done.rows, done.dropped) == (2, 4, {"too_long": (1, 3)})
    assert [example.row for example in done] == [0, 2]
    assert done.tokens == 2 * len(tokenize(ROW, tokenizer))
    assert "dropped, too_long: 2 (rows 1, 3)" in str(done)
    assert done.lost_tokens == 2 * len(tokenize(long, tokenizer))


def test_truncated_rows_are_counted(tokenizer):
    length = len(tokenize(CHAT, tokenizer))
    done = tokenize_rows([ROW, CHAT], tokenizer, max_length=length - 3, truncation="right")
    assert (done.truncated, done.lost_tokens, done.lost_supervised_tokens) == ((1,), 3, 2)


def test_nothing_left_says_what_would_work(tokenizer):
    whole = tokenize(ROW, tokenizer)
    with pytest.raises(ValueError, match="max_length=4 is shorter than every prompt") as caught:
        tokenize_rows([ROW, CHAT], tokenizer, max_length=4)
    assert f"the shortest prompt has {whole.prompt_length} tokens" in str(caught.value)
    assert f"smallest max_length that keeps a row is {len(whole)} " in str(caught.value)


@pytest.mark.parametrize("truncation", ["drop", "turns", "right"])
def test_the_max_length_that_the_error_names_works_and_one_less_does_not(tokenizer, truncation):
    import re

    for rows in ([ROW], [CHAT], [CHAT, ROW]):
        with pytest.raises(ValueError, match="smallest max_length") as caught:
            tokenize_rows(rows, tokenizer, max_length=2, truncation=truncation)
        smallest = int(re.search(r"keeps a row is (\d+)", str(caught.value))[1])
        assert len(tokenize_rows(rows, tokenizer, smallest, truncation=truncation)) >= 1
        with pytest.raises(ValueError, match="nothing is left"):
            tokenize_rows(rows, tokenizer, smallest - 1, truncation=truncation)


def test_no_rows_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="No rows"):
        tokenize_rows([], tokenizer)


def test_a_bad_row_is_named(tokenizer):
    with pytest.raises(ValueError, match="row 1, field 'completion': found None"):
        tokenize_rows([ROW, {"prompt": "hi", "completion": None}], tokenizer)


@pytest.mark.parametrize(("name", "value"), [("truncation", "left"), ("turns", "first"), ("max_length", 1)])
def test_bad_options_are_named(tokenizer, name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        tokenize(ROW, tokenizer, **{name: value})


words = st.text(st.sampled_from("abc YesNo.\n 네답\u00a0é😀"), min_size=1, max_size=12).filter(
    lambda s: s.strip() and s.strip().lower() not in ("n/a",)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=3))
def test_supervised_text_is_the_answers_and_end_tokens_for_any_chat(tokenizer, pairs):
    messages = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    done = tokenize(Example(tuple(messages)), tokenizer)
    trained = tokenizer.decode([label for label in done.labels if label != IGNORE])
    assert trained == "".join(f"{answer}<|im_end|>" for _, answer in pairs)
    assert tokenizer.decode(done.input_ids) == tokenizer.apply_chat_template(messages, tokenize=False)


# --- batches


def test_real_end_tokens_keep_their_label_when_padding_is_the_same_token_transformers_23530():
    rows = [Tokenized((263, 1), (263, 1), 1), Tokenized((263, 264, 272, 1), (263, 264, 272, 1), 3)]
    batch = collate(rows, pad_token_id=1)
    assert batch["labels"].tolist() == [[263, 1, -100, -100], [263, 264, 272, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["input_ids"].tolist() == [[263, 1, 1, 1], [263, 264, 272, 1]]


def test_rows_of_unequal_length_make_a_batch_of_any_multiple(tokenizer):
    batch = collate(tokenize_rows([ROW, CHAT], tokenizer), 2, multiple_of=8)
    assert {tuple(tensor.shape) for tensor in batch.values()} == {tuple(batch["labels"].shape)}
    assert batch["labels"].shape[1] % 8 == 0


def test_labels_are_not_shifted_the_model_shifts_them(tokenizer):
    import torch
    from onegpu.models import tiny_model

    batch = collate([tokenize(CHAT, tokenizer), tokenize(ROW, tokenizer)], tokenizer.pad_token_id)
    kept = batch["labels"] != IGNORE
    assert torch.equal(batch["labels"][kept], batch["input_ids"][kept])
    model = tiny_model(vocab_size=len(tokenizer))
    with torch.no_grad():
        done = model(**batch)
    by_hand = torch.nn.functional.cross_entropy(
        done.logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORE
    )
    assert done.loss == pytest.approx(by_hand)


def test_a_dropped_example_or_none_makes_no_batch(tokenizer):
    gone = tokenize(ROW, tokenizer, max_length=2, truncation="drop")
    for rows, found in (([tokenize(ROW, tokenizer), gone], "example 1 without tokens"), ([], "no examples")):
        with pytest.raises(ValueError, match=found):
            collate(rows, 0)
