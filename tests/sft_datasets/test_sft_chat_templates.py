"""The chat templates that TRL ships: what is learned is exactly the answers and what ends them, or the row is refused."""

import copy
import importlib.util
import re
from pathlib import Path

import pytest
from onegpu.sft_datasets import to_example
from onegpu.sft_datasets.templates import ChatTemplate

SPEC = importlib.util.find_spec("trl")
FOLDER = Path(SPEC.origin).parent / "chat_templates" if SPEC else None
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja")) if FOLDER else []
pytestmark = pytest.mark.skipif(not NAMES, reason="TRL isn't installed")

TOKENS = re.compile(
    r"<\|[^|<>{}\s]+\|>|<｜[^｜<>]+｜>|\[/?[A-Z_]+\]|</?[a-z_]+(?:_[a-z]+)*>|<\|[a-z_]+>|<[a-z_]+\|>"
)
ENDS = (
    "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|return|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>", "<|im_end|>",
)  # fmt: skip
# Further ids that the generation config of such a model stops at.
STOPS = {"glm4moe": ("<|user|>", "<|observation|>"), "gptoss": ("<|call|>",), "gemma4": ("<|tool_response>",)}
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
MAY_REFUSE = re.compile(
    r"no place for the row's tools|no place for the tool call|leaves out the reasoning|refuses the roles"
    r"|no special token that stops generation"
)


@pytest.fixture
def chat_template(make):
    def build(name):
        source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        tokenizer = make(chat_template=source)
        tokenizer.add_tokens(sorted(set(TOKENS.findall(source))), special_tokens=True)
        tokenizer.add_special_tokens({"eos_token": next((end for end in ENDS if end in source), "</s>")})
        stops = next((stops for start, stops in STOPS.items() if name.startswith(start)), ())
        return ChatTemplate(tokenizer, stop_tokens=stops)

    return build


def chat(turns, system, tools, reasoning):
    messages = [{"role": "system", "content": "Be brief and kind to all who ask."}] if system else []
    answers = []
    for i in range(turns):
        messages.append({"role": "user", "content": f"Question number {i} for you?"})
        thought = {"reasoning_content": f"Thought {i}."} if reasoning else {}
        if tools and i == 0:
            call = {
                "id": "call12345",
                "type": "function",
                "function": {"name": "lookup", "arguments": {"word": "tree"}},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call], **thought})
            answers.append("tree")
            messages.append(
                {"role": "tool", "content": "found it", "name": "lookup", "tool_call_id": "call12345"}
            )
            thought = {}
        messages.append({"role": "assistant", "content": f"Answer {i} it is.", **thought})
        answers.append(f"Answer {i} it is.")
    return to_example({"messages": messages, **({"tools": [TOOL]} if tools else {})}), answers


@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_is_the_answers_and_their_ends(chat_template, name):
    template = chat_template(name)
    assert template.ends
    trained = 0
    for turns, system, tools, reasoning in (
        (n, s, t, r) for n in (1, 2, 3) for s in (False, True) for t in (False, True) for r in (False, True)
    ):
        example, answers = chat(turns, system, tools, reasoning)
        for which in ("all", "last"):
            try:
                learned = template.render(example, which).supervised
            except ValueError as error:
                assert MAY_REFUSE.search(str(error)), error  # noqa: PT017
                continue
            trained += 1
            wanted = answers if which == "all" else answers[-1:]
            assert len(learned) == len(wanted)
            for text, answer in zip(learned, wanted, strict=True):
                assert text.endswith(template.ends)
                assert text.count(answer) == 1
                after = text[text.index(answer) + len(answer) :]
                assert not re.search(r"Answer|Question|Thought|found it|kind to all", after), text
                assert not re.search(r"Question|found it|kind to all", text), text
                assert "Answer" in text[: len(text) - len(after)] or "lookup" in text
            if reasoning and not tools:
                assert f"Thought {turns - 1}." in learned[-1]
    if name == "glm4moe":  # it writes nothing after a last answer: TRL's own training template adds the end
        assert not trained
    else:
        assert trained >= 6  # at least each plain chat of one to three turns


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n in ("qwen3", "phi3", "deepseek_r1_distill", "gptoss")]
)
def test_templates_that_were_refused_for_no_reason_train_right(chat_template, name):
    """Earlier thinking stripped; eos after a partial rendering; a generation prompt that opens a thought; channels."""
    learned = (
        chat_template(name)
        .render(chat(2, False, False, False)[0], "last" if name == "gptoss" else "all")
        .supervised
    )
    assert (
        learned
        == {
            "qwen3": ("Answer 0 it is.<|im_end|>", "<think>\n\n</think>\n\nAnswer 1 it is.<|im_end|>"),
            "phi3": ("Answer 0 it is.<|end|>", "Answer 1 it is.<|end|>"),
            "deepseek_r1_distill": (
                "Answer 0 it is.<｜end▁of▁sentence｜>",
                "Answer 1 it is.<｜end▁of▁sentence｜>",
            ),
            "gptoss": ("<|channel|>final<|message|>Answer 1 it is.<|return|>",),
        }[name]
    )


TEXTS = (
    ("What is it?", "It is this."),
    ("  Asked with space around? \n", " Answered so. \n"),
    ("/no_think Think or not?", "<think>\nI think.\n</think>\n\nSo it is."),
    ("Why </think> in a question?", "<think>\n\n</think>\n\nAnd in an answer."),
    ("한국어로?", "네, 그래요."),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_that_knows_a_frame_gives_what_one_without_gives(chat_template, name):
    """One filling in place of three, and the same text and spans, whatever the turns say."""
    shared = chat_template(name)

    def learned(template, example, turns):
        try:
            return template.render(example, turns)
        except ValueError as error:
            return str(error)

    for system in (False, True):
        for i in range(len(TEXTS)):
            messages = [{"role": "system", "content": TEXTS[i][0]}] if system else []
            for question, answer in (TEXTS[0], TEXTS[i]):
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            for turns in ("last", "all"):
                example = to_example({"messages": messages})
                alone = copy.copy(shared)
                alone._frames = {}
                assert learned(shared, example, turns) == learned(alone, example, turns)
    if name in ("llama3", "qwen2_5", "qwen3", "phi3", "gemma"):
        assert shared._frames
