"""What several topics' tests share: the tiny model as a folder, chats for it, and the settings of a short run."""

import json

import pytest
from chats import chat
from onegpu import models
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig


@pytest.fixture(scope="session")
def save_tiny():
    """Write the tiny model and its tokenizer into a folder that ``models.load`` reads."""

    def save(folder):
        tiny_model().save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, save_tiny):
    """One such folder for all tests that only read it."""
    return save_tiny(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture
def tiny_nf4(tiny_folder):
    """The tiny model in 4 bits, loaded anew: tests train it."""
    return models.load(tiny_folder, quantization="nf4")


@pytest.fixture(scope="session")
def chats_file(tmp_path_factory):
    """24 chats as JSONL."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(chat(i)) + "\n" for i in range(24)), encoding="utf-8")
    return path


@pytest.fixture
def tiny_config(tiny_folder, chats_file, tmp_path):
    """The settings of a run of six steps, which takes about a second."""

    def make(**changes):
        settings = {
            "model": str(tiny_folder), "data": str(chats_file), "output_dir": str(tmp_path / "run"), "max_length": 128,
            "max_steps": 6, "learning_rate": 1e-2, "save_steps": 2, "warmup_steps": 0, "lora_r": 4, "lora_alpha": 8,
            "max_new_tokens": 4, "eval_share": 0.0,
        }  # fmt: skip
        return FinetuneConfig(**settings | changes)

    return make
