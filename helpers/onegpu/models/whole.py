"""Are the files of a model's or an adapter's folder whole? What reads them later says where in a file, but not in which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onegpu.models.wheel import ModelNotAvailable

NEEDED = {
    "config.json": (),
    "adapter_config.json": ("peft_type",),
    "generation_config.json": (),
    "tokenizer_config.json": (),
    "tokenizer.json": ("added_tokens", "model"),
    "model.safetensors.index.json": ("weight_map",),
}
"""Files that hold a JSON object, and keys without which they are nothing."""


def check_files(folder: Path) -> None:
    """See that what there is in a folder is whole: JSON files, weights as safetensors, the chat template.

    Raises
    ------
    ModelNotAvailable
        For the first file that isn't; the message names it.
    """
    for name, keys in NEEDED.items():
        if (folder / name).exists():
            check_object(folder / name, keys)
    for path in sorted(folder.glob("*.safetensors")):
        _check_weights(path)
    template = folder / "chat_template.jinja"
    if template.exists():
        _check_template(template)


def check_family(folder: Path) -> None:
    """See that transformers knows a model's architecture.

    Raises
    ------
    ModelNotAvailable
        If it doesn't, in one sentence.
    """
    path = folder / "config.json"
    if not path.is_file():
        return
    config = check_object(path)
    from transformers import CONFIG_MAPPING, __version__

    kind = config.get("model_type")
    if (
        kind is None or "auto_map" in config or kind in CONFIG_MAPPING
    ):  # auto_map: code of its own, refused elsewhere
        return
    raise ModelNotAvailable(
        f"{path} names the architecture {kind!r}, which transformers {__version__} doesn't know: choose another model, or "
        "install a transformers that knows it"
    )


def check_object(path: Path, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises
    ------
    ModelNotAvailable
        If it holds none, or lacks one of the keys; the message names the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(path, f"it holds a {type(content).__name__}, expected an object")
    missing = [key for key in keys if key not in content]
    if missing:
        raise _damaged(path, f"it lacks {missing[0]!r}")
    return content


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from error


def _check_template(path: Path) -> None:
    from jinja2 import Environment, TemplateSyntaxError

    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise _damaged(path, "it is empty")
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except TemplateSyntaxError as error:
        if "generation" not in str(error):  # a tag of transformers' own
            raise _damaged(path, f"line {error.lineno}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ModelNotAvailable:
    return ModelNotAvailable(
        f"{path} is damaged ({' '.join(why.split())}): copy it again from where it was made"
    )
