"""What this machine is, which precision to train in on it, and what is missing.

Nothing heavy is imported until a function needs it.
"""

from onegpu.runtime.environment import hub_offline, hub_reachable, quiet
from onegpu.runtime.machine import (
    Machine,
    PeakMemory,
    Precision,
    machine,
    peak_memory,
    peak_memory_bytes,
    precision,
    reset_peak_memory,
    seed_everything,
)

__all__ = [
    "Machine",
    "PeakMemory",
    "Precision",
    "hub_offline",
    "hub_reachable",
    "machine",
    "peak_memory",
    "peak_memory_bytes",
    "precision",
    "quiet",
    "reset_peak_memory",
    "seed_everything",
]
