"""A self-check in numbers: does this very model keep packed examples apart, and is its head what we take it for?

Attention is told apart by ``packed_sdpa``, but convolutions, state-space layers and linear attention run over the join
of two examples, some attentions have a sink or a soft cap that ours lacks, and some heads do more than one product. A
list of such families is never complete; two forward passes are. What differs is trained the slow way, and the report
says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from onegpu.packed_training.attention import use_packed_attention
from onegpu.packed_training.loss import no_mask, supervised_loss
from onegpu.packed_training.packing import IGNORE_INDEX, collate_rows, share_start

EXAMPLES, TOKENS = 4, 128
"""Examples of the packed row that is tried, and tokens of each at most: a forward pass of a second or so."""

NEAR_JOIN = 16
"""First tokens of an example, where what leaks over a join shows most."""

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Nats per token that rounding may cost in a precision; a row laid out otherwise is summed in another order.

A row's first example has nothing before it, so what it differs by is rounding: later ones may differ by four times
that, and by a fifth of these bounds in any case.
"""


@dataclass(frozen=True)
class SelfCheck:
    """What was found, and so how the model is trained.

    Attributes
    ----------
    packed, chunked_head : bool
        As ``supervised_loss`` takes them.
    packed_difference, head_difference : float or None
        Nats per token: the largest root mean square difference near a join between packed row and examples alone; the
        difference of the mean loss between ``HeadLoss`` and the model's own logits. None: not tried.
    packed_tolerance, head_tolerance : float
        What they were held against.
    reason : str
        Why the row isn't packed, empty if it is.
    seconds : float
        What the check took.
    made : bool
        Whether there was a check at all; if not, what was asked for is believed.
    shared_start : bool
        As ``supervised_loss`` takes it. On a CPU, where the row that was tried begins alike in all its examples and each
        one's losses stay what they are.
    """

    packed: bool
    chunked_head: bool
    packed_difference: float | None
    head_difference: float | None
    packed_tolerance: float
    head_tolerance: float
    reason: str
    seconds: float
    made: bool = True
    shared_start: bool = False

    @property
    def layout(self) -> dict[str, bool]:
        """The arguments of ``supervised_loss`` that train this model right."""
        return {
            "packed": self.packed,
            "chunked_head": self.chunked_head,
            "shared_start": self.shared_start,
        }

    def __str__(self) -> str:
        if not self.made:
            return "switched off (self_check=False)"

        def of(difference: float | None, allowed: float) -> str:
            return "" if difference is None else f" ({difference:.1e} nats per token, allowed {allowed:.0e})"

        rows = of(self.packed_difference, self.packed_tolerance)
        head = of(self.head_difference, self.head_tolerance)

        if self.packed:
            said = [f"packed rows equal their examples alone{rows}"]
            if self.shared_start:
                said.append("what all of a row begin with is computed once")
        else:
            said = [f"one example per forward pass: {self.reason}{rows}"]
        if self.chunked_head:
            said.append(f"our head equals the model's logits{head}")
        elif self.head_difference is not None:
            said.append(f"the model's own head: ours differs{head}")
        return "; ".join(said)


def use_row_layout(
    model: torch.nn.Module,
    examples: Sequence[dict[str, Sequence[int]]],
    *,
    packing: bool = True,
    check: bool = True,
    autocast: Callable[[], Any] = contextlib.nullcontext,
) -> SelfCheck:
    """Find out how a model's rows can be trained, and switch the model to it.

    Parameters
    ----------
    model
        A causal LM or a peft model around one, with the attention that it was loaded with.
    examples
        ``input_ids`` and ``labels`` of a packed row; the first four are tried, 128 tokens of each.
    packing
        Whether packed rows are wanted at all.
    check
        Compare numbers. False: ``packing`` is believed.
    autocast
        Makes the context that the training's forward passes run in.

    Raises
    ------
    ValueError
        If the model can't even run on one example, or, unchecked, can't be packed.
    """
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not check:
        if packing:
            use_packed_attention(causal_lm)
        return SelfCheck(
            packing, True, None, None, 0.0, 0.0, "" if packing else "packing=False", 0.0, made=False,
            shared_start=packing and _on_cpu(causal_lm),
        )  # fmt: skip
    start = time.perf_counter()
    row = [{name: list(e[name])[:TOKENS] for name in ("input_ids", "labels")} for e in examples[:EXAMPLES]]
    row = [e for e in row if len(e["input_ids"]) > 1]
    was_training, own_attention = model.training, causal_lm.config._attn_implementation
    model.eval()
    try:
        with torch.no_grad(), autocast():
            return _checked(causal_lm, row, packing, own_attention, start)
    finally:
        model.train(was_training)


def _checked(causal_lm: Any, row: list[dict], packing: bool, own_attention: str, start: float) -> SelfCheck:
    device = next(causal_lm.parameters()).device
    weights = causal_lm.get_output_embeddings().weight
    tolerance = TOLERANCE[_compute_dtype(weights)]
    batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in collate_rows([row]).items()}
    lens = batch["seq_lens"]
    try:
        alone = [_losses(causal_lm, {"input_ids": ids})[0] for ids in batch["input_ids"].split(lens, 1)]
    except Exception as error:
        raise ValueError(
            f"{type(causal_lm).__name__} can't be trained here: even one example alone fails in its forward pass "
            f"({type(error).__name__}: {error}). Choose another model, or quantization=None if it is quantized"
        ) from error
    difference, allowed, reason = None, tolerance, "packing=False"
    if packing:
        reason, differences = _differences_of_packed(causal_lm, batch, alone)
        if differences:
            allowed = max(4 * differences[0], tolerance / 5)
            difference = max(differences)
            if differences[0] > tolerance:
                reason = "its attention does more than ours"
            elif difference > allowed:
                reason = "its layers let examples of one row see each other"
        if reason:
            causal_lm.set_attn_implementation(own_attention)
    packed = not reason
    shared_start = packed and _on_cpu(causal_lm) and _start_can_be_shared(causal_lm, row, alone, allowed)
    first = {"input_ids": row[0]["input_ids"], "labels": row[0]["input_ids"]}
    batch = {
        k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in collate_rows([[first]]).items()
    }
    ours, n = supervised_loss(causal_lm, batch, packed=packed)
    theirs, _ = supervised_loss(causal_lm, batch, packed=packed, chunked_head=False)
    head = abs(float(ours - theirs)) / max(n, 1)
    return SelfCheck(
        packed,
        bool(head <= tolerance),
        difference,
        head,
        allowed,
        tolerance,
        reason,
        time.perf_counter() - start,
        shared_start=shared_start,
    )


def _on_cpu(causal_lm: Any) -> bool:
    """Whether what all examples begin with may be computed once: on cards a step's memory is predicted without."""
    return next(causal_lm.parameters()).device.type == "cpu"


def _start_can_be_shared(causal_lm: Any, row: list[dict], alone: list[torch.Tensor], allowed: float) -> bool:
    """Whether the row's examples begin alike, and their losses stay what they are alone when that stands there once."""
    halves = []
    for example in row:
        ids, half = example["input_ids"], len(example["input_ids"]) // 2 + 1
        halves.append({"input_ids": ids, "labels": [IGNORE_INDEX] * half + ids[half:]})
    batch = share_start(collate_rows([halves]))
    if "prefix_lens" not in batch:
        return False
    reason, differences = _differences_of_packed(causal_lm, batch, alone)
    return not reason and max(differences) <= allowed


def _differences_of_packed(causal_lm: Any, batch: dict, alone: list[torch.Tensor]) -> tuple[str, list[float]]:
    """Say why the row can't be packed at all (or ""), and how far each example's losses are from those alone."""
    try:
        use_packed_attention(causal_lm)
        packed = _losses(
            causal_lm,
            {
                **{name: batch[name] for name in ("input_ids", "position_ids", "seq_lens", "prefix_lens") if name in batch},
                "attention_mask": no_mask(batch["input_ids"].device),
            },
            batch["seq_lens"],
        )  # fmt: skip
    except Exception:  # whatever an architecture makes of arguments that it wasn't written for
        return "its attention can't be told where examples end", []
    # Of an example whose start stands before another one, the rest alone has losses.
    pairs = [(ours, theirs[-len(ours) :]) for ours, theirs in zip(packed, alone, strict=True)]
    if not all(torch.isfinite(a).all() and torch.isfinite(b).all() for a, b in pairs):
        return "losses that aren't finite can't be compared", []
    return "", [float((a - b)[:NEAR_JOIN].square().mean().sqrt()) for a, b in pairs]


def _losses(causal_lm: Any, arguments: dict, lens: Sequence[int] | None = None) -> list[torch.Tensor]:
    """Losses of all tokens of each example but its first, by the model's own logits."""
    logits = causal_lm(**arguments, use_cache=False).logits[0]
    ids = arguments["input_ids"][0]
    lens = list(lens or (len(ids),))
    return [
        F.cross_entropy(of[:-1].float(), to[1:], reduction="none")
        for of, to in zip(logits.split(lens), ids.split(lens), strict=True)
    ]


def _compute_dtype(weight: torch.Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def some_examples(model: torch.nn.Module) -> list[dict[str, list[int]]]:
    """Make up a packed row for a check where no data is at hand: random tokens, the same each time."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.get_text_config().vocab_size
    rows = [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (24, 40, 16)]
    return [{"input_ids": ids, "labels": ids} for ids in rows]
