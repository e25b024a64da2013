"""Bytes of a model and an optimizer that are at hand: what the lesson counts by hand before it predicts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameter_bytes(model: nn.Module, trainable_only: bool = False) -> int:
    """Bytes of a model's parameters, tied ones once; packed 4-bit ones as they are stored.

    Examples
    --------
    >>> parameter_bytes(nn.Linear(4, 2))
    40
    """
    return sum(_bytes(p) for p in model.parameters() if p.requires_grad or not trainable_only)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients that a model's parameters hold now.

    Examples
    --------
    >>> layer = nn.Linear(4, 2, bias=False)
    >>> before = gradient_bytes(layer)
    >>> layer(torch.ones(1, 4)).sum().backward()
    >>> before, gradient_bytes(layer)
    (0, 32)
    """
    return sum(_bytes(p.grad) for p in model.parameters() if p.grad is not None)


def optimizer_state_bytes(optimizer: Any) -> int:
    """Bytes of all tensors in an optimizer's state, a storage that several share once.

    Examples
    --------
    >>> layer = nn.Linear(4, 2, bias=False)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> layer(torch.ones(1, 4)).sum().backward(); optimizer.step()
    >>> optimizer_state_bytes(optimizer)  # two moments of 32 bytes, and a step counter of 4
    68
    """
    storages = {}
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                storages[value.untyped_storage().data_ptr(), value.device] = value.untyped_storage().nbytes()
    return sum(storages.values())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
