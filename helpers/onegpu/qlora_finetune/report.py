"""What a fine-tune did, as a short text and as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onegpu.qlora_finetune.evaluation import Scores

MIB = 2**20


@dataclass(frozen=True)
class FinetuneResult:
    """Result of a fine-tune.

    Attributes
    ----------
    before, after : Scores
        Held-out scores before and after training.
    trained : Scores or None
        Of pairs that were trained on, after training (DPO): up to some 256 of them.
    samples : tuple of dict
        ``question``, ``before``, ``after`` and ``wanted`` of the first held-out rows; of pairs also ``rejected``.
    losses : tuple of (int, float)
        Step and training loss (nats per supervised token; of DPO per pair).
    margins : tuple of (int, float)
        Step and mean margin of its pairs before its update (DPO).
    eval_losses : tuple of (int, float)
        Step and held-out loss: before training (step 0), at each evaluation, and after.
    skipped_steps : tuple of int
        Steps that the fp16 gradient scaler skipped.
    steps : int
        Optimizer steps done.
    tokens, supervised_tokens : int
        Trained on, over all epochs.
    train_seconds : float
        Of training alone, over all sessions of the run.
    peak_memory_bytes : int
        On a GPU the most that torch allocated, else the process's peak resident memory.
    self_check : str
        What the check in numbers before the first step found (``onegpu.packed_training.self_check``).
    weights : dict
        By number format the ``parameters``, their ``bytes``, and how many are ``trained``.
    """

    before: Scores
    after: Scores
    samples: tuple[dict[str, str], ...]
    losses: tuple[tuple[int, float], ...]
    eval_losses: tuple[tuple[int, float], ...]
    skipped_steps: tuple[int, ...]
    steps: int
    tokens: int
    supervised_tokens: int
    train_seconds: float
    peak_memory_bytes: int
    adapter_dir: str
    dropped_rows: dict[str, int]
    model: str
    machine: str
    precision: str
    self_check: str
    weights: dict[str, dict[str, int]]
    versions: dict[str, str]
    config: dict[str, Any]
    held_out_rows: int = 0
    dropped_held_out_rows: dict[str, int] = dataclasses.field(default_factory=dict)
    unused_keys: dict[str, int] = dataclasses.field(default_factory=dict)
    data_notes: tuple[str, ...] = ()
    trained: Scores | None = None
    margins: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> FinetuneResult:
        """Read back what ``to_json`` made.

        Raises
        ------
        ValueError
            If it isn't a report.
        """
        try:
            newer = {"trained": None, "margins": ()}
            found = {f.name: (newer | content)[f.name] for f in dataclasses.fields(cls)}
            for f in dataclasses.fields(cls):
                if f.type.startswith("tuple"):
                    found[f.name] = tuple(tuple(v) if isinstance(v, list) else v for v in found[f.name])
            scores = {name: found[name] and Scores(**found[name]) for name in ("before", "after", "trained")}
            return cls(**found | scores)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no report of a fine-tune: {error}") from error

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second of training."""
        return self.tokens / self.train_seconds if self.train_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON types, with ``tokens_per_second``."""
        return dataclasses.asdict(self) | {"tokens_per_second": self.tokens_per_second}

    def __str__(self) -> str:
        out = [
            f"model     {self.model}",
            f"machine   {self.machine}, {self.precision}",
            f"trained   {self.steps} steps, {self.tokens:,} tokens ({self.supervised_tokens:,} supervised) in "
            f"{self.train_seconds:,.0f} s: {self.tokens_per_second:,.0f} tokens/s",
            f"memory    peak {self.peak_memory_bytes / MIB:,.0f} MiB",
            f"weights   {self._stored()}",
            f"checked   {self.self_check}",
            f"adapter   {self.adapter_dir}",
        ]
        for name, dropped in (("", self.dropped_rows), (" held-out", self.dropped_held_out_rows)):
            if dropped:
                out.append(
                    "dropped   " + ", ".join(f"{n}{name} rows ({reason})" for reason, n in dropped.items())
                )
        out += [f"data      {note}" for note in self.data_notes]
        if self.unused_keys:
            named = ", ".join(f"{key!r} ({n} rows)" for key, n in self.unused_keys.items())
            out.append(f"not used  keys {named}")
        if self.skipped_steps:
            out.append(
                f"skipped   steps {list(self.skipped_steps)}: the fp16 scaler found its scale (expected)"
            )
        out += ["", "training loss", curve([loss for _, loss in self.losses]), ""]
        if len(self.eval_losses) > 2:
            out += ["held-out loss", curve([loss for _, loss in self.eval_losses]), ""]
        if self.margins:
            out += ["margin of each step's pairs, before the step", curve([m for _, m in self.margins]), ""]
        answered = f", {self.after.rows} answered" if 0 < self.after.rows != self.held_out_rows else ""
        kind = "pairs" if self.after.pairs else "rows"
        head = f"held-out, {self.held_out_rows or self.after.rows} {kind}{answered}"
        out += score_lines(head, {"before": self.before, "after": self.after})
        if self.trained is not None:
            out += ["", *score_lines(f"trained on, {self.trained.pairs} pairs", {"after": self.trained})]
        for i, sample in enumerate(self.samples, 1):
            out += ["", f"sample {i}"]
            for name, said in sample.items():
                text = textwrap.shorten(said, 300, placeholder=" ...") or "(empty)"
                out.append(
                    textwrap.fill(text, 100, initial_indent=f"  {name:<9}", subsequent_indent=" " * 11)
                )
        out += ["", "versions  " + ", ".join(f"{k} {v}" for k, v in self.versions.items())]
        return "\n".join(out)

    def _stored(self) -> str:
        """Say how the parameters lie in memory: how many are in 4 bits is easily overrated (bitsandbytes#1849)."""
        said = ", ".join(
            f"{kind} {n['bytes'] / MIB:,.0f} MiB ({n['parameters'] / 1e6:,.1f} M parameters)"
            for kind, n in self.weights.items()
        )
        total = sum(n["parameters"] for n in self.weights.values())
        packed = self.weights.get("nf4", {"parameters": 0})["parameters"]
        if self.config["quantization"] == "nf4" and packed < total / 2:
            said += (
                f"; only {packed / total:.0%} of the parameters are in 4 bits: embeddings, head and a mixture's "
                "experts are not quantized"
            )
        return said

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def score_rows(scores: Scores) -> dict[str, str]:
    """What was scored, by name, as text; shares of pairs come as counts.

    Examples
    --------
    >>> score_rows(Scores(0.62, pairs=8, margin=0.21, margin_deviation=0.4, margins_above_0=6, chosen_likelier=5))
    {'loss (nats per pair)': '0.620', 'margin': '+0.21 sd 0.40', 'margin above 0': '6 of 8', 'chosen is likelier': '5 of 8'}
    """
    if scores.pairs:
        of = f"of {scores.pairs}"
        margins = {
            "loss (nats per pair)": f"{scores.loss:.3f}",
            "margin": f"{scores.margin:+.2f} sd {scores.margin_deviation:.2f}",
            "margin above 0": f"{scores.margins_above_0} {of}",
        } if scores.margin is not None else {}  # fmt: skip
        return margins | {"chosen is likelier": f"{scores.chosen_likelier} {of}"}
    found = {
        "loss (nats per token)": (scores.loss, "{:.3f}"),
        "valid JSON": (scores.valid_json, "{:.0%}"),
        "intent right": (scores.intent_accuracy, "{:.0%}"),
        "urgency right": (scores.urgency_accuracy, "{:.0%}"),
    }
    return {name: form.format(value) for name, (value, form) in found.items() if value is not None}


def score_lines(head: str, columns: dict[str, Scores], width: int = 10) -> list[str]:
    """A table of scores as lines of text, one column for each ``Scores``."""
    rows = {name: score_rows(scores) for name, scores in columns.items()}
    width = max([width, *(len(text) + 2 for column in rows.values() for text in column.values())])
    lines = [f"{head:<24}" + "".join(f"{name:>{width}}" for name in columns)]
    for what in dict.fromkeys(what for column in rows.values() for what in column):
        lines.append(f"{what:<24}" + "".join(f"{column.get(what, '-'):>{width}}" for column in rows.values()))
    return lines


def curve(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """Draw values as text, left to right, with the highest and lowest labelled.

    Examples
    --------
    >>> print(curve([4.0, 2.0, 1.0], height=3))
     4.00 *
          .*
     1.00 ..*
    """
    values = [float(v) for v in values]
    if not values:
        return "(no steps)"
    if len(values) > width:  # means of equal shares of the steps
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    levels = [round((v - low) / (high - low) * (height - 1)) if high > low else 0 for v in values]
    lines = []
    for level in range(height - 1, -1, -1):
        label = f"{high:5.2f}" if level == height - 1 else f"{low:5.2f}" if level == 0 else " " * 5
        marks = "".join("*" if lev == level else "." if lev > level else " " for lev in levels)
        lines.append(f"{label} {marks}".rstrip())
    return "\n".join(lines)
