"""Tokens per second of the real model with 1 and 2 workers, and what the pipeline makes without training.

    python tests/benchmarks/ray_scale_out.py             # SmolLM2-135M, 8 steps each, about five minutes on two cores
    python tests/benchmarks/ray_scale_out.py --steps 20

Each worker has one thread. On two cores two workers share what memory bandwidth there is, so the ratio stays below 2.
"""

import argparse
import tempfile
import time
from pathlib import Path

from onegpu.qlora_finetune import FinetuneConfig
from onegpu.ray_scale_out import Recipe, count_rows, finetune_distributed, local_ray, windows
from onegpu.ray_scale_out.training import source_of, tokenizer_of


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    steps = parser.parse_args().steps
    folder = Path(tempfile.mkdtemp(prefix="ray_bench_"))
    rates = {}
    with local_ray(2):
        config = FinetuneConfig(max_steps=steps, eval_rows=2, save_steps=1000)
        found, recipe = windows(source_of(config), 32), Recipe(tokenizer_of(config.model), config.max_length)
        started = time.perf_counter()
        counts = count_rows(found, recipe)
        first = time.perf_counter() - started
        started = time.perf_counter()
        count_rows(found, recipe)
        again = time.perf_counter() - started
        print(
            f"{counts}\npipeline: {counts.tokens / first:,.0f} tokens/s with the start of its processes, ",
            end="",
        )
        print(f"{counts.tokens / again:,.0f} tokens/s after it")
        for workers in (1, 2):
            result = finetune_distributed(
                FinetuneConfig(
                    max_steps=steps, eval_rows=2, save_steps=1000, output_dir=str(folder / str(workers))
                ),
                num_workers=workers,
            )
            times = [t.without_first() for t in result.times]
            seconds = max(t.seconds for t in times) / max(1, len(times[0]))
            rates[workers] = result.tokens / result.steps / seconds
            print(f"{workers} workers: {rates[workers]:,.0f} tokens/s; worker 0: {times[0]}")
    print(f"2 workers are {rates[2] / rates[1]:.2f} times as fast as 1")


if __name__ == "__main__":
    main()
