"""``onegpu memory``."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from onegpu.cli.app import app
from onegpu.cli.options import parse_settings

MODEL_HELP = "Catalogue name, hub id, folder, config.json or .gguf; no weights are needed."
OTHERS = (
    "Another setting as name=value, for instance lora_r=32, target_modules=q_proj,v_proj or precision=fp16."
)


def _read_run(path: str) -> object:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--report {path}: can't be read as JSON ({error})") from error


def _rows(model: str, data: str | None, lengths: str | None, asked: dict[str, Any]) -> dict[str, Any]:
    if data is not None and (lengths is not None or "lengths" in asked):
        raise ValueError("--data has its own lengths: leave one of --data and --lengths out")
    if lengths is not None:
        try:
            return {"lengths": tuple(int(part) for part in lengths.split(","))}
        except ValueError:
            raise ValueError(
                f"--lengths {lengths}: expected whole numbers with commas between, such as 12,400"
            ) from None
    if data is None:
        return {}
    from onegpu.qlora_finetune import FinetuneConfig, row_lengths

    ours = asked.get("loop", "onegpu") == "onegpu"  # it leaves long rows out, the others cut them
    config = FinetuneConfig(
        model=model,
        data=data,
        truncation="drop" if ours else "right",
        max_length=asked.get("max_length", FinetuneConfig.max_length),
    )
    return row_lengths(config)


class _Command(typer.core.TyperCommand):
    """A wrong option ends with status 1 like any other error: 2 says that it doesn't fit."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", None) == 2:
                error.exit_code = 1
            raise


@app.command(cls=_Command)
def memory(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    method: Annotated[str | None, typer.Option(help="qlora, lora or full.")] = None,
    loop: Annotated[
        str | None,
        typer.Option(help="Who trains: onegpu (this package), trl (SFTTrainer), trainer or plain."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a micro-batch.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--checkpointing/--no-checkpointing", help="Recompute activations in the backward pass."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set, as for finetune: a run on its rows is simulated, not a step on full ones."
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="The same for examples of these lengths, such as 12,400,251.")
    ] = None,
    packing: Annotated[
        bool | None, typer.Option("--packing/--no-packing", help="Fill rows with examples.")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="sdpa, eager, flash, or sdpa_expanded (a patch for T4s).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="sft, dpo, evaluate or generate.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="The card, for instance t4, l4, 'rtx 4090' or 24GiB; this machine's, or a T4."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(help="A finished run's report.json: its speed corrects how long a step takes."),
    ] = None,
    largest: Annotated[str | None, typer.Option(help="Find the largest batch, or length, that fits.")] = None,
    settings: Annotated[list[str], typer.Option("--set", help=OTHERS)] = [],  # noqa: B006
    gpus: Annotated[bool, typer.Option("--gpus", help="List the cards, and stop.")] = False,
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Print predicted against measured for published runs, and stop."),
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="End with status 0 even if it doesn't fit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the GPU memory of a training step, without a GPU; say whether it fits, and how long it takes.

    What isn't given is as in onegpu finetune. Status 0: it fits; 2: it is tight or does not fit; 1: an error.
    """
    from onegpu.runtime import GPUS, this_gpu

    if gpus:
        for card in GPUS.values():
            print(
                f"{card.name:<18}{'' if card.is_cpu else f'{card.total_bytes / 2**30:7.2f} GiB  {card.source}'}".rstrip()
            )
        return
    if validate:
        from onegpu.gpu_memory.published import validation_page

        print(validation_page(), end="")
        return
    if model is None:
        raise ValueError(
            "which model? Give a catalogue name, a hub id, a folder or a config.json (onegpu.models.CATALOGUE)"
        )
    if largest not in (None, "batch", "length"):
        raise ValueError(f"--largest {largest}: expected batch or length")
    # Importing the libraries makes millions of objects that stay; looking for garbage among them is a fifth of the time.
    gc.set_threshold(100_000)
    from onegpu import gpu_memory

    given = {
        "method": method,
        "loop": loop,
        "per_device_train_batch_size": batch_size,
        "max_length": length,
        "gradient_checkpointing": checkpointing,
        "packing": packing,
        "attention": attention,
        "task": task,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    asked |= parse_settings(settings, gpu_memory.TrainingSetup)
    asked |= _rows(model, data, lengths, asked)
    if gpu is None:
        here = this_gpu()
        gpu = asked.pop("gpu", None) or ("T4" if here.is_cpu else here)
    if largest and report is not None:
        raise ValueError(
            "--report corrects how long a step takes, which --largest doesn't ask: leave one out"
        )
    if largest:
        find = gpu_memory.largest_batch if largest == "batch" else gpu_memory.largest_length
        found = find(model, gpu, **asked)
        fitting = found.fit is not None
    else:
        found = gpu_memory.report(model, gpu, run=None if report is None else _read_run(report), **asked)
        fitting = found.fit is None or bool(found.fit)
    print(json.dumps(found.to_json(), indent=2) if as_json else found)
    if not fitting and not exit_zero:
        raise typer.Exit(2)
