"""Tokens per second of the real model with 1 and 2 workers, on idle cores and beside a busy program; lesson 08 reads them.

    python tests/benchmarks/ray_scale_out.py             # SmolLM2-135M, 8 steps each, about four minutes on two cores
    python tests/benchmarks/ray_scale_out.py --steps 20

Writes helpers/onegpu/ray_scale_out/two_workers.json, with what ``ScalingModel`` takes: a step of one worker, the speed of
averaging between two processes, and that of the pipeline. Each worker has one thread. On two cores two workers share what
memory bandwidth there is, so the ratio stays below 2.
"""

import argparse
import contextlib
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from onegpu import models, runtime
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.ray_scale_out import Recipe, count_rows, finetune_distributed, local_ray, windows
from onegpu.ray_scale_out.training import source_of

STORED = Path(__file__).resolve().parents[2] / "helpers" / "onegpu" / "ray_scale_out" / "two_workers.json"


def all_reduce(rank, port, elements, queue):
    """Median seconds of an all-reduce over gloo between two processes of this machine."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    gradient, seconds = torch.ones(elements), []
    for _ in range(12):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(gradient)
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        queue.put(statistics.median(seconds[2:]))
    dist.destroy_process_group()


def all_reduce_seconds(elements):
    """Start the two processes and return what the first one measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(all_reduce, (port, elements, queue), nprocs=2)
    return queue.get()


def trained_parameters(adapter_dir):
    """Elements of a saved adapter."""
    from safetensors import safe_open

    with safe_open(Path(adapter_dir) / "adapter_model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def spin():
    """Keep a core busy."""
    while True:
        pass


@contextlib.contextmanager
def busy_program():
    """Another program, with nothing in it but work."""
    process = multiprocessing.Process(target=spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()  # Ray makes an end by SIGTERM a page of traces
        process.join()


def train(workers, steps, folder):
    """Seconds of the slowest worker's step, tokens of a worker's step, and the adapter."""
    config = FinetuneConfig(max_steps=steps, eval_rows=2, save_steps=1000, output_dir=str(folder))
    result = finetune_distributed(config, num_workers=workers)
    times = [t.without_first() for t in result.times]
    seconds = max(t.seconds for t in times) / max(1, len(times[0]))
    waiting = max(t.share_waiting for t in times)
    return {
        "seconds": seconds, "tokens": result.tokens / result.steps / workers, "share_waiting": waiting,
    }, result.adapter_dir  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    steps = parser.parse_args().steps
    folder = Path(tempfile.mkdtemp(prefix="ray_bench_"))
    runs = []
    with local_ray(2):
        config = FinetuneConfig()
        found = windows(source_of(config).rows, 32)
        recipe = Recipe(models.load_tokenizer(config.model), 512)
        count_rows(found, recipe)  # its processes start
        started = time.perf_counter()
        counts = count_rows(found, recipe)
        rows_rate = counts.tokens / (time.perf_counter() - started)
        for beside, other in (("idle", contextlib.nullcontext), ("busy", busy_program)):
            for workers in (1, 2):
                with other():
                    step, adapter = train(workers, steps, folder / f"{beside}{workers}")
                runs.append({"beside": beside, "workers": workers} | step)
                print(runs[-1])
    elements = trained_parameters(adapter)
    stored = {
        "machine": str(runtime.machine()), "cores": 2, "steps": steps - 1, "runs": runs,
        "gradient_bytes": 4 * elements, "bytes_per_second": 4 * elements / all_reduce_seconds(elements),
        "rows_tokens_per_second": rows_rate / 2,  # of one of two CPUs
        "versions": dict(runtime.versions()),
    }  # fmt: skip
    STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print(f"written to {STORED}")


if __name__ == "__main__":
    main()
