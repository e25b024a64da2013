"""Stopping a run: Ctrl-C and SIGTERM at any moment, a disk that is full."""

from __future__ import annotations

import errno
import os
import signal
import threading
from typing import Any

from onegpu.qlora_finetune.transformers_trainer import TrainerCallback

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(RuntimeError):
    """The run was stopped on request; the message says what is saved and how to go on.

    ``exit_status`` is what a command ends with, 130 after Ctrl-C and 143 after SIGTERM.
    """

    def __init__(self, message: str, signum: int = signal.SIGINT):
        super().__init__(message)
        self.exit_status = 128 + signum


class NotSaved(RuntimeError):
    """The disk took no more; what was saved before is whole, and the message says how to go on."""


class Stops(TrainerCallback):
    """Ctrl-C and SIGTERM: in training the step is finished and saved first, elsewhere the run ends at once.

    A second one ends at once in training, too. Used as a context it takes the signals over and gives them back; only
    the main thread can, and in any other no signal arrives.

    ``stage`` and ``config`` say where the run stands, for the message that it ends with: what it does, and its settings
    once what was left open is filled in.
    """

    def __init__(self):
        self.stage = "starting"
        self.config: Any = None
        self.signum: int | None = None
        self.training = False
        self._before = {}

    def __enter__(self) -> Stops:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._asked) for s in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def _asked(self, signum, frame):
        again, self.signum = self.signum is not None, signum
        if again or not self.training:
            raise KeyboardInterrupt

    def on_train_begin(self, args, state, control, **kwargs):
        """From here on a step can be finished and saved."""
        self.training = True

    def on_step_end(self, args, state, control, **kwargs):
        """Stop after this step if asked to."""
        if self.signum is not None:
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args, state, control, **kwargs):
        """What comes after training can be done again from its last checkpoint."""
        self.training = False


def disk_error(error: BaseException) -> str | None:
    """Say in a few words why a write failed, None if the error is something else.

    Libraries wrap it: safetensors and torch raise errors of their own, whose text alone tells.

    Examples
    --------
    >>> disk_error(OSError(28, "No space left on device")), disk_error(ValueError("lengths differ"))
    ('No space left on device', None)
    """
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in numbers:
            return os.strerror(seen.errno)
        text = str(seen)
        for number in numbers:
            if f"os error {number}" in text or os.strerror(number) in text:
                return os.strerror(number)
        if "PytorchStreamWriter failed" in text or "unexpected pos" in text:
            return "a file could not be written to its end"
        seen = seen.__cause__ or seen.__context__
    return None
