"""QLoRA on one small GPU, or on a CPU: the main job of this course.

``finetune(FinetuneConfig())`` loads a real model in NF4, trains LoRA adapters on the shipped task, evaluates before and
after, and saves the adapter. Underneath are transformers' Trainer, peft and bitsandbytes; what is ours is where the time and
the memory go, and stands in ``onegpu.packed_training``. A name's module is imported when the name is first used: settings
and tasks are there without torch.

Sources: QLoRA, arXiv 2305.14314; LoRA, arXiv 2106.09685.
"""

from __future__ import annotations

import importlib
from typing import Any

from onegpu import runtime
from onegpu.sft_datasets import read_rows

runtime.quiet()  # before bitsandbytes is imported

_NAMES = {
    "adapters": ("attach_adapters", "stored_as"),
    "config": ("CPU_SETTINGS", "FinetuneConfig", "SYSTEM_PROMPT", "T4_SETTINGS"),
    "evaluation": ("Scores", "generate", "read_triage", "score_triage", "triage_example"),
    "folders": ("output_folder",),
    "memory": ("OutOfMemory", "explain_out_of_memory", "predict_memory", "row_lengths", "settings_that_fit"),
    "merge": ("Merged", "merge_adapter"),
    "report": ("FinetuneResult", "curve"),
    "rows": ("TrainingData", "prepare_data"),
    "run": ("finetune",),
    "stopping": ("Interrupted", "NotSaved"),
    "tasks": ("CHATS", "TRIAGE", "Task", "task_of"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["read_rows", *_MODULE_OF]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'onegpu.qlora_finetune' has no attribute {name!r}")
    return getattr(importlib.import_module(f"onegpu.qlora_finetune.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
