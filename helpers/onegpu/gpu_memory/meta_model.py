"""A model of shapes only: built on meta tensors as transformers, bitsandbytes and peft would build it on a card.

Nothing is downloaded and nothing is computed. Under a tracker, weights come one by one in the order in which a
checkpoint is read, 4-bit ones by way of bitsandbytes' own quantization, so that the trace has its temporaries too.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from onegpu.gpu_memory.training_setup import DTYPES, ResolvedSetup
from onegpu.runtime import import_bitsandbytes


def meta_model(setup: ResolvedSetup, config: Any) -> nn.Module:
    """Build the model of a setup on the meta device: bare, in its dtype, in training mode."""
    from transformers import AutoModelForCausalLM

    options = (
        {"attn_implementation": "eager" if setup.attention == "eager" else "sdpa"} if setup.attention else {}
    )
    with torch.device("meta"), quiet_warnings():
        model = AutoModelForCausalLM.from_config(
            config, dtype=setup.torch_dtype, trust_remote_code=False, **options
        )
    if setup.loop != "plain":
        model.config.use_cache = False  # TrainingArguments(use_cache=False) is the default
    return model.train()


def load_weights(
    model: nn.Module, tracker: Any, setup: ResolvedSetup, layers: Sequence[nn.Module] = ()
) -> None:
    """Let every weight and buffer appear in the trace, as ``from_pretrained`` would put them on a card.

    Parameters
    ----------
    layers
        Those that the trace is to name.
    """
    if not setup.gpu.is_cpu:
        # transformers first takes the whole size at once and gives it back, to have one large segment.
        of_a_layer = _checkpoint_bytes(model, setup, layers[1]) if layers else 0
        tracker.use(_checkpoint_bytes(model, setup), "caching_allocator_warmup", of_a_layer)
    number_of = {id(module): i for i, layer in enumerate(layers) for module in layer.modules()}
    if setup.quantization:
        _mark_quantized(model, setup)
    seen = {}
    for module in list(model.modules()):
        tracker.trace.at_work(number_of.get(id(module)))
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in seen:
                new = seen[id(parameter)]
            elif setup.quantization and is_quantizable(model, module) and name == "weight":
                continue
            else:
                new = nn.Parameter(torch.empty_like(parameter), requires_grad=parameter.requires_grad)
                tracker.see(new, "weights")
                seen[id(parameter)] = new
            module._parameters[name] = new
        if setup.quantization:
            for name, child in list(module.named_children()):
                if is_quantizable(model, child):
                    layer = quantized_linear(child, setup)
                    module._modules[name] = layer
                    tracker.see(layer.weight, "weights")
                    if layer.bias is not None:
                        tracker.see(layer.bias, "weights")
                    for tensor in quantization_tensors(layer):
                        tracker.see(tensor, "quantization_state")
    tracker.trace.at_work(None)
    for table in shared_tables():
        tracker.see(table, "quantization_state")
    number_of |= {id(module): i for i, layer in enumerate(layers) for module in layer.modules()}
    for module in model.modules():
        tracker.trace.at_work(number_of.get(id(module)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty_like(buffer)
            tracker.see(module._buffers[name], "buffers")
    tracker.trace.at_work(None)


def is_quantizable(model: nn.Module, module: nn.Module) -> bool:
    """Whether bitsandbytes replaces this module: a linear layer (or GPT-2's Conv1D) that isn't the output head."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (nn.Linear, Conv1D)) and module is not model.get_output_embeddings()


def quantize_linears(model: nn.Module, setup: ResolvedSetup) -> None:
    """Replace the linear layers of a real model by bitsandbytes' quantized ones, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if is_quantizable(model, child):
                module._modules[name] = quantized_linear(child, setup)
    _mark_quantized(model, setup)


def _mark_quantized(model: nn.Module, setup: ResolvedSetup) -> None:
    """As transformers does; peft and accelerate ask."""
    setattr(model, "is_loaded_in_8bit" if setup.quantization == "int8" else "is_loaded_in_4bit", True)
    model.quantization_method = "bitsandbytes"


def quantized_linear(linear: nn.Module, setup: ResolvedSetup) -> nn.Module:
    """Return bitsandbytes' layer for a linear one, its weight and scales made by bitsandbytes itself."""
    layer = (_linear_8bit if setup.quantization == "int8" else _linear_4bit)(linear, setup)
    if linear.bias is not None:
        bias = torch.empty_like(linear.bias) if _is_meta(linear) else linear.bias.detach()
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def _is_meta(linear: nn.Module) -> bool:
    return linear.weight.device.type == "meta"


def _whole_weight(linear: nn.Module) -> torch.Tensor:
    """The weight as it is read from a checkpoint, (out, in); whoever quantizes it lets go of it."""
    whole = torch.empty_like(linear.weight) if _is_meta(linear) else linear.weight.detach()
    return whole if isinstance(linear, nn.Linear) else whole.t().contiguous()


def _linear_8bit(linear: nn.Module, setup: ResolvedSetup) -> nn.Module:
    """LLM.int8 as transformers asks for it: one scale a row, a copy of the weight in fp16 while it is quantized."""
    bnb = import_bitsandbytes()
    whole = _whole_weight(linear)
    rows, columns = whole.shape
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(whole.to(torch.float16, copy=True))
    with torch.utils._python_dispatch._disable_current_modes():  # its first weight is never made
        layer = bnb.nn.Linear8bitLt(
            columns, rows, bias=False, has_fp16_weights=False, threshold=6.0, device="meta"
        )
    layer.weight = bnb.nn.Int8Params(codes, requires_grad=False, has_fp16_weights=False, CB=codes, SCB=scales)
    if setup.gpu.is_cpu and _is_meta(linear):
        layer.forward = partial(_forward_8bit_on_cpu, layer)
    return layer


def _forward_8bit_on_cpu(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """As bitsandbytes trains where the input is on a CPU: the weight is dequantized, then a plain product."""
    from bitsandbytes.autograd._functions import MatMul8bitFp

    if layer.weight.CB is not None:
        layer.init_8bit_state()
    return MatMul8bitFp.apply(x, layer.weight, None, layer.bias, layer.state)


def _linear_4bit(linear: nn.Module, setup: ResolvedSetup) -> nn.Module:
    bnb = import_bitsandbytes()
    whole = _whole_weight(linear)
    rows, columns = whole.shape
    packed, state = bnb.functional.quantize_4bit(
        whole, blocksize=64, compress_statistics=setup.double_quantization, quant_type="nf4"
    )
    del whole
    layer = bnb.nn.Linear4bit(
        columns, rows, bias=False, compute_dtype=setup.compute_dtype,
        compress_statistics=setup.double_quantization, quant_type="nf4", device="meta",
    )  # fmt: skip
    layer.support_avx512bf16_for_cpu = False  # its repacked weights have no backward pass
    layer.weight = bnb.nn.Params4bit(
        packed, requires_grad=False, quant_state=state, bnb_quantized=True, module=layer,
        compress_statistics=setup.double_quantization, quant_type="nf4",
    )  # fmt: skip
    layer.quant_state = state
    return layer


def quantization_tensors(module: nn.Module) -> list[torch.Tensor]:
    """What a layer of bitsandbytes has beside its codes (scales, tables, those of its scales); [] for any other module."""
    bnb = import_bitsandbytes()
    if isinstance(module, bnb.nn.Linear8bitLt):
        return [s for s in (module.weight.SCB, module.state.SCB) if s is not None]
    if not isinstance(module, bnb.nn.Linear4bit):
        return []
    state = module.weight.quant_state
    found = [state.absmax, state.code]
    if state.nested:
        found += [state.offset, state.state2.absmax, state.state2.code]
    return found


def shared_tables() -> list[torch.Tensor]:
    """The code table that bitsandbytes keeps for itself, beside the copy in each layer."""
    return list(import_bitsandbytes().functional.name2qmap.values())


def attach_lora(model: nn.Module, tracker: Any, setup: ResolvedSetup) -> nn.Module:
    """Put peft's adapters on the model, as ``get_peft_model`` does, and prepare it for training."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if setup.prepare_kbit:
        before = {id(p): tracker.is_known(p) for p in model.parameters()}
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        for parameter in model.parameters():
            if before[id(parameter)]:
                tracker.see(parameter, "weights")
    targets = setup.target_modules
    config = LoraConfig(
        r=setup.lora_r, lora_alpha=setup.lora_alpha, lora_dropout=setup.lora_dropout, task_type="CAUSAL_LM",
        target_modules=list(targets) if isinstance(targets, tuple) else targets, use_dora=setup.use_dora,
        modules_to_save=list(setup.modules_to_save) or None,
    )  # fmt: skip
    with tracker.scope("lora"), quiet_warnings():
        try:
            model = get_peft_model(model, config, autocast_adapter_dtype=setup.lora_dtype == "fp32")
        except ValueError as error:
            if targets is not None:
                raise
            raise ValueError(
                f"peft has no default target_modules for {model.config.model_type}: give target_modules='all-linear', or "
                "names of linear layers"
            ) from error
        for parameter in model.parameters():
            if parameter.requires_grad:
                wanted = getattr(torch, DTYPES[setup.lora_dtype])
                if parameter.dtype != wanted or parameter.device.type != tracker.device_type:
                    parameter.data = parameter.data.to(tracker.device_type, wanted)
                tracker.see(parameter, "lora")
    watch_lora(model, tracker)
    return model


def watch_lora(model: nn.Module, tracker: Any) -> list[Any]:
    """Count what a LoRA layer makes beside its base layer's output as LoRA's; return the hooks, to be removed."""
    from peft.tuners.lora import LoraLayer

    hooks = []
    for module in model.modules():
        if isinstance(module, LoraLayer):
            stack: list[str | None] = []
            base = module.get_base_layer()
            hooks += [
                module.register_forward_pre_hook(lambda m, a, s=stack: s.append(tracker.set_scope("lora"))),
                base.register_forward_pre_hook(lambda m, a, s=stack: s.append(tracker.set_scope(None))),
                base.register_forward_hook(lambda m, a, o, s=stack: tracker.set_scope(s.pop()) and None),
                module.register_forward_hook(lambda m, a, o, s=stack: tracker.set_scope(s.pop()) and None),
            ]
    return hooks


@contextlib.contextmanager
def own_quantization_tables():
    """Let bitsandbytes make its code table afresh, as in a new process, and give it its own back afterwards.

    It keeps one table for all calls on the device of the first, which here would be meta.
    """
    tables = import_bitsandbytes().functional.name2qmap
    before = dict(tables)
    tables.clear()
    try:
        yield
    finally:
        tables.clear()
        tables.update(before)


@contextlib.contextmanager
def quiet_warnings():
    """Keep warnings about the random weights of a model without any from being shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _checkpoint_bytes(model: nn.Module, setup: ResolvedSetup, part: nn.Module | None = None) -> int:
    """Bytes of a model's weights (or of a part of it) as they will lie on the card."""
    quantized = set()
    total = 0
    if setup.quantization:
        quantized = {id(m.weight) for m in model.modules() if is_quantizable(model, m)}
    for parameter in (model if part is None else part).parameters():
        size = parameter.numel() * parameter.element_size()
        if id(parameter) in quantized:
            size = parameter.numel() // (1 if setup.quantization == "int8" else 2)
        total += size
    return total
