"""Number formats and what they cost: bits, rounding, model sizes, dataset sizes, and bytes as people write them.

>>> print(model_size("smollm2-135m", "bf16"))
smollm2-135m in bf16: 0.251 GiB = 0.269 GB (16.00 bits a parameter)
>>> print(store(0.1, "bf16"))
0.1 in bf16: 0 01111011 1001101 = 0.10009765625, error +9.77e-05 (0.00098 relative)
"""

from onegpu.dtype_sizing.bits import Stored, count_between, decode, encode, flip_bit, neighbours, store
from onegpu.dtype_sizing.byte_units import UNITS, format_bytes, parse_bytes
from onegpu.dtype_sizing.checkpoint import CheckpointSize, checkpoint_size, read_header
from onegpu.dtype_sizing.dataset_size import DatasetSize, column_dtype, dataset_bytes, predict_dataset_bytes
from onegpu.dtype_sizing.formats import FORMATS, NumberFormat, fp4_codebook, nf4_codebook, number_format
from onegpu.dtype_sizing.model_size import (
    TRAINING_RECIPES,
    ModelSize,
    TrainingRecipe,
    WeightGroups,
    model_size,
    models_that_fit,
    training_state_bytes,
    weight_groups,
)

__all__ = [
    "FORMATS",
    "TRAINING_RECIPES",
    "UNITS",
    "CheckpointSize",
    "DatasetSize",
    "ModelSize",
    "NumberFormat",
    "Stored",
    "TrainingRecipe",
    "WeightGroups",
    "checkpoint_size",
    "column_dtype",
    "count_between",
    "dataset_bytes",
    "decode",
    "encode",
    "flip_bit",
    "format_bytes",
    "fp4_codebook",
    "model_size",
    "models_that_fit",
    "neighbours",
    "nf4_codebook",
    "number_format",
    "parse_bytes",
    "predict_dataset_bytes",
    "read_header",
    "store",
    "training_state_bytes",
    "weight_groups",
]
