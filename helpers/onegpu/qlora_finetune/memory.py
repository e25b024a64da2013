"""What a fine-tune will need, before it starts; and what to change when it was too much.

The prediction runs the trainer's own code on tensors without data (``onegpu.gpu_memory.simulated``), so it needs neither
the card nor the weights. ``settings_that_fit`` tries changes in the order of what they cost: first those that change no
number and take only time, then those that change what is trained.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from onegpu.dtype_sizing import format_bytes
from onegpu.gpu_memory.breakdown import CATEGORIES, MemoryBreakdown
from onegpu.gpu_memory.fits import Fit, cheaper, judge
from onegpu.gpu_memory.simulated import simulated
from onegpu.gpu_memory.training_setup import TrainingSetup
from onegpu.qlora_finetune.config import MAX_LENGTHS, FinetuneConfig
from onegpu.runtime.gpus import Gpu, find_gpu, this_gpu


class OutOfMemory(RuntimeError):
    """A fine-tune needed more memory than there is; the message says how much, what for, and what would fit."""


def memory_setup(
    config: FinetuneConfig,
    gpu: str | Gpu | None = None,
    *,
    model: Any = None,
    supervised_fraction: float = 1 / 3,
    lengths: tuple[int, ...] | None = None,
) -> TrainingSetup:
    """Translate a fine-tune's configuration into the terms of ``onegpu.gpu_memory``: a full micro-batch, two if it accumulates.

    Parameters
    ----------
    config
        The fine-tune. A ``max_length`` that is left to the data counts as the most it can become, 2,048 tokens.
    gpu
        A card's name, or "cpu"; this machine's if not given.
    model
        In place of ``config.model``, as ``TrainingSetup`` takes it (a transformers configuration, for instance).
    supervised_fraction
        Share of the tokens that is supervised.
    lengths
        Tokens of the training examples (``row_lengths``): a run of steps on them is predicted, not one on full rows.

    Raises
    ------
    ValueError
        For settings that can't be trained.

    Examples
    --------
    >>> print(memory_setup(FinetuneConfig(model="qwen2.5-1.5b", max_length=1024), "T4"))
    qwen2.5-1.5b, qlora, 1 x 1024 tokens, fp16, fp16 autocast, adamw_torch, r=16, gradient checkpointing, logits of 341 supervised tokens, our trainer, on T4
    """
    card = this_gpu() if gpu is None else find_gpu(gpu)
    same = {f.name: getattr(config, f.name) for f in fields(TrainingSetup) if hasattr(config, f.name)}
    changed = {
        "model": config.model if model is None else model,
        "method": "qlora" if config.quantization else "lora",
        "task": config.method,
        "max_length": config.max_length or MAX_LENGTHS[-1],
        "precision": None if card.is_cpu else config.precision,
        "gradient_accumulation_steps": min(
            config.gradient_accumulation_steps, 2
        ),  # all later ones are like the second
        "supervised_fraction": supervised_fraction,
        "lengths": lengths,
        "gpu": card,
    }
    return TrainingSetup(**same | changed)


def row_lengths(config: FinetuneConfig, tokenizer: Any = None) -> dict[str, Any]:
    """Read and tokenize the rows of a fine-tune, and return what a prediction needs of them.

    Parameters
    ----------
    config
        The fine-tune.
    tokenizer
        In place of the model's own.

    Returns
    -------
    dict
        ``lengths`` (tuple of int) and ``supervised_fraction``, as ``memory_setup`` takes them.

    Raises
    ------
    ValueError
        For rows that can't be trained on, or a model without a tokenizer.

    Examples
    --------
    >>> rows = row_lengths(FinetuneConfig())
    >>> max(rows["lengths"]) <= 512, 0 < rows["supervised_fraction"] < 1
    (True, True)
    """
    from onegpu import models
    from onegpu.qlora_finetune.rows import prepare_data

    train = prepare_data(
        config, models.load_tokenizer(config.model) if tokenizer is None else tokenizer
    ).train
    return {
        "lengths": tuple(train.lengths.tolist()),
        "supervised_fraction": train.supervised_tokens / train.tokens,
    }


def predict_memory(config: FinetuneConfig, gpu: str | Gpu | None = None, **setup: Any) -> MemoryBreakdown:
    """Predict the memory of a fine-tune by simulating two steps of it, or with ``**row_lengths(config)`` a run on its rows.

    Arguments as ``memory_setup``'s.
    """
    return simulated(memory_setup(config, gpu, **setup))


def settings_that_fit(
    config: FinetuneConfig,
    gpu: str | Gpu | None = None,
    *,
    count: int = 3,
    budget_bytes: int | None = None,
    **setup: Any,
) -> tuple[Fit, ...]:
    """Find changes of a configuration with which a fine-tune fits, those that change no number first.

    Parameters
    ----------
    config, gpu, setup
        As ``memory_setup``.
    count
        How many to find; fewer are returned if there aren't so many.
    budget_bytes
        What the run may take, context included; by default the card's memory (on the CPU this machine's RAM).
    """
    card = this_gpu() if gpu is None else find_gpu(gpu)
    budget = _budget_bytes(card) if budget_bytes is None else budget_bytes
    found = []
    for changes, cost in _cheaper(config, card):
        if len(found) == count:
            break
        options = {name: value for name, value in setup.items() if name != "model" or "model" not in changes}
        try:
            predicted = predict_memory(replace(config, **changes), card, **options)
        except ValueError:
            continue  # an impossible change is none
        fit = judge(predicted, budget, changes=changes, cost=cost)
        if fit:
            found.append(fit)
    return tuple(found)


def _cheaper(config: FinetuneConfig, gpu: Gpu) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield changes that need less memory, from the ones that cost least; the last are smaller models."""
    same: dict[str, Any] = {}
    for changes, cost in cheaper(memory_setup(config, gpu, model=config.model).resolved):
        if "method" in changes:  # a configuration says it by what the base is quantized to
            changes = {name: value for name, value in changes.items() if name != "method"} | {
                "quantization": "nf4"
            }
        if "gradient_accumulation_steps" in changes:
            batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
            changes["gradient_accumulation_steps"] = batch // changes["per_device_train_batch_size"]
        if set(changes) <= {
            "gradient_checkpointing",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
        }:
            same = same | changes
        yield changes, cost
    for name in _smaller_models(config.model):
        yield same | {"model": name}, "a smaller model"


def _smaller_models(name: str) -> list[str]:
    from onegpu.models import CATALOGUE, CatalogueEntry, find

    entry = find(name)
    if not isinstance(entry, CatalogueEntry):
        return []
    smaller = (e for e in CATALOGUE.values() if e.parameters < entry.parameters and not e.gated)
    return [e.name for e in sorted(smaller, key=lambda e: -e.parameters)][:12]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch's own on a card, its allocator's on a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def free_memory(model: torch.nn.Module | None = None) -> None:
    """Give back what a failed run has left: gradients of a model that lives on, and the allocator's cache."""
    if model is not None:
        for parameter in model.parameters():
            parameter.grad = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def explain_out_of_memory(
    config: FinetuneConfig,
    said: str = "",
    gpu: str | Gpu | None = None,
    *,
    budget_bytes: int | None = None,
    **setup: Any,
) -> str:
    """Say what a fine-tune needs, what for, how much there is, and which settings would fit.

    Parameters
    ----------
    config, gpu, budget_bytes, setup
        As ``settings_that_fit``.
    said
        What torch said.
    """
    lines = ["this fine-tune needs more memory than there is" + (f" ({said})" if said else "")]
    try:
        predicted = predict_memory(config, gpu, **setup)
    except ValueError as error:
        return "\n".join([*lines, f"What it needs can't be predicted: {error}"])
    card = predicted.setup.gpu
    budget = _budget_bytes(card) if budget_bytes is None else budget_bytes
    where = "this machine" if card.is_cpu else f"the {card.name}"
    lines.append(
        f"predicted for these settings: {format_bytes(judge(predicted, budget).needed_bytes[1])} of the {format_bytes(budget)} of {where}, "
        f"at the peak in {predicted.peak.where}:"
    )
    parts = {"cuda_context": card.context_bytes[1], **predicted.peak.by_category}
    for category, size in sorted(parts.items(), key=lambda item: -item[1])[:6]:
        if size:
            lines.append(f"  {format_bytes(size):>10}  {CATEGORIES.get(category, 'CUDA context')}")
    if judge(predicted, budget):
        lines.append(
            "by this it should fit: see whether another program (or another notebook) holds memory (nvidia-smi)"
        )
    found = settings_that_fit(config, gpu, budget_bytes=budget_bytes, **setup)
    lines.append("what would fit:" if found else "no setting that was tried would fit: take a smaller model")
    lines += [f"  {fit}" for fit in found]
    return "\n".join(lines)


def _budget_bytes(gpu: Gpu) -> int:
    from onegpu import runtime

    return runtime.machine().ram_bytes if gpu.is_cpu else gpu.total_bytes
