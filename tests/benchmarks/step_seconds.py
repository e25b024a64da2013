"""How long a training step takes: what `step_time` says against what was measured, run by run.

The seconds are those of fitcheck-llm 0.3.1 (PyPI, ``data/measurements``: Tesla T4, plain loop, LoRA on q, k, v and o, fp16,
gradient checkpointing, AdamW, mean of timed steps after warming up). In the last column each run is predicted from the
speed of the first with its model, method and attention, as ``onegpu memory --report`` does it. The range of ``step_time``
was read off these runs; so the last line judges each model's by the range of all others'.

    python tests/benchmarks/step_seconds.py
"""

from __future__ import annotations

import argparse
import math

# model, attention, rows, tokens of a row, method, rank, seconds
TIMED = (
    ("smollm2-135m", "eager", 2, 512, "qlora", 32, 0.423),
    ("smollm2-135m", "eager", 2, 512, "lora", 32, 0.284),
    ("smollm2-135m", "sdpa", 2, 512, "qlora", 32, 0.362),
    ("smollm2-135m", "sdpa", 2, 512, "lora", 32, 0.272),
    ("smollm2-135m", "eager", 1, 4096, "qlora", 32, 3.685),
    ("smollm2-135m", "eager", 1, 4096, "lora", 32, 2.485),
    ("smollm2-135m", "sdpa", 1, 4096, "qlora", 32, 1.977),
    ("smollm2-135m", "sdpa", 1, 4096, "lora", 32, 0.835),
    ("smollm2-360m", "eager", 1, 4096, "qlora", 32, 6.222),
    ("smollm2-360m", "eager", 1, 4096, "lora", 32, 4.315),
    ("smollm2-360m", "sdpa", 1, 4096, "qlora", 32, 3.610),
    ("smollm2-360m", "sdpa", 1, 4096, "lora", 32, 1.530),
    ("tinyllama-1.1b", "eager", 2, 512, "qlora", 32, 0.817),
    ("tinyllama-1.1b", "eager", 2, 512, "lora", 32, 0.598),
    ("tinyllama-1.1b", "sdpa", 2, 512, "qlora", 32, 0.823),
    ("tinyllama-1.1b", "sdpa", 2, 512, "lora", 32, 0.554),
    ("tinyllama-1.1b", "eager", 2, 1024, "qlora", 32, 2.029),
    ("tinyllama-1.1b", "eager", 2, 1024, "lora", 32, 1.423),
    ("tinyllama-1.1b", "sdpa", 2, 1024, "qlora", 32, 1.758),
    ("tinyllama-1.1b", "sdpa", 2, 1024, "lora", 32, 1.151),
    ("tinyllama-1.1b", "eager", 2, 2048, "qlora", 32, 6.100),
    ("tinyllama-1.1b", "eager", 2, 2048, "lora", 32, 4.472),
    ("tinyllama-1.1b", "sdpa", 2, 2048, "qlora", 32, 4.551),
    ("tinyllama-1.1b", "sdpa", 2, 2048, "lora", 32, 2.618),
    ("tinyllama-1.1b", "eager", 8, 1024, "qlora", 32, 8.692),
    ("tinyllama-1.1b", "sdpa", 8, 1024, "qlora", 32, 6.171),
    ("qwen2.5-1.5b", "eager", 2, 1024, "qlora", 32, 2.695),
    ("qwen2.5-1.5b", "eager", 2, 1024, "lora", 32, 1.350),
    ("qwen2.5-1.5b", "sdpa", 2, 1024, "qlora", 32, 2.588),
    ("qwen2.5-1.5b", "sdpa", 2, 1024, "lora", 32, 1.511),
    ("qwen2.5-1.5b", "eager", 1, 2048, "qlora", 32, 2.738),
    ("qwen2.5-1.5b", "eager", 1, 2048, "lora", 32, 1.566),
    ("qwen2.5-1.5b", "sdpa", 1, 2048, "qlora", 32, 2.368),
    ("qwen2.5-1.5b", "sdpa", 1, 2048, "lora", 32, 1.209),
    ("smollm2-1.7b", "eager", 4, 1024, "qlora", 32, 6.105),
    ("smollm2-1.7b", "eager", 4, 1024, "lora", 32, 4.337),
    ("smollm2-1.7b", "sdpa", 4, 1024, "qlora", 32, 5.047),
    ("smollm2-1.7b", "sdpa", 4, 1024, "lora", 32, 3.361),
    ("smollm2-1.7b", "eager", 1, 2048, "qlora", 32, 3.646),
    ("smollm2-1.7b", "eager", 1, 2048, "lora", 32, 2.709),
    ("smollm2-1.7b", "sdpa", 1, 2048, "qlora", 32, 2.515),
    ("smollm2-1.7b", "sdpa", 1, 2048, "lora", 32, 1.481),
    ("llama-3.2-1b", "eager", 1, 1024, "qlora", 16, 1.047),
    ("llama-3.2-1b", "sdpa", 1, 1024, "qlora", 16, 0.867),
    ("llama-3.2-3b", "eager", 1, 1024, "qlora", 16, 2.492),
    ("llama-3.2-3b", "sdpa", 1, 1024, "qlora", 16, 2.276),
    ("qwen2.5-7b", "eager", 1, 1024, "qlora", 16, 3.909),
    ("qwen2.5-7b", "sdpa", 1, 1024, "qlora", 16, 3.725),
    ("mistral-7b-v0.3", "eager", 1, 1024, "qlora", 16, 4.069),
    ("mistral-7b-v0.3", "sdpa", 1, 1024, "qlora", 16, 3.901),
)


def settings(attention: str, rows: int, length: int, method: str, rank: int) -> dict:
    """A run as `TrainingSetup` has it."""
    return {
        "method": method, "loop": "plain", "dtype": "fp16", "gradient_checkpointing": True, "gpu": "T4", "lora_r": rank,
        "target_modules": ("q_proj", "k_proj", "v_proj", "o_proj"), "double_quantization": False,
        "per_device_train_batch_size": rows, "max_length": length,
        "attention": "eager" if attention == "eager" else "sdpa_expanded",
    }  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    from onegpu.gpu_memory import simulated, step_time

    print(
        f"{'model':<16}{'method':<7}{'attention':<10}{'rows':>9}{'measured s':>12}{'predicted s':>16}{'':>9}{'reached':>9}"
        f"{'by first':>10}"
    )
    first: dict[tuple[str, ...], float] = {}
    reached: dict[str, list[float]] = {}
    inside = 0
    for model, attention, rows, length, method, rank, seconds in TIMED:
        found = step_time(simulated(model, **settings(attention, rows, length, method, rank)))
        low, high = found.seconds
        share = found.ideal_seconds / seconds
        reached.setdefault(model, []).append(share)
        place = "inside" if low <= seconds <= high else "below" if seconds < low else "above"
        inside += place == "inside"
        by_first = share / first.setdefault((model, attention, method), share)
        print(
            f"{model:<16}{method:<7}{attention:<10}{f'{rows} x {length}':>9}{seconds:>12.3f}{f'{low:.2f} to {high:.2f}':>16}"
            f"{place:>9}{share:>9.3f}{by_first:>10.2f}",
            flush=True,
        )
    shares = [share for own in reached.values() for share in own]
    print(f"{inside} of {len(TIMED)} inside; reached {min(shares):.3f} to {max(shares):.3f}")
    unseen = 0
    for model, own in reached.items():
        others = [share for other, shares in reached.items() if other != model for share in shares]
        low, high = math.floor(10 * min(others)) / 10, math.ceil(10 * max(others)) / 10
        unseen += sum(low <= share <= high for share in own)
    print(f"{unseen} of {len(TIMED)} inside the range of the other models' runs, rounded outwards to tenths")


if __name__ == "__main__":
    main()
