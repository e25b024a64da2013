"""``onegpu finetune``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from onegpu.cli.app import app
from onegpu.cli.options import JsonFile, check_writable, parse_settings, write_json


@app.command()
def finetune(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Catalogue name, hub id or local folder.")] = "smollm2-135m",
    method: Annotated[
        str,
        typer.Option(help="sft: learn the answers of chats. dpo: learn to prefer, from pairs or rankings."),
    ] = "sft",
    data: Annotated[
        list[str],
        typer.Option(
            help="Shipped set, file, folder, pattern or hub name of examples; several times for several. Default: "
            "support_triage, or with dpo rankings.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    share: Annotated[
        list[float],
        typer.Option(help="With several --data, the share of the rows that each gives; they add up to 1."),
    ] = [],  # noqa: B006
    eval_data: Annotated[
        list[str],
        typer.Option(
            help="Held-out rows, as for --data. Without it a share of the rows is held out (eval_share)."
        ),
    ] = [],  # noqa: B006
    adapter: Annotated[
        str | None,
        typer.Option(help="Start from this adapter: the folder of a run, or an adapter's."),
    ] = None,
    output_dir: Annotated[
        str,
        typer.Option(
            help="Adapter, checkpoints and report go here. Default: runs/ and a name of data and model."
        ),
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Throw away an earlier run in --output-dir.")
    ] = False,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help="Settings from a YAML or JSON file; options on the line come first."),
    ] = None,
    json_file: JsonFile = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="Any setting of FinetuneConfig as name=value, for instance max_length=1024 or template=chatml.",
        ),
    ] = [],  # noqa: B006
) -> None:
    """Fine-tune with QLoRA, evaluate before and after, save the adapter, print a report."""
    changes = {
        "model": model,
        "method": method,
        "adapter": adapter,
        **sources(data, share, eval_data),
        "output_dir": output_dir,
    }
    check_writable(json_file)
    if config_file is not None:
        from onegpu.qlora_finetune.config_file import read_config_file

        option = {"data_shares": "data"}  # shares belong to the sources that they are of
        given = [name for name in changes if is_given(context, option.get(name, name))]
        changes = changes | read_config_file(config_file) | {name: changes[name] for name in given}
    from onegpu.qlora_finetune import FinetuneConfig

    changes = changes | parse_settings(settings, FinetuneConfig)
    if changes["adapter"] and changes["model"] == FinetuneConfig.model and not is_given(context, "model"):
        from onegpu.qlora_finetune.adapters import adapter_folder
        from onegpu.qlora_finetune.bases import read_base

        base = read_base(adapter_folder(changes["adapter"]))
        changes["model"] = base.model if base else changes["model"]
    config = FinetuneConfig(**changes)
    from onegpu.qlora_finetune import finetune as run  # imports for seconds: a wrong setting is said before

    result = run(config, resume=resume, overwrite=overwrite, say=lambda line: print(line, flush=True))
    print(f"\n{result}\n\n{next_steps(config.output_dir)}")
    write_json(json_file, result.to_json())


def is_given(context: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line, rather than having its default."""
    return context.get_parameter_source(option).name != "DEFAULT"


def next_steps(output_dir: str) -> str:
    """Name what can be done with a finished run, as commands to copy.

    Examples
    --------
    >>> print(next_steps("runs/my rows"))
    next
      # talk to it, beside its base
      onegpu chat 'runs/my rows' --compare
      # score it on other rows
      onegpu evaluate 'runs/my rows' --data FILE
      # 16 bits, for transformers
      onegpu merge 'runs/my rows/adapter' 'runs/my rows/merged'
      # a file for llama.cpp and Ollama
      onegpu export 'runs/my rows' --to gguf
    """
    run, adapter, merged = (shlex.quote(f"{output_dir}{end}") for end in ("", "/adapter", "/merged"))
    steps = (
        ("talk to it, beside its base", f"onegpu chat {run}", "--compare"),
        ("score it on other rows", f"onegpu evaluate {run}", "--data FILE"),
        ("16 bits, for transformers", f"onegpu merge {adapter}", merged),
        ("a file for llama.cpp and Ollama", f"onegpu export {run}", "--to gguf"),
    )
    lines = ["next"]
    for what, command, rest in steps:  # on two lines where one would be longer than a terminal
        fits = len(command) + len(rest) <= 77
        lines += (
            [f"  # {what}", f"  {command} {rest}"]
            if fits
            else [f"  # {what}", f"  {command} \\", f"    {rest}"]
        )
    return "\n".join(lines)


def sources(data: list[str], share: list[float], eval_data: list[str]) -> dict:
    """The config's settings of where rows come from; one of several is itself."""
    found = {"data": data or [""], "eval_data": eval_data or None, "data_shares": share or None}
    return {
        name: value[0] if value and len(value) == 1 and name != "data_shares" else value
        for name, value in found.items()
    }
