"""How fast would it be on 8, 64 or 1,024 GPUs? A simulated ring all-reduce, and a model of one training step.

The model has three clocks: computing (does not shrink, each worker has its own batch), averaging gradients over the
network (grows a little with the workers), and preparing rows (CPUs share it). Every number is an assumption that you
can see and change; nothing in it is measured on such a cluster. ``two_workers`` is what was measured, on one machine.

Source: the ring of two sweeps, reduce-scatter and all-gather, moves ``2 (n - 1) / n`` of the gradient through each
worker's link (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RingRun:
    """A simulated ring all-reduce.

    Attributes
    ----------
    results : list of numpy.ndarray
        What each worker ends with: the sum of all.
    sent_bytes : int
        Bytes that one worker sent (the largest of all workers).
    rounds : int
        Messages that followed one another.
    history : list of list of str
        For each round and worker, which chunk it sent.
    """

    results: list[np.ndarray]
    sent_bytes: int
    rounds: int
    history: list[list[str]]


def ring_allreduce(vectors: Sequence[np.ndarray]) -> RingRun:
    """Sum vectors over workers that stand in a ring and only ever talk to the next one.

    Each vector is cut into as many chunks as there are workers. In the first ``n - 1`` rounds each worker sends one
    chunk on, which the next one adds to its own: then each holds the full sum of one chunk. In ``n - 1`` more rounds
    these go round.

    Parameters
    ----------
    vectors
        One per worker, of equal shape (elements,) and dtype.

    Raises
    ------
    ValueError
        If there are no vectors, or they differ in shape.

    Examples
    --------
    >>> run = ring_allreduce([np.array([1.0, 2.0]), np.array([10.0, 20.0])])
    >>> [r.tolist() for r in run.results], run.rounds, run.sent_bytes
    ([[11.0, 22.0], [11.0, 22.0]], 2, 16)
    """
    if not vectors:
        raise ValueError("no vectors: expected one per worker")
    shapes = {np.asarray(v).shape for v in vectors}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"vectors have the shapes {sorted(shapes)}, expected one shape (elements,) for all")
    n = len(vectors)
    chunks = [[part.copy() for part in np.array_split(np.asarray(v), n)] for v in vectors]
    sent, history = [0] * n, []
    for sweep in range(2):
        for turn in range(n - 1):
            messages = []
            for worker in range(n):
                c = (worker - turn + sweep) % n
                messages.append((c, chunks[worker][c].copy()))
                sent[worker] += chunks[worker][c].nbytes
            history.append([f"chunk {c} to {(worker + 1) % n}" for worker, (c, _) in enumerate(messages)])
            for worker, (c, data) in enumerate(messages):
                target = chunks[(worker + 1) % n]
                target[c] = target[c] + data if sweep == 0 else data
    return RingRun([np.concatenate(c) for c in chunks], max(sent), 2 * (n - 1), history)


def ring_seconds(
    gradient_bytes: int, workers: int, bandwidth_bytes_per_second: float, latency_seconds: float = 0.0
) -> float:
    """Return the seconds of a ring all-reduce: ``2 (n - 1) / n`` of the bytes at the link's speed, and the rounds' latency.

    Parameters
    ----------
    gradient_bytes
        Of one worker's gradients.
    workers
        n, at least 1.
    bandwidth_bytes_per_second
        Of the slowest link in the ring, one way.
    latency_seconds
        Of one message.

    Examples
    --------
    Ten million float32 gradients over 10 Gbit/s (1.25e9 bytes a second), 8 workers:

    >>> round(ring_seconds(40_000_000, 8, 1.25e9), 4)
    0.056
    """
    if workers < 1 or gradient_bytes < 0 or bandwidth_bytes_per_second <= 0 or latency_seconds < 0:
        raise ValueError(
            f"workers {workers}, gradient_bytes {gradient_bytes}, bandwidth {bandwidth_bytes_per_second}, latency "
            f"{latency_seconds}: expected at least 1, 0, above 0, 0"
        )
    share = 2 * (workers - 1) / workers
    return share * gradient_bytes / bandwidth_bytes_per_second + 2 * (workers - 1) * latency_seconds


@dataclass(frozen=True)
class ScalingPoint:
    """One training step at some number of workers.

    Attributes
    ----------
    workers : int
    compute_seconds, network_seconds, data_seconds : float
        Of one step: computing, the all-reduce, and preparing the rows of all workers on the CPUs there are.
    step_seconds : float
        Computing and all-reduce one after the other (no overlap), while rows are prepared beside them.
    tokens_per_second : float
        Of all workers.
    """

    workers: int
    compute_seconds: float
    network_seconds: float
    data_seconds: float
    step_seconds: float
    tokens_per_second: float

    @property
    def efficiency(self) -> float:
        """Useful share of the workers' time: computing over the whole step."""
        return self.compute_seconds / self.step_seconds

    @property
    def limited_by(self) -> str:
        """What a faster step would need: "compute", "network" or "data"."""
        if self.data_seconds > self.compute_seconds + self.network_seconds:
            return "data"
        return "network" if self.network_seconds > self.compute_seconds else "compute"

    def __str__(self) -> str:
        return (
            f"{self.workers:>4} workers: {self.step_seconds:.2f} s a step (compute {self.compute_seconds:.2f}, network "
            f"{self.network_seconds:.2f}, data {self.data_seconds:.2f}), {self.efficiency:.0%} useful, {self.limited_by}"
        )


@dataclass(frozen=True)
class ScalingModel:
    """Assumptions about a cluster. All are inputs; the defaults are a small one.

    Attributes
    ----------
    compute_seconds : float
        Forward and backward of one worker's batch.
    tokens_per_worker : int
        In that batch.
    gradient_bytes : int
        What is averaged each step: 4 bytes for each trained parameter in float32.
    bandwidth_bytes_per_second : float
        Between machines, one way. 1.25e9 is 10 Gbit/s Ethernet, 5e10 is 400 Gbit/s InfiniBand.
    latency_seconds : float
        Of one message in the ring.
    data_tokens_per_second : float
        That one CPU reads, tokenizes and packs.
    cpus_per_worker : float
        That prepare rows. 0: a fixed number, ``shared_cpus``, serves all workers.
    shared_cpus : float
        The article's design: loaders whose number does not grow with the workers.
    """

    compute_seconds: float = 0.5
    tokens_per_worker: int = 1024
    gradient_bytes: int = 40_000_000
    bandwidth_bytes_per_second: float = 1.25e9
    latency_seconds: float = 30e-6
    data_tokens_per_second: float = 100_000.0
    cpus_per_worker: float = 2.0
    shared_cpus: float = 8.0

    def __post_init__(self):
        for name in (
            "compute_seconds", "tokens_per_worker", "bandwidth_bytes_per_second", "data_tokens_per_second",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected above 0")
        if self.cpus_per_worker <= 0 and self.shared_cpus <= 0:
            raise ValueError("nobody prepares rows: cpus_per_worker and shared_cpus are both 0")

    def at(self, workers: int) -> ScalingPoint:
        """Predict one step with so many workers.

        Examples
        --------
        >>> ScalingModel().at(64).limited_by
        'compute'
        >>> ScalingModel(cpus_per_worker=0, data_tokens_per_second=5_000).at(64).limited_by
        'data'
        """
        network = ring_seconds(
            self.gradient_bytes, workers, self.bandwidth_bytes_per_second, self.latency_seconds
        )
        cpus = self.cpus_per_worker * workers if self.cpus_per_worker > 0 else self.shared_cpus
        data = workers * self.tokens_per_worker / (cpus * self.data_tokens_per_second)
        step = max(self.compute_seconds + network, data)
        return ScalingPoint(
            workers, self.compute_seconds, network, data, step, workers * self.tokens_per_worker / step
        )

    def sweep(
        self, workers: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    ) -> list[ScalingPoint]:
        """Predict one step for each number of workers."""
        return [self.at(n) for n in workers]


def two_workers() -> dict[str, Any]:
    """Return what ``tests/benchmarks/ray_scale_out.py`` measured on one machine: the real model with one and two workers.

    Returns
    -------
    dict
        ``runs`` has, for 1 and 2 workers on idle cores and beside a busy program, the ``seconds`` of a step, the ``tokens``
        of a worker in it and the share of its time that it waited for rows. ``gradient_bytes``, ``bytes_per_second`` (of
        averaging) and ``rows_tokens_per_second`` (of one CPU that prepares rows) are what ``ScalingModel`` takes.

    Examples
    --------
    >>> [(run["beside"], run["workers"]) for run in two_workers()["runs"]]
    [('idle', 1), ('idle', 2), ('busy', 1), ('busy', 2)]
    """
    return json.loads(files(__package__).joinpath("two_workers.json").read_text(encoding="utf-8"))
