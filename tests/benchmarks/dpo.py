"""Pairs and tokens per second of DPO on the shipped rankings: TRL's DPOTrainer against ours, each in a fresh process.

The same model in NF4, the same pairs, LoRA settings, number format and pairs a step (ours packs them: as many as fill
a row, each prompt once). Prints pairs, tokens (of both sides with their prompts, no padding) and the losses of the
first two steps: ln 2 first, since policy and reference are one. Ours asks the reference when a pair comes for the
first time and keeps its answer, so the first epoch and later ones are timed apart. The rates are also given per second
of processor time (torch's threads together), which a machine that is busy with other things disturbs less. TRL asks in
each step, or for all pairs before the first one (the time for that is not in its rate, and printed).

    pip install -c constraints.txt -e ".[bench]"
    python tests/benchmarks/dpo.py --steps 6
"""

from __future__ import annotations

import contextlib
import io
import resource
import tempfile
import time

from finetune import ALPHA, MODEL, R
from variants import measure

BATCH, MAX_LENGTH, RATE = 4, 512, 1e-4
VARIANTS = ("trl, its defaults", "trl, no checkpointing", "trl, reference before", "ours")


def run_trl(variant: str, steps: int) -> dict[str, dict]:
    from datasets import Dataset
    from onegpu import models
    from onegpu.preference_data import read_preferences
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    loaded = models.load(MODEL, quantization="nf4")

    def turn(role, text):
        return [{"role": role, "content": text}]

    pairs = [
        {
            "prompt": turn("user", p.prompt),
            "chosen": turn("assistant", p.chosen),
            "rejected": turn("assistant", p.rejected),
        }
        for p in read_preferences("rankings")
    ]
    if variant == "trl, reference before":
        pairs = pairs[:: len(pairs) // (BATCH * steps)][: BATCH * steps]  # only those that are trained on
    options = {} if variant == "trl, its defaults" else {"gradient_checkpointing": False}
    with tempfile.TemporaryDirectory() as folder:
        args = DPOConfig(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=BATCH, max_length=MAX_LENGTH,
            learning_rate=RATE, logging_steps=1, report_to="none", save_strategy="no", use_cpu=True, bf16=False,
            disable_tqdm=True, warmup_steps=0, precompute_ref_log_probs=variant == "trl, reference before", **options,
        )  # fmt: skip
        start = time.perf_counter()
        trainer = DPOTrainer(
            loaded.model, args=args, train_dataset=Dataset.from_list(pairs), processing_class=loaded.tokenizer,
            peft_config=LoraConfig(r=R, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
        )  # fmt: skip
        built = time.perf_counter() - start
        found = timed(
            trainer, lambda batch: (len(batch["input_ids"]) // 2, int(batch["attention_mask"].sum())), steps
        )
        return {variant: found["all"] | {"before": built if args.precompute_ref_log_probs else 0.0}}


def run_ours(variant: str, steps: int) -> dict[str, dict]:
    from onegpu import models
    from onegpu.packed_training.attention import use_packed_attention
    from onegpu.qlora_finetune import FinetuneConfig, attach_adapters, prepare_data
    from onegpu.qlora_finetune.preferences import PairRows, PreferenceTrainer
    from onegpu.qlora_finetune.trainer import training_arguments

    with tempfile.TemporaryDirectory() as folder:
        config = FinetuneConfig(
            method="dpo", model=MODEL, max_steps=2 * steps, max_length=MAX_LENGTH, lora_r=R, lora_alpha=ALPHA,
            learning_rate=RATE, save_steps=10**6, output_dir=folder, warmup_steps=0,
        )  # fmt: skip
        loaded = models.load(MODEL, quantization="nf4")
        rows = prepare_data(config, loaded.tokenizer).train_rows
        use_packed_attention(loaded.model)
        some = PairRows(rows.examples, rows.rows[:: len(rows) // steps][:steps])
        trainer = PreferenceTrainer(
            model=attach_adapters(loaded.model, config), train_dataset=some, beta=config.beta,
            args=training_arguments(config, "fp32", folder, False),
        )  # fmt: skip
        found = timed(
            trainer,
            lambda batch: (len(batch["pairs"]), batch["input_ids"].numel() + sum(batch["prefix_lens"])),
            steps,
        )
        return {"ours, first epoch": found["all"], "ours, later epochs": found["later"]}


def timed(trainer, count, steps: int) -> dict[str, dict]:
    """Train, timing the steps after the first (which warms up), and those after ``steps`` apart."""
    seen, marks = [], []
    step = trainer.training_step

    def training_step(model, inputs, *args, **kwargs):
        seen.append(count(inputs))
        marks.append((time.perf_counter(), time.process_time()))
        return step(model, inputs, *args, **kwargs)

    trainer.training_step = training_step
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    marks.append((time.perf_counter(), time.process_time()))
    losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    found = {}
    for name, (first, last) in {"all": (1, steps), "later": (steps, len(seen))}.items():
        seconds, busy = (b - a for a, b in zip(marks[first], marks[last], strict=True))
        pairs, tokens = (sum(column[first:last]) for column in zip(*seen, strict=True))
        found[name] = {
            "pairs": pairs / seconds if seconds else 0.0,
            "pairs_busy": pairs / busy if busy else 0.0,
            "tokens": tokens / seconds if seconds else 0.0,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "losses": losses[first - 1 : first + 1],
            "before": 0.0,
        }
    return found


def main() -> None:
    found = measure(
        __file__,
        __doc__,
        VARIANTS,
        lambda variant, steps: (run_trl if variant.startswith("trl") else run_ours)(variant, steps),
    )
    results = {name: one for several in found.values() for name, one in several.items()}
    first = next(iter(results.values()))
    heads = ("pairs/s", "x first", "per CPU s", "x first", "tokens/s", "peak MiB", "before")
    print(f"{'':<24}" + "".join(f"{head:>10}" for head in heads) + "  losses")
    for name, r in results.items():
        rates = "".join(
            f"{r[key]:>10.2f}{r[key] / first[key] if first[key] else 0:>10.2f}"
            for key in ("pairs", "pairs_busy")
        )
        losses = ", ".join(f"{loss:.4f}" for loss in r["losses"])
        print(f"{name:<24}{rates}{r['tokens']:>10.0f}{r['peak_mib']:>10.0f}{r['before']:>8.0f} s  {losses}")


if __name__ == "__main__":
    main()
