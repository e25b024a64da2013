"""Stop, resume, and what can be wrong in between: signals, damage, changed rows, a full disk, two processes."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from chats import chat
from onegpu.gpu_memory import TrainingSetup
from onegpu.models import load_tokenizer
from onegpu.qlora_finetune import FinetuneConfig, Interrupted, NotSaved, finetune, folders, prepare_data
from onegpu.qlora_finetune import run as run_module
from onegpu.qlora_finetune.lock import only_process
from onegpu.qlora_finetune.memory import memory_setup
from onegpu.qlora_finetune.trainer import QLoraTrainer
from safetensors.torch import load_file
from transformers import AutoConfig

CHECKPOINT_FILES = ("adapter_model.safetensors", "adapter_config.json", "optimizer.pt", "scheduler.pt", "rng_state.pth",
                    "trainer_state.json")  # fmt: skip


@pytest.fixture(scope="module")
def whole(tiny_folder, chats_file, tmp_path_factory):
    """A run of six steps with checkpoints after 2, 4 and 6: its config, result and folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    config = FinetuneConfig(
        model=str(tiny_folder), data=str(chats_file), output_dir=str(folder), max_length=128, max_steps=6, save_steps=2,
        learning_rate=1e-2, warmup_steps=0, lora_r=4, lora_alpha=8, lora_dropout=0.1, max_new_tokens=4, save_total_limit=3,
    )  # fmt: skip
    return config, finetune(config), folder


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of that run to break, and its config."""
    config, _, folder = whole
    shutil.copytree(folder, tmp_path / "run")
    return dataclasses.replace(config, output_dir=str(tmp_path / "run")), tmp_path / "run"


def unfinished(folder, *checkpoints):
    """Take away what comes after the checkpoints that are named."""
    shutil.rmtree(folder / "adapter")
    (folder / "report.json").unlink()
    for path in folder.glob("checkpoint-*"):
        if int(path.name.split("-")[1]) not in checkpoints:
            shutil.rmtree(path)


def same(result, whole):
    _, wanted, folder = whole
    assert result.losses == wanted.losses
    assert (result.steps, result.tokens) == (wanted.steps, wanted.tokens)
    mine, theirs = (
        load_file(Path(f) / "adapter_model.safetensors") for f in (result.adapter_dir, folder / "adapter")
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_run_at_its_last_step_is_finished_without_another(copy, whole, monkeypatch):
    config, folder = copy
    unfinished(folder, 2, 4, 6)
    monkeypatch.setattr(QLoraTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    for _ in range(2):
        said = []
        same(finetune(config, resume=True, say=said.append), whole)
        (folder / "report.json").unlink()
    assert "checkpoint-6 is of the last step: nothing more to train" in said


def test_a_finished_run_is_read_not_run(copy, whole, monkeypatch):
    config, _ = copy
    monkeypatch.setattr(run_module, "prepare_data", lambda *a: pytest.fail("read the rows again"))
    result = finetune(config, resume=True)
    assert dataclasses.replace(result, config={}) == dataclasses.replace(whole[1], config={})


def test_an_early_stop_is_the_end_and_the_best_adapter_is_kept(
    tiny_config, chats_file, tmp_path, monkeypatch
):
    config = tiny_config(
        eval_data=str(chats_file),
        eval_steps=1,
        early_stopping_patience=1,
        learning_rate=3.0,
        max_steps=9,
        save_total_limit=9,
    )
    first = finetune(config)
    assert first.steps < 9
    kept = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    (tmp_path / "run" / "report.json").unlink()
    monkeypatch.setattr(QLoraTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    again = finetune(config, resume=True)
    assert again.steps == first.steps
    found = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(kept[name], found[name]) for name in kept)


@pytest.mark.parametrize("file", CHECKPOINT_FILES)
@pytest.mark.parametrize("how", ["empty", "half", "missing"])
def test_each_damage_of_a_checkpoint_is_seen(copy, file, how):
    _, folder = copy
    path = folder / "checkpoint-6" / file
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if how == "half" else b"")
    said = []
    assert folders.last_checkpoint(folder, said.append) == folder / "checkpoint-4"
    assert said == [
        f"checkpoint-6 is damaged ({file} is {'missing' if how == 'missing' else 'incomplete'}): passed over"
    ]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(copy, whole):
    config, folder = copy
    unfinished(folder, 2, 4, 6)
    (folder / "checkpoint-6" / "optimizer.pt").write_bytes(b"")
    (folder / "checkpoint-4" / "trainer_state.json").write_text("")
    said = []
    same(finetune(config, resume=True, say=said.append), whole)
    assert "checkpoint-6 is damaged (optimizer.pt is incomplete): passed over" in said
    assert any(line.endswith("from checkpoint-2") for line in said)


def test_without_a_whole_checkpoint_it_begins_anew(copy, whole):
    config, folder = copy
    unfinished(folder, 4)
    (folder / "checkpoint-4" / "adapter_model.safetensors").write_bytes(b"")
    (folder / "before.json").write_text("")
    said = []
    same(finetune(config, resume=True, say=said.append), whole)
    assert "no whole checkpoint is there: training from the beginning" in said
    assert any("before.json is damaged" in line for line in said)


@pytest.mark.parametrize("file", ["finetune_config.json", "fingerprints.json"])
@pytest.mark.parametrize("content", ["", "{"])
def test_a_damaged_file_of_the_run_is_named(copy, file, content):
    config, folder = copy
    unfinished(folder, 4)
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=f"{file} is damaged .*--overwrite"):
        finetune(config, resume=True)


def test_changed_rows_weights_and_versions_are_named(copy, tmp_path, tiny_folder):
    config, folder = copy
    unfinished(folder, 4)
    saved = json.loads((folder / "fingerprints.json").read_text())
    (folder / "fingerprints.json").write_text(
        json.dumps(saved | {"versions": saved["versions"] | {"torch": "1.0"}})
    )
    said = []
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(chat(i + (i == 3))) + "\n" for i in range(24)))
    (folder / "finetune_config.json").write_text(json.dumps(dataclasses.asdict(config) | {"data": str(rows)}))
    with pytest.raises(ValueError, match="can't be resumed: the tokenized rows are not those"):
        finetune(dataclasses.replace(config, data=str(rows)), resume=True)
    config.save(folder)
    (folder / "fingerprints.json").write_text(json.dumps(saved | {"weights": "0" * 32}))
    with pytest.raises(ValueError, match="the base model's weights are not those"):
        finetune(config, resume=True)
    (folder / "fingerprints.json").write_text(
        json.dumps(saved | {"versions": saved["versions"] | {"torch": "1.0"}})
    )
    finetune(config, resume=True, say=said.append)
    assert any(line.startswith("versions have changed") and "torch 1.0 then" in line for line in said)


@pytest.mark.parametrize(
    ("place", "stage", "what", "signum"),
    [
        ("prepare_data", "preparing the rows", "nothing is saved yet", signal.SIGINT),
        ("use_row_layout", "checking the model", "nothing is saved yet", signal.SIGTERM),
        ("start_output_dir", "checking the model", "nothing is saved yet", signal.SIGINT),
        ("model_card", "saving the adapter", r"checkpoint-6 is saved .*--resume", signal.SIGTERM),
    ],
)
def test_a_signal_at_any_moment_ends_with_its_status_and_what_is_saved(
    tiny_config, monkeypatch, place, stage, what, signum, whole
):
    handler = signal.getsignal(signum)

    def stop(*args, **kwargs):
        os.kill(os.getpid(), signum)
        time.sleep(5)

    monkeypatch.setattr(run_module, place, stop)
    with pytest.raises(Interrupted, match=f"stopped while {stage}; {what}") as stopped:
        finetune(tiny_config())
    assert stopped.value.exit_status == 128 + signum
    assert signal.getsignal(signum) is handler
    monkeypatch.undo()
    finetune(tiny_config(), resume=place == "model_card")


def test_sigterm_in_training_saves_the_step(tiny_config, monkeypatch, tmp_path):
    step = QLoraTrainer.training_step

    def stop(self, *args, **kwargs):
        if self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(QLoraTrainer, "training_step", stop)
    with pytest.raises(Interrupted, match=r"stopped at step 3 of 6; checkpoint-3 is saved") as stopped:
        finetune(tiny_config(save_steps=100))
    assert stopped.value.exit_status == 143
    assert not folders.damage_of(tmp_path / "run" / "checkpoint-3")


def test_the_command_line_ends_with_143_while_loading(tiny_config, tmp_path):
    config = tiny_config()
    code = (
        "import os, signal, sys\n"
        "from onegpu import models\n"
        "models.load = lambda *a, **k: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from onegpu.cli import main\n"
        f"sys.argv = ['onegpu', 'finetune', '--model', {config.model!r}, '--data', {config.data!r}, "
        f"'--output-dir', {config.output_dir!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 143
    assert "stopped while loading the model; nothing is saved yet" in done.stderr
    assert "Traceback" not in done.stderr


class Killed(BaseException):
    """What a SIGKILL leaves on the disk, without a new process for each."""


QUICK_KILLS = (("torch.save", 2), ("save_file", 2), ("json", 4))


@pytest.mark.parametrize(
    ("writer", "at"),
    [
        pytest.param(writer, at, marks=[] if (writer, at) in QUICK_KILLS else pytest.mark.slow)
        for writer in ("torch.save", "save_file", "json")
        for at in (1, 2, 3, 4)
    ],
)
def test_a_kill_inside_a_save_costs_nothing(tiny_config, tmp_path, monkeypatch, whole, writer, at):
    """The file is written by half, then the process is gone."""
    calls = [0]

    def dies(write, path_of):
        def half(*args, **kwargs):
            result = write(*args, **kwargs)
            calls[0] += 1
            if calls[0] == at:
                path = Path(path_of(*args, **kwargs))
                os.truncate(path, path.stat().st_size // 2)
                raise Killed
            return result

        return half

    if writer == "torch.save":
        monkeypatch.setattr(torch, "save", dies(torch.save, lambda obj, f, *a, **k: f))
    elif writer == "json":
        write = Path.write_text
        monkeypatch.setattr(Path, "write_text", dies(write, lambda path, *a, **k: path))
    else:
        import peft.peft_model as module

        monkeypatch.setattr(module, "safe_save_file", dies(module.safe_save_file, lambda t, f, *a, **k: f))
    changes = {"lora_dropout": 0.1, "save_total_limit": 3}
    with pytest.raises(Killed):
        finetune(tiny_config(**changes))
    monkeypatch.undo()
    started = (tmp_path / "run" / "finetune_config.json").is_file()
    same(finetune(tiny_config(**changes), resume=started), whole)


def test_a_full_disk_is_said_in_one_line_and_nothing_is_lost(tiny_config, monkeypatch, whole):
    save = torch.save
    calls = []

    def full(obj, path, *args, **kwargs):
        calls.append(path)
        if len(calls) > 4:
            Path(path).write_bytes(b"PK")
            raise OSError(28, "No space left on device")
        save(obj, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    changes = {"lora_dropout": 0.1, "save_total_limit": 3}
    with pytest.raises(
        NotSaved, match=r"failed while training \(No space left on device\).*checkpoint-2 is saved"
    ):
        finetune(tiny_config(**changes))
    monkeypatch.undo()
    same(finetune(tiny_config(**changes), resume=True), whole)


def test_two_processes_in_one_folder_and_a_lock_that_a_crash_leaves_behind(tiny_config, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom onegpu.qlora_finetune.lock import only_process\n"
        f"with only_process(Path({str(folder)!r})):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process is training into"):
            finetune(tiny_config())
    finally:
        other.kill()
        other.wait()
    with only_process(folder):
        assert (folder / ".lock").exists()
    finetune(tiny_config(max_steps=1))


@pytest.mark.parametrize(
    ("changes", "folder", "rate", "epochs", "length"),
    [
        ({}, "runs/support_triage", 3e-3, 1.3, 512),
        (
            {"model": "Qwen/Qwen2.5-1.5B-Instruct"},
            "runs/support_triage-Qwen2.5-1.5B-Instruct",
            None,
            1.3,
            512,
        ),
        ({"data": "a/my rows.v2.jsonl"}, "runs/my_rows", None, None, None),
        ({"data": "a/rows.jsonl", "model": "/models/tiny/"}, "runs/rows-tiny", None, None, None),
        ({"data": "a/rows.jsonl", "learning_rate": 1e-5, "output_dir": "x"}, "x", 1e-5, None, None),
        ({"data": "a/rows.jsonl", "max_length": 300}, "runs/rows", None, None, 300),
    ],
)
def test_what_is_left_open_follows_data_and_model_and_the_shipped_task_has_its_own(
    changes, folder, rate, epochs, length
):
    config = FinetuneConfig(**changes)
    assert (config.output_dir, config.learning_rate, config.num_train_epochs) == (folder, rate, epochs)
    assert config.max_length == length
    filled, why = config.filled(longest=600, rows=1_000, parameters=8_000_000_000)
    assert filled.learning_rate == (rate or 2e-4)
    assert filled.num_train_epochs == (epochs or 3)
    assert filled.max_length == (length or 1024)
    assert len(why) == (rate is None) + (epochs is None) + (length is None)


@pytest.mark.parametrize(
    ("longest", "positions", "length", "reason"),
    [
        (100, 8192, 512, "the longest example has 100 tokens"),
        (513, None, 1024, "the longest example has 513 tokens"),
        (2049, 8192, 2048, "the most that is taken unasked; the longest example has 2,049 tokens"),
        (700, 600, 600, "all the positions of the model; the longest example has 700 tokens"),
    ],
)
def test_row_length_follows_the_longest_example_and_the_model(longest, positions, length, reason):
    filled, why = FinetuneConfig(data="rows.jsonl").filled(longest=longest, positions=positions)
    assert filled.max_length == length
    assert why == (f"max_length={length}, {reason}",)


def test_examples_beyond_the_positions_of_the_model_are_dropped_and_counted(
    tiny_config, chats_file, tmp_path
):
    long = chat(1)
    long["messages"][0]["content"] *= 100
    path = tmp_path / "long.jsonl"
    path.write_text(chats_file.read_text() + json.dumps(long) + "\n")
    said = []
    result = finetune(tiny_config(data=str(path), max_length=None, max_steps=1), say=said.append)
    positions = result.config["max_length"]
    assert positions == AutoConfig.from_pretrained(result.config["model"]).max_position_embeddings
    assert any(line.startswith(f"default: max_length={positions}, all the positions") for line in said)
    assert result.dropped_rows == {"too_long": 1}


def test_the_memory_of_a_models_name_alone_is_that_of_its_finetune():
    config = FinetuneConfig(model="qwen2.5-1.5b")
    assert memory_setup(config, "T4").resolved == TrainingSetup("qwen2.5-1.5b", gpu="T4").resolved
    longest = memory_setup(FinetuneConfig(model="qwen2.5-1.5b", data="rows.jsonl"), "T4")
    assert longest.max_length == 2048


def test_defaults_are_printed_with_their_reason_and_resume_finds_its_run(tiny_config, tmp_path):
    config = tiny_config(max_steps=-1, learning_rate=None, max_length=None)
    said = []
    result = finetune(config, say=said.append)
    longest = prepare_data(config, load_tokenizer(config.model)).train.longest
    assert f"default: max_length=512, the longest example has {longest} tokens" in said
    assert result.config["max_length"] == 512
    assert "default: learning_rate=0.001, for a model of 0 M parameters" in said
    assert "default: num_train_epochs=5, for 24 rows" in said
    assert result.config["learning_rate"] == 1e-3
    assert result.config["num_train_epochs"] == 5.0
    shutil.rmtree(tmp_path / "run" / "adapter")
    assert finetune(config, resume=True).losses == result.losses
