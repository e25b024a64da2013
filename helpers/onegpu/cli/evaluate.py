"""``onegpu evaluate``."""

from __future__ import annotations

from typing import Annotated

import typer

from onegpu.cli.app import app
from onegpu.cli.options import JsonFile, check_writable, write_json


@app.command()
def evaluate(
    model: Annotated[
        str, typer.Argument(help="Folder of a run, adapter or model; catalogue name or hub id.")
    ],
    data: Annotated[str, typer.Option(help="Shipped set, or a file of rows, as for finetune.")],
    rows: Annotated[int | None, typer.Option(help="Take only the first so many.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Score the base model too.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Cut an answer after so many tokens.")] = 72,
    base: Annotated[
        str | None, typer.Option(help="Base of an adapter, in place of the one it names.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Score a model on rows: loss, and for the shipped task how many answers are right."""
    check_writable(json_file)
    from onegpu.chat.evaluation import evaluate as run

    found = run(model, data, rows=rows, compare=compare, max_new_tokens=max_new_tokens, base=base)
    print(found)
    write_json(json_file, found.to_json())
