"""``onegpu merge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onegpu.cli.app import app


@app.command()
def merge(
    adapter_dir: Annotated[Path, typer.Argument(help="The adapter folder of a finished run.")],
    output_dir: Annotated[Path, typer.Argument(help="A new folder for the merged 16-bit model.")],
) -> None:
    """Merge an adapter into a 16-bit copy of its base, for use without peft and bitsandbytes."""
    from onegpu.qlora_finetune import merge_adapter

    saved = adapter_dir.parent / "finetune_config.json"
    config = json.loads(saved.read_text(encoding="utf-8")) if saved.is_file() else {}
    base = {"base": config["model"], "quantization": config["quantization"]} if config else {}
    print(merge_adapter(adapter_dir, output_dir, **base))
