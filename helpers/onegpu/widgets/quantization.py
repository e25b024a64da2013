"""Widgets of topic 04: block size, outlier size and scheme, with the histogram and the errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onegpu import plots
from onegpu.quantization import (
    QuantizedTensor,
    quantization_error,
    quantize_4bit,
    quantize_absmax,
    quantize_blockwise,
    quantize_dynamic8,
    quantize_zeropoint,
)
from onegpu.widgets.base import choice, explore, slider

VALUES = 4096
OUTLIER_AT = 1000

SCHEMES: dict[str, Callable[[torch.Tensor, int], QuantizedTensor]] = {
    "int8": quantize_blockwise,
    "int8, one scale": lambda x, _: quantize_absmax(x),
    "int8, zero point": lambda x, _: quantize_zeropoint(x),
    "dynamic 8-bit": quantize_dynamic8,
    "nf4": lambda x, blocksize: quantize_4bit(x, "nf4", blocksize),
    "fp4": lambda x, blocksize: quantize_4bit(x, "fp4", blocksize),
    "int4": lambda x, blocksize: quantize_blockwise(x, blocksize, bits=4),
}
"""What can be chosen; one scale and a zero point are for the whole tensor, whatever the block size."""


def draw(block_size: int, outlier: int, scheme: str) -> tuple[Any, str]:
    """Quantize 4,096 normal values, one of them replaced by an outlier, and say how far off they are.

    Examples
    --------
    >>> print(draw(64, 50, "nf4")[1])
    One value of 4,096 is 50. With nf4 in blocks of 64 the others are off by 0.0831 on average; in the outlier's block by 0.748.
    """
    x = torch.randn(VALUES, generator=torch.Generator().manual_seed(0))
    if outlier:
        x[OUTLIER_AT] = outlier
    q = SCHEMES[scheme](x, block_size)
    others = torch.arange(VALUES) != OUTLIER_AT
    back = q.dequantize()
    error = quantization_error(x[others], back[others]).mae
    first = OUTLIER_AT // q.blocksize * q.blocksize
    block = torch.zeros(VALUES, dtype=torch.bool)
    block[first : first + q.blocksize] = True
    inside = quantization_error(x[others & block], back[others & block]).mae if q.blocksize > 1 else 0.0
    what = f"One value of {VALUES:,} is {outlier}." if outlier else f"{VALUES:,} normal values."
    how = f"{scheme} in blocks of {q.blocksize:,}" if q.blocksize < VALUES else scheme
    whom = "the others" if outlier else "they"
    sentence = f"{what} With {how} {whom} are off by {error:.3g} on average"
    if outlier and q.blocksize < VALUES:
        sentence += f"; in the outlier's block by {inside:.3g}"
    return plots.quantization.explorer(x, q), f"{sentence}."


def explorer() -> None:
    """Move the block size and the outlier, choose a scheme; the histogram and the error map follow."""
    sizes = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    explore(
        draw,
        block_size=choice("block size", sizes, 64),
        outlier=slider("outlier", 50, 0, 200, 5),
        scheme=choice("scheme", list(SCHEMES)),
    )
