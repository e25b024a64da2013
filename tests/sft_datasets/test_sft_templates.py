import pytest
from onegpu.sft_datasets import Example, render, to_example

CHAT = Example(
    (
        {"role": "user", "content": "Two plus two?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "Are you sure?"},
        {"role": "assistant", "content": "Yes"},
    )
)


def test_model_template_marks_each_answer_and_its_end_token(tokenizer):
    assert render(CHAT, tokenizer).supervised == ("Four.<|im_end|>", "Yes<|im_end|>")


def test_a_chat_without_an_answer_has_nothing_to_learn():
    asked = Example(({"role": "user", "content": " Two plus two? "},))
    assert render(asked, template="chatml").spans == ()
    assert render(asked, template="chatml").text == "<|im_start|>user\n Two plus two? <|im_end|>\n"


def test_last_turn_only(tokenizer):
    assert render(CHAT, tokenizer, turns="last").supervised == ("Yes<|im_end|>",)
    assert render(CHAT, template="chatml", turns="last").supervised == ("Yes<|im_end|>",)


def test_model_text_is_what_the_chat_template_gives(tokenizer):
    text = tokenizer.apply_chat_template(list(CHAT.messages), tokenize=False)
    assert render(CHAT, tokenizer).text == text


def test_own_chatml_equals_the_chatml_chat_template(tokenizer):
    assert render(CHAT, template="chatml") == render(CHAT, tokenizer)


def test_default_system_prompt_of_the_template_is_in_the_text_but_not_supervised_qwen_1089(make):
    template = (
        "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}"
        "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    rendered = render(CHAT, make(chat_template=template))
    assert rendered.text.startswith("<|im_start|>system\nYou are a helpful assistant<|im_end|>\n")
    assert rendered.supervised == ("Four.<|im_end|>", "Yes<|im_end|>")


def test_template_without_generation_prompt_of_its_own(make):
    rendered = render(CHAT, make(chat_template="llama2"))
    assert rendered.supervised == (" Four. <|im_end|>", " Yes <|im_end|>")


def test_template_that_refuses_a_system_message_says_what_to_do_transformers_28366(make):
    chat = Example(({"role": "system", "content": "Be brief."}, *CHAT.messages))
    with pytest.raises(
        ValueError, match=r"refuses the roles system, user.*System role not supported.*fold_system"
    ):
        render(chat, make(chat_template="llama2"))


def test_template_that_rewrites_earlier_turns_trains_what_each_turn_shows(make):
    # As reasoning models do: the thinking of an earlier answer is left out once another turn follows.
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
        "{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert render(CHAT, make(chat_template=template)).supervised == (
        "Four.<|im_end|>",
        "<think></think>Yes<|im_end|>",
    )
    assert render(CHAT, make(chat_template=template), turns="last").supervised == (
        "<think></think>Yes<|im_end|>",
    )


def test_template_that_drops_the_answer_is_refused_axolotl_1137(make):
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['value'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(ValueError, match=r"turn 1: .*doesn't show the answer 'Four\.'"):
        render(CHAT, make(chat_template=template))


def test_template_without_an_end_token_is_refused(make):
    template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
        + ("{% if add_generation_prompt %}assistant: {% endif %}")
    )
    with pytest.raises(ValueError, match="no special token that stops generation"):
        render(CHAT, make(chat_template=template))


def test_no_chat_template_and_no_tokenizer_are_named(make):
    with pytest.raises(ValueError, match=r"no chat template.*set template to 'alpaca'"):
        render(CHAT, make(chat_template=None))
    with pytest.raises(ValueError, match="needs a tokenizer"):
        render(CHAT)
    with pytest.raises(ValueError, match="template='vicuna': expected one of model, chatml, alpaca"):
        render(CHAT, template="vicuna")


def test_alpaca_with_and_without_input(tokenizer):
    with_input = render(
        to_example({"instruction": "Add.", "input": "2, 3", "output": "5"}), tokenizer, "alpaca"
    )
    assert with_input.text == (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n"
        "### Input:\n2, 3\n\n### Response:\n5<|im_end|>"
    )
    without = render(to_example({"instruction": "Add.", "input": None, "output": "5"}), tokenizer, "alpaca")
    assert "### Input" not in without.text
    assert "None" not in without.text
    assert with_input.supervised == without.supervised == ("5<|im_end|>",)


def test_braces_and_template_words_in_a_value_stay_as_they_are(tokenizer):
    row = {"instruction": "Fill {input} in {}.", "input": "{instruction} %s", "output": "{output}"}
    text = render(to_example(row), tokenizer, "alpaca").text
    assert "### Instruction:\nFill {input} in {}.\n\n### Input:\n{instruction} %s\n\n" in text
    assert text.endswith("{output}<|im_end|>")


def test_alpaca_refuses_a_chat_and_a_missing_end_token(tokenizer):
    with pytest.raises(ValueError, match="one user and one assistant turn, found user, assistant, user"):
        render(CHAT, tokenizer, "alpaca")
    with pytest.raises(ValueError, match="pass a tokenizer that has an eos_token"):
        render(to_example({"instruction": "a", "output": "b"}), None, "alpaca")


def test_bos_is_written_once_where_the_tokenizer_wants_one(make, tokenizer):
    row = to_example({"instruction": "a", "output": "b"})
    assert render(row, make(adds_bos=True), "chatml").text.startswith("<s><|im_start|>user")
    assert render(row, make(adds_bos=True), "chatml").supervised == ("b<|im_end|>",)
    assert render(row, tokenizer, "chatml").text.startswith("<|im_start|>user")
