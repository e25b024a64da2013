"""How large is a model in a given format? Exact, from its configuration, without its weights.

The model is built on torch's meta device, where tensors have shapes and no memory, so the count is that of the real
code: tied weights once (they are one matrix: Qwen3-0.6B has 596,049,920 parameters, not 751,632,384), buffers apart,
and the linear layers, which are what gets quantized, separate from embeddings, norms and the output head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onegpu.dtype_sizing.byte_units import format_bytes, parse_bytes
from onegpu.dtype_sizing.formats import NumberFormat, number_format
from onegpu.models import CATALOGUE, CatalogueEntry, find
from onegpu.runtime import find_gpu

if TYPE_CHECKING:
    import torch

DEFAULT_REST = "bf16"


@dataclass(frozen=True)
class WeightGroups:
    """What a model's parameters are.

    Attributes
    ----------
    name
        Of the model.
    linear_shapes
        ``(out_features, in_features)`` of each linear layer but the output head: what quantization replaces.
    other
        Number of all other parameters: embeddings, output head where it is a matrix of its own, norms, biases.
    buffer_bytes
        Bytes of tensors that aren't parameters (rotary frequencies, causal masks), at their own dtypes.
    """

    name: str
    linear_shapes: tuple[tuple[int, int], ...]
    other: int
    buffer_bytes: int

    @property
    def linear(self) -> int:
        """Number of weights in linear layers."""
        return sum(rows * columns for rows, columns in self.linear_shapes)

    @property
    def parameters(self) -> int:
        """All unique parameters."""
        return self.linear + self.other

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.parameters:,} parameters, {self.linear:,} in {len(self.linear_shapes)} linear "
            f"layers, {self.other:,} others"
        )


@dataclass(frozen=True)
class ModelSize:
    """Bytes of a model's weights in one format.

    ``weights_bytes`` is the data of what is in ``dtype``, ``scales_bytes`` its scales, ``rest_bytes`` what stays in
    ``rest_dtype`` (None: nothing does). Buffers are apart: they aren't parameters and aren't in ``total_bytes``.
    """

    name: str
    parameters: int
    dtype: str
    rest_dtype: str | None
    weights_bytes: int
    scales_bytes: int
    rest_bytes: int
    buffer_bytes: int

    @property
    def total_bytes(self) -> int:
        """Weights, scales and the rest."""
        return self.weights_bytes + self.scales_bytes + self.rest_bytes

    @property
    def bits_per_parameter(self) -> float:
        """Bits of memory for each parameter, everything included."""
        return 8 * self.total_bytes / self.parameters if self.parameters else 0.0

    @property
    def format(self) -> str:
        """The formats in words: ``"bf16"``, ``"nf4-dq + bf16"``."""
        return f"{self.dtype} + {self.rest_dtype}" if self.rest_dtype else self.dtype

    def __str__(self) -> str:
        total = self.total_bytes
        return (
            f"{self.name} in {self.format}: {format_bytes(total, 'GiB', digits=3)} = "
            f"{format_bytes(total, 'GB', digits=3)} ({self.bits_per_parameter:.2f} bits a parameter)"
        )

    def _repr_html_(self) -> str:
        from html import escape

        rows = [
            (f"weights in {self.dtype}", self.weights_bytes),
            ("scales", self.scales_bytes),
            (f"rest in {self.rest_dtype}", self.rest_bytes),
            ("total", self.total_bytes),
        ]
        body = "".join(
            f"<tr><th scope='row'>{what}</th><td>{size:,}</td><td>{format_bytes(size, 'GiB', digits=3)}</td>"
            f"<td>{format_bytes(size, 'GB', digits=3)}</td></tr>"
            for what, size in rows
            if size
        )
        head = "<tr><th>part</th><th>bytes</th><th>GiB</th><th>GB</th></tr>"
        return f"<table><caption>{escape(self.name)} in {self.format}</caption>{head}{body}</table>"


def weight_groups(model: Any) -> WeightGroups:
    """Sort a model's unique parameters into linear layers and the rest.

    Parameters
    ----------
    model
        A catalogue name, a folder with a config.json, a hub id (whose configuration is fetched), a transformers
        configuration, or a torch module. Packed 4-bit weights count at their full number (bitsandbytes#834).

    Examples
    --------
    >>> print(weight_groups("smollm2-135m"))
    smollm2-135m: 134,515,008 parameters, 106,168,320 in 210 linear layers, 28,346,688 others
    """
    if isinstance(model, (str, Path, CatalogueEntry)):
        found = find(model) if isinstance(model, (str, Path)) else model
        return _catalogue_groups(found.name) if isinstance(found, CatalogueEntry) else _hub_groups(found)
    if hasattr(model, "named_parameters"):
        return _module_groups(model, type(model).__name__)
    return _config_groups(model, getattr(model, "name_or_path", "") or model.model_type)


@functools.cache
def _catalogue_groups(name: str) -> WeightGroups:
    return _config_groups(CATALOGUE[name].config(), name)


def _hub_groups(source: str | Path) -> WeightGroups:
    from transformers import AutoConfig

    return _config_groups(AutoConfig.from_pretrained(source, trust_remote_code=False), str(source))


def _config_groups(config: Any, name: str) -> WeightGroups:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return _module_groups(model, name)


def _module_groups(model: torch.nn.Module, name: str) -> WeightGroups:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    from onegpu.models import count_parameters

    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    shapes, seen = [], set()
    for module in model.modules():
        if module is head or not isinstance(module, (nn.Linear, Conv1D)) or module.weight in seen:
            continue
        seen.add(module.weight)
        state = getattr(module.weight, "quant_state", None)
        shape = tuple(state.shape if state is not None else module.weight.shape)
        shapes.append(shape[::-1] if isinstance(module, Conv1D) else shape)
    linear = sum(rows * columns for rows, columns in shapes)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return WeightGroups(name, tuple(shapes), count_parameters(model).total - linear, buffers)


def model_size(
    model: Any, dtype: str | NumberFormat = "bf16", *, rest_dtype: str | NumberFormat | None = None
) -> ModelSize:
    """Count the bytes of a model's weights in a format.

    Parameters
    ----------
    model
        What ``weight_groups`` takes, or a ``WeightGroups``.
    dtype
        A name from ``FORMATS``. A format with a scale in each block (nf4, nf4-dq, fp4, mxfp4, nvfp4) is for the
        linear layers only, as bitsandbytes does it; a plain one is for every parameter.
    rest_dtype
        Format of embeddings, output head, norms and biases; bf16 for a block format if not given. Given with int8,
        it means LLM.int8: linear layers in int8 with an fp32 scale for each output row.

    Notes
    -----
    Double quantization's scales contain the fp32 offset of each tensor; the two code tables, 1,088 bytes that
    bitsandbytes keeps beside a tensor, are left out, and so are buffers.

    Examples
    --------
    >>> print(model_size("llama-2-7b", "fp16"))
    llama-2-7b in fp16: 12.551 GiB = 13.477 GB (16.00 bits a parameter)
    >>> print(model_size("llama-2-7b", "nf4-dq"))
    llama-2-7b in nf4-dq + bf16: 3.600 GiB = 3.866 GB (4.59 bits a parameter)
    """
    groups = model if isinstance(model, WeightGroups) else weight_groups(model)
    fmt = number_format(dtype)
    rest = number_format(rest_dtype or DEFAULT_REST) if rest_dtype or fmt.block_size else None
    if rest is None:
        size = fmt.storage_bytes(groups.parameters)
        return ModelSize(groups.name, groups.parameters, fmt.name, None, size, 0, 0, groups.buffer_bytes)
    if rest.block_size:
        raise ValueError(
            f"rest_dtype={rest.name}: embeddings and norms stay unquantized, expected a plain format"
        )
    weights = scales = 0
    for rows, columns in groups.linear_shapes:
        data = -(-rows * columns * fmt.bits // 8) if fmt.block_size else fmt.storage_bytes(rows * columns)
        weights += data
        if fmt.block_size:
            scales += fmt.storage_bytes(rows * columns) - data + (4 if fmt.name == "nf4-dq" else 0)
        elif fmt.name == "int8":
            scales += 4 * rows
    return ModelSize(
        groups.name, groups.parameters, fmt.name, rest.name, weights, scales, rest.storage_bytes(groups.other),
        groups.buffer_bytes,
    )  # fmt: skip


def models_that_fit(
    memory: str | int,
    dtype: str | NumberFormat = "bf16",
    *,
    rest_dtype: str | NumberFormat | None = None,
    reserve: str | int = 0,
) -> list[ModelSize]:
    """Catalogue models whose weights fit in a memory, the largest first.

    Weights only: a forward pass needs room as well, training much more. ``reserve`` keeps some free for them.

    Parameters
    ----------
    memory
        Bytes, a text such as ``"14.75 GiB"``, or the name of a card (``onegpu.runtime.GPUS``).

    Examples
    --------
    >>> [models_that_fit("T4", dtype)[0].name for dtype in ("fp32", "fp16", "nf4-dq")]
    ['polyglot-ko-3.8b', 'qwen2.5-7b', 'llama-2-13b']
    """
    room = _available_bytes(memory) - parse_bytes(reserve)
    sizes = (model_size(name, dtype, rest_dtype=rest_dtype) for name in CATALOGUE)
    fitting = [size for size in sizes if size.total_bytes <= room]
    return sorted(fitting, key=lambda size: size.parameters, reverse=True)


def _available_bytes(memory: str | int) -> int:
    try:
        return parse_bytes(memory)
    except ValueError:
        total = find_gpu(memory).total_bytes
        if total is None:
            raise ValueError("the CPU has no fixed memory: give a size, for instance '16 GiB'") from None
        return total


@dataclass(frozen=True)
class TrainingRecipe:
    """Bytes each parameter takes while all of them are trained, by what they are for."""

    name: str
    weights: int
    gradients: int
    master_weights: int
    optimizer: int

    @property
    def bytes_per_parameter(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.master_weights + self.optimizer

    def __str__(self) -> str:
        parts = [("weights", self.weights), ("gradients", self.gradients)]
        parts += [("fp32 copy", self.master_weights), ("optimizer", self.optimizer)]
        sums = " + ".join(f"{size} {what}" for what, size in parts if size)
        return f"{self.name}: {sums} = {self.bytes_per_parameter} bytes a parameter"


TRAINING_RECIPES = {
    recipe.name: recipe
    for recipe in (
        TrainingRecipe("fp32 AdamW", 4, 4, 0, 8),
        TrainingRecipe("mixed AdamW, 16-bit gradients", 2, 2, 4, 8),
        TrainingRecipe("mixed AdamW, fp32 gradients", 2, 4, 4, 8),
    )
}
"""AdamW keeps two fp32 numbers for each parameter; what else there is depends on the recipe, so name it.

Published figures of 12, 16, 18 and 20 bytes are all right for some recipe (Megatron-LM#654, MS-AMP#173, maxtext#606).
"""


def training_state_bytes(parameters: int, recipe: str | TrainingRecipe = "fp32 AdamW") -> int:
    """Bytes of weights, gradients and optimizer state when all parameters are trained. No activations.

    Examples
    --------
    >>> format_bytes(training_state_bytes(6_738_415_616), "GB")
    '107.81 GB'
    """
    if isinstance(recipe, str):
        if recipe not in TRAINING_RECIPES:
            raise ValueError(f"unknown recipe {recipe!r}, expected one of {', '.join(TRAINING_RECIPES)}")
        recipe = TRAINING_RECIPES[recipe]
    return parameters * recipe.bytes_per_parameter
