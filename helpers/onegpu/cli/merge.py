"""``onegpu merge``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from onegpu.cli.app import app


@app.command()
def merge(
    adapter_dir: Annotated[
        Path, typer.Argument(help="A run, or an adapter's folder: of a run, of peft or of TRL.")
    ],
    output_dir: Annotated[Path, typer.Argument(help="A new folder for the merged model.")],
    base: Annotated[
        str,
        typer.Option(help="Catalogue name, hub id or folder of the base. Default: what the adapter says."),
    ] = "",
    quantization: Annotated[
        str, typer.Option(help="Of the base in training: nf4, int8 or none. Default: what the adapter says.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="Of the merged model: fp16, bf16 or fp32.")] = "fp16",
) -> None:
    """Merge an adapter into its base, for use without peft and bitsandbytes."""
    from onegpu.qlora_finetune.merge import RECORDED, UnknownBase
    from onegpu.qlora_finetune.merge import merge as run

    given = {"": RECORDED, "none": None}
    while True:
        try:
            print(run(adapter_dir, output_dir, base or None, given.get(quantization, quantization), dtype))
            return
        except UnknownBase as error:
            if not sys.stdin.isatty():
                raise
            print(error)
            if "base" in error.missing:
                base = typer.prompt("base (catalogue name, hub id or folder)")
            else:
                quantization = typer.prompt("quantization in training (nf4, int8 or none)")
