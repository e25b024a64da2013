"""The one table of cards: how much memory torch can use on each, what of its kind decides about memory, how fast it is.

A card's memory isn't all for tensors. The CUDA context (driver, kernels, cuBLAS) takes a part that no torch counter
shows: it is the distance between ``nvidia-smi`` and ``torch.cuda.memory_reserved()``. It depends on card, driver, CUDA
version and which kernels were loaded. Where it was measured on a card it is that number; elsewhere a range: 300 to 550
MiB since CUDA 11.7 loads kernels when they are first used, 700 to 1,400 MiB before (1,343 MiB on a V100 with CUDA 11.2;
pytorch#107667, pytorch#37250).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from types import MappingProxyType

from onegpu.runtime.hardware import BF16_CAPABILITY, GIB, machine

MIB = 2**20
LAZY_CONTEXT_BYTES = (300 * MIB, 550 * MIB)
EAGER_CONTEXT_BYTES = (700 * MIB, 1400 * MIB)
CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * 1024  # CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8, the default
HOPPER_CUBLAS_WORKSPACE_BYTES = 4096 * 8 * 1024
# Of the size on the box, for cards of which no page with card and total was found; all are GeForce cards. The twelve
# GeForce cards of the table that have a total have 0.966 to 0.987 of it (median 0.978); this is the lower quartile, for
# too much memory promised is worse than too little. (The others have 0.976 to 0.993, or 0.910 to 0.933 where
# error-correcting codes lie in the same memory.)
_USABLE = 0.972


@dataclass(frozen=True)
class Gpu:
    """A card (or the CPU, which has no context, no workspace and no rounding).

    Attributes
    ----------
    name
        As in the table, such as "T4".
    total_bytes
        What ``torch.cuda.get_device_properties().total_memory`` says: less than the name on the box. None for the CPU.
    compute_capability
        (major, minor); decides which attention kernel runs and which 16-bit format is native.
    context_bytes
        Lowest and highest CUDA context seen, in bytes.
    tflops
        Dense 16-bit matrix products with fp32 sums, in 10^12 operations a second, as NVIDIA publishes them; None where
        it isn't known.
    fp32_tflops
        Of fp32 numbers, without TF32.
    bandwidth
        Of its memory, in 10^9 bytes a second, as NVIDIA publishes it.
    source
        Where the total is from.
    """

    name: str
    total_bytes: int | None
    compute_capability: tuple[int, int] | None
    context_bytes: tuple[int, int] = LAZY_CONTEXT_BYTES
    tflops: float | None = None
    fp32_tflops: float | None = None
    bandwidth: int | None = None
    source: str = ""

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
        return "bf16" if self.compute_capability >= BF16_CAPABILITY else "fp16"

    def __str__(self) -> str:
        if self.is_cpu:
            return "CPU"
        low, high = (f"{n / MIB:,.0f}" for n in self.context_bytes)
        context = f"{low} MiB" if low == high else f"{low} to {high} MiB"
        return f"{self.name} ({self.total_bytes / GIB:.2f} GiB, CUDA context {context})"


def _card(
    name: str, sold: int, capability: tuple[int, int], tflops: float | None, fp32_tflops: float, bandwidth: int,
    total: float | None = None, source: str = "out-of-memory messages",
) -> Gpu:  # fmt: skip
    """One line of the table: GiB on the box, and the total on a public page that names the card, where one was found."""
    if total is None:
        total, source = sold * _USABLE, f"{_USABLE:.1%} of the {sold} GiB on the box, as of cards like it"
    return Gpu(
        name,
        round(total * 1024) * MIB,
        capability,
        LAZY_CONTEXT_BYTES,
        tflops,
        fp32_tflops,
        bandwidth,
        source,
    )


_T4_SOURCE = (
    "fitcheck-llm 0.3.1, data/measurements (79 rows, torch 2.10 and 2.14); ten public out-of-memory messages"
)
_CELLFINDER = "brainglobe/brainglobe.github.io, cellfinder's page on speed"

GPUS = MappingProxyType({
    gpu.name: gpu
    for gpu in (
        Gpu("T4", 14_912 * MIB, (7, 5), (147_718_144, 147_718_144), 65, 8.1, 320, _T4_SOURCE),  # context 140.875 MiB
        _card("P40", 24, (6, 1), None, 11.8, 347, 22.38, "LinkSoul-AI/Chinese-Llama-2-7b#56"),
        _card("P100-16GB", 16, (6, 0), 18.7, 9.3, 732, 15.89, "mlcommons/training#100"),
        _card("V100-16GB", 16, (7, 0), 125, 15.7, 900, 15.77, "nomic-ai/gpt4all#544"),
        _card("V100-32GB", 32, (7, 0), 125, 15.7, 900, 31.74, "liucongg/ChatGLM-Finetuning#73"),
        _card("RTX-2080-Ti", 11, (7, 5), 53.8, 13.4, 616, 10.76, "JDAI-CV/image-captioning#11"),
        _card("TITAN-RTX", 24, (7, 5), 65.3, 16.3, 672, 23.62, _CELLFINDER + ", before its move to torch"),
        _card("RTX-8000", 48, (7, 5), 130.5, 16.3, 672, 47.46, "Victarry/stable-dreambooth#8"),
        _card("RTX-3060-12GB", 12, (8, 6), 25.6, 12.8, 360, 11.75, "Kunhao-Liu/StyleGaussian#12"),
        _card("RTX-3070", 8, (8, 6), 40.6, 20.3, 448, 7.78, "meta-llama/codellama#82"),
        _card("RTX-3080-10GB", 10, (8, 6), 59.5, 29.8, 760, 9.78, "zai-org/CogVideo#34"),
        _card("RTX-3080-Ti", 12, (8, 6), 68.2, 34.1, 912),
        _card("RTX-3090", 24, (8, 6), 71.2, 35.6, 936, 23.69, "ultralytics/ultralytics#5359"),
        _card("RTX-3090-Ti", 24, (8, 6), 80.0, 40.0, 1008),
        _card("RTX-A4000", 16, (8, 6), 76.7, 19.2, 448, 15.61, "DengKaiCQ/VGGT-Long#6"),
        _card("RTX-A5000", 24, (8, 6), 111.1, 27.8, 768, 23.68, "zai-org/GLM-4#730"),
        _card("RTX-A6000", 48, (8, 6), 154.8, 38.7, 768, 47.54, "PKU-YuanGroup/Video-LLaVA#66"),
        _card("A10", 24, (8, 6), 125, 31.2, 600, 21.99, "zai-org/CogVLM#236"),
        _card("A10G", 24, (8, 6), 70, 35.0, 600, 22.06, "TorchCodec's example of decoding with CUDA"),
        _card("A30", 24, (8, 0), 165, 10.3, 933, 23.53, "google/RB-Modulation#5"),
        _card("A40", 48, (8, 6), 149.7, 37.4, 696, 44.35, "pyscf/gpu4pyscf#304"),
        _card("A100-40GB", 40, (8, 0), 312, 19.5, 1555, 39.39, "bottlerocket-os/bottlerocket#3873"),
        _card("A100-80GB", 80, (8, 0), 312, 19.5, 2039, 79.10),
        _card("L4", 24, (8, 9), 121, 30.3, 300, 22.03),
        _card("L40", 48, (8, 9), 181, 90.5, 864, 44.40, "QwenLM/Qwen3-VL#2097"),
        _card("L40S", 48, (8, 9), 362, 91.6, 864, 44.42, "stepfun-ai/Step-Video-T2V#8"),
        _card("RTX-4000-Ada", 20, (8, 9), 106.9, 26.7, 360, 19.54, "kaustubh-dot/nlp-transport-assistant, docs/nlp_v2/training_decision.md"),
        _card("RTX-6000-Ada", 48, (8, 9), 364.2, 91.1, 960, 44.43, "DINGYANB/MTVCrafter#21"),
        _card("RTX-4060", 8, (8, 9), 30.2, 15.1, 272, 7.75, "ESRSchao/EdgeRegNet#2"),
        _card("RTX-4060-Ti-16GB", 16, (8, 9), 44.1, 22.1, 288),
        _card("RTX-4070", 12, (8, 9), 58.3, 29.1, 504),
        _card("RTX-4070-Ti-Super", 16, (8, 9), 88.2, 44.1, 672, 15.60, "kinggongzilla/whatsapp-ai-clone#12"),
        _card("RTX-4080", 16, (8, 9), 97.5, 48.7, 717, 15.67, _CELLFINDER),
        _card("RTX-4090", 24, (8, 9), 165.2, 82.6, 1008, 23.51, "unslothai/unsloth#3542"),
        _card("H100-80GB", 80, (9, 0), 989, 66.9, 3350, 79.11, "vllm-project/vllm#27508"),
        _card("H200", 141, (9, 0), 989, 66.9, 4800, 139.80, "ai-bot-pro/achatbot, deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"),
        _card("RTX-5060-Ti-16GB", 16, (12, 0), 47.4, 23.7, 448, 15.45, "Luce-Org/lucebox#407"),
        _card("RTX-5070", 12, (12, 0), 61.7, 30.9, 672),
        _card("RTX-5070-Ti", 16, (12, 0), 87.9, 43.9, 896),
        _card("RTX-5080", 16, (12, 0), 112.6, 56.3, 960, 15.47),
        _card("RTX-5090", 32, (12, 0), 209.5, 104.8, 1792, 31.36, "TrajectoryCrafter/TrajectoryCrafter#20"),
        _card("RTX-PRO-6000", 96, (12, 0), 503.8, 125.0, 1792, 94.97, "antirez/ds4#431"),
        _card("B200", 180, (10, 0), 2250, 75.0, 7700, 178.35, "stas00/ml-engineering, debug/pytorch.md"),
        Gpu("CPU", None, None, (0, 0)),
    )
})  # fmt: skip
"""Cards by name. A total is the smallest found on public pages that name the card: in out-of-memory messages or in what
torch, TensorFlow or CUDA print of it. Drivers differ a little, Windows and WSL give the whole size, and the RTX-A6000's
and RTX-4000-Ada's are without error-correcting codes, which take another 6 to 7 % where switched on, as they are on the
RTX-6000-Ada. Rates are those of NVIDIA's data sheets and architecture whitepapers, without sparsity. Where collections
of figures differ from them, the data sheets stand: for the A10G 35 (fp32) and 70 (16 bits), not the A10's 31.2 and 125;
for the L40 181 in 16 bits, half the L40S's, though its cores and highest clock come to 362; for the L4 30.3 and 121
(242 with sparsity), not the 31.3 and 125 of its cores and highest clock."""

COURSE_CARDS = ("T4", "L4", "A100-40GB", "A100-80GB")
"""The cards that Colab lends: what the lessons' figures and explorers show."""

_ALIASES = {
    "a100": "A100-80GB",
    "v100": "V100-16GB",
    "p100": "P100-16GB",
    "h100": "H100-80GB",
    "3060": "RTX-3060-12GB",
    "3080": "RTX-3080-10GB",
    "4060ti": "RTX-4060-Ti-16GB",
    "5060ti": "RTX-5060-Ti-16GB",
    "quadro8000": "RTX-8000",
    "6000pro": "RTX-PRO-6000",
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(GiB|GB|MiB|MB)\s*", re.IGNORECASE)
_SIZES = {"gib": GIB, "gb": 10**9, "mib": MIB, "mb": 10**6}
_WORDS = re.compile(
    r"nvidia|geforce|tesla|graphics|gpu|rtx|gtx|generation|blackwell|workstation|edition|sxm\d?|pcie|hbm\d?e?|[^a-z0-9]"
)


def find_gpu(gpu: str | Gpu) -> Gpu:
    """Return a card by any usual spelling of its name ("a100" alone is the 80 GB one), or one of a given size.

    A size, such as "24GiB", is a card of Ampere's kind (bf16, flash attention) with so much memory.

    Raises
    ------
    ValueError
        For a name that isn't in the list; the message says what is near.

    Examples
    --------
    >>> [find_gpu(name).name for name in ("t4", "a100-40gb", "NVIDIA GeForce RTX 4090", "rtx 3060", "NVIDIA L4")]
    ['T4', 'A100-40GB', 'RTX-4090', 'RTX-3060-12GB', 'L4']
    >>> find_gpu("24GiB").total_bytes == 24 * 2**30
    True
    """
    if isinstance(gpu, Gpu):
        return gpu
    text = str(gpu)
    size = _SIZE.fullmatch(text)
    if size is not None:
        total = int(float(size[1]) * _SIZES[size[2].lower()])
        if total < GIB:
            raise ValueError(f"gpu is {text!r}, expected a card of at least 1 GiB, for instance '24GiB'")
        return Gpu(f"{size[1]} {size[2]} card", total, BF16_CAPABILITY, source="as given")
    wanted = _plain(text)
    wanted = _plain(_ALIASES[wanted]) if wanted in _ALIASES else wanted
    for name, found in GPUS.items():
        if _plain(name) == wanted:
            return found
    near = difflib.get_close_matches(wanted, [_plain(name) for name in GPUS], 3, 0.5) if wanted else []
    names = [name for name in GPUS if _plain(name) in near] or list(COURSE_CARDS)
    raise ValueError(
        f"unknown GPU {text!r}: near are {', '.join(names)}; a size such as '24GiB' does too. "
        f"onegpu.runtime.GPUS lists all {len(GPUS)} (`onegpu memory --gpus`)"
    )


def _plain(name: str) -> str:
    return _WORDS.sub("", name.lower())


def this_gpu() -> Gpu:
    """Describe the card of this machine, with what the table knows of its kind; or the CPU."""
    here = machine()
    if here.device != "cuda":
        return GPUS["CPU"]
    kind = next((g for g in GPUS.values() if _plain(g.name) == _plain(here.name)), None)
    known = {} if kind is None else {"context_bytes": kind.context_bytes, "tflops": kind.tflops,
                                     "fp32_tflops": kind.fp32_tflops, "bandwidth": kind.bandwidth}  # fmt: skip
    return Gpu(here.name, here.total_memory_bytes, here.compute_capability, source="this machine", **known)
