"""What a CUDA device does differently from a meta tensor, operation by operation.

A meta tensor has a shape and a dtype and runs every operation without data, but takes the generic path where CUDA has
kernels of its own. ``CudaChoices`` stands at the Python functions and takes CUDA's path: which attention kernel, dropout
with a one-byte mask, softmax straight from fp16 to fp32, autocast. ``RULES`` and ``SCRATCH`` stand below autograd: a
4-bit product dequantizes its weight first, attention's backward needs accumulators.

Kernels of a training step that allocate inside, from PyTorch's sources (``aten/src/ATen/native``), with what they take:

============================  ====================================  ================================================
operation                     file                                  scratch
============================  ====================================  ================================================
softmax, backward             cuda/SoftMax.cu                       grad x output, in the type of their product
embedding, backward           cuda/EmbeddingBackwardKernel.cu       above 3,072 ids: an fp32 row each, 6 lists of ids
index, backward (index_put)   cuda/Indexing.cu                      3 lists of indices, and the sort's own 2
flash attention, backward     transformers/cuda/flash_attn          fp32 dQ, row sums; dK and dV of grouped heads
efficient attention, b.       transformers/cuda/attention_backward  fp32 dQ, row sums; dK and dV of wide heads
============================  ====================================  ================================================

Left out, since it is small by its rule: partial sums where one number is summed by several blocks (``Reduce.cuh``, some
hundred KiB), flash attention's split over keys (``flash_api.cpp``: only where rows are so few that it stays under 9
MiB), the sort inside ``nonzero``, layer norm's blocks above 65,536 rows. Log-softmax, cross-entropy, RMSNorm, SiLU,
dropout, ``foreach`` optimizers and bitsandbytes' kernels take nothing of their own.

Other sources: ``transformers/cuda/sdp_utils.cpp`` (choice of the attention kernel), ``autocast_mode.h`` (lists),
``native/Dropout.cpp``, ``native/SoftMax.cpp``; bitsandbytes' ``backends/cuda/ops.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from onegpu.runtime import import_bitsandbytes
from onegpu.runtime.gpus import Gpu

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

# What autocast runs in 16 bits, and what in fp32 (PyTorch's AT_FORALL_LOWER_PRECISION_FP and AT_FORALL_FP32).
_LOW = {
    F.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.mm,
    torch.Tensor.mm, torch.bmm, torch.Tensor.bmm, torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.Tensor.baddbmm,
    torch.einsum, torch.conv1d, torch.conv2d, F.conv1d, F.conv2d, F.scaled_dot_product_attention,
}  # fmt: skip
_FP32 = {
    F.layer_norm, F.group_norm, F.cross_entropy, F.nll_loss, F.binary_cross_entropy_with_logits, F.mse_loss,
    torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.Tensor.__rpow__, torch.rsqrt, torch.Tensor.rsqrt,
    torch.exp, torch.Tensor.exp, torch.log, torch.Tensor.log, torch.norm, torch.Tensor.norm, F.softplus, torch.cumsum,
    torch.Tensor.cumsum, torch.prod, torch.Tensor.prod, torch.reciprocal, torch.Tensor.reciprocal,
}  # fmt: skip
_SOFTMAX = {F.softmax, torch.softmax, torch.Tensor.softmax}
_LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax}
_SUM = {torch.sum, torch.Tensor.sum}
_DROPOUT = {F.dropout, torch.dropout}
_CHOOSING = _LOW | _FP32 | _SOFTMAX | _LOG_SOFTMAX | _SUM | _DROPOUT | {F.scaled_dot_product_attention}


class CudaChoices(TorchFunctionMode):
    """Take the path that a card takes, for functions that choose by device.

    Parameters
    ----------
    gpu
        The card, or the CPU: then only the choice of the attention kernel differs from a meta tensor's.
    attention
        What was asked for by name: "flash_attention_2", or "sdpa_expanded" (keys and values repeated for every query
        head, and the memory-efficient kernel).
    fused_dropout
        Whether dropout keeps a mask of one byte a number; else its noise, in the input's dtype.
    on_copy
        Called with each 16-bit copy that autocast keeps.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        attention: str | None = None,
        fused_dropout: bool = True,
        on_copy: Callable[[torch.Tensor], None] | None = None,
    ):
        super().__init__()
        self.gpu, self.attention, self.fused_dropout, self.on_copy = gpu, attention, fused_dropout, on_copy
        self._copies: dict[int, tuple[weakref.ref, torch.Tensor]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _CHOOSING:
            return func(*args, **kwargs)
        if not self.gpu.is_cpu and torch.is_autocast_enabled("cuda"):
            args, kwargs = self._cast(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if not self.gpu.is_cpu:
            if func in _DROPOUT and self.fused_dropout:
                return _dropout(func, *args, **kwargs)
            if func in _SOFTMAX:
                return _softmax(func, torch._softmax, *args, **kwargs)
            if func in _LOG_SOFTMAX:
                return _softmax(func, torch._log_softmax, *args, **kwargs)
        return func(*args, **kwargs)

    # --- attention -----------------------------------------------------------------------------------------

    def _attention(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        kernel = attention_kernel(
            self.gpu, query.dtype, query.shape[-1], value.shape[-1],
            masked=attn_mask is not None, grouped=enable_gqa and query.shape[1] != key.shape[1],
        )  # fmt: skip
        if self.attention == "flash_attention_2" and not self.gpu.is_cpu:
            kernel = "flash"
        if self.attention == "sdpa_expanded" and not self.gpu.is_cpu:
            kernel = "efficient"
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        if attn_mask is not None:
            attn_mask = _additive(attn_mask, query.dtype)
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if kernel == "flash":
            width = query.shape[-1]
            if width % 8:
                query, key, value = (F.pad(t, (0, 8 - width % 8)) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return out[..., :width] if width % 8 else out
        if kernel == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )[0]
        if kernel == "efficient":
            if attn_mask is not None:
                width = key.shape[
                    2
                ]  # the kernel reads eight numbers at once: rows that don't start there are copied
                if width % 8:
                    attn_mask = F.pad(attn_mask, (0, 8 - width % 8))[..., :width]
                attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], width)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, grad, dropout_p, is_causal, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    # --- autocast ------------------------------------------------------------------------------------------

    def leave_autocast(self) -> None:
        """Let go of the 16-bit copies of trainable fp32 weights, as autocast does when its outermost block ends."""
        self._copies.clear()

    def _cast(self, func, args, kwargs):
        if func in _LOW:
            low = torch.get_autocast_dtype("cuda")
            convert = lambda x: self._to_low(x, low)  # noqa: E731
        elif func in _FP32:
            convert = _to_fp32
        elif func in _SUM or func in _SOFTMAX or func in _LOG_SOFTMAX:
            if kwargs.get("dtype") is None and isinstance(args[0], torch.Tensor) and args[0].dtype in HALF:
                kwargs = {**kwargs, "dtype": torch.float32}
            return args, kwargs
        else:
            return args, kwargs
        return [convert(a) for a in args], {k: convert(v) for k, v in kwargs.items()}

    def _to_low(self, x: Any, dtype: torch.dtype) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype in (dtype, torch.float64):
            return x
        if not (x.dtype == torch.float32 and x.requires_grad and x.is_leaf and x._base is None):
            return x.to(dtype)
        kept = self._copies.get(id(x))
        if kept is not None and kept[0]() is x:
            return kept[1]
        with torch.enable_grad():
            copy = x.to(dtype)
        self._copies[id(x)] = (weakref.ref(x), copy)
        if self.on_copy is not None:
            self.on_copy(copy)
        return copy


def attention_kernel(
    gpu: Gpu, dtype: torch.dtype, head_dim: int, value_dim: int | None = None, *, masked: bool, grouped: bool
) -> str:
    """Say which kernel ``scaled_dot_product_attention`` runs: "flash", "efficient", "math" or "cpu".

    Flash needs compute capability 8.0, 16 bits and no mask. The memory-efficient kernel (up to torch 2.13) takes no
    grouped key/value heads, so that a T4 falls back to "math", which writes the scores out in fp32
    (transformers#48633).

    Examples
    --------
    >>> from onegpu.runtime.gpus import GPUS
    >>> [attention_kernel(GPUS[name], torch.float16, 64, masked=False, grouped=True) for name in ("T4", "L4")]
    ['math', 'flash']
    >>> attention_kernel(GPUS["T4"], torch.float16, 128, masked=False, grouped=False)
    'efficient'
    """
    value_dim = head_dim if value_dim is None else value_dim
    if gpu.is_cpu:
        return "cpu" if head_dim == value_dim else "math"
    major = gpu.compute_capability[0]
    if major >= 8 and dtype in HALF and head_dim == value_dim <= 256 and not masked:
        return "flash"
    dtypes = (torch.float16, torch.float32) if major < 8 else (torch.float16, torch.float32, torch.bfloat16)
    aligned = head_dim % 8 == 0 if dtype in HALF else head_dim % 4 == 0
    if dtype in dtypes and aligned and not grouped:
        return "efficient"
    return "math"


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _dropout(func, x, p=0.5, training=True, inplace=False, **kwargs):
    if not training or not 0 < p < 1 or x.numel() == 0 or inplace:
        return func(x, p, training, **({"inplace": inplace} if func is F.dropout else {}), **kwargs)
    return torch.native_dropout(x, p, True)[0]  # output, and a mask of one byte a number


def _softmax(func, fused, x, dim=None, *args, **kwargs):
    if dim is not None and kwargs.get("dtype") is torch.float32 and x.dtype is torch.float16:
        return fused(x, dim, True)  # reads fp16, writes fp32: no fp32 copy of the input. Not for bf16
    return func(x, dim, *args, **kwargs)


def _to_fp32(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in HALF else x


# --- below autograd ---------------------------------------------------------------------------------------------


def answer_questions(tracker, func, args, kwargs):
    """Answer when a model asks a tensor for its value: is this mask all ones, are these rows one example each?"""
    (tensor,) = args
    return not tracker.needs_mask if tensor.dtype is torch.bool else 1


def count_supervised(tracker, func, args, kwargs):
    """Make the positions of the supervised tokens, as many as the setup says."""
    (mask,) = args
    return torch.empty(tracker.supervised_tokens, mask.ndim, dtype=torch.int64, device=mask.device)


def dequantize_then_multiply(tracker, func, args, kwargs):
    """A 4-bit product: make the scales fp32, the weight 16-bit, multiply, forget both.

    For few tokens bitsandbytes 0.50 has a fused kernel that needs no dequantized weight; it is counted all the same,
    since the backward pass always dequantizes.
    """
    x, packed, shape, absmax, blocksize, quant_type = args[:6]
    bnb = torch.ops.bitsandbytes
    with tracker:
        if kwargs.get("absmax_8bit") is not None:
            scales = bnb.dequantize_blockwise.default(
                kwargs["absmax_8bit"], absmax, kwargs["absmax_code"], 256, torch.float32
            )
            absmax = scales + kwargs["absmax_offset"]
            tracker.see(absmax, "dequantized")
            del scales
        weight = bnb.dequantize_4bit.default(packed, absmax, blocksize, quant_type, shape, x.dtype)
        del absmax
        return F.linear(x, weight, kwargs.get("bias"))


def quantize_rows(tracker, func, args, kwargs):
    """LLM.int8's codes: before the kernel runs, outliers are looked for in a copy of the magnitudes."""
    x, threshold = args[0], args[1] if len(args) > 1 else kwargs.get("threshold", 0.0)
    with tracker:
        if threshold:
            (x.abs() >= threshold).any()
        scales = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        codes = torch.empty_like(x, dtype=torch.int8)
        return codes, scales, torch.empty(0, dtype=torch.int64, device=x.device) if threshold else None


def multiply_int8(tracker, func, args, kwargs):
    """LLM.int8's product: sums in int32, made fp16 by a kernel, then the dtype asked for."""
    codes, weight = args[:2]
    with tracker:
        sums = torch.empty((*codes.shape[:-1], weight.shape[0]), dtype=torch.int32, device=codes.device)
        return torch.empty_like(sums, dtype=torch.float16).to(kwargs.get("dtype") or torch.float16)


def multiply_int8_and_outliers(tracker, func, args, kwargs):
    """As ``multiply_int8``, for inputs without outlier columns: how many there are, shapes don't say.

    A column of ``n`` tokens would cost 2 ``n`` bytes more, kept for the backward pass beside the input.
    """
    x, codes, weight, scales, weight_scales = args[:5]
    bias = args[6] if len(args) > 6 else kwargs.get("bias")
    with tracker:
        none = torch.empty(0, dtype=x.dtype, device=x.device)
        product = torch.ops.bitsandbytes.int8_scaled_mm.default
        return product(codes, weight, scales, weight_scales, bias=bias, dtype=x.dtype), none


def softmax_backward_bytes(args, kwargs, out) -> int:
    """The product of gradient and output, which the kernel makes before it sums: one more matrix of scores."""
    grad, output = args[0], args[1]
    return grad.numel() * torch.promote_types(grad.dtype, output.dtype).itemsize


def embedding_backward_bytes(args, kwargs, out) -> int:
    """Above 3,072 ids: sorted ids and where they came from, four lists that say which belong together, an fp32 sum of each.

    Up to 3,072 a kernel without scratch adds row by row.
    """
    grad, ids = args[0], args[1]
    n = ids.numel()
    if n <= 3072:
        return 0
    return n * (6 * ids.element_size() + 4 * grad.shape[-1])


def index_backward_bytes(args, kwargs, out) -> int:
    """Indices in one line, sorted, and where they came from; the sort needs as much as keys and values once more."""
    indices, accumulate = args[1], args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulate:
        return 0
    n = max((i.numel() for i in indices if i is not None), default=0)
    return n * 8 * 5


def multiply_experts(tracker, func, args, kwargs):
    """Products of experts in any dtype, as a card has them; torch's shape rule knows bf16 alone."""
    with torch.utils._python_dispatch._disable_current_modes():
        like = [tensor.to(torch.bfloat16) for tensor in args[:2]]
        out = func(*like, *args[2:], **kwargs)
    return torch.empty_strided(out.shape, out.stride(), dtype=args[0].dtype, device=out.device)


def flash_backward_bytes(args, kwargs, out) -> int:
    """fp32 accumulators of dQ, row sums, and with grouped heads dK and dV of every query head."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rounded = -(-length // 128) * 128
    unit = 32 if width <= 128 else 64
    needed = 4 * batch * heads * rounded * (1 + -(-width // unit) * unit)
    if key.shape[1] != heads:
        needed += 2 * batch * key.shape[2] * heads * width * query.element_size()
    return needed


def efficient_backward_bytes(args, kwargs, out) -> int:
    """Row sums, an fp32 accumulator of dQ in tiles of 64, and for wide 16-bit heads one of dK and dV for each split."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    tiled = -(-width // 64) * 64
    needed = 4 * batch * heads * (length + -(-length // 64) * 64 * tiled)
    if query.dtype in HALF and width > 64:
        splits = max(1, min(-(-key.shape[2] // 64), 200 // (batch * heads)))
        needed += 2 * 4 * batch * heads * splits * 64 * tiled
    return needed


def _rules() -> dict[Any, Callable]:
    import_bitsandbytes()  # registers its operations
    bnb = torch.ops.bitsandbytes
    return {
        aten._local_scalar_dense.default: answer_questions,
        aten.nonzero.default: count_supervised,
        aten._grouped_mm.default: multiply_experts,
        bnb.gemm_4bit.default: dequantize_then_multiply,
        bnb.int8_vectorwise_quant.default: quantize_rows,
        bnb.int8_scaled_mm.default: multiply_int8,
        bnb.int8_mixed_scaled_mm.default: multiply_int8_and_outliers,
    }


META_RULES = _rules()
"""For meta tensors, whatever card they stand for."""

CUDA_SCRATCH = {
    aten._softmax_backward_data.default: softmax_backward_bytes,
    aten.embedding_dense_backward.default: embedding_backward_bytes,
    aten.index_put.default: index_backward_bytes,
    aten.index_put_.default: index_backward_bytes,
    aten._unsafe_index_put.default: index_backward_bytes,
    aten._scaled_dot_product_flash_attention_backward.default: flash_backward_bytes,
    aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward_bytes,
}
"""Scratch that kernels take and give back."""
