"""``finetune_distributed``: the fine-tune of topic 07 on several workers, with Ray Train and Ray Data.

The driver reads where the rows are, counts them once (which also finds bad rows before a GPU is kept waiting), lays out
the run, and hands both to Ray: a data set of packed rows, split among the workers, and a function that each worker runs.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onegpu import data, models
from onegpu.ray_scale_out.bottleneck import StepTimes
from onegpu.ray_scale_out.cluster import data_cpus, free_cpus, local_ray, require_ray, worker_resources
from onegpu.ray_scale_out.handover import RESULT, KillWorker
from onegpu.ray_scale_out.layout import StreamCounts, schedule
from onegpu.ray_scale_out.pipeline import Recipe, count_and_split, count_rows, packed_dataset
from onegpu.ray_scale_out.window import WINDOW_ROWS, Window, rows_or_errors, windows
from onegpu.sft_datasets.readers import rename

if TYPE_CHECKING:
    from onegpu.qlora_finetune import FinetuneConfig


@dataclass(frozen=True)
class DistributedResult:
    """Result of a distributed fine-tune.

    Attributes
    ----------
    workers, steps : int
    losses : tuple of (int, float)
        Step and mean loss over the supervised tokens of all workers.
    loss_before, loss_after : float or None
        Held-out loss; None without held-out rows.
    examples, row_sum : int
        Examples trained on over all epochs, and the sum of their row numbers: equal sums, equal rows.
    tokens, supervised_tokens : int
        In them.
    train_seconds : float
    times : tuple of StepTimes
        For each worker, of its last session: waiting for data and computing. Waiting for the other workers' gradients
        counts as computing.
    resumed_at : int
        Step from which the last group of workers went on; 0 if none had to be started anew.
    counts : StreamCounts
        Of the data.
    adapter_dir : str
    model, precision, machine : str
    self_check : str
        What the check in numbers before the first step found (``onegpu.packed_training.self_check``).
    versions, config : dict
    """

    workers: int
    steps: int
    losses: tuple[tuple[int, float], ...]
    loss_before: float | None
    loss_after: float | None
    examples: int
    row_sum: int
    tokens: int
    supervised_tokens: int
    train_seconds: float
    times: tuple[StepTimes, ...]
    resumed_at: int
    counts: StreamCounts
    adapter_dir: str
    model: str
    precision: str
    machine: str
    self_check: str
    versions: dict[str, str]
    config: dict[str, Any]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all workers per second of training."""
        return self.tokens / self.train_seconds if self.train_seconds else 0.0

    @property
    def share_waiting(self) -> float:
        """Share of the workers' time that was spent waiting for data."""
        waited = sum(sum(t.waiting) for t in self.times)
        return waited / max(1e-9, sum(t.seconds for t in self.times))

    def __str__(self) -> str:
        out = [
            f"model     {self.model}, {self.precision}",
            f"workers   {self.workers}"
            + (f", started anew from step {self.resumed_at}" if self.resumed_at else ""),
            f"data      {self.counts}",
            f"trained   {self.steps} steps, {self.examples:,} examples, {self.tokens:,} tokens in "
            f"{self.train_seconds:,.1f} s: {self.tokens_per_second:,.0f} tokens/s, {self.share_waiting:.0%} waiting for data",
            f"loss      {self.losses[0][1]:.3f} at step {self.losses[0][0]}, {self.losses[-1][1]:.3f} at step "
            f"{self.losses[-1][0]}",
        ]
        if self.loss_before is not None:
            out.append(f"held out  {self.loss_before:.3f} before, {self.loss_after:.3f} after")
        return "\n".join([*out, f"adapter   {self.adapter_dir}"])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def finetune_distributed(
    config: FinetuneConfig | None = None,
    num_workers: int = 2,
    use_gpu: bool = False,
    address: str | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    window_rows: int = WINDOW_ROWS,
    prefetch_batches: int = 2,
    max_failures: int = 2,
    dashboard: bool = False,
    fault: KillWorker | None = None,
    say: Callable[[str], None] | None = None,
) -> DistributedResult:
    """Fine-tune with QLoRA on several workers.

    ``per_device_train_batch_size`` and ``gradient_accumulation_steps`` of the config are a worker's: the effective batch
    is ``num_workers`` times as large, and losses are those of one process with that batch.

    Parameters
    ----------
    config
        As for ``onegpu.qlora_finetune.finetune``. The defaults are the shipped task on SmolLM2-135M.
    num_workers
        Training workers.
    use_gpu
        One GPU a worker, gradients over nccl; else CPUs and gloo.
    address
        Of a Ray cluster. None: a Ray is started on this machine and stopped at the end. If this process is connected
        to a Ray already, that one is used and stays. On a cluster, ``config.output_dir`` and a data file must be on a
        disk that all machines see.
    resume
        Go on from the newest checkpoint in ``output_dir``, after the driver itself died (a killed kernel, a lost Colab
        session). Ask for the same workers, rows and window_rows. On Linux a Ray that was started here dies with the
        driver and nothing need be done; elsewhere end it with ``ray stop`` first. A cluster at an address ends the dead
        driver's workers itself.
    overwrite
        Throw away what an earlier run left in ``output_dir``.
    window_rows
        Rows that are read, tokenized and packed together (``pipeline``). Fewer than topic 07 packs together (all), so
        a little more room stays empty, and the stream needs no more memory however long it is.
    prefetch_batches
        Batches that are ready before a worker asks.
    max_failures
        How often the workers are started anew, from the last checkpoint, after one of them died.
    dashboard
        Start Ray's dashboard and say its address (``local_ray``).
    fault
        ``handover.KillWorker``, to see a worker die.
    say
        Gets one line at each stage (for instance ``print``).

    Returns
    -------
    DistributedResult
        Prints as a short report.

    Raises
    ------
    RayMissing
        If Ray isn't installed.
    ValueError
        For what can't work in config, data or folder; ``NotEnoughResources`` for more workers than CPUs or GPUs. All
        before training starts.
    RuntimeError
        When the workers failed more often than ``max_failures``; the message holds the first reason.
    """
    require_ray()
    from onegpu.qlora_finetune import FinetuneConfig
    from onegpu.qlora_finetune.adapters import start_from
    from onegpu.qlora_finetune.folders import (
        check_fingerprints,
        check_output_dir,
        nothing_left,
        start_output_dir,
        write_bad_rows,
        write_json,
    )
    from onegpu.qlora_finetune.lock import only_process

    config = config or FinetuneConfig()
    if config.method != "sft":
        raise ValueError(
            f"method {config.method!r} works in one process only, onegpu.qlora_finetune.finetune: set it to 'sft'"
        )
    if config.eval_steps is not None:
        raise ValueError(
            "eval_steps (and early stopping) work in one process only, onegpu.qlora_finetune.finetune: set it to None"
        )
    say = say or (lambda line: None)
    folder = Path(config.output_dir).resolve()
    with contextlib.ExitStack() as held:
        cluster = held.enter_context(local_ray(address=address, dashboard=dashboard))
        say(str(cluster))
        free = free_cpus(cluster.cpus)
        resources = worker_resources(num_workers, use_gpu, cluster.cpus, cluster.gpus, free)
        held.enter_context(nothing_left(folder))
        check_output_dir(config, resume, overwrite)
        held.enter_context(only_process(folder))
        if resume and (folder / "report.json").is_file():
            raise ValueError(f"{folder}: the run there is finished; there is nothing to resume")
        asked, config = config, start_from(config, None, say)
        planned = _plan(config, num_workers, window_rows, data_cpus(free), say)
        config, counts, dataset, steps, held_out, reasons, bad_rows = planned
        for reason in reasons:
            say(f"default: {reason}")
        fingerprints = _fingerprints(config, counts)
        if not resume:
            start_output_dir(asked, fingerprints)
        write_bad_rows(folder, bad_rows)
        _same_layout(folder, resume, num_workers, window_rows, counts)
        if resume:
            check_fingerprints(folder, fingerprints, say)
        say(str(counts))
        if resume:
            say(f"going on from step {newest_step(folder)}")
        say(f"training, {steps} steps on {num_workers} workers")
        raw = _fit(
            dataclasses.replace(config, max_steps=steps), dataset, num_workers, use_gpu, resources, folder,
            {
                "fault": fault, "prefetch_batches": prefetch_batches, "held_out": held_out, "system": counts.system,
            }, max_failures,
        )  # fmt: skip
        result = _result(raw, num_workers, counts, folder, config)
        (folder / "adapter" / "README.md").write_text(_card(result, folder / "adapter"), encoding="utf-8")
        write_json(folder / "report.json", dataclasses.asdict(result))
    return result


def _fingerprints(config: FinetuneConfig, counts: StreamCounts) -> dict[str, Any]:
    from onegpu import runtime
    from onegpu.qlora_finetune.adapters import adapter_folder
    from onegpu.qlora_finetune.bases import fingerprint

    return {
        "rows": counts.fingerprint, "weights": fingerprint(models.fetch(config.model).folder),
        "versions": dict(runtime.versions()),
        "adapter": fingerprint(adapter_folder(config.adapter)) if config.adapter else "",
    }  # fmt: skip


def _card(result: DistributedResult, adapter_dir: Path) -> str:
    """The model card of a single run, with what this one knows."""
    from onegpu.qlora_finetune import FinetuneResult, Scores
    from onegpu.qlora_finetune.bases import read_base
    from onegpu.qlora_finetune.card import model_card

    alike = {
        f.name: getattr(result, f.name)
        for f in dataclasses.fields(FinetuneResult)
        if f.name in {f.name for f in dataclasses.fields(result)}
    }
    single = FinetuneResult(
        **alike | {"machine": f"{result.workers} workers, each {result.machine}"},
        before=Scores(result.loss_before), after=Scores(result.loss_after), samples=(), eval_losses=(), skipped_steps=(),
        peak_memory_bytes=0, dropped_rows={}, weights={},
    )  # fmt: skip
    base = read_base(adapter_dir)
    assert base is not None
    return model_card(single, base)


def _same_layout(folder: Path, resume: bool, workers: int, window_rows: int, counts: StreamCounts) -> None:
    """Note what decides which row comes when; refuse to go on with another: rows would be lost or trained twice."""
    from onegpu.qlora_finetune.folders import write_json

    now = {
        "num_workers": workers,
        "window_rows": window_rows,
        "rows": counts.kept,
        "tokens": counts.tokens,
        "packed_rows": sum(counts.packed),
    }
    path = folder / "layout.json"
    if resume and path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            f"{name} {before[name]}, now {value}" for name, value in now.items() if before[name] != value
        ]
        if changed:
            raise ValueError(
                f"{folder} was started with another layout ({'; '.join(changed)}): rows would be lost or trained twice. "
                "Resume it with the same workers, data and window_rows, or choose another output_dir"
            )
    write_json(path, now)


def newest_step(folder: str | Path) -> int:
    """Return the step of the newest checkpoint in an output folder that Ray has seen; 0 without one."""
    try:
        seen = json.loads(
            (Path(folder) / "ray" / "checkpoint_manager_snapshot.json").read_text(encoding="utf-8")
        )
        return int(seen["latest_checkpoint_result"]["metrics"]["step"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0


@dataclass(frozen=True)
class Source:
    """Training rows, several sources one after the other.

    Attributes
    ----------
    rows
        The rows, or the path of a JSONL file, which needn't be read whole.
    names : tuple of str
    starts : tuple of int
        Number of each source's first row.
    """

    rows: str | list[dict[str, Any]]
    names: tuple[str, ...]
    starts: tuple[int, ...]

    def place(self, number: int) -> tuple[str, int]:
        """Return the source of a row and its number there."""
        at = bisect.bisect_right(self.starts, number) - 1
        return self.names[at], number - self.starts[at]

    def places(self, problems: Iterable[tuple[int, str]]) -> list[tuple[str, int, str]]:
        """Return the source, the number there and the problem of rows; a problem begins with its row's number."""
        placed = [(number, *self.place(number), said) for number, said in problems]
        return [(name, n, said.replace(f"row {number}", f"row {n}", 1)) for number, name, n, said in placed]


def source_of(config: FinetuneConfig) -> Source:
    """Return the training rows of a config."""
    from onegpu.qlora_finetune.rows import read_examples

    if isinstance(config.data, str) and data.is_lines(Path(config.data)):
        return Source(config.data, (config.data,), (0,))
    examples = read_examples(config)
    names, sizes = zip(*examples.sources, strict=True)
    return Source(examples.train, names, tuple(itertools.accumulate(sizes[:-1], initial=0)))


def recipe_of(config: FinetuneConfig) -> Recipe:
    """Return how the rows of a config are made, as ``finetune`` makes them."""
    from onegpu.qlora_finetune.config import MAX_LENGTHS
    from onegpu.qlora_finetune.rows import use_template
    from onegpu.qlora_finetune.run import generation_config_of, stop_ids

    tokenizer = models.load_tokenizer(config.model)
    stops = tokenizer.convert_ids_to_tokens(stop_ids(tokenizer, generation_config_of(config.model)))
    use_template(tokenizer, config.template)
    streams = isinstance(config.data, str) and data.is_lines(Path(config.data))  # else the rows come renamed
    return Recipe(
        tokenizer, config.max_length or MAX_LENGTHS[-1], config.packing, config.bad_rows, config.seed, config.turns, config.truncation,
        config.repairs, tuple(stops), config.columns if streams else None,
    )  # fmt: skip


def split_windows(
    source: Source,
    found: Sequence[Window],
    recipe: Recipe,
    config: FinetuneConfig,
    say: Callable[[str], None],
    **how: Any,
) -> tuple[StreamCounts, Recipe, list[dict[str, Any]]]:
    """Count a source's windows and leave out what ``finetune`` would: counts and recipe of the rest, and held-out rows.

    No rows are held out here where the config names some.
    """
    from onegpu.qlora_finetune.rows import choose_held_out, choose_shares, held_out_source

    splits = held_out_source(config) is None and config.eval_share > 0
    if not splits and config.data_shares is None:
        return count_rows(found, recipe, **how), recipe, []
    notes: list[str] = []
    held_out: set[int] = set()

    def choose(rows: Sequence[tuple[int, int]]) -> frozenset[int]:
        if splits:
            chosen = choose_held_out([(question, 0, number) for question, number in rows], config, notes)
            held_out.update(number for _, number in chosen)
        if config.data_shares is None:
            return frozenset(held_out)
        rest = np.array(sorted(number for _, number in rows if number not in held_out), dtype=np.int64)
        parts = np.split(rest, np.searchsorted(rest, source.starts[1:]))
        sizes = [(name, len(part)) for name, part in zip(source.names, parts, strict=True)]
        taken = choose_shares(sizes, config, notes)
        over = [np.delete(part, places) for part, places in zip(parts, taken, strict=True)]
        return frozenset(held_out).union(*(part.tolist() for part in over))

    counts, recipe = count_and_split(found, recipe, choose, **how)
    for note in notes:
        say(note)
    held = [
        rename(row, recipe.columns or {}, number, "the rows")
        for window in found
        if any(n in held_out for n in range(window.first_row, window.first_row + window.rows))
        for number, row in rows_or_errors(window)
        if number in held_out
    ]
    return counts, recipe, held


def _plan(config, num_workers, window_rows, num_cpus, say):
    from onegpu.qlora_finetune.run import positions_of

    source = source_of(config)
    found = windows(source.rows, window_rows)
    counts, recipe, held = split_windows(source, found, recipe_of(config), config, say, num_cpus=num_cpus)
    config, reasons = config.filled(
        longest=counts.longest, positions=positions_of(config.model), rows=counts.kept
    )
    if config.max_length != recipe.max_length:  # rows pack otherwise, and others may fit
        recipe = dataclasses.replace(recipe, max_length=config.max_length)
        counts = count_rows(found, recipe, num_cpus=num_cpus)
    placed, steps = schedule(
        found, counts, workers=num_workers, batch_size=config.per_device_train_batch_size,
        accumulation=config.gradient_accumulation_steps, epochs=config.num_train_epochs, max_steps=config.max_steps,
        seed=config.seed,
    )  # fmt: skip
    bad = source.places(counts.bad_rows)
    bad += _held_out_bad_rows(config, recipe.tokenizer)
    return config, counts, packed_dataset(placed, recipe, num_cpus=num_cpus), steps, held, reasons, bad


def _held_out_bad_rows(config: FinetuneConfig, tokenizer: Any) -> list[tuple[str, int, str]]:
    """Find held-out rows that can't be used before workers are started, in the sources that the config names."""
    from onegpu.qlora_finetune.rows import held_out_source, prepare_held_out, read_held_out, sources_of

    found = []
    for name in sources_of(held_out_source(config) or ()):
        try:
            rows = read_held_out(dataclasses.replace(config, eval_data=name))
            held, _ = prepare_held_out(rows, config, tokenizer)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        found += [(name, number, said) for number, said in (held.bad_rows if held else ())]
    return found


def train_worker(settings: dict[str, Any]) -> None:
    """Run a worker. Ray's controller imports the module that this function is in, and needs nothing of ``worker``."""
    from onegpu.ray_scale_out.worker import train

    train(settings)


def _fit(config, dataset, num_workers, use_gpu, resources, folder, settings, max_failures) -> dict[str, Any]:
    import ray.data
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"config": config} | settings,
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=num_workers, use_gpu=use_gpu, resources_per_worker=resources
        ),
        run_config=ray.train.RunConfig(
            name="ray",
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=config.save_total_limit),
        ),
        datasets={"train": dataset},
        dataset_config=ray.train.DataConfig(
            execution_options=ray.data.ExecutionOptions(preserve_order=True), enable_shard_locality=False
        ),
    )
    try:
        fitted = trainer.fit()
    except ray.train.TrainingFailedError as error:
        reasons = getattr(error, "worker_failures", None) or {0: error}
        rank, first = next(iter(reasons.items()))
        said = str(first).strip().splitlines() or [type(first).__name__]
        raise RuntimeError(
            f"training failed in worker {rank}, {max_failures} new starts did not help: {said[-1]}"
        ) from error
    with fitted.checkpoint.as_directory() as final:
        shutil.rmtree(folder / "adapter", ignore_errors=True)
        shutil.copytree(Path(final) / "adapter", folder / "adapter")
        return json.loads((Path(final) / RESULT).read_text(encoding="utf-8"))


def _result(raw, num_workers, counts, folder, config) -> DistributedResult:
    raw = dict(raw)
    times = tuple(StepTimes(tuple(w), tuple(c)) for w, c in raw.pop("times"))
    config = dataclasses.replace(config, learning_rate=raw.pop("learning_rate"))
    return DistributedResult(
        workers=num_workers,
        losses=tuple((int(step), float(loss)) for step, loss in raw.pop("losses")),
        times=times,
        counts=counts,
        adapter_dir=str(folder / "adapter"),
        config=dataclasses.asdict(config),
        **raw,
    )
