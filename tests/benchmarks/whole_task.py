"""Run the shipped task as `onegpu finetune` does, ask lesson 00's message, and store what came out.

python tests/benchmarks/whole_task.py                  # many minutes; writes helpers/onegpu/qlora_finetune/whole_task.json
python tests/benchmarks/whole_task.py --only few_shot  # the base with worked examples in its prompt; keeps the rest
python tests/benchmarks/whole_task.py --only speed     # CPU seconds of its first steps; keeps the rest
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from onegpu import data, models, plots
from onegpu.packed_training import collate_rows
from onegpu.packed_training.attention import use_packed_attention
from onegpu.packed_training.loss import supervised_loss
from onegpu.qlora_finetune import FinetuneConfig, finetune, generate, triage_example
from onegpu.qlora_finetune.config import SYSTEM_PROMPT
from onegpu.qlora_finetune.evaluation import cannot_be_triage, score_triage
from onegpu.qlora_finetune.whole_task import MESSAGE
from onegpu.sft_datasets import tokenize_rows
from onegpu.sft_datasets.templates import prompt_text
from peft import PeftModel

STORED = Path(__file__).resolve().parents[2] / "helpers" / "onegpu" / "qlora_finetune" / "whole_task.json"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "_static" / "result.png"  # the README's
KEPT = (
    "losses", "before", "after", "peak_memory_bytes", "steps", "tokens", "supervised_tokens", "machine", "precision",
    "versions",
)  # fmt: skip
SCORES = ("loss", "valid_json", "intent_accuracy", "urgency_accuracy", "rows")
TIMED_STEPS = 20
NAMED = (
    f"{SYSTEM_PROMPT} The intent is one of {', '.join(data.INTENTS)}; "
    f"the urgency is one of {', '.join(data.URGENCIES)}."
)
"""The system message with all labels, which three examples can't show."""


def train() -> dict[str, Any]:
    """Train with the default settings, ask the message before and after, and return what is kept of it."""
    config = FinetuneConfig(output_dir=_new_folder())
    result = finetune(config, say=print)
    report = json.loads(json.dumps(result.to_json()))
    chat = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": MESSAGE}]
    loaded = models.load(config.model, quantization=config.quantization)
    before = generate(loaded.model, loaded.tokenizer, [chat], max_new_tokens=96)[0]
    tuned = PeftModel.from_pretrained(loaded.model, result.adapter_dir)
    after = generate(tuned, loaded.tokenizer, [chat], max_new_tokens=96)[0]
    trained = sum(p.numel() for n, p in tuned.named_parameters() if "lora_" in n)
    print(f"before: {before}\nafter:  {after}")
    return {name: report[name] for name in KEPT} | {
        "model": config.model,
        "eval_losses": [[0, report["before"]["loss"]], [report["steps"], report["after"]["loss"]]],
        "answered_rows": report["after"]["rows"],
        "answers": [{"message": MESSAGE, "before": before, "after": after}],
        "trained": trained,
        "parameters": models.count_parameters(tuned).total - trained,
    }


def speed() -> dict[str, Any]:
    """Train the first steps of the same run, with few rows to answer, and say how long the CPU worked on them.

    Seconds of a clock would say how busy the machine was; tests/benchmarks/finetune.py measures those, in pairs.
    """
    began: dict[str, float] = {}  # stage -> CPU seconds of this process, all threads together

    def say(line: str) -> None:
        began[line.split(",", maxsplit=1)[0]] = time.process_time()

    result = finetune(FinetuneConfig(output_dir=_new_folder(), max_steps=TIMED_STEPS, eval_rows=4), say=say)
    return {
        "steps": result.steps,
        "tokens": result.tokens,
        "cpu_seconds": round(began["evaluating after training"] - began["training"], 1),
        "threads": torch.get_num_threads(),
    }


def few_shot() -> dict[str, Any]:
    """Score the base, untrained, with worked examples in its prompt, and then with all labels named as well."""
    return {"examples": _with_examples(SYSTEM_PROMPT), "examples_and_labels": _with_examples(NAMED)}


def _new_folder() -> str:
    return str(Path(tempfile.mkdtemp(prefix="whole_task_")) / "run")


def _with_examples(system: str) -> dict[str, Any]:
    """Score the base with three worked examples before the question: the first training row of each urgency."""
    config = FinetuneConfig()
    loaded = models.load(config.model, quantization=config.quantization)
    rows = list(data.rows("support_triage", "train"))
    shown = [next(row for row in rows if row["urgency"] == urgency) for urgency in data.URGENCIES]
    turns = [turn for row in shown for turn in triage_example(row)["messages"][1:]]
    held_out = list(data.rows("support_triage", "heldout"))

    def chat(row: dict[str, Any]) -> list[dict[str, str]]:
        return [{"role": "system", "content": system}, *turns, *triage_example(row)["messages"][1:]]

    asked = [chat(row)[:-1] for row in held_out]
    answers = generate(
        loaded.model, loaded.tokenizer, asked, max_new_tokens=config.max_new_tokens,
        batch_size=config.generation_batch_size, is_hopeless=cannot_be_triage,
    )  # fmt: skip
    whole = tokenize_rows(
        [{"messages": chat(row)} for row in held_out], loaded.tokenizer, max_length=2048, turns="last"
    )
    use_packed_attention(loaded.model)
    total, tokens = 0.0, 0
    with torch.no_grad():
        for example in whole.examples:
            one = {"input_ids": list(example.input_ids), "labels": list(example.labels)}
            loss, supervised = supervised_loss(loaded.model, collate_rows([[one]]))
            total, tokens = total + loss.item(), tokens + int(supervised)
    scores = score_triage(answers, held_out, total / tokens)

    def mean_tokens(chats: list[list[dict[str, str]]]) -> int:
        return round(
            mean(len(loaded.tokenizer(prompt_text(chat, loaded.tokenizer))["input_ids"]) for chat in chats)
        )

    for answer in answers[:3]:
        print(answer)
    print(scores, flush=True)
    return {
        "system": system,
        "examples": [row["id"] for row in shown],
        "prompt_tokens": mean_tokens(asked),
        "prompt_tokens_without": mean_tokens([triage_example(row)["messages"][:-1] for row in held_out]),
        "scores": {name: getattr(scores, name) for name in SCORES},
    }


PARTS = {"few_shot": few_shot, "speed": speed}


def main() -> None:
    """Measure what was asked for and write it, keeping the rest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    stored = json.loads(STORED.read_text(encoding="utf-8")) if only else train()
    if not only:
        drawn = plots.qlora_finetune.loss_curve(stored["losses"], stored["eval_losses"])
        PICTURE.write_bytes(plots.base.png(drawn))
    for name in [only] if only else PARTS:
        stored[name] = PARTS[name]()
        print(stored[name])
    STORED.write_text(json.dumps(stored, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {STORED}")


if __name__ == "__main__":
    main()
