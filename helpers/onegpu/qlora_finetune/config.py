"""Settings of a fine-tune, under the names that transformers, peft and TRL users already know."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onegpu.packed_training.packing import DEFAULT_MAX_LENGTH
from onegpu.sft_datasets.normalisation import REPAIRS

SYSTEM_PROMPT = "Triage as JSON: intent, urgency, reply."
"""What the model is told for the shipped task: short, since every example carries it."""

CONFIG_FILE = "finetune_config.json"
"""Where a run's configuration is saved, in its output folder."""

# Settings that may differ between a run and its continuation: they don't touch the numbers.
_FREE_TO_CHANGE = {
    "output_dir",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "generation_batch_size",
    "max_new_tokens",
    "report_to",
    "cache_rows",
}


SHIPPED_MODEL = "smollm2-135m"
SHIPPED_DATA = {"sft": "support_triage", "dpo": "rankings"}
"""What is trained on where no data is given, by method."""

SHIPPED_TRAINING = {"sft": (1.3, 3e-3), "dpo": (1.0, 2e-4)}
"""Epochs of the shipped data and, for the shipped model, the learning rate, by method: tried on it."""

DPO_RATE = 1 / 40
"""Learning rate of DPO as a share of a fine-tune's on chats: TRL's own commands for LoRA take 5e-6 and 2e-4.

The alignment handbook's recipe for QLoRA (zephyr-7b-beta, dpo) has 5e-6 for 7 billion parameters too.
"""


def default_learning_rate(parameters: int) -> float:
    """Return a learning rate for LoRA on a model of this size.

    2e-4 from 3 billion parameters and 1e-4 from 30 are the QLoRA paper's (arXiv 2305.14314, table 9: 7 and 13 B; 33 and
    65 B). Below, adapters take more (the shipped task has 3e-3 at 135 million); those two steps are our own choice.

    Examples
    --------
    >>> [default_learning_rate(n) for n in (135_000_000, 1_500_000_000, 8_000_000_000, 70_000_000_000)]
    [0.001, 0.0005, 0.0002, 0.0001]
    """
    sizes = ((5e8, 1e-3), (3e9, 5e-4), (3e10, 2e-4))
    return next((rate for below, rate in sizes if parameters < below), 1e-4)


def default_epochs(rows: int, method: str = "sft") -> float:
    """Return how often a data set of this size is gone through: the fewer rows, the more often.

    Three epochs are what Alpaca took for 52,000 rows of chats, and LIMA took 15 for 1,000 (arXiv 2305.11206); the
    alignment handbook's recipe for DPO with QLoRA goes once through 61,000 pairs. The steps are our own choice.

    Examples
    --------
    >>> [default_epochs(n) for n in (100, 52_000, 100_000, 1_000_000)]
    [5.0, 3.0, 2.0, 1.0]
    >>> [default_epochs(n, "dpo") for n in (100, 60_000)]
    [3.0, 1.0]
    """
    sizes = ((5_000, 3.0),) if method == "dpo" else ((500, 5.0), (60_000, 3.0), (200_000, 2.0))
    return next((epochs for below, epochs in sizes if rows < below), 1.0)


MAX_LENGTHS = (DEFAULT_MAX_LENGTH, 1024, 2048)
"""Row lengths that are taken unasked; a longer one is a question of memory, so it has to be asked for."""


def default_max_length(longest: int, positions: int | None = None) -> int:
    """Return a row length that holds the longest example, as far as the model has positions and 2,048 tokens suffice.

    Parameters
    ----------
    longest
        Tokens of the longest example.
    positions
        That the model has; None: not known.

    Examples
    --------
    >>> [default_max_length(n) for n in (80, 513, 30_000)], default_max_length(1500, positions=1000)
    ([512, 1024, 2048], 1000)
    """
    length = next((length for length in MAX_LENGTHS if longest <= length), MAX_LENGTHS[-1])
    return min(length, positions or length)


def _folder_of(data: str | tuple[str, ...], model: str) -> str:
    """Name a run's folder after its data and, but for the shipped model, its model."""
    first = data if isinstance(data, str) else data[0]
    parts = [Path(first.rstrip("/")).name.partition(".")[0] or "data"]
    if model != SHIPPED_MODEL:
        parts.append(Path(model.rstrip("/")).name)
    return "runs/" + re.sub(r"[^\w.-]+", "_", "-".join(parts))


@dataclass(frozen=True)
class FinetuneConfig:
    """One QLoRA fine-tune. The defaults are the shipped task on SmolLM2-135M: minutes on two CPU cores.

    Attributes
    ----------
    model : str
        Catalogue name, hub id or local folder (``onegpu.models``).
    method : {"sft", "dpo"}
        "sft": learn the answers of chats. "dpo": learn to prefer, from pairs of a chosen and a rejected answer (DPO, arXiv
        2305.18290); the reference is the base, adapters off.
    beta : float or None
        With "dpo", how strongly the model is held to the reference. None: 0.1, as in the paper and in TRL.
    quantization : {"nf4", "int8", None}
        Of the frozen base model. None is plain LoRA.
    data : str or tuple of str
        Where the training rows are (empty: the shipped ones of the method): a shipped data set's name, a file, a folder, a pattern or a hub name
        (``onegpu.sft_datasets.read_rows``), or several of them. Which forms of rows are read, ``onegpu.sft_datasets`` says.
    data_shares : tuple of float or None
        With several ``data``, the share of the training rows that each gives; they add up to 1. As many rows are taken as
        there are without repeating one. None: all rows of each.
    eval_data : str, tuple of str or None
        Held-out rows, as for ``data``. None: those of the shipped set, or else ``eval_share``.
    eval_share : float
        Without ``eval_data``, the share of the rows that is held out (at most ``eval_rows``, or 256). Rows with the same
        question stay on one side. 0: none are held out.
    columns : dict or None
        New names for columns, {"question": "prompt", "answer": "completion"}.
    template, turns, truncation
        How rows become text, which answers are learned, and what becomes of rows over ``max_length``, as in
        ``onegpu.sft_datasets.tokenize_rows``. The template is saved with the adapter.
    bad_rows : {"stop", "skip"}
        What to do with a row that can't be trained on: end with an error, or leave it out, counted and listed in
        ``bad_rows.jsonl`` in the output folder.
    repairs : tuple of str
        Repairs of ``onegpu.sft_datasets.normalise`` to apply: "fold_system", "merge_turns", "strip" and so on.
    cache_rows : bool
        Keep prepared rows of files of a MiB and more on disk (``rows`` in the folder that ``ONEGPU_CACHE`` names, else in
        the platform's place for caches), and take them from there while files, tokenizer and settings are the same.
    output_dir : str
        Adapter, checkpoints and report go here. Empty: ``runs/`` and a name made from data and model.
    max_length : int or None
        Tokens of a packed row, and the longest example; with "dpo" an example is a pair: its prompt and both answers.
        None: it follows the longest example and the model's positions (``default_max_length``); the shipped task has its
        own.
    packing : bool
        Examples end to end in rows of ``max_length``. False: each example is a row of its own length, and a forward
        pass of its own; still no padding.
    self_check : bool
        Before the first step, hold a packed row against its examples alone and our head against the model's own
        logits, and train the plain way where they differ. False: believe that they don't.
    per_device_train_batch_size : int
        Rows in a micro-batch (packed rows, or examples without packing).
    gradient_accumulation_steps : int
        Micro-batches per optimizer step. Their losses are weighted by supervised tokens, so the step equals one
        big batch.
    num_train_epochs, max_steps, learning_rate, lr_scheduler_type, warmup_steps, weight_decay, max_grad_norm
        As in ``transformers.TrainingArguments``. ``max_steps`` > 0 overrides the epochs; ``warmup_steps`` below 1 is a
        share of all steps. Epochs and learning rate that are None follow the size of data and model (``filled``); the
        shipped task has its own.
    optim : {"adamw_torch", "adamw_8bit", "sgd"}
        ``adamw_8bit`` is bitsandbytes' AdamW with 8-bit states.
    adapter : str or None
        Start from this adapter, a run's folder or an adapter's, instead of a new one. Rank, scaling and layers are its own.
    lora_r, lora_alpha, lora_dropout, target_modules, use_dora, use_rslora, modules_to_save
        As in ``peft.LoraConfig``. ``all-linear`` is every linear layer but the head (QLoRA paper, section 4).
    gradient_checkpointing : bool or None
        Recompute activations in the backward pass. None: on a GPU yes, on the CPU no (memory is not short there).
    precision : {"fp32", "fp16", "bf16", None}
        None lets ``onegpu.runtime.precision`` decide from the compute capability.
    early_stopping_patience : int or None
        Stop when the held-out loss has not improved for this many evaluations, and keep the best adapter.
    eval_steps : int or None
        Held-out loss every so many steps. None: only before and after.
    save_steps, save_total_limit, logging_steps, seed
        As in ``transformers.TrainingArguments``.
    report_to : str or list of str
        As in ``transformers.TrainingArguments``: tensorboard, wandb, trackio ... ``log.jsonl`` in the output folder grows
        in any case.
    eval_rows, generation_batch_size, max_new_tokens
        How many held-out rows are used, for the loss and for answers before and after (None: all), how many are answered
        at once, and how long an answer may get.
    """

    model: str = "smollm2-135m"
    method: Literal["sft", "dpo"] = "sft"
    beta: float | None = None
    quantization: Literal["nf4", "int8"] | None = "nf4"
    data: str | tuple[str, ...] = ""
    data_shares: tuple[float, ...] | None = None
    eval_data: str | tuple[str, ...] | None = None
    eval_share: float = 0.05
    columns: dict[str, str] | None = None
    template: str = "model"
    turns: Literal["all", "last"] = "all"
    truncation: Literal["drop", "turns", "right", "error"] = "drop"
    bad_rows: Literal["stop", "skip"] = "stop"
    repairs: tuple[str, ...] = ()
    cache_rows: bool = True
    output_dir: str = ""
    max_length: int | None = None
    packing: bool = True
    self_check: bool = True
    per_device_train_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    num_train_epochs: float | None = None
    max_steps: int = -1
    learning_rate: float | None = None
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = 0.05
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    optim: Literal["adamw_torch", "adamw_8bit", "sgd"] = "adamw_torch"
    adapter: str | None = None
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    target_modules: str | tuple[str, ...] = "all-linear"
    use_dora: bool = False
    use_rslora: bool = False
    modules_to_save: tuple[str, ...] = ()
    gradient_checkpointing: bool | None = None
    precision: Literal["fp32", "fp16", "bf16"] | None = None
    early_stopping_patience: int | None = None
    eval_steps: int | None = None
    save_steps: int = 100
    save_total_limit: int = 2
    logging_steps: int = 1
    seed: int = 0
    report_to: str | tuple[str, ...] = "none"
    eval_rows: int | None = None
    generation_batch_size: int = 36
    max_new_tokens: int = 72

    def __post_init__(self):
        for name in (
            "target_modules",
            "data",
            "data_shares",
            "eval_data",
            "repairs",
            "modules_to_save",
        ):  # JSON has lists for tuples
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.method not in SHIPPED_DATA:
            raise ValueError(f"method is {self.method!r}, expected one of {tuple(SHIPPED_DATA)}")
        if self.data == "":
            object.__setattr__(self, "data", SHIPPED_DATA[self.method])
        shipped = self.data == SHIPPED_DATA[self.method]
        epochs, rate = SHIPPED_TRAINING[self.method]
        if shipped and self.max_length is None:
            object.__setattr__(self, "max_length", DEFAULT_MAX_LENGTH)
        if shipped and self.num_train_epochs is None:
            object.__setattr__(self, "num_train_epochs", epochs)
        if shipped and self.model == SHIPPED_MODEL and self.learning_rate is None:
            object.__setattr__(self, "learning_rate", rate)
        if not self.output_dir:
            object.__setattr__(self, "output_dir", _folder_of(self.data, self.model))
        if isinstance(self.report_to, list):
            object.__setattr__(self, "report_to", tuple(self.report_to))
        for name in ("repairs", "modules_to_save"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, tuple(part for part in getattr(self, name).split(",") if part))
        if not self.data:
            raise ValueError("data is empty, expected a name or path")
        if self.method == "dpo":
            self._check_dpo()
        elif self.beta is not None:
            raise ValueError(
                f"beta is {self.beta}, and method 'sft' has none: leave it out, or set method='dpo'"
            )
        sources = 1 if isinstance(self.data, str) else len(self.data)
        if self.data_shares is not None:
            shares = self.data_shares
            if len(shares) != sources or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
                raise ValueError(
                    f"data_shares is {list(shares)}, expected {sources} numbers above 0 that add up to 1, one for each data"
                )
        if not 0 <= self.eval_share < 1:
            raise ValueError(f"eval_share is {self.eval_share}, expected 0 or more and below 1")
        if self.eval_rows is not None and self.eval_rows < 1:
            raise ValueError(f"eval_rows is {self.eval_rows}, expected at least 1, or None for all")
        if self.columns is not None and not isinstance(self.columns, dict):
            raise ValueError(
                f'columns is {self.columns!r}, expected an object of new names, such as {{"question": "prompt"}}'
            )
        unknown = [name for name in self.repairs if name not in REPAIRS]
        if unknown:
            raise ValueError(f"repairs has {unknown[0]!r}, expected names among {', '.join(REPAIRS)}")
        at_least_one = ("max_length", "per_device_train_batch_size", "gradient_accumulation_steps", "lora_r",
                        "save_steps", "logging_steps", "generation_batch_size", "max_new_tokens")  # fmt: skip
        for name in at_least_one:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.max_steps < 1 and self.num_train_epochs is not None and self.num_train_epochs <= 0:
            raise ValueError(
                f"nothing to train: max_steps is {self.max_steps} and num_train_epochs {self.num_train_epochs}, "
                "expected one of them above 0"
            )
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, expected above 0")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout is {self.lora_dropout}, expected 0 or more and below 1")
        if self.early_stopping_patience is not None and self.eval_steps is None:
            raise ValueError(
                "early_stopping_patience needs eval_steps: without evaluations nothing can stop early"
            )
        choices = {
            "quantization": ("nf4", "int8", None),
            "optim": ("adamw_torch", "adamw_8bit", "sgd"),
            "precision": ("fp32", "fp16", "bf16", None),
            "turns": ("all", "last"),
            "truncation": ("drop", "turns", "right", "error"),
            "bad_rows": ("stop", "skip"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {allowed}")

    def _check_dpo(self) -> None:
        """Fill in what DPO has of its own, and refuse what it has not."""
        if self.beta is None:
            object.__setattr__(self, "beta", 0.1)
        if self.beta <= 0:
            raise ValueError(f"beta is {self.beta}, expected above 0")
        if self.truncation not in ("drop", "right"):
            raise ValueError(
                f"truncation is {self.truncation!r}, expected 'drop' or 'right' with method 'dpo'"
            )
        if self.lora_dropout:
            raise ValueError(
                f"lora_dropout is {self.lora_dropout}, expected 0 with method 'dpo': model and reference are to differ by "
                "training alone"
            )
        for name, default in (("repairs", ()), ("turns", "all")):
            if getattr(self, name) != default:
                raise ValueError(f"{name} is for chats, and method 'dpo' reads pairs: leave it out")

    def filled(
        self,
        *,
        longest: int | None = None,
        positions: int | None = None,
        rows: int | None = None,
        parameters: int | None = None,
    ) -> tuple[FinetuneConfig, tuple[str, ...]]:
        """Fill in what was left open, by the size of data and model, each with its reason in words.

        What hangs on a size that isn't given stays open.

        Parameters
        ----------
        longest
            Tokens of the longest training example.
        positions
            Of the model: the most tokens that it reads.
        rows
            Training examples.
        parameters
            Of the base model.

        Examples
        --------
        >>> config, why = FinetuneConfig(data="mine.jsonl").filled(longest=733, rows=1_200, parameters=494_032_768)
        >>> config.max_length, config.learning_rate, config.num_train_epochs
        (1024, 0.001, 3.0)
        >>> for reason in why: print(reason)
        max_length=1024, the longest example has 733 tokens
        learning_rate=0.001, for a model of 494 M parameters
        num_train_epochs=3, for 1,200 rows
        """
        changes, why = {}, []
        if self.max_length is None and longest is not None:
            changes["max_length"] = length = default_max_length(longest, positions)
            reason = f"the longest example has {longest:,} tokens"
            if longest > length:
                most = (
                    "all the positions of the model"
                    if length == positions
                    else "the most that is taken unasked"
                )
                reason = f"{most}; {reason}"
            why.append(f"max_length={length}, {reason}")
        if self.learning_rate is None and parameters is not None:
            rate, share = default_learning_rate(parameters), ""
            if self.method == "dpo":
                rate, share = (
                    rate * DPO_RATE,
                    f", a {1 / DPO_RATE:.0f}th of a fine-tune's on chats as in TRL's examples",
                )
            changes["learning_rate"] = rate
            why.append(f"learning_rate={rate:g}, for a model of {parameters / 1e6:,.0f} M parameters{share}")
        if self.num_train_epochs is None and rows is not None:
            changes["num_train_epochs"] = default_epochs(rows, self.method)
            if self.max_steps < 1:
                unit = "pairs" if self.method == "dpo" else "rows"
                why.append(f"num_train_epochs={changes['num_train_epochs']:g}, for {rows:,} {unit}")
        return dataclasses.replace(self, **changes), tuple(why)

    def differences(self, other: dict) -> list[str]:
        """Name the settings that change the numbers and differ from a saved configuration."""
        mine = json.loads(json.dumps(dataclasses.asdict(self)))
        defaults = json.loads(  # of settings newer than the saved run; None: it has to say it itself
            json.dumps(
                {
                    f.name: None if f.default is dataclasses.MISSING else f.default
                    for f in dataclasses.fields(self)
                }
            )
        )
        return [
            f"{name}: {other.get(name)!r} there, {value!r} here"
            for name, value in mine.items()
            if name not in _FREE_TO_CHANGE and other.get(name, defaults[name]) != value
        ]

    def save(self, folder: str | Path) -> Path:
        """Write ``finetune_config.json`` into a folder and return its path."""
        path = Path(folder) / CONFIG_FILE
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")
        return part.replace(path)


T4_SETTINGS = {
    "model": "Qwen/Qwen2.5-1.5B-Instruct",
    "max_length": 1024,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "gradient_checkpointing": False,
    "learning_rate": 2e-4,
    "num_train_epochs": 3.0,
}
"""A larger model on a T4: what the lesson takes where there is a GPU. 1,024 tokens a row, about 18 examples a step."""

CPU_SETTINGS = {
    "model": "smollm2-135m",
    "max_length": 256,
    "max_steps": 14,
    "learning_rate": 4e-3,
    "eval_rows": 4,
    "max_new_tokens": 64,
}
"""A sample of the task that two CPU cores train in half a minute: what the lesson takes without a GPU."""
