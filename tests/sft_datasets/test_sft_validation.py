import unicodedata

import pytest
from onegpu.sft_datasets import RowError, normalise, to_example, validate

GOOD = {"instruction": "Name a fruit.", "output": "Apple"}


def alpaca(output, instruction="Name a fruit.", text_input=""):
    return {"instruction": instruction, "input": text_input, "output": output}


def test_report_counts_rows_and_codes():
    report = validate([GOOD, alpaca(""), alpaca("N/A"), alpaca(None), alpaca("a<|im_end|>")])
    assert (report.rows, report.clean_rows, report.bad_rows, report.ok) == (5, 1, 3, False)
    assert report.counts == {"empty_answer": 2, "placeholder_answer": 1, "special_token_in_text": 1}
    assert [problem.row for problem in report.problems] == [1, 2, 3, 4]
    assert str(report).startswith("5 rows: 1 clean, 3 can't be trained on, 1 with warnings only")


@pytest.mark.parametrize("output", ["", "   ", "<No Output>", "N/A", "<noinput>"])
def test_empty_outputs_are_rejected_with_a_code_alpaca_lora_32(output):
    assert set(validate([alpaca(output)]).counts) <= {"empty_answer", "placeholder_answer"}
    assert not validate([alpaca(output)]).ok


def test_instructions_merged_into_an_answer_are_flagged_alpaca_data_cleaned():
    merged = "Apple\n##\n18. Instruction: Name a tree.\n18. Input:\nnone\n18. Output: Oak"
    report = validate([alpaca(merged)])
    assert report.counts == {"merged_instructions": 1}
    assert "row 0, field 'turn 1 (assistant)': found '18. Instruction:'" in str(report.problems[0])
    assert not validate([alpaca("Steps:\n1. Wash it.\n2. Cut it.")]).counts


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (alpaca("bell \x07"), "control_characters"),
        (alpaca("broken \ufffd letter"), "control_characters"),
        (alpaca("caf\\u00e9"), "control_characters"),
        (alpaca("It is so.", "Summarise https://example.org/a"), "web_reference"),
        (alpaca("Here it is.", "Draw a picture of a cat."), "image_request"),
        (alpaca("```python\n```"), "empty_code"),
        (alpaca("Apple", text_input="<noinput>"), "placeholder_input"),
        (alpaca("Name a fruit. "), "answer_repeats_question"),
        (alpaca("[INST] hi"), "special_token_in_text"),
    ],
)
def test_each_warning_leaves_the_row_trainable(row, code):
    report = validate([row])
    assert (report.counts, report.ok, report.clean_rows) == ({code: 1}, True, 0)
    (problem,) = report.problems
    assert all((problem.field, problem.found, problem.expected, problem.fix))
    assert str(problem) == (
        f"row 0, field {problem.field!r}: found {problem.found}, expected {problem.expected}. {problem.fix}"
    )


@pytest.mark.parametrize(
    "text", ["Tab\tand\nnewline", "한국어 é 😀", "a < b </b>", "C:\\users", "100 % sure"]
)
def test_ordinary_text_raises_no_warning(text):
    assert validate([alpaca(text)]).clean_rows == 1


def test_strict_raises_at_the_first_error_only():
    with pytest.raises(RowError, match="row 1, field 'output'"):
        validate([GOOD, alpaca(""), alpaca(None)], strict=True)
    assert validate([GOOD, alpaca("[INST]")], strict=True).ok


def test_kept_problems_are_bounded_and_all_are_counted():
    report = validate((alpaca("") for _ in range(50)), keep=3)
    assert (len(report.problems), report.counts["empty_answer"]) == (3, 50)


def test_every_problem_of_a_row_is_reported():
    row = {"messages": [{"role": "bot", "content": "x"}, {"role": "user", "content": ""}]}
    codes = [problem.code for problem in validate([row]).problems]
    assert codes == ["unknown_role", "empty_turn", "no_answer"]


def test_report_renders_as_html_with_escaped_text():
    html = validate([alpaca("<s>a</s>")])._repr_html_()
    assert "<th>row</th>" in html
    assert "&lt;s&gt;" in html


# --- normalise


def chat(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def turns(example):
    return [(message["role"], message["content"]) for message in example.messages]


def test_nothing_changes_without_a_named_repair():
    row = alpaca("  Apple\r\n", text_input=" x ")
    done = normalise([row])
    assert done.examples == (to_example(row),)
    assert (done.changes, done.dropped) == ({}, {})


def test_turns_of_one_role_are_merged_unsloth_334():
    row = chat(("user", "Hi."), ("user", "2+2?"), ("assistant", "4"))
    with pytest.raises(RowError, match=r"turn 1.*merge_turns"):
        normalise([row])
    done = normalise([row], merge_turns=True)
    assert turns(done.examples[0]) == [("user", "Hi.\n\n2+2?"), ("assistant", "4")]
    assert done.changes == {"merge_turns": 1}


def test_two_results_of_tools_stay_two_turns():
    row = chat(
        ("user", "Sums?"), ("assistant", "add twice"), ("tool", "4"), ("tool", "6"), ("assistant", "4, 6")
    )
    assert [role for role, _ in turns(normalise([row], merge_turns=True).examples[0])].count("tool") == 2


def test_system_is_folded_into_the_first_user_turn_transformers_28366():
    row = chat(("system", "Be brief."), ("user", "2+2?"), ("assistant", "4"))
    done = normalise([row, GOOD], fold_system=True)
    assert turns(done.examples[0]) == [("user", "Be brief.\n\n2+2?"), ("assistant", "4")]
    assert done.changes == {"fold_system": 1}


def test_leading_answer_and_unanswered_turns_are_dropped_axolotl_723():
    row = chat(("assistant", "Welcome."), ("user", "2+2?"), ("assistant", "4"), ("user", "Thanks"))
    done = normalise([row], drop_leading_answer=True, drop_unanswered=True)
    assert turns(done.examples[0]) == [("user", "2+2?"), ("assistant", "4")]
    assert done.changes == {"drop_leading_answer": 1, "drop_unanswered": 1}


def test_text_repairs_touch_text_only_where_needed():
    row = alpaca("\ufeffApple\x07 \r\npie ", "Name\tit.", unicodedata.normalize("NFD", " 한 "))
    done = normalise([row], strip=True, clean_characters=True, nfc=True)
    assert turns(done.examples[0])[1] == ("assistant", "Apple \npie")
    assert done.examples[0].input == "한"  # one character, not three
    assert set(done.changes) == {"strip", "clean_characters", "nfc"}


def test_rows_that_stay_bad_are_dropped_and_counted_when_asked():
    done = normalise([GOOD, alpaca(""), {"text": "x"}, alpaca("N/A")], drop_bad=True)
    assert len(done) == 1
    assert done.dropped == {"empty_answer": (1,), "unknown_format": (2,), "placeholder_answer": (3,)}
    assert "dropped, empty_answer: 1 rows" in str(done)


def test_an_answer_emptied_by_a_repair_is_found():
    with pytest.raises(RowError, match="expected an answer"):
        normalise([alpaca("\x07")], clean_characters=True)
