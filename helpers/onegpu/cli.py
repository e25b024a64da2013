"""The command line: ``onegpu lab``, ``finetune``, ``merge``, ``doctor``, ``memory``, ``tokens``, ``notebooks``, ``grade``.

Each command is a few lines around a function of the package. An error that says what to do ends with status 1 and no
stack trace; ``--debug``, anywhere on the line, shows the trace.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Fine-tune a language model on one small GPU, with every byte and every token accounted for. "
    "--debug, anywhere, shows the stack trace of an error.",
)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report as JSON to this file.")]


def main() -> None:
    """Run the command line (the entry point of ``onegpu``)."""
    # Threads that spin long while they wait stall each other where another process holds a core (30 times slower, on two
    # cores); threads that sleep at once lose a quarter of the speed on a quiet machine. Read when torch is imported, and
    # by the kernels of `onegpu lab`.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        app(args=arguments, prog_name="onegpu")
    except KeyboardInterrupt:
        if debug:
            raise
        print("stopped", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        # ValueError and its like are ours and say what to do; anything else gets its kind named and the way to its trace.
        expected = isinstance(error, ValueError | OSError) or type(error).__module__.startswith("onegpu")
        message = str(error) if expected else f"{type(error).__name__}: {error} (--debug shows where)"
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the course. Further options go to jupyter lab (such as --no-browser or --port 9999)."""
    folder = Path(__file__).resolve().parents[2]
    if not (
        folder / "pyproject.toml"
    ).is_file():  # installed without its repository: the notebooks are not here
        folder = Path.cwd()
    start = folder / "course" / "00_start_here.ipynb"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    if start.is_file():
        command.append(f"--LabApp.default_url=/lab/tree/{start.relative_to(folder)}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    sys.exit(subprocess.call([*command, *context.args], cwd=folder))


@app.command()
def finetune(
    model: Annotated[str, typer.Option(help="Catalogue name, hub id or local folder.")] = "smollm2-135m",
    data: Annotated[
        str, typer.Option(help="Shipped set, or a JSON or JSONL file of examples.")
    ] = "support_triage",
    eval_data: Annotated[str, typer.Option(help="Held-out rows, as for --data.")] = "",
    output_dir: Annotated[Path, typer.Option(help="Adapter, checkpoints and report go here.")] = Path(
        "runs/support_triage"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Throw away an earlier run in --output-dir.")
    ] = False,
    json_file: JsonFile = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", help="Any setting of FinetuneConfig as name=value, for instance max_length=1024."
        ),
    ] = [],  # noqa: B006
) -> None:
    """Fine-tune with QLoRA, evaluate before and after, save the adapter, print a report."""
    changes = {"model": model, "data": data, "eval_data": eval_data or None, "output_dir": str(output_dir)}
    _writable(json_file)
    from onegpu.qlora_finetune import FinetuneConfig
    from onegpu.qlora_finetune import finetune as run

    config = FinetuneConfig(**changes | _settings(settings, FinetuneConfig))
    result = run(config, resume=resume, overwrite=overwrite, say=lambda line: print(line, flush=True))
    print(f"\n{result}")
    _write(json_file, result.to_json())


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


@app.command()
def doctor() -> None:
    """Say what this machine is and what is missing, with what to do about it."""
    from onegpu.doctor import doctor as examine

    sys.exit(0 if all(check.ok for check in examine()) else 1)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the tokens of a data set and predict its training steps."""
    from onegpu import data, token_counting

    prepare = None
    if source in data.names() and "intent" in data.rows(source)[0]:
        from onegpu.qlora_finetune import triage_example as prepare
    found = token_counting.report(
        source, column=column, labels=labels, model=model, prepare=prepare, max_length=max_length,
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation, world_size=world_size,
        num_train_epochs=epochs,
    )  # fmt: skip
    print(json.dumps(found.to_json(), indent=2) if as_json else found)


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

    more = _settings(settings, gpu_memory.TrainingSetup)
    found = gpu_memory.report(
        model, gpu, method=method, batch_size=batch_size, sequence_length=length, **more
    )
    print(json.dumps(found.to_json(), indent=2) if as_json else found)


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="A notebook or a folder for each student.")],
    csv: Annotated[Path | None, typer.Option(help="Write student, exercise and status to this file.")] = None,
) -> None:
    """Run a class's labs and print who has what right. It runs their code: use a machine that may be thrown away."""
    from onegpu.grading import grade as collect

    _writable(csv)
    grades = collect(folder)
    print(grades)
    if csv is not None:
        grades.write_csv(csv)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def notebooks(context: typer.Context) -> None:
    """For authors: build labs and badges, run the notebooks, check what is out of step."""
    from onegpu.notebooks.__main__ import main as run

    sys.exit(run(context.args))


def _settings(pairs: list[str], config_type: type) -> dict:
    """Parse name=value pairs by the types of a config's fields."""
    defaults = {f.name: f.default for f in dataclasses.fields(config_type)}
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in defaults:
            raise ValueError(f"--set {pair}: expected name=value with a name from {', '.join(defaults)}")
        try:
            value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
        except ValueError:
            value = None if text.lower() == "none" else text
        wanted = type(defaults[name])
        if isinstance(value, bool) != (wanted is bool) and wanted in (bool, int, float):
            raise ValueError(f"--set {pair}: expected {wanted.__name__}")
        if wanted in (int, float) and not isinstance(value, int if wanted is int else int | float):
            raise ValueError(f"--set {pair}: expected {wanted.__name__}, found {text!r}")
        found[name] = str(value) if wanted is str and value is not None else value
    return found


def _writable(path: Path | None) -> None:
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


def _write(path: Path | None, content: dict) -> None:
    if path is not None:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
