"""Settings of a fine-tune from a YAML or JSON file, such as the ``finetune_config.json`` that a run saves."""

from __future__ import annotations

import dataclasses
import difflib
import json
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

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
    hints = get_type_hints(FinetuneConfig)
    return {name: _typed(value, hints[name], f"{path}: {name}") for name, value in content.items()}


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _typed(value: Any, hint: Any, where: str) -> Any:
    kinds = {
        get_origin(kind) or kind for kind in (get_args(hint) if get_origin(hint) is UnionType else (hint,))
    }
    if float in kinds and isinstance(value, str):  # YAML 1.1 reads 3e-3 as text: it wants 3.0e-3
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{where} is {value!r}, expected a number") from None
    if float in kinds and type(value) is int:
        return float(value)
    plain = kinds & {bool, int, float}
    if plain and type(value) not in kinds:
        raise ValueError(
            f"{where} is {value!r}, expected {' or '.join(sorted(kind.__name__ for kind in plain))}"
        )
    return value
