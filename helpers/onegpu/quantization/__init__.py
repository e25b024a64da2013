"""Quantization: fewer bits for each weight, and what that costs.

>>> import torch
>>> x = torch.tensor([1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4])
>>> quantize_absmax(x).codes.tolist()
[28, -12, -101, 28, -73, 19, 56, 127]
"""

from onegpu.dtype_sizing import fp4_codebook, nf4_codebook
from onegpu.quantization.blockwise import (
    double_quantize,
    pack_4bit,
    quantize_4bit,
    quantize_absmax,
    quantize_blockwise,
    quantize_dynamic8,
    quantize_rowwise,
    quantize_zeropoint,
    unpack_4bit,
)
from onegpu.quantization.errors import QuantizationError, quantization_error
from onegpu.quantization.llm_int8 import OUTLIER_THRESHOLD, OutlierSplit, int8_linear, split_outliers
from onegpu.quantization.on_models import (
    SCHEMES,
    LayerError,
    LayerOutliers,
    Perplexity,
    activation_outliers,
    held_out_text,
    linear_layers,
    perplexity,
    quantized,
    token_losses,
    weight_errors,
)
from onegpu.quantization.tables import dynamic_table, table
from onegpu.quantization.tensors import DoubleQuantized, QuantizedTensor

__all__ = [
    "OUTLIER_THRESHOLD",
    "SCHEMES",
    "DoubleQuantized",
    "LayerError",
    "LayerOutliers",
    "OutlierSplit",
    "Perplexity",
    "QuantizationError",
    "QuantizedTensor",
    "activation_outliers",
    "double_quantize",
    "dynamic_table",
    "fp4_codebook",
    "held_out_text",
    "int8_linear",
    "linear_layers",
    "nf4_codebook",
    "pack_4bit",
    "perplexity",
    "quantization_error",
    "quantize_4bit",
    "quantize_absmax",
    "quantize_blockwise",
    "quantize_dynamic8",
    "quantize_rowwise",
    "quantize_zeropoint",
    "quantized",
    "split_outliers",
    "table",
    "token_losses",
    "unpack_4bit",
    "weight_errors",
]
