"""Whole runs on a tiny model: totals, resume, interruption, precision, folders, errors."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from chats import chat
from onegpu import models
from onegpu.packed_training import collate_rows, lora
from onegpu.packed_training.attention import use_packed_attention
from onegpu.packed_training.loss import supervised_loss
from onegpu.qlora_finetune import (
    FinetuneConfig,
    Interrupted,
    answers,
    finetune,
    merge_adapter,
    prepare_data,
    rows,
)
from onegpu.qlora_finetune import run as run_module
from onegpu.qlora_finetune.trainer import QLoraTrainer
from safetensors.torch import load_file


def losses(result):
    return [loss for _, loss in result.losses]


def adapter(folder):
    return load_file(f"{folder}/adapter/adapter_model.safetensors")


def test_a_run_learns_and_reports_what_it_did(tiny_config, chats_file, tmp_path):
    config = tiny_config(max_steps=20, eval_data=str(chats_file))
    result = finetune(config)
    assert losses(result)[-1] < losses(result)[0] - 0.5
    assert result.after.loss < result.before.loss
    assert result.steps == len(result.losses) == 20
    assert result.tokens_per_second == pytest.approx(result.tokens / result.train_seconds)
    saved = json.loads((tmp_path / "run" / "report.json").read_text())
    assert saved["tokens"] == result.tokens > saved["supervised_tokens"] > 0
    assert saved["peak_memory_bytes"] > 2**20
    assert {"loss", "valid_json", "intent_accuracy"} <= set(saved["before"])
    assert "sample 3" in str(result)
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()


def test_totals_are_known_before_the_first_step_and_come_true(tiny_config, tiny_nf4):
    config = tiny_config(max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2)
    prepared = prepare_data(config, tiny_nf4.tokenizer)
    result = finetune(config)
    assert result.steps == prepared.steps
    assert result.tokens == 2 * prepared.train.tokens
    assert result.supervised_tokens == 2 * prepared.train.supervised_tokens


def test_totals_are_those_of_token_counting(tiny_config, tiny_nf4):
    config = tiny_config(max_steps=-1, num_train_epochs=1.5, per_device_train_batch_size=2, packing=False)
    prepared = prepare_data(config, tiny_nf4.tokenizer)
    counts = rows.token_counts(prepared.train)
    assert counts.tokens == prepared.train.tokens == sum(n * rows for n, rows in counts.lengths.items())
    assert counts.supervised_tokens + counts.masked_tokens == counts.tokens
    assert prepared.steps == prepared.totals.padded_steps == 18  # 24 rows, 2 at a time, one and a half epochs
    packed = prepare_data(dataclasses.replace(config, packing=True), tiny_nf4.tokenizer)
    assert packed.totals.packed_rows == len(packed.train_rows)


def test_each_loss_is_handed_on(tiny_config):
    seen = []
    result = finetune(tiny_config(max_steps=3), on_step=lambda *step: seen.append(step))
    assert seen == [(step, 3, loss) for step, loss in result.losses]


def test_eval_rows_limits_loss_and_answers(tiny_config, tiny_nf4, chats_file):
    prepared = prepare_data(tiny_config(eval_data=str(chats_file), eval_rows=5), tiny_nf4.tokenizer)
    assert len(prepared.held_out) == len(prepared.raw_held_out) == 5
    triage = prepare_data(tiny_config(data="support_triage", eval_rows=7, max_length=512), tiny_nf4.tokenizer)
    assert len(triage.held_out) == len(triage.raw_held_out) == 7


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_8bit", "sgd"])
@pytest.mark.parametrize("packing", [True, False])
def test_accumulation_equals_one_big_batch(
    tiny_config, tmp_path, optim, packing
):  # transformers#24725, #34191
    """Rows of unequal numbers of supervised tokens: a mean of means would differ."""
    common = {"max_steps": 1, "optim": optim, "packing": packing, "seed": 3}
    big = finetune(tiny_config(**common, per_device_train_batch_size=4, output_dir=str(tmp_path / "a")))
    small = finetune(tiny_config(**common, gradient_accumulation_steps=4, output_dir=str(tmp_path / "b")))
    assert losses(small) == pytest.approx(losses(big), rel=1e-5)
    for name, weight in adapter(tmp_path / "a").items():
        torch.testing.assert_close(weight, adapter(tmp_path / "b")[name], rtol=1e-3, atol=1e-5)


def test_packing_and_no_packing_see_the_same_loss_at_step_one(tiny_config, tmp_path):
    packed = finetune(
        tiny_config(max_steps=1, per_device_train_batch_size=100, output_dir=str(tmp_path / "a"))
    )
    alone = finetune(
        tiny_config(
            max_steps=1, per_device_train_batch_size=100, packing=False, output_dir=str(tmp_path / "b")
        )
    )
    assert losses(packed) == pytest.approx(losses(alone), rel=1e-5)
    assert packed.tokens == alone.tokens


def test_gradient_checkpointing_changes_no_number(tiny_config, tmp_path):
    plain = finetune(tiny_config(max_steps=2, output_dir=str(tmp_path / "a")))
    recomputed = finetune(
        tiny_config(max_steps=2, gradient_checkpointing=True, output_dir=str(tmp_path / "b"))
    )
    assert losses(plain) == pytest.approx(losses(recomputed), rel=1e-6)


def test_held_out_loss_is_weighted_by_tokens(tiny_config, chats_file, tiny_nf4):
    config = tiny_config(eval_data=str(chats_file), packing=False, max_steps=1, learning_rate=1e-9)
    result = finetune(config)
    use_packed_attention(tiny_nf4.model)
    held_out = prepare_data(config, tiny_nf4.tokenizer).held_out_rows
    with torch.no_grad():
        loss, n = supervised_loss(tiny_nf4.model, collate_rows([held_out[i] for i in range(len(held_out))]))
    assert result.before.loss == pytest.approx((loss / n).item(), rel=1e-4)


def test_resume_after_kill_equals_an_uninterrupted_run(tiny_config, tmp_path):
    """SIGKILL at any step, before the first checkpoint too; a checkpoint left half-written is passed over."""
    at = random.randrange(6)
    print(f"killed at step {at}")
    whole = finetune(tiny_config(max_steps=6, lora_dropout=0.1, output_dir=str(tmp_path / "whole")))
    config = tiny_config(max_steps=6, lora_dropout=0.1, output_dir=str(tmp_path / "killed"))
    code = (
        "import json, os, signal, sys\n"
        "from onegpu.qlora_finetune import FinetuneConfig, finetune\n"
        "from onegpu.qlora_finetune import run\n"
        "class Kill(run.StopOnNan):\n"
        "    def on_step_begin(self, args, state, control, **kw):\n"
        f"        if state.global_step == {at}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run.StopOnNan = Kill\n"
        "finetune(FinetuneConfig(**json.loads(sys.argv[1])))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, json.dumps(dataclasses.asdict(config))], check=False)
    assert killed.returncode == -signal.SIGKILL
    half = tmp_path / "killed" / "checkpoint-99"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_step": 99, "log_his')
    resumed = finetune(config, resume=True)
    assert losses(resumed) == losses(whole)
    assert resumed.tokens == whole.tokens
    for name, weight in adapter(tmp_path / "whole").items():
        assert torch.equal(weight, adapter(tmp_path / "killed")[name])


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(tiny_config, tmp_path, monkeypatch):
    class PressCtrlC(run_module.StopOnNan):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(run_module, "StopOnNan", PressCtrlC)
    with pytest.raises(Interrupted, match=r"stopped at step 4 of 6.*--resume"):
        finetune(tiny_config(save_steps=100))
    assert signal.getsignal(signal.SIGINT) is handler
    assert (tmp_path / "run" / "checkpoint-4" / "trainer_state.json").is_file()
    monkeypatch.undo()
    resumed = finetune(tiny_config(save_steps=100), resume=True)
    assert losses(resumed) == losses(finetune(tiny_config(output_dir=str(tmp_path / "whole"))))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mixed_precision_keeps_trainable_parameters_fp32_and_losses_close(
    tiny_config, tmp_path, precision, monkeypatch
):  # transformers#23165, peft#1522
    trainers, computed_in = [], set()
    init, apply = QLoraTrainer.__init__, lora.LoraLinear.apply
    monkeypatch.setattr(
        lora.LoraLinear, "apply", lambda x, *rest: (computed_in.add(x.dtype), apply(x, *rest))[1]
    )
    monkeypatch.setattr(
        QLoraTrainer, "__init__", lambda self, *a, **k: (trainers.append(self), init(self, *a, **k))[1]
    )
    full = finetune(tiny_config(output_dir=str(tmp_path / "fp32")))
    assert computed_in == {torch.float32}
    computed_in.clear()
    mixed = finetune(tiny_config(precision=precision, output_dir=str(tmp_path / "mixed")))
    assert computed_in == {run_module.DTYPES[precision]}
    trainable = [p for p in trainers[1].model.parameters() if p.requires_grad]
    assert trainable
    assert {p.dtype for p in trainable} == {torch.float32}
    assert all(torch.isfinite(torch.tensor(losses(mixed))))
    assert losses(mixed)[0] == pytest.approx(losses(full)[0], rel=2e-2)
    assert losses(mixed)[-1] < losses(mixed)[0]


def test_fp16_scaler_that_skips_a_step_is_reported(tiny_config, monkeypatch):
    """The scaler starts high on purpose: gradients overflow fp16, the step is skipped, the scale is halved."""
    init = QLoraTrainer.__init__

    def start_higher(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)

    monkeypatch.setattr(QLoraTrainer, "__init__", start_higher)
    result = finetune(tiny_config(precision="fp16", max_steps=8))
    assert result.skipped_steps[0] == 1
    assert len(result.skipped_steps) < 8
    assert "found its scale (expected)" in str(result)


def test_early_stopping_keeps_the_best_adapter(tiny_config, chats_file, tmp_path):
    # One row to learn by heart in large steps: the held-out rows go up and down.
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(chat(0)) + "\n")
    result = finetune(
        tiny_config(
            data=str(path),
            max_steps=160,
            learning_rate=5e-2,
            eval_data=str(chats_file),
            eval_steps=4,
            early_stopping_patience=2,
        )
    )
    assert result.steps < 160
    best = min(loss for _, loss in result.eval_losses)
    assert result.eval_losses[-2][1] > best
    assert result.after.loss == pytest.approx(best, rel=1e-6)


def test_merged_model_answers_as_the_adapter_does(tiny_config, tmp_path):
    config = tiny_config(max_steps=10)
    finetune(config)
    base = models.load(config.model, quantization="nf4")
    from peft import PeftModel

    with_adapter = PeftModel.from_pretrained(base.model, tmp_path / "run" / "adapter").eval()
    folder = merge_adapter(
        tmp_path / "run" / "adapter", tmp_path / "merged", base=config.model, dtype=torch.float32
    )
    merged = models.load(folder).model
    ids = torch.tensor([[1, 40, 50, 60, 70]])
    torch.testing.assert_close(merged(ids).logits, with_adapter(ids).logits, rtol=1e-4, atol=1e-4)
    assert not list(folder.glob("*.bin"))
    with pytest.raises(ValueError, match="is not empty"):
        merge_adapter(tmp_path / "run" / "adapter", tmp_path / "merged", base=config.model)


def test_earlier_run_is_not_overwritten_unasked(tiny_config):
    finetune(tiny_config(max_steps=1))
    with pytest.raises(ValueError, match="holds an earlier run"):
        finetune(tiny_config(max_steps=1))
    finetune(tiny_config(max_steps=1), overwrite=True)


def test_resume_with_other_settings_is_refused_and_names_them(tiny_config):
    finetune(tiny_config(max_steps=2))
    with pytest.raises(ValueError, match=r"learning_rate: 0\.01 there, 0\.5 here"):
        finetune(tiny_config(max_steps=2, learning_rate=0.5), resume=True)


def test_resume_without_a_run_is_refused(tiny_config):
    with pytest.raises(ValueError, match="holds no run to resume"):
        finetune(tiny_config(), resume=True)


def test_output_folder_that_cannot_be_written_is_named(tiny_config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="can't be written"):
        finetune(tiny_config(output_dir=str(tmp_path / "file" / "run")))


def test_a_row_without_an_answer_is_named(tiny_config, tmp_path):
    path = tmp_path / "bad.jsonl"
    bad = {"messages": [{"role": "user", "content": "hi"}]}
    path.write_text(f"{json.dumps(chat(0))}\n{json.dumps(bad)}\n")
    with pytest.raises(ValueError, match="row 1"):
        finetune(tiny_config(data=str(path)))


def test_max_length_shorter_than_every_prompt_says_what_would_work(tiny_config):
    with pytest.raises(ValueError, match="smallest max_length that keeps a row"):
        finetune(tiny_config(max_length=8))


def test_rows_that_are_too_long_are_counted_in_the_report(tiny_config, tmp_path):
    long = chat(1)
    long["messages"][0]["content"] *= 100
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (chat(0), long, chat(2))))
    result = finetune(tiny_config(data=str(path), max_steps=1))
    assert result.dropped_rows == {"too_long": 1}
    assert "1 rows (too_long)" in str(result)


def test_broken_json_line_is_named(tiny_config, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(chat(0)) + "\n{oops\n")
    with pytest.raises(ValueError, match=r"broken\.jsonl, line 2: found"):
        finetune(tiny_config(data=str(path)))


def test_wrong_target_modules_list_the_right_names(tiny_config):  # peft#294, peft#1206
    with pytest.raises(ValueError, match=r"query_key_value.*down_proj"):
        finetune(tiny_config(target_modules=("query_key_value",)))


def test_a_loss_that_is_not_finite_ends_the_run(tiny_config, monkeypatch):
    monkeypatch.setattr(
        QLoraTrainer,
        "compute_loss",
        lambda self, model, inputs, **k: (
            sum(p.sum() for p in model.parameters() if p.requires_grad) * float("nan")
        ),
    )
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        finetune(tiny_config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 0}, "max_length is 0"),
        ({"quantization": "int3"}, "quantization is 'int3'"),
        ({"max_steps": 0, "num_train_epochs": 0}, "nothing to train"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0"),
        ({"early_stopping_patience": 2}, "needs eval_steps"),
    ],
)
def test_bad_settings_are_refused_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        FinetuneConfig(**changes)


def test_seconds_of_training_leave_out_evaluation(tiny_config, chats_file, monkeypatch):
    hour, late, generate, clock = 3600, [0], answers.generate, time.perf_counter

    def slowly(*args, **settings):
        late[0] += hour
        return generate(*args, **settings)

    monkeypatch.setattr(answers, "generate", slowly)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])
    result = finetune(tiny_config(max_steps=1, eval_data=str(chats_file)))
    assert late[0] == 2 * hour
    assert result.train_seconds < hour
