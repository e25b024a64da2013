"""Attention over packed rows without a mask: each example is attended to on its own.

A packed row of ``n`` tokens needs a block-diagonal causal mask. Written out, that mask costs n x n entries and most
of the scores that it lets the kernel compute are thrown away. Here the row is split at the joins instead, and each
example goes through PyTorch's causal scaled-dot-product attention alone: the same numbers, no mask, and work that
grows with the sum of squared example lengths rather than with the squared row length. It needs no FlashAttention-2,
which a T4 doesn't have.

Registered with transformers under the name ``"packed_sdpa"``. Without ``seq_lens`` it is plain ``"sdpa"``, so the same
model generates and evaluates padded batches as usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "packed_sdpa"


def packed_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    seq_lens: Sequence[int] | None = None,
    sliding_window: int | None = None,
    prefix_lens: Sequence[int] | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Causal attention, example by example where ``seq_lens`` is given, else transformers' own ``sdpa``.

    Parameters
    ----------
    query, key, value
        Shapes (1, heads, tokens, head_dim) and (1, kv_heads, tokens, head_dim), any float dtype.
    seq_lens
        Tokens of each example in the row; they add up to ``tokens``.
    sliding_window
        As transformers passes it: a token sees itself and the ``sliding_window - 1`` tokens before it.
    prefix_lens
        For each example, how many tokens come before its own that stand in the row once: the first of the last example
        before it that has none, as for answers to one prompt. None: none.

    Returns
    -------
    tuple
        The output, shape (1, tokens, heads, head_dim), and None for the attention weights.

    Raises
    ------
    ValueError
        If the lengths don't add up to the row, or the row was marked as packed and no lengths arrived.
    """
    if seq_lens is None:
        if attention_mask is not None and attention_mask.numel() == 0:
            raise ValueError(
                f"{type(module).__name__} got a packed row without its seq_lens: this architecture does not pass "
                "extra arguments on to its attention, so examples would see each other. Use packing=False."
            )
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
            sliding_window=sliding_window, **kwargs,
        )  # fmt: skip
    if query.shape[0] != 1 or sum(seq_lens) != query.shape[2]:
        raise ValueError(
            f"seq_lens add up to {sum(seq_lens)} in a batch of {query.shape[0]} rows of {query.shape[2]} tokens, "
            "expected one row with exactly as many tokens"
        )
    if query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16):
        # PyTorch's kernel for CPUs takes twice as long for 16-bit examples of a few hundred tokens as for float32 ones.
        with torch.autocast("cpu", enabled=False):
            out, _ = packed_sdpa(
                module, query.float(), key.float(), value.float(), attention_mask, dropout, scaling, seq_lens,
                sliding_window, prefix_lens,
            )  # fmt: skip
        return out.to(query.dtype), None
    parts = []
    lens = list(seq_lens)
    whole = ()
    for i, (q, k, v) in enumerate(zip(*(t.split(lens, 2) for t in (query, key, value)), strict=True)):
        before = again = prefix_lens[i] if prefix_lens else 0
        if not before:
            whole = (q, k, v)
        else:
            start_q, start_k, start_v = (t[:, :, :before] for t in whole)
            k, v = torch.cat([start_k, k], 2), torch.cat([start_v, v], 2)
            if query.device.type == "cpu" and sliding_window is None:
                # Its queries once more, and their outputs dropped: on a CPU that is faster than a mask.
                q, before = torch.cat([start_q, q], 2), 0
        n = q.shape[2]
        window = None
        if before or (sliding_window is not None and sliding_window < n):
            window = torch.ones(n, before + n, dtype=torch.bool, device=q.device).tril(before)
            if sliding_window is not None:
                window = window.triu(before + 1 - sliding_window)
        if q.shape[1] != k.shape[1] and window is not None:
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=window, dropout_p=dropout, is_causal=window is None, scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        parts.append(out if before == again else out[:, :, again:])
    return torch.cat(parts, dim=2).transpose(1, 2), None


def use_packed_attention(model: PreTrainedModel) -> None:
    """Switch a model to ``packed_sdpa``.

    Raises
    ------
    ValueError
        If the architecture can't change its attention (it doesn't use transformers' attention interface).
    """
    AttentionInterface.register(NAME, packed_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    with contextlib.suppress(ValueError):  # transformers' own words: open an issue there
        model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ValueError(
            f"{type(model).__name__} can't change its attention, so its rows can't be packed. Use packing=False."
        )
