"""The model card of an adapter: what it was made from, how, and what it scored."""

from __future__ import annotations

import json
from typing import Any

from onegpu.qlora_finetune.bases import Base
from onegpu.qlora_finetune.report import FinetuneResult, score_rows

SETTINGS = (
    "max_length", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type",
    "warmup_steps", "weight_decay", "optim", "lora_r", "lora_alpha", "lora_dropout", "target_modules", "seed",
)  # fmt: skip

ONLY_IF_SET = ("adapter", "use_dora", "use_rslora", "modules_to_save", "beta")


def model_card(result: FinetuneResult, base: Base) -> str:
    """Return the README.md of an adapter folder: hub metadata, base, data, settings, scores and how to use it."""
    config = result.config
    name = config["data"]
    head = ["---", "library_name: peft", "pipeline_tag: text-generation"]
    if base.kind != "folder":
        head += [f"base_model: {json.dumps(base.model)}", "base_model_relation: adapter"]
    head += [
        "tags:",
        "- lora",
        "- qlora" if base.quantization else "- plain-lora",
        f"- {config['method']}",
        "---",
    ]
    lines = [
        *head, "", f"# {base.model.rstrip('/').rsplit('/', 1)[-1]}, fine-tuned on {name}", "",
        f"A LoRA adapter, made with onegpu {result.versions.get('onegpu', '')}".rstrip() + ".", "",
        f"- **Base:** {base}" + (" (a path on the machine that trained it)" if base.kind == "folder" else ""),
        f"- **Data:** {name}: {result.tokens:,} tokens in {result.steps:,} steps, {result.supervised_tokens:,} of them "
        "learned from",
        f"- **Held-out data:** {config['eval_data'] or ('rows of the same set' if result.after.rows else 'none')}",
        f"- **Machine:** {result.machine}, {result.precision}, {result.train_seconds:,.0f} s of training",
        f"- **Layout:** {result.self_check}", "", "## Scores", "",
    ]  # fmt: skip
    before, after = score_rows(result.before), score_rows(result.after)
    if after:
        lines += ["| | before | after |", "|---|---|---|"]
        lines += [f"| held-out {name} | {before.get(name, '-')} | {text} |" for name, text in after.items()]
    else:
        lines.append("No held-out rows, so no scores.")
    lines += ["", "## Settings", "", "| setting | |", "|---|---|"]
    lines += [f"| {name} | {_text(config[name])} |" for name in SETTINGS]
    lines += [f"| {name} | {_text(config[name])} |" for name in ONLY_IF_SET if config[name]]
    lines += [f"| {'max_steps' if config['max_steps'] > 0 else 'num_train_epochs'} | "
              f"{config['max_steps'] if config['max_steps'] > 0 else config['num_train_epochs']} |"]  # fmt: skip
    lines += ["", "## Use", "", "```sh", "onegpu merge THIS_FOLDER MERGED_FOLDER", "```", "",
              "merges it into its base, for programs that know neither peft nor bitsandbytes.", "", "Versions: "
              + ", ".join(f"{k} {v}" for k, v in result.versions.items()) + ".", ""]  # fmt: skip
    return "\n".join(lines)


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)
