"""Does it fit on this card, how large may the batch be, and the whole answer for the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from onegpu.dtype_sizing import format_bytes
from onegpu.gpu_memory.breakdown import MemoryBreakdown
from onegpu.gpu_memory.closed_form import closed_form
from onegpu.gpu_memory.simulated import simulated
from onegpu.gpu_memory.training_setup import TrainingSetup, make_setup
from onegpu.runtime.gpus import Gpu, find_gpu

FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"


@dataclass(frozen=True)
class Fit:
    """Whether a training step fits on its card. True only if it does in every case.

    Attributes
    ----------
    breakdown
        The prediction.
    total_bytes
        What the card has.
    needed_bytes
        At least (peak of the tensors and the smallest CUDA context) and at most (all that the allocator reserves, and
        the largest context).
    """

    breakdown: MemoryBreakdown
    total_bytes: int
    needed_bytes: tuple[int, int]

    @property
    def verdict(self) -> str:
        """ "fits"; "tight" where it depends on context and fragmentation; "does not fit"."""
        low, high = self.needed_bytes
        if high <= self.total_bytes:
            return FITS
        return TIGHT if low <= self.total_bytes else TOO_LARGE

    @property
    def spare_bytes(self) -> int:
        """Free in the worst case; negative if that does not fit."""
        return self.total_bytes - self.needed_bytes[1]

    def __bool__(self) -> bool:
        return self.verdict == FITS

    def __str__(self) -> str:
        low, high = (format_bytes(n, "GiB") for n in self.needed_bytes)
        total = format_bytes(self.total_bytes, "GiB")
        gpu = self.breakdown.setup.gpu.name
        return f"{self.verdict} on {gpu}: needs {low} to {high} of {total}"


def fits(model: Any, gpu: str | Gpu = "T4", **settings: Any) -> Fit:
    """Say whether a training step fits on a card.

    Parameters
    ----------
    model, settings
        As `TrainingSetup`; the model may be a setup.
    gpu
        The card.

    Raises
    ------
    ValueError
        For the CPU, whose memory isn't a card's, and for a setup that can't be trained.

    Examples
    --------
    >>> print(fits("smollm2-135m", "T4", batch_size=8, sequence_length=512).verdict)
    fits
    """
    setup = make_setup(model, **settings, gpu=_card(gpu))
    return judge(simulated(setup))


def judge(breakdown: MemoryBreakdown) -> Fit:
    """Hold a prediction against its card."""
    gpu = _card(breakdown.setup.gpu)
    low, high = gpu.context_bytes
    most = max(breakdown.reserved_bytes or 0, breakdown.peak_bytes)
    return Fit(breakdown, gpu.total_bytes, (breakdown.peak_bytes + low, most + high))


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits for sure (0: not even one row does), and the next that doesn't."""

    batch_size: int
    fit: Fit | None
    next_fit: Fit

    def __str__(self) -> str:
        gpu = self.next_fit.breakdown.setup.gpu.name
        if self.fit is None:
            return f"no batch fits on {gpu}: {self.next_fit}"
        return f"batch {self.batch_size} {self.fit}\nbatch {self.batch_size + 1} {self.next_fit}"


def largest_batch(model: Any, gpu: str | Gpu = "T4", *, limit: int = 4096, **settings: Any) -> LargestBatch:
    """Find the largest batch that fits on a card for sure.

    Memory grows with the batch in an almost straight line, so a few simulations find it: two give the slope, the
    others confirm.

    Parameters
    ----------
    model, settings
        As `TrainingSetup`, without `batch_size`.
    limit
        The largest batch to try.
    """
    settings.pop("batch_size", None)
    setup = make_setup(model, **settings, gpu=_card(gpu))
    tried: dict[int, Fit] = {}

    def fit(batch_size: int) -> Fit:
        if batch_size not in tried:
            tried[batch_size] = judge(simulated(setup.change(batch_size=batch_size)))
        return tried[batch_size]

    if not fit(1):
        return LargestBatch(0, None, fit(1))
    good, bad, guess = 1, limit + 1, 2
    while bad - good > 1:
        if fit(guess):
            good = guess
        else:
            bad = guess
        guess = min(max(_guess(tried, good), good + 1), bad - 1)
    return LargestBatch(good, fit(good), fit(good + 1))


def _guess(tried: dict[int, Fit], good: int) -> int:
    """Follow the line through the two largest batches tried up to the card's size."""
    (first, a), (second, b) = sorted(tried.items())[-2:]
    slope = (b.needed_bytes[1] - a.needed_bytes[1]) / (second - first)
    if slope <= 0:
        return 2 * good
    return int(second + b.spare_bytes / slope)


def _card(gpu: str | Gpu) -> Gpu:
    found = find_gpu(gpu)
    if found.is_cpu:
        raise ValueError("whether it fits is asked of a card: give gpu='T4' or another of GPUS, not the CPU")
    return found


@dataclass(frozen=True)
class MemoryReport:
    """All that ``onegpu memory`` says: both predictions and the verdict. Prints as text; `to_json` has whole bytes."""

    simulated: MemoryBreakdown
    closed_form: MemoryBreakdown | None
    why_no_closed_form: str = ""
    alternatives: tuple[tuple[str, Fit], ...] = ()

    @property
    def setup(self) -> TrainingSetup:
        """What was asked."""
        return self.simulated.setup

    @cached_property
    def fit(self) -> Fit | None:
        """The verdict; None for the CPU."""
        return None if self.setup.gpu.is_cpu else judge(self.simulated)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain dictionaries."""
        settings = {f.name: getattr(self.setup, f.name) for f in fields(self.setup)}
        settings["model"] = self.setup.name
        settings["gpu"] = self.setup.gpu.name
        fit = self.fit
        return {
            "settings": settings,
            "gpu": asdict(self.setup.gpu),
            "verdict": None if fit is None else fit.verdict,
            "needed_bytes": None if fit is None else list(fit.needed_bytes),
            "simulated": self.simulated.to_json(),
            "closed_form": self.closed_form and self.closed_form.to_json(),
            "why_no_closed_form": self.why_no_closed_form,
            "alternatives": [
                {"change": change, "verdict": fit.verdict, "needed_bytes": list(fit.needed_bytes)}
                for change, fit in self.alternatives
            ],
            "versions": dict(self.simulated.versions),
        }

    def __str__(self) -> str:
        lines = [str(self.simulated)]
        if self.closed_form is None:
            lines.append(f"no closed form: {self.why_no_closed_form}")
        else:
            ours, peak = self.closed_form, self.closed_form.peak_bytes
            after = ours["after_step"].allocated_bytes
            lines.append(
                f"closed form: after the step {format_bytes(after, 'GiB', digits=3)} "
                f"({after / self.simulated['after_step'].allocated_bytes:.4f} of simulated), "
                f"peak {format_bytes(peak, 'GiB', digits=3)} ({peak / self.simulated.peak_bytes:.4f})"
            )
        if self.fit is not None:
            lines.append(str(self.fit))
        lines += [f"with {change}: {fit}" for change, fit in self.alternatives]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        below = "" if self.fit is None else f"<p><b>{self.fit}</b></p>"
        return self.simulated._repr_html_() + below


def report(model: str | Path | Any, gpu: str | Gpu = "T4", **settings: Any) -> MemoryReport:
    """Predict a training step both ways and judge it: what the command line prints.

    Parameters
    ----------
    model, settings
        As `TrainingSetup`.

    Examples
    --------
    >>> answer = report("smollm2-135m", "T4", method="qlora", batch_size=4, sequence_length=128)
    >>> answer.to_json()["verdict"], answer.to_json()["simulated"]["allocated_bytes"]["loaded"] > 10**8
    ('fits', True)
    """
    setup = make_setup(model, **settings, gpu=gpu)
    ours = simulated(setup)
    formula, why = None, ""
    try:
        formula = closed_form(setup)
    except ValueError as error:
        why = str(error)
    alternatives = [] if setup.gpu.is_cpu or judge(ours) else _alternatives(setup)
    return MemoryReport(ours, formula, why, tuple(alternatives))


def _alternatives(setup: TrainingSetup) -> list[tuple[str, Fit]]:
    """What the usual two remedies would do to a setup that doesn't fit."""
    found = []
    if not setup.gradient_checkpointing:
        setup = setup.change(gradient_checkpointing=True)
        found.append(("gradient checkpointing", judge(simulated(setup))))
    if setup.logits == "all":
        ours = setup.change(logits="supervised")
        found.append(("gradient checkpointing, our trainer", judge(simulated(ours))))
    return found
