"""How many parameters does a safetensors file hold? Not what adding up its shapes says.

A packed 4-bit weight is stored as bytes or 32-bit words that hold two or eight weights each, and its scales are tensors
too. Counting elements gives half or an eighth of the weights (omlx#3489) plus scales that are no parameters
(huggingface.js#2323).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onegpu.dtype_sizing.byte_units import format_bytes

_BNB_STATE = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".SCB", ".weight_format")
_BNB_PACKED = ".quant_state.bitsandbytes__"
_GPTQ_STATE = (".qzeros", ".scales", ".g_idx")
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class CheckpointSize:
    """What a safetensors file holds: ``parameters`` in full number, ``state_bytes`` of them scales and tables."""

    parameters: int
    stored_elements: int
    data_bytes: int
    state_bytes: int

    @property
    def bits_per_parameter(self) -> float:
        """All stored bits over the parameters."""
        return 8 * self.data_bytes / self.parameters if self.parameters else 0.0

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters in {format_bytes(self.data_bytes)} "
            f"({self.bits_per_parameter:.2f} bits each, {format_bytes(self.state_bytes)} of it scales)"
        )


def read_header(path: str | Path) -> dict:
    """Read a safetensors file's header, not its weights: tensor name to dtype, shape and offsets."""
    with Path(path).open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _MAX_HEADER:
            raise ValueError(f"{path}: no safetensors file, its header length reads {length}")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def checkpoint_size(source: str | Path | Mapping, *, bits: int | None = None) -> CheckpointSize:
    """Count a checkpoint's parameters and bytes, seeing through the packing of bitsandbytes, GPTQ, AWQ and MLX.

    Parameters
    ----------
    source
        A .safetensors file, a folder of them, or a header as ``read_header`` gives it.
    bits
        Bits of a packed weight, needed for MLX files, which don't say.

    Examples
    --------
    >>> packed = {"w.weight": {"dtype": "U32", "shape": [4096, 512], "data_offsets": [0, 8388608]},
    ...           "w.scales": {"dtype": "F16", "shape": [4096, 64], "data_offsets": [8388608, 8912896]}}
    >>> print(checkpoint_size(packed, bits=4))
    16,777,216 parameters in 8.50 MiB (4.25 bits each, 512.00 KiB of it scales)
    """
    if not isinstance(source, Mapping):
        path = Path(source)
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path}: no .safetensors file in this folder")
        header = {}
        for file in files:
            header |= read_header(file)
        source = header
    parameters = elements = data = state = 0
    for name, tensor in source.items():
        count = math.prod(tensor["shape"])
        size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
        elements += count
        data += size
        if _is_state(name, source):
            state += size
        else:
            parameters += _logical_count(name, tensor, source, bits)
    return CheckpointSize(parameters, elements, data, state)


def _is_state(name: str, tensors: Mapping) -> bool:
    base, dot, last = name.rpartition(".")
    if _BNB_PACKED in name or name.endswith(_BNB_STATE):
        return True
    if name.endswith(_GPTQ_STATE) and f"{base}.qweight" in tensors:
        return True
    packed = tensors.get(f"{base}{dot}weight", {}).get("dtype") == "U32"  # MLX
    return packed and last in ("scales", "biases")


def _logical_count(name: str, tensor: Mapping, tensors: Mapping, bits: int | None) -> int:
    shape, count = tensor["shape"], math.prod(tensor["shape"])
    base = name.rpartition(".")[0]
    if any(f"{name}{_BNB_PACKED}{kind}" in tensors for kind in ("nf4", "fp4")):
        # The packed bytes: two weights each (one padding weight if their number is odd).
        return count * 2 * {"U8": 1, "BF16": 2, "F16": 2, "F32": 4}[tensor["dtype"]]
    if name.endswith(".qweight"):
        out_features = tensors[f"{base}.scales"]["shape"][1]
        group_index = tensors.get(f"{base}.g_idx")
        return (group_index["shape"][0] if group_index else shape[0]) * out_features
    if tensor["dtype"] == "U32":
        if bits is None:
            raise ValueError(
                f"{name}: packed in 32-bit words, the file doesn't say how many weights each holds: give bits=4 or bits=8"
            )
        return count * 32 // bits
    return count
