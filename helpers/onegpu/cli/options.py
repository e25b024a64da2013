"""Options that several commands share: ``--set name=value``, ``--json FILE``."""

from __future__ import annotations

import dataclasses
import difflib
import json
from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report as JSON to this file.")]


def parse_settings(pairs: list[str], config_type: type) -> dict:
    """Parse name=value pairs by the types of a config's fields; commas make a list where a field takes one."""
    known = {f.name: f for f in dataclasses.fields(config_type)}
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.5)
            hint = f"; near are {', '.join(near)}" if near else ""
            raise ValueError(f"--set {pair}: expected name=value with a name from {', '.join(known)}{hint}")
        try:
            value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
        except ValueError:
            value = None if text.lower() == "none" else text
        default = known[name].default
        wanted = type(default)
        if default is None:  # the type that the field has besides None
            kinds = {"float": float, "int": int}
            wanted = next((kinds[k] for k in str(known[name].type).split(" | ") if k in kinds), wanted)
        if "tuple" in str(known[name].type) and isinstance(value, str) and ("," in value or wanted is tuple):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        if value is None and default is None:
            found[name] = None
            continue
        if isinstance(value, bool) != (wanted is bool) and wanted in (bool, int, float):
            raise ValueError(f"--set {pair}: expected {wanted.__name__}")
        if wanted in (int, float) and not isinstance(value, int if wanted is int else int | float):
            raise ValueError(f"--set {pair}: expected {wanted.__name__}, found {text!r}")
        found[name] = str(value) if wanted is str and not isinstance(value, tuple | list | None) else value
    return found


def check_writable(path: Path | None) -> None:
    """See that a report can be written before the work that it reports."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8"):
                pass
        except OSError as error:
            raise ValueError(
                f"--json {path} can't be written ({error.strerror or error}): choose another file"
            ) from None


def write_json(path: Path | None, content: dict) -> None:
    """Write a report to the file that was asked for, if one was."""
    if path is not None:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
