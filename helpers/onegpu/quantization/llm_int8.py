"""LLM.int8: int8 matrix products that keep the few large activation columns in floating point.

Some features of a language model's activations are tens of times larger than the rest. Quantized with them, everything
else in their row rounds to zero. So columns that hold a magnitude of 6 or more are taken out and multiplied in floating
point; what is left, over 99 %, is multiplied in int8 with one scale a row of the activations and one a row of the
weights. Source: arXiv 2208.07339.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from onegpu.quantization.blockwise import quantize_rowwise
from onegpu.quantization.tensors import QuantizedTensor

OUTLIER_THRESHOLD = 6.0


@dataclass(frozen=True, eq=False)
class OutlierSplit:
    """Activations in two parts.

    Attributes
    ----------
    quantized
        All rows in int8, the outlier columns zero.
    columns
        Indices of the outlier columns, ascending.
    outliers
        ``x[:, columns]`` as it was.
    """

    quantized: QuantizedTensor
    columns: torch.Tensor
    outliers: torch.Tensor

    def __str__(self) -> str:
        rows, features = self.quantized.shape
        return f"{rows} rows of {features} features, {len(self.columns)} outlier columns: {self.columns.tolist()}"


def split_outliers(x: torch.Tensor, threshold: float = OUTLIER_THRESHOLD) -> OutlierSplit:
    """Take out the columns that hold a magnitude of ``threshold`` or more, and quantize the rest row by row.

    A row's scale is its largest magnitude below the threshold.

    Parameters
    ----------
    x
        ``(..., features)`` activations.
    threshold
        0 takes out none.

    Examples
    --------
    >>> split = split_outliers(torch.tensor([[1.0, 8.0, 0.5], [0.1, 0.2, -0.3]]))
    >>> split.quantized.codes.tolist(), split.columns.tolist()
    ([[127, 0, 64], [42, 0, -127]], [1])
    """
    if threshold < 0:
        raise ValueError(f"threshold is {threshold}, expected 0 or more")
    rows = x.detach().reshape(-1, x.shape[-1])
    large = rows.abs() >= threshold if threshold else torch.zeros_like(rows, dtype=torch.bool)
    columns = large.any(0).nonzero().view(-1)
    quantized = quantize_rowwise(rows.masked_fill(large, 0.0) if len(columns) else rows)
    quantized.codes[:, columns] = 0
    return OutlierSplit(quantized, columns, rows[:, columns])


def int8_linear(
    x: torch.Tensor,
    weight: QuantizedTensor,
    bias: torch.Tensor | None = None,
    *,
    threshold: float = OUTLIER_THRESHOLD,
) -> torch.Tensor:
    """Compute ``x @ weight.T + bias`` as LLM.int8 does.

    Parameters
    ----------
    x
        ``(..., in_features)`` activations.
    weight
        ``(out_features, in_features)`` from ``quantize_rowwise``.
    bias
        ``(out_features,)``.
    threshold
        Columns of ``x`` with this magnitude are multiplied in floating point; 0 for none.

    Returns
    -------
    torch.Tensor
        ``(..., out_features)`` in x's dtype.

    Examples
    --------
    >>> weight = quantize_rowwise(torch.tensor([[1.0, 0.5], [-0.25, 1.0]]))
    >>> int8_linear(torch.tensor([[1.0, 2.0]]), weight)
    tensor([[2.0157, 1.7460]])
    """
    if weight.scheme != "int8" or len(weight.shape) != 2 or weight.blocksize != weight.shape[1]:
        raise ValueError(f"weight is {weight}: expected a matrix quantized with quantize_rowwise")
    split = split_outliers(x, threshold)
    # Products of whole numbers, exact in fp32 below 2**24 and off by a rounding above.
    product = split.quantized.codes.float() @ weight.codes.float().T
    out = product * (split.quantized.scales[:, None] * weight.scales[None, :]) / 127**2
    if len(split.columns):
        columns = weight.codes[:, split.columns].float() * (weight.scales[:, None] / 127)
        out = out + split.outliers.to(out.dtype) @ columns.T.to(out.dtype)
    if bias is not None:
        out = out + bias
    return out.to(x.dtype).view(*x.shape[:-1], weight.shape[0])
