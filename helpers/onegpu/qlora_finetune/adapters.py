"""Adapters on a frozen base: attach them, and see how all is stored."""

from __future__ import annotations

import torch

from onegpu.packed_training.adapters import add_lora
from onegpu.qlora_finetune.config import FinetuneConfig


def attach_adapters(model: torch.nn.Module, config: FinetuneConfig, fp16: bool = False) -> torch.nn.Module:
    """Freeze a model and put the LoRA adapters of a configuration on it: ``onegpu.packed_training.adapters.add_lora``.

    Parameters
    ----------
    model
        A causal LM, quantized or not.
    config
        Its ``lora_*``, ``target_modules`` and ``gradient_checkpointing`` are used.
    fp16
        Whether fp16 autocast will be used.

    Raises
    ------
    ValueError
        If ``target_modules`` names no layer of this model; the message lists the names there are.
    """
    return add_lora(
        model, r=config.lora_r, alpha=config.lora_alpha, dropout=config.lora_dropout,
        target_modules=config.target_modules, gradient_checkpointing=config.gradient_checkpointing, fp16=fp16,
    )  # fmt: skip


def stored_as(model: torch.nn.Module) -> dict[str, tuple[int, int, int]]:
    """Say how a model's parameters are stored: by dtype their number, their bytes, and how many are trained.

    Packed 4-bit weights count as what they stand for, under "nf4"; their scales are not parameters.

    Examples
    --------
    >>> stored_as(torch.nn.Linear(3, 2))
    {'float32': (8, 32, 8)}
    """
    from onegpu.models import count_parameters

    found: dict[str, tuple[int, int, int]] = {}
    for parameter in model.parameters():
        one = count_parameters(torch.nn.ParameterList([parameter]))
        (dtype,) = one.by_dtype
        size = parameter.numel() * parameter.element_size()
        before = found.get(dtype, (0, 0, 0))
        found[dtype] = (before[0] + one.total, before[1] + size, before[2] + one.trainable)
    return found
