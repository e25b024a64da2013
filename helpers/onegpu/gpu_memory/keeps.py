"""What a version of transformers keeps alive: buffers, cache, and what the loss makes of the logits.

The same training code leaves 12.16, 11.77 or 10.92 GiB allocated after a step, by version alone. The older ones are
kept here for the figures that were published with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onegpu.gpu_memory.architecture import Architecture
from onegpu.gpu_memory.layer_forms import Form, Numbers


@dataclass(frozen=True)
class Keeps:
    """What one version keeps.

    Attributes
    ----------
    versions
        Which they are.
    buffers
        From an architecture: a list of (sizes, form).
    cache
        From the numbers: sizes that one layer's cache entry keeps alive, and their form.
    loss_forward
        (ledger, numbers) to (kept, scratch).
    loss_backward
        (ledger, numbers, kept): yields the logits' gradient once it is there and the rest is gone.
    warm_up
        Whether loading takes one large segment first.
    families
        For which architectures this is known.
    """

    versions: str
    buffers: Callable[[Architecture], list[tuple[list[int], Form]]]
    cache: Callable[[Numbers], tuple[list[int], Form]]
    loss_forward: Callable[[Any, Numbers], tuple[list[Any], list[Any]]]
    loss_backward: Callable[[Any, Numbers, list[Any]], Any]
    warm_up: bool = True
    families: tuple[str, ...] = ("llama", "gpt_neox", "gpt2")

    def check(self, arch: Architecture, setup: Any) -> None:
        """See that this is known for an architecture and a loop."""
        if arch.family not in self.families or (self.families == ("gpt_neox",) and setup.loop != "plain"):
            raise ValueError(
                f"what transformers {self.versions} keeps is known for {', '.join(self.families)} in a plain loop, "
                f"not for {arch.family} in loop={setup.loop!r}: use keeps='installed'"
            )


# --- transformers 5, and 4.56 -----------------------------------------------------------------------------------


def _rotary_frequencies(arch: Architecture) -> list[tuple[list[int], Form]]:
    if not arch.rotary:
        return []
    size = 2 * arch.rotary
    return [([size, size], Form(f"2 x 4 d/2 = 2 x {size}", "rotary frequencies, and a copy"))]


def _copied_cache(n: Numbers) -> tuple[list[int], Form]:
    size = n.c * n.T * n.arch.kv_width
    return [size, size], Form(
        f"2 c T g d = 2 x {n.c} x {n.T:,} x {n.arch.kv_width:,}", "keys and values: `outputs` holds the cache"
    )


def _fp32_loss_forward(ledger: Any, n: Numbers) -> tuple[list[Any], list[Any]]:
    size = n.T * n.arch.vocab
    scratch = []
    if n.l == 2:
        scratch.append(
            ledger.take(
                "logits_and_loss", 4 * size, form=Form("4 T V", "the logits once more in fp32, for the loss")
            )
        )
    kept = ledger.take(
        "logits_and_loss", 4 * size, form=Form("4 T V", "log-softmax, kept for the backward pass")
    )
    if n.setup.loop == "trainer" and n.setup.mixed_precision:
        # accelerate turns the model's outputs to fp32, when the loss has let go of its own copy
        ledger.give(*scratch)
        scratch = [
            ledger.take(
                "logits_and_loss", 4 * size, form=Form("4 T V", "accelerate's fp32 copy of the outputs")
            )
        ]
    return [kept], scratch


def _fp32_loss_backward(ledger: Any, n: Numbers, kept: list[Any]):
    size = n.T * n.arch.vocab
    by_token = ledger.take(
        "logits_and_loss", 4 * size, form=Form("4 T V", "gradient of the log-probabilities")
    )
    gradient = ledger.take("logits_and_loss", 4 * size, form=Form("4 T V", "gradient of the logits"))
    ledger.give(by_token, *kept)
    if n.l == 2:
        low = ledger.take("logits_and_loss", 2 * size)
        ledger.give(gradient)
        gradient = low
    yield gradient


# --- transformers 4.40 to 4.48, GPT-NeoX ------------------------------------------------------------------------


def _mask_buffers(rotary_table: bool):
    def buffers(arch: Architecture) -> list[tuple[list[int], Form]]:
        L, positions = arch.layers, 2048
        found = [
            ([positions * positions] * L, Form(f"L 2048^2 = {L} x {positions**2:,}", "a causal mask in every layer, one byte an entry")),
            ([4, 4 * arch.rotary // 2] * L, Form("L (2 + 2 d)", "a mask value and rotary frequencies in every layer")),
        ]  # fmt: skip
        if rotary_table:
            table = 4 * positions * arch.rotary
            found.append(
                ([table, table] * L, Form(f"L 2 x 4 x 2048 x {arch.rotary}", "tables of cosines and sines"))
            )
        else:
            found.append(([4 * arch.rotary // 2], Form("2 d", "rotary frequencies of the model")))
        return found

    return buffers


def _pinned_cache(key_bytes: int):
    def cache(n: Numbers) -> tuple[list[int], Form]:
        q = n.arch.query_width
        return [key_bytes * n.T * q, 3 * n.c * n.T * q], Form(
            f"({key_bytes} + 3 c) T a d = {key_bytes + 3 * n.c} x {n.T:,} x {q:,}",
            f"keys in {'fp32' if key_bytes == 4 else 'fp16'}; values are a view, and hold the whole fused projection",
        )

    return cache


def _shifted_loss_forward(ledger: Any, n: Numbers) -> tuple[list[Any], list[Any]]:
    size = n.l * (n.T - n.B) * n.arch.vocab
    shifted = ledger.take("logits_and_loss", size, form=Form("l (T - B) V", "logits without each row's last"))
    kept = ledger.take(
        "logits_and_loss", size, form=Form("l (T - B) V", "log-softmax, kept for the backward pass")
    )
    return [kept], [shifted]


def _shifted_loss_backward(ledger: Any, n: Numbers, kept: list[Any]):
    size = n.l * (n.T - n.B) * n.arch.vocab
    by_token = ledger.take(
        "logits_and_loss", size, form=Form("l (T - B) V", "gradient of the log-probabilities")
    )
    gradient = ledger.take("logits_and_loss", size, form=Form("l (T - B) V", "gradient of the logits"))
    ledger.give(by_token, *kept)
    whole = ledger.take("logits_and_loss", n.l * n.T * n.arch.vocab)
    ledger.give(gradient)
    yield whole


KEEPS = {
    "installed": Keeps(
        "5 (and 4.56)", _rotary_frequencies, _copied_cache, _fp32_loss_forward, _fp32_loss_backward
    ),
    "4.46": Keeps(
        "4.45 to 4.48",
        _mask_buffers(False),
        _pinned_cache(2),
        _shifted_loss_forward,
        _shifted_loss_backward,
        warm_up=False,
        families=("gpt_neox",),
    ),
    "4.40": Keeps(
        "4.40 to 4.44",
        _mask_buffers(True),
        _pinned_cache(4),
        _shifted_loss_forward,
        _shifted_loss_backward,
        warm_up=False,
        families=("gpt_neox",),
    ),
}
"""By the name that ``closed_form(keeps=...)`` takes."""
