"""LoRA adapters on a frozen base, attached as the trainer needs them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence

import torch

from onegpu.packed_training.lora import fuse_lora


def add_lora(
    model: torch.nn.Module,
    *,
    r: int,
    alpha: int,
    dropout: float = 0.0,
    target_modules: str | Sequence[str] = "all-linear",
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
    r, alpha, dropout, target_modules
        As ``peft.LoraConfig``'s. ``all-linear`` is every linear layer (QLoRA paper, section 4) but those that
        ``linear_layers`` gives a reason against.
    gradient_checkpointing
        Recompute activations in the backward pass. None: on a GPU yes, on the CPU no.
    fp16
        Whether fp16 autocast will be used.

    Raises
    ------
    ValueError
        If ``target_modules`` names no layer of this model; the message lists the names there are.
    """
    from peft import LoraConfig, get_peft_model

    layers = linear_layers(model)
    if target_modules == "all-linear":
        targets: str | list[str] = [name for name, why_not in layers.items() if not why_not]
        if not targets:
            raise ValueError(f"{type(model).__name__} has no linear layer that LoRA could adapt")
    else:
        targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    lora = LoraConfig(
        r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM"
    )
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
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            module.float()
    with warnings.catch_warnings():  # peft 0.21 asks for a property that transformers 5.24 has renamed
        warnings.filterwarnings(
            "ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning
        )
        model = get_peft_model(model, lora)
    if fp16:
        embeddings = model.get_input_embeddings()
        embeddings.register_forward_hook(lambda module, inputs, output: output.float())
    if gradient_checkpointing is None:
        gradient_checkpointing = next(model.parameters()).device.type == "cuda"
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    fuse_lora(model)
    return model


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
