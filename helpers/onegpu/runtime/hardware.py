"""What machine is this, and which number format does one train in on it?

One function decides the precision, from the compute capability of the device; everything else asks it.
``torch.cuda.is_bf16_supported()`` is not asked: it says True on a T4 (capability 7.5), where bf16 is emulated
(pytorch#148322, pytorch#124996).
"""

from __future__ import annotations

import importlib
import os
import platform
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GIB = 2**30
BF16_CAPABILITY = (8, 0)  # Ampere: the first generation with bf16 arithmetic in hardware


@dataclass(frozen=True)
class Machine:
    """The machine a model runs on. Sizes are in bytes.

    ``total_memory_bytes`` is the memory of ``device``: the card's on CUDA, what may be used of RAM on a CPU.
    ``cpu_cores`` and ``ram_bytes`` are what this process may use (affinity and container limits included), which
    may be less than the host has.
    """

    device: str
    name: str
    compute_capability: tuple[int, int] | None
    total_memory_bytes: int
    cpu_cores: int
    ram_bytes: int
    colab: bool = False
    devices: int = 1

    def __str__(self) -> str:
        what = self.name if self.devices == 1 else f"{self.devices} x {self.name}"
        if self.compute_capability is not None:
            major, minor = self.compute_capability
            what += f" (compute capability {major}.{minor}, {self.total_memory_bytes / GIB:.2f} GiB)"
        where = " on Colab" if self.colab else ""
        return f"{self.device}: {what}, {self.cpu_cores} CPU cores, {self.ram_bytes / GIB:.1f} GiB RAM{where}"


@dataclass(frozen=True)
class Precision:
    """The number format to train in, and why.

    ``autocast`` is the dtype of the matrix products ("float16", "bfloat16" or None for plain fp32). Trainable
    parameters are always fp32: with fp16 ones a gradient scaler refuses to work ("Attempting to unscale FP16
    gradients", transformers#23165).
    """

    autocast: str | None
    grad_scaler: bool
    reason: str
    trainable: str = "float32"

    @property
    def fp16(self) -> bool:
        """Whether to train with fp16 autocast (as ``TrainingArguments(fp16=...)``)."""
        return self.autocast == "float16"

    @property
    def bf16(self) -> bool:
        """Whether to train with bf16 autocast (as ``TrainingArguments(bf16=...)``)."""
        return self.autocast == "bfloat16"

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of frozen weights and of matrix products."""
        import torch

        return getattr(torch, self.autocast or "float32")

    def __str__(self) -> str:
        if self.autocast is None:
            return f"float32 throughout: {self.reason}"
        scaler = " with a gradient scaler" if self.grad_scaler else ""
        return f"{self.autocast} autocast{scaler}, trainable parameters {self.trainable}: {self.reason}"


def machine(torch: Any = None) -> Machine:
    """Describe the device that training would use, and the host around it.

    Parameters
    ----------
    torch
        The torch module; a stand-in with ``cuda`` and ``backends`` may be given to describe another machine.

    Examples
    --------
    >>> here = machine()
    >>> here.device in ("cuda", "mps", "cpu"), here.cpu_cores >= 1
    (True, True)
    """
    if torch is None:
        torch = importlib.import_module("torch")
    ram_bytes = _ram_bytes()
    host = {"cpu_cores": _cpu_cores(), "ram_bytes": ram_bytes, "colab": on_colab()}
    if torch.cuda.is_available():
        index = torch.cuda.current_device()
        return Machine(
            device="cuda",
            name=torch.cuda.get_device_name(index),
            compute_capability=tuple(torch.cuda.get_device_capability(index)),
            total_memory_bytes=int(torch.cuda.get_device_properties(index).total_memory),
            devices=torch.cuda.device_count(),
            **host,
        )
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return Machine("mps", _cpu_name(), None, int(torch.mps.recommended_max_memory()), **host)
    return Machine("cpu", _cpu_name(), None, ram_bytes, **host)


def precision(on: Machine | None = None) -> Precision:
    """Decide what to train in, from the compute capability alone.

    Parameters
    ----------
    on
        A machine; this one if not given.

    Examples
    --------
    >>> t4 = Machine("cuda", "Tesla T4", (7, 5), 15_828_320_256, 2, 13 * 2**30)
    >>> print(precision(t4))
    float16 autocast with a gradient scaler, trainable parameters float32: compute capability 7.5 is below 8.0, so bf16 would be emulated
    >>> precision(Machine("cpu", "a CPU", None, 2**34, 2, 2**34)).autocast is None
    True
    """
    on = machine() if on is None else on
    if on.compute_capability is None:
        return Precision(None, False, f"{on.device} has no CUDA device")
    major, minor = on.compute_capability
    if on.compute_capability >= BF16_CAPABILITY:
        return Precision(
            "bfloat16", False, f"compute capability {major}.{minor} is at least 8.0, so bf16 runs in hardware"
        )
    return Precision(
        "float16", True, f"compute capability {major}.{minor} is below 8.0, so bf16 would be emulated"
    )


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators (CUDA included).

    Raises
    ------
    ValueError
        If the seed isn't an integer from 0 to 2**32 - 1, the range NumPy takes.

    Examples
    --------
    >>> seed_everything(0); first = random.random()
    >>> seed_everything(0); random.random() == first
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}, expected an integer from 0 to {2**32 - 1}")
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)  # seeds every CUDA device too


@dataclass(frozen=True)
class PeakMemory:
    """The highest memory use so far, in bytes, and what was measured.

    The two kinds are not comparable: on CUDA it is what torch's tensors took (without the CUDA context), on a
    CPU the resident size of the whole process, Python and libraries included.
    """

    bytes: int
    measured: str

    def __str__(self) -> str:
        return f"{self.bytes / GIB:.2f} GiB ({self.measured})"


def peak_memory(torch: Any = None) -> PeakMemory:
    """Measure the peak memory use of this process so far, and say what that means on this device.

    Examples
    --------
    >>> peak_memory().bytes > 0
    True
    """
    torch = sys.modules.get("torch") if torch is None else torch
    if torch is not None and torch.cuda.is_available():
        return PeakMemory(
            int(torch.cuda.max_memory_allocated()), "torch.cuda.max_memory_allocated: tensors on the GPU"
        )
    return PeakMemory(_peak_rss_bytes(), "peak resident set size of the whole process")


def peak_memory_bytes(torch: Any = None) -> int:
    """Return the bytes of ``peak_memory()``; ask that one for what was measured."""
    return peak_memory(torch).bytes


def reset_peak_memory(torch: Any = None) -> bool:
    """Start a new peak where the system allows it (CUDA, Linux), and say whether it did."""
    torch = sys.modules.get("torch") if torch is None else torch
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return True
    try:  # Linux: writing 5 resets VmHWM, the peak resident set size
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_rss_bytes() -> int:
    try:  # VmHWM can be reset, ru_maxrss can't
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB on Linux


def _cpu_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: its affinity, cut by the container's quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def _ram_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """RAM this process may use: the host's, cut by the container's limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            total = min(total, int(limit))
    except (OSError, ValueError):
        pass
    return total


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def on_colab() -> bool:
    """Whether this is a session of Google Colab."""
    return "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules


def on_session_machine() -> bool:
    """Whether this machine lives as long as the session and is the learner's alone (Colab, Kaggle).

    Only there may a notebook install packages by itself.
    """
    return on_colab() or "KAGGLE_KERNEL_RUN_TYPE" in os.environ
