"""The trainer: transformers' own, fed packed rows, with logits only where a token is supervised.

What makes it fast and small is ``onegpu.packed_training``; none of it changes the loss of a supervised token.

The loss is a sum over supervised tokens divided by their number in the whole accumulated batch, so that accumulation
equals one big batch (transformers#24725, #34191: a mean of means does not).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from onegpu.packed_training.loss import supervised_loss
from onegpu.packed_training.packing import collate_rows
from onegpu.qlora_finetune.transformers_trainer import (
    ExportableState,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from onegpu.qlora_finetune.watching import check_reporters


class PackedRows(torch.utils.data.Dataset):
    """Rows of examples: item ``i`` is the list of the examples packed into row ``i``."""

    def __init__(self, examples: Sequence[dict[str, list[int]]], rows: Sequence[Sequence[int]]):
        self.examples, self.rows = examples, rows

    def __len__(self) -> int:
        return len(self.rows)

    def most_examples(self) -> list[dict[str, list[int]]]:
        """Return the examples of the row that holds the most: what a self-check is made on."""
        return self[max(range(len(self)), key=lambda i: len(self.rows[i]), default=0)]

    def __getitem__(self, i: int) -> list[dict[str, list[int]]]:
        return [self.examples[k] for k in self.rows[i]]


class Meter(TrainerCallback, ExportableState):
    """Tokens and seconds of training, over all sessions of a run: checkpoints carry them."""

    KEPT = ("tokens", "supervised_tokens", "seconds")

    def __init__(self):
        self.tokens = self.supervised_tokens = 0
        self.seconds = 0.0
        self._since = None

    def add(self, tokens: int, supervised: int) -> None:
        """Count one micro-batch."""
        self.tokens += tokens
        self.supervised_tokens += supervised

    def state(self) -> dict:
        """Return what a checkpoint keeps."""
        self._tick()
        return {"args": {}, "attributes": {name: getattr(self, name) for name in self.KEPT}}

    def on_train_begin(self, args, state, control, **kwargs):
        """Take up the count of the checkpoint that the run goes on from, and start the clock."""
        if state.global_step:
            self.restore(state)
        self._since = time.perf_counter()

    def restore(self, state) -> None:
        """Take up the count of a checkpoint's state."""
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        for name, value in (saved or {"attributes": {}})["attributes"].items():
            setattr(self, name, value)

    def on_train_end(self, args, state, control, **kwargs):
        """Stop the clock."""
        self._tick()
        self._since = None

    def _tick(self) -> None:
        if self._since is not None:
            now = time.perf_counter()
            self.seconds += now - self._since
            self._since = now


class QLoraTrainer(Trainer):
    """``transformers.Trainer`` on packed rows. Takes ``PackedRows`` as train and eval data."""

    # compute_loss divides by the supervised tokens of the whole accumulated batch (name since transformers 5.24).
    loss_is_scaled_for_ga = True

    collate = staticmethod(collate_rows)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, data_collator=self.collate, **kwargs)
        # With this the Trainer counts the supervised tokens of all micro-batches of a step.
        self.model_accepts_loss_kwargs = True
        if self.args.fp16 and self.accelerator.scaler is None:
            # accelerate leaves fp16 out on a CPU, without a word; here it runs as it does on a GPU, to be tested.
            self.accelerator.native_amp = True
            self.accelerator.scaler = torch.amp.GradScaler(self.args.device.type)
        self.meter = Meter()
        self.skipped_steps: list[int] = []
        self.layout: dict[str, bool] = {}  # further arguments of supervised_loss
        self.measured: dict[str, Any] = {}  # of the last evaluation: fields of Scores besides the loss
        self.add_callback(self.meter)

    def take_up(self, checkpoint: Path) -> None:
        """Put a checkpoint's adapter and counts in place without a step; its best one's adapter if it stopped early."""
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        self.meter.restore(self.state)
        best = self.state.best_model_checkpoint if self.args.load_best_model_at_end else None
        # Where the folder was moved, the path of the best one is old, but its name is not.
        place = checkpoint.with_name(Path(best).name) if best else checkpoint
        set_peft_model_state_dict(self.model, load_file(place / "adapter_model.safetensors"))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Sum of the supervised tokens' losses over their number in the accumulated batch."""
        with self.accelerator.autocast():
            loss, n = supervised_loss(model, inputs, **self.layout)
        self.meter.add(inputs["input_ids"].numel(), n)
        loss = loss / (num_items_in_batch if num_items_in_batch is not None else max(n, 1))
        return (loss, {}) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        """Note the steps that the fp16 gradient scaler skipped (its first scale is too high by design)."""
        if "loss" in logs and getattr(self.accelerator, "optimizer_step_was_skipped", False):
            self.skipped_steps.append(self.state.global_step)
        super().log(logs, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Loss only: held-out loss needs no logits kept."""
        with torch.no_grad(), self.accelerator.autocast():
            inputs = self._prepare_inputs(inputs)
            loss, n = supervised_loss(model, inputs, **self.layout)
        self._eval_sums[0] += loss.item()
        self._eval_sums[1] += n
        return loss / max(n, 1), None, None

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        """Token-weighted mean loss over all rows (the Trainer's mean of batch means weighs short rows too much)."""
        self._eval_sums = [0.0, 0]
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics[f"{metric_key_prefix}_loss"] = self._eval_sums[0] / max(self._eval_sums[1], 1)
        return output


class Progress(TrainerCallback):
    """A bar with the loss and tokens per second."""

    def __init__(self, meter: Meter):
        self.meter, self.bar, self.start = meter, None, (0, 0.0)

    def on_train_begin(self, args, state, control, **kwargs):
        """Open the bar where the run (or its continuation) starts."""
        from tqdm.auto import tqdm

        self.start = (self.meter.tokens, time.perf_counter())
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")

    def on_step_end(self, args, state, control, **kwargs):
        """Advance by one step."""
        self.bar.update()

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Show the newest loss."""
        if self.bar is not None and "loss" in (logs or {}):
            tokens, since = self.start
            rate = (self.meter.tokens - tokens) / (time.perf_counter() - since)
            self.bar.set_postfix_str(f"loss {logs['loss']:.3f}, {rate:,.0f} tokens/s")

    def close(self) -> None:
        """Close the bar, also after an error."""
        if self.bar is not None:
            self.bar.close()


class Watch(TrainerCallback):
    """Hands each logged loss on, with the step and the number of steps."""

    def __init__(self, call: Callable[[int, int, float], None]):
        self.call = call

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Hand on a training loss; evaluations log others."""
        if "loss" in (logs or {}):
            self.call(state.global_step, state.max_steps, logs["loss"])


class StopOnNan(TrainerCallback):
    """End a run whose loss is not finite, with the step and what to do."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Look at each logged loss."""
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {state.global_step}. Lower learning_rate; under fp16 also look for a "
                "model whose activations overflow (precision='bf16' or 'fp32' tells)"
            )


def training_arguments(config, precision: str, output_dir: str, has_eval: bool) -> TrainingArguments:
    """Translate a ``FinetuneConfig`` into ``transformers.TrainingArguments``."""
    watch = has_eval and config.eval_steps is not None
    stop_early = watch and config.early_stopping_patience is not None
    return TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=config.per_device_train_batch_size,
        per_device_eval_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        num_train_epochs=config.num_train_epochs,
        max_steps=config.max_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optim=config.optim,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,
        save_steps=config.eval_steps if stop_early else config.save_steps,
        save_total_limit=config.save_total_limit,
        eval_strategy="steps" if watch else "no",
        eval_steps=config.eval_steps if watch else None,
        load_best_model_at_end=stop_early,
        metric_for_best_model="loss" if stop_early else None,
        seed=config.seed,
        fp16=precision == "fp16",
        bf16=precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        label_names=["labels"],
        report_to=check_reporters(config.report_to) or "none",
        disable_tqdm=True,
    )
