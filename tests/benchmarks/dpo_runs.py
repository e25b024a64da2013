"""DPO on the shipped rankings as lesson 02 writes it, with three seeds at two learning rates, and once by the command line.

    python tests/benchmarks/dpo_runs.py            # some 20 minutes; writes helpers/onegpu/preference_data/dpo_runs.json
    python tests/benchmarks/dpo_runs.py RUN        # the command line's part from the folder of a finished run

The functions are those of the lesson: they are taken out of its cells, so that what is stored is what a reader has read.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import torch
from onegpu import models, runtime
from onegpu.notebooks.parts import is_setup
from onegpu.preference_data import load_rankings, split_rankings
from onegpu.qlora_finetune import FinetuneResult, generate
from onegpu.sft_datasets.templates import prompt_text

ROOT = Path(__file__).resolve().parents[2]
LESSON = ROOT / "course" / "02_preference_data.ipynb"
STORED = ROOT / "helpers" / "onegpu" / "preference_data" / "dpo_runs.json"
COMMAND = "finetune --method dpo --set max_new_tokens=40 --set eval_rows=60"
RATES, SEEDS, EPOCHS, BETA = (1e-3, 2e-4), (0, 1, 2), 2, 0.1


def lesson() -> dict[str, Any]:
    """Return what the cells of the lesson import and define: its functions, by name."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(LESSON, 4).cells:
        if cell.cell_type != "code" or is_setup(cell):
            continue
        wanted = (ast.Import, ast.ImportFrom, ast.FunctionDef)
        kept = [node for node in ast.parse(cell.source).body if isinstance(node, wanted)]
        exec(compile(ast.Module(kept, []), LESSON.name, "exec"), names)
    return names


def nats_a_token(model: Any, tokenizer: Any, chats: list, answers: list[str]) -> float:
    """How unlikely the model finds answers: minus the mean log-probability of their tokens."""
    found = []
    for chat, answer in zip(chats, answers, strict=True):
        prompt, said = (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (prompt_text(chat, tokenizer), answer)
        )
        with torch.no_grad():
            logits = model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
        found.append(-logits.log_softmax(-1)[range(len(said)), said])
    return torch.cat(found).mean().item()


def runs(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Train with each learning rate and seed; what each pair's margin was, and what the policy answers."""
    of = lesson()
    train, held_out = split_rankings(load_rankings())
    learn, test = (of["best_and_worst"](part, tokenizer) for part in (train, held_out))
    chats = [[{"role": "user", "content": ranking.prompt}] for ranking in held_out[::6]]
    before = generate(model, tokenizer, chats, max_new_tokens=40)
    kept, found = None, []
    for lr in RATES:
        for seed in SEEDS:
            runtime.seed_everything(seed)
            below, policy = of["divide"](model)
            kept = kept or of["read"](below, (*learn, *test))
            start = of["all_logprobs"](policy, kept, test)
            history = of["train_on_pairs"](policy, kept, learn, EPOCHS, lr, BETA)
            end = of["all_logprobs"](policy, kept, test)
            policy.model.layers = torch.nn.ModuleList([*below.layers, *policy.model.layers])
            answers = generate(policy, tokenizer, chats, max_new_tokens=40)
            found.append({
                "learning_rate": lr,
                "seed": seed,
                "history": [[round(margin, 3), new] for margin, new in history],
                "held_out": [[round(BETA * x, 3) for x in (b - a).tolist()] for a, b in zip(start, end, strict=True)],
                "answers": answers,
                "nats_a_token": round(nats_a_token(model, tokenizer, chats, answers), 3),
            })  # fmt: skip
            print(lr, seed, found[-1]["nats_a_token"], *answers, sep="\n  ", flush=True)
    return {
        "runs": found,
        "asked": [chat[0]["content"] for chat in chats],
        "before": before,
        "before_nats_a_token": round(nats_a_token(model, tokenizer, chats, before), 3),
    }


def command_line(folder: Path | None, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Run the command, or read the run in a folder; what it reports and says, and how far apart the answers were at first."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="dpo_runs_")) / "run"
        command = [sys.executable, "-m", "onegpu.cli", *COMMAND.split(), "--output-dir", str(folder)]
        subprocess.run(command, check=True)
    result = FinetuneResult.from_json(json.loads((folder / "report.json").read_text("utf-8")))
    report = str(result)
    first = json.loads(
        (folder / "log.jsonl").read_text("utf-8").splitlines()[0]
    )  # before the first step, held-out pairs
    chats = [[{"role": "user", "content": sample["question"]}] for sample in result.samples]
    said = {when: [sample[when] for sample in result.samples] for when in ("before", "after")}
    return {
        "command": f"onegpu {COMMAND}",
        "report": report[report.index("held-out, ") : report.index("sample 1")].rstrip(),
        "logprobs_before": {side: round(first[f"eval_logps/{side}"], 2) for side in ("chosen", "rejected")},
        "held_out": {name: getattr(result.after, name) for name in ("pairs", "margin", "margin_deviation")},
        "asked": [sample["question"] for sample in result.samples],
        "answers": said,
        "nats_a_token": {
            when: round(nats_a_token(model, tokenizer, chats, answers), 3) for when, answers in said.items()
        },
    }


def main(folder: Path | None) -> None:
    """Run all, write."""
    loaded = models.load("smollm2-135m")
    stored = runs(loaded.model, loaded.tokenizer)
    stored |= {"command_line": command_line(folder, loaded.model, loaded.tokenizer)}
    stored |= {"machine": str(runtime.machine()), "versions": dict(runtime.versions())}
    STORED.write_text(json.dumps(stored, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {STORED}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
