"""The folder of a run: where it is, whom it belongs to, and how files get there whole."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from onegpu.qlora_finetune.bases import Base
from onegpu.qlora_finetune.config import CONFIG_FILE, FinetuneConfig

DRIVE = Path("/content/drive/MyDrive")
"""Where Colab mounts Google Drive."""


def output_folder(name: str, drive: Path = DRIVE) -> Path:
    """Return the folder of a run: on Google Drive if it is mounted (Colab), else ``runs/`` here.

    A Colab session ends without notice and takes its disk with it. Checkpoints on Drive stay, and
    ``finetune(config, resume=True)`` goes on from them in the next session.

    Parameters
    ----------
    name
        Of the run: one part of a path.
    drive
        Where Drive would be mounted.

    Raises
    ------
    ValueError
        If the name isn't one part of a path.

    Examples
    --------
    >>> output_folder("triage", drive=Path("no/such/folder")).as_posix()
    'runs/triage'
    """
    if not name or Path(name).name != name or name in (".", ".."):
        raise ValueError(f"name is {name!r}, expected one part of a path, such as 'triage'")
    return (drive / "onegpu_runs" if drive.is_dir() else Path("runs")) / name


def check_output_dir(config: FinetuneConfig, resume: bool = False, overwrite: bool = False) -> Path:
    """See that a run's output folder can be written and belongs to it, changing nothing in it.

    Raises
    ------
    ValueError
        If it can't be written, holds an earlier run, or, to resume, another run or none.
    """
    folder = Path(config.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"output_dir {folder} can't be written ({error.strerror or error}): choose another folder"
        ) from error
    saved = folder / CONFIG_FILE
    if resume:
        if not saved.is_file():
            raise ValueError(f"{folder} holds no run to resume: start one without resume")
        differences = config.differences(json.loads(saved.read_text(encoding="utf-8")))
        if differences:
            raise ValueError(
                f"{folder} was started with another configuration ({'; '.join(differences)}): resume it with its own "
                "settings, or choose another output_dir"
            )
    elif not overwrite and any(path.exists() for path in _results(folder)):
        raise ValueError(
            f"{folder} holds an earlier run: go on with it (resume=True, command line --resume), choose another "
            "output_dir, or throw it away (overwrite=True, --overwrite)"
        )
    return folder


def start_output_dir(config: FinetuneConfig) -> None:
    """Make the output folder this run's: throw away what an earlier one left, and write the configuration.

    From here on the run can be resumed, so this comes after everything that may refuse to start.
    """
    folder = Path(config.output_dir)
    for old in (*_results(folder), folder / "before.json"):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    config.save(folder)


def _results(folder: Path) -> list[Path]:
    """What a run leaves that is worth keeping; a run that failed before its first checkpoint has none of it."""
    return [*folder.glob("checkpoint-*"), folder / "ray", folder / "adapter", folder / "report.json"]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; one that a kill left half-written is passed over.

    The trainer writes the adapter, the optimizer, the random state and last ``trainer_state.json``.
    """
    found = []
    for path in folder.glob("checkpoint-*"):
        number = re.fullmatch(r"checkpoint-(\d+)", path.name)
        try:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if number and state.get("global_step") == int(number[1]):
            found.append((int(number[1]), path))
    return max(found)[1] if found else None


def save_adapter(
    model: torch.nn.Module, tokenizer: Any, folder: Path, base: Base, ends: Sequence[int] = (), card: str = ""
) -> None:
    """Write the adapter beside its place, then move it there: a kill leaves the old one or the new one, whole.

    Parameters
    ----------
    base
        What it was trained on, so that the folder alone is enough.
    ends
        Ids that end an answer, for the generation settings; whoever serves the model reads them there.
    card
        The README.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    # peft would ask the hub whether the vocabulary has grown.
    model.save_pretrained(part, safe_serialization=True, save_embedding_layers=False)
    tokenizer.save_pretrained(part)
    base.save(part)
    generation = copy.deepcopy(model.generation_config)
    generation.eos_token_id = list(ends) or generation.eos_token_id
    generation.save_pretrained(part)
    if card:
        (part / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON beside its place, then move it there: a kill leaves the old file or the new one, whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)
