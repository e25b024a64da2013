"""Count the tokens of a memory-mapped data set in five ways, each in a fresh process: right or wrong, time, memory.

    python tests/benchmarks/token_counting.py                # 60 million tokens (0.7 GB on disk), about five minutes
    python tests/benchmarks/token_counting.py --fast         # without the Python loop and map
    python tests/benchmarks/token_counting.py --tokens 1e9   # 12 GB

The sets: "plain", "half" (a shuffled half, as shuffle and select leave it) and "filtered" (the rows of up to 2,000
tokens, as filter leaves it). "read" sums the labels with numpy, which is the least that any count of them must do.
Extra memory is the peak of resident memory (VmHWM) above what it was before, so mapped pages count in it. The time is
the best of several processes, which take turns, with the file in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

MIB = 2**20
SLOW = ["Python loop", "map"]  # run once: no figure depends on them
OURS, ALONE = "ours", "ours, tokens alone"
GOALS = "1.4 times as fast as #3711, 1.3 times one read, half no slower than plain, 64 MiB"


class Measured(NamedTuple):
    """Of several runs: the best seconds, the most extra bytes, and (tokens, supervised tokens)."""

    seconds: float
    extra_bytes: int
    counts: tuple[int, int]


def write(path: Path, tokens: int, shortest: int, longest: int, rows_per_batch: int = 1000) -> np.ndarray:
    """Write a set of random rows and return (tokens, supervised tokens) of each, shape (rows, 2)."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int64()))])
    truth, written = [], 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while written < tokens:
            lengths = rng.integers(shortest, longest + 1, rows_per_batch)
            prompts = (lengths * rng.random(rows_per_batch)).astype(np.int64)
            offsets = np.r_[0, lengths.cumsum()].astype(np.int32)
            ids = rng.integers(0, 49_152, offsets[-1], dtype=np.int32)
            position = np.arange(ids.size) - np.repeat(offsets[:-1], lengths)
            labels = np.where(position < np.repeat(prompts, lengths), -100, ids).astype(np.int64)
            columns = [pa.ListArray.from_arrays(offsets, ids), pa.ListArray.from_arrays(offsets, labels)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            truth.append(np.stack([lengths, lengths - prompts], axis=1))
            written += ids.size
    return np.concatenate(truth)


def read_once(dataset) -> tuple[int, int]:
    """Sum the labels where they lie. Returns no counts."""
    for chunk in dataset.data.column("labels").chunks:
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        chunk.values.to_numpy()[offsets[0] : offsets[-1]].sum()
    return 0, 0


def ours(dataset) -> tuple[int, int]:
    from onegpu.token_counting import count_tokens

    counts = count_tokens(dataset)
    return counts.tokens, counts.supervised_tokens


def ours_without_labels(dataset) -> tuple[int, int]:
    from onegpu.token_counting import count_tokens

    return count_tokens(dataset, labels=None).tokens, 0


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def child(method: str, path: str, indices: str) -> None:
    """Run one method in this process and print seconds, extra bytes and the counts."""
    import datasets
    from onegpu.token_counting import recipes

    datasets.disable_progress_bars()
    datasets.disable_caching()
    methods = {
        "read": read_once,
        "Python loop": recipes.count_with_python,
        "map": recipes.count_with_map,
        "pandas (before #3711)": recipes.count_with_pandas,
        "table (#3711)": recipes.count_with_table,
        OURS: ours,
        ALONE: ours_without_labels,
    }
    dataset = datasets.Dataset.from_file(path)
    small = datasets.Dataset.from_dict({"input_ids": [[1, 2]] * 3, "labels": [[-100, 2]] * 3})
    methods[method](small.select([2, 0]))  # imports and first calls are not the count's
    if indices:
        dataset = dataset.select(np.load(indices))
    before = peak_bytes()
    start = time.perf_counter()
    counts = methods[method](dataset)
    print(json.dumps([time.perf_counter() - start, peak_bytes() - before, *map(int, counts)]))


def measure(path: Path, jobs: list[tuple[str, str]], times: int) -> dict[tuple[str, str], Measured]:
    """Run each job, a method and the file of indices to select ("": all rows), in fresh processes.

    Jobs take turns, so that a machine that is slower for a while is slower for all of them.
    """
    runs = {job: [] for job in jobs}
    for turn in range(times):
        for method, indices in jobs:
            if turn and method in SLOW:
                continue
            command = [sys.executable, __file__, "--child", method, str(path), indices]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs[method, indices].append(json.loads(done.stdout))
    return {
        job: Measured(min(run[0] for run in found), max(run[1] for run in found), tuple(found[0][2:]))
        for job, found in runs.items()
    }


def compare(folder: Path, tokens: int, fast: bool, times: int) -> None:
    path = folder / "rows.arrow"
    truth = write(path, tokens, 100, 4000)
    rng = np.random.default_rng(1)
    sets = {
        "plain": None,
        "half": rng.permutation(len(truth))[: len(truth) // 2],
        "filtered": np.flatnonzero(truth[:, 0] <= 2000),
    }
    total = truth[:, 0].sum()
    print(
        f"{len(truth):,} rows, {total:,} tokens, {path.stat().st_size / 1e9:.2f} GB on disk, {os.cpu_count()} cores"
    )
    files = {}
    for name, rows in sets.items():
        files[name] = "" if rows is None else str(folder / f"{name}.npy")
        if rows is not None:
            np.save(files[name], rows)
    methods = [*([] if fast else SLOW), "pandas (before #3711)", "table (#3711)", OURS, ALONE]
    measured = measure(
        path, [("read", ""), *((method, files[name]) for name in sets for method in methods)], times
    )
    read = measured["read", ""]
    print(
        f"one read of the labels: {read.seconds:.3f} s, {total * 8 / 1e9 / read.seconds:.1f} GB/s, "
        f"{read.extra_bytes / MIB:.0f} MiB\n\n"
        f"{'set':<10}{'method':<24}{'tokens':>8}{'superv.':>9}{'seconds':>10}{'MiB extra':>11}{'GB/s':>7}{'x one read':>12}"
    )
    for name, rows in sets.items():
        right = truth.sum(axis=0) if rows is None else truth[rows].sum(axis=0)
        for method in methods:
            took, extra, found = measured[method, files[name]]
            verdicts = [
                "right" if f == r else f"{f / r:.2f}x" for f, r in zip(found, right.tolist(), strict=True)
            ]
            if method == ALONE:
                verdicts[1], speed, ratio = "-", "-", "-"
            else:
                speed, ratio = f"{right[0] * 8 / 1e9 / took:.1f}", f"{took / read.seconds:.2f}"
            print(
                f"{name:<10}{method:<24}{verdicts[0]:>8}{verdicts[1]:>9}{took:>10.4f}{extra / MIB:>11.0f}{speed:>7}{ratio:>12}"
            )
    plain, half = measured[OURS, ""].seconds, measured[OURS, files["half"]].seconds
    extra = max(found.extra_bytes for (method, _), found in measured.items() if method in (OURS, ALONE))
    print(
        f"\nours on plain: {measured['table (#3711)', ''].seconds / plain:.2f} times as fast as #3711, "
        f"{plain / read.seconds:.2f} times one read, on a half {half / plain:.2f} times plain, "
        f"at most {extra / MIB:.0f} MiB extra\n"
        f"goals:         {GOALS}"
    )


def scale(folder: Path, times: int) -> None:
    print(
        f"\nscaling{'rows':>14}{'tokens':>14}{'tokens alone, s':>17}{'with labels, s':>16}{'half, s':>9}{'MiB extra':>11}"
    )
    for rows, mean in ((10_000, 600), (10_000, 6_000), (100_000, 600), (1_000_000, 60), (10_000_000, 6)):
        path, half = folder / "scale.arrow", str(folder / "half.npy")
        truth = write(path, rows * mean, mean // 2, mean + mean // 2)
        np.save(half, np.random.default_rng(1).permutation(len(truth))[: len(truth) // 2])
        measured = measure(path, [(ALONE, ""), (OURS, ""), (OURS, half)], times)
        assert measured[OURS, ""].counts == tuple(truth.sum(axis=0).tolist())
        print(
            f"{len(truth):>21,}{truth[:, 0].sum():>14,}{measured[ALONE, ''].seconds:>17.4f}"
            f"{measured[OURS, ''].seconds:>16.4f}{measured[OURS, half].seconds:>9.4f}"
            f"{max(found.extra_bytes for found in measured.values()) / MIB:>11.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=float, default=6e7)
    parser.add_argument("--fast", action="store_true", help="leave out the Python loop and map")
    parser.add_argument("--no-scaling", action="store_true")
    parser.add_argument("--times", type=int, default=5, help="processes per figure")
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        compare(Path(folder), int(options.tokens), options.fast, options.times)
        if not options.no_scaling:
            scale(Path(folder), options.times)


if __name__ == "__main__":
    main()
