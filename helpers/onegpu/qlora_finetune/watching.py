"""Watch a run while it trains: a JSON Lines file that grows, samples along the way, and transformers' own reporters."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onegpu.qlora_finetune.transformers_trainer import TrainerCallback

LOG_FILE = "log.jsonl"


def check_reporters(report_to: str | Sequence[str]) -> list[str]:
    """Return the names of reporters, seeing that transformers knows them and that their packages are here.

    Raises
    ------
    ValueError
        For an unknown name or a missing package, with what to install.

    Examples
    --------
    >>> check_reporters("none")
    []
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    names = [report_to] if isinstance(report_to, str) else list(report_to)
    names = [name for name in names if name != "none"]
    available = get_available_reporting_integrations()
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ValueError(
                f"report_to is {name!r}, expected none or some of {', '.join(sorted(INTEGRATION_TO_CALLBACK))}"
            )
        if name not in available:
            raise ValueError(f"report_to={name!r} needs a package that isn't here: pip install {name}")
    return names


class LogFile(TrainerCallback):
    """Writes each log of the trainer as a line of JSON at once, with the tokens and seconds so far.

    A run that goes on from a checkpoint takes back the lines after it: each step stands there once.

    Parameters
    ----------
    path
        The file.
    meter
        Counts tokens and seconds.
    sample
        Called at each evaluation during training; returns answers to show, or none.
    """

    def __init__(self, path: Path, meter: Any, sample: Callable[[], list[dict[str, str]]] | None = None):
        self.path, self.meter, self.sample = path, meter, sample
        self.training = False

    def start(self) -> None:
        """Begin a new file."""
        self.path.unlink(missing_ok=True)

    def write(self, line: dict[str, Any]) -> None:
        """Add one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def on_train_begin(self, args, state, control, **kwargs):
        """Take back what was logged after the step that the run goes on from."""
        self.training = True
        kept = [line for line in read_log(self.path) if line["step"] <= state.global_step]
        part = self.path.with_suffix(".part")
        part.write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in kept), encoding="utf-8")
        part.replace(self.path)

    def on_train_end(self, args, state, control, **kwargs):
        """No samples in the evaluation after training, which answers rows by itself."""
        self.training = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write one line."""
        found = {key: value for key, value in (logs or {}).items() if isinstance(value, int | float | str)}
        tokens = {"tokens": self.meter.tokens, "supervised_tokens": self.meter.supervised_tokens}
        self.write({"step": state.global_step} | found | tokens | {"seconds": round(self.meter.seconds, 3)})

    def on_evaluate(self, args, state, control, **kwargs):
        """Write sample answers."""
        if self.training and self.sample is not None:
            answers = self.sample()
            if answers:
                self.write({"step": state.global_step, "samples": answers})


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run, also while it grows: a last line that is half there is left out."""
    path = Path(path)
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict) and "step" in content:
            found.append(content)
    return found
