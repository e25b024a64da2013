"""QLoRA on one small GPU, or on a CPU: the main job of this course.

``finetune(FinetuneConfig())`` loads a real model in NF4, trains LoRA adapters on the shipped task, evaluates before and
after, and saves the adapter. Underneath are transformers' Trainer, peft and bitsandbytes; what is ours is where the time and
the memory go, and stands in ``onegpu.packed_training``.

Sources: QLoRA, arXiv 2305.14314; LoRA, arXiv 2106.09685.
"""

from onegpu import runtime

runtime.quiet()  # before bitsandbytes is imported below

from onegpu.qlora_finetune.adapters import attach_adapters, stored_as  # noqa: E402
from onegpu.qlora_finetune.config import CPU_SETTINGS, SYSTEM_PROMPT, T4_SETTINGS, FinetuneConfig  # noqa: E402
from onegpu.qlora_finetune.evaluation import Scores, generate, read_triage, score_triage, triage_example  # noqa: E402
from onegpu.qlora_finetune.folders import output_folder  # noqa: E402
from onegpu.qlora_finetune.memory import (  # noqa: E402
    OutOfMemory,
    explain_out_of_memory,
    predict_memory,
    settings_that_fit,
)
from onegpu.qlora_finetune.merge import Merged, merge_adapter  # noqa: E402
from onegpu.qlora_finetune.report import FinetuneResult, curve  # noqa: E402
from onegpu.qlora_finetune.rows import TrainingData, prepare_data  # noqa: E402
from onegpu.qlora_finetune.run import finetune  # noqa: E402
from onegpu.qlora_finetune.stopping import Interrupted, NotSaved  # noqa: E402
from onegpu.qlora_finetune.tasks import CHATS, TRIAGE, Task, task_of  # noqa: E402
from onegpu.sft_datasets import read_rows  # noqa: E402

__all__ = [
    "CHATS",
    "CPU_SETTINGS",
    "SYSTEM_PROMPT",
    "T4_SETTINGS",
    "TRIAGE",
    "FinetuneConfig",
    "FinetuneResult",
    "Interrupted",
    "Merged",
    "NotSaved",
    "OutOfMemory",
    "Scores",
    "Task",
    "TrainingData",
    "attach_adapters",
    "curve",
    "explain_out_of_memory",
    "finetune",
    "generate",
    "merge_adapter",
    "output_folder",
    "predict_memory",
    "prepare_data",
    "read_rows",
    "read_triage",
    "score_triage",
    "settings_that_fit",
    "stored_as",
    "task_of",
    "triage_example",
]
