"""How many parameters does a model have? Right for packed 4-bit weights and for tied ones.

A 4-bit layer holds two weights in a byte, so summing ``numel()`` loses half of them (bitsandbytes#834,
transformers#25978); a tied output head is one matrix, not two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ParameterCount:
    """Unique parameters of a model.

    ``total`` counts every weight once, however it is stored; ``stored_elements`` is what summing ``numel()`` gives,
    where a packed 4-bit weight counts half. ``by_dtype`` splits ``total`` by storage ("nf4", "float32", ...).
    ``buffers`` counts the elements of buffers (causal masks, rotary frequencies), which are no parameters.
    """

    total: int
    trainable: int
    stored_elements: int
    by_dtype: Mapping[str, int]
    buffers: int

    def __str__(self) -> str:
        share = 100 * self.trainable / self.total if self.total else 0.0
        kinds = ", ".join(f"{count:,} {dtype}" for dtype, count in self.by_dtype.items())
        return f"{self.total:,} parameters ({kinds}), {self.trainable:,} trainable ({share:.2f} %)"


def count_parameters(model: torch.nn.Module) -> ParameterCount:
    """Count a model's unique parameters, packed 4-bit weights at their full number.

    Examples
    --------
    >>> import torch
    >>> count = count_parameters(torch.nn.Linear(3, 2))
    >>> count.total, dict(count.by_dtype)
    (8, {'float32': 8})
    """
    total = trainable = stored = 0
    by_dtype: dict[str, int] = {}
    for parameter in model.parameters():  # yields a shared parameter once
        count, dtype = _logical(parameter)
        total += count
        stored += parameter.numel()
        trainable += count if parameter.requires_grad else 0
        by_dtype[dtype] = by_dtype.get(dtype, 0) + count
    buffers = sum(buffer.numel() for buffer in model.buffers())
    return ParameterCount(total, trainable, stored, MappingProxyType(by_dtype), buffers)


def _logical(parameter: torch.nn.Parameter) -> tuple[int, str]:
    state = getattr(parameter, "quant_state", None)
    if state is not None:  # bitsandbytes.nn.Params4bit after quantization
        return math.prod(state.shape), state.quant_type
    return parameter.numel(), str(parameter.dtype).removeprefix("torch.")
