"""Tokens per second of the real model with 1 and 2 workers, what the pipeline makes without training, and the model's word.

    python tests/benchmarks/ray_scale_out.py             # SmolLM2-135M, 8 steps each, about three minutes on two cores
    python tests/benchmarks/ray_scale_out.py --steps 20

Each worker has one thread. On two cores two workers share what memory bandwidth there is, so the ratio stays below 2.
The last lines give the measured inputs to ``ScalingModel``.
"""

import argparse
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from onegpu import models
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.ray_scale_out import Recipe, ScalingModel, count_rows, finetune_distributed, local_ray, windows
from onegpu.ray_scale_out.training import source_of


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    steps = parser.parse_args().steps
    folder = Path(tempfile.mkdtemp(prefix="ray_bench_"))
    rates, a_step, a_batch = {}, {}, {}
    with local_ray(2):
        config = FinetuneConfig(max_steps=steps, eval_rows=2, save_steps=1000)
        found, recipe = (
            windows(source_of(config).rows, 32),
            Recipe(models.load_tokenizer(config.model), config.max_length),
        )
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
            a_step[workers] = max(t.seconds for t in times) / max(1, len(times[0]))
            a_batch[workers] = result.tokens / result.steps / workers
            rates[workers] = a_batch[workers] * workers / a_step[workers]
            print(f"{workers} workers: {rates[workers]:,.0f} tokens/s; worker 0: {times[0]}")
        elements = trained_parameters(result.adapter_dir)
    print(f"2 workers are {rates[2] / rates[1]:.2f} times as fast as 1")
    network = all_reduce_seconds(elements)
    print(
        f"inputs: a step of one worker {a_step[1]:.2f} s for {a_batch[1]:,.0f} tokens; gradients {4 * elements:,} bytes, "
        f"averaged by two idle processes over gloo in {network:.4f} s: {4 * elements / network:,.0f} bytes/s"
    )
    model = ScalingModel(
        compute_seconds=a_step[1], tokens_per_worker=round(a_batch[1]), gradient_bytes=4 * elements,
        bandwidth_bytes_per_second=4 * elements / network, latency_seconds=0,
        data_tokens_per_second=counts.tokens / again / 2, cpus_per_worker=0, shared_cpus=2,
    )  # fmt: skip
    print(model.at(2))
    print(f"the model's ratio: {model.at(2).tokens_per_second / model.at(1).tokens_per_second:.2f}")


if __name__ == "__main__":
    main()
