"""Adapters on a frozen base: read them, attach new ones or those that are there, and see how all is stored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from onegpu import models
from onegpu.packed_training.adapters import add_lora, continue_lora
from onegpu.qlora_finetune.bases import Base, fingerprint, read_base
from onegpu.qlora_finetune.config import CONFIG_FILE, FinetuneConfig

_OF_THE_ADAPTER = {
    "lora_r": "r", "lora_alpha": "lora_alpha", "target_modules": "target_modules", "use_dora": "use_dora",
    "use_rslora": "use_rslora", "modules_to_save": "modules_to_save",
}  # fmt: skip
"""Settings that an adapter that is there already has decided, and peft's names for them."""


def attach_adapters(model: torch.nn.Module, config: FinetuneConfig, fp16: bool = False) -> torch.nn.Module:
    """Freeze a model and put the LoRA adapters of a configuration on it, new ones or those of ``config.adapter``.

    Parameters
    ----------
    model
        A causal LM, quantized or not.
    config
        Its ``adapter``, ``lora_*``, ``target_modules``, ``use_*``, ``modules_to_save`` and ``gradient_checkpointing`` are used.
    fp16
        Whether fp16 autocast will be used.

    Raises
    ------
    ValueError
        If a setting names no layer of this model (the message lists the names there are), or the adapter belongs to
        another model.
    """
    common: dict[str, Any] = {
        "dropout": config.lora_dropout, "gradient_checkpointing": config.gradient_checkpointing, "fp16": fp16,
    }  # fmt: skip
    if config.adapter is not None:
        return continue_lora(model, adapter_folder(config.adapter), **common)
    return add_lora(
        model, r=config.lora_r, alpha=config.lora_alpha, target_modules=config.target_modules, use_dora=config.use_dora,
        use_rslora=config.use_rslora, modules_to_save=config.modules_to_save, **common,
    )  # fmt: skip


def adapter_folder(place: str | Path) -> Path:
    """Return the folder of an adapter, given that or the folder of the run that it is of.

    Raises
    ------
    ValueError
        If there is none.
    """
    folder = Path(place).expanduser()
    inside = folder / "adapter"
    if (folder / "adapter_config.json").is_file():
        return folder
    if (inside / "adapter_config.json").is_file():
        return inside
    for run in (folder, folder.parent):
        if (run / CONFIG_FILE).is_file():
            raise ValueError(
                f"the run in {run} isn't finished, so it has no adapter yet: go on with it (--resume) first"
            )
    raise ValueError(
        f"{folder} holds no adapter_config.json: give the folder of a finished run, or of an adapter"
    )


def check_adapter(folder: Path) -> dict[str, Any]:
    """See that a folder holds a whole LoRA adapter; return its settings (peft's).

    Raises
    ------
    ValueError
        If a file is missing or damaged, or it is another kind of adapter.
    """
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        if not (folder / name).is_file():
            pickled = (folder / "adapter_model.bin").is_file()
            raise ValueError(
                f"{folder} holds no {name}: "
                + ("its weights are a pickle, which can run any code; save it as safetensors with peft" if pickled
                   else "give the adapter folder of a finished run, with all its files")
            )  # fmt: skip
    models.check_files(folder)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if config["peft_type"] != "LORA":
        raise ValueError(
            f"{folder} is a {config['peft_type']} adapter of peft (adapter_config.json), expected LoRA (or DoRA)"
        )
    return config


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read an adapter's settings (peft's) and tensors.

    Raises
    ------
    ValueError
        As ``check_adapter``.
    """
    from safetensors.torch import load_file

    return check_adapter(folder), load_file(folder / "adapter_model.safetensors")


def start_from(
    config: FinetuneConfig, source: models.Source | None, say: Callable[[str], None]
) -> FinetuneConfig:
    """Take over what the adapter that a run starts from has decided, seeing that it belongs to the base.

    Parameters
    ----------
    config
        With an ``adapter``; one without is returned as it is.
    source
        Of the base, where it is loaded already.
    say
        Gets a line about what can't be known, or differs without harm.

    Raises
    ------
    ValueError
        If it belongs to another base, or a setting asks for another adapter than this one.
    """
    if config.adapter is None:
        return config
    folder = adapter_folder(config.adapter)
    theirs = check_adapter(folder)
    _check_base(folder, read_base(folder), config, source or models.fetch(config.model), say)
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    taken: dict[str, Any] = {}
    for name, peft_name in _OF_THE_ADAPTER.items():
        asked, value = getattr(config, name), theirs.get(peft_name) or defaults[name]
        if isinstance(value, list):  # ours name each layer in full
            value = tuple(sorted({part.rsplit(".", 1)[-1] for part in value}))
        same = tuple(sorted(asked)) == value if isinstance(asked, tuple) else asked == value
        if asked != defaults[name] and not same:
            raise ValueError(
                f"{name} is {asked!r}, but the adapter in {folder} has {value!r}: leave {name} out, or start without adapter"
            )
        taken[name] = value
    say(
        f"starting from the adapter in {folder}: rank {taken['lora_r']}, {', '.join(taken['target_modules'])}"
    )
    template = folder / "chat_template.jinja"
    if config.template == "model" and template.is_file():
        taken["template"] = str(template)  # what it was trained with, which a base model's tokenizer hasn't
    return dataclasses.replace(config, **taken)


def _check_base(
    folder: Path,
    recorded: Base | None,
    config: FinetuneConfig,
    source: models.Source,
    say: Callable[[str], None],
) -> None:
    found = models.find(config.model)
    here = {str(config.model), getattr(found, "hub_id", ""), str(Path(config.model).resolve())}
    if recorded is None or (
        not recorded.weights and recorded.model not in here and Path(recorded.model).is_absolute()
    ):
        named = "no base" if recorded is None else f"{recorded.model}, which is no folder of this machine,"
        say(f"the adapter in {folder} names {named} as its base: {config.model} is taken to be it")
        return
    same = recorded.weights == fingerprint(source.folder) if recorded.weights else recorded.model in here
    if not same:
        raise ValueError(
            f"the adapter in {folder} was trained on {recorded}, and model is {config.model}: set model to the adapter's own base"
        )
    if recorded.quantization not in ("unknown", config.quantization):
        say(
            f"the adapter in {folder} was trained on a base in {recorded.quantization or '16 or 32 bits'}, here it is in "
            f"{config.quantization or '16 or 32 bits'}: losses start a little higher"
        )


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
