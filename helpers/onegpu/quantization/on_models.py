"""Quantize a real model's linear layers and see what changes: errors, outliers, perplexity, answers.

The layers are quantized and turned back, so that the model computes in floating point with the values that a packed
model would have: what is measured is the rounding, on any machine. LLM.int8 rounds activations too, and is computed so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import torch
from torch import nn

from onegpu.quantization.blockwise import quantize_4bit, quantize_absmax, quantize_blockwise, quantize_rowwise
from onegpu.quantization.errors import QuantizationError, quantization_error
from onegpu.quantization.llm_int8 import OUTLIER_THRESHOLD, int8_linear
from onegpu.quantization.tensors import QuantizedTensor

Quantize = Callable[[torch.Tensor], QuantizedTensor | torch.Tensor]

SCHEMES: dict[str, Quantize | None] = {
    "fp32": None,
    "bf16": torch.Tensor.bfloat16,
    "fp16": torch.Tensor.half,
    "int8 per tensor": quantize_absmax,
    "int8 block 64": lambda weight: quantize_blockwise(weight, 64),
    "LLM.int8": quantize_rowwise,
    "LLM.int8, no outliers kept": quantize_rowwise,
    "nf4": lambda weight: quantize_4bit(weight, "nf4"),
    "nf4-dq": lambda weight: quantize_4bit(weight, "nf4", double_quantization=True),
    "fp4": lambda weight: quantize_4bit(weight, "fp4"),
    "int4 block 64": lambda weight: quantize_blockwise(weight, 64, bits=4),
    "int3 block 64": lambda weight: quantize_blockwise(weight, 64, bits=3),
}
"""What the lesson compares: how each scheme stores a weight matrix (None: as it is)."""


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """A model's linear layers by name, without the output head: the ones that bitsandbytes would replace."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}


@contextlib.contextmanager
def quantized(model: nn.Module, scheme: str | Quantize) -> Iterator[nn.Module]:
    """Let the model compute with quantized linear layers inside a ``with`` block; put the weights back after it.

    Parameters
    ----------
    scheme
        A name from ``SCHEMES``, or a function of your own: it gets each weight matrix and returns what your format makes
        of it, as a tensor of the same shape (or a ``QuantizedTensor``).

    Raises
    ------
    ValueError
        For an unknown name, or a function that returns another shape.

    Examples
    --------
    >>> from onegpu.models import tiny_model
    >>> model = tiny_model()
    >>> before = model.model.layers[0].mlp.up_proj.weight.clone()
    >>> with quantized(model, "nf4"):
    ...     during = model.model.layers[0].mlp.up_proj.weight.clone()
    >>> torch.equal(before, during), torch.equal(before, model.model.layers[0].mlp.up_proj.weight)
    (False, True)
    >>> with quantized(model, lambda weight: weight.sign() * weight.abs().mean()):  # one bit a weight
    ...     model.model.layers[0].mlp.up_proj.weight.unique().numel()
    2
    """
    quantize = _quantizer(scheme)
    name = scheme if isinstance(scheme, str) else ""
    kept: list[tuple[nn.Linear, torch.Tensor]] = []
    try:
        for layer in linear_layers(model).values() if quantize else ():
            packed = quantize(layer.weight.detach())
            if packed.shape != layer.weight.shape:
                raise ValueError(
                    f"the function made {tuple(packed.shape)} of a weight of {tuple(layer.weight.shape)}, "
                    f"expected the same shape: undo its blocks with .view(weight.shape)"
                )
            kept.append((layer, layer.weight.data))
            if name.startswith("LLM.int8"):
                # An instance attribute goes before the class's method, and is deleted afterwards.
                layer.forward = _int8_forward(
                    packed, layer.bias, OUTLIER_THRESHOLD if name == "LLM.int8" else 0.0
                )
            else:
                values = packed.dequantize() if isinstance(packed, QuantizedTensor) else packed
                layer.weight.data = values.to(layer.weight.dtype)
        yield model
    finally:
        for layer, weight in kept:
            layer.weight.data = weight
            layer.__dict__.pop("forward", None)


def _int8_forward(packed: QuantizedTensor, bias: torch.Tensor | None, threshold: float):
    return lambda x: int8_linear(x, packed, bias, threshold=threshold)


def _quantizer(scheme: str | Quantize) -> Quantize | None:
    if callable(scheme):
        return scheme
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}, expected one of {', '.join(SCHEMES)}")
    return SCHEMES[scheme]


@dataclass(frozen=True)
class LayerError:
    """One linear layer's error under one scheme."""

    layer: str
    scheme: str
    error: QuantizationError

    @property
    def kind(self) -> str:
        """The layer's place in its block: ``"q_proj"``, ``"down_proj"``..."""
        return self.layer.rpartition(".")[2]


def weight_errors(
    model: nn.Module, schemes: Sequence[str], layers: Sequence[str] | None = None
) -> list[LayerError]:
    """Quantize linear layers under every scheme and compare with the original.

    Parameters
    ----------
    schemes
        Names from ``SCHEMES``; "fp32" has no error to list.
    layers
        Names from ``linear_layers``; all of them if not given.

    Examples
    --------
    >>> from onegpu.models import tiny_model
    >>> rows = weight_errors(tiny_model(), ("int8 block 64", "nf4"))
    >>> len(rows), rows[0].kind, rows[0].error.sqnr_db > rows[1].error.sqnr_db
    (28, 'q_proj', True)
    """
    quantizers = {scheme: _quantizer(scheme) for scheme in schemes}
    return [
        LayerError(name, scheme, quantization_error(layer.weight, quantize(layer.weight)))
        for name, layer in linear_layers(model).items()
        if layers is None or name in layers
        for scheme, quantize in quantizers.items()
        if quantize
    ]


@dataclass(frozen=True)
class LayerOutliers:
    """What goes into one linear layer: its largest magnitude, the typical one, and the outlier columns."""

    layer: str
    largest: float
    median: float
    columns: tuple[int, ...]
    features: int

    @property
    def ratio(self) -> float:
        """The largest magnitude over the median one."""
        return self.largest / self.median if self.median else math.inf


@torch.no_grad()
def activation_outliers(
    model: nn.Module, input_ids: torch.Tensor, *, threshold: float = OUTLIER_THRESHOLD
) -> list[LayerOutliers]:
    """Run a text through the model and look at the input of every linear layer.

    Parameters
    ----------
    input_ids
        ``(batch, tokens)``.
    threshold
        Magnitude from which a column counts as an outlier.
    """
    found: dict[str, LayerOutliers] = {}

    def hook(name: str):
        def look(layer, inputs):
            size = inputs[0].detach().abs().reshape(-1, inputs[0].shape[-1])
            columns = (size >= threshold).any(0).nonzero().view(-1).tolist()
            found[name] = LayerOutliers(
                name, float(size.max()), float(size.median()), tuple(columns), size.shape[-1]
            )

        return look

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in linear_layers(model).items()]
    try:
        model(input_ids=input_ids)
    finally:
        for handle in handles:
            handle.remove()
    return [found[name] for name in linear_layers(model) if name in found]


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text: ``exp`` of the mean negative log-likelihood of its tokens."""

    tokens: int
    mean_nll: float

    @property
    def value(self) -> float:
        """The perplexity: as unsure as among this many equally likely tokens."""
        return math.exp(self.mean_nll)

    def __str__(self) -> str:
        return f"perplexity {self.value:.2f} on {self.tokens:,} tokens"


def held_out_text() -> str:
    """Five short paragraphs written for this course, which no model has seen in training."""
    return files("onegpu.quantization").joinpath("held_out.txt").read_text(encoding="utf-8")


@torch.no_grad()
def perplexity(model: nn.Module, input_ids: torch.Tensor) -> Perplexity:
    """Measure a model's perplexity on one text, every token but the first predicted from all before it.

    Parameters
    ----------
    input_ids
        ``(1, tokens)``, two tokens or more, no padding.

    Examples
    --------
    >>> from onegpu.models import tiny_model
    >>> ids = torch.arange(20)[None]
    >>> found = perplexity(tiny_model(), ids)
    >>> found.tokens, 300 < found.value < 500  # an untrained model is as unsure as among its 384 tokens
    (19, True)
    """
    if input_ids.dim() != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 2:
        raise ValueError(
            f"input_ids has shape {tuple(input_ids.shape)}, expected (1, tokens) with 2 tokens or more"
        )
    return Perplexity(input_ids.shape[1] - 1, float(token_losses(model, input_ids).mean()))


@torch.no_grad()
def token_losses(model: nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    """Return each token's negative log-likelihood in nats, the first token's left out: (tokens - 1,) in fp32.

    Two models' losses on one text can be subtracted token by token, which tells a small difference from chance.

    Parameters
    ----------
    input_ids
        ``(1, tokens)``.

    Examples
    --------
    >>> from onegpu.models import tiny_model
    >>> token_losses(tiny_model(), torch.arange(20)[None]).shape
    torch.Size([19])
    """
    logits = model(input_ids=input_ids, use_cache=False).logits[0, :-1].float()
    return nn.functional.cross_entropy(logits, input_ids[0, 1:], reduction="none")
