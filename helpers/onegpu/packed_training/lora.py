"""LoRA on a 4-bit base: each adapted layer runs in as few passes as it needs.

peft computes ``base(x).clone() + lora_B(lora_A(dropout(x))) * scaling``: three full-size intermediates that are
written, read and kept. ``LoraLinear`` below is the same sum as one autograd function that adds the low-rank part into
the base output in place (``torch.addmm``) and keeps only ``x`` and the rank-sized ``h = x A^T`` for the backward pass.

Sources: LoRA, arXiv 2106.09685 (section 4.1: ``W x + (alpha / r) B A x``); QLoRA, arXiv 2305.14314 (equation 5).
"""

from __future__ import annotations

import types

import torch
from torch.nn import functional as F

from onegpu.runtime import import_bitsandbytes, onednn_matmul

bitsandbytes = import_bitsandbytes()


class LoraLinear(torch.autograd.Function):
    """``y = x W^T + bias + scaling (x A^T) B^T`` for a frozen weight W that is dequantized where it is used."""

    @staticmethod
    def forward(ctx, x, lora_a, lora_b, packed, quant_state, bias, scaling):
        rows = x.reshape(-1, x.shape[-1])
        weight = _dequantized(packed, quant_state, rows.dtype)
        a, b = lora_a.to(rows.dtype), lora_b.to(rows.dtype)
        h = rows @ a.t()
        with onednn_matmul():
            y = F.linear(rows, weight, bias)
        y.addmm_(h, b.t(), alpha=scaling)
        ctx.save_for_backward(rows, h, lora_a, lora_b)
        ctx.packed, ctx.quant_state, ctx.scaling, ctx.shape = packed, quant_state, scaling, x.shape
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx, grad_y):
        rows, h, lora_a, lora_b = ctx.saved_tensors
        dy = grad_y.reshape(-1, grad_y.shape[-1]).to(rows.dtype)
        a, b = lora_a.to(rows.dtype), lora_b.to(rows.dtype)
        dh = (dy @ b).mul_(ctx.scaling)
        grad_a = (dh.t() @ rows).to(lora_a.dtype)
        grad_b = (dy.t() @ h).mul_(ctx.scaling).to(lora_b.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            weight = _dequantized(ctx.packed, ctx.quant_state, rows.dtype)
            with onednn_matmul():
                grad_x = dy @ weight
            grad_x = grad_x.addmm_(dh, a).view(ctx.shape)
        return grad_x, grad_a, grad_b, None, None, None, None


def _fused_forward(self, x, *args, **kwargs):
    if self.disable_adapters and not (args or kwargs or self.merged or torch.is_grad_enabled()):
        return _frozen_forward(self.get_base_layer(), x)
    name = self.active_adapters[0] if len(self.active_adapters) == 1 else None
    plain = (
        name in self.lora_A
        and not (args or kwargs or self.merged or self.disable_adapters or self.lora_variant)
        and (isinstance(self.lora_dropout[name], torch.nn.Identity) or not self.training)
    )
    if not plain:
        return type(self).forward(self, x, *args, **kwargs)
    base = self.get_base_layer()
    dtype = _compute_dtype(x)
    bias = None if base.bias is None else base.bias.to(dtype)
    return LoraLinear.apply(
        x.to(dtype), self.lora_A[name].weight, self.lora_B[name].weight, base.weight, base.weight.quant_state,
        bias, self.scaling[name],
    )  # fmt: skip


class FrozenLinear(torch.autograd.Function):
    """``y = x W^T + bias`` in x's dtype, by the very product that ``LoraLinear`` makes: adapters of zero change no bit of it.

    bitsandbytes' own layer returns what it was given: beside fp32 norms that is a residual stream of fp32, twice the bytes.
    """

    @staticmethod
    def forward(ctx, x, packed, quant_state, bias):
        weight = _dequantized(packed, quant_state, x.dtype)
        with onednn_matmul():
            y = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
        ctx.packed, ctx.quant_state, ctx.shape = packed, quant_state, x.shape
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx, grad_y):
        dy = grad_y.reshape(-1, grad_y.shape[-1])
        weight = _dequantized(ctx.packed, ctx.quant_state, dy.dtype)
        with onednn_matmul():
            return (dy @ weight).view(ctx.shape), None, None, None


def _frozen_forward(base, x):
    dtype = _compute_dtype(x)
    bias = None if base.bias is None else base.bias.to(dtype)
    return FrozenLinear.apply(x.to(dtype), base.weight, base.weight.quant_state, bias)


def _dequantized(packed: torch.Tensor, quant_state, dtype: torch.dtype) -> torch.Tensor:
    return bitsandbytes.functional.dequantize_4bit(packed, quant_state).to(dtype)


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    kind = "cuda" if x.is_meta else x.device.type  # a meta tensor stands for one on a card
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def fuse_lora(model: torch.nn.Module) -> int:
    """Let every 4-bit layer of a peft model train through ``LoraLinear``, or ``FrozenLinear`` where it has no adapter.

    Layers that need more than plain LoRA (dropout, several adapters, DoRA, merged weights) keep peft's own forward, with
    ``FrozenLinear`` for their base.

    Returns
    -------
    int
        How many adapted layers were changed.
    """
    from peft.tuners.lora.bnb import Linear4bit

    adapted = [m for m in model.modules() if isinstance(m, Linear4bit)]
    for layer in adapted:
        layer.forward = types.MethodType(_fused_forward, layer)
    for layer in model.modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            layer.forward = types.MethodType(_frozen_forward, layer)
    return len(adapted)
