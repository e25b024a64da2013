"""Tokens per second and memory of a QLoRA fine-tune: TRL's SFTTrainer against ours, each in a fresh process.

The same model, rows, LoRA settings and number format; the same examples per optimizer step (packing: as many as fill a
row). Prints real tokens (no padding) and supervised tokens per second, peak resident memory, the ratios, and the share
of this machine's fp32 matrix rate at 4 FLOP per body parameter and token (2 forward, 2 for the gradient of the
activations; frozen weights need no gradient of their own).

    pip install -c constraints.txt -e ".[bench]"
    python tests/benchmarks/finetune.py --steps 6
"""

from __future__ import annotations

import contextlib
import io
import resource
import tempfile
import time

from variants import measure

MODEL, BATCH, MAX_LENGTH, R, ALPHA = "smollm2-135m", 8, 512, 16, 32
VARIANTS = (
    "trl, its defaults",
    "trl, no checkpointing",
    "trl, packing",
    "ours, same examples a step",
    "ours, packing",
)


def rows():
    from onegpu import data
    from onegpu.qlora_finetune import triage_example

    return [triage_example(row) for row in data.rows("support_triage", "train")]


def run_trl(variant: str, steps: int) -> dict:
    from datasets import Dataset
    from onegpu import models
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    loaded = models.load(MODEL, quantization="nf4")
    prompts = [
        {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows()
    ]  # the form for which TRL supervises the completion alone
    packing = variant == "trl, packing"
    options = {} if variant == "trl, its defaults" else {"gradient_checkpointing": False}
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=1 if packing else BATCH,
            max_length=MAX_LENGTH, packing=packing, learning_rate=1e-4, logging_steps=1, report_to="none",
            save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, **options,
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
    from onegpu.packed_training.attention import use_packed_attention
    from onegpu.qlora_finetune import FinetuneConfig, attach_adapters, prepare_data
    from onegpu.qlora_finetune.trainer import QLoraTrainer, training_arguments

    packing = variant == "ours, packing"
    with tempfile.TemporaryDirectory() as folder:
        config = FinetuneConfig(
            model=MODEL, max_steps=steps, packing=packing, per_device_train_batch_size=1 if packing else BATCH,
            max_length=MAX_LENGTH, lora_r=R, lora_alpha=ALPHA, learning_rate=1e-4, save_steps=10**6, output_dir=folder,
        )  # fmt: skip
        loaded = models.load(MODEL, quantization="nf4")
        prepared = prepare_data(config, loaded.tokenizer)
        use_packed_attention(loaded.model)
        trainer = QLoraTrainer(
            model=attach_adapters(loaded.model, config), args=training_arguments(config, "fp32", folder, False),
            train_dataset=prepared.train_rows,
        )  # fmt: skip
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


def gemm_rate() -> float:
    """FLOP/s of fp32 matrix products of the size of this model's."""
    import torch

    a, b = torch.randn(1024, 576), torch.randn(1536, 576)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        a @ b.t()
        best = min(best, time.perf_counter() - start)
    return 2 * a.shape[0] * b.numel() / best


def main() -> None:
    results = measure(
        __file__,
        __doc__,
        VARIANTS,
        lambda variant, steps: (run_trl if variant.startswith("trl") else run_ours)(variant, steps),
    )
    from onegpu import models

    body = 106_168_320  # linear weights of SmolLM2-135M without embeddings and head
    assert models.find(MODEL).parameters == 134_515_008
    rate = gemm_rate()
    base = next(iter(results.values()))["tokens_per_second"]
    print(f"{'':<28}{'tokens/s':>9}{'superv./s':>10}{'peak MiB':>9}{'x first':>8}{'of GEMM':>8}{'loss 1':>8}")
    for name, r in results.items():
        share = r["tokens_per_second"] * 4 * body / rate
        print(
            f"{name:<28}{r['tokens_per_second']:>9.0f}{r['supervised_per_second']:>10.0f}{r['peak_rss_mib']:>9.0f}"
            f"{r['tokens_per_second'] / base:>8.2f}{share:>8.0%}{r['first_loss']:>8.3f}"
        )
    print(f"fp32 matrix rate here: {rate / 1e9:.0f} GFLOP/s, so at most {rate / 4 / body:.0f} tokens/s")


if __name__ == "__main__":
    main()
