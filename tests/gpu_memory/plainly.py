"""The functions of gpu_memory, asked about a full fine-tune in a plain loop where a test says nothing else.

The package's own default is `onegpu finetune`'s run; most tests here are about the textbook's.
"""

import functools

from onegpu import gpu_memory


def plain(settings):
    """Add what a test doesn't say; adapters are peft's own choice then."""
    settings = {"method": "full", "loop": "plain"} | settings
    return settings if settings["method"] == "full" else {"lora_r": 8, "target_modules": None} | settings


def _plainly(function):
    @functools.wraps(function)
    def ask(*args, **settings):
        is_setup = args and isinstance(args[0], gpu_memory.TrainingSetup)
        return function(*args, **(settings if is_setup else plain(settings)))

    return ask


closed_form, simulated, measured, fits, largest_batch, report, make_setup, other_estimates = map(
    _plainly,
    (
        gpu_memory.closed_form,
        gpu_memory.simulated,
        gpu_memory.measured,
        gpu_memory.fits,
        gpu_memory.largest_batch,
        gpu_memory.report,
        gpu_memory.make_setup,
        gpu_memory.other_estimates,
    ),
)
