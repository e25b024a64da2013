"""What is to be trained, and how: what is asked (``TrainingSetup``), and what it comes to (``ResolvedSetup``).

The names are those of ``onegpu.qlora_finetune.FinetuneConfig`` (and so transformers', peft's and TRL's), and so are the
defaults: a setup of a model's name alone is the run that ``onegpu finetune --model NAME`` starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onegpu.packed_training.packing import DEFAULT_MAX_LENGTH
from onegpu.runtime import Gpu, find_gpu

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

METHODS = ("full", "lora", "qlora")
QUANTIZATIONS = (None, "nf4", "int8")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
OPTIMIZERS = (
    "adamw_torch",  # foreach: PyTorch's default on CUDA
    "adamw_single",  # foreach=False, one parameter after the other: the default on a CPU
    "adamw_torch_fused",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "adafactor",
    "lion_32bit",
    "lion_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "sgd",
)
ATTENTIONS = (None, "eager", "sdpa", "sdpa_expanded", "flash_attention_2")
LOOPS = ("onegpu", "trl", "trainer", "plain")
TASKS = ("sft", "dpo", "evaluate", "generate")
_ALIASES = {"optim": {"adamw_bnb_8bit": "adamw_8bit", "paged_adamw": "paged_adamw_32bit"},
            "attention": {"flash": "flash_attention_2"}}  # fmt: skip
_ELSEWHERE = {
    "batch_size": "per_device_train_batch_size", "length": "max_length", "sequence_length": "max_length",
    "max_seq_length": "max_length", "optimizer": "optim", "lora_target_modules": "target_modules", "logits": "loop",
    "checkpointing": "gradient_checkpointing", "attn_implementation": "attention", "fp16": "mixed_precision",
    "bf16": "mixed_precision", "load_in_4bit": "method", "load_in_8bit": "quantization",
}  # fmt: skip
_OF_ADAPTERS = (
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "lora_dtype",
    "use_dora",
    "modules_to_save",
)


@dataclass(frozen=True)
class TrainingSetup:
    """One training step, as it is asked for: model, method, batch, tricks, loop, card. None: what suits the rest.

    Attributes
    ----------
    model : str, Path or PretrainedConfig
        A catalogue name, a folder or file (config.json, .gguf), a hub id, or a transformers configuration.
    method : {"qlora", "lora", "full"}
        Adapters on a quantized base; adapters on a base as it is; every weight.
    loop : {"onegpu", "trl", "trainer", "plain"}
        Who runs the step. "onegpu": our own trainer. "trl": TRL's SFTTrainer as of 1.16 (loads a model given by name in
        fp32, 16-bit autocast, checkpointing, bf16 adapters on a quantized base, no full logits). "trainer":
        transformers' Trainer. "plain": the textbook loop, in which the variable ``outputs`` keeps logits and KV cache
        alive through the step.
    task : {"sft", "dpo", "evaluate", "generate"}
        A step of supervised fine-tuning; of DPO (a chosen and a rejected row for each pair, in our own trainer both in
        one row; the reference is the model with its adapters off; not TRL's); a forward pass of an evaluation, without
        gradients; generating with a KV cache up to ``max_length`` tokens.
    max_length : int
        Tokens of a row.
    lengths : tuple of int or None
        Tokens of the data set's examples: a run of steps on them is simulated (``micro_batches``), with the batches that
        the loop would make. None: all rows are full.
    packing : bool or None
        Whether rows are filled with examples. None: as the loop does (ours packs, TRL pads).
    group_by_length : bool
        Whether batches are made of rows of about the same length, as ``train_sampling_strategy="group_by_length"`` of the
        Trainer.
    per_device_train_batch_size, gradient_accumulation_steps : int
        Rows of a micro-batch (ours lie end to end in one), and micro-batches of an optimizer step.
    precision : {None, "fp32", "fp16", "bf16"}
        Of matrix products: what the card does in hardware if not given. ``dtype`` and ``mixed_precision`` follow it.
    dtype : {None, "fp32", "fp16", "bf16"}
        Of the weights; of a quantized model of those that aren't quantized.
    mixed_precision : {None, "no", "fp16", "bf16"}
        Autocast, as ``TrainingArguments(bf16=True)``. None: as the loop does (ours and TRL yes, the others no).
    quantization : {None, "nf4", "int8"}
        Of the frozen base with QLoRA. None is NF4.
    double_quantization : bool
        Quantize NF4's scales too.
    optim : str or None
        One of ``OPTIMIZERS``. None: as the loop does.
    gradient_checkpointing : bool or None
        None: as the loop does (ours on a card, TRL always).
    lora_r, lora_alpha, lora_dropout, target_modules, use_dora, modules_to_save
        As in ``peft.LoraConfig``; ``target_modules=None`` takes peft's for the architecture.
    lora_dtype : {None, "fp32", "fp16", "bf16"}
        Of the adapters. None: fp32, as peft makes them (``autocast_adapter_dtype``); bf16 where TRL turns them.
    prepare_kbit : bool or None
        Whether ``peft.prepare_model_for_kbit_training`` makes all that isn't quantized fp32. None: in a plain loop and
        in the Trainer, as peft's documentation has it; ours and TRL don't.
    attention : {None, "eager", "sdpa", "sdpa_expanded", "flash_attention_2"}
        None is sdpa. "sdpa_expanded": keys and values repeated for every query head and the memory-efficient kernel,
        a patch that T4 users apply.
    supervised_fraction : float
        Share of the tokens that is supervised, for loops that make logits of those alone.
    gpu : str or Gpu
        The card, or a size such as "24GiB"; "cpu" for this course's laptop runs.
    """

    model: Any
    method: str = "qlora"
    loop: str = "onegpu"
    task: str = "sft"
    max_length: int = DEFAULT_MAX_LENGTH
    lengths: tuple[int, ...] | None = None
    packing: bool | None = None
    group_by_length: bool = False
    per_device_train_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    precision: str | None = None
    dtype: str | None = None
    mixed_precision: str | None = None
    quantization: str | None = None
    double_quantization: bool = True
    optim: str | None = None
    gradient_checkpointing: bool | None = None
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    target_modules: str | tuple[str, ...] | None = "all-linear"
    use_dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    lora_dtype: str | None = None
    prepare_kbit: bool | None = None
    attention: str | None = None
    supervised_fraction: float = 1 / 3
    gpu: str | Gpu = "T4"

    def __post_init__(self):
        for name, others in _ALIASES.items():
            object.__setattr__(self, name, others.get(getattr(self, name), getattr(self, name)))
        for name in ("target_modules", "modules_to_save", "lengths"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.modules_to_save, str):
            object.__setattr__(self, "modules_to_save", (self.modules_to_save,))
        for name, allowed in (
            ("method", METHODS), ("loop", LOOPS), ("task", TASKS), ("quantization", QUANTIZATIONS),
            ("optim", (None, *OPTIMIZERS)), ("attention", ATTENTIONS), ("precision", (None, *DTYPES)),
            ("dtype", (None, *DTYPES)), ("lora_dtype", (None, *DTYPES)), ("mixed_precision", (None, "no", "fp16", "bf16")),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, expected one of {', '.join(map(repr, allowed))}"
                )
        for name in ("per_device_train_batch_size", "max_length", "gradient_accumulation_steps", "lora_r"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number of at least 1")
        self._check_rows()
        if not 0 < self.supervised_fraction <= 1:
            raise ValueError(
                f"supervised_fraction is {self.supervised_fraction}, expected more than 0 and at most 1"
            )
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout is {self.lora_dropout}, expected at least 0 and less than 1")
        if self.method == "full" and type(self) is TrainingSetup:
            defaults = {f.name: f.default for f in fields(TrainingSetup)}
            given = [name for name in _OF_ADAPTERS if getattr(self, name) != defaults[name]]
            if given:
                raise ValueError(
                    f"method='full' has no adapters, but {', '.join(given)} was given: use 'lora' or 'qlora'"
                )
        if self.quantization and self.method != "qlora":
            raise ValueError(
                f"quantization={self.quantization!r} is for method='qlora': a quantized base can't be trained "
                f"itself, and method={self.method!r} has none"
            )
        if type(self) is TrainingSetup:
            self.resolved  # noqa: B018, what doesn't go together is said now

    def _check_rows(self) -> None:
        if self.lengths is not None:
            bad = next((n for n in self.lengths if type(n) is not int or n < 1), None)
            if not self.lengths or bad is not None:
                found = "none" if not self.lengths else repr(bad)
                raise ValueError(
                    f"lengths has {found}, expected whole numbers of at least 1, one for each example"
                )
            if self.task != "sft":
                raise ValueError(f"lengths are for task='sft', found task={self.task!r}: leave them out")
        if self.packing and self.loop in ("trainer", "plain"):
            raise ValueError(
                f"packing=True with loop={self.loop!r}: it doesn't pack. Use loop='onegpu' or 'trl'"
            )
        if self.group_by_length:
            if self.loop not in ("trainer", "trl") or self.packing:
                raise ValueError(
                    "group_by_length=True is for rows that are padded by loop='trainer' or 'trl', without packing"
                )
            if self.lengths is None:
                raise ValueError("group_by_length=True says nothing without the rows' lengths")

    @cached_property
    def resolved(self) -> ResolvedSetup:
        """What this comes to: every setting decided, by loop, card and method."""
        gpu = find_gpu(self.gpu)
        ours, trl = self.loop == "onegpu", self.loop == "trl"
        precision = self.precision or ("bf16" if trl and not gpu.is_cpu else gpu.dtype)
        qlora = self.method == "qlora"
        mixed = self.mixed_precision
        full_16_bit = (
            self.method == "full" and self.dtype == "fp16"
        )  # pure fp16: no gradient scaler takes that
        if mixed is None and (ours or trl) and not (gpu.is_cpu or precision == "fp32" or full_16_bit):
            mixed = precision
        scaled = self.method == "full" and mixed == "fp16"  # gradient scalers want fp32 trainable weights
        dtype = self.dtype or ("fp32" if trl or scaled else precision)
        optim = self.optim or ("adamw_torch_fused" if self.loop in ("trl", "trainer") else "adamw_torch")
        if gpu.is_cpu and optim == "adamw_torch":
            optim = "adamw_single"
        checkpointing = self.gradient_checkpointing
        if checkpointing is None:
            checkpointing = trl or (ours and not gpu.is_cpu)
        decided = {
            "gpu": gpu,
            "precision": precision,
            "dtype": dtype,
            "mixed_precision": None if mixed == "no" else mixed,
            "quantization": (self.quantization or "nf4") if qlora else None,
            "optim": optim,
            "gradient_checkpointing": checkpointing and self.task in ("sft", "dpo"),
            "packing": self.packing if self.packing is not None else ours,
            "lora_dtype": self.lora_dtype or ("bf16" if trl and qlora else "fp32"),
            "prepare_kbit": (qlora and not (ours or trl)) if self.prepare_kbit is None else self.prepare_kbit,
        }
        given = {f.name: getattr(self, f.name) for f in fields(TrainingSetup)}
        return ResolvedSetup(**given | decided, asked=self)

    @property
    def name(self) -> str:
        """The model's name, as far as it has one."""
        if isinstance(self.model, (str, Path)):
            return str(self.model)
        return getattr(self.model, "name_or_path", "") or getattr(self.model, "model_type", "a model")

    @property
    def adapters(self) -> bool:
        """Whether LoRA adapters are trained rather than the weights."""
        return self.method != "full"

    def change(self, **changes: Any) -> TrainingSetup:
        """Return the same question with some settings changed; what was not asked for is decided anew.

        A change to ``method="full"`` lets go of what was asked about adapters.
        """
        if changes.get("method") == "full":
            defaults = {f.name: f.default for f in fields(TrainingSetup)}
            changes = {name: defaults[name] for name in (*_OF_ADAPTERS, "quantization")} | changes
        elif "method" in changes and changes["method"] != "qlora":
            changes = {"quantization": None} | changes
        return replace(self, **changes)

    def __str__(self) -> str:
        return str(self.resolved)


@dataclass(frozen=True)
class ResolvedSetup(TrainingSetup):
    """A training step with every setting decided: the same names, and none of them None but for what isn't used.

    ``gpu`` is a ``Gpu``; ``mixed_precision`` is None without autocast; ``asked`` is what was asked.
    """

    asked: TrainingSetup | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        self._check()

    @property
    def resolved(self) -> ResolvedSetup:
        """Itself."""
        return self

    def change(self, **changes: Any) -> TrainingSetup:
        """Return what was asked with some settings changed."""
        return self.asked.change(**changes)

    def _check(self) -> None:
        if self.mixed_precision and self.gpu.is_cpu:
            raise ValueError("mixed_precision is for a GPU; on the CPU this course trains in fp32")
        if self.mixed_precision == "fp16" and self.task in ("sft", "dpo"):
            trained, name = (self.lora_dtype, "lora_dtype") if self.adapters else (self.dtype, "dtype")
            if trained == "fp16":
                raise ValueError(
                    "mixed_precision='fp16' needs fp32 trainable weights: with fp16 ones the gradient scaler refuses "
                    f"('Attempting to unscale FP16 gradients', transformers#23165). Use {name}='fp32', or "
                    "mixed_precision='no'"
                )
        if self.task == "dpo" and not self.adapters:
            raise ValueError(
                "task='dpo' with method='full' needs a second model as the reference, which isn't predicted: use 'lora' or "
                "'qlora', where the reference is the model with its adapters off"
            )
        if self.task == "dpo" and self.loop == "trl":
            raise ValueError(
                "task='dpo' with loop='trl' isn't predicted: TRL 1.16's DPOTrainer makes no full logits, "
                "which hasn't been compared with a run. Use loop='onegpu', or 'trainer' for DPO with full logits"
            )
        if self.loop == "onegpu" and (self.use_dora or self.modules_to_save):
            raise ValueError(
                "use_dora and modules_to_save aren't predicted for our trainer: leave them out, or use loop='trl', 'trainer' or "
                "'plain'"
            )
        if self.use_dora and self.method == "qlora":
            raise ValueError("DoRA on a quantized base isn't predicted: use method='lora', or use_dora=False")
        if self.optim.startswith("paged") and self.gpu.is_cpu:
            raise ValueError(f"optim={self.optim!r} pages states by CUDA's unified memory: not on a CPU")
        if self.attention == "flash_attention_2":
            if self.gpu.is_cpu or self.gpu.compute_capability < (8, 0):
                raise ValueError(
                    f"flash_attention_2 needs compute capability 8.0, the {self.gpu.name} hasn't: use 'sdpa'"
                )
            if self.dtype == "fp32" and self.mixed_precision is None:
                raise ValueError("flash_attention_2 computes in 16 bits only: use dtype='bf16', or 'sdpa'")

    @property
    def why_it_does_not_train(self) -> str:
        """Why a step of this fits or not but leads nowhere; empty if it trains."""
        if not self.trains:
            return ""
        trained = self.lora_dtype if self.adapters else self.dtype
        if trained == "fp16" and "adam" in self.optim:
            return (
                "fp16 weights with AdamW and no gradient scaler: its epsilon of 1e-8 is 0 in fp16, and the second step "
                "makes nan of them. Use fp32 trainable weights with mixed_precision='fp16', or bf16"
            )
        if self.mixed_precision == "fp16" and trained == "bf16":
            return (
                "the gradient scaler of mixed_precision='fp16' has no kernel for bf16 gradients, and TRL keeps the adapters "
                "of a quantized model in bf16: use mixed_precision='bf16' (emulated below compute capability 8.0)"
            )
        return ""

    @property
    def batch_size(self) -> int:
        """Rows of a micro-batch: of DPO a chosen and a rejected one for each pair, unless a row holds whole pairs."""
        return self.per_device_train_batch_size * (2 if self.task == "dpo" and self.loop != "onegpu" else 1)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch_size * self.max_length

    @property
    def logits(self) -> str:
        """Which positions get logits: "all", or "supervised" in the loops that make them of those alone."""
        ours_or_trls = (self.task == "sft" and self.loop == "trl") or (self.trains and self.loop == "onegpu")
        return "supervised" if ours_or_trls else "all"

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens of a micro-batch (all, unless only their logits are made)."""
        return self.supervised_of(self.tokens)

    def supervised_of(self, tokens: int) -> int:
        """How many of so many tokens get logits."""
        return tokens if self.logits == "all" else max(1, round(tokens * self.supervised_fraction))

    @property
    def keeps_outputs(self) -> bool:
        """Whether a variable keeps the model's outputs alive after the backward pass."""
        return self.loop == "plain"

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return self.task in ("sft", "dpo")

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch's."""
        import torch

        return getattr(torch, DTYPES[self.dtype])

    @property
    def compute_dtype(self) -> torch.dtype:
        """What quantized layers multiply in: 16 bits under autocast, else as the weights."""
        import torch

        return getattr(torch, DTYPES[self.mixed_precision or self.dtype])

    def config(self) -> PretrainedConfig:
        """Read the model's configuration, and see that this setup suits it (``model_configs.model_config``)."""
        from onegpu.gpu_memory.model_configs import model_config, stored_weights

        config = model_config(self.model, self.max_length)
        if self.quantization and str(self.model).lower().endswith(".gguf"):
            raise ValueError(
                f"{self.name} is quantized already and is loaded in 16 bits, so {self.quantization} can't be applied to it: "
                "use method='lora', or give the model it was made from"
            )
        stored = stored_weights(config).method
        if stored in ("nf4", "fp4", "int8") and self.quantization != stored:
            raise ValueError(
                f"{self.name} is stored in {stored} (bitsandbytes), so only adapters on that can be trained: "
                + (
                    "that isn't predicted, give the model it was made from"
                    if stored == "fp4"
                    else "use method='qlora'" + (", quantization='int8'" if stored == "int8" else "")
                )
            )
        return config

    def for_checkpoint(self, config: PretrainedConfig) -> ResolvedSetup:
        """Return this setup with what the checkpoint has decided: whether NF4's scales are quantized, too."""
        from onegpu.gpu_memory.model_configs import stored_weights

        stored = stored_weights(config)
        if stored.method != "nf4" or stored.double_quantization == self.double_quantization:
            return self
        return replace(self, double_quantization=stored.double_quantization)

    def __str__(self) -> str:
        parts = [
            f"{self.name}, {self.method}, {self.per_device_train_batch_size} x {self.max_length} tokens, {self.dtype}"
        ]
        if self.lengths is not None:
            low, high = (f"{n:,}" for n in (min(self.lengths), max(self.lengths)))
            parts.append(f"{len(self.lengths):,} examples of {low} to {high} tokens")
        if self.task != "sft":
            parts.insert(1, self.task)
        if self.quantization == "int8":
            parts.append("int8 base")
        if self.mixed_precision:
            parts.append(f"{self.mixed_precision} autocast")
        if self.trains:
            parts.append(self.optim)
        if self.adapters:
            parts.append(f"r={self.lora_r}" + (f" dropout={self.lora_dropout}" if self.lora_dropout else ""))
        if self.use_dora:
            parts.append("DoRA")
        if self.gradient_checkpointing:
            parts.append("gradient checkpointing")
        if self.gradient_accumulation_steps > 1:
            parts.append(f"{self.gradient_accumulation_steps} micro-batches")
        if self.attention:
            parts.append(f"{self.attention} attention")
        if self.logits == "supervised":
            parts.append(f"logits of {self.supervised_tokens} supervised tokens")
        loops = {"plain": "plain loop", "trainer": "Trainer", "trl": "TRL", "onegpu": "our trainer"}
        parts.append(loops[self.loop])
        return ", ".join(parts) + f", on {self.gpu.name}"


def make_setup(model: Any, /, **settings: Any) -> TrainingSetup:
    """Return a setup from a model and settings, or from another setup, changed by settings.

    Raises
    ------
    ValueError
        For settings that don't exist or don't go together.

    Examples
    --------
    >>> print(make_setup("llama-2-7b", per_device_train_batch_size=4, max_length=1024))
    llama-2-7b, qlora, 4 x 1024 tokens, fp16, fp16 autocast, adamw_torch, r=16, gradient checkpointing, logits of 1365 supervised tokens, our trainer, on T4
    """
    known = [f.name for f in fields(TrainingSetup)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        import difflib

        near = {_ELSEWHERE[name] for name in unknown if name in _ELSEWHERE}
        near |= {n for name in unknown for n in difflib.get_close_matches(name, known, 2, 0.6)}
        raise ValueError(
            f"unknown setting{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}: "
            + (f"near are {', '.join(sorted(near))}; " if near else "")
            + f"expected some of {', '.join(known)}"
        )
    if isinstance(model, TrainingSetup):
        return model.change(**settings) if settings else model
    return TrainingSetup(model, **settings)
