"""GPU memory of a fine-tune, three ways: by formula, simulated to the byte without a GPU, and measured.

>>> asked = {"method": "full", "loop": "plain", "per_device_train_batch_size": 4, "max_length": 256, "dtype": "fp16"}
>>> book = closed_form("polyglot-ko-1.3b", **asked, keeps="4.46")
>>> book["after_step"].allocated_bytes  # what a T4 said, to the byte
11240678912

``closed_form``, ``simulated`` and ``measured`` take the same arguments (``TrainingSetup``, whose names and defaults are those of
``onegpu.qlora_finetune.FinetuneConfig``) and return the same ``MemoryBreakdown``. ``fits``, ``remedies``, ``largest_batch`` and ``largest_length`` hold it
against a card, ``report`` is what the command line prints.
"""

from onegpu.gpu_memory.breakdown import (
    CATEGORIES,
    MOMENTS,
    MemoryBreakdown,
    Moment,
    Peak,
    Term,
    Timeline,
    compare,
)
from onegpu.gpu_memory.closed_form import closed_form
from onegpu.gpu_memory.fits import (
    Fit,
    Largest,
    MemoryReport,
    fits,
    judge,
    largest_batch,
    largest_length,
    remedies,
    report,
)
from onegpu.gpu_memory.keeps import KEEPS, Keeps
from onegpu.gpu_memory.live_bytes import gradient_bytes, optimizer_state_bytes, parameter_bytes
from onegpu.gpu_memory.measured import measured
from onegpu.gpu_memory.other_estimators import OtherEstimate, other_estimates
from onegpu.gpu_memory.simulated import simulated
from onegpu.gpu_memory.step_time import StepTime, step_time
from onegpu.gpu_memory.training_setup import OPTIMIZERS, ResolvedSetup, TrainingSetup, make_setup
from onegpu.runtime import GPUS, Gpu, find_gpu, this_gpu

__all__ = [
    "CATEGORIES",
    "GPUS",
    "KEEPS",
    "MOMENTS",
    "OPTIMIZERS",
    "Fit",
    "Gpu",
    "Keeps",
    "Largest",
    "MemoryBreakdown",
    "MemoryReport",
    "Moment",
    "OtherEstimate",
    "Peak",
    "ResolvedSetup",
    "StepTime",
    "Term",
    "Timeline",
    "TrainingSetup",
    "closed_form",
    "compare",
    "find_gpu",
    "fits",
    "gradient_bytes",
    "judge",
    "largest_batch",
    "largest_length",
    "make_setup",
    "measured",
    "optimizer_state_bytes",
    "other_estimates",
    "parameter_bytes",
    "remedies",
    "report",
    "simulated",
    "step_time",
    "this_gpu",
]
