"""Prepare the rows of a fine-tune, beside TRL's own preparation of the same rows; and what many rows take in memory.

    python tests/benchmarks/preparing_rows.py                       # 50,000 rows of chats, then 200,000 of 500 tokens
    python tests/benchmarks/preparing_rows.py --rows 5000 --many 20000

Speed: each way in a process of its own, in turns, the best of ``--times``. Ours is ``tokenize_rows`` on rows read from
JSON Lines, TRL's is ``SFTTrainer``'s preparation (masks of the assistant's turns, from a template with generation marks;
and its prompt-completion form) on the same rows as a memory-mapped data set, as it comes from disk, its cache empty. Both
have all cores, and the labels of each must count as many supervised tokens. Memory: resident memory before and after
``prepare_data`` of rows of about 500 tokens, with and without the cache on disk.

Needs the extra ``bench`` (TRL). The model is the course's, which is downloaded once; TRL gets a tiny one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sft_datasets import WORDS, write_rows

MIB = 2**20
GOAL = 2.0
MAX_LENGTH = 1024
OURS, ASSISTANT, COMPLETION = "ours", "TRL, assistant mask", "TRL, prompt and completion"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{{ '\n' }}{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer():
    """SmolLM2's, with a ChatML template that says which parts are generated."""
    from onegpu.models import load_tokenizer

    found = load_tokenizer("smollm2-135m")
    found.chat_template = CHATML
    return found


def write_chats(path: Path, count: int) -> None:
    """Alpaca rows as chats."""
    from onegpu.sft_datasets import read_rows, to_example

    with tempfile.TemporaryDirectory() as folder, path.open("w") as file:
        alpaca = Path(folder, "rows.jsonl")
        write_rows(alpaca, count)
        for row in read_rows(alpaca):
            file.write(json.dumps({"messages": list(to_example(row).messages)}) + "\n")


def write_long(path: Path, count: int) -> None:
    """Rows of about 500 tokens."""
    chance = random.Random(0)
    with path.open("w") as file:
        for i in range(count):
            question, answer = (" ".join(chance.choices(WORDS, k=words)) for words in (90, 390))
            file.write(json.dumps({"prompt": f"{i}: {question}?", "completion": f"{answer}."}) + "\n")


def ours(path: str) -> tuple[float, float, int, int]:
    """Seconds, seconds of all cores, rows and supervised tokens of our preparation, the file's reading included."""
    from onegpu.sft_datasets import read_rows, tokenize_rows

    tok = tokenizer()
    start, busy = time.perf_counter(), time.process_time()
    done = tokenize_rows(read_rows(path), tok, MAX_LENGTH)
    return time.perf_counter() - start, time.process_time() - busy, len(done), done.supervised_tokens


def trl(path: str, way: str) -> tuple[float, float, int, int]:
    """The same of TRL's, the reading not included."""
    import datasets
    from onegpu.models import tiny_model
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()

    class Timed(SFTTrainer):
        def _prepare_dataset(self, *args, **kwargs):
            start, busy = time.perf_counter(), time.process_time()
            done = super()._prepare_dataset(*args, **kwargs)
            self.seconds = time.perf_counter() - start, time.process_time() - busy
            return done

    tok = tokenizer()
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    if way == COMPLETION:
        rows = [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        datasets.Dataset.from_list(rows).save_to_disk(f"{folder}/rows")
        config = SFTConfig(
            f"{folder}/run",
            assistant_only_loss=way == ASSISTANT,
            max_length=MAX_LENGTH,
            use_cpu=True,
            report_to="none",
        )
        trainer = Timed(
            model=tiny_model(vocab_size=len(tok)), args=config, processing_class=tok,
            train_dataset=datasets.load_from_disk(f"{folder}/rows"),
        )  # fmt: skip
        done = trainer.train_dataset.with_format("numpy")
        supervised = sum(int((labels[1:] != -100).sum()) for labels in done["labels"])
        return *trainer.seconds, len(done), supervised


def memory(path: str, cached: bool) -> dict[str, float]:
    """Resident bytes before and after preparing a file, the peak between, and the seconds it took (and takes again)."""
    from onegpu.qlora_finetune import FinetuneConfig, prepare_data

    def resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    tok = tokenizer()
    prepare_data(FinetuneConfig(data="alpaca_sample", eval_share=0.0), tok)
    config = FinetuneConfig(data=path, max_length=MAX_LENGTH, eval_share=0.0, cache_rows=cached)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    start = time.perf_counter()
    done = prepare_data(config, tok)
    seconds = time.perf_counter() - start
    found = {
        "tokens": done.train.tokens, "rows": len(done.train), "seconds": seconds, "peak": resident("VmHWM") - before,
        "after": resident("VmRSS") - before
    }  # fmt: skip
    if cached:
        start = time.perf_counter()
        prepare_data(config, tok)
        found["again"] = time.perf_counter() - start
    return found


def alone(*arguments: str, **environment: str):
    """Run this file in a fresh process and read what it prints."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main(rows: int, many: int, times: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        if rows:
            compare(path, rows, times)
        if many:
            weigh(path, many, f"{folder}/cache")


def compare(path: Path, rows: int, times: int) -> None:
    """Print rows a second, ours and TRL's."""
    write_chats(path, rows)
    best: dict[str, tuple[float, float, int, int]] = {}
    for _ in range(times):
        for way in (OURS, ASSISTANT, COMPLETION):
            found = tuple(alone(way, str(path)))
            best[way] = min(best.get(way, found), found)
    speed = {way: kept / seconds for way, (seconds, _, kept, _) in best.items()}
    for way, (seconds, busy, kept, supervised) in best.items():
        print(
            f"{way:<27} {kept:,} rows in {seconds:.1f} s ({busy:.1f} s of all cores): {speed[way]:,.0f} rows/s; "
            f"{supervised:,} supervised tokens"
        )
    ratio = speed[OURS] / max(speed[ASSISTANT], speed[COMPLETION])
    print(f"ours / TRL's faster way: {ratio:.2f} (goal: at least {GOAL})\n")


def weigh(path: Path, many: int, cache_folder: str) -> None:
    """Print what prepared rows take in memory."""
    from onegpu.models import cache_folder as of_models

    write_long(path, many)
    Path(cache_folder).mkdir()
    Path(cache_folder, "models").symlink_to(of_models() / "models")
    for how in ("cached", "in memory"):
        found = alone(how, str(path), ONEGPU_CACHE=cache_folder)
        tokens = found["tokens"]
        again = f", {found['again']:.1f} s again" if "again" in found else ""
        print(
            f"{how:<10} {found['rows']:,} rows, {tokens:,} tokens: {found['seconds']:.1f} s{again}; resident memory "
            f"+{found['after'] / MIB:,.0f} MiB after ({found['after'] / tokens:.1f} B a token), "
            f"+{found['peak'] / MIB:,.0f} MiB at the peak ({found['peak'] / tokens:.1f} B a token)"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        way, path = sys.argv[2:]
        if way in ("cached", "in memory"):
            found = memory(path, way == "cached")
        else:
            found = ours(path) if way == OURS else trl(path, way)
        print(json.dumps(found))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--rows", type=int, default=50_000)
        parser.add_argument("--many", type=int, default=200_000)
        parser.add_argument("--times", type=int, default=2)
        main(**vars(parser.parse_args()))
