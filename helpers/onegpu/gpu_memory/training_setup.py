"""What is to be trained, and how: the one set of arguments that all three ways take."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onegpu.runtime.gpus import Gpu, find_gpu

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

METHODS = ("full", "lora", "qlora")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
OPTIMIZERS = (
    "adamw_torch",  # foreach: PyTorch's default on CUDA
    "adamw_single",  # foreach=False, one parameter after the other: the default on a CPU
    "adamw_torch_fused",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "sgd",
)
ATTENTIONS = (None, "eager", "sdpa", "flash_attention_2")
LOOPS = ("plain", "trainer", "onegpu")
LOGITS = ("all", "supervised")
LORA_DEFAULTS = {
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "lora_target_modules": None,
    "lora_dtype": "fp32",
}


@dataclass(frozen=True)
class TrainingSetup:
    """One training step: model, method, batch, tricks, card.

    Attributes
    ----------
    model : str, Path or PretrainedConfig
        A catalogue name, a folder with a config.json, a hub id, or a transformers configuration.
    method : {"full", "lora", "qlora"}
        Every weight; adapters on a 16-bit base; adapters on an NF4 base.
    batch_size, sequence_length : int
        Rows of a micro-batch and tokens of a row. With ``loop="onegpu"`` the rows are packed into one.
    dtype : {"fp32", "fp16", "bf16"}
        Of the weights; with QLoRA of what isn't quantized and of the matrix products. None: what suits the card.
    mixed_precision : {None, "fp16", "bf16"}
        Autocast, as `TrainingArguments(fp16=True)`. None with ``loop="onegpu"``: what suits the card.
    optimizer : str
        One of `OPTIMIZERS`.
    gradient_checkpointing : bool
    gradient_accumulation_steps : int
        Micro-batches per optimizer step.
    lora_r, lora_alpha, lora_dropout, lora_target_modules
        As in ``peft.LoraConfig``; None takes peft's targets for the architecture, "all-linear" every linear layer.
    lora_dtype : {"fp32", "fp16", "bf16"}
        Of the adapters; peft makes them fp32 (`autocast_adapter_dtype`).
    double_quantization : bool
        Quantize NF4's scales too.
    prepare_kbit : bool
        Whether peft's ``prepare_model_for_kbit_training`` makes all that isn't quantized fp32. None: with QLoRA, unless
        our own trainer is used, which doesn't.
    attention : {None, "eager", "sdpa", "flash_attention_2"}
        None: transformers' choice.
    logits : {"all", "supervised"}
        "supervised" runs our own trainer (``loop="onegpu"``): no logits but where a token is supervised, and those in
        chunks.
    supervised_fraction : float
        Share of the tokens that is supervised, with ``logits="supervised"``.
    loop : {"plain", "trainer", "onegpu"}
        "plain": the textbook loop, in which the variable `outputs` keeps logits and KV cache alive through the step.
        "trainer": transformers' Trainer. "onegpu": our own.
    gpu : str or Gpu
        The card; "cpu" for this course's laptop runs.
    """

    model: Any
    method: str = "full"
    batch_size: int = 1
    sequence_length: int = 512
    dtype: str | None = None
    mixed_precision: str | None = None
    optimizer: str = "adamw_torch"
    gradient_checkpointing: bool = False
    gradient_accumulation_steps: int = 1
    lora_r: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    lora_target_modules: str | tuple[str, ...] | None = None
    lora_dtype: str = "fp32"
    double_quantization: bool = True
    prepare_kbit: bool | None = None
    attention: str | None = None
    logits: str = "all"
    supervised_fraction: float = 1 / 3
    loop: str = "plain"
    gpu: str | Gpu = "T4"

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        put("gpu", find_gpu(self.gpu))
        _one_of("method", self.method, METHODS)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("attention", self.attention, ATTENTIONS)
        _one_of("logits", self.logits, LOGITS)
        _one_of("loop", self.loop, LOOPS)
        put("dtype", self.dtype or self.gpu.dtype)
        _one_of("dtype", self.dtype, tuple(DTYPES))
        _one_of("lora_dtype", self.lora_dtype, tuple(DTYPES))
        if self.logits == "supervised" and self.loop == "plain":
            put("loop", "onegpu")
        if self.loop == "onegpu":
            if self.logits == "all":
                put("logits", "supervised")
            if self.mixed_precision is None and not self.gpu.is_cpu and self.dtype != "fp32":
                put("mixed_precision", self.dtype)
        if self.prepare_kbit is None:
            put("prepare_kbit", self.method == "qlora" and self.loop != "onegpu")
        if isinstance(self.lora_target_modules, list):
            put("lora_target_modules", tuple(self.lora_target_modules))
        self._check()

    def _check(self) -> None:
        for name in ("batch_size", "sequence_length", "gradient_accumulation_steps", "lora_r"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number of at least 1")
        if self.loop == "trainer" and self.logits == "supervised":
            raise ValueError(
                "logits='supervised' is our own trainer's: use loop='onegpu', not loop='trainer'"
            )
        if self.mixed_precision not in (None, "fp16", "bf16"):
            raise ValueError(f"mixed_precision is {self.mixed_precision!r}, expected None, 'fp16' or 'bf16'")
        if self.mixed_precision and self.gpu.is_cpu:
            raise ValueError("mixed_precision is for a GPU; on the CPU this course trains in fp32")
        if not 0 < self.supervised_fraction <= 1:
            raise ValueError(
                f"supervised_fraction is {self.supervised_fraction}, expected more than 0 and at most 1"
            )
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout is {self.lora_dropout}, expected at least 0 and less than 1")
        if self.method == "full":
            given = [name for name, default in LORA_DEFAULTS.items() if getattr(self, name) != default]
            if given:
                raise ValueError(
                    f"method='full' has no adapters, but {', '.join(given)} was given: use 'lora' or 'qlora'"
                )
            if self.mixed_precision == "fp16" and self.dtype == "fp16":
                raise ValueError(
                    "mixed_precision='fp16' needs fp32 trainable weights: with fp16 ones the gradient scaler refuses "
                    "('Attempting to unscale FP16 gradients', transformers#23165). Use dtype='fp32', or no autocast"
                )
        elif self.mixed_precision == "fp16" and self.lora_dtype == "fp16":
            raise ValueError(
                "mixed_precision='fp16' needs fp32 adapters: with fp16 ones the gradient scaler refuses "
                "(transformers#23165). Use lora_dtype='fp32'"
            )
        if self.optimizer.startswith("paged") and self.gpu.is_cpu:
            raise ValueError(
                f"optimizer={self.optimizer!r} pages states by CUDA's unified memory: not on a CPU"
            )
        if self.attention == "flash_attention_2":
            if self.gpu.is_cpu or self.gpu.compute_capability < (8, 0):
                raise ValueError(
                    f"flash_attention_2 needs compute capability 8.0, the {self.gpu.name} hasn't: use 'sdpa'"
                )
            if self.dtype == "fp32" and self.mixed_precision is None:
                raise ValueError("flash_attention_2 computes in 16 bits only: use dtype='bf16', or 'sdpa'")

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

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch_size * self.sequence_length

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens of a micro-batch (all, unless only their logits are made)."""
        if self.logits == "all":
            return self.tokens
        return max(1, round(self.tokens * self.supervised_fraction))

    @property
    def keeps_outputs(self) -> bool:
        """Whether a variable keeps the model's outputs alive after the backward pass."""
        return self.loop == "plain"

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch's."""
        import torch

        return getattr(torch, DTYPES[self.dtype])

    def config(self) -> PretrainedConfig:
        """Build the model's configuration, and see that this setup suits it.

        Raises
        ------
        ValueError
            For an unknown model, one that is no decoder-only language model, or rows longer than its positions.
        """
        config = _config(self.model)
        if getattr(config, "is_encoder_decoder", False):
            raise ValueError(
                f"{self.name} is an encoder-decoder ({config.model_type}): this topic covers decoder-only language models"
            )
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ValueError(
                f"transformers has no causal language model of type {config.model_type!r} ({self.name})"
            )
        text = config.get_text_config()
        positions = getattr(text, "max_position_embeddings", None)
        if positions is not None and self.sequence_length > positions:
            raise ValueError(
                f"sequence_length is {self.sequence_length}, but {self.name} has {positions} positions: use at most that"
            )
        return config

    def change(self, **changes: Any) -> TrainingSetup:
        """Return the same with some settings changed; what depends on them is decided anew."""
        derived = {"mixed_precision": self.loop == "onegpu", "prepare_kbit": True}
        for name, again in derived.items():
            if again and name not in changes and {"loop", "logits", "method", "gpu", "dtype"} & set(changes):
                changes[name] = None
        if "logits" in changes and "loop" not in changes:
            changes["loop"] = "onegpu" if changes["logits"] == "supervised" else "plain"
        if changes.get("loop") in ("plain", "trainer") and "logits" not in changes:
            changes["logits"] = "all"
        if changes.get("method") == "full":
            changes = {**LORA_DEFAULTS, **changes}
        return replace(self, **changes)

    def __str__(self) -> str:
        parts = [
            f"{self.name}, {self.method}, {self.batch_size} x {self.sequence_length} tokens, {self.dtype}"
        ]
        if self.mixed_precision:
            parts.append(f"{self.mixed_precision} autocast")
        parts.append(self.optimizer)
        if self.adapters:
            parts.append(f"r={self.lora_r}" + (f" dropout={self.lora_dropout}" if self.lora_dropout else ""))
        if self.gradient_checkpointing:
            parts.append("gradient checkpointing")
        if self.gradient_accumulation_steps > 1:
            parts.append(f"{self.gradient_accumulation_steps} micro-batches")
        if self.attention:
            parts.append(f"{self.attention} attention")
        if self.logits == "supervised":
            parts.append(f"logits of {self.supervised_tokens} supervised tokens")
        parts.append({"plain": "plain loop", "trainer": "Trainer", "onegpu": "our trainer"}[self.loop])
        return ", ".join(parts) + f", on {self.gpu.name}"


def make_setup(model: Any = None, /, setup: TrainingSetup | None = None, **settings: Any) -> TrainingSetup:
    """Return a setup from a model and settings, or a given one (as the first argument or by name), changed by settings.

    Raises
    ------
    ValueError
        For settings that don't exist or don't go together.

    Examples
    --------
    >>> print(make_setup("llama-2-7b", method="qlora", batch_size=4, sequence_length=1024))
    llama-2-7b, qlora, 4 x 1024 tokens, fp16, adamw_torch, r=8, plain loop, on T4
    """
    known = {f.name for f in fields(TrainingSetup)}
    unknown = set(settings) - known
    if unknown:
        raise ValueError(
            f"unknown settings {', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}"
        )
    if isinstance(model, TrainingSetup):
        setup, model = model, None
    if setup is not None:
        return setup.change(**settings) if settings else setup
    if model is None:
        model = settings.pop("model")
    return TrainingSetup(model, **settings)


def _one_of(name: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}")


def _config(model: Any) -> PretrainedConfig:
    from transformers import AutoConfig, PretrainedConfig

    from onegpu.models import CatalogueEntry, find
    from onegpu.runtime import hub_reachable

    if isinstance(model, PretrainedConfig):
        return model
    found = find(model)
    if isinstance(found, CatalogueEntry):
        return found.config()
    try:
        # A hub that doesn't answer must cost seconds, not minutes.
        offline = isinstance(found, str) and not hub_reachable(3.0)[0]
        return AutoConfig.from_pretrained(found, trust_remote_code=False, local_files_only=offline)
    except OSError as error:
        raise ValueError(
            f"the configuration of {model!r} can't be had: it is no catalogue name, and reading it failed "
            f"({str(error).splitlines()[0]}). Give a catalogue name, a folder with config.json, or a transformers config"
        ) from error
