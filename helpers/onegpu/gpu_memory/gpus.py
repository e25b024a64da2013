"""The cards: how much memory torch can use on them, and what of their kind decides about memory.

A card's memory isn't all for tensors. The CUDA context (driver, kernels, cuBLAS) takes a part that no torch counter
shows: it is the distance between ``nvidia-smi`` and ``torch.cuda.memory_reserved()``. It depends on driver, CUDA
version and which kernels were loaded, so it is a range here: 300 to 550 MiB since CUDA 11.7 loads kernels when they are
first used, 700 to 1,400 MiB before (1,343 MiB on a V100 with CUDA 11.2; pytorch#107667, pytorch#37250).
"""

from __future__ import annotations

from dataclasses import dataclass

from onegpu.dtype_sizing import GPU_MEMORY_BYTES, format_bytes, parse_bytes

MIB = 2**20
LAZY_CONTEXT_BYTES = (300 * MIB, 550 * MIB)
EAGER_CONTEXT_BYTES = (700 * MIB, 1400 * MIB)
CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * 1024  # CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8, the default
HOPPER_CUBLAS_WORKSPACE_BYTES = 4096 * 8 * 1024


@dataclass(frozen=True)
class Gpu:
    """A card (or the CPU, which has no context, no workspace and no rounding).

    Attributes
    ----------
    name
        As in the catalogue, such as "T4".
    total_bytes
        What ``torch.cuda.get_device_properties().total_memory`` says: less than the name on the box. None for the CPU.
    compute_capability
        (major, minor); decides which attention kernel runs and which 16-bit format is native.
    context_bytes
        Lowest and highest CUDA context seen, in bytes.
    """

    name: str
    total_bytes: int | None
    compute_capability: tuple[int, int] | None
    context_bytes: tuple[int, int] = LAZY_CONTEXT_BYTES

    @property
    def is_cpu(self) -> bool:
        """Whether this is no card at all."""
        return self.compute_capability is None

    @property
    def cublas_workspace_bytes(self) -> int:
        """Scratch that cuBLAS keeps per handle: one for the forward thread, one for autograd's thread."""
        if self.is_cpu:
            return 0
        return (
            HOPPER_CUBLAS_WORKSPACE_BYTES if self.compute_capability[0] in (9, 10) else CUBLAS_WORKSPACE_BYTES
        )

    @property
    def dtype(self) -> str:
        """The dtype to keep weights in: bf16 where the hardware has it, else fp16; fp32 on the CPU."""
        if self.is_cpu:
            return "fp32"
        return "bf16" if self.compute_capability >= (8, 0) else "fp16"

    def __str__(self) -> str:
        if self.is_cpu:
            return "CPU"
        low, high = (format_bytes(n, "MiB", digits=0) for n in self.context_bytes)
        return f"{self.name} ({format_bytes(self.total_bytes, 'GiB')}, CUDA context {low} to {high})"


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", GPU_MEMORY_BYTES["T4"], (7, 5)),
        Gpu("V100-16GB", parse_bytes("15.77 GiB"), (7, 0)),
        Gpu("V100-32GB", parse_bytes("31.73 GiB"), (7, 0)),
        Gpu("L4", GPU_MEMORY_BYTES["L4"], (8, 9)),
        Gpu("A10G", parse_bytes("22.03 GiB"), (8, 6)),
        Gpu("RTX-3090", parse_bytes("23.69 GiB"), (8, 6)),
        Gpu("RTX-4090", parse_bytes("23.64 GiB"), (8, 9)),
        Gpu("A100-40GB", GPU_MEMORY_BYTES["A100-40GB"], (8, 0)),
        Gpu("A100-80GB", GPU_MEMORY_BYTES["A100-80GB"], (8, 0)),
        Gpu("H100-80GB", parse_bytes("79.11 GiB"), (9, 0)),
        Gpu("H200", parse_bytes("139.80 GiB"), (9, 0)),
        Gpu("CPU", None, None, (0, 0)),
    )
}
"""Cards by name. Totals are the smallest found in public out-of-memory messages; drivers differ a little."""

_ALIASES = {
    "a100": "A100-80GB",
    "v100": "V100-16GB",
    "h100": "H100-80GB",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
}


def find_gpu(gpu: str | Gpu) -> Gpu:
    """Return a card by its name, in any case; "a100" alone is the 80 GB one.

    Raises
    ------
    ValueError
        For a name that isn't in the list.

    Examples
    --------
    >>> find_gpu("t4").compute_capability, find_gpu("a100-40gb").name
    ((7, 5), 'A100-40GB')
    """
    if isinstance(gpu, Gpu):
        return gpu
    wanted = _ALIASES.get(str(gpu).lower(), str(gpu)).lower()
    for name, found in GPUS.items():
        if name.lower() == wanted:
            return found
    raise ValueError(f"unknown GPU {gpu!r}: expected one of {', '.join(GPUS)}")


def this_gpu() -> Gpu:
    """Describe the card of this machine, or the CPU."""
    from onegpu.runtime import machine

    here = machine()
    if here.device != "cuda":
        return GPUS["CPU"]
    return Gpu(here.name, here.total_memory_bytes, here.compute_capability)
