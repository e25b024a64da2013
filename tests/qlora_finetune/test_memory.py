"""What a fine-tune needs is predicted, and a run that needs too much says what would fit and frees what it held."""

import json
import weakref
from dataclasses import replace

import pytest
import torch
from onegpu import models
from onegpu.gpu_memory.fits import cheaper
from onegpu.gpu_memory.training_setup import TrainingSetup
from onegpu.models import tiny_model
from onegpu.qlora_finetune import (
    FinetuneConfig,
    OutOfMemory,
    explain_out_of_memory,
    finetune,
    memory,
    output_folder,
    predict_memory,
    row_lengths,
    settings_that_fit,
)
from onegpu.qlora_finetune.trainer import QLoraTrainer

MIB = 2**20


@pytest.fixture
def tiny():
    """Arguments that put the tiny model's shape in place of a catalogue name."""
    return {"model": tiny_model(vocab_size=4096, layers=8).config}


def run_out_of_memory(monkeypatch, at_step, error):
    seen = []

    def compute_loss(self, model, inputs, **kwargs):
        seen.append(weakref.ref(model))
        if len(seen) == at_step:
            held = torch.zeros(MIB)  # a local variable of the frame that failed
            seen.append(weakref.ref(held))
            raise error
        return compute(self, model, inputs, **kwargs)

    compute = QLoraTrainer.compute_loss
    monkeypatch.setattr(QLoraTrainer, "compute_loss", compute_loss)
    return seen


def test_running_out_of_memory_is_explained_and_everything_is_freed(tiny_config, monkeypatch, tmp_path):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")
    seen = run_out_of_memory(monkeypatch, 4, error)
    with pytest.raises(OutOfMemory) as caught:
        finetune(tiny_config())
    del error
    text = str(caught.value)
    assert "CUDA out of memory. Tried to allocate 2.00 GiB.)" in text
    assert "more lines" not in text
    assert "activations saved for backward" in text
    assert caught.value.__context__ is None
    assert [ref() for ref in seen] == [None] * 5
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
    monkeypatch.undo()
    assert finetune(tiny_config(), resume=True).steps == 6


@pytest.mark.parametrize(
    "error",
    [RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), MemoryError()],
)
def test_a_cpu_that_runs_out_of_memory_is_caught_too(tiny_config, monkeypatch, error):
    run_out_of_memory(monkeypatch, 1, error)
    with pytest.raises(OutOfMemory, match="of this machine"):
        finetune(tiny_config())


def test_other_errors_go_through_unchanged(tiny_config, monkeypatch):
    run_out_of_memory(monkeypatch, 1, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        finetune(tiny_config())


def test_a_model_of_the_caller_keeps_no_gradients(tiny_config, tiny_folder, monkeypatch):
    loaded = models.load(tiny_folder, quantization="nf4")
    run_out_of_memory(monkeypatch, 2, torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(OutOfMemory):
        finetune(tiny_config(gradient_accumulation_steps=2), loaded=loaded)
    assert all(p.grad is None for p in loaded.model.parameters())


def test_configuration_in_the_terms_of_gpu_memory():
    config = FinetuneConfig(
        model="qwen2.5-1.5b",
        max_length=1024,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        lora_r=32,
    )
    setup = memory.memory_setup(config, "T4")
    assert isinstance(setup, TrainingSetup)
    assert (setup.method, setup.per_device_train_batch_size, setup.max_length) == ("qlora", 2, 1024)
    assert setup.lora_r == 32
    setup = setup.resolved
    assert (setup.dtype, setup.mixed_precision, setup.gradient_checkpointing) == ("fp16", "fp16", True)
    assert setup.gradient_accumulation_steps == 2  # the peak of more is the same
    on_cpu = memory.memory_setup(config, "cpu").resolved
    assert (on_cpu.dtype, on_cpu.optim, on_cpu.gradient_checkpointing) == ("fp32", "adamw_single", False)


@pytest.mark.parametrize("gpu", ["T4", "L4", "cpu"])
@pytest.mark.parametrize("model", ["smollm2-135m", "qwen2.5-1.5b"])
def test_a_setup_of_a_name_alone_is_the_run_that_finetune_starts(model, gpu):
    assert (
        memory.memory_setup(FinetuneConfig(model=model), gpu).resolved
        == TrainingSetup(model, gpu=gpu).resolved
    )


def test_a_base_in_8_bits_is_predicted_and_4_bits_are_offered(tiny):
    eight, four = (predict_memory(FinetuneConfig(quantization=q), "T4", **tiny) for q in ("int8", "nf4"))
    assert eight["loaded"].by_category["weights"] > four["loaded"].by_category["weights"]
    tried = [
        changes
        for changes, _ in cheaper(memory.memory_setup(FinetuneConfig(quantization="int8"), "T4").resolved)
    ]
    assert any(changes.get("quantization") == "nf4" for changes in tried)


def test_a_run_on_a_data_sets_own_rows_is_predicted(tiny, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"instruction": "Count.", "output": " ".join(["one"] * n)} for n in (2, 40, 300)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = FinetuneConfig(data=str(file), eval_share=0.0, max_length=400, per_device_train_batch_size=2)
    found = row_lengths(config)
    short, middle, long = sorted(found["lengths"])
    assert (middle - short, long - middle) == (38, 260)  # a token each
    assert found["supervised_fraction"] == pytest.approx(
        1 - 3 * (short - 4) / (short + middle + long), abs=0.02
    )
    packed, apart = (predict_memory(replace(config, packing=p), "T4", **found, **tiny) for p in (True, False))
    full = predict_memory(config, "T4", **tiny)
    assert (
        apart.peak_bytes < packed.peak_bytes < full.peak_bytes
    )  # 300 and 42 tokens; all in one row; 2 x 400


def test_what_fits_is_found_in_the_order_of_what_it_costs(tiny):
    config = FinetuneConfig(max_length=512, per_device_train_batch_size=2, gradient_checkpointing=False)
    whole = predict_memory(config, "T4", **tiny)
    smaller = [
        predict_memory(FinetuneConfig(**changes), "T4", **tiny).device_bytes[1]
        for changes in (
            {"max_length": 512, "per_device_train_batch_size": 2, "gradient_checkpointing": True},
            {"max_length": 512, "gradient_accumulation_steps": 2, "gradient_checkpointing": False},
        )
    ]
    assert max(smaller) < whole.device_bytes[1]
    found = settings_that_fit(config, "T4", budget_bytes=max(smaller), **tiny)
    assert [fit.changes for fit in found] == [
        {"gradient_checkpointing": True},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
        {"gradient_checkpointing": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
    ]
    assert found[0].breakdown.device_bytes[1] == smaller[0]


def test_a_batch_that_is_no_power_of_two_keeps_its_effective_size(tiny):
    config = FinetuneConfig(max_length=128, per_device_train_batch_size=6, gradient_accumulation_steps=5)
    changes = [c for c, _ in memory._cheaper(config, memory.find_gpu("T4"))]
    batches = [c for c in changes if set(c) == {"per_device_train_batch_size", "gradient_accumulation_steps"}]
    assert [b["per_device_train_batch_size"] for b in batches] == [3, 1]
    assert {b["per_device_train_batch_size"] * b["gradient_accumulation_steps"] for b in batches} == {30}


def test_nothing_that_fits_is_said(tiny):
    config = FinetuneConfig(model="smollm2-135m", max_length=128)
    text = explain_out_of_memory(config, gpu="T4", budget_bytes=1, **tiny)
    assert "no setting that was tried would fit" in text


def test_a_run_that_should_fit_points_to_other_programs(tiny):
    text = explain_out_of_memory(FinetuneConfig(max_length=128), gpu="T4", **tiny)
    assert "another program" in text


def test_t4_settings_of_the_lesson_stay_under_12_gib():
    """Qwen2.5-1.5B in the notebook's settings, of the 14.56 GiB that a T4 has."""
    from onegpu.qlora_finetune.config import T4_SETTINGS

    config = FinetuneConfig(**T4_SETTINGS | {"model": "qwen2.5-1.5b"})
    predicted = predict_memory(config, "T4")
    assert predicted.device_bytes[1] < 12 * 2**30


def test_runs_go_to_drive_where_it_is_mounted(tmp_path):
    assert output_folder("triage", drive=tmp_path) == tmp_path / "onegpu_runs" / "triage"
    assert output_folder("triage", drive=tmp_path / "not mounted").as_posix() == "runs/triage"


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_run_name_is_one_part_of_a_path(name):
    with pytest.raises(ValueError, match="one part of a path"):
        output_folder(name)
