"""One quiet Ray for all tests of the topic, a tiny model, and chats."""

import json

import pytest
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.ray_scale_out.cluster import RayMissing, local_ray, require_ray
from qlora_finetune.conftest import chat


@pytest.fixture(scope="session")
def ray():
    try:
        return require_ray()
    except RayMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="package")
def cluster(ray):
    """Two CPUs, as on Colab."""
    with local_ray(2) as started:
        yield started


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny_model")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chats_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(chat(i)) + "\n" for i in range(25)), encoding="utf-8")
    return path


@pytest.fixture
def tiny_config(tiny_folder, chats_file, tmp_path):
    def make(**changes):
        settings = {
            "model": str(tiny_folder), "data": str(chats_file), "eval_data": str(chats_file), "eval_rows": 5,
            "output_dir": str(tmp_path / "run"), "max_length": 128, "learning_rate": 1e-2, "save_steps": 2,
            "warmup_steps": 0, "lora_r": 4, "lora_alpha": 8, "num_train_epochs": 1,
        }  # fmt: skip
        return FinetuneConfig(**settings | changes)

    return make
