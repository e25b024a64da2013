"""What a path or name stands for: the folder of a run, an adapter, a model, or a GGUF file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onegpu import models
from onegpu.qlora_finetune.adapters import check_adapter
from onegpu.qlora_finetune.bases import read_base, read_system
from onegpu.qlora_finetune.config import CONFIG_FILE
from onegpu.qlora_finetune.folders import last_checkpoint


@dataclass(frozen=True)
class Place:
    """Where a model is.

    Attributes
    ----------
    kind : {"adapter", "model", "gguf"}
    path : Path or str
        The adapter's folder, the GGUF file, or a model's folder, catalogue name or hub id.
    run : Path or None
        The folder of the run that an adapter or a GGUF file comes from, if it lies in one.
    """

    kind: Literal["adapter", "model", "gguf"]
    path: Path | str
    run: Path | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"

    @property
    def run_config(self) -> dict[str, Any]:
        """The configuration of the run, empty if there is none."""
        return read_json(self.run / CONFIG_FILE) if self.run else {}


def find_place(name: str | Path) -> Place:
    """Say what a path or name stands for.

    Raises
    ------
    ValueError
        If it stands for nothing, or for a run that isn't finished.

    Examples
    --------
    >>> find_place("smollm2-135m").kind
    'model'
    """
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ValueError(f"no file {path}: expected a GGUF file, as `onegpu export` writes them")
        above = path.parent.parent  # `onegpu export` puts it into export/ of the run
        return Place("gguf", path, above if (above / CONFIG_FILE).is_file() else None)
    if path.is_file():
        raise ValueError(f"{path} is a file: expected the folder of a run, an adapter or a model, or a .gguf")
    if not path.is_dir():
        if len(path.parts) > 2 or path.is_absolute() or str(name).startswith((".", "runs/")):
            raise ValueError(f"no folder {path}: expected the folder of a run, an adapter or a model")
        models.find(str(name))
        return Place("model", str(name))
    if (path / "adapter_config.json").is_file():
        check_adapter(path)
        run = path.parent if (path.parent / CONFIG_FILE).is_file() else None
        return Place("adapter", path, run)
    if (path / "adapter" / "adapter_config.json").is_file():
        return find_place(path / "adapter")
    if (path / CONFIG_FILE).is_file():
        checkpoint = last_checkpoint(path)
        so_far = f", or take what there is so far: {checkpoint}" if checkpoint else ""
        raise ValueError(
            f"the run in {path} isn't finished: it has no adapter yet. Go on with "
            f"`onegpu finetune --resume --output-dir {path}` and its other options{so_far}"
        )
    return Place("model", path)


def base_of(place: Place) -> tuple[str, str | None]:
    """Return the base model of an adapter, and how it was quantized in training (None where nobody wrote it down).

    Raises
    ------
    ValueError
        If the adapter names no base.
    """
    base = read_base(Path(place.path))
    if base is not None and base.quantization != "unknown":
        return base.model, base.quantization
    config = place.run_config  # a checkpoint says it in its run
    if config:
        return config["model"], config["quantization"]
    if base is None:
        raise ValueError(f"{place.path} doesn't say what its base model is: give it with --base")
    return base.model, None


def run_system_prompt(place: Place) -> str | None:
    """Return the system prompt that all training rows shared, if there is one and it is recorded, or the rows still here.

    A model that was trained under a system prompt is asked under the same one.
    """
    beside = place.run / "adapter" if place.kind == "gguf" and place.run else Path(place.path)
    recorded = read_system(beside)
    if recorded is not None:
        return recorded
    config = place.run_config
    if not config:
        return None
    from onegpu.qlora_finetune import FinetuneConfig
    from onegpu.qlora_finetune.rows import only, read_examples
    from onegpu.sft_datasets import to_example
    from onegpu.sft_datasets.tokenization import system_prompt

    try:
        known = {name: config[name] for name in ("method", "data", "eval_data") if name in config}
        return only(system_prompt(to_example(row)) for row in read_examples(FinetuneConfig(**known)).train)
    except (OSError, ValueError):
        return None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises
    ------
    ValueError
        If the file holds something else; the message names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Copy it again, or start the run anew") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}, expected an object")
    return content
