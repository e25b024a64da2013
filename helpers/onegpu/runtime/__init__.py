"""What this machine is, which precision to train in on it, and the table of cards (what is missing: ``onegpu.doctor``).

Nothing heavy is imported until a function needs it.
"""

from onegpu.runtime.bitsandbytes import import_bitsandbytes
from onegpu.runtime.environment import Versions, hub_offline, hub_reachable, no_progress_bars, quiet, versions
from onegpu.runtime.gpus import COURSE_CARDS, GPUS, Gpu, find_gpu, this_gpu
from onegpu.runtime.hardware import (
    Machine,
    PeakMemory,
    Precision,
    machine,
    on_colab,
    on_session_machine,
    peak_memory,
    peak_memory_bytes,
    precision,
    reset_peak_memory,
    seed_everything,
)
from onegpu.runtime.matmul import onednn_matmul

__all__ = [
    "COURSE_CARDS",
    "GPUS",
    "Gpu",
    "Machine",
    "PeakMemory",
    "Precision",
    "Versions",
    "find_gpu",
    "hub_offline",
    "hub_reachable",
    "import_bitsandbytes",
    "machine",
    "no_progress_bars",
    "on_colab",
    "on_session_machine",
    "onednn_matmul",
    "peak_memory",
    "peak_memory_bytes",
    "precision",
    "quiet",
    "reset_peak_memory",
    "seed_everything",
    "this_gpu",
    "versions",
]
