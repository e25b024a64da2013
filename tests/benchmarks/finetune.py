"""Tokens per second and memory of a QLoRA fine-tune: TRL's SFTTrainer against ours, each in a fresh process.

The same model, rows and LoRA settings; the same examples per optimizer step (packing: as many as fill a row); TRL as it
comes (bf16, with checkpointing) and in fp32, ours in both. Prints real tokens (no padding) and supervised tokens per
second, peak resident memory, the ratios to TRL's default and to its packing (each in bf16), and the share of the rate
at which this machine multiplies large matrices of the same format, at 4 FLOP per body parameter and token (2 forward,
2 for the gradient of the activations; frozen weights need no gradient of their own).

    pip install -c constraints.txt -e ".[bench]"
    python tests/benchmarks/finetune.py                       # four minutes on two cores; --steps 10 for steadier figures
    python tests/benchmarks/finetune.py --only whole default  # `onegpu finetune` from start to end beside TRL's training
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from variants import measure

MODEL, BATCH, MAX_LENGTH, R, ALPHA = "smollm2-135m", 8, 512, 16, 32
DEFAULT, PACKING, WHOLE = "trl bf16, its default", "trl bf16, packing", "ours, whole run"
VARIANTS = (
    DEFAULT,
    "trl bf16, no checkpointing",
    PACKING,
    "trl fp32, default otherwise",
    "trl fp32, packing",
    "ours bf16, same examples",
    "ours bf16, packing",
    "ours fp32, same examples",
    "ours fp32, packing",
)
BODY = 106_168_320
"""Linear weights of SmolLM2-135M without embeddings and head."""


def precision_of(variant: str) -> str:
    return variant.split(",", maxsplit=1)[0].split()[1]


def rows():
    from onegpu import data
    from onegpu.qlora_finetune import triage_example

    return [triage_example(row) for row in data.rows("support_triage", "train")]


def run_trl(variant: str, steps: int) -> dict:
    from datasets import Dataset
    from onegpu import models
    from onegpu.qlora_finetune.run import DTYPES
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    precision = precision_of(variant)
    loaded = models.load(MODEL, quantization="nf4", dtype=DTYPES[precision])
    prompts = [
        {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows()
    ]  # the form for which TRL supervises the completion alone
    packing = "packing" in variant
    options = {} if "default" in variant else {"gradient_checkpointing": False}
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=1 if packing else BATCH,
            max_length=MAX_LENGTH, packing=packing, learning_rate=1e-4, logging_steps=1, report_to="none",
            save_strategy="no", use_cpu=True, bf16=precision == "bf16", disable_tqdm=True, **options,
        )  # fmt: skip
        trainer = SFTTrainer(
            loaded.model, args=args, train_dataset=Dataset.from_list(prompts), processing_class=loaded.tokenizer,
            peft_config=LoraConfig(r=R, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
        )  # fmt: skip
        return timed(
            trainer,
            lambda batch: (
                int(batch["attention_mask"].sum())
                if "attention_mask" in batch
                else batch["input_ids"].numel()
            ),
        )


def run_ours(variant: str, steps: int) -> dict:
    from onegpu import models
    from onegpu.packed_training.self_check import use_row_layout
    from onegpu.qlora_finetune import FinetuneConfig, attach_adapters, prepare_data
    from onegpu.qlora_finetune.run import DTYPES
    from onegpu.qlora_finetune.trainer import QLoraTrainer, training_arguments

    packing, precision = "packing" in variant, precision_of(variant)
    with tempfile.TemporaryDirectory() as folder:
        config = FinetuneConfig(
            model=MODEL, max_steps=steps, packing=packing, per_device_train_batch_size=1 if packing else BATCH,
            max_length=MAX_LENGTH, lora_r=R, lora_alpha=ALPHA, learning_rate=1e-4, save_steps=10**6, output_dir=folder,
        )  # fmt: skip
        loaded = models.load(MODEL, quantization="nf4", dtype=DTYPES[precision])
        prepared = prepare_data(config, loaded.tokenizer)
        layout = use_row_layout(loaded.model, prepared.train_rows.most_examples()).layout
        trainer = QLoraTrainer(
            model=attach_adapters(loaded.model, config), args=training_arguments(config, precision, folder, False),
            train_dataset=prepared.train_rows,
        )  # fmt: skip
        trainer.layout = layout
        return timed(trainer, lambda batch: batch["input_ids"].numel())


def timed(trainer, count) -> dict:
    """Train, timing each step after the first (which warms up)."""
    seen, marks = [], []
    step = trainer.training_step

    def training_step(model, inputs, *args, **kwargs):
        seen.append((count(inputs), int((inputs["labels"] != -100).sum())))
        marks.append(time.perf_counter())
        return step(model, inputs, *args, **kwargs)

    trainer.training_step = training_step
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    seconds = time.perf_counter() - marks[1]
    tokens, supervised = (sum(column) for column in zip(*seen[1:], strict=True))
    return {
        "tokens_per_second": tokens / seconds,
        "supervised_per_second": supervised / seconds,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "first_loss": next(e["loss"] for e in trainer.state.log_history if "loss" in e),
    }


def run_whole() -> dict:
    """`onegpu finetune` on the shipped task with a fresh cache of rows: seconds from start to end, and its report's."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "onegpu.cli", "finetune", "--output-dir", f"{folder}/run"]
        start = time.perf_counter()
        subprocess.run(
            command, env=os.environ | {"ONEGPU_CACHE": f"{folder}/cache"}, check=True, stdout=sys.stderr
        )
        seconds = time.perf_counter() - start
        report = json.loads(Path(folder, "run", "report.json").read_text(encoding="utf-8"))
    names = ("tokens", "train_seconds", "peak_memory_bytes", "precision")
    return {"seconds": seconds, **{name: report[name] for name in names}}


def matrix_rate(precision: str) -> float:
    """FLOP/s of the fastest large matrix product of a format, as our training multiplies."""
    import torch
    from onegpu.qlora_finetune.run import DTYPES
    from onegpu.runtime import onednn_matmul

    best = 0.0
    for rows, inner, columns in ((1024, 576, 1536), (1024, 1024, 1024), (2048, 2048, 2048)):
        a, b = (torch.randn(n, inner).to(DTYPES[precision]) for n in (rows, columns))
        with onednn_matmul():
            for _ in range(10):
                start = time.perf_counter()
                a @ b.t()
                best = max(best, 2 * rows * inner * columns / (time.perf_counter() - start))
    return best


def run(variant: str, steps: int) -> dict:
    if variant == WHOLE:
        return run_whole()
    return (run_trl if variant.startswith("trl") else run_ours)(variant, steps)


def main() -> None:
    results = measure(__file__, __doc__, VARIANTS, run, on_request=[WHOLE])
    from onegpu import models

    assert models.find(MODEL).parameters == 134_515_008
    rates = {precision: matrix_rate(precision) for precision in ("fp32", "bf16")}
    whole = results.pop(WHOLE, None)
    against = {name: results[name]["tokens_per_second"] for name in (DEFAULT, PACKING) if name in results}
    print(
        f"{'':<28}{'tokens/s':>9}{'superv./s':>10}{'peak MiB':>9}{'x default':>10}{'x packing':>10}{'of rate':>8}{'loss 1':>8}"
    )
    for name, r in results.items():
        rate = r["tokens_per_second"]
        times = "".join(
            f"{rate / against[n]:>10.2f}" if n in against else f"{'':>10}" for n in (DEFAULT, PACKING)
        )
        print(
            f"{name:<28}{rate:>9.0f}{r['supervised_per_second']:>10.0f}{r['peak_rss_mib']:>9.0f}{times}"
            f"{rate * 4 * BODY / rates[precision_of(name)]:>8.0%}{r['first_loss']:>8.3f}"
        )
    for precision, rate in rates.items():
        print(
            f"{precision} matrix rate here: {rate / 1e9:.0f} GFLOP/s, so at most {rate / 4 / BODY:.0f} tokens/s"
        )
    if whole:
        print(
            f"onegpu finetune from start to end ({whole['precision']}): {whole['seconds']:.0f} s, of it training "
            f"{whole['train_seconds']:.0f} s for {whole['tokens']:,} tokens; peak {whole['peak_memory_bytes'] / 2**20:,.0f} MiB"
        )
        for name, rate in against.items():
            trl = whole["tokens"] / rate
            print(
                f"{name} would train these tokens in {trl:.0f} s, without any evaluation: {trl / whole['seconds']:.2f} times"
            )


if __name__ == "__main__":
    main()
