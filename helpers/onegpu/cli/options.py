"""Options that several commands share: ``--set name=value``, ``--json FILE``."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report as JSON to this file.")]


def parse_settings(pairs: list[str], config_type: type, names: Sequence[str] | None = None) -> dict:
    """Parse name=value pairs by the types of a config's fields.

    A field that takes several values is given them as JSON (["q_proj", "v_proj"]) or with commas between.

    Parameters
    ----------
    pairs
        As they stand on the command line.
    config_type
        A dataclass.
    names
        Which of its fields may be set; None: all.
    """
    fields = {f.name: f for f in dataclasses.fields(config_type) if names is None or f.name in names}
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in fields:
            near = difflib.get_close_matches(name, fields, 3, 0.5)
            hint = f"; near are {', '.join(near)}" if near else ""
            raise ValueError(f"--set {pair}: expected name=value with a name from {', '.join(fields)}{hint}")
        try:
            value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
        except ValueError:
            value = None if text.lower() == "none" else text
        several = "tuple" in str(fields[name].type)
        if text.lstrip()[:1] in ("[", "{") and isinstance(value, str):
            raise ValueError(
                f'--set {pair}: found no JSON after the \'=\', expected a list or object, as in ["a", "b"]'
            )
        if several and isinstance(value, str) and ("," in value or type(fields[name].default) is tuple):
            value = [part.strip() for part in value.split(",") if part.strip()]
        default = fields[name].default
        wanted = type(default)
        if default is None:  # the type that the field has besides None
            kinds = {"float": float, "int": int}
            wanted = next((kinds[k] for k in str(fields[name].type).split(" | ") if k in kinds), wanted)
        if value is None and default is None:
            found[name] = None
            continue
        if isinstance(value, bool) != (wanted is bool) and wanted in (bool, int, float):
            raise ValueError(f"--set {pair}: expected {wanted.__name__}")
        if wanted in (int, float) and not isinstance(value, int if wanted is int else int | float):
            raise ValueError(f"--set {pair}: expected {wanted.__name__}, found {text!r}")
        whole = isinstance(value, list | dict)
        if wanted is str and whole and not several:
            raise ValueError(f"--set {pair}: expected a text")
        found[name] = str(value) if wanted is str and value is not None and not whole else value
    return found


def check_writable(path: Path | None, option: str = "--json") -> None:
    """See that the file of an option can be written before the work that fills it."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8"):
                pass
        except OSError as error:
            raise ValueError(
                f"{option} {path} can't be written ({error.strerror or error}): choose another file"
            ) from None


def write_json(path: Path | None, content: dict) -> None:
    """Write a report to the file that was asked for, if one was."""
    if path is not None:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
