"""Does it fit on this card, what would make it fit, how large may batch or rows be, and the command line's whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from onegpu.dtype_sizing import format_bytes
from onegpu.gpu_memory.breakdown import MemoryBreakdown, wrapped
from onegpu.gpu_memory.closed_form import OUT_OF_RANGE, closed_form
from onegpu.gpu_memory.simulated import simulated
from onegpu.gpu_memory.step_time import StepTime, step_time
from onegpu.gpu_memory.training_setup import ResolvedSetup, TrainingSetup, make_setup
from onegpu.runtime import GPUS, Gpu, find_gpu

FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"
LENGTH_STEP = 64  # `largest_length` goes by so many tokens
_SURE = 1.3  # a formula this far above the card needs no simulation to be sure
_BIGGER = ("L4", "A100-40GB", "A100-80GB", "H200", "B200")


@dataclass(frozen=True)
class Fit:
    """Whether a training step fits on its card. True only if it does in every case.

    Attributes
    ----------
    breakdown
        The prediction.
    total_bytes
        What the card has (or what was allowed).
    needed_bytes
        At least (peak of the tensors and the smallest CUDA context) and at most (all that the allocator reserves, and
        the largest context).
    changes, cost
        Of a remedy: the settings that were changed, and what the change costs.
    """

    breakdown: MemoryBreakdown
    total_bytes: int
    needed_bytes: tuple[int, int]
    changes: Mapping[str, Any] = field(default_factory=dict)
    cost: str = ""

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
        setup = self.breakdown.setup
        where = "this machine" if setup.gpu.is_cpu else setup.gpu.name
        needs = low if low == high else f"{low} to {high}"
        needs = f"needs {needs} of {format_bytes(self.total_bytes, 'GiB')}"
        if self.changes:
            return f"{', '.join(f'{n}={v!r}' for n, v in self.changes.items())}: {needs} ({self.cost})"
        answer = f"{self.verdict} on {where}: {needs}"
        why = setup.why_it_does_not_train
        return f"{answer}\nbut it does not train: {why}" if why else answer

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; sizes are whole bytes."""
        return {
            "verdict": self.verdict,
            "needed_bytes": list(self.needed_bytes),
            "total_bytes": self.total_bytes,
            "gpu": self.breakdown.setup.gpu.name,
            "changes": dict(self.changes),
            "cost": self.cost,
        }

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"


def fits(model: Any, gpu: str | Gpu = "T4", **settings: Any) -> Fit:
    """Say whether a training step fits on a card.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``; the model may be a setup.
    gpu
        The card.

    Raises
    ------
    ValueError
        For the CPU, whose memory isn't a card's, and for a setup that can't be trained.

    Examples
    --------
    >>> print(fits("smollm2-135m", "T4", per_device_train_batch_size=8).verdict)
    fits
    """
    return judge(simulated(make_setup(model, **settings, gpu=_card(gpu))))


def judge(breakdown: MemoryBreakdown, budget_bytes: int | None = None, **of_a_remedy: Any) -> Fit:
    """Hold a prediction against its card, or against a number of bytes (context included)."""
    gpu = breakdown.setup.gpu
    low, high = gpu.context_bytes
    most = max(breakdown.reserved_bytes or 0, breakdown.peak_bytes)
    total = _card(gpu).total_bytes if budget_bytes is None else budget_bytes
    return Fit(breakdown, total, (breakdown.peak_bytes + low, most + high), **of_a_remedy)


# --- what would make it fit -------------------------------------------------------------------------------------

SAME = "the same numbers"
TIME = "the same numbers, a step takes about a third longer"


def remedies(
    model: Any, /, *, count: int = 3, budget_bytes: int | None = None, cards: bool = True, **settings: Any
) -> tuple[Fit, ...]:
    """Find changes with which a training step fits, in the order in which one would try them.

    First what changes no number (checkpointing, a smaller micro-batch that is accumulated, a fused attention kernel, our
    trainer's head), then shorter rows, 8-bit optimizer states, QLoRA, and last a bigger card. A change that is
    impossible is passed over.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``, or a setup.
    count
        How many to find; fewer are returned if there aren't so many.
    budget_bytes
        What the run may take, context included; the card's memory if not given.
    cards
        Whether a bigger card is a remedy, too: if so, the smallest that does comes last.
    """
    return _remedies(make_setup(model, **settings), None, count, budget_bytes, cards)


def _remedies(
    setup: TrainingSetup,
    asked: MemoryBreakdown | None,
    count: int = 3,
    budget_bytes: int | None = None,
    cards: bool = True,
) -> tuple[Fit, ...]:
    """Find remedies; what the setup itself needs, where it is known, says of some that they are none."""
    found: list[Fit] = []
    for changes, cost in cheaper(setup.resolved):
        if len(found) == count:
            break
        fit = _try(setup, changes, cost, budget_bytes, asked)
        if _helps(fit):
            found.append(fit)
    if cards and budget_bytes is None and not setup.resolved.gpu.is_cpu:
        bigger = _bigger_card(setup)
        found += [bigger] if bigger is not None else []
    return tuple(found)


def cheaper(setup: ResolvedSetup) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (changes, cost) that need less memory, in the order in which one would try them."""
    recompute = {} if setup.gradient_checkpointing or not setup.trains else {"gradient_checkpointing": True}
    kernel = {"attention": "sdpa"} if setup.attention == "eager" else {}
    smaller: dict[str, Any] = {}
    if kernel:
        yield kernel, "the same numbers but for rounding"
    if recompute:
        yield kernel | recompute, TIME
    batch, accumulate = setup.per_device_train_batch_size, setup.gradient_accumulation_steps
    while batch > 1:
        batch, accumulate = (batch // 2, accumulate * 2) if batch % 2 == 0 else (1, accumulate * batch)
        smaller = {"per_device_train_batch_size": batch}
        smaller |= {"gradient_accumulation_steps": accumulate} if setup.trains else {}
        yield kernel | smaller, SAME
    kept = kernel | recompute | smaller
    if recompute and smaller:
        yield kept, TIME
    if setup.loop in ("plain", "trainer") and setup.task == "sft":
        kept = kept | {"loop": "onegpu"}
        yield kept, "the same loss by our trainer, which makes logits of supervised tokens alone"
    shorter: dict[str, Any] = {}
    for length in (setup.max_length // 2, setup.max_length // 4):
        if length >= 128:
            shorter = {"max_length": length}
            yield kept | shorter, "rows longer than that are left out"
    eight_bits = {}
    if setup.optim in ("adamw_torch", "adamw_single", "adamw_torch_fused") and setup.trains:
        eight_bits = {"optim": "adamw_8bit"}
        yield kept | eight_bits, "optimizer states in 8 bits"
    if setup.quantization == "int8":
        kept = kept | {"quantization": "nf4"}
        yield kept, "the frozen weights are kept in 4 bits, not 8"
        yield kept | eight_bits, "the frozen weights are kept in 4 bits, not 8; optimizer states in 8"
    if setup.method != "qlora":
        trained = (
            "adapters are trained, not the weights, which are"
            if setup.method == "full"
            else "the frozen weights are"
        )
        kept = kept | {"method": "qlora"}
        yield kept, f"{trained} kept in 4 bits"
        yield kept | eight_bits, f"{trained} kept in 4 bits; optimizer states in 8"
    if shorter and kept | shorter | eight_bits != shorter:
        yield kept | shorter | eight_bits, "all of these, and rows longer than that are left out"


def _try(
    setup: TrainingSetup,
    changes: dict[str, Any],
    cost: str,
    budget: int | None,
    asked: MemoryBreakdown | None,
) -> Fit | None:
    """Simulate a change, unless it is sure without that it doesn't fit; None then, or if it is impossible."""
    try:
        changed = setup.change(**changes)
        card = changed.resolved.gpu
        total = budget if budget is not None else card.total_bytes
        if asked is not None and least_bytes(asked, changes) + card.context_bytes[0] > total:
            return None
        try:
            if closed_form(changed).peak_bytes > _SURE * total:
                return None
        except ValueError:
            pass  # no formula for this one
        return judge(simulated(changed), budget, changes=changes, cost=cost)
    except ValueError:
        return None


def _helps(fit: Fit | None) -> bool:
    return bool(fit) and not fit.breakdown.setup.why_it_does_not_train


def least_bytes(asked: MemoryBreakdown, changes: Mapping[str, Any]) -> int:
    """A lower bound of the peak with fewer or shorter rows, from the peak as it is; 0 for other changes.

    What is there during the whole second step (weights and optimizer state) stays. The rest grows at most as the batch
    does, and as the square of the rows' length.

    Examples
    --------
    >>> whole = simulated("smollm2-135m", per_device_train_batch_size=8, max_length=64)
    >>> half = simulated("smollm2-135m", per_device_train_batch_size=4, max_length=64)
    >>> whole["loaded"].allocated_bytes < least_bytes(whole, {"per_device_train_batch_size": 4}) <= half.peak_bytes
    True
    """
    if asked.setup.lengths is not None or set(changes) - {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_length",
    }:
        return 0
    setup = asked.setup
    stays = asked["loaded"].allocated_bytes
    if setup.trains:
        stays += asked["after_step"].by_category.get("optimizer_state", 0)
    rows = (
        changes.get("per_device_train_batch_size", setup.per_device_train_batch_size)
        / setup.per_device_train_batch_size
    )
    length = changes.get("max_length", setup.max_length) / setup.max_length
    return stays + int((asked.peak_bytes - stays) * rows * length**2)


def _bigger_card(setup: TrainingSetup) -> Fit | None:
    least = setup.resolved.gpu.total_bytes
    for name in _BIGGER:
        if GPUS[name].total_bytes > least:
            fit = _try(setup, {"gpu": name}, "a bigger card", None, None)
            if _helps(fit):
                return fit
            if fit is not None:  # these cards run the same kernels in the same dtype
                least = max(least, fit.breakdown.peak_bytes)
    return None


# --- the largest ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Largest:
    """The largest batch (or row) that fits for sure, and the next that doesn't.

    Attributes
    ----------
    setting
        "per_device_train_batch_size" or "max_length".
    value
        The largest that fits; 0: not even the smallest does.
    fit, next_fit
        Of that one (None with 0), and of the next (None where the model has no more positions).
    """

    setting: str
    value: int
    fit: Fit | None
    next_fit: Fit | None

    @property
    def batch_size(self) -> int:
        """``value``, where a batch was asked for."""
        return self.value

    def __str__(self) -> str:
        what = "batch" if self.setting == "per_device_train_batch_size" else "rows of"
        lines = []
        for fit in (self.fit, self.next_fit):
            if fit is not None:
                lines.append(f"{what} {getattr(fit.breakdown.setup, self.setting)} {fit}")
        if self.next_fit is None:
            lines.append("as far as was looked: the model has no more positions, or the limit was reached")
        if self.fit is None:
            lines.insert(0, f"no {what.removesuffix(' of')} fits")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "setting": self.setting,
            "value": self.value,
            "fit": None if self.fit is None else self.fit.to_json(),
            "next_fit": None if self.next_fit is None else self.next_fit.to_json(),
        }

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())


def largest_batch(model: Any, gpu: str | Gpu = "T4", *, limit: int = 4096, **settings: Any) -> Largest:
    """Find the largest batch that fits on a card for sure.

    Memory grows with the batch in an almost straight line, so a few simulations find it: two give the slope, the
    others confirm.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``, without ``per_device_train_batch_size``.
    limit
        The largest batch to try.
    """
    return _largest("per_device_train_batch_size", 1, limit, model, gpu, settings)


def largest_length(model: Any, gpu: str | Gpu = "T4", *, limit: int = 2**17, **settings: Any) -> Largest:
    """Find the longest rows, in steps of 64 tokens, that fit on a card for sure; at most the model's positions.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``, without ``max_length``.
    limit
        The longest rows to try.
    """
    from onegpu.gpu_memory.model_configs import model_config

    of = model.model if isinstance(model, TrainingSetup) else model
    positions = getattr(model_config(of).get_text_config(), "max_position_embeddings", None) or limit
    return _largest("max_length", LENGTH_STEP, min(limit, positions), model, gpu, settings)


def _largest(
    setting: str, step: int, limit: int, model: Any, gpu: str | Gpu, settings: dict[str, Any]
) -> Largest:
    settings = {name: value for name, value in settings.items() if name != setting}
    setup = make_setup(model, **settings, gpu=_card(gpu))
    tried: dict[int, Fit] = {}

    def fit(n: int) -> Fit:
        if n not in tried:
            tried[n] = judge(simulated(setup.change(**{setting: n * step})))
        return tried[n]

    most = limit // step
    if not fit(1):
        return Largest(setting, 0, None, fit(1))
    good, bad, guess = 1, most + 1, min(2, most)
    while bad - good > 1:
        if fit(guess):
            good = guess
        else:
            bad = guess
        guess = min(max(_guess(tried, good), good + 1), bad - 1)
    return Largest(setting, good * step, fit(good), fit(good + 1) if good < most else None)


def _guess(tried: dict[int, Fit], good: int) -> int:
    """Follow the line through the two largest that were tried up to the card's size."""
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


# --- the whole answer -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryReport:
    """All that ``onegpu memory`` says: both predictions and the verdict. Prints as text; ``to_json`` has whole bytes."""

    simulated: MemoryBreakdown
    closed_form: MemoryBreakdown | None
    why_no_closed_form: str = ""
    remedies: tuple[Fit, ...] = ()
    step_time: StepTime | None = None

    @property
    def setup(self) -> ResolvedSetup:
        """What was asked, with every setting decided."""
        return self.simulated.setup

    @cached_property
    def fit(self) -> Fit | None:
        """The verdict; None for the CPU."""
        return None if self.setup.gpu.is_cpu else judge(self.simulated)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain dictionaries."""
        settings = {f.name: getattr(self.setup, f.name) for f in fields(TrainingSetup)}
        settings["model"] = self.setup.name
        settings["gpu"] = self.setup.gpu.name
        lengths = self.setup.lengths
        if lengths is not None:
            settings["lengths"] = {
                "examples": len(lengths),
                "shortest": min(lengths),
                "longest": max(lengths),
            }
        fit = self.fit
        return {
            "settings": settings,
            "gpu": asdict(self.setup.gpu),
            "verdict": None if fit is None else fit.verdict,
            "needed_bytes": None if fit is None else list(fit.needed_bytes),
            "why_it_does_not_train": self.setup.why_it_does_not_train,
            "simulated": self.simulated.to_json(),
            "closed_form": self.closed_form and self.closed_form.to_json(),
            "step_time": self.step_time and self.step_time.to_json(),
            "why_no_closed_form": self.why_no_closed_form,
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "versions": dict(self.simulated.versions),
        }

    def _below(self) -> list[str]:
        lines = []
        if self.closed_form is None:
            lines.append(f"no closed form: {self.why_no_closed_form}")
        else:
            peak = self.closed_form.peak_bytes
            lines.append(
                f"by formula the peak is {format_bytes(peak, 'GiB', digits=3)} ({peak / self.simulated.peak_bytes:.3f} of it)"
            )
            lines += [note for note in self.closed_form.notes if note.startswith(OUT_OF_RANGE)]
        if self.step_time is not None:
            lines.append(str(self.step_time))
        if self.fit is not None:
            lines += str(self.fit).splitlines()
            if not self.fit:
                lines.append("what would fit:" if self.remedies else "nothing that was tried would fit")
        return lines

    def __str__(self) -> str:
        remedies = (f"- {remedy}" for remedy in self.remedies)
        return "\n".join(
            [str(self.simulated), *(part for line in (*self._below(), *remedies) for part in wrapped(line))]
        )

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(line)}</p>" for line in self._below())
        remedies = "".join(f"<li>{escape(str(remedy))}</li>" for remedy in self.remedies)
        return self.simulated._repr_html_() + below + (f"<ul>{remedies}</ul>" if remedies else "")


def report(
    model: str | Path | Any,
    gpu: str | Gpu | None = None,
    *,
    run: Mapping[str, Any] | None = None,
    **settings: Any,
) -> MemoryReport:
    """Predict a training step both ways and judge it: what the command line prints.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``, or a setup.
    gpu
        The card; the setup's if not given.
    run
        The ``report.json`` of a finished run on such a card, which corrects how long a step takes.

    Examples
    --------
    >>> answer = report("smollm2-135m", "T4", per_device_train_batch_size=4, max_length=128)
    >>> answer.to_json()["verdict"], answer.to_json()["simulated"]["allocated_bytes"]["loaded"] > 10**8
    ('fits', True)
    """
    setup = make_setup(model, **settings if gpu is None else settings | {"gpu": gpu})
    ours = simulated(setup)
    formula, why = None, ""
    try:
        formula = closed_form(setup)
    except ValueError as error:
        why = str(error)
    fitting = setup.resolved.gpu.is_cpu or judge(ours)
    return MemoryReport(ours, formula, why, () if fitting else _remedies(setup, ours), step_time(ours, run))
