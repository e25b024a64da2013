"""Published measurements, and what this package and other estimators say about the same runs.

``onegpu memory --validate`` prints the table as Markdown; ``docs/memory_validation.md`` is what it printed.

Nothing here is fitted: the figures are only compared with. Sources:

- fitcheck-llm 0.3.1 on PyPI, ``data/measurements``: 59 different runs on a Tesla T4 by its author (torch 2.10 and 2.14,
  transformers 5.0 and 5.17, peft 0.19 and 0.20, bitsandbytes 0.50), peak over two steps, with its own prediction of each.
- polyglot-ko-1.3b on a T4, allocated after the first step with ``outputs`` alive: the book *LLM을 활용한 실전 AI 애플리케이션
  개발* (chapter 5, transformers 4.40), a public script (4.46, printed to the byte) and a blog post (4.56).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onegpu.gpu_memory.closed_form import closed_form
from onegpu.gpu_memory.other_estimators import deepspeed_bytes, other_estimates
from onegpu.gpu_memory.simulated import library_versions, simulated
from onegpu.gpu_memory.training_setup import make_setup

MIB, GIB = 2**20, 2**30
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class PublishedRun:
    """One run that somebody measured.

    Attributes
    ----------
    model, settings
        As ``TrainingSetup``.
    measured_bytes
        What torch said.
    moment
        "peak", or a moment's name.
    source
        Who measured it.
    fitcheck_bytes
        What fitcheck-llm predicts for its tensors, from the same archive.
    keeps
        Of an older transformers: which formulas know what it keeps (``closed_form``); None: simulated.
    """

    model: str
    settings: dict[str, Any]
    measured_bytes: int
    moment: str
    source: str
    fitcheck_bytes: int | None = None
    keeps: str | None = None

    def predict(self) -> int:
        """What this package says."""
        if self.keeps is not None:
            found = closed_form(self.model, keeps=self.keeps, **self.settings)
        else:
            found = simulated(self.model, **self.settings)
        return found.peak_bytes if self.moment == "peak" else found[self.moment].allocated_bytes


def _t4(model, attention, batch, length, method, rank, measured_mib, fitcheck_mib) -> PublishedRun:
    settings = {
        "method": method, "loop": "plain", "dtype": "fp16", "gradient_checkpointing": True, "gpu": "T4", "lora_r": rank,
        "target_modules": QKVO, "double_quantization": False, "per_device_train_batch_size": batch, "max_length": length,
        "attention": "eager" if attention == "eager" else "sdpa_expanded",
    }  # fmt: skip
    return PublishedRun(
        model, settings, round(measured_mib * MIB), "peak", "fitcheck-llm 0.3.1", round(fitcheck_mib * MIB)
    )


def _polyglot(batch, gib, source, keeps=None, **more) -> PublishedRun:
    settings = {"method": "full", "loop": "plain", "dtype": "fp16", "gpu": "T4", "max_length": 256}
    settings |= {"per_device_train_batch_size": batch} | more
    return PublishedRun("polyglot-ko-1.3b", settings, round(gib * GIB), "after_step", source, None, keeps)


_BOOK, _SCRIPT, _BLOG = "book, transformers 4.40", "script, transformers 4.46", "blog, transformers 4.56"

PUBLISHED = (
    _polyglot(4, 10.586, _BOOK, "4.40"),
    _polyglot(8, 11.113, _BOOK, "4.40"),
    _polyglot(16, 12.164, _BOOK, "4.40"),
    _polyglot(4, 11_240_678_912 / GIB, _SCRIPT, "4.46"),
    _polyglot(16, 12_633_499_136 / GIB, _SCRIPT, "4.46"),
    _polyglot(4, 10.186, _BLOG),
    _polyglot(8, 10.432, _BLOG),
    _polyglot(16, 10.921, _BLOG),
    _polyglot(16, 10.171, _BLOG, gradient_checkpointing=True),
    _t4("tinyllama-1.1b", "eager", 2, 1024, "qlora", 32, 2873.7, 2848.6),
    _t4("tinyllama-1.1b", "eager", 2, 2048, "qlora", 32, 6651.0, 6843.6),
    _t4("tinyllama-1.1b", "eager", 8, 1024, "qlora", 32, 8017.9, 7921.6),
    _t4("tinyllama-1.1b", "eager", 2, 2048, "lora", 32, 6616.1, 6750.5),
    _t4("smollm2-1.7b", "eager", 1, 2048, "qlora", 32, 4323.0, 4352.4),
    _t4("smollm2-1.7b", "eager", 1, 2048, "lora", 32, 5706.2, 5766.6),
    _t4("tinyllama-1.1b", "sdpa", 2, 2048, "qlora", 32, 3897.0, 3861.6),
    _t4("tinyllama-1.1b", "sdpa", 8, 1024, "qlora", 32, 6631.7, 6565.6),
    _t4("tinyllama-1.1b", "sdpa", 2, 2048, "lora", 32, 4354.1, 4337.7),
    _t4("smollm2-1.7b", "sdpa", 1, 2048, "qlora", 32, 3345.8, 3360.4),
    _t4("smollm2-1.7b", "sdpa", 4, 1024, "lora", 32, 6528.7, 6528.2),
    _t4("smollm2-135m", "eager", 1, 4096, "qlora", 32, 3679.3, 3563.3),
    _t4("smollm2-135m", "sdpa", 1, 4096, "lora", 32, 3148.1, 3135.8),
    _t4("smollm2-360m", "eager", 1, 4096, "lora", 32, 4908.5, 4757.1),
    _t4("smollm2-360m", "sdpa", 1, 4096, "qlora", 32, 4017.8, 4001.0),
    _t4("qwen2.5-1.5b", "eager", 1, 2048, "qlora", 32, 6850.0, 6810.5),
    _t4("qwen2.5-1.5b", "sdpa", 2, 1024, "lora", 32, 7401.8, 7399.9),
    _t4("llama-3.2-1b", "eager", 1, 1024, "qlora", 16, 3728.1, 3708.3),
    _t4("llama-3.2-3b", "sdpa", 1, 1024, "qlora", 16, 5495.0, 5495.7),
    _t4("qwen2.5-7b", "eager", 1, 1024, "qlora", 16, 10584.8, 10581.3),
)
"""Runs that are compared with, in the order of the table."""


@dataclass(frozen=True)
class Validation:
    """A published run beside what was predicted for it; others' answers where they give one."""

    run: PublishedRun
    predicted_bytes: int
    others: dict[str, int]

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_bytes / self.run.measured_bytes


def validate() -> Iterator[Validation]:
    """Predict every published run, and ask the other estimators about it."""
    for run in PUBLISHED:
        setup = make_setup(run.model, **run.settings)
        others = {"DeepSpeed ZeRO-2": deepspeed_bytes(setup)}
        if run.fitcheck_bytes is not None:
            others["fitcheck-llm"] = run.fitcheck_bytes
        if not setup.adapters:
            found = {e.name: e.bytes for e in other_estimates(setup)}
            others["accelerate"] = found["accelerate estimate-memory"]
            others["HF formula"] = found["HF train_memory formula"]
        yield Validation(run, run.predict(), others)


def validation_page() -> str:
    """Render the table of predicted against measured as a Markdown page."""
    rows = list(validate())
    names = ("accelerate", "DeepSpeed ZeRO-2", "HF formula", "fitcheck-llm")
    head = ["model", "run", "measured", "predicted", "ratio", *names, "measured by"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "--:|" * (3 + len(names)) + "---|"]
    for row in rows:
        s = row.run.settings
        what = [f"{s['method']}, {s['per_device_train_batch_size']} x {s['max_length']}"]
        what += [s["attention"]] if s.get("attention") else []
        what += [row.run.moment.replace("_", " ")] + (
            ["checkpointing"] if s.get("gradient_checkpointing") else []
        )
        cells = [row.run.model, ", ".join(what), f"{row.run.measured_bytes / GIB:.3f}", f"{row.predicted_bytes / GIB:.3f}",
                 f"{row.ratio:.4f}"]  # fmt: skip
        cells += [_with_ratio(row.others.get(name), row.run.measured_bytes) for name in names]
        lines.append("| " + " | ".join([*cells, row.run.source]) + " |")
    distances = [abs(row.ratio - 1) for row in rows]
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    return "\n".join([
        "# GPU memory: predicted against measured", "",
        "Made by `onegpu memory --validate > docs/memory_validation.md`; don't edit it by hand.", "",
        f"{len(rows)} published runs on a T4, sizes in GiB. The worst prediction is {max(distances):.1%} off, their mean "
        f"distance {sum(distances) / len(distances):.2%}. Predicted with {versions}.", "",
        "The measured runs used other versions, named in the last column or in `onegpu.gpu_memory.published`; where a "
        "version keeps other tensors alive, the formulas of that version are asked. `sdpa_expanded` is a patch that repeats "
        "keys and values for the memory-efficient kernel. In parentheses: an answer over what was measured. accelerate and "
        "Hugging Face's formula answer for full fine-tunes only; DeepSpeed's formula counts frozen parameters as if they "
        "were trained, and no activations; fitcheck-llm's constants were fitted on runs of this kind, and its figures are "
        "from its own archive.", "",
        *lines, "",
        "Where it doesn't hold: loops that aren't simulated (Unsloth, axolotl, torchtune, LitGPT have kernels and loops of "
        "their own); `torch.compile`; several cards; what `nvidia-smi` shows on cards whose CUDA context nobody has measured "
        "(a range is given); reserved memory over rows of many lengths, which depends on their order.", "",
    ])  # fmt: skip


def _with_ratio(size: int | None, measured: int) -> str:
    return "" if size is None else f"{size / GIB:.2f} ({size / measured:.2f})"
