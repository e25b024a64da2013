"""The loss of a packed row: the head runs where a token is supervised, and no full logits ever exist.

With a vocabulary of 49,152 and two thirds of the tokens masked, most of the head's work and nearly all of the logits'
memory is never spent. The loss of a supervised token is what it would be.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional as F

from onegpu import runtime
from onegpu.packed_training.packing import IGNORE_INDEX, share_start


def head_chunk(vocabulary: int) -> int:
    """Return how many positions ``HeadLoss`` takes at a time: at most 128, and at most 2**23 logits.

    128 x 49,152 float32 logits are 24 MiB; a vocabulary of 151,936 gets 55 positions.

    Examples
    --------
    >>> head_chunk(49_152), head_chunk(151_936)
    (128, 55)
    """
    return min(128, max(16, 2**23 // vocabulary))


class HeadLoss(torch.autograd.Function):
    """Cross-entropy of a frozen head at each position, a chunk at a time, so that no full logits ever exist.

    The gradient by the hidden states is made in the forward pass, while a chunk's logits are at hand: nothing the size
    of the vocabulary is kept for the backward pass.
    """

    @staticmethod
    @torch.autocast("cuda", enabled=False)
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, hidden, weight, targets):
        losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        grad = torch.empty_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        chunk = head_chunk(weight.shape[0])
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            gold = targets[part, None]
            with runtime.onednn_matmul():
                logits = (hidden[part].to(weight.dtype) @ weight.t()).float()
            losses[part] = logits.logsumexp(-1) - logits.gather(1, gold)[:, 0]
            if grad is not None:
                d_logits = torch.softmax(logits, -1)
                d_logits.scatter_add_(1, gold, torch.full_like(gold, -1, dtype=d_logits.dtype))
                with runtime.onednn_matmul():
                    grad[part] = (d_logits.to(weight.dtype) @ weight).float()
        if grad is not None:
            ctx.save_for_backward(grad)
            ctx.dtype = hidden.dtype
        return losses

    @staticmethod
    def backward(ctx, grad_losses):
        (grad,) = ctx.saved_tensors
        return (grad * grad_losses[:, None]).to(ctx.dtype), None, None


def _plain_head(model: torch.nn.Module) -> torch.Tensor | None:
    """Return the head's weight if logits are just ``hidden @ weight.T`` and it is frozen, else None."""
    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    reshaped = (
        "final_logit_softcapping",
        "logits_soft_cap",
        "logits_scaling",
        "logit_scale",
        "lm_head_multiplier",
    )
    if (
        type(head) is not torch.nn.Linear
        or head.bias is not None
        or head.weight.requires_grad
        or any(getattr(config, name, None) not in (None, 1, 1.0) for name in reshaped)
    ):
        return None
    return head.weight


def no_mask(device: torch.device | str = "cpu") -> torch.Tensor:
    """Return an empty 4-D mask: transformers hands a ready 4-D mask through as it is, so that it builds none.

    ``packed_sdpa`` refuses it unless the lengths of the examples came too: a model that drops unknown arguments on
    the way to its attention is found out instead of letting examples see each other.
    """
    return torch.empty(1, 1, 0, 0, device=device)


def supervised_loss(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    *,
    packed: bool = True,
    chunked_head: bool = True,
    shared_start: bool = False,
) -> tuple[torch.Tensor, int]:
    """Summed cross-entropy over the supervised tokens of a packed batch, and their number.

    Parameters
    ----------
    model
        A causal LM of transformers, or a peft model around one; for ``packed`` one that uses ``packed_sdpa``.
    inputs
        ``input_ids``, ``position_ids``, ``labels`` of shape (1, tokens) and ``seq_lens``, as ``collate_rows`` makes
        them; for ``packed`` also ``prefix_lens``, as ``packed_sdpa`` takes them.
    packed
        All examples in one forward pass. False: one pass for each example, with the model's own attention and
        positions, for models that can't keep examples of one row apart.
    chunked_head
        ``HeadLoss`` where the head is a plain frozen matrix. False: always the model's own logits.
    shared_start
        What all examples of a packed batch begin with is computed once (``share_start``).

    Returns
    -------
    tuple
        float32 scalar (differentiable), and the count. With no supervised token the loss is 0, not nan (trl#6668).
    """
    losses = _token_losses(model, inputs, packed, chunked_head, shared_start)
    return losses.sum(), losses.numel()


def example_logprobs(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    *,
    packed: bool = True,
    chunked_head: bool = True,
    shared_start: bool = False,
) -> torch.Tensor:
    """Log-probability of each example of a packed batch: the sum over its supervised tokens.

    Parameters
    ----------
    model, inputs, packed, chunked_head, shared_start
        As for ``supervised_loss``.

    Returns
    -------
    Tensor
        float32, shape (examples,), in nats (differentiable); 0 for an example without a supervised token.
    """
    losses = _token_losses(model, inputs, packed, chunked_head, shared_start)
    device, lens = losses.device, inputs["seq_lens"]
    supervised = (inputs["labels"][0] != IGNORE_INDEX).nonzero()[:, 0]
    example_of = torch.tensor([i for i, n in enumerate(lens) for _ in range(n)], device=device)[supervised]
    return torch.zeros(len(lens), device=device).index_add(0, example_of, -losses)


def _token_losses(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    packed: bool,
    chunked_head: bool,
    shared_start: bool = False,
) -> torch.Tensor:
    """Cross-entropy of each supervised token, float32, shape (supervised,)."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    weight = _plain_head(causal_lm) if chunked_head else None
    if packed:
        inputs = share_start(inputs) if shared_start else inputs
        names = ("input_ids", "position_ids", "seq_lens", "prefix_lens")
        arguments = {name: inputs[name] for name in names if name in inputs}
        arguments["attention_mask"] = no_mask(inputs["input_ids"].device)
        return _losses_of_pass(causal_lm, weight, inputs["labels"], arguments)
    lens = list(inputs["seq_lens"])
    passes = [
        _losses_of_pass(causal_lm, weight, labels, {"input_ids": ids})
        for ids, labels in zip(
            inputs["input_ids"].split(lens, 1), inputs["labels"].split(lens, 1), strict=True
        )
    ]
    return torch.cat(passes)


def _losses_of_pass(
    causal_lm: torch.nn.Module, weight: torch.Tensor | None, labels: torch.Tensor, arguments: dict[str, Any]
) -> torch.Tensor:
    targets = labels[0, 1:]
    keep = (targets != IGNORE_INDEX).nonzero()[:, 0]
    if weight is not None:
        hidden = causal_lm.base_model(**arguments, use_cache=False)[0][:, keep]
        return HeadLoss.apply(hidden.flatten(0, 1), weight, targets[keep])
    if "logits_to_keep" in inspect.signature(causal_lm.forward).parameters:
        logits = causal_lm(**arguments, use_cache=False, logits_to_keep=keep).logits.flatten(0, 1)
    else:
        logits = causal_lm(**arguments, use_cache=False).logits[0, keep]
    return F.cross_entropy(logits.float(), targets[keep], reduction="none")
