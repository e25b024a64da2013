"""The memory explorer of topic 05: model, method, batch, length and tricks against the cards."""

from __future__ import annotations

import functools
from typing import Any

from matplotlib.figure import Figure

from onegpu.dtype_sizing import format_bytes
from onegpu.gpu_memory import MemoryBreakdown, closed_form, judge
from onegpu.plots.gpu_memory import stacked
from onegpu.runtime import COURSE_CARDS
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
LENGTHS = (128, 256, 512, 1024, 2048)
LEAST_SHARE = 0.15  # of a card: a smaller peak would be too thin beside the card's line
OPTIMIZERS = ("adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd")


@functools.lru_cache(maxsize=256)
def _predict(**settings: Any) -> MemoryBreakdown:
    return closed_form(settings.pop("model"), **settings)


def memory_picture(
    model: str,
    method: str,
    batch_size: int,
    length: int,
    checkpointing: bool,
    supervised: bool,
    optimizer: str,
) -> tuple[Figure, str]:
    """Draw the peak of a training step by category, on the smallest card it fits on, with that card's line.

    Examples
    --------
    >>> _, sentence = memory_picture("llama-2-7b", "qlora", 1, 512, True, False, "adamw_torch")
    >>> "T4" in sentence
    True
    """
    by_card = {
        card: _predict(
            model=model, method=method, per_device_train_batch_size=batch_size, max_length=length, optim=optimizer,
            gradient_checkpointing=checkpointing, loop="onegpu" if supervised else "plain", gpu=card,
        )
        for card in COURSE_CARDS
    }  # fmt: skip
    card = next((card for card, found in by_card.items() if judge(found)), None)
    found = by_card[card or COURSE_CARDS[-1]]
    total = found.setup.gpu.total_bytes
    bars = {"peak": found.peak.by_category, "after the step": found["after_step"].by_category}
    drawn = stacked(
        bars,
        title=f"{model}, {method}, {batch_size} x {length} tokens",
        cards=COURSE_CARDS,
        reach=total if found.peak_bytes > LEAST_SHARE * total else 0,
        height=3.4,
    )
    where = f"the peak is {format_bytes(found.peak_bytes, 'GiB')}, in {found.peak.where}"
    if card is None:
        return drawn, f"By formula it fits on none of these cards: on the largest {where}."
    share = f"{100 * found.peak_bytes / total:.0f} % of it"
    return (
        drawn,
        f"By formula, an estimate, the smallest card it fits on is the {card}; there {where}, {share}.",
    )


def explorer() -> None:
    """Show the explorer, which judges by formula. Each card is asked for itself: kernels and dtypes differ."""
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
