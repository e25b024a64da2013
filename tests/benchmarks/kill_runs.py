"""Kill a fine-tune with SIGKILL at random moments, resume it, and hold the result against a run without a break.

    python tests/benchmarks/kill_runs.py [KILLS] [SEED]

A tiny model, six steps, a checkpoint after every second. Six kills hit the inside of each kind of save: the file that is
being written is cut in half, and the process is gone. The others come at a random time. Each run is a fork of a process
that has imported everything, so that 30 kills take minutes. Prints one line a kill, ends with status 1 on a difference,
or if a save that was aimed at never came.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import peft.peft_model
import torch
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig, finetune
from safetensors.torch import load_file
from transformers import TrainerState

torch.set_num_threads(1)
SAVES = {"torch.save": 12, "save_file": 4, "json": 8, "trainer_state": 3}
"""Kinds of save, and how many of each a whole run makes at least: optimizer, scheduler and random state; adapters; the files
of the run's folder; the trainer's state, which comes last in a checkpoint."""
INSIDE = 6


def cut_in_half(writer: str, at: int) -> None:
    """Let the ``at``-th file of a kind be written by half, and this process end there."""
    count = [0]

    def dies(write, path_of):
        def half(*args, **kwargs):
            result = write(*args, **kwargs)
            count[0] += 1
            if count[0] == at:
                path = Path(path_of(*args))
                os.truncate(path, path.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return half

    if writer == "torch.save":
        torch.save = dies(torch.save, lambda obj, path, *rest: path)
    elif writer == "save_file":
        peft.peft_model.safe_save_file = dies(
            peft.peft_model.safe_save_file, lambda tensors, path, *rest: path
        )
    elif writer == "trainer_state":
        TrainerState.save_to_json = dies(TrainerState.save_to_json, lambda state, path: path)
    else:
        Path.write_text = dies(Path.write_text, lambda path, *rest: path)


def run(config: FinetuneConfig, resume: bool, cut: tuple[str, int] | None = None) -> int:
    """Fork, run, and return the child's process id."""
    child = os.fork()
    if child:
        return child
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        if cut:
            cut_in_half(*cut)
        finetune(config, resume=resume)
        os._exit(0)
    except BaseException:
        os._exit(1)


def result(folder: Path) -> tuple:
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    return report["losses"], report["steps"], report["tokens"], {k: v.tolist() for k, v in weights.items()}


def main(kills: int, seed: int) -> int:
    random.seed(seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tiny_model().save_pretrained(root / "tiny")
        tiny_tokenizer().save_pretrained(root / "tiny")
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"Where is {i}?"},
                    {"role": "assistant", "content": f"At {i * 7}."},
                ]
            }
            for i in range(24)
        ]
        (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

        def config(folder: str) -> FinetuneConfig:
            return FinetuneConfig(
                model=str(root / "tiny"), data=str(root / "rows.jsonl"), output_dir=str(root / folder), max_length=128,
                max_steps=6, save_steps=2, learning_rate=1e-2, warmup_steps=0, lora_r=4, lora_dropout=0.1, max_new_tokens=4,
            )  # fmt: skip

        start = time.perf_counter()
        assert os.waitpid(run(config("whole"), False), 0)[1] == 0
        seconds, wanted = time.perf_counter() - start, result(root / "whole")
        aims: list[tuple[str, int] | None] = [
            (kind, random.randint(1, number)) for kind, number in SAVES.items() for _ in range(INSIDE)
        ]
        aims += [None] * (kills - len(aims))
        random.shuffle(aims)
        for kill, cut in enumerate(aims[:kills]):
            this, resume, tries = config(f"killed{kill}"), False, 0
            child = run(this, resume, cut)
            if cut is None:
                time.sleep(random.uniform(0, seconds))
                os.kill(child, signal.SIGKILL)
            hit = os.WIFSIGNALED(os.waitpid(child, 0)[1])
            folder = Path(this.output_dir)
            left = sorted(path.name for path in folder.glob("*")) if folder.exists() else []
            while True:
                resume = (folder / "finetune_config.json").is_file()
                tries += 1
                if os.waitpid(run(this, resume), 0)[1] == 0 or tries == 3:
                    break
            same = (folder / "report.json").is_file() and result(folder) == wanted
            wrong += not same or (cut is not None and not hit)
            moment = f"inside {cut[0]} number {cut[1]}" if cut else "at a random time"
            moment += "" if hit or cut is None else ", which NEVER CAME"
            print(
                f"{kill + 1:>3} {moment:<30} left {len(left)} files, {'same' if same else 'DIFFERENT'}",
                flush=True,
            )
    print(f"{kills - wrong} of {kills} runs end with the same losses, steps, tokens and adapter")
    return int(wrong > 0)


if __name__ == "__main__":
    given = [int(a) for a in sys.argv[1:]]
    sys.exit(main(*(given + [30, 0][len(given) :])))
