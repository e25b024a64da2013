"""``onegpu tokens``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onegpu.cli.app import app
from onegpu.cli.options import parse_settings


@app.command()
def tokens(
    source: Annotated[
        str, typer.Argument(help="Parquet or Arrow file, folder or glob, text rows, or a set's name.")
    ],
    column: Annotated[str, typer.Option(help="The column of token ids.")] = "input_ids",
    labels: Annotated[str, typer.Option(help="The column of labels.")] = "labels",
    model: Annotated[
        str, typer.Option(help="Whose tokenizer to use, where the rows are text.")
    ] = "smollm2-135m",
    max_length: Annotated[int | None, typer.Option(help="Tokens of a packed row.")] = None,
    batch_size: Annotated[int, typer.Option(help="per_device_train_batch_size")] = 1,
    accumulation: Annotated[int, typer.Option(help="gradient_accumulation_steps")] = 1,
    world_size: Annotated[int, typer.Option(help="Devices, or Ray workers.")] = 1,
    epochs: Annotated[float, typer.Option(help="num_train_epochs")] = 1.0,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="How text rows are read, as for finetune: columns, template, turns, truncation, bad_rows or repairs, as "
            "name=value.",
        ),
    ] = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the tokens of a data set and predict its training steps."""
    from onegpu import token_counting
    from onegpu.qlora_finetune import FinetuneConfig, task_of

    rows = ("columns", "template", "turns", "truncation", "bad_rows", "repairs")
    config = FinetuneConfig(**parse_settings(settings, FinetuneConfig, rows))
    found = token_counting.report(
        source, column=column, labels=labels, model=model, prepare=task_of(source).to_row, max_length=max_length,
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation, world_size=world_size,
        num_train_epochs=epochs, **{name: getattr(config, name) for name in rows},
    )  # fmt: skip
    print(json.dumps(found.to_json(), indent=2) if as_json else found)
