"""Settings of a fine-tune from a YAML or JSON file, such as the ``finetune_config.json`` that a run saves."""

from __future__ import annotations

import dataclasses
import difflib
import json
from pathlib import Path
from typing import Any

from onegpu.qlora_finetune.config import FinetuneConfig


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Read the settings that a file gives.

    Raises
    ------
    ValueError
        If the file can't be read, or gives a setting that there isn't, or one of another type.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path} can't be read ({error.strerror or error}): give a YAML or JSON file"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8: give a YAML or JSON file") from None
    try:
        content = json.loads(text) if path.suffix.lower() == ".json" else _yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected settings by name")
    fields = {field.name: field for field in dataclasses.fields(FinetuneConfig)}
    for name in content:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(fields)}"
            raise ValueError(f"{path}: there is no setting {name!r}: {hint}")
    return {name: _typed(value, fields[name].default, f"{path}: {name}") for name, value in content.items()}


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _typed(value: Any, default: Any, where: str) -> Any:
    wanted = type(default)
    if wanted is float and isinstance(value, str):  # YAML 1.1 reads 3e-3 as text: it wants 3.0e-3
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{where} is {value!r}, expected a number") from None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted in (bool, int, float) and type(value) is not wanted:
        raise ValueError(f"{where} is {value!r}, expected {wanted.__name__}")
    return value
