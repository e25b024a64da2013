import math

import pytest
from onegpu.sft_datasets import Example, RowError, format_of, to_example

HI = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})


@pytest.mark.parametrize(
    "row",
    [
        {"messages": list(HI)},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"prompt": "hi", "completion": "hello"},
        {"prompt": [HI[0]], "completion": [HI[1]]},
        {"instruction": "hi", "input": "", "output": "hello"},
        {"instruction": "hi", "response": "hello"},
        {"messages": None, "instruction": "hi", "output": "hello"},  # a mixed table, read from Arrow
        {"messages": list(HI), "prompt": "hi", "prompt_id": "1"},  # as UltraChat has it
    ],
)
def test_every_format_gives_the_same_messages(row):
    assert to_example(row).messages == HI


def test_alpaca_input_follows_the_instruction_and_is_kept_apart():
    example = to_example({"instruction": "Add.", "input": "2, 3", "output": "5"})
    assert example.messages[0]["content"] == "Add.\n\n2, 3"
    assert example.input == "2, 3"


@pytest.mark.parametrize(
    "nothing",
    [None, math.nan, "", "  \n", "<noinput>", "noinput", "No input", "<no input>", "N/A", "None", "nan"],
)
def test_blank_and_placeholder_inputs_are_no_input_unsloth_10813(nothing):
    example = to_example({"instruction": "Say four.", "input": nothing, "output": "4"})
    assert example == Example(
        ({"role": "user", "content": "Say four."}, {"role": "assistant", "content": "4"})
    )


@pytest.mark.parametrize("answer", ["", "   ", "<No Output>", "N/A", "<noinput>", None, math.nan])
def test_empty_and_placeholder_answers_are_refused_stanford_alpaca_265(answer):
    with pytest.raises(RowError, match=r"row 3, field 'output': found .*, expected an answer"):
        to_example({"instruction": "Say four.", "output": answer}, row_index=3)


def test_a_number_from_a_csv_reader_is_refused_and_not_printed_as_text():
    with pytest.raises(RowError, match=r"field 'output': found 4.0 of type float, expected text.*dtype=str"):
        to_example({"instruction": "add", "output": 4.0})


@pytest.mark.parametrize("answer", ["null", "NA", "0", "None of them."])
def test_answers_that_only_look_like_nothing_are_answers(answer):
    assert to_example({"instruction": "say it", "output": answer}).messages[1]["content"] == answer


@pytest.mark.parametrize("name", ["gpt", "chatgpt", "assistant", "model"])
def test_sharegpt_answer_roles_axolotl_1137(name):
    row = {"conversations": [{"from": "human", "value": "hi"}, {"from": name, "value": "hello"}]}
    assert to_example(row).messages == HI


@pytest.mark.parametrize("name", ["tool", "function", "observation"])
def test_sharegpt_tool_roles_axolotl_886(name):
    row = {
        "conversations": [
            {"from": "human", "value": "sum?"},
            {"from": "gpt", "value": "add(2, 2)"},
            {"from": name, "value": "4"},
            {"from": "gpt", "value": "It is 4."},
        ]
    }
    assert [m["role"] for m in to_example(row).messages] == ["user", "assistant", "tool", "assistant"]


def test_unknown_role_is_named_with_its_turn():
    row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "bard", "value": "hello"}]}
    with pytest.raises(RowError, match=r"row 5, field 'conversations\[1\]': found role 'bard'"):
        to_example(row, row_index=5)


@pytest.mark.parametrize(
    ("roles", "turn"),
    [
        (["user", "user", "assistant"], 1),  # unsloth#334
        (["user", "assistant", "assistant"], 2),
        (["assistant", "user", "assistant"], 0),  # axolotl#723
        (["user", "assistant", "user", "user"], 3),  # smol-course#260
        (["user", "system", "assistant"], 1),
        (["system", "assistant"], 1),
        (["system", "system", "user", "assistant"], 1),
    ],
)
def test_turns_that_do_not_alternate_are_refused_with_the_turn_alignment_handbook_93(roles, turn):
    row = {"messages": [{"role": role, "content": "x"} for role in roles]}
    with pytest.raises(RowError, match=rf"messages\[{turn}\].*turn {turn}") as caught:
        to_example(row)
    assert caught.value.problem.code == "roles_not_alternating"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"question": "2+2?", "answer": "4"}, "unknown_format"),
        ({}, "unknown_format"),
        ("just text", "not_a_mapping"),
        ({"messages": []}, "no_messages"),
        ({"messages": "hi"}, "not_messages"),
        ({"messages": ["hi", "hello"]}, "not_messages"),
        ({"messages": [HI[0]]}, "no_answer"),
        ({"messages": [HI[0], {"role": "assistant", "content": None}]}, "empty_answer"),
        ({"messages": [{"role": "user", "content": None}, HI[1]]}, "empty_turn"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, HI[1]]}, "not_text"),
        ({"prompt": "hi", "completion": None}, "empty_answer"),
        ({"prompt": "hi", "completion": 4}, "not_text"),
        ({"prompt": ["hi"], "completion": "4"}, "not_messages"),
        ({"instruction": None, "output": "4"}, "empty_instruction"),
        ({"instruction": "hi", "input": 3, "output": "4"}, "not_text"),
    ],
)
def test_each_kind_of_bad_row_has_its_code(row, code):
    with pytest.raises(RowError) as caught:
        to_example(row, row_index=0)
    problem = caught.value.problem
    assert problem.code == code
    assert all((problem.field, problem.found, problem.expected, problem.fix))
    assert str(caught.value) == (
        f"row 0, field {problem.field!r}: found {problem.found}, expected {problem.expected}. {problem.fix}"
    )


def test_an_example_passes_through():
    example = Example(HI)
    assert to_example(example) is example


def test_format_of_names_the_format():
    assert [
        format_of({"messages": []}),
        format_of({"prompt": "a", "completion": "b"}),
        format_of({"text": "a"}),
    ] == [
        "messages",
        "prompt_completion",
        None,
    ]
