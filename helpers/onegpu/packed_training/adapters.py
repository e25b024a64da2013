"""LoRA adapters on a frozen base, attached as the trainer needs them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from onegpu.packed_training.lora import fuse_lora


def add_lora(
    model: torch.nn.Module,
    *,
    r: int,
    alpha: int,
    dropout: float = 0.0,
    target_modules: str | Sequence[str] = "all-linear",
    use_dora: bool = False,
    use_rslora: bool = False,
    modules_to_save: Sequence[str] = (),
    gradient_checkpointing: bool | None = None,
    fp16: bool = False,
) -> torch.nn.Module:
    """Freeze a model and put LoRA adapters on it.

    The adapters are float32 in every precision (with fp16 ones the gradient scaler refuses to work,
    transformers#23165), and so are the norms. Unlike ``peft.prepare_model_for_kbit_training``, embeddings and head
    stay in 16 bits where they are: for Llama-3-8B that saves 3.9 GiB less a half. Under fp16 the residual stream is
    kept in float32 instead, which is where large activations overflow.

    Parameters
    ----------
    model
        A causal LM, quantized or not.
    r, alpha, dropout, target_modules, use_dora, use_rslora, modules_to_save
        As ``peft.LoraConfig``'s. ``all-linear`` is every linear layer (QLoRA paper, section 4) but those that
        ``linear_layers`` gives a reason against. Embeddings and head that are one matrix stay one when either is in
        ``modules_to_save``.
    gradient_checkpointing
        Recompute activations in the backward pass. None: on a GPU yes, on the CPU no.
    fp16
        Whether fp16 autocast will be used.

    Raises
    ------
    ValueError
        If ``target_modules`` or ``modules_to_save`` name no layer of this model (the message lists the names there are),
        name the same one, or a layer that is quantized would be trained whole.
    """
    from peft import LoraConfig, get_peft_model

    layers = linear_layers(model)
    if target_modules == "all-linear":
        targets: str | list[str] = [name for name, why_not in layers.items() if not why_not]
        if not targets:
            raise ValueError(f"{type(model).__name__} has no linear layer that LoRA could adapt")
    else:
        targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    linear = sorted({name.rsplit(".", 1)[-1] for name, why_not in layers.items() if why_not != "head"})
    if isinstance(targets, str):
        if not any(re.fullmatch(targets, name) for name in layers):
            raise ValueError(
                f"target_modules is {targets!r}, a pattern that the whole name of no layer of {type(model).__name__} fits. "
                f"Its linear layers are {linear}: give names in a list, such as {json.dumps(linear[:1])}"
            )
    else:
        unknown = [name for name in targets if name.rsplit(".", 1)[-1] not in linear]
        if unknown:
            raise ValueError(
                f"target_modules names {unknown}, which {type(model).__name__} does not have. Its linear layers are "
                f"{linear}; 'all-linear' takes them all"
            )
    whole = _check_whole(model, modules_to_save, targets)
    tied = bool(whole) and model.get_input_embeddings().weight is model.get_output_embeddings().weight
    lora = LoraConfig(
        r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM",
        use_dora=use_dora, use_rslora=use_rslora, modules_to_save=whole or None,
        ensure_weight_tying=tied and any(_last(name) in _ends_of(model) for name in whole),
    )  # fmt: skip
    return _prepared(model, lambda frozen: get_peft_model(frozen, lora), gradient_checkpointing, fp16)


def continue_lora(
    model: torch.nn.Module,
    folder: str | Path,
    *,
    dropout: float = 0.0,
    gradient_checkpointing: bool | None = None,
    fp16: bool = False,
) -> torch.nn.Module:
    """Freeze a model and put an adapter on it that is there already, to be trained on.

    Parameters
    ----------
    model
        The adapter's base.
    folder
        ``adapter_config.json`` and ``adapter_model.safetensors``: rank, scaling and layers are the adapter's own.
    dropout, gradient_checkpointing, fp16
        As for ``add_lora``.

    Raises
    ------
    ValueError
        If the adapter doesn't belong to this model: other layers or other shapes.
    """
    from peft import LoraConfig, PeftModel
    from safetensors import safe_open

    lora = LoraConfig.from_pretrained(str(folder))
    lora.lora_dropout = dropout

    def attach(frozen: torch.nn.Module) -> torch.nn.Module:
        try:
            return PeftModel.from_pretrained(frozen, str(folder), is_trainable=True, config=lora)
        except (RuntimeError, ValueError) as error:
            last = str(error).strip().splitlines()[-1].strip()
            raise ValueError(
                f"the adapter in {folder} doesn't belong to this model ({last}): give its own base"
            ) from error

    model = _prepared(model, attach, gradient_checkpointing, fp16)
    with safe_open(Path(folder) / "adapter_model.safetensors", "pt") as file:
        stored = set(file.keys())
    from peft import get_peft_model_state_dict

    here = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    if stored != here:
        raise ValueError(
            f"the adapter in {folder} doesn't belong to this model: {min(stored ^ here)} is only "
            f"{'in the adapter' if min(stored ^ here) in stored else 'here'}. Give its own base"
        )
    return model


def _prepared(
    model: torch.nn.Module,
    attach: Callable[[torch.nn.Module], Any],
    gradient_checkpointing: bool | None,
    fp16: bool,
) -> torch.nn.Module:
    """Attach adapters, with all that is trained and all norms in float32, the fused layers, and checkpointing as wanted."""
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            module.float()
    with warnings.catch_warnings():  # peft 0.21 asks for a property that transformers 5.24 has renamed
        warnings.filterwarnings(
            "ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning
        )
        model = attach(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if fp16:
        embeddings = model.get_input_embeddings()
        embeddings.register_forward_hook(lambda module, inputs, output: output.float())
    if gradient_checkpointing is None:
        gradient_checkpointing = next(model.parameters()).device.type == "cuda"
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    fuse_lora(model)
    return model


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _ends_of(model: torch.nn.Module) -> set[str]:
    """Last names of a model's embeddings and head."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return {_last(name) for name, module in model.named_modules() if any(module is end for end in ends)}


def _check_whole(
    model: torch.nn.Module, modules_to_save: Sequence[str], targets: str | Sequence[str]
) -> list[str]:
    """See that modules can be trained and saved whole; return their names."""
    found: dict[str, torch.nn.Module] = {}
    for name in modules_to_save:
        matching = {n: m for n, m in model.named_modules() if n == name or n.endswith("." + name)}
        if not matching:
            there = sorted(
                {
                    _last(n)
                    for n, m in model.named_modules()
                    if n and any(True for _ in m.parameters(recurse=False))
                }
            )
            raise ValueError(
                f"modules_to_save names {name}, which {type(model).__name__} does not have. It has {there}"
            )
        found |= matching
    for name, module in found.items():
        inside = [f"{name}.{n}" if n else name for n, _ in module.named_modules()]
        adapted = [
            n
            for n in inside
            if not isinstance(targets, str) and any(n == t or n.endswith("." + t) for t in targets)
        ]
        if adapted:
            raise ValueError(
                f"modules_to_save and target_modules both name {adapted[0]}: train it whole, or adapt it, not both"
            )
        if not all(parameter.is_floating_point() for parameter in module.parameters()):
            raise ValueError(
                f"modules_to_save names {name}, which is quantized and so can't be trained whole: adapt it "
                "(target_modules), or set quantization=None"
            )
    return list(modules_to_save)


def linear_layers(model: torch.nn.Module) -> dict[str, str]:
    """Name the linear layers of a causal LM, each with the reason why LoRA leaves it alone ("" where it doesn't).

    - The head: adapting it keeps all logits in memory.
    - A mixture's router: a small change sends tokens to other experts (its experts, three-dimensional parameters since
      transformers 5, are no linear layers and get no adapters either).
    - What text never reaches: a vision or audio tower and its projector.
    - ``out_proj`` and ``dt_proj`` of state-space mixers, whose kernels read the weight past the adapter.

    Examples
    --------
    >>> from onegpu.models import tiny_model
    >>> {name.rsplit(".", 1)[-1]: why for name, why in linear_layers(tiny_model()).items() if why}
    {'lm_head': 'head'}
    """
    from transformers.pytorch_utils import Conv1D

    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    found = {}
    for name, module in modules.items():
        if not isinstance(module, torch.nn.Linear | Conv1D):
            continue
        *above, last = name.split(".")
        parent = modules[".".join(above)]
        if module is head:
            why = "head"
        elif last in ("router", "gate", "shared_expert_gate") or "router" in above:
            why = "router"
        elif any(re.search(r"vision|visual|audio|image|multi_modal", part) for part in above):
            why = "not reached by text"
        elif last in ("out_proj", "dt_proj") and hasattr(parent, "A_log") and hasattr(parent, "D"):
            why = "read past the adapter"
        else:
            why = ""
        found[name] = why
    return found
