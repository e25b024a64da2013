"""The memory explorer of topic 05: model, method, batch, length and tricks against the cards."""

from __future__ import annotations

import functools
from typing import Any

from matplotlib.figure import Figure

from onegpu.dtype_sizing import GPU_MEMORY_BYTES, format_bytes
from onegpu.gpu_memory import MemoryBreakdown, closed_form
from onegpu.plots.gpu_memory import stacked
from onegpu.widgets.base import choice, explore, slider, switch

MODELS = (
    "smollm2-135m",
    "smollm2-1.7b",
    "polyglot-ko-1.3b",
    "qwen2.5-1.5b",
    "qwen3-4b",
    "llama-2-7b",
    "llama-3-8b",
)
CARDS = ("T4", "L4", "A100-40GB", "A100-80GB")
LENGTHS = (128, 256, 512, 1024, 2048)
OPTIMIZERS = ("adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd")


@functools.lru_cache(maxsize=64)
def _predict(**settings: Any) -> MemoryBreakdown:
    return closed_form(settings.pop("model"), gpu="L4", **settings)


def memory_picture(
    model: str,
    method: str,
    batch_size: int,
    length: int,
    checkpointing: bool,
    supervised: bool,
    optimizer: str,
) -> tuple[Figure, str]:
    """Draw the peak of a training step by category, with the cards as lines, and say which it fits.

    Examples
    --------
    >>> _, sentence = memory_picture("llama-2-7b", "qlora", 1, 512, True, False, "adamw_torch")
    >>> "T4" in sentence
    True
    """
    found = _predict(
        model=model, method=method, batch_size=batch_size, sequence_length=length, optimizer=optimizer,
        gradient_checkpointing=checkpointing, logits="supervised" if supervised else "all",
    )  # fmt: skip
    bars = {"peak": found.peak.by_category, "after the step": found["after_step"].by_category}
    drawn = stacked(bars, title=f"{model}, {method}, {batch_size} x {length} tokens", cards=CARDS, height=3.4)
    needed = found.peak_bytes + found.setup.gpu.context_bytes[1]
    fitting = [card for card in CARDS if needed <= GPU_MEMORY_BYTES[card]]
    sentence = f"The peak is {format_bytes(found.peak_bytes, 'GiB')}, in {found.peak.where}; " + (
        f"the smallest card it fits on is the {fitting[0]}." if fitting else "it fits on none of these cards."
    )
    return drawn, sentence


def explorer() -> None:
    """Show the explorer. Cards are drawn where they are within the picture; kernels are an L4's."""
    explore(
        memory_picture,
        model=choice("model", MODELS, "llama-2-7b"),
        method=choice("method", ("full", "lora", "qlora"), "qlora"),
        batch_size=slider("batch size", 4, 1, 32),
        length=choice("length (tokens)", LENGTHS, 512),
        checkpointing=switch("gradient checkpointing", True),
        supervised=switch("logits of supervised tokens only", False),
        optimizer=choice("optimizer", OPTIMIZERS),
    )
