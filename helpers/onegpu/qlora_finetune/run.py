"""One fine-tune from start to end: load, evaluate, train, evaluate, save, report."""

from __future__ import annotations

import dataclasses
import json
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from onegpu import models, runtime
from onegpu.packed_training.self_check import use_row_layout
from onegpu.qlora_finetune.adapters import adapter_folder, attach_adapters, start_from, stored_as
from onegpu.qlora_finetune.answers import evaluate, sample_answers, samples
from onegpu.qlora_finetune.bases import base_of, fingerprint
from onegpu.qlora_finetune.card import model_card
from onegpu.qlora_finetune.config import CONFIG_FILE, FinetuneConfig
from onegpu.qlora_finetune.evaluation import Scores, end_tokens, stop_at, stop_ids
from onegpu.qlora_finetune.folders import (
    check_fingerprints,
    check_output_dir,
    is_finished,
    last_checkpoint,
    nothing_left,
    read_json,
    save_adapter,
    start_output_dir,
    trained_to_the_end,
    write_bad_rows,
    write_json,
)
from onegpu.qlora_finetune.lock import only_process
from onegpu.qlora_finetune.memory import OutOfMemory, explain_out_of_memory, free_memory, is_out_of_memory
from onegpu.qlora_finetune.preferences import PreferenceTrainer
from onegpu.qlora_finetune.report import FinetuneResult
from onegpu.qlora_finetune.rows import SPLIT_ROWS, check_held_out, prepare_data, use_template
from onegpu.qlora_finetune.stopping import Interrupted, NotSaved, Stops, disk_error
from onegpu.qlora_finetune.trainer import (
    Progress,
    QLoraTrainer,
    StopOnNan,
    Watch,
    training_arguments,
)
from onegpu.qlora_finetune.transformers_trainer import EarlyStoppingCallback, PrinterCallback
from onegpu.qlora_finetune.watching import LOG_FILE, LogFile, check_reporters

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

"""Where the rows that were skipped are listed, in the output folder."""


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
        When Ctrl-C or SIGTERM stopped the run, after saving a checkpoint if it was training.
    NotSaved
        When the disk is full or can't be written any more; what was saved before is whole.
    OutOfMemory
        When memory ran out: the message says what the run needs, what for, and which settings would fit. All that the
        run held is freed; checkpoints stay.
    """
    config = config or FinetuneConfig()
    folder = Path(config.output_dir)
    stops = Stops()
    try:
        with stops:
            return _finetune(config, resume, overwrite, say or (lambda line: None), loaded, on_step, stops)
    except KeyboardInterrupt:
        message = f"stopped while {stops.stage}; {_how_to_go_on(folder)}"
        raise Interrupted(message, stops.signum or signal.SIGINT) from None
    except Exception as error:
        written = disk_error(error)
        if written and not isinstance(error, ValueError):
            raise NotSaved(
                f"writing to {folder} failed while {stops.stage} ({written}); make room or choose another disk: "
                f"{_how_to_go_on(folder)}"
            ) from error
        if not isinstance(error, RuntimeError | MemoryError) or not is_out_of_memory(error):
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        traceback.clear_frames(error.__traceback__)  # their variables hold the model and all its tensors
    # Raised from here, not from the handler: as the error's context, the first one would keep its frames.
    free_memory(loaded.model if loaded else None)
    raise OutOfMemory(explain_out_of_memory(stops.config or config, said))


def _how_to_go_on(folder: Path) -> str:
    """Say what a stopped run left and what to do with it."""
    saved = last_checkpoint(folder)
    if saved:
        return f"{saved.name} is saved in {folder}. Go on with resume=True (command line: --resume)"
    if (folder / CONFIG_FILE).is_file():
        return f"no checkpoint is saved yet in {folder}. Begin anew with resume=True (command line: --resume)"
    return "nothing is saved yet. Start it again the same way"


def _finetune(config, resume, overwrite, say, loaded, on_step, stops) -> FinetuneResult:
    runtime.quiet()
    check_reporters(config.report_to)
    check_held_out(config)
    with nothing_left(Path(config.output_dir)), only_process(check_output_dir(config, resume, overwrite)):
        output_dir = Path(config.output_dir)
        if resume and is_finished(output_dir):
            say(f"{output_dir} holds a finished run: nothing is trained")
            try:
                return FinetuneResult.from_json(read_json(output_dir / "report.json"))
            except ValueError as error:
                raise ValueError(
                    f"{output_dir / 'report.json'} is damaged ({error}): delete it and resume, to write it anew"
                ) from error
        return _train(config, output_dir, resume, say, loaded, on_step, stops)


def _train(config, output_dir, resume, say, loaded, on_step, stops) -> FinetuneResult:
    say(f"output folder {output_dir}")
    runtime.seed_everything(config.seed)
    runtime.reset_peak_memory()
    machine = runtime.machine()
    precision = config.precision or precision_name(runtime.precision())

    # What costs least comes first: a mistake in the rows is found before a model is loaded.
    stops.stage = "preparing the rows"
    asked, config = config, start_from(config, loaded.source if loaded else None, say)
    tokenizer = loaded.tokenizer if loaded else models.load_tokenizer(config.model)
    known = generation_config_of(config.model if loaded is None else loaded.model)
    stop_tokens = tokenizer.convert_ids_to_tokens(stop_ids(tokenizer, known))
    prepared = prepare_data(
        config, tokenizer, stop_tokens, say, positions_of(config.model if loaded is None else loaded.model)
    )
    config = prepared.config
    say(str(prepared))
    stops.stage = "loading the model"
    if loaded is None:
        loaded = models.load(config.model, quantization=config.quantization, dtype=DTYPES[precision])
    say(str(loaded))
    use_template(loaded.tokenizer, config.template)
    stop_at(loaded.model, loaded.tokenizer, prepared.train.end_ids)

    config, reasons = config.filled(parameters=models.count_parameters(loaded.model).total)
    for reason in (*prepared.reasons, *reasons):
        say(f"default: {reason}")
    stops.config = config
    base = dataclasses.replace(base_of(loaded), system=prepared.system)
    model = attach_adapters(loaded.model, config, fp16=precision == "fp16")
    args = training_arguments(config, precision, str(output_dir), prepared.held_out is not None)
    of_method: dict[str, Any] = {}
    if config.method == "dpo":
        of_method = {"beta": config.beta, "new_adapters": config.adapter is None}
    trainer = (PreferenceTrainer if of_method else QLoraTrainer)(
        model=model, args=args, train_dataset=prepared.train_rows, eval_dataset=prepared.held_out_rows,
        processing_class=loaded.tokenizer, **of_method,
    )  # fmt: skip
    fingerprints = {
        "rows": prepared.fingerprint(), "weights": base.weights, "versions": dict(runtime.versions()),
        "adapter": fingerprint(adapter_folder(config.adapter)) if config.adapter else "",
    }  # fmt: skip
    if resume:
        check_fingerprints(output_dir, fingerprints, say)
    stops.stage = "checking the model"
    check = use_row_layout(
        model, prepared.train_rows.most_examples(), packing=config.packing, check=config.self_check,
        autocast=trainer.accelerator.autocast,
    )  # fmt: skip
    trainer.layout = check.layout
    checked = str(check)
    if isinstance(trainer, PreferenceTrainer) and check.made:
        checked = "; ".join(filter(None, (checked, trainer.check_shared_prompts(check.packed_tolerance))))
    say(f"self-check: {checked}")
    trainer.remove_callback(PrinterCallback)  # its dictionaries would cut through the progress bar
    progress = Progress(trainer.meter)
    log = LogFile(
        output_dir / LOG_FILE,
        trainer.meter,
        lambda: sample_answers(trainer, loaded.tokenizer, prepared, config),
    )
    for callback in (stops, StopOnNan(), log, progress, *([Watch(on_step)] if on_step else [])):
        trainer.add_callback(callback)
    if config.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(config.early_stopping_patience))

    if not resume:
        start_output_dir(asked, fingerprints)
        log.start()
    write_bad_rows(output_dir, prepared.bad_rows)
    stops.stage = "evaluating before training"
    before, answers_before = _before(output_dir, resume, say) or (None, None)
    if before is None:
        say("evaluating before training")
        before, answers_before = evaluate(trainer, loaded.tokenizer, prepared, config)
        write_json(
            output_dir / "before.json", {"scores": dataclasses.asdict(before), "answers": answers_before}
        )

    stops.stage = "training"
    checkpoint = last_checkpoint(output_dir, say) if resume else None
    if checkpoint and trained_to_the_end(checkpoint, prepared.steps):
        say(f"{checkpoint.name} is of the last step: nothing more to train")
        trainer.take_up(checkpoint)
    else:
        if resume and not checkpoint:
            say("no whole checkpoint is there: training from the beginning")
        say(f"training, {prepared.steps} steps" + (f", from {checkpoint.name}" if checkpoint else ""))
        # The shuffling must not depend on what ran before: evaluating draws no random numbers today, but may.
        runtime.seed_everything(config.seed)
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            progress.close()
    if stops.signum is not None:
        raise Interrupted(
            f"stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; {_how_to_go_on(output_dir)}",
            stops.signum,
        )

    stops.stage = "evaluating after training"
    say("evaluating after training")
    after, answers_after = evaluate(trainer, loaded.tokenizer, prepared, config)
    trained = None
    if isinstance(trainer, PreferenceTrainer):
        say("scoring pairs that were trained on")
        trained = trainer.scores_on(prepared.train_rows.spread(SPLIT_ROWS))
    adapter_dir = output_dir / "adapter"
    meter = trainer.meter
    result = FinetuneResult(
        before=before,
        after=after,
        trained=trained,
        samples=samples(prepared, config, answers_before, answers_after),
        losses=tuple((e["step"], e["loss"]) for e in trainer.state.log_history if "loss" in e),
        eval_losses=eval_losses(before.loss, trainer.state.log_history),
        margins=tuple(
            (e["step"], e["rewards/margins"]) for e in trainer.state.log_history if "rewards/margins" in e
        ),
        skipped_steps=tuple(trainer.skipped_steps),
        steps=trainer.state.global_step,
        tokens=meter.tokens,
        supervised_tokens=meter.supervised_tokens,
        train_seconds=meter.seconds,
        peak_memory_bytes=runtime.peak_memory_bytes(),
        adapter_dir=str(adapter_dir),
        dropped_rows={reason: len(rows) for reason, rows in prepared.train.dropped.items()},
        held_out_rows=len(prepared.held_out or ()),
        dropped_held_out_rows={
            r: len(n) for r, n in (prepared.held_out.dropped if prepared.held_out else {}).items()
        },
        unused_keys=dict(prepared.train.unused_keys),
        data_notes=prepared.notes,
        model=str(loaded),
        machine=str(machine),
        precision=precision,
        self_check=checked,
        weights={
            kind: dict(zip(("parameters", "bytes", "trained"), n, strict=True))
            for kind, n in stored_as(model).items()
        },
        versions=dict(runtime.versions()),
        config=dataclasses.asdict(config),
    )
    stops.stage = "saving the adapter"
    ends = end_tokens(loaded.model, loaded.tokenizer)
    save_adapter(model, loaded.tokenizer, adapter_dir, base, ends, model_card(result, base))
    write_json(output_dir / "report.json", result.to_json())
    return result


def _before(output_dir: Path, resume: bool, say: Callable[[str], None]) -> tuple[Scores, list[str]] | None:
    """Return what was scored before the training that is resumed; None if it has to be done (again)."""
    path = output_dir / "before.json"
    if not resume or not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Scores(**saved["scores"]), saved["answers"]
    except (ValueError, TypeError, KeyError):
        say(f"{path} is damaged: the scores before training are measured again")
        return None


def eval_losses(before: float | None, log: list[dict]) -> tuple[tuple[int, float], ...]:
    """Held-out loss by step, each step once: before training (step 0), at each evaluation, and after."""
    found = {} if before is None else {0: before}
    return tuple((found | {e["step"]: e["eval_loss"] for e in log if "eval_loss" in e and e["step"]}).items())


def generation_config_of(model: str | torch.nn.Module) -> Any:
    """The generation config of a model, or of one that isn't loaded yet; None where it has none."""
    if not isinstance(model, str):
        return model.generation_config
    from transformers import GenerationConfig

    folder = models.fetch(model, weights=False).folder
    return GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else None


def positions_of(model: str | torch.nn.Module) -> int | None:
    """The most tokens that a model reads, also of one that isn't loaded yet; None where it has no limit of its own."""
    if isinstance(model, str):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(models.fetch(model).folder)
    else:
        config = model.config
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def precision_name(precision: runtime.Precision) -> str:
    """Return the name that a config has for a precision: fp32, fp16 or bf16."""
    return next(name for name, dtype in DTYPES.items() if dtype == precision.dtype)
