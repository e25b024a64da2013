"""Memory of a training step, measured: a real one, on this machine's card or on its CPU.

On a card the numbers are torch's own counters. A CPU has none, so every storage that an operation makes is tracked
while the step runs; what libraries take without a tensor (oneDNN's scratch, Python itself) isn't seen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from onegpu.gpu_memory import meta_model, optimizers
from onegpu.gpu_memory.breakdown import MemoryBreakdown, Moment, Peak
from onegpu.gpu_memory.cuda_kernels import dequantize_then_multiply
from onegpu.gpu_memory.micro_batches import run_of
from onegpu.gpu_memory.replay import replay, settle_categories
from onegpu.gpu_memory.simulated import cache_tensors, library_versions
from onegpu.gpu_memory.tracking import NoTracker, StorageTracker
from onegpu.gpu_memory.training_setup import DTYPES, ResolvedSetup, TrainingSetup, make_setup
from onegpu.gpu_memory.training_step import (
    enable_checkpointing,
    make_batch,
    make_optimizer,
    no_autocast,
    prepare_own_trainer,
    run_step,
)
from onegpu.runtime.gpus import this_gpu


def measured(
    model: Any = None,
    /,
    *,
    setup: TrainingSetup | None = None,
    module: nn.Module | None = None,
    **settings: Any,
) -> MemoryBreakdown:
    """Run one training step on this machine and measure its memory.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``, or a setup; ``gpu`` is this machine's whatever was given. A transformers configuration is built with
        random weights, a name is loaded.
    setup
        A setup, in place of a model.
    module
        A model that is at hand; a copy of it is trained.

    Returns
    -------
    MemoryBreakdown
        The same moments as ``simulated``, without the second step. On the CPU it has categories and a timeline; on a
        card totals are the counters', and what is no weight, gradient or optimizer state counts as activations.

    Raises
    ------
    ValueError
        For a setup that can't be trained, or a model that can't be had.
    """
    here = this_gpu()
    model = setup if model is None else model
    if model is None and module is None:
        raise ValueError("measured() needs a model: a name, a configuration, a setup, or module=...")
    setup = make_setup(module.config if model is None else model, **settings | {"gpu": here}).resolved
    if setup.attention == "sdpa_expanded":
        raise ValueError(
            "attention='sdpa_expanded' is a patch that is only simulated: measure with 'sdpa' or 'eager'"
        )
    config = setup.config()
    with torch.random.fork_rng():
        if here.is_cpu:
            return _on_cpu(setup, config, _real_model(setup, config, module, "cpu"))
        return _on_cuda(setup, config, module)


def _real_model(setup: ResolvedSetup, config: Any, module: nn.Module | None, device: str) -> nn.Module:
    from transformers import AutoModelForCausalLM, PretrainedConfig

    from onegpu import models

    attention = {"attn_implementation": setup.attention} if setup.attention else {}
    if module is not None:
        model = copy.deepcopy(module).to(device, setup.torch_dtype)
        if setup.attention:
            model.set_attn_implementation(setup.attention)
    elif isinstance(setup.model, PretrainedConfig):
        model = AutoModelForCausalLM.from_config(config, dtype=setup.torch_dtype, **attention).to(device)
    else:
        loaded = models.load(
            setup.model, quantization="nf4" if setup.method == "qlora" else None, dtype=setup.torch_dtype,
            attn_implementation=setup.attention,
        )  # fmt: skip
        model = loaded.model
    if setup.method == "qlora" and not (
        getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)
    ):
        meta_model.quantize_linears(model, setup)
    if setup.loop != "plain":
        model.config.use_cache = False
    return model.train()


def _prepare(model: nn.Module, setup: ResolvedSetup, tracker: Any) -> nn.Module:
    if setup.loop == "onegpu":
        return prepare_own_trainer(model, setup)
    if setup.adapters:
        model = meta_model.attach_lora(model, tracker, setup)
    if setup.gradient_checkpointing:
        enable_checkpointing(model)
    return model


def _steps(
    model: nn.Module, optimizer: Any, setup: ResolvedSetup, config: Any, held: list[Any], **how: Any
) -> Iterator[None]:
    """Run the steps one after the other; after each, ``held`` alone has what the loop's variables hold."""
    for number, step in enumerate(run_of(setup).steps):
        if number:
            optimizer.zero_grad()
        batches = [partial(make_batch, micro=micro) for micro in step]
        held[:] = run_step(model, optimizer, setup, config, batches=batches, **how)
        yield


def _on_cpu(setup: ResolvedSetup, config: Any, model: nn.Module) -> MemoryBreakdown:
    tracker = StorageTracker(
        "cpu",
        vocab_size=config.get_text_config().vocab_size,
        rules={torch.ops.bitsandbytes.gemm_4bit.default: dequantize_then_multiply},
    )

    held: list[Any] = []

    def phase(name: str) -> None:
        if name == "after_backward":
            for parameter in model.parameters():
                if parameter.grad is not None:
                    tracker.see(parameter.grad, "gradients")
        tracker.in_backward = name == "backward"
        if name == "backward":
            held.clear()  # what the loop's variables held of the step before
        tracker.set_scope(None)
        tracker.trace.begin(name)

    tracker.trace.begin("load")
    see_model(model, tracker)
    with tracker:
        model = _prepare(model, setup, tracker)
        see_model(model, tracker)
        if setup.loop == "onegpu":
            meta_model.watch_lora(model, tracker)
        optimizer = make_optimizer(model, setup)
        for _ in _steps(
            model, optimizer, setup, config, held, device="cpu", autocast=no_autocast, phase=phase
        ):
            for tensor in cache_tensors(held[0]):
                tracker.see(tensor, "kv_cache")
        for state in optimizers.states(optimizer):
            tracker.see(state, "optimizer_state")
    tracker.forget()
    settle_categories(tracker.trace)
    replayed = replay(tracker.trace, exact=True, second_step=False)
    return MemoryBreakdown(
        "measured", setup, tuple(replayed.moments), replayed.peak, library_versions(), replayed.timeline,
        notes=("storages tracked on the CPU; what libraries take without a tensor isn't seen",),
        reserved_bytes=replayed.reserved_bytes,
    )  # fmt: skip


def see_model(model: nn.Module, tracker: StorageTracker) -> None:
    """Name what a model holds: weights, adapters, quantization state, buffers."""
    for name, parameter in model.named_parameters():
        tracker.see(parameter, "lora" if "lora_" in name else "weights")
    for module in model.modules():
        for tensor in meta_model.quantization_tensors(module):
            tracker.see(tensor, "quantization_state")
    for buffer in model.buffers():
        tracker.see(buffer, "buffers")
    if getattr(model, "is_loaded_in_4bit", False):
        for table in meta_model.shared_tables():
            tracker.see(table, "quantization_state")


# --- on a card --------------------------------------------------------------------------------------------------


class _Counters:
    """torch's counters at each moment; what can be named is summed over live tensors, the rest is the distance."""

    def __init__(self):
        import gc

        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()
        self.moments: list[Moment] = []
        self.model: nn.Module | None = None
        self.optimizer: Any = None
        self.highest, self.where = 0, "loading"
        self.peak_moment: Moment | None = None

    def note(self, name: str, where: str) -> None:
        torch.cuda.synchronize()
        allocated = torch.cuda.memory_allocated() - self.before
        peak = torch.cuda.max_memory_allocated() - self.before
        named = self._named()
        named["activations"] = allocated - sum(named.values())
        moment = Moment(name, allocated, max(peak, self.highest), named, torch.cuda.memory_reserved())
        self.moments.append(moment)
        if peak > self.highest:
            self.highest, self.where = peak, where
            at_peak = {**named, "activations": peak - sum(n for c, n in named.items() if c != "activations")}
            self.peak_moment = Moment(name, peak, peak, at_peak)

    def _named(self) -> dict[str, int]:
        named = dict.fromkeys(
            ("weights", "quantization_state", "buffers", "lora", "gradients", "optimizer_state"), 0
        )
        seen: set[int] = set()

        def add(category: str, tensor: torch.Tensor | None) -> None:
            if tensor is None or not tensor.is_cuda:
                return
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                named[category] += storage.nbytes()

        for name, parameter in self.model.named_parameters():
            add("lora" if "lora_" in name else "weights", parameter)
            add("gradients", parameter.grad)
        for module in self.model.modules():
            for tensor in meta_model.quantization_tensors(module):
                add("quantization_state", tensor)
        for buffer in self.model.buffers():
            add("buffers", buffer)
        for state in optimizers.states(self.optimizer) if self.optimizer is not None else ():
            add("optimizer_state", state)
        return named


def _on_cuda(setup: ResolvedSetup, config: Any, module: nn.Module | None) -> MemoryBreakdown:
    counters = _Counters()
    counters.model = model = _real_model(setup, config, module, "cuda")
    counters.model = model = _prepare(model, setup, NoTracker("cuda"))
    counters.optimizer = optimizer = make_optimizer(model, setup)
    counters.note("loaded", "loading")
    ends = {"backward": "after_forward", "after_backward": "after_backward", "after_step": "after_step"}
    places = {
        "backward": "the forward pass",
        "after_backward": "the backward pass",
        "after_step": "optimizer.step()",
    }

    held: list[Any] = []

    def phase(name: str) -> None:
        if name == "backward":
            held.clear()  # what the loop's variables held of the step before
        if name == "after_step":
            counters.note("in_step", places[name])
            in_step = counters.moments.pop()
            peak = torch.cuda.max_memory_allocated() - counters.before
            rest = peak - sum(n for c, n in in_step.by_category.items() if c != "activations")
            counters.moments.append(
                Moment("in_step", peak, in_step.peak_bytes, {**in_step.by_category, "activations": rest},
                       in_step.reserved_bytes)
            )  # fmt: skip
        if name in ends:
            counters.note(ends[name], places[name])
        torch.cuda.reset_peak_memory_stats()

    def autocast():
        if setup.mixed_precision is None:
            return no_autocast()
        return torch.autocast("cuda", getattr(torch, DTYPES[setup.mixed_precision]))

    for _ in _steps(model, optimizer, setup, config, held, device="cuda", autocast=autocast, phase=phase):
        pass
    held.clear()
    moments = {moment.name: moment for moment in counters.moments}  # of the last micro-batch
    at_peak = counters.peak_moment
    return MemoryBreakdown(
        "measured", setup, tuple(moments.values()),
        Peak(counters.highest, counters.where, at_peak.by_category, at_peak.name), library_versions(),
        notes=("torch.cuda counters; 'activations' is all that isn't a weight, a gradient or optimizer state",),
        reserved_bytes=torch.cuda.max_memory_reserved(),
    )  # fmt: skip
