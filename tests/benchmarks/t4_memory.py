"""Peak memory on a T4, simulated: TRL's SFTTrainer with its defaults against our recipe, effective batch 16.

Both are run on tensors without data, with the CUDA allocator replayed (``onegpu.gpu_memory.simulated``): NF4 base, LoRA
of rank 16 on all linear layers, fp16, gradient checkpointing. TRL's defaults are micro-batches of 8 rows; ours are one
packed row at a time. Newer TRL (1.16) computes its logits in chunks too; "full logits" is transformers' Trainer, and
TRL before that.

    python tests/benchmarks/t4_memory.py
"""

from __future__ import annotations

import argparse

MODELS = ("qwen2.5-1.5b", "llama-3.2-1b")
LENGTHS = (1024, 2048)
EFFECTIVE_BATCH = 16
COMMON = {"method": "qlora", "gpu": "T4", "lora_r": 16, "lora_alpha": 32, "target_modules": "all-linear",
          "gradient_checkpointing": True}  # fmt: skip


def variants(length: int) -> dict[str, dict]:
    def rows(batch_size: int) -> dict:
        return {
            "per_device_train_batch_size": batch_size,
            "gradient_accumulation_steps": min(2, EFFECTIVE_BATCH // batch_size), "max_length": length,
        }  # fmt: skip

    trainer = {"loop": "trainer", "mixed_precision": "fp16"}
    trl = {"loop": "trl", "dtype": "fp16"}
    return {
        "full logits, 8 rows": rows(8) | trainer,
        "trl 1.16, 8 rows": rows(8) | trl,
        "trl 1.16, 1 row": rows(1) | trl,
        "ours, 1 packed row": rows(1) | {"loop": "onegpu"},
    }


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    from onegpu.gpu_memory.simulated import library_versions, simulated
    from onegpu.models import find

    print(
        f"{'model':<14}{'tokens':>7}  {'variant':<22}{'peak GiB':>9}{'reserved':>9}{'of first':>9}{'of trl':>8}"
    )
    for model in MODELS:
        for length in LENGTHS:
            peaks = {}
            for name, settings in variants(length).items():
                found = simulated(find(model).config(), **COMMON | settings)
                peaks[name] = found.peak_bytes
                first, trl = next(iter(peaks.values())), peaks.get("trl 1.16, 8 rows")
                print(
                    f"{model:<14}{length:>7}  {name:<22}{found.peak_bytes / 2**30:>9.2f}"
                    f"{found.reserved_bytes / 2**30:>9.2f}{found.peak_bytes / first:>9.2f}"
                    f"{'' if trl is None else f'{found.peak_bytes / trl:.2f}':>8}"
                    + ("  does not fit" if found.device_bytes[0] > found.setup.gpu.total_bytes else "")
                )
    print("with " + ", ".join(f"{name} {version}" for name, version in library_versions().items()))


if __name__ == "__main__":
    main()
