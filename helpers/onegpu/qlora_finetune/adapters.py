"""Adapters on a frozen base: attach them, save them, merge them."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from onegpu.models import load
from onegpu.packed_training.adapters import add_lora
from onegpu.qlora_finetune.config import FinetuneConfig


def attach_adapters(model: torch.nn.Module, config: FinetuneConfig, fp16: bool = False) -> torch.nn.Module:
    """Freeze a model and put the LoRA adapters of a configuration on it: ``onegpu.packed_training.adapters.add_lora``.

    Parameters
    ----------
    model
        A causal LM, quantized or not.
    config
        Its ``lora_*``, ``target_modules`` and ``gradient_checkpointing`` are used.
    fp16
        Whether fp16 autocast will be used.

    Raises
    ------
    ValueError
        If ``target_modules`` names no layer of this model; the message lists the names there are.
    """
    return add_lora(
        model, r=config.lora_r, alpha=config.lora_alpha, dropout=config.lora_dropout,
        target_modules=config.target_modules, gradient_checkpointing=config.gradient_checkpointing, fp16=fp16,
    )  # fmt: skip


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
