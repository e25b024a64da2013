"""The head and loss of TRL's SFTTrainer as of 1.16, for its memory: the tensors it makes, in the order it makes them.

TRL never makes logits of all positions. It takes the supervised ones, multiplies them with the head in tiles of 4,096
positions by 32,768 tokens of the vocabulary, and keeps a few sums of each position; the backward pass makes each tile
once more, and adds up the gradients in fp32 (``trl/kernels/chunked_logprob.py``, ``trl/trainer/utils.py:add_fused_lm_head``,
read in 1.16.0). On a card Triton kernels work on the tiles in place, so that no other tensor of a tile's size appears;
here the tiles are made and nothing is computed in them, so this gives sizes and no loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

TILE_POSITIONS, TILE_VOCABULARY = 4096, 32768
_SUMS = 7  # of each position: largest logit, four sums, the largest before the target, the target's own


class FusedHead(torch.autograd.Function):
    """Log-probabilities of targets, shape (N,) fp32, from hidden states (N, H) and the head's weight (V, H)."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else hidden.dtype
        n, vocabulary = hidden.shape[0], weight.shape[0]
        sums = [hidden.new_zeros(n, dtype=torch.float32) for _ in range(_SUMS)]
        tile = hidden.new_empty(min(n, TILE_POSITIONS), TILE_VOCABULARY, dtype=dtype)
        for start in range(0, n, TILE_POSITIONS):
            rows = hidden[start : start + TILE_POSITIONS].to(dtype)
            for first in range(0, vocabulary, TILE_VOCABULARY):
                columns = weight[first : first + TILE_VOCABULARY].to(dtype)
                torch.mm(rows, columns.t(), out=tile[: rows.shape[0], : columns.shape[0]])
        log_z = sums[0] + sums[1].log()
        ctx.save_for_backward(hidden, weight, targets, log_z, log_z - sums[2])
        ctx.low = dtype
        return sums[3] - log_z

    @staticmethod
    def backward(ctx, grad):
        hidden, weight, _, _, _ = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        n, vocabulary = hidden.shape[0], weight.shape[0]
        tile = hidden.new_empty(min(n, TILE_POSITIONS), TILE_VOCABULARY, dtype=ctx.low)
        for start in range(0, n, TILE_POSITIONS):
            rows = hidden[start : start + TILE_POSITIONS].to(ctx.low)
            for first in range(0, vocabulary, TILE_VOCABULARY):
                columns = weight[first : first + TILE_VOCABULARY].to(ctx.low)
                torch.mm(rows, columns.t(), out=tile[: rows.shape[0], : columns.shape[0]])
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
        )


def fused_head_loss(model: nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Stand in for SFTTrainer's loss: a scalar with the gradients' shapes, and the number of supervised tokens."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    hidden = causal_lm.base_model(**inputs, use_cache=False).last_hidden_state[:, :-1]
    labels = batch["labels"][:, 1:]
    rows, columns = (labels != -100).nonzero().unbind(1)
    found = FusedHead.apply(
        hidden[rows, columns], causal_lm.get_output_embeddings().weight, labels[rows, columns]
    )
    everywhere = torch.zeros(labels.shape, device=found.device).masked_scatter(labels != -100, found)
    return -everywhere.sum(), rows.numel()
