"""How long a step takes: operations counted on the real code, and published T4 runs inside the range."""

import sys
from pathlib import Path

import pytest
import torch
from onegpu.gpu_memory import simulated, step_time
from onegpu.gpu_memory.step_time import RUN_SPREAD, ideal_seconds, run_utilisation
from onegpu.models import CATALOGUE
from onegpu.runtime import GPUS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from step_seconds import TIMED, settings

SMALLEST = [run for run in TIMED if run[0] == "smollm2-135m" and run[3] == 512]


@pytest.mark.parametrize("run", SMALLEST, ids=str)
def test_a_measured_step_is_inside_the_range(run):
    model, *how, seconds = run
    low, high = step_time(simulated(model, **settings(*how))).seconds
    assert low <= seconds <= high
    assert high < 3 * low


@pytest.mark.parametrize(
    ("method", "checkpointing", "passes"), [("full", False, 6), ("full", True, 8), ("lora", False, 4), ("lora", True, 6)]
)  # fmt: skip
def test_products_are_6n_for_full_4n_for_frozen_weights_and_2n_for_recomputing(method, checkpointing, passes):
    asked = {
        "method": method,
        "loop": "plain",
        "gpu": "A100",
        "dtype": "bf16",
        "attention": "flash_attention_2",
    }
    if method == "lora":
        asked |= {"lora_r": 1, "target_modules": ("q_proj",)}
    tokens = 64
    work = simulated(
        "smollm2-135m", **asked, per_device_train_batch_size=1, max_length=tokens, gradient_checkpointing=checkpointing
    ).work  # fmt: skip
    layers, hidden, mlp, vocabulary = 30, 576, 1536, 49152
    head = hidden * vocabulary  # tied to the embedding, and never recomputed; nor is a layer's last product
    inside = CATALOGUE["smollm2-135m"].parameters - head
    expected = (passes - 2 * checkpointing) * (inside + head) * tokens
    expected += checkpointing * 2 * (inside - layers * hidden * mlp) * tokens
    expected += (
        (3.5 + checkpointing) * layers * 4 * tokens**2 * hidden
    )  # attention; flash's backward pass has five products
    assert sum(work.operations.values()) == pytest.approx(expected, rel=5e-3)


def test_accumulated_micro_batches_count_each():
    asked = {"gpu": "T4", "max_length": 64}
    one, two, eight = (
        simulated("smollm2-135m", gradient_accumulation_steps=n, **asked).work for n in (1, 2, 8)
    )
    assert eight.operations[torch.float16] == 8 * one.operations[torch.float16]
    assert two.moved_bytes - one.moved_bytes == pytest.approx(
        (eight.moved_bytes - two.moved_bytes) / 6, rel=1e-2
    )


def test_a_runs_own_report_corrects_the_range():
    breakdown = simulated("smollm2-135m", gpu="T4", max_length=256)
    ideal = ideal_seconds(breakdown)
    config = {"model": "smollm2-135m", "max_length": 256, "output_dir": "x"}
    setup = breakdown.setup
    tokens = 10 * setup.tokens * setup.gradient_accumulation_steps // 2  # rows that are half full
    run = {"config": config, "machine": "cuda: Tesla T4 (compute capability 7.5, 14.56 GiB), 2 CPU cores, 12.7 GiB RAM",
           "steps": 10, "tokens": tokens, "train_seconds": 20 * ideal}  # fmt: skip
    assert run_utilisation(run, GPUS["T4"]) == pytest.approx(0.25)
    low, high = step_time(breakdown, run).seconds
    assert (low, high) == pytest.approx((4 * ideal / RUN_SPREAD, 4 * ideal * RUN_SPREAD))
    with pytest.raises(ValueError, match=r"on Tesla T4, not on L4"):
        step_time(simulated("smollm2-135m", gpu="L4", max_length=256), run)
    with pytest.raises(ValueError, match=r"no tokens: give the report\.json"):
        step_time(breakdown, {name: run[name] for name in run if name != "tokens"})
    with pytest.raises(ValueError, match="on the CPU"):
        step_time(breakdown, run | {"machine": "cpu: x86_64, 2 CPU cores"})


def test_without_rates_there_is_no_answer():
    assert step_time(simulated("smollm2-135m", gpu="24GiB", max_length=64)) is None
    assert step_time(simulated("smollm2-135m", gpu="cpu", max_length=64)) is None
