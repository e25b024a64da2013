"""Memory of a training step, simulated: real code on tensors without data, and the allocator replayed.

The model is transformers', the adapters are peft's, the 4-bit layers bitsandbytes', the optimizer torch's; they run one
training step on meta tensors, and a dispatch mode notes every storage. So every temporary that the real libraries make
is there, in the order in which they make it, and a change in their next version is followed without a change here.

The idea of running on tensors without data to find the peak is that of PyTorch's MemTracker and of VeritasEst
(arXiv 2504.03887); what is added here is the allocator, the card's own choice of kernels, and frozen and 4-bit weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from onegpu.gpu_memory import meta_model, optimizers
from onegpu.gpu_memory.breakdown import MemoryBreakdown
from onegpu.gpu_memory.cuda_kernels import CUDA_SCRATCH, META_RULES, CudaChoices
from onegpu.gpu_memory.folding import LayerTracker, decoder_layers, fold, unfold
from onegpu.gpu_memory.micro_batches import MOST_MICRO_BATCHES, MicroBatch, run_of
from onegpu.gpu_memory.replay import replay, settle_categories
from onegpu.gpu_memory.tracking import StorageTracker, Trace, Work
from onegpu.gpu_memory.training_setup import DTYPES, ResolvedSetup, make_setup
from onegpu.gpu_memory.training_step import (
    CACHE_NAMES,
    enable_checkpointing,
    make_batch,
    make_optimizer,
    prepare_own_trainer,
    run_step,
    watch_checkpointing,
)

_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")


def simulated(
    model: Any,
    /,
    *,
    build: Callable | None = None,
    batch_of: Callable | None = None,
    as_in_2022: bool = False,
    **settings: Any,
) -> MemoryBreakdown:
    """Simulate the memory of a training step, without a card and without the weights.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``; or a setup.
    build
        Makes the model in place of the causal language model that belongs to the configuration, from (setup, config):
        a model with a ``loss`` in its output, on the meta device. For models that aren't language models.
    batch_of
        Makes that model's inputs, from (setup, config, device).
    as_in_2022
        For figures from the days of torch 1: ``zero_grad`` keeps the gradients' memory, dropout keeps its noise in the
        input's dtype, and three steps are run.

    Returns
    -------
    MemoryBreakdown
        Allocated and reserved bytes by category at each moment of a first step, the peak over two steps, and where
        it was.

    Raises
    ------
    ValueError
        For a setup that can't be trained.

    Examples
    --------
    >>> full = simulated("smollm2-135m", method="full", loop="plain", max_length=64, dtype="fp32", gpu="T4")
    >>> full["loaded"].by_category["weights"], full["after_step"].by_category["gradients"]
    (538060032, 538060032)
    >>> full.peak.where.split(", ")[-1]
    "at square roots of AdamW's second moments"
    """
    setup = make_setup(model, **settings).resolved
    config = setup.config() if build is None else setup.model
    setup = setup.for_checkpoint(config) if build is None else setup
    trace = trace_step(setup, config, build=build, batch_of=batch_of, as_in_2022=as_in_2022)
    second = (
        setup.trains and setup.lengths is None and not as_in_2022
    )  # steps on real lengths are all in the trace
    replayed = replay(trace, exact=setup.gpu.is_cpu, second_step=second)
    return MemoryBreakdown(
        "simulated", setup, tuple(replayed.moments), replayed.peak, library_versions(), replayed.timeline,
        notes=notes(setup, config), reserved_bytes=replayed.reserved_bytes,
        work=step_work(trace, setup),
    )  # fmt: skip


def trace_step(
    setup: ResolvedSetup,
    config: Any,
    *,
    build: Callable | None = None,
    batch_of: Callable | None = None,
    as_in_2022: bool = False,
) -> Trace:
    """Run a training step on meta tensors and return the trace, categories settled."""
    with torch.random.fork_rng(devices=[]):
        bare = meta_model.meta_model(setup, config) if build is None else build(setup, config).train()
        small = fold(setup, config, bare) if build is None and not as_in_2022 else None
        if small is not None:
            few = meta_model.meta_model(setup, small)
            found = unfold(
                _run(_Simulation(setup, small, few, batch_of, by_layer=True)), config.num_hidden_layers
            )
            if found is not None:
                return found
        return _run(_Simulation(setup, config, bare, batch_of, as_in_2022)).trace


def _run(simulation: _Simulation) -> StorageTracker:
    with meta_model.own_quantization_tables():
        try:
            simulation.run()
        finally:
            simulation.close()
    settle_categories(simulation.tracker.trace)
    return simulation.tracker


def step_work(trace: Trace, setup: ResolvedSetup) -> Work:
    """Add up what an optimizer step has a card do (on average, of several); of its micro-batches at most two were run."""
    micro_batches = setup.gradient_accumulation_steps if setup.trains else 1
    steps = 1 if setup.lengths is None else sum(name == "step" for _, name in trace.marks)
    step = Work()
    for phase, work in trace.work.items():
        times = (
            micro_batches / min(micro_batches, MOST_MICRO_BATCHES) if phase in ("forward", "backward") else 1
        ) / steps
        for dtype, operations in work.operations.items():
            step.operations[dtype] = step.operations.get(dtype, 0) + round(operations * times)
        step.moved_bytes += round(work.moved_bytes * times)
    return step


class _Simulation:
    def __init__(
        self,
        setup: ResolvedSetup,
        config: Any,
        model: nn.Module,
        batch_of: Any,
        as_in_2022: bool = False,
        by_layer: bool = False,
    ):
        self.setup, self.config, self.model, self.batch_of = setup, config, model, batch_of
        gpu = setup.gpu
        self.layers = decoder_layers(model, config) if by_layer else ()
        self.tracker = (LayerTracker if by_layer else StorageTracker)(
            "meta",
            workspace_bytes=gpu.cublas_workspace_bytes,
            vocab_size=getattr(config.get_text_config(), "vocab_size", None),
            rules=META_RULES,
            scratch={} if gpu.is_cpu else CUDA_SCRATCH,
        )
        self.tracker.supervised_tokens, self.tracker.needs_mask = setup.supervised_tokens, False
        self.choices = CudaChoices(
            gpu,
            attention=setup.attention,
            fused_dropout=not as_in_2022,
            on_copy=self._copied,
        )
        self.as_in_2022 = as_in_2022
        self.held: Any = None

    def run(self) -> None:
        setup, tracker = self.setup, self.tracker
        with tracker, self.choices:
            tracker.trace.begin("load")
            meta_model.load_weights(self.model, tracker, setup, self.layers)
            self._prepare()
            if self.layers:
                tracker.name_layers(self.layers)
                tracker.watch(self.layers)
            optimizer = make_optimizer(self.model, setup) if setup.trains else None
            for number, step in enumerate(run_of(setup).steps * (3 if self.as_in_2022 else 1)):
                if number:
                    self.held = None if self.as_in_2022 else self.held
                    optimizer.zero_grad(set_to_none=not self.as_in_2022)
                self.held = run_step(
                    self.model, optimizer, setup, self.config, device="meta", autocast=self.autocast, phase=self.phase,
                    batches=[self.batch_of or partial(self._make_batch, micro) for micro in step],
                )  # fmt: skip
                self._note_cache()
            if self.layers and optimizer:
                tracker.name_states(self.layers, optimizer)
            for state in optimizers.states(optimizer) if optimizer else ():
                if state.device.type == "meta" and tracker.is_known(state):
                    tracker.see(state, "optimizer_state")
        tracker.forget()

    def _make_batch(self, micro: MicroBatch, *where: Any) -> dict[str, Any]:
        self.tracker.supervised_tokens = self.setup.supervised_of(micro.tokens)
        self.tracker.needs_mask = micro.needs_mask
        return make_batch(*where, micro)

    def _prepare(self) -> None:
        setup = self.setup
        if setup.loop == "onegpu":
            known = {id(p) for p in self.model.parameters()}
            with self.tracker.scope("lora"):
                self.model = prepare_own_trainer(self.model, setup)
            self._place_new(known)
            meta_model.watch_lora(self.model, self.tracker)
        else:
            if setup.adapters:
                self.model = meta_model.attach_lora(self.model, self.tracker, setup)
            if setup.gradient_checkpointing:
                enable_checkpointing(self.model)
                if setup.loop == "trl" and setup.adapters:
                    self.model.enable_input_require_grads()
        if not setup.trains:
            self.model.eval()
        if setup.gradient_checkpointing:
            watch_checkpointing(self.model, self._watch)

    def _place_new(self, known: set[int]) -> None:
        """Move adapters that were made on the CPU to where the model is; name what was made."""
        for parameter in self.model.parameters():
            if id(parameter) not in known:
                if parameter.device.type != "meta":
                    parameter.data = parameter.data.to("meta", getattr(torch, DTYPES[self.setup.lora_dtype]))
                self.tracker.see(parameter, "lora")
            else:
                self.tracker.see(parameter, "weights")

    def phase(self, name: str) -> None:
        tracker = self.tracker
        if name == "after_backward":
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    tracker.see(parameter.grad, "gradients")
        tracker.in_backward = name == "backward"
        tracker.trace.at_work(None)
        if name == "backward":
            self.held = None  # the step before's outputs, which the loop's variables have let go of by now
        tracker.set_scope(None)
        tracker.trace.begin(name)

    def _note_cache(self) -> None:
        outputs = self.held[0] if isinstance(self.held, tuple) else None
        for tensor in cache_tensors(outputs):
            self.tracker.see(tensor, "kv_cache")

    # --- autocast ------------------------------------------------------------------------------------------

    @contextmanager
    def autocast(self):
        """Let torch say that CUDA autocast is on, and ``CudaChoices`` do what it does; as it was before, afterwards."""
        name = self.setup.mixed_precision
        if name is None:
            yield
            return
        before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", getattr(torch, DTYPES[name]))
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
            if not before[0]:
                if not self.tracker.in_backward:
                    self.tracker.trace.at_work(None)
                self.choices.leave_autocast()

    def _copied(self, copy: torch.Tensor) -> None:
        if self.setup.adapters:
            self.tracker.see(copy, "lora")

    def _watch(self, function: Callable) -> Callable:
        """Recompute a layer as it was computed: under autocast, and with no category left over from an early stop."""

        @wraps(function)
        def watched(*args, **kwargs):
            if not self.tracker.in_backward:
                return function(*args, **kwargs)
            self.tracker.set_scope(None)
            with self.choices, self.autocast():  # backward() itself runs outside of function modes
                return function(*args, **kwargs)

        return watched

    def close(self) -> None:
        """Let go of everything, so that nothing of this run is left in the libraries."""
        self.tracker.forget()
        self.choices.leave_autocast()
        self.model = self.held = None


def cache_tensors(outputs: Any) -> list[torch.Tensor]:
    """Keys and values that a model's outputs hold, in whatever kind of cache."""
    held = {} if outputs is None else dict(outputs.items())
    cache = next((held[name] for name in CACHE_NAMES if name in held), None)
    if cache is None:
        return []
    if isinstance(cache, (tuple, list)):
        return [t for layer in cache for t in layer if isinstance(t, torch.Tensor)]
    found = []
    for layer in getattr(cache, "layers", ()):
        found += [t for t in vars(layer).values() if isinstance(t, torch.Tensor)]
    return found


def library_versions() -> dict[str, str]:
    """Versions of the libraries whose behaviour decides about memory."""
    from onegpu.runtime import versions

    found = versions()
    return {name: found[name].partition("+")[0] for name in _LIBRARIES if name in found}


def notes(setup: ResolvedSetup, config: Any) -> tuple[str, ...]:
    """What a prediction for this setup assumes or leaves out."""
    from onegpu.gpu_memory.model_configs import experts, stored_weights, towers

    found = []
    gpu, asked = setup.gpu, setup.asked or setup
    if setup.lengths is not None:
        run = run_of(setup)
        found.append(
            f"of the {run.all_steps:,} steps of an epoch {len(run.steps)} were simulated, one after the other: the largest, and others spread over the rest"
        )
        if run.dropped:
            found.append(f"{run.dropped:,} examples longer than max_length are left out")
        if run.truncated:
            found.append(f"{run.truncated:,} examples longer than max_length are cut")
    if towers(config):
        found.append(f"not counted: {towers(config)} of this multimodal model, which stay as they are loaded")
    if experts(config) and setup.quantization:
        found.append(
            f"the {experts(config)} experts of a layer are one tensor, which bitsandbytes leaves in {setup.dtype}: only "
            f"attention and what else is linear is in {8 if setup.quantization == 'int8' else 4} bits (bitsandbytes#1849)"
        )
    if setup.quantization == "int8":
        found.append(
            "LLM.int8 without outlier columns, of which shapes say nothing: each adds 2 bytes a token to its layer's input"
        )
    if stored_weights(config).method == "mxfp4":
        found.append(f"stored in mxfp4, trained in {setup.dtype}: Mxfp4Config(dequantize=True)")
    if str(setup.model).lower().endswith(".gguf"):
        found.append(f"transformers dequantizes a GGUF when it loads it: weights count in {setup.dtype}")
    if setup.loop == "trl" and asked.dtype is None:
        found.append(
            "SFTTrainer loads a model given by name in fp32; dtype='bf16' is one that was loaded in 16 bits"
        )
    if setup.prepare_kbit and asked.prepare_kbit is None:
        found.append("assumes peft's prepare_model_for_kbit_training (prepare_kbit=False: without)")
    if setup.task == "dpo":
        how = "our own DPO" if setup.loop == "onegpu" else "the textbook's DPO: full logits"
        found.append(f"{how}, and the reference's log-probabilities in the same step")
    if setup.optim.startswith("paged"):
        found.append("paged optimizer states live in unified memory, which torch doesn't count")
    if not gpu.is_cpu and "bf16" in (setup.dtype, setup.mixed_precision) and gpu.compute_capability < (8, 0):
        found.append(f"the {gpu.name} has no bf16 arithmetic: it is emulated, slowly")
    return tuple(found)
