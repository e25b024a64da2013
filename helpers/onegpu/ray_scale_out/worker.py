"""What runs in each training worker: the trainer of topic 07, fed by Ray Data, its gradients averaged over the workers.

Three things differ from one process:

- **Weights of the loss.** Workers hold rows of different lengths. A worker's summed loss is divided by the supervised
  tokens of *all* workers in the step, and multiplied by the number of workers, since DistributedDataParallel divides
  by it: the sum of the workers' gradients is then the gradient of the mean over all tokens, as in one process. A plain
  mean of means is not (transformers#24725).
- **One forward pass that DDP sees.** DDP prepares its averaging in its own ``forward``; a loss that is computed around
  it trains each worker alone, without an error. So the loss is computed inside the model's forward.
- **Frozen weights stay where they are.** Each worker loads the same file; only adapters are compared and averaged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.data.collate_fn import ArrowBatchCollateFn

from onegpu import models, runtime
from onegpu.packed_training.loss import supervised_loss
from onegpu.packed_training.packing import collate_rows
from onegpu.packed_training.self_check import some_examples, use_row_layout
from onegpu.qlora_finetune.adapters import attach_adapters
from onegpu.qlora_finetune.bases import base_of
from onegpu.qlora_finetune.config import FinetuneConfig
from onegpu.qlora_finetune.evaluation import end_tokens, stop_at
from onegpu.qlora_finetune.folders import save_adapter
from onegpu.qlora_finetune.rows import prepare_held_out, read_held_out, use_template
from onegpu.qlora_finetune.run import DTYPES, precision_name
from onegpu.qlora_finetune.trainer import (
    Meter,
    PackedRows,
    QLoraTrainer,
    StopOnNan,
    training_arguments,
)
from onegpu.qlora_finetune.transformers_trainer import PrinterCallback, TrainerCallback
from onegpu.ray_scale_out.bottleneck import BottleneckMeter
from onegpu.ray_scale_out.handover import RESULT, KillWorker
from onegpu.ray_scale_out.pipeline import to_examples
from onegpu.sft_datasets.templates import ChatTemplate


class CollatePacked(ArrowBatchCollateFn):
    """Packed rows of an Arrow batch to model inputs, with the numbers of the source rows in them."""

    def __call__(self, batch: Any) -> dict[str, Any]:
        rows = batch.to_pylist()
        inputs = collate_rows([to_examples(row) for row in rows])
        numbers = [number for row in rows for number in row["rows"]]
        tokens = sum(len(row["input_ids"]) for row in rows if row["rows"])
        return inputs | {"index": [row["index"] for row in rows], "numbers": numbers, "tokens": tokens}


class RowsOfWorker:
    """This worker's share of the stream, as batches; checks that they are the right ones, and skips those done.

    Parameters
    ----------
    shard
        Ray Data's iterator over the share.
    rank, workers, batch_size : int
    skip : int
        Batches that were trained on before a restart.
    meter : BottleneckMeter
    """

    def __init__(
        self,
        shard: Any,
        rank: int,
        workers: int,
        batch_size: int,
        skip: int,
        meter: BottleneckMeter,
        prefetch: int,
    ):
        self.shard, self.rank, self.workers, self.batch_size = shard, rank, workers, batch_size
        self.skip, self.meter, self.prefetch = skip, meter, prefetch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self.shard.iter_torch_batches(
            batch_size=self.batch_size, prefetch_batches=self.prefetch, collate_fn=CollatePacked()
        )
        return self.meter.watch(islice(self._checked(batches), self.skip, None))

    def _checked(self, batches: Any) -> Iterator[dict[str, Any]]:
        expected = self.rank
        for batch in batches:
            for index in batch.pop("index"):
                if index != expected:
                    raise RuntimeError(
                        f"worker {self.rank} of {self.workers} got packed row {index}, expected {expected}: the stream is "
                        "out of order, so a row would be lost or trained twice"
                    )
                expected += self.workers
            yield batch


class DistributedMeter(Meter):
    """Counts what all workers together trained on."""

    KEPT = (*Meter.KEPT, "examples", "row_sum", "loss_before")

    def __init__(self):
        super().__init__()
        self.examples = self.row_sum = 0
        self.loss_before = None


class DistributedTrainer(QLoraTrainer):
    """``QLoraTrainer`` with its rows from a stream and its losses weighted over all workers."""

    def __init__(self, *args, rows: RowsOfWorker, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows = rows
        self.remove_callback(self.meter)
        self.meter = DistributedMeter()
        self.add_callback(self.meter)

    def get_train_dataloader(self):
        """The stream. It has no length: ``max_steps`` says where training ends."""
        return self.rows

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Take the batches of a step, and count its supervised tokens over all workers."""
        batches = list(islice(epoch_iterator, num_batches))
        supervised = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
        numbers = [batch.pop("numbers") for batch in batches]
        tokens = sum(batch.pop("tokens") for batch in batches)
        figures = [supervised, tokens, sum(map(len, numbers)), sum(map(sum, numbers))]
        counts = torch.tensor(figures, dtype=torch.int64, device=device)
        if dist.is_initialized() and batches:
            dist.all_reduce(counts)
        supervised, tokens, examples, row_sum = counts.tolist()
        self.meter.add(tokens, supervised)
        self.meter.examples += examples
        self.meter.row_sum += row_sum
        return batches, counts[0]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Summed loss over the step's supervised tokens of all workers, times the workers that DDP divides by."""
        with self.accelerator.autocast():
            loss, n = model(packed=inputs)
        scale = self.args.world_size / (num_items_in_batch if num_items_in_batch is not None else max(n, 1))
        return (loss * scale, {}) if return_outputs else loss * scale

    def held_out_loss(self, held: PackedRows | None) -> float | None:
        """Mean loss over the supervised tokens of the held-out rows; each worker takes its share, none is taken twice.

        Not ``Trainer.evaluate``: it gathers after each batch, and hangs where one worker has a batch less.
        """
        if held is None:
            return None
        share = held.rows[self.args.process_index :: self.args.world_size]
        sums = torch.zeros(2, dtype=torch.float64)
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            for row in PackedRows(held.examples, share):
                loss, n = self.model(packed=self._prepare_inputs(collate_rows([row])))
                sums += torch.tensor([loss.item(), n], dtype=sums.dtype)
        if dist.is_initialized():
            sums = sums.to(self.args.device)
            dist.all_reduce(sums)
        return (sums[0] / sums[1].clamp(min=1)).item()


def loss_in_forward(model: torch.nn.Module, layout: dict[str, bool]) -> None:
    """Let ``model(packed=inputs)`` return the summed loss and the number of supervised tokens.

    DDP must see the forward pass that the loss comes from. It is told to leave frozen weights alone, too.
    """
    plain = model.forward

    def forward(*args, packed=None, **kwargs):
        return plain(*args, **kwargs) if packed is None else supervised_loss(model, packed, **layout)

    model.forward = forward
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model._ddp_params_and_buffers_to_ignore = [
        name for name, _ in (*model.named_parameters(), *model.named_buffers()) if name not in trained
    ]


class ReportCheckpoints(TrainerCallback):
    """Hands each checkpoint to Ray, which keeps it where a new group of workers finds it.

    Every worker reports, each with its own random state: Ray waits for all of them (ray#22182).
    """

    def on_save(self, args, state, control, **kwargs):
        """Report the checkpoint that was just written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        ray.train.report(
            {"step": state.global_step, "loss": losses[-1] if losses else None},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
        )


class Die(TrainerCallback):
    """Carries out ``KillWorker``."""

    def __init__(self, fault: KillWorker):
        self.fault = fault

    def on_step_end(self, args, state, control, **kwargs):
        """End the process, as the kernel does when memory is out."""
        if state.global_step == self.fault.step and not Path(self.fault.marker).exists():
            Path(self.fault.marker).touch()
            time.sleep(self.fault.after_seconds)
            os.kill(os.getpid(), signal.SIGKILL)


def train(settings: dict[str, Any]) -> None:
    """Train in one worker. Runs in a process of Ray's; reports checkpoints, and at last the result."""
    runtime.quiet()
    kept = ray.train.get_checkpoint()
    if kept is not None and _report_again(kept):
        return
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    config: FinetuneConfig = settings["config"]
    device = ray.train.torch.get_device()
    runtime.seed_everything(config.seed)
    precision = config.precision or precision_name(runtime.precision())
    loaded = models.load(
        config.model, quantization=config.quantization, dtype=DTYPES[precision],
        # Each worker its own GPU: "auto" would spread every copy over all of them (qlora#186).
        device_map={"": device.index or 0} if device.type == "cuda" else None,
    )  # fmt: skip
    # Made-up examples: all workers must come to the same layout, and some may hold no rows yet.
    check = use_row_layout(loaded.model, some_examples(loaded.model), check=config.self_check)
    config, _ = config.filled(parameters=models.count_parameters(loaded.model).total)
    base = dataclasses.replace(base_of(loaded), system=settings["system"])
    model = attach_adapters(loaded.model, config, fp16=precision == "fp16")
    loss_in_forward(model, check.layout)
    use_template(loaded.tokenizer, config.template)
    ends = loaded.tokenizer.convert_tokens_to_ids(list(ChatTemplate(loaded.tokenizer).ends))
    stop_at(loaded.model, loaded.tokenizer, ends)
    held = settings["held_out"] or read_held_out(config)
    _, held_rows = prepare_held_out(held, config, loaded.tokenizer)

    with tempfile.TemporaryDirectory() as scratch:
        args = training_arguments(config, precision, scratch, has_eval=False)
        args.ignore_data_skip = True  # RowsOfWorker skips
        args.ddp_find_unused_parameters = False
        args.ddp_broadcast_buffers = False
        with kept.as_directory() if kept else contextlib.nullcontext() as checkpoint:
            done = _steps_of(checkpoint)
            meter = BottleneckMeter(torch.cuda.synchronize if device.type == "cuda" else None)
            rows = RowsOfWorker(
                ray.train.get_dataset_shard("train"), rank, workers, config.per_device_train_batch_size,
                done * config.gradient_accumulation_steps, meter, settings["prefetch_batches"],
            )  # fmt: skip
            trainer = DistributedTrainer(model=model, args=args, processing_class=loaded.tokenizer, rows=rows)
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(StopOnNan())
            trainer.add_callback(ReportCheckpoints())
            fault = settings["fault"]
            if fault is not None and fault.rank == rank:
                trainer.add_callback(Die(fault))
            if not done:
                trainer.meter.loss_before = trainer.held_out_loss(held_rows)
            runtime.seed_everything(config.seed)
            trainer.train(resume_from_checkpoint=checkpoint)
        after = trainer.held_out_loss(held_rows)
        times: list[Any] = [None] * workers
        if workers > 1:
            dist.all_gather_object(times, meter.times)
        else:
            times = [meter.times]
        counted = trainer.meter
        result = {
            "losses": [(e["step"], e["loss"]) for e in trainer.state.log_history if "loss" in e],
            "loss_before": counted.loss_before,
            "loss_after": after,
            "steps": trainer.state.global_step,
            "examples": counted.examples,
            "row_sum": counted.row_sum,
            "tokens": counted.tokens,
            "supervised_tokens": counted.supervised_tokens,
            "train_seconds": counted.seconds,
            "times": [(t.waiting, t.computing) for t in times],
            "resumed_at": done,
            "precision": precision,
            "machine": str(runtime.machine()),
            "self_check": str(check),
            "learning_rate": config.learning_rate,
            "model": str(loaded),
            "versions": dict(runtime.versions()),
        }
        final = Path(scratch) / "final"
        final.mkdir()
        if rank == 0:
            save_adapter(
                model, loaded.tokenizer, final / "adapter", base, end_tokens(loaded.model, loaded.tokenizer)
            )
            (final / RESULT).write_text(json.dumps(result), encoding="utf-8")
        ray.train.report(
            {"step": trainer.state.global_step}, checkpoint=ray.train.Checkpoint.from_directory(final)
        )


def _report_again(kept: ray.train.Checkpoint) -> bool:
    """Report a finished run's last checkpoint: what died after it was the driver, or a worker on its way out."""
    with kept.as_directory() as folder:
        path = Path(folder) / RESULT
        if path.is_file():
            steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
            ray.train.report({"step": steps}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        return path.is_file()


def _steps_of(checkpoint: str | None) -> int:
    if checkpoint is None:
        return 0
    return json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
