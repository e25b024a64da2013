"""``onegpu export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onegpu.cli.app import app


@app.command()
def export(
    model: Annotated[
        str, typer.Argument(help="Folder of a run, adapter or model; catalogue name or hub id.")
    ],
    to: Annotated[
        str,
        typer.Option(
            help="gguf (llama.cpp), ollama, merged (safetensors), adapter-gguf, or adapter (to push it)."
        ),
    ] = "gguf",
    types: Annotated[
        list[str],
        typer.Option("--type", help="Of GGUF weights, may be repeated: f32, f16, bf16, q8_0, q5_1 ... q4_0."),
    ] = ["f16"],  # noqa: B006
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder for the files; otherwise RUN/export.")
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(help="NAME or OWNER/NAME of a repository, with --to adapter or merged.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make the repository public.")] = False,
    base: Annotated[
        str | None, typer.Option(help="Base of an adapter, in place of the one it names.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt of a Modelfile.")] = None,
    check_rows: Annotated[int, typer.Option(help="Held-out rows that the check compares.")] = 8,
) -> None:
    """Export for llama.cpp, Ollama or the hub; every file is checked against the merged model."""
    from onegpu.export import export as run

    print(
        run(
            model, to, types=types, output_dir=output_dir, push_to_hub=push_to_hub, private=not public, base=base,
            system=system, check_rows=check_rows, say=lambda line: print(line, flush=True),
        )
    )  # fmt: skip
