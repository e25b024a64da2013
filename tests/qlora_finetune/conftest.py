"""A tiny quantized model, chats for it, and a fine-tune of a second."""

import json

import pytest
from onegpu import models
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig

QUESTIONS = [
    "Where is my parcel?",
    "I was charged twice.",
    "Reset my password please, the link is dead.",
    "Does it come in blue?",
    "Cancel order 12.",
    "The mug arrived broken, and the box was wet as well.",
    "Thanks, all good",
    "When do you open?",
    "I want to send back the lamp",
    "Stop the newsletter.",
]


def chat(i):
    return {
        "messages": [
            {"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]},
            {"role": "assistant", "content": f"Answer {i}: we are on it." + " Sorry." * (i % 4)},
        ]
    }


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The tiny model and tokenizer as a folder that ``models.load`` reads."""
    folder = tmp_path_factory.mktemp("tiny_model")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_nf4(tiny_folder):
    return models.load(tiny_folder, quantization="nf4")


@pytest.fixture(scope="session")
def chats_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(chat(i)) + "\n" for i in range(24)), encoding="utf-8")
    return path


@pytest.fixture
def tiny_config(tiny_folder, chats_file, tmp_path):
    """A config for a run of ten steps."""

    def make(**changes):
        settings = {
            "model": str(tiny_folder), "data": str(chats_file), "output_dir": str(tmp_path / "run"), "max_length": 128,
            "max_steps": 6, "learning_rate": 1e-2, "save_steps": 2, "warmup_steps": 0, "lora_r": 4, "lora_alpha": 8,
            "max_new_tokens": 4, "eval_share": 0.0,
        }  # fmt: skip
        return FinetuneConfig(**settings | changes)

    return make
