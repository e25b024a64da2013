"""transformers' trainer and what belongs to it, a second sooner.

Importing it imports peft and bitsandbytes, which would load torch's compiler: bitsandbytes comes first, without
(``onegpu.runtime.import_bitsandbytes``). Import these names from here only.
"""

from onegpu.runtime import import_bitsandbytes

import_bitsandbytes()

from transformers import (  # noqa: E402
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState, TrainerState  # noqa: E402

__all__ = [
    "EarlyStoppingCallback",
    "ExportableState",
    "PrinterCallback",
    "Trainer",
    "TrainerCallback",
    "TrainerState",
    "TrainingArguments",
]
