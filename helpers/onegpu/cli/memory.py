"""``onegpu memory``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onegpu.cli.app import app
from onegpu.cli.options import parse_settings


@app.command()
def memory(
    model: Annotated[str, typer.Argument(help="Catalogue name, hub id or folder; no weights are needed.")],
    method: Annotated[str, typer.Option(help="full, lora or qlora.")] = "qlora",
    batch_size: Annotated[int, typer.Option(help="Rows in a micro-batch.")] = 1,
    length: Annotated[int, typer.Option(help="Tokens of a row.")] = 1024,
    gpu: Annotated[
        str, typer.Option(help="The card to hold it against, for instance t4, l4, a100-40gb.")
    ] = "t4",
    settings: Annotated[
        list[str], typer.Option("--set", help="Any other setting of TrainingSetup as name=value.")
    ] = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the GPU memory of a training step, to the byte and without a GPU, and say whether it fits."""
    from onegpu import gpu_memory

    more = parse_settings(settings, gpu_memory.TrainingSetup)
    found = gpu_memory.report(
        model, gpu, method=method, batch_size=batch_size, sequence_length=length, **more
    )
    print(json.dumps(found.to_json(), indent=2) if as_json else found)
