"""The folder of a run: where it is, whom it belongs to, and how files get there whole."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onegpu.qlora_finetune.bases import Base
from onegpu.qlora_finetune.config import CONFIG_FILE, FinetuneConfig

FINGERPRINTS = "fingerprints.json"
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
        differences = config.differences(read_json(saved))
        if differences:
            raise ValueError(
                f"{folder} was started with another configuration ({'; '.join(differences)}): resume it with its own "
                "settings, or choose another output_dir"
            )
    elif (
        overwrite
        and config.adapter
        and folder.resolve() in (path := Path(config.adapter).resolve(), *path.parents)
    ):
        raise ValueError(
            f"the adapter to start from lies in {folder}, which overwrite would throw away: choose another output_dir"
        )
    elif not overwrite and any(path.exists() for path in _results(folder)):
        raise ValueError(
            f"{folder} holds an earlier run: go on with it (resume=True, command line --resume), choose another "
            "output_dir, or throw it away (overwrite=True, --overwrite)"
        )
    return folder


@contextlib.contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Take a folder away again, and those above it, if they are made in here and nothing comes of it but an error."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        if made and {path.name for path in folder.glob("*")} <= {".lock"}:
            shutil.rmtree(folder, ignore_errors=True)
            for path in made[1:]:
                with contextlib.suppress(OSError):  # another run has begun in it
                    path.rmdir()
        raise


def start_output_dir(config: FinetuneConfig, fingerprints: dict[str, Any] | None = None) -> None:
    """Make the output folder this run's: throw away what an earlier one left, and write the configuration.

    From here on the run can be resumed, so this comes after everything that may refuse to start.
    """
    folder = Path(config.output_dir)
    for old in (*_results(folder), folder / "before.json", folder / FINGERPRINTS):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    if fingerprints:
        write_json(folder / FINGERPRINTS, fingerprints)
    config.save(folder)


def _results(folder: Path) -> list[Path]:
    """What a run leaves that is worth keeping; a run that failed before its first checkpoint has none of it."""
    return [*folder.glob("checkpoint-*"), folder / "ray", folder / "adapter", folder / "report.json"]


def last_checkpoint(folder: Path, say: Callable[[str], None] = lambda line: None) -> Path | None:
    """Return the newest checkpoint that is whole; of each newer one ``say`` gets a line with the file that isn't."""
    numbered = ((re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in folder.glob("checkpoint-*"))
    for _, path in sorted(((int(number[1]), path) for number, path in numbered if number), reverse=True):
        damage = damage_of(path)
        if not damage:
            return path
        say(f"{path.name} is damaged ({damage}): passed over")
    return None


def trained_to_the_end(checkpoint: Path, steps: int) -> bool:
    """Say whether a checkpoint is the last that its training would write: of the last step, or stopped early."""
    state = read_json(checkpoint / "trainer_state.json")
    control = (state.get("stateful_callbacks") or {}).get("TrainerControl") or {}
    stopper = (state.get("stateful_callbacks") or {}).get("EarlyStoppingCallback")
    stopped_early = bool(stopper) and bool(control.get("args", {}).get("should_training_stop"))
    return state["global_step"] >= steps or (
        stopped_early
        and stopper["attributes"]["early_stopping_patience_counter"]
        >= stopper["args"]["early_stopping_patience"]
    )


def is_finished(folder: Path) -> bool:
    """Say whether a run has left its report and a whole adapter."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "adapter" / "adapter_model.safetensors", "pt"):
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
            return isinstance(report, dict) and bool(report)
    except (OSError, ValueError, SafetensorError):
        return False


def damage_of(checkpoint: Path) -> str:
    """Name the first file of a checkpoint that a kill or a full disk left incomplete, "" if all are whole.

    The trainer writes the adapter, the optimizer, the random state and last ``trainer_state.json``.
    """
    from safetensors import SafetensorError, safe_open

    for name in ("trainer_state.json", "adapter_config.json"):
        try:
            content = json.loads((checkpoint / name).read_text(encoding="utf-8"))
        except OSError:
            return f"{name} is missing"
        except ValueError:
            return f"{name} is incomplete"
        if name == "trainer_state.json" and checkpoint.name != f"checkpoint-{content.get('global_step')}":
            return f"{name} is of step {content.get('global_step')}"
    try:
        with safe_open(checkpoint / "adapter_model.safetensors", "pt"):
            pass
    except FileNotFoundError:
        return "adapter_model.safetensors is missing"
    except (SafetensorError, OSError):
        return "adapter_model.safetensors is incomplete"
    wanted = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
    for path in (checkpoint / name for name in wanted):
        if not path.is_file():
            return f"{path.name} is missing"
    for path in [
        *checkpoint.glob("*.pt"),
        *checkpoint.glob("*.pth"),
    ]:  # torch's zip archives, with check sums
        try:
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
        except (zipfile.BadZipFile, OSError):
            broken = path.name
        if broken:
            return f"{path.name} is incomplete"
    return ""


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of a run.

    Raises
    ------
    ValueError
        If it is damaged; the message names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, expected an object")
        return content
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): the run can't be taken up. Start it again with overwrite=True "
            "(command line --overwrite) or in another output_dir"
        ) from error


def check_fingerprints(folder: Path, now: dict[str, Any], say: Callable[[str], None]) -> None:
    """Hold what a run is made of against what it was started with.

    Raises
    ------
    ValueError
        If rows or weights are others: the losses couldn't be those of one run.
    """
    path = folder / FINGERPRINTS
    if not path.is_file():
        return
    then = read_json(path)
    parts = {
        "rows": "the tokenized rows",
        "weights": "the base model's weights",
        "adapter": "the adapter to start from",
    }
    for name, what in parts.items():
        if then.get(name) and now[name] and then[name] != now[name]:
            raise ValueError(
                f"{folder} can't be resumed: {what} are not those that it was started with. Put them back, or start "
                "again in another output_dir"
            )
    changed = [
        f"{name} {old} then, {now['versions'].get(name, 'none')} now"
        for name, old in then.get("versions", {}).items()
        if now["versions"].get(name) != old
    ]
    if changed:
        say(
            f"versions have changed since the run was started ({'; '.join(changed)}): losses may differ in rounding"
        )


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


BAD_ROWS_FILE = "bad_rows.jsonl"


def write_bad_rows(folder: Path, found: Iterable[tuple[str, int, str]]) -> None:
    """List the rows that were left out, if there are any: source, number of the row, what is wrong with it."""
    lines = [
        json.dumps({"data": source, "row": n, "problem": said}, ensure_ascii=False) + "\n"
        for source, n, said in found
    ]
    if lines:
        (folder / BAD_ROWS_FILE).write_text("".join(lines), encoding="utf-8")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON beside its place, then move it there: a kill leaves the old file or the new one, whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)
