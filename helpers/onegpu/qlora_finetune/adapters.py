"""Adapters on a frozen base: attach them, save them, merge them."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from onegpu.models import load
from onegpu.qlora_finetune.lora import fuse_lora


def attach_adapters(model: torch.nn.Module, config: Any, fp16: bool = False) -> torch.nn.Module:
    """Freeze a model and put LoRA adapters on it.

    The adapters are float32 in every precision (with fp16 ones the gradient scaler refuses to work,
    transformers#23165), and so are the norms. Unlike ``peft.prepare_model_for_kbit_training``, embeddings and head
    stay in 16 bits where they are: for Llama-3-8B that saves 3.9 GiB less a half. Under fp16 the residual stream is
    kept in float32 instead, which is where large activations overflow.

    Parameters
    ----------
    model
        A causal LM, quantized or not.
    config : FinetuneConfig
        Its ``lora_*``, ``target_modules`` and ``gradient_checkpointing`` are used.
    fp16
        Whether fp16 autocast will be used.

    Raises
    ------
    ValueError
        If ``target_modules`` names no layer of this model; the message lists the names there are.
    """
    from peft import LoraConfig, get_peft_model

    targets = config.target_modules if isinstance(config.target_modules, str) else list(config.target_modules)
    lora = LoraConfig(
        r=config.lora_r, lora_alpha=config.lora_alpha, lora_dropout=config.lora_dropout,
        target_modules=targets, task_type="CAUSAL_LM",
    )  # fmt: skip
    linear = sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()
        }
    )
    if not isinstance(targets, str):
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
    checkpointing = config.gradient_checkpointing
    if checkpointing is None:
        checkpointing = next(model.parameters()).device.type == "cuda"
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    fuse_lora(model)
    return model


def stored_as(model: torch.nn.Module) -> dict[str, tuple[int, int, int]]:
    """Say how a model's parameters are stored: by dtype their number, their bytes, and how many are trained.

    Packed 4-bit weights count as what they stand for, under "nf4"; their scales are not parameters.

    Examples
    --------
    >>> stored_as(torch.nn.Linear(3, 2))
    {'float32': (8, 32, 8)}
    """
    from onegpu.models import count_parameters

    found: dict[str, tuple[int, int, int]] = {}
    for parameter in model.parameters():
        one = count_parameters(torch.nn.ParameterList([parameter]))
        (dtype,) = one.by_dtype
        size = parameter.numel() * parameter.element_size()
        before = found.get(dtype, (0, 0, 0))
        found[dtype] = (before[0] + one.total, before[1] + size, before[2] + one.trainable)
    return found


def merge_adapter(
    adapter_dir: str | Path,
    output_dir: str | Path,
    base: str = "smollm2-135m",
    quantization: str | None = "nf4",
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Merge an adapter into a 16-bit base and save a model that needs neither peft nor bitsandbytes.

    The base is what the adapter was trained on: the quantized weights, dequantized. Merging into the original weights
    adds the quantization error that the adapter learned to live with; merging into 4 bits rounds the adapter away
    (peft#2321).

    Parameters
    ----------
    adapter_dir
        A folder with ``adapter_model.safetensors``.
    output_dir
        Must not exist, or be empty.
    base, quantization
        As in the fine-tune's config. ``quantization=None`` merges into the original weights.
    dtype
        Of the saved model.

    Raises
    ------
    ValueError
        If there is no adapter, or the output folder is in use.
    """
    from peft import PeftModel

    adapter_dir, output_dir = Path(adapter_dir), Path(output_dir)
    if not (adapter_dir / "adapter_model.safetensors").is_file():
        raise ValueError(
            f"{adapter_dir} holds no adapter_model.safetensors: give the adapter folder of a finished run"
        )
    if output_dir.exists() and any(output_dir.iterdir()):
        raise ValueError(f"{output_dir} is not empty: give a new folder")
    loaded = load(base, quantization=quantization, dtype=torch.float32)
    model = loaded.model.dequantize() if quantization else loaded.model
    merged = PeftModel.from_pretrained(model, adapter_dir).merge_and_unload().to(dtype)
    part = output_dir.with_name(output_dir.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    merged.save_pretrained(part)
    loaded.tokenizer.save_pretrained(part)
    if output_dir.exists():
        output_dir.rmdir()
    part.replace(output_dir)
    return output_dir
