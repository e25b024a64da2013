"""The one result type of this topic: bytes by category at named moments of a training step, and the peak.

Three ways lead to it (``closed_form``, ``simulated``, ``measured``), so that any two can be laid side by side.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Any

from onegpu.dtype_sizing import format_bytes

CATEGORIES: Mapping[str, str] = MappingProxyType(
    {
        "weights": "weights",
        "quantization_state": "quantization state",
        "buffers": "buffers",
        "lora": "LoRA and input copies",
        "gradients": "gradients",
        "optimizer_state": "optimizer state",
        "activations": "activations saved for backward",
        "logits_and_loss": "logits and loss",
        "kv_cache": "KV cache kept alive",
        "dequantized": "dequantized temporaries",
        "temporaries": "other temporaries",
        "optimizer_temporaries": "optimizer temporaries",
        "cublas_workspace": "cuBLAS workspace",
        "rounding": "allocator rounding",
    }
)
"""What torch allocates, by what it is for: key to label, in the order in which bars are stacked.

"weights" holds the base model, packed 4-bit ones included; "quantization_state" scales and code tables; "lora" the
adapters, their 16-bit copies under autocast, and what peft makes to feed them (input copies, dropout masks, low-rank
products); "activations" what the forward pass (or its recomputation) keeps for the backward pass, inputs included;
"rounding" what the allocator gives beyond the request.
"""

CUDA_CONTEXT = "CUDA context"

MOMENTS: Mapping[str, str] = MappingProxyType(
    {
        "loaded": "model loaded",
        "after_forward": "after the forward pass",
        "after_backward": "after the backward pass",
        "in_step": "highest point of optimizer.step()",
        "after_step": "after the step",
        "second_step": "after a second step",
    }
)


_IN_TABLES = {
    "lora": "LoRA, input copies",
    "activations": "activations",
    "kv_cache": "KV cache",
    "dequantized": "dequantized",
    "temporaries": "temporaries",
    "optimizer_temporaries": "optimizer scratch",
}
_HEADS = {
    "loaded": "loaded",
    "after_forward": "forward",
    "after_backward": "backward",
    "in_step": "in step",
    "after_step": "after",
    "second_step": "second",
}
WIDTH = 80


@dataclass(frozen=True)
class Moment:
    """The state of memory at a named moment.

    Attributes
    ----------
    name
        A key of ``MOMENTS``.
    allocated_bytes
        What ``torch.cuda.memory_allocated()`` says then.
    peak_bytes
        What ``torch.cuda.max_memory_allocated()`` says then: the highest since the model began to load.
    by_category
        Bytes by key of ``CATEGORIES``; adds up to ``allocated_bytes``.
    reserved_bytes
        What ``torch.cuda.memory_reserved()`` says; None where it isn't known.
    requested_bytes
        The tensors alone, without the allocator's rounding.
    """

    name: str
    allocated_bytes: int
    peak_bytes: int
    by_category: Mapping[str, int]
    reserved_bytes: int | None = None

    def __post_init__(self):
        check_sum(self.by_category, self.allocated_bytes, self.name)

    @property
    def requested_bytes(self) -> int:
        """The tensors alone, without the allocator's rounding."""
        return self.allocated_bytes - self.by_category.get("rounding", 0)


@dataclass(frozen=True)
class Peak:
    """The highest point: how many bytes, where it was, and what they were."""

    bytes: int
    where: str
    by_category: Mapping[str, int]
    moment: str = ""

    def __post_init__(self):
        check_sum(self.by_category, self.bytes, "peak")


@dataclass(frozen=True)
class Timeline:
    """Allocated bytes over a training step, by category, at a few hundred to a few thousand points.

    Attributes
    ----------
    positions
        Counts allocations and releases from the start.
    by_category
        Category to a tuple of bytes, one for each position.
    marks
        (position, name): where the phases begin ("forward", "backward", "step").
    """

    positions: tuple[int, ...]
    by_category: Mapping[str, tuple[int, ...]]
    marks: tuple[tuple[int, str], ...]

    @property
    def allocated_bytes(self) -> tuple[int, ...]:
        """All categories together, at each position."""
        return tuple(map(sum, zip(*self.by_category.values(), strict=True)))

    def phase_at(self, position: int) -> str:
        """Name the phase that a position is in."""
        name = self.marks[0][1]
        for start, mark in self.marks:
            if start > position:
                break
            name = mark
        return name


@dataclass(frozen=True)
class Term:
    """One term of a closed form: a category, a formula with its numbers, why it is there, and the bytes."""

    category: str
    formula: str
    reason: str
    bytes: int

    def __str__(self) -> str:
        return f"{CATEGORIES[self.category]}: {self.formula} = {format_bytes(self.bytes, 'GiB', digits=3)} ({self.reason})"


@dataclass(frozen=True)
class MemoryBreakdown:
    """Memory of a training step: bytes by category at named moments, the peak, and where it was.

    Attributes
    ----------
    way
        "closed form", "simulated" or "measured".
    setup
        What was asked (``TrainingSetup``).
    moments
        In order; the last has the highest ``peak_bytes``.
    peak
        The highest point.
    timeline
        Bytes over time, where they are known.
    terms
        The formulas behind the numbers, of a closed form.
    versions
        Of the libraries whose behaviour this depends on.
    notes
        What isn't counted, or was assumed.
    reserved_bytes
        Taken from the card in the end; None where it isn't known.
    work
        The operations of an optimizer step and the bytes they move (``tracking.Work``), of a simulation.
    """

    way: str
    setup: Any
    moments: tuple[Moment, ...]
    peak: Peak
    versions: Mapping[str, str]
    timeline: Timeline | None = field(default=None, repr=False)
    terms: tuple[Term, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    reserved_bytes: int | None = None
    work: Any = field(default=None, repr=False, compare=False)

    def __getitem__(self, name: str) -> Moment:
        for moment in self.moments:
            if moment.name == name:
                return moment
        raise KeyError(f"no moment {name!r}: there are {', '.join(m.name for m in self.moments)}")

    @property
    def peak_bytes(self) -> int:
        """Bytes of the highest point: ``torch.cuda.max_memory_allocated()`` after the run."""
        return self.peak.bytes

    @property
    def device_bytes(self) -> tuple[int, int]:
        """What ``nvidia-smi`` would show, lowest and highest: reserved bytes (or the peak) and the CUDA context."""
        low, high = self.setup.gpu.context_bytes
        used = self.reserved_bytes or self.peak_bytes
        return used + low, used + high

    def rows(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield (category, bytes at each moment and at the peak), leaving out categories that are always empty."""
        columns = [*(m.by_category for m in self.moments), self.peak.by_category]
        for category in CATEGORIES:
            sizes = tuple(column.get(category, 0) for column in columns)
            if any(sizes):
                yield category, sizes

    def to_json(self) -> dict[str, Any]:
        """All of it as plain dictionaries; sizes are whole bytes."""
        return {
            "way": self.way,
            "allocated_bytes": {m.name: m.allocated_bytes for m in self.moments},
            "peak_bytes": {m.name: m.peak_bytes for m in self.moments},
            "reserved_bytes": {m.name: m.reserved_bytes for m in self.moments},
            "by_category": {m.name: dict(m.by_category) for m in self.moments},
            "peak": {
                "bytes": self.peak.bytes,
                "where": self.peak.where,
                "moment": self.peak.moment,
                "by_category": dict(self.peak.by_category),
            },
            "peak_reserved_bytes": self.reserved_bytes,
            "cuda_context_bytes": list(self.setup.gpu.context_bytes),
            "device_bytes": list(self.device_bytes),
            "terms": [
                {"category": t.category, "formula": t.formula, "reason": t.reason, "bytes": t.bytes}
                for t in self.terms
            ],
            "versions": dict(self.versions),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        head = ["GiB", *(_HEADS[m.name] for m in self.moments), "peak"]
        lines = [[_IN_TABLES.get(c, CATEGORIES[c]), *map(_gib, sizes)] for c, sizes in self.rows()]
        total = ["allocated", *(_gib(m.allocated_bytes) for m in self.moments), _gib(self.peak.bytes)]
        reserved = ["reserved", *(_gib(m.reserved_bytes) for m in self.moments), ""]
        table = [head, *lines, total, *([reserved] if self.reserved_bytes is not None else [])]
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        text = [
            " ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        rule = "-" * max(map(len, text))
        text.insert(1, rule)
        text.insert(2 + len(lines), rule)
        return "\n".join([*wrapped(f"{self.way}: {self.setup}"), *text, *self._footer_lines()])

    def _footer_lines(self) -> list[str]:
        return [part for line in self._footer() for part in wrapped(line)]

    def _footer(self) -> list[str]:
        context = self.setup.gpu.context_bytes
        lines = [f"peak {format_bytes(self.peak.bytes, 'GiB', digits=3)} in {self.peak.where}"]
        if any(context):
            low, high = (format_bytes(n, "GiB", digits=1) for n in self.device_bytes)
            shown = low if low == high else f"{low} to {high}"
            lines.append(f"with the CUDA context, nvidia-smi would show {shown}")
        lines += [f"note: {note}" for note in self.notes]
        lines.append("with " + ", ".join(f"{name} {version}" for name, version in self.versions.items()))
        return lines

    def _repr_html_(self) -> str:
        heads = ["", *(MOMENTS[m.name] for m in self.moments), "peak"]
        head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in heads)
        body = "".join(
            f"<tr><th scope='row'>{escape(CATEGORIES[c])}</th>"
            + "".join(f"<td>{_gib(n)}</td>" for n in sizes)
            + "</tr>"
            for c, sizes in self.rows()
        )
        totals = [m.allocated_bytes for m in self.moments] + [self.peak.bytes]
        body += (
            "<tr><th scope='row'>allocated</th>"
            + "".join(f"<td><b>{_gib(n)}</b></td>" for n in totals)
            + "</tr>"
        )
        caption = f"{escape(self.way)}: {escape(str(self.setup))} (GiB)"
        below = "".join(f"<p>{escape(line)}</p>" for line in self._footer())
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>{below}"


def check_sum(by_category: Mapping[str, int], total: int, where: str) -> None:
    """See that the categories are known and add up to the total."""
    unknown = set(by_category) - set(CATEGORIES)
    if unknown:
        raise ValueError(f"{where}: unknown categories {sorted(unknown)}")
    if sum(by_category.values()) != total:
        raise ValueError(f"{where}: categories add up to {sum(by_category.values())} bytes, expected {total}")


def compare(breakdowns: Sequence[MemoryBreakdown], moment: str = "after_step") -> str:
    """Lay several breakdowns side by side at one moment ("peak" for the highest point), with ratios to the first.

    Returns
    -------
    str
        A table in GiB.
    """
    columns = [b.peak.by_category if moment == "peak" else b[moment].by_category for b in breakdowns]
    totals = [sum(column.values()) for column in columns]
    table = [["GiB", *(b.way for b in breakdowns)]]
    for category, label in CATEGORIES.items():
        sizes = [column.get(category, 0) for column in columns]
        if any(sizes):
            table.append([label, *map(_gib, sizes)])
    table.append([f"allocated, {moment.replace('_', ' ')}", *map(_gib, totals)])
    table.append(["ratio", *(f"{total / totals[0]:.4f}" if totals[0] else "" for total in totals)])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    )


def _gib(size: int | None) -> str:
    if size is None:
        return ""
    return format_bytes(size, "GiB", digits=3 if size < 100 * 2**30 else 2).removesuffix(" GiB")


def wrapped(line: str) -> list[str]:
    """Break a line where a terminal of 80 columns would."""
    return textwrap.wrap(line, WIDTH, subsequent_indent="  ")
