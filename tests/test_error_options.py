"""Messages name only options that exist where they appear.

The texts of the modules that each surface runs are read from their source, and every option that one names is looked up:
`--name`, `name=value`, "set name", and any word with an underscore. Words that are no options are listed, each with what it
is, so that a new one has to be thought about.
"""

import ast
import dataclasses
import inspect
import re
from functools import cache
from pathlib import Path

import onegpu
import pytest
import typer
from onegpu.cli.app import app
from onegpu.gpu_memory import TrainingSetup, largest_batch
from onegpu.gpu_memory import report as memory_report
from onegpu.models import tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig, finetune, merge_adapter
from onegpu.ray_scale_out import finetune_distributed, local_ray
from onegpu.sft_datasets import normalise, read_rows, tokenize, tokenize_rows
from onegpu.token_counting import count_tokens, report, training_steps

PACKAGE = Path(onegpu.__file__).parent
NAME = re.compile(
    r"--([a-z][a-z-]+)"  # of the command line
    r"|\b([a-z]+(?:_[a-z]+)+)\b"  # max_length
    r"|\b([a-z]+)=(?=['\"{A-Z0-9\[.])"  # turns='last'
    r"|\b[Ss]et (?!it\b)([a-z]+)(?= to | above)"  # set template to
)


def options(command):
    """Names of a command's options, as Python writes them."""
    found = typer.main.get_command(app).commands[command]
    return {
        name.lstrip("-").replace("-", "_")
        for p in found.params
        for name in (*p.opts, *p.secondary_opts, p.name)
    }


def parameters(*functions):
    return {name for function in functions for name in inspect.signature(function).parameters}


def fields(kind):
    return {field.name for field in dataclasses.fields(kind)}


ROW_SETTINGS = {"columns", "template", "turns", "truncation", "bad_rows", "repairs"}
REPAIRS = parameters(normalise)
SURFACES = {
    "onegpu finetune": lambda: options("finetune") | fields(FinetuneConfig) | REPAIRS,
    "finetune()": lambda: parameters(finetune) | fields(FinetuneConfig) | REPAIRS,
    "finetune_distributed()": lambda: (
        parameters(finetune_distributed, local_ray) | fields(FinetuneConfig) | REPAIRS
    ),
    "onegpu tokens": lambda: options("tokens") | ROW_SETTINGS | REPAIRS | STEPS,
    "token_counting": lambda: parameters(report, count_tokens, training_steps) | REPAIRS,
    "sft_datasets": lambda: parameters(tokenize, tokenize_rows, read_rows) | REPAIRS,
    "onegpu memory": lambda: options("memory") | fields(TrainingSetup),
    "gpu_memory": lambda: parameters(memory_report, largest_batch) | fields(TrainingSetup),
    "merge": lambda: options("merge") | parameters(merge_adapter),
}
STEPS = {"per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"}
"""What `onegpu tokens` calls batch-size, accumulation and epochs; the help of each says so."""

RUNS = ("onegpu finetune", "finetune()")
ALL_ROWS = (*RUNS, "finetune_distributed()", "onegpu tokens", "token_counting", "sft_datasets")
WHERE = {
    "sft_datasets/formats.py": ALL_ROWS,
    "sft_datasets/templates.py": ALL_ROWS,
    "sft_datasets/tokenization.py": ALL_ROWS,
    "sft_datasets/normalisation.py": ALL_ROWS,
    "sft_datasets/readers.py": ALL_ROWS,
    "sft_datasets/cache.py": RUNS,
    "data/reading.py": ALL_ROWS,
    "qlora_finetune/rows.py": RUNS,
    "qlora_finetune/run.py": RUNS,
    "qlora_finetune/config.py": (*RUNS, "finetune_distributed()"),
    "qlora_finetune/folders.py": RUNS,
    "qlora_finetune/stopping.py": RUNS,
    "qlora_finetune/trainer.py": RUNS,
    "qlora_finetune/watching.py": RUNS,
    "qlora_finetune/adapters.py": (*RUNS, "finetune_distributed()"),
    "qlora_finetune/memory.py": RUNS,
    "qlora_finetune/merge.py": ("merge",),
    "packed_training/adapters.py": (*RUNS, "finetune_distributed()"),
    "packed_training/self_check.py": (*RUNS, "finetune_distributed()"),
    "packed_training/attention.py": (*RUNS, "finetune_distributed()"),
    "token_counting/report.py": ("onegpu tokens", "token_counting"),
    "token_counting/columns.py": ("onegpu tokens", "token_counting"),
    "token_counting/counting.py": ("token_counting",),
    "token_counting/steps.py": ("onegpu tokens", "token_counting"),
    "token_counting/sources.py": ("onegpu tokens", "token_counting"),
    "gpu_memory/training_setup.py": ("onegpu memory", "gpu_memory"),
    "gpu_memory/training_step.py": ("onegpu memory", "gpu_memory"),
    "gpu_memory/closed_form.py": ("onegpu memory", "gpu_memory"),
    "gpu_memory/fits.py": ("onegpu memory", "gpu_memory"),
    "gpu_memory/model_configs.py": ("onegpu memory", "gpu_memory"),
    "gpu_memory/meta_model.py": ("onegpu memory", "gpu_memory"),
    "gpu_memory/step_time.py": ("onegpu memory", "gpu_memory"),
    "cli/memory.py": ("onegpu memory",),
    "ray_scale_out/training.py": ("finetune_distributed()",),
    "ray_scale_out/pipeline.py": ("finetune_distributed()",),
    "ray_scale_out/window.py": ("finetune_distributed()",),
}

NO_OPTIONS = {
    "limit": "of read_rows alone; eval_rows, which gives it, is checked before",
    "keep_default_na": "an argument of pandas.read_csv",
    "tool_calls": "a key of rows",
    "im_start": "of a template's text", "im_end": "of a template's text", "bos_token": "of a template's text",
    "raise_exception": "of a template's text", "attribute": "of a template's text", "eos_token": "of a tokenizer",
    "add_generation_prompt": "of a template's text",
    "save_to_disk": "of datasets", "set_transform": "of datasets", "with_format": "of datasets",
    "adapter_model": "a file", "adapter_config": "a file", "qlora_finetune": "a module", "list_flatten": "a function of pyarrow",
    "seq_lens": "a key of batches", "is_gradient_checkpointing": "of transformers",
    "prepare_model_for_kbit_training": "a function of peft", "sdpa_expanded": "a value of attention",
    "q_proj": "a value of target_modules", "v_proj": "a value of target_modules",
    
    "style": "of HTML", "scope": "of HTML", "r": "lora_r, in a line that shows a setup", "dropout": "lora_dropout, in the same line",
}  # fmt: skip


@cache
def texts(module):
    """The texts of a module that are no docstrings, with {} for what is filled in, and their lines."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(v) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for v in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            found.append((node.lineno, text))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and not {id(node)} & (bare | parts)
        ):
            found.append((node.lineno, node.value))
    return found


def named(text):
    """Options that a text names."""
    return [next(filter(None, match.groups())).replace("-", "_") for match in NAME.finditer(text)]


@pytest.mark.parametrize(("surface", "module"), [(s, m) for m, surfaces in WHERE.items() for s in surfaces])
def test_every_option_that_a_message_names_exists_there(surface, module):
    there = SURFACES[surface]() | (options("finetune") if surface in RUNS else set())
    strangers = [
        f"{module}:{line}: {name!r} in {text!r}"
        for line, text in texts(module)
        for name in named(text)
        if name not in there and name not in NO_OPTIONS
    ]
    assert strangers == []


def test_the_list_of_words_that_are_no_options_has_none_too_many():
    said = {name for module in WHERE for _, text in texts(module) for name in named(text)}
    assert sorted(set(NO_OPTIONS) - said) == []


def test_options_are_found_in_every_way_of_writing_them():
    assert named("Set template to 'x', turns='last' or --bad-rows; max_length=3 helps, resume=True too.") == [
        "template", "turns", "bad_rows", "max_length", "resume",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "answer": "!"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        {"messages": [{"role": "assistant", "content": "a"}], "tools": [{"name": "f"}]},
        {"prompt": "a", "completion": ""},
        {"prompt": "a", "completion": "<|im_end|>"},
        {"prompt": "a", "completion": "b", "images": ["x.png"]},
        {"prompt": "a " * 500, "completion": "b"},
    ],
)
def test_an_error_as_it_is_raised_names_options_of_finetune_and_tokens_only(row):
    with pytest.raises(ValueError, match=r"\w") as caught:
        tokenize_rows([row], tiny_tokenizer(), 64)
    for surface in ALL_ROWS:
        assert set(named(str(caught.value))) - set(NO_OPTIONS) <= SURFACES[surface]()
