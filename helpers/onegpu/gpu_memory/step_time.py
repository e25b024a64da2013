"""How long a training step takes: its operations and the bytes it moves, over what the card is published to do.

A card reaches neither rate. The time that a step would take if it did, products and moved bytes one after the other, is
a share of the time that it takes, its utilisation; a run's own says it best (``run_utilisation``). Otherwise a step is
given a range, from the utilisations of published runs (``UTILISATION``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from onegpu.gpu_memory.breakdown import MemoryBreakdown
from onegpu.gpu_memory.training_setup import ResolvedSetup, TrainingSetup
from onegpu.runtime import Gpu, find_gpu

UTILISATION = (0.3, 0.8)
"""Lowest and highest of the T4 runs of fitcheck-llm 0.3.1 (``data/measurements``) whose step was timed, rounded outwards
(``tests/benchmarks/step_seconds.py``). The lowest are small models and few tokens, which leave a card waiting for the
next kernel; other cards haven't been compared."""
RUN_SPREAD = 1.3
"""A corrected answer may be off by so much: those runs lie so far apart with the same model, method and attention and
about as many tokens. (With eight times as many it was up to 1.5.)"""


@dataclass(frozen=True)
class StepTime:
    """The seconds of an optimizer step, lowest and highest.

    Attributes
    ----------
    seconds
        Lowest and highest.
    ideal_seconds
        At the card's published rates.
    utilisation
        Lowest and highest that were assumed.
    source
        Where those are from.
    """

    seconds: tuple[float, float]
    ideal_seconds: float
    utilisation: tuple[float, float]
    source: str

    def __str__(self) -> str:
        low, high = (f"{s:.2g}" if s < 10 else f"{s:.0f}" for s in self.seconds)
        first, last = (f"{u:.0%}" for u in self.utilisation)
        return (
            f"a step takes {low} to {high} s: {self.ideal_seconds:.2g} s at the card's published rates, of which "
            f"{first} to {last} are reached ({self.source})"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "seconds": list(self.seconds),
            "ideal_seconds": self.ideal_seconds,
            "utilisation": list(self.utilisation),
            "source": self.source,
        }


def ideal_seconds(breakdown: MemoryBreakdown) -> float | None:
    """Seconds of a simulated step at the card's published rates; None where they (or the operations) aren't known."""
    setup, work = breakdown.setup, breakdown.work
    gpu = setup.gpu
    if work is None or not (gpu.tflops and gpu.fp32_tflops and gpu.bandwidth):
        return None
    seconds = work.moved_bytes / (gpu.bandwidth * 1e9)
    for dtype, operations in work.operations.items():
        native = dtype.itemsize == 2 and (gpu.dtype == "bf16" or "bfloat" not in str(dtype))
        seconds += operations / ((gpu.tflops if native else gpu.fp32_tflops) * 1e12)
    return seconds


def step_time(breakdown: MemoryBreakdown, run: Mapping[str, Any] | None = None) -> StepTime | None:
    """Say how long a simulated step takes.

    Parameters
    ----------
    breakdown
        By ``simulated``.
    run
        The ``report.json`` of a finished run on such a card, which corrects the answer by its own speed.

    Returns
    -------
    StepTime or None
        None on the CPU and on cards whose rates aren't known.

    Raises
    ------
    ValueError
        For a report of another card, or without what is needed.

    Examples
    --------
    >>> from onegpu.gpu_memory import simulated
    >>> low, high = step_time(simulated("smollm2-135m", gpu="T4", max_length=512)).seconds
    >>> 0.05 < low < high < 1
    True
    """
    ideal = ideal_seconds(breakdown)
    if run is not None:
        if ideal is None:
            raise ValueError(
                f"a run can't tell how long a step takes on {breakdown.setup.gpu}: its rates aren't known. Leave the report "
                "out, or name a card"
            )
        found = run_utilisation(run, breakdown.setup.gpu)
        utilisation, source = (found / RUN_SPREAD, found * RUN_SPREAD), f"the given run: {found:.0%}"
    elif ideal is None:
        return None
    else:
        utilisation, source = UTILISATION, "T4 runs measured by fitcheck-llm 0.3.1"
    low, high = utilisation
    return StepTime((ideal / high, ideal / low), ideal, utilisation, source)


def run_utilisation(run: Mapping[str, Any], gpu: Gpu) -> float:
    """Return which share of a card's published rates a finished run reached, from its ``report.json``."""
    from onegpu.gpu_memory.simulated import simulated

    needed = ("config", "machine", "steps", "tokens", "train_seconds")
    missing = [name for name in needed if name not in run] if isinstance(run, Mapping) else list(needed)
    if missing:
        raise ValueError(
            f"the report has no {', '.join(missing)}: give the report.json that `onegpu finetune` writes"
        )
    name = run["machine"].partition(": ")[2].partition(" (")[0]
    if not run["machine"].startswith("cuda"):
        raise ValueError(f"the report is of a run on the CPU, which says nothing about {gpu.name}")
    if find_gpu(name).name != find_gpu(gpu.name).name:
        raise ValueError(f"the report is of a run on {name}, not on {gpu.name}: give gpu={name!r}")
    if not (run["steps"] > 0 and run["tokens"] > 0 and run["train_seconds"] > 0):
        raise ValueError("the report is of a run without a step: it has no speed")
    known = {f.name for f in fields(TrainingSetup)}
    asked = {key: value for key, value in run["config"].items() if key in known}
    breakdown = simulated(TrainingSetup(**asked | {"gpu": gpu}))
    setup: ResolvedSetup = breakdown.setup
    full_tokens = run["steps"] * setup.tokens * setup.gradient_accumulation_steps
    return ideal_seconds(breakdown) * run["steps"] * (run["tokens"] / full_tokens) / run["train_seconds"]
