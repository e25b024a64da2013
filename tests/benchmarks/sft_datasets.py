"""Validate, render and mask Alpaca rows in a stream: rows a second and peak memory for 10k and 100k rows.

    python tests/benchmarks/sft_datasets.py [rows ...]

Each size runs in a fresh process that reads a JSONL file written for it; memory must not grow with rows.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = [
    "model",
    "token",
    "answer",
    "memory",
    "row",
    "train",
    "small",
    "clean",
    "noisy",
    "learn",
    "step",
    "batch",
    "length",
    "question",
    "data",
]


def write_rows(path: Path, count: int) -> None:
    """Alpaca rows of about the Alpaca data's lengths: 40 % with input, answers of 5 to 100 words."""
    chance = random.Random(0)

    def text(low: int, high: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(low, high))).capitalize() + "."

    with path.open("w") as file:
        for _ in range(count):
            text_input = text(5, 30) if chance.random() < 0.4 else ""
            row = {"instruction": text(6, 16), "input": text_input, "output": text(5, 100)}
            file.write(json.dumps(row) + "\n")


def measure(path: str) -> None:
    """Run the three steps over one file and print the figures as JSON."""
    from onegpu.models import tiny_tokenizer
    from onegpu.sft_datasets import read_rows, render, to_example, tokenize, validate

    tokenizer = tiny_tokenizer()
    tokenize({"prompt": "warm", "completion": "up"}, tokenizer)
    figures = {}
    start = time.perf_counter()
    rows = validate(read_rows(path), keep=100).rows
    figures["validate"] = rows / (time.perf_counter() - start)
    start = time.perf_counter()
    for row in read_rows(path):
        render(to_example(row), tokenizer)
    figures["render"] = rows / (time.perf_counter() - start)
    start = time.perf_counter()
    tokens = supervised = 0
    for row in read_rows(path):
        done = tokenize(row, tokenizer, 2048, truncation="drop")
        tokens += len(done)
        supervised += done.supervised_tokens
    figures["render and mask"] = rows / (time.perf_counter() - start)
    figures["peak RSS"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures["tokens"], figures["supervised"] = tokens, supervised
    print(json.dumps(figures))


def main(sizes: list[int]) -> None:
    """Measure every size and print the ratio of the peaks."""
    peaks = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.jsonl")
            write_rows(path, size)
            command = [sys.executable, __file__, "--measure", str(path)]
            done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        peaks.append(done["peak RSS"])
        speeds = ", ".join(
            f"{name} {done[name]:,.0f} rows/s" for name in ("validate", "render", "render and mask")
        )
        print(
            f"{size:,} rows: {speeds}; {done['tokens']:,} tokens, {done['supervised']:,} supervised; "
            f"peak RSS {done['peak RSS'] / 2**20:,.0f} MiB"
        )
    print(f"peak memory, last / first: {peaks[-1] / peaks[0]:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        main([int(size) for size in sys.argv[1:]] or [10_000, 100_000])
