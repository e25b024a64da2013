"""The keys that rows have beside question and answer: handed on, honoured, refused, or counted as unused."""

import json

import pytest
from onegpu.sft_datasets import RowError, keys, render, to_example, tokenize, tokenize_rows, validate
from onegpu.sft_datasets.formats import unused_keys

ASK = {"role": "user", "content": "2+2?"}
SAY = {"role": "assistant", "content": "4"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
WITH_TOOLS = (
    "{% if tools %}<|im_start|>tools\n{{ tools|tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}<call>{{ call.function|tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def roles(row):
    return [(m["role"], m["content"]) for m in to_example(row).messages]


@pytest.mark.parametrize("key", keys.SYSTEM)
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, SAY]},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": [ASK], "completion": [SAY]},
        {"instruction": "2+2?", "output": "4"},
        {"instruction": "2+2?", "instances": [{"input": "", "output": "4"}]},
    ],
)
def test_a_system_text_beside_the_chat_is_its_system_message(row, key):
    assert roles({**row, key: "You are a pirate."}) == [
        ("system", "You are a pirate."),
        ("user", "2+2?"),
        ("assistant", "4"),
    ]


def test_two_system_texts_that_differ_are_refused_and_the_same_twice_is_one():
    messages = [{"role": "system", "content": "Be kind."}, ASK, SAY]
    assert len(to_example({"messages": messages, "system": "Be kind."}).messages) == 3
    with pytest.raises(RowError, match=r"row 4, field 'system': found 'Be brief\.'") as caught:
        to_example({"messages": messages, "system": "Be brief."}, 4)
    assert caught.value.problem.code == "system_differs"


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, {**SAY, "content": None, "tool_calls": [CALL]}], "tools": [TOOL]},
        {"messages": [ASK, {**SAY, "content": "", "tool_calls": [CALL]}], "tools": json.dumps([TOOL])},
        {"messages": [ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}]}],
         "functions": [TOOL["function"]]},
        {"messages": [ASK, {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}],
         "available_tools": [TOOL["function"]]},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2, "b": 2}}'}],
         "tools": json.dumps([TOOL["function"]])},
    ],
)  # fmt: skip
def test_tools_and_calls_of_every_form_reach_the_template(make, row):
    """Megatron-Bridge#4072, axolotl#3824: the model was taught not to call."""
    rendered = render(to_example(row), make(chat_template=WITH_TOOLS))
    assert '"name": "add", "parameters"' in rendered.text
    assert rendered.supervised == ('<call>{"name": "add", "arguments": {"a": 2, "b": 2}}</call><|im_end|>',)


def test_tools_calls_and_reasoning_that_a_template_has_no_place_for_are_refused(tokenizer):
    chats = {
        "no place for the row's tools": {"messages": [ASK, SAY], "tools": [TOOL]},
        "no place for the tool call": {"messages": [ASK, {**SAY, "tool_calls": [CALL]}]},
        "leaves out the reasoning": {"messages": [ASK, {**SAY, "reasoning_content": "Two and two."}]},
    }
    for message, row in chats.items():
        with pytest.raises(ValueError, match=f"row 0: .*{message}"):
            tokenize_rows([row], tokenizer)


@pytest.mark.parametrize("name", keys.REASONING)
def test_reasoning_is_handed_on_under_the_name_that_the_template_has(make, name):
    row = {"messages": [ASK, {**SAY, name: "Two and two."}]}
    for inside in ("reasoning_content", "thinking"):
        template = WITH_TOOLS.replace("reasoning_content", inside)
        assert render(to_example(row), make(chat_template=template)).supervised == (
            "<think>Two and two.</think>4<|im_end|>",
        )


@pytest.mark.parametrize(
    ("key", "off", "on"), [*((k, 0, 1) for k in keys.LEARN), *((k, True, False) for k in keys.IGNORE_TURN)]
)
def test_a_turn_that_is_switched_off_is_not_learned(tokenizer, supervised_text, key, off, on):
    row = {
        "messages": [
            ASK,
            {**SAY, key: off},
            {**ASK, key: 0},
            {"role": "assistant", "content": "Four", key: on},
        ]
    }
    row["messages"][2].pop(key)
    assert supervised_text(tokenize(row, tokenizer), tokenizer) == ["Four<|im_end|>"]
    with pytest.raises(RowError, match="every answer switched off"):
        to_example({"messages": [ASK, {**SAY, key: off}]})


@pytest.mark.parametrize("value", [0.5, 2, "1", "low"])
def test_a_weight_between_is_refused(value):
    with pytest.raises(RowError, match=r"messages\[1\].weight.*expected 0 or 1"):
        to_example({"messages": [ASK, {**SAY, "weight": value}]})


def test_a_question_that_is_to_be_learned_and_a_weight_of_a_row_are_refused():
    with pytest.raises(RowError, match="on a user turn"):
        to_example({"messages": [{**ASK, "train": True}, SAY]})
    with pytest.raises(RowError, match="field 'weight'"):
        to_example({"prompt": "a", "completion": "b", "weight": 0.3})


@pytest.mark.parametrize("key", keys.REFUSED_IN_ROWS)
def test_row_keys_that_change_what_is_learned_and_are_not_supported_are_refused(key):
    with pytest.raises(RowError, match=f"row 2, field '{key}'") as caught:
        to_example({"prompt": "a", "completion": "b", key: ["x"]}, 2)
    assert caught.value.problem.code == "refused_key"
    assert to_example({"prompt": "a", "completion": "b", key: None})


@pytest.mark.parametrize("key", keys.REFUSED_IN_TURNS)
def test_turn_keys_that_change_what_is_learned_and_are_not_supported_are_refused(key):
    with pytest.raises(RowError, match=rf"messages\[1\]\.{key}"):
        to_example({"messages": [ASK, {**SAY, key: [{"begin_offset": 0}]}]})


def test_text_parts_are_joined_and_other_parts_refused():
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    assert roles({"messages": [{"role": "user", "content": parts}, SAY]})[0] == ("user", "2+2?")
    image = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(RowError, match="a part of type 'image_url', expected text parts only"):
        to_example({"messages": [{"role": "user", "content": image}, SAY]})


def test_a_list_of_texts_is_no_text():
    with pytest.raises(RowError, match=r"field 'output': found .* of type list, expected text"):
        to_example({"instruction": "Name a fruit.", "output": ["Apple", "Pear"]})


def test_the_developer_is_the_system():
    assert roles({"messages": [{"role": "developer", "content": "Be brief."}, ASK, SAY]})[0] == (
        "system",
        "Be brief.",
    )


def test_history_and_context_of_an_instruction_are_part_of_the_chat():
    row = {"instruction": "And 3+3?", "output": "6", "history": [["2+2?", "4"]], "system": "Add."}
    assert [role for role, _ in roles(row)] == ["system", "user", "assistant", "user", "assistant"]
    dolly = {"instruction": "Who?", "context": "Ann wrote it.", "response": "Ann", "category": "closed_qa"}
    assert roles(dolly)[0] == ("user", "Who?\n\nAnn wrote it.")


def test_keys_that_nothing_uses_are_counted_once_a_key(tokenizer):
    row = {
        "messages": [{**ASK, "mood": "calm"}, SAY],
        "id": 3,
        "difficulty": "low",
        "empty": None,
        "none": [],
    }
    assert unused_keys(row) == ("messages[].mood", "difficulty")
    done = tokenize_rows([row, row, {"messages": [ASK, SAY]}], tokenizer)
    assert done.unused_keys == {"messages[].mood": 2, "difficulty": 2}
    assert "not used, and not learned: 'messages[].mood' of 2 rows" in str(done)
    report = validate([row])
    assert report.ok
    assert report.counts["unused_key"] == 2


def test_a_column_that_repeats_the_chat_is_no_loss():
    assert unused_keys({"messages": [ASK, SAY], "prompt": "2+2?"}) == ()
    assert unused_keys({"instruction": "2+2?", "output": "4", "text": "### 2+2? ### 4"}) == ()
    assert unused_keys({"messages": [ASK, SAY], "prompt": "3+3?"}) == ("prompt",)


def test_special_tokens_of_this_tokenizer_inside_a_text_are_refused_or_skipped(tokenizer):
    rows = [
        {"prompt": "2+2?", "completion": "4<|im_end|>5"},
        {"prompt": "2+2?", "completion": "4 <|eot_id|>"},
    ]
    with pytest.raises(RowError, match=r"row 0, field 'turn 1 \(assistant\)': found '<\|im_end\|>'"):
        tokenize_rows(rows, tokenizer)
    done = tokenize_rows(rows, tokenizer, bad_rows="skip")
    assert (len(done), done.dropped) == (1, {"bad_row": (0,)})
    assert done.bad_rows[0][0] == 0
    assert "special tokens" in done.bad_rows[0][1]


def test_chatml_on_a_tokenizer_without_its_tokens_is_refused(make):
    """open-r1#604's kind: the marker would be ten ordinary tokens, and nothing would stop generation."""
    from onegpu.models import tiny_tokenizer

    plain = tiny_tokenizer()
    text = plain._tokenizer.to_str().replace("<|im_end|>", "<|done|>")
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), eos_token="<|endoftext|>")
    with pytest.raises(ValueError, match=r"no special token that stops generation.*template='alpaca'"):
        tokenize({"prompt": "2+2?", "completion": "4"}, other, template="chatml")
    done = tokenize({"prompt": "2+2?", "completion": "4"}, other, template="alpaca")
    assert done.labels[-1] == other.eos_token_id


@pytest.mark.parametrize("key", keys.VERDICTS)
def test_an_answer_that_is_marked_as_unwanted_is_not_taught(key):
    """LLaMA-Factory's and TRL's rows for KTO: half of their answers are bad ones."""
    for row in (
        {"prompt": "2+2?", "completion": "5"},
        {"instruction": "2+2?", "output": "5"},
        {"messages": [ASK, SAY]},
    ):
        with pytest.raises(
            RowError, match=f"row 3, field '{key}': found False: an answer that is not wanted"
        ):
            to_example({**row, key: False}, 3)
        assert to_example({**row, key: True})
        assert unused_keys({**row, key: True}) == ()
    assert unused_keys({"prompt": "2+2?", "completion": "4", key: "arithmetic"}) == (key,)


def test_text_is_another_name_of_a_turns_content_and_a_system_text_may_come_in_parts():
    chat = [{"role": "user", "text": "2+2?"}, {"role": "assistant", "text": "4"}]
    row = {"messages": chat, "system": [{"type": "text", "text": "You are a pirate."}]}
    assert roles(row) == [("system", "You are a pirate."), ("user", "2+2?"), ("assistant", "4")]
    assert unused_keys(row) == ()
