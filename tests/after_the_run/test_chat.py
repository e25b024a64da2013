"""onegpu chat: what a name stands for, turns, stops, two models side by side, errors in one sentence."""

import io
import json
import shlex
import shutil
import sys

import pytest
import torch
from onegpu import cli
from onegpu.chat import Comparison, Conversation, Reply, Sampling, find_place, open_speaker, run_system_prompt
from onegpu.chat.places import base_of
from onegpu.chat.terminal import answer_once, converse, side_by_side
from onegpu.cli.finetune import next_steps
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import merge_adapter

from .conftest import SYSTEM


def call(monkeypatch, capsys, *args, stdin=None):
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["onegpu", *args])
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    return stop.value.code or 0, captured.out, captured.err


class Echo:
    name = "echo"

    def __init__(self, error=None):
        self.heard, self.error = [], error

    def reply(self, messages, write, sampling=None):
        self.heard.append(list(messages))
        if self.error:
            raise self.error
        write("so ")
        write(messages[-1]["content"])
        return Reply(f"so {messages[-1]['content']}", True, 1)


def test_a_run_its_adapter_and_a_checkpoint_are_found(tiny_run):
    assert find_place(tiny_run) == find_place(tiny_run / "adapter")
    assert find_place(tiny_run).run == tiny_run
    assert find_place(tiny_run / "checkpoint-3").kind == "adapter"
    assert base_of(find_place(tiny_run))[1] == "nf4"


def test_the_system_prompt_of_the_rows_goes_with_the_adapter_and_with_what_it_is_merged_into(
    tiny_run, tmp_path
):
    assert run_system_prompt(find_place(tiny_run)) == SYSTEM
    alone = shutil.copytree(tiny_run / "adapter", tmp_path / "adapter")
    assert run_system_prompt(find_place(alone)) == SYSTEM
    assert run_system_prompt(find_place(merge_adapter(alone, tmp_path / "merged"))) == SYSTEM
    gguf = shutil.copytree(tiny_run, tmp_path / "run") / "export" / "x.gguf"
    gguf.parent.mkdir()
    gguf.touch()
    assert run_system_prompt(find_place(gguf)) == SYSTEM


def test_where_it_isnt_recorded_the_rows_of_the_run_say_it(tiny_run, tmp_path):
    old = shutil.copytree(tiny_run, tmp_path / "run")
    (old / "adapter" / "base_model.json").unlink()
    assert run_system_prompt(find_place(old)) == SYSTEM
    shutil.copytree(old / "adapter", tmp_path / "adapter")
    assert run_system_prompt(find_place(tmp_path / "adapter")) is None


def test_the_next_steps_fit_a_terminal():
    for folder in ("runs/support_triage", "runs/" + "a" * 40):
        steps = next_steps(folder)
        assert max(map(len, steps.splitlines())) <= 80
        assert f"onegpu merge {folder}/adapter" in steps
    assert shlex.split(steps.split("transformers\n")[1].split("\n  #")[0].replace("\\\n", "")) == [
        "onegpu", "merge", f"{folder}/adapter", f"{folder}/merged",
    ]  # fmt: skip


def test_an_unfinished_run_says_how_to_go_on(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "adapter")
    with pytest.raises(ValueError, match=r"isn't finished.*--resume --output-dir .*checkpoint-3$"):
        find_place(tmp_path / "run")


def test_greedy_answers_are_those_of_generate(tiny_run):
    from onegpu.qlora_finetune import generate

    speaker = open_speaker(tiny_run)
    chat = [{"role": "user", "content": "Will it rain?"}]
    parts = []
    reply = speaker.reply(chat, parts.append, Sampling(max_new_tokens=12))
    assert reply.text == generate(speaker.model, speaker.tokenizer, [chat], max_new_tokens=12)[0]
    assert "".join(parts).strip() == reply.text
    assert reply.prompt_tokens == len(speaker.prompt_ids(chat))


def test_the_base_beside_it_is_the_model_without_its_adapters(tiny_run):
    from onegpu import models

    config = json.loads((tiny_run / "finetune_config.json").read_text())
    tuned = open_speaker(tiny_run)
    alone = models.load(config["model"], quantization="nf4")
    ids = torch.tensor([tuned.prompt_ids([{"role": "user", "content": "Question 1: will it rain?"}])])
    seen = []
    keep = tuned.model.get_output_embeddings().register_forward_hook(
        lambda m, args, out: seen.append(out[0, -1])
    )
    for speaker in (tuned, tuned.without_adapters()):
        speaker.reply(
            [{"role": "user", "content": "Question 1: will it rain?"}],
            lambda t: None,
            Sampling(max_new_tokens=1),
        )
    keep.remove()
    with torch.no_grad():
        base = alone.model(ids).logits[0, -1]
    assert torch.allclose(seen[1], base, atol=1e-4)
    assert not torch.allclose(seen[0], base, atol=1e-2)


def test_an_answer_ends_at_the_stop_token(tiny_run):
    speaker = open_speaker(tiny_run)
    end = speaker.tokenizer.eos_token_id
    head = speaker.model.get_output_embeddings()
    always = head.register_forward_hook(
        lambda module, args, out: torch.nn.functional.one_hot(
            torch.full(out.shape[:-1], end), out.shape[-1]
        ).float()
    )
    try:
        reply = speaker.reply(
            [{"role": "user", "content": "Hm?"}], lambda text: None, Sampling(max_new_tokens=9)
        )
    finally:
        always.remove()
    assert (reply.text, reply.stopped) == ("", True)


def test_sampling_is_repeatable_and_differs_by_seed(tiny_run):
    speaker = open_speaker(tiny_run)
    chat = [{"role": "user", "content": "Hm?"}]
    texts = [
        speaker.reply(chat, lambda t: None, Sampling(temperature=2.0, max_new_tokens=12, seed=seed)).text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_conversation_too_long_for_the_model_is_an_error(tiny_run):
    speaker = open_speaker(tiny_run)
    with pytest.raises(ValueError, match=r"tokens and tuned reads 512: start a new one"):
        speaker.reply([{"role": "user", "content": "word " * 600}], lambda text: None)


def test_a_turn_that_fails_is_not_kept():
    talk = Conversation(Echo(error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        talk.say("hello")
    assert talk.messages == []


def test_in_a_comparison_each_side_remembers_its_own_answers():
    class Loud(Echo):
        def reply(self, messages, write, sampling=None):
            super().reply(messages, write)
            return Reply(messages[-1]["content"].upper(), True, 1)

    left, right = Echo(), Loud()
    both = Comparison(Conversation(left), Conversation(right))
    both.say("one")
    both.say("two")
    assert left.heard[1][1]["content"] == "so one"
    assert right.heard[1][1]["content"] == "ONE"


def test_the_terminal_keeps_turns_and_knows_its_commands(capsys):
    echo = Echo()
    lines = iter(
        ["hello", "again", "/system Be brief.", "third", "/reset", "/nonsense", "/usr/bin is a path", "/quit"]
    )
    converse(Conversation(echo), lambda prompt: next(lines))
    out = capsys.readouterr().out
    assert "so hello\n" in out
    assert [m["content"] for m in echo.heard[1]] == ["hello", "so hello", "again"]
    assert [m["content"] for m in echo.heard[2]] == ["Be brief.", "third"]
    assert "no command /nonsense" in out
    assert echo.heard[3][-1]["content"] == "/usr/bin is a path"


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_conversation(capsys):
    lines = iter(["hello"])

    def read(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    converse(Conversation(Echo(error=KeyboardInterrupt())), read)
    assert "the turn is forgotten" in capsys.readouterr().out


def test_columns_hold_wide_letters_and_long_words():
    text = side_by_side(("base", "주문한 상품이 아직"), ("tuned", "x" * 30), width=33)
    rows = text.splitlines()[2:]
    assert [row.split("|")[0].strip() for row in rows] == ["주문한 상품이", "아직"]
    assert [row.split("|")[1].strip() for row in rows] == ["x" * 15, "x" * 15]


def test_prompt_stdin_and_compare_on_the_command_line(monkeypatch, capsys, tiny_run):
    status, out, _ = call(
        monkeypatch, capsys, "chat", str(tiny_run), "--prompt", "Rain?", "--max-new-tokens", "2", "--compare"
    )
    assert status == 0
    assert out.splitlines()[0].split() == ["base", "|", "tuned"]
    once = call(monkeypatch, capsys, "chat", str(tiny_run), "--prompt", "Rain?", "--max-new-tokens", "4")
    read = call(monkeypatch, capsys, "chat", str(tiny_run), "--max-new-tokens", "4", stdin="Rain?\n")
    assert once[:2] == read[:2]
    assert once[0] == 0


def test_an_answer_that_was_cut_says_so_beside_it(capsys):
    class Cut(Echo):
        def reply(self, messages, write, sampling=None):
            return Reply("so", False, 1)

    answer_once(Conversation(Cut()), "hello")
    captured = capsys.readouterr()
    assert captured.out == "\n"
    assert "cut at 512 tokens: --max-new-tokens" in captured.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere/run/x"], "no folder nowhere/run/x"),
        (["smolm2-135"], "near matches"),
        (["missing.gguf"], "no file missing.gguf"),
        (["{run}/report.json"], "is a file: expected the folder of a run"),
        (["{run}", "--prompt", " "], "the prompt is empty"),
        (["{model}", "--compare", "--prompt", "x"], "--compare needs a run or an adapter"),
        (["{model}", "--base", "y", "--prompt", "x"], "--base is for adapters"),
        (["{run}", "--prompt", "x", "--temperature", "-1"], "temperature is -1.0, expected 0 or more"),
        (["{run}", "--prompt", "x", "--base", "{other}"], "doesn't fit"),
        (["{lost}", "--prompt", "x"], "which isn't here"),
        (["{plain}", "--prompt", "x"], "has no chat template"),
    ],
)
def test_what_cannot_be_talked_to_is_one_sentence(
    monkeypatch, capsys, tiny_run, tiny_folder, tmp_path, args, message
):
    tokenizer = tiny_tokenizer()
    tiny_model(hidden_size=128).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    tiny_model().save_pretrained(tmp_path / "plain")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "plain")
    shutil.copytree(tiny_run / "adapter", tmp_path / "lost")
    for name, key in (("adapter_config.json", "base_model_name_or_path"), ("base_model.json", "model")):
        config = json.loads((tmp_path / "lost" / name).read_text())
        (tmp_path / "lost" / name).write_text(json.dumps(config | {key: str(tmp_path / "gone")}))
    places = {
        "run": tiny_run, "model": tiny_folder, "other": tmp_path / "other", "lost": tmp_path / "lost",
        "plain": tmp_path / "plain",
    }  # fmt: skip
    status, out, err = call(
        monkeypatch, capsys, "chat", *(arg.format(**places) for arg in args), stdin="hello"
    )
    assert status == 1
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert message in err
