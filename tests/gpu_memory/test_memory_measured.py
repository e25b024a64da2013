"""Measured against simulated, and measured against what the allocators themselves say."""

import gc
import itertools

import pytest
import torch
from onegpu import models
from onegpu.gpu_memory import compare
from onegpu.gpu_memory.meta_model import attach_lora
from onegpu.gpu_memory.tracking import NoTracker
from onegpu.gpu_memory.training_step import enable_checkpointing, make_optimizer, no_autocast, run_step
from plainly import make_setup, measured, simulated

FIRST_STEP = ("loaded", "after_forward", "after_backward", "in_step", "after_step")
BATCH = {"per_device_train_batch_size": 4, "max_length": 64}


@pytest.fixture(scope="module")
def tiny():
    return models.tiny_model()


def assert_alike(simulation, measurement, rel):
    for moment in FIRST_STEP:
        found, expected = (b[moment].allocated_bytes for b in (simulation, measurement))
        assert found == pytest.approx(expected, rel=rel), compare([measurement, simulation], moment)
    assert simulation["after_step"].peak_bytes == pytest.approx(measurement.peak_bytes, rel=rel)


@pytest.mark.parametrize("settings", [
    {"method": "full"},
    {"method": "full", "gradient_checkpointing": True, "optim": "adamw_single"},
    {"method": "full", "attention": "eager", "loop": "trainer", "gradient_accumulation_steps": 2},
    {"method": "lora", "lora_dropout": 0.1},
    {"method": "qlora"},
    {"method": "qlora", "gradient_checkpointing": True, "double_quantization": False},
    {"method": "qlora", "loop": "onegpu", "target_modules": "all-linear"},
    {"method": "qlora", "quantization": "int8"},
    {"method": "qlora", "quantization": "int8", "loop": "onegpu", "gradient_checkpointing": True},
    {"method": "qlora", "quantization": "int8", "loop": "trainer", "target_modules": "all-linear"},
], ids=lambda s: "-".join(map(str, s.values())))  # fmt: skip
@pytest.mark.skipif(torch.cuda.is_available(), reason="measures on the card where there is one")
def test_simulated_and_measured_agree_on_the_cpu(tiny, settings):
    # Nothing differs by design: gpu="cpu" has no rounding and no cuBLAS, and takes the CPU's attention kernel.
    assert_alike(
        simulated(tiny.config, gpu="cpu", **BATCH, **settings),
        measured(module=tiny, **BATCH, **settings),
        0.01,
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="measures on the card where there is one")
@pytest.mark.parametrize("settings", [
    {"method": "qlora", "target_modules": "all-linear"},
    {"method": "full", "optim": "adamw_single"},
], ids=lambda s: s["method"])  # fmt: skip
def test_simulated_and_measured_agree_for_smollm2(settings):
    batch = {"per_device_train_batch_size": 1, "max_length": 32}
    assert_alike(
        simulated("smollm2-135m", gpu="cpu", **batch, **settings),
        measured("smollm2-135m", **batch, **settings),
        0.01,
    )


def profiled(model, optimizer, setup):
    """The bytes that torch's CPU allocator hands out in a step: highest, and left in the end."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        held = run_step(
            model, optimizer, setup, model.config, device="cpu", autocast=no_autocast, phase=lambda name: None
        )
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    running = list(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))
    del held
    return max(running), running[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures on the card where there is one")
@pytest.mark.parametrize("settings", [
    {"method": "full"},
    {"method": "full", "gradient_checkpointing": True},
    {"method": "full", "attention": "eager"},
    {"method": "lora", "lora_dropout": 0.1},
], ids=lambda s: "-".join(map(str, s.values())))  # fmt: skip
def test_the_tracker_agrees_with_torchs_own_profiler(settings):
    settings = {**BATCH, "optim": "adamw_single", **settings}
    tracked = measured(module=models.tiny_model(), **settings)
    model = models.tiny_model().train()
    setup = make_setup(model.config, gpu="cpu", **settings).resolved
    if setup.attention:
        model.set_attn_implementation(setup.attention)
    if setup.adapters:
        model = attach_lora(model, NoTracker("cpu"), setup)
    if setup.gradient_checkpointing:
        enable_checkpointing(model)
    highest, left = profiled(model, make_optimizer(model, setup), setup)
    before = tracked["loaded"].allocated_bytes
    assert tracked.peak_bytes - before == pytest.approx(highest, rel=5e-3)
    assert tracked["after_step"].allocated_bytes - before == left


def test_the_model_that_is_given_is_not_trained(tiny):
    before = [p.clone() for p in tiny.parameters()]
    measured(module=tiny, method="full", **BATCH)
    assert all(torch.equal(a, b) for a, b in zip(before, tiny.parameters(), strict=True))
    assert all(p.grad is None for p in tiny.parameters())


# --- with a card -----------------------------------------------------------------------------------------

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("settings", [
    {"method": "full"},
    {"method": "full", "gradient_checkpointing": True},
    {"method": "full", "optim": "adamw_8bit", "loop": "trainer"},
    {"method": "lora", "lora_dropout": 0.05},
    {"method": "qlora", "gradient_checkpointing": True},
    {"method": "qlora", "loop": "onegpu", "target_modules": "all-linear"},
    {"method": "qlora", "quantization": "int8"},
], ids=lambda s: "-".join(map(str, s.values())))  # fmt: skip
def test_simulated_and_measured_agree_on_a_card(settings):
    batch = {"per_device_train_batch_size": 4, "max_length": 256}
    measurement = measured("smollm2-135m", **batch, **settings)
    simulation = simulated(measurement.setup)
    workspaces = simulation["after_step"].by_category["cublas_workspace"]
    for moment in FIRST_STEP:
        found, expected = (b[moment].allocated_bytes for b in (simulation, measurement))
        # an earlier test in this process may have taken cuBLAS's workspaces already
        assert min(abs(found - expected), abs(found - workspaces - expected)) <= 5e-3 * expected, compare(
            [measurement, simulation], moment
        )
