"""One fine-tune from start to end: load, evaluate, train, evaluate, save, report."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback

from onegpu import data, models, runtime
from onegpu.packing import pack_lengths
from onegpu.qlora_finetune.adapters import attach_adapters
from onegpu.qlora_finetune.attention import use_packed_attention
from onegpu.qlora_finetune.config import FinetuneConfig
from onegpu.qlora_finetune.evaluation import (
    Scores,
    cannot_be_triage,
    generate,
    score_triage,
    triage_example,
)
from onegpu.qlora_finetune.memory import OutOfMemory, explain_out_of_memory, free_memory, is_out_of_memory
from onegpu.qlora_finetune.report import FinetuneResult
from onegpu.qlora_finetune.trainer import (
    PackedRows,
    Progress,
    QLoraTrainer,
    SaveWhenInterrupted,
    StopOnNan,
    Watch,
    training_arguments,
)
from onegpu.sft_datasets import TokenizedSet, tokenize_rows
from onegpu.token_counting import TokenCounts, TrainingSteps, training_steps

N_SAMPLES = 3
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Interrupted(RuntimeError):
    """The run was stopped on request; its checkpoint is saved. The message says how to go on."""


@dataclass(frozen=True)
class TrainingData:
    """Training and held-out rows of a run, tokenized and packed.

    Attributes
    ----------
    train, held_out : TokenizedSet or None
        Tokenized examples; None where there are no held-out rows.
    train_rows, held_out_rows : PackedRows
        The same, packed.
    raw_held_out : list of dict
        Held-out rows as they were read.
    totals : TrainingSteps
        Steps, rows and padding of the run, from the lengths alone (``onegpu.token_counting``).
    steps : int
        Optimizer steps of the whole run, known before the first.
    triage : bool
        Whether this is the shipped task, which is scored by its answers.
    """

    train: TokenizedSet
    train_rows: PackedRows
    held_out: TokenizedSet | None
    held_out_rows: PackedRows | None
    raw_held_out: list[dict[str, Any]]
    totals: TrainingSteps
    steps: int
    triage: bool

    def __str__(self) -> str:
        room = f"{len(self.train_rows)} rows, {self.train.tokens / len(self.train_rows):,.0f} tokens each on average"
        return f"{self.train}\npacked: {room}; {self.steps} optimizer steps"


def prepare_data(config: FinetuneConfig, tokenizer: Any) -> TrainingData:
    """Read, tokenize, mask and pack the rows of a config.

    Raises
    ------
    ValueError
        For rows that can't be trained on, with row number and what to do.
    """
    examples = read_examples(config)
    train = tokenize_rows(examples.train, tokenizer, config.max_length)
    train_rows = _pack(train, config)
    held, held_rows = prepare_held_out(examples, config, tokenizer)
    totals = training_steps(
        token_counts(train), max_length=config.max_length, num_train_epochs=max(config.num_train_epochs, 1e-9),
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
    )  # fmt: skip
    steps = totals.packed_steps if config.packing else totals.padded_steps
    if config.max_steps > 0:
        steps = config.max_steps
    return TrainingData(
        train, train_rows, held, held_rows, list(examples.raw_held_out), totals, steps, examples.triage
    )


@dataclass(frozen=True)
class Examples:
    """Rows of a config as they are tokenized, and the held-out ones also as they were read.

    Attributes
    ----------
    train, held_out, raw_held_out : list of dict
        Rows.
    triage : bool
        Whether this is the shipped task, which is scored by its answers.
    """

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    raw_held_out: list[dict[str, Any]]
    triage: bool


def read_examples(config: FinetuneConfig) -> Examples:
    """Read the training and held-out rows of a config."""
    triage = config.data in data.names() and "intent" in data.rows(config.data)[0]
    if triage:
        train = [triage_example(row) for row in data.rows(config.data, "train")]
        name = config.data if config.eval_data is None else config.eval_data
        raw = data.rows(name, "heldout")[: config.eval_rows]
        return Examples(train, [triage_example(row) for row in raw], raw, True)
    raw = read_rows(config.eval_data)[: config.eval_rows] if config.eval_data else []
    return Examples(read_rows(config.data), raw, raw, False)


def prepare_held_out(
    examples: Examples, config: FinetuneConfig, tokenizer: Any
) -> tuple[TokenizedSet | None, PackedRows | None]:
    """Tokenize and pack the held-out rows; (None, None) where there are none."""
    if not examples.held_out:
        return None, None
    held = tokenize_rows(examples.held_out, tokenizer, config.max_length)
    return held, _pack(held, config)


def token_counts(tokenized: TokenizedSet) -> TokenCounts:
    """Count a tokenized set, as ``onegpu tokens`` counts a file."""
    lengths = Counter(len(example) for example in tokenized)
    masked = tokenized.tokens - tokenized.supervised_tokens
    return TokenCounts(
        len(tokenized), tokenized.tokens, tokenized.supervised_tokens, masked, dict(sorted(lengths.items()))
    )


def read_rows(source: str) -> list[dict[str, Any]]:
    """Read examples from a shipped data set or a JSON or JSONL file."""
    if source in data.names():
        return data.rows(source)
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"data is {source!r}: neither a shipped set ({', '.join(data.names())}) nor a file")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = json.loads(text)
        if not isinstance(rows, list):
            raise ValueError(f"{path} holds a JSON {type(rows).__name__}, expected a list of rows")
        return rows
    rows = []
    for number, line in enumerate(text.splitlines()):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number + 1}: not JSON ({error}). Expected one object a line"
                ) from error
    return rows


def _pack(tokenized: TokenizedSet, config: FinetuneConfig) -> PackedRows:
    examples = [{"input_ids": list(e.input_ids), "labels": list(e.labels)} for e in tokenized]
    if config.packing:
        rows = pack_lengths([len(e) for e in tokenized], config.max_length).rows
    else:
        rows = [[i] for i in range(len(examples))]
    return PackedRows(examples, rows)


def finetune(
    config: FinetuneConfig | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] | None = None,
    loaded: models.Loaded | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
) -> FinetuneResult:
    """Fine-tune with QLoRA, evaluate before and after, and save the adapter.

    Parameters
    ----------
    config
        The defaults are the shipped task on SmolLM2-135M.
    resume
        Go on from the newest complete checkpoint in ``output_dir``, with the same losses as a run without a break.
    overwrite
        Throw away what an earlier run left in ``output_dir``.
    say
        Gets one line at each stage (for instance ``print``).
    loaded
        A model and tokenizer that are there already, instead of ``config.model``. It is changed: adapters are
        attached to it.
    on_step
        Called with (step, steps in all, loss) whenever a loss is logged, for instance to draw it.

    Returns
    -------
    FinetuneResult
        Prints as a short report; ``to_json`` gives all of it.

    Raises
    ------
    ValueError
        For anything in config, data or folder that can't work, before training starts.
    Interrupted
        When Ctrl-C or SIGTERM stopped the run after saving a checkpoint.
    OutOfMemory
        When memory ran out: the message says what the run needs, what for, and which settings would fit. All that the
        run held is freed; checkpoints stay.
    """
    config = config or FinetuneConfig()
    try:
        return _finetune(config, resume, overwrite, say or (lambda line: None), loaded, on_step)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        traceback.clear_frames(error.__traceback__)  # their variables hold the model and all its tensors
    # Raised from here, not from the handler: as the error's context, the first one would keep its frames.
    free_memory(loaded.model if loaded else None)
    raise OutOfMemory(explain_out_of_memory(config, said))


def _finetune(config, resume, overwrite, say, loaded, on_step) -> FinetuneResult:
    runtime.quiet()
    output_dir = prepare_output_dir(config, resume, overwrite)
    runtime.seed_everything(config.seed)
    runtime.reset_peak_memory()
    machine = runtime.machine()
    precision = config.precision or precision_name(runtime.precision())

    if loaded is None:
        loaded = models.load(config.model, quantization=config.quantization, dtype=DTYPES[precision])
    say(str(loaded))
    prepared = prepare_data(config, loaded.tokenizer)
    say(str(prepared))

    use_packed_attention(loaded.model)
    model = attach_adapters(loaded.model, config, fp16=precision == "fp16")
    args = training_arguments(config, precision, str(output_dir), prepared.held_out is not None)
    trainer = QLoraTrainer(
        model=model, args=args, train_dataset=prepared.train_rows, eval_dataset=prepared.held_out_rows,
        processing_class=loaded.tokenizer,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # its dictionaries would cut through the progress bar
    interruption = SaveWhenInterrupted()
    progress = Progress(trainer.meter)
    for callback in (interruption, StopOnNan(), progress, *([Watch(on_step)] if on_step else [])):
        trainer.add_callback(callback)
    if config.early_stopping_patience is not None:
        from transformers import EarlyStoppingCallback

        trainer.add_callback(EarlyStoppingCallback(config.early_stopping_patience))

    before_file = output_dir / "before.json"
    if resume and before_file.is_file():
        saved = json.loads(before_file.read_text(encoding="utf-8"))
        before, answers_before = Scores(**saved["scores"]), saved["answers"]
    else:
        say("evaluating before training")
        before, answers_before = _evaluate(trainer, loaded.tokenizer, prepared, config)
        write_json(before_file, {"scores": dataclasses.asdict(before), "answers": answers_before})

    checkpoint = _last_checkpoint(output_dir) if resume else None
    say(f"training, {prepared.steps} steps" + (f", from {checkpoint.name}" if checkpoint else ""))
    # The shuffling must not depend on what ran before: evaluating draws no random numbers today, but may.
    runtime.seed_everything(config.seed)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        interruption.release()
        progress.close()
    if interruption.interrupted and trainer.state.global_step < trainer.state.max_steps:
        raise Interrupted(
            f"stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; the checkpoint is in "
            f"{output_dir}. Go on with resume=True (command line: --resume)"
        )

    say("evaluating after training")
    after, answers_after = _evaluate(trainer, loaded.tokenizer, prepared, config)
    adapter_dir = output_dir / "adapter"
    save_adapter(model, loaded.tokenizer, adapter_dir)
    meter = trainer.meter
    result = FinetuneResult(
        before=before,
        after=after,
        samples=_samples(prepared, answers_before, answers_after),
        losses=tuple((e["step"], e["loss"]) for e in trainer.state.log_history if "loss" in e),
        eval_losses=tuple((e["step"], e["eval_loss"]) for e in trainer.state.log_history if "eval_loss" in e),
        skipped_steps=tuple(trainer.skipped_steps),
        steps=trainer.state.global_step,
        tokens=meter.tokens,
        supervised_tokens=meter.supervised_tokens,
        train_seconds=meter.seconds,
        peak_memory_bytes=runtime.peak_memory_bytes(),
        adapter_dir=str(adapter_dir),
        dropped_rows={reason: len(rows) for reason, rows in prepared.train.dropped.items()},
        model=str(loaded),
        machine=str(machine),
        precision=precision,
        versions=dict(runtime.versions()),
        config=dataclasses.asdict(config),
    )
    write_json(output_dir / "report.json", result.to_json())
    return result


def precision_name(precision: runtime.Precision) -> str:
    """Return the name that a config has for a precision: fp32, fp16 or bf16."""
    return next(name for name, dtype in DTYPES.items() if dtype == precision.dtype)


def prepare_output_dir(config: FinetuneConfig, resume: bool, overwrite: bool) -> Path:
    """Make the output folder and see that it belongs to this run."""
    folder = Path(config.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"output_dir {folder} can't be written ({error.strerror or error}): choose another folder"
        ) from error
    saved = folder / "finetune_config.json"
    if resume:
        if not saved.is_file():
            raise ValueError(f"{folder} holds no run to resume: start one without resume")
        differences = config.differences(json.loads(saved.read_text(encoding="utf-8")))
        if differences:
            raise ValueError(
                f"{folder} was started with another configuration ({'; '.join(differences)}): resume it with its own "
                "settings, or choose another output_dir"
            )
        return folder
    if saved.is_file():
        if not overwrite:
            raise ValueError(
                f"{folder} holds an earlier run: go on with it (resume=True, command line --resume), choose another "
                "output_dir, or throw it away (overwrite=True, --overwrite)"
            )
        for old in (*folder.glob("checkpoint-*"), folder / "adapter"):
            shutil.rmtree(old, ignore_errors=True)
        for name in ("before.json", "report.json", saved.name):
            (folder / name).unlink(missing_ok=True)
    config.save(folder)
    return folder


def _last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; one that a kill left half-written is passed over.

    The trainer writes the adapter, the optimizer, the random state and last ``trainer_state.json``.
    """
    found = []
    for path in folder.glob("checkpoint-*"):
        number = re.fullmatch(r"checkpoint-(\d+)", path.name)
        try:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if number and state.get("global_step") == int(number[1]):
            found.append((int(number[1]), path))
    return max(found)[1] if found else None


def _evaluate(trainer, tokenizer, prepared: TrainingData, config: FinetuneConfig) -> tuple[Scores, list[str]]:
    if prepared.held_out_rows is None:
        return Scores(None), []
    loss = trainer.evaluate()["eval_loss"]
    rows = prepared.raw_held_out
    if not rows:
        return Scores(loss), []
    if not prepared.triage:
        rows = rows[:N_SAMPLES]
    with trainer.accelerator.autocast():
        answers = generate(
            trainer.model, tokenizer, [prompt_of(row, prepared.triage) for row in rows],
            max_new_tokens=config.max_new_tokens, batch_size=config.generation_batch_size,
            is_hopeless=cannot_be_triage if prepared.triage else None,
        )  # fmt: skip
    return (score_triage(answers, rows, loss) if prepared.triage else Scores(loss, rows=len(rows))), answers


def prompt_of(row: dict[str, Any], triage: bool) -> list[dict[str, str]]:
    """Return the chat of a row up to its last answer."""
    from onegpu.sft_datasets import to_example

    messages = list(to_example(triage_example(row) if triage else row).messages)
    return messages[:-1]


def _samples(
    prepared: TrainingData, before: Sequence[str], after: Sequence[str]
) -> tuple[dict[str, str], ...]:
    samples = []
    for row, b, a in list(zip(prepared.raw_held_out, before, after, strict=False))[:N_SAMPLES]:
        example = triage_example(row) if prepared.triage else row
        question = prompt_of(row, prepared.triage)[-1]["content"]
        from onegpu.sft_datasets import to_example

        wanted = to_example(example).messages[-1]["content"]
        samples.append({"question": question, "before": b, "after": a, "wanted": wanted})
    return tuple(samples)


def save_adapter(model: torch.nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write the adapter beside its place, then move it there: a kill leaves the old one or the new one, whole."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part, safe_serialization=True)
    tokenizer.save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON beside its place, then move it there: a kill leaves the old file or the new one, whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)
