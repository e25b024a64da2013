"""How far a quantized tensor is from the original: four figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from onegpu.quantization.tensors import CHUNK, QuantizedTensor


@dataclass(frozen=True)
class QuantizationError:
    """Error figures of an approximation.

    Attributes
    ----------
    mse, mae, largest
        Mean squared, mean absolute and largest absolute error.
    sqnr_db
        Signal to quantization noise: ``10 log10(sum x^2 / sum error^2)``, in decibels. 6.02 more for each bit gained;
        infinite where nothing was lost.
    cosine
        Cosine between original and approximation; 1 where both are zero.
    """

    mse: float
    mae: float
    largest: float
    sqnr_db: float
    cosine: float

    def __str__(self) -> str:
        return (
            f"MSE {self.mse:.3g}, MAE {self.mae:.3g}, largest {self.largest:.3g}, SQNR {self.sqnr_db:.1f} dB, "
            f"cosine {self.cosine:.5f}"
        )


def quantization_error(x: torch.Tensor, approximation: torch.Tensor | QuantizedTensor) -> QuantizationError:
    """Compare a tensor with what quantization left of it, in double precision.

    Examples
    --------
    >>> from onegpu.quantization import quantize_absmax
    >>> x = torch.tensor([1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4])
    >>> print(quantization_error(x, quantize_absmax(x)))
    MSE 9.35e-05, MAE 0.00817, largest 0.0189, SQNR 49.5 dB, cosine 0.99999
    """
    if isinstance(approximation, QuantizedTensor):
        approximation = approximation.dequantize()
    if x.shape != approximation.shape:
        raise ValueError(f"shapes {tuple(x.shape)} and {tuple(approximation.shape)}: expected the same")
    if x.numel() == 0:
        raise ValueError("an empty tensor has no error to measure")
    left, right = x.detach().reshape(-1), approximation.detach().reshape(-1)
    squares = signal = other = product = absolute = largest = 0.0
    for start in range(0, x.numel(), CHUNK):
        a, b = left[start : start + CHUNK].double(), right[start : start + CHUNK].double()
        error = (a - b).abs_()
        absolute += float(error.sum())
        largest = max(largest, float(error.max()))
        squares += float(error @ error)
        signal, other, product = signal + float(a @ a), other + float(b @ b), product + float(a @ b)
    lengths = math.sqrt(signal) * math.sqrt(other)
    cosine = product / lengths if lengths else float(signal == other)
    sqnr = (
        10 * math.log10(signal / squares) if squares and signal else (math.inf if not squares else -math.inf)
    )
    count = x.numel()
    return QuantizationError(squares / count, absolute / count, largest, sqnr, min(cosine, 1.0))
