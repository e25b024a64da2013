"""The machine and the precision decided from it, on machines made up for the test."""

import logging
import random
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from onegpu import runtime
from onegpu.runtime import environment, hardware

GIB = 2**30


def fake_torch(capability=None, *, name="Tesla T4", memory=15_828_320_256, mps=False, devices=1):
    """A stand-in for torch on another machine; asking whether bf16 is supported fails the test."""

    def never():
        raise AssertionError("is_bf16_supported says True on a T4 and must not be asked")

    cuda = SimpleNamespace(
        is_available=lambda: capability is not None,
        current_device=lambda: 0,
        device_count=lambda: devices,
        get_device_name=lambda index: name,
        get_device_capability=lambda index: capability,
        get_device_properties=lambda index: SimpleNamespace(total_memory=memory),
        is_bf16_supported=never,
        max_memory_allocated=lambda: 123_456,
        reset_peak_memory_stats=lambda: None,
    )
    return SimpleNamespace(
        cuda=cuda,
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
        mps=SimpleNamespace(recommended_max_memory=lambda: 11 * GIB),
    )


def card(capability):
    return runtime.Machine("cuda", "a card", capability, 16 * GIB, 2, 12 * GIB)


# --- machine ---------------------------------------------------------------------------------------------


def test_a_t4_is_described_by_its_own_memory_and_capability():
    t4 = runtime.machine(fake_torch((7, 5)))
    assert (t4.device, t4.name, t4.compute_capability) == ("cuda", "Tesla T4", (7, 5))
    assert t4.total_memory_bytes == 15_828_320_256
    assert "compute capability 7.5, 14.74 GiB" in str(t4)


def test_several_cards_are_counted():
    assert "4 x Tesla T4" in str(runtime.machine(fake_torch((7, 5), devices=4)))


def test_without_a_gpu_the_device_memory_is_the_ram():
    cpu = runtime.machine(fake_torch())
    assert cpu.device == "cpu"
    assert cpu.compute_capability is None
    assert cpu.total_memory_bytes == cpu.ram_bytes > 0


def test_apple_silicon_is_mps():
    mac = runtime.machine(fake_torch(mps=True))
    assert (mac.device, mac.total_memory_bytes) == ("mps", 11 * GIB)


def test_colab_is_known_by_its_environment(monkeypatch):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    assert not runtime.machine(fake_torch()).colab
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_20260801")
    assert runtime.machine(fake_torch((7, 5))).colab


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64)])
def test_cpu_cores_respect_a_container_quota(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert hardware._cpu_cores(tmp_path) == cores


def test_ram_respects_a_container_limit(tmp_path):
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    assert hardware._ram_bytes(tmp_path) == GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert hardware._ram_bytes(tmp_path) > GIB


# --- precision -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", [(6, 1), (7, 0), (7, 5)])
def test_below_capability_8_trains_in_fp16_with_a_scaler(capability):
    plan = runtime.precision(card(capability))
    assert (plan.fp16, plan.bf16, plan.grad_scaler) == (True, False, True)
    assert plan.dtype is torch.float16


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_from_capability_8_on_trains_in_bf16_without_a_scaler(capability):
    plan = runtime.precision(card(capability))
    assert (plan.fp16, plan.bf16, plan.grad_scaler) == (False, True, False)
    assert plan.dtype is torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_without_cuda_trains_in_fp32(device):
    plan = runtime.precision(runtime.Machine(device, "x", None, GIB, 2, GIB))
    assert (plan.fp16, plan.bf16, plan.grad_scaler) == (False, False, False)
    assert plan.dtype is torch.float32


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_trainable_parameters_are_always_fp32(capability):
    # transformers#23165: "Attempting to unscale FP16 gradients"
    assert runtime.precision(card(capability)).trainable == "float32"


def test_a_t4_is_decided_without_asking_whether_bf16_is_supported():
    # pytorch#148322: is_bf16_supported() is True on a T4. The stand-in raises if it is asked.
    plan = runtime.precision(runtime.machine(fake_torch((7, 5))))
    assert plan.fp16
    assert "7.5 is below 8.0" in str(plan)


# --- seeds -----------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_numbers_everywhere():
    import numpy as np

    def draw():
        runtime.seed_everything(7)
        return random.random(), np.random.rand(), torch.rand(1).item()

    assert draw() == draw()


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True, None])
def test_a_seed_numpy_would_refuse_is_refused_first(seed):
    with pytest.raises(ValueError, match="expected an integer from 0 to 4294967295"):
        runtime.seed_everything(seed)


# --- memory ----------------------------------------------------------------------------------------------


def test_peak_memory_on_cuda_is_torchs_and_says_so():
    peak = runtime.peak_memory(fake_torch((7, 5)))
    assert peak.bytes == runtime.peak_memory_bytes(fake_torch((7, 5))) == 123_456
    assert "tensors on the GPU" in str(peak)


def test_peak_memory_on_cpu_rises_with_the_process_and_says_so():
    before = runtime.peak_memory(fake_torch())
    block = bytearray(before.bytes + 64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])  # touch every page
    after = runtime.peak_memory(fake_torch())
    assert after.bytes >= before.bytes + 32 * 2**20
    assert "whole process" in str(after)


# --- noise and versions ----------------------------------------------------------------------------------


def test_quiet_drops_the_harmless_line_and_no_other(caplog):
    runtime.quiet()
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    with caplog.at_level(logging.WARNING, logger=logger.name):
        logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "no kernels")
        logger.warning("something else is wrong")
    assert [record.getMessage() for record in caplog.records] == ["something else is wrong"]


def test_quiet_drops_the_harmless_warning_and_no_other():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        runtime.quiet()
        warnings.warn(
            "`is_gradient_checkpointing` is deprecated and will be removed", FutureWarning, stacklevel=1
        )
        warnings.warn("`gradient_checkpointing_enable` is deprecated", FutureWarning, stacklevel=1)
        warnings.warn("`gradient_checkpointing_enable` is deprecated", UserWarning, stacklevel=1)
        warnings.warn("`use_cache` is deprecated", FutureWarning, stacklevel=1)
    assert [(w.category, str(w.message)[:17]) for w in seen] == [
        (UserWarning, "`gradient_checkpo"),
        (FutureWarning, "`use_cache` is de"),
    ]


def test_importing_bitsandbytes_after_quiet_prints_nothing():
    code = "from onegpu import runtime; runtime.quiet(); import bitsandbytes"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_importing_the_ground_floor_loads_nothing_heavy():
    code = (
        "import sys, onegpu.runtime, onegpu.models;"
        "print([m for m in ('torch', 'transformers', 'numpy', 'pandas', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_versions_print_as_one_line_and_prefer_what_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", SimpleNamespace(__version__="0.0.1"))
    found = runtime.versions()
    assert found["peft"] == "0.0.1"
    assert found["torch"] == torch.__version__
    assert "\n" not in str(found)
    assert str(found).startswith("python 3.")


# --- the hub ---------------------------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch):
    """Let the hub be asked, by way of a session that the test gives."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def answer(head):
        monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=head))

    return answer


@pytest.mark.parametrize(("status", "reachable"), [(200, True), (404, True), (403, False), (502, False)])
def test_a_proxy_that_forbids_the_hub_is_no_hub(online, status, reachable):
    online(lambda *args, **kwargs: SimpleNamespace(status_code=status))
    assert environment.hub_reachable()[0] is reachable


def test_a_hub_that_hangs_costs_no_more_than_the_limit(online):
    online(lambda *args, **kwargs: time.sleep(5))
    start = time.perf_counter()
    reachable, words = environment.hub_reachable(timeout_s=0.2)
    assert not reachable
    assert "did not answer within 0.2 s" in words
    assert time.perf_counter() - start < 2


def test_an_unreachable_hub_is_reported_with_the_reason(online):
    def refuse(*args, **kwargs):
        raise ConnectionError("Name or service not known")

    online(refuse)
    reachable, words = environment.hub_reachable()
    assert not reachable
    assert "Name or service not known" in words


def test_the_offline_environment_is_respected(online, monkeypatch):
    online(lambda *args, **kwargs: pytest.fail("the hub was asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert environment.hub_reachable() == (False, "HF_HUB_OFFLINE is set")
