"""One quiet Ray for all tests of the topic, and short runs over it."""

import json

import pytest
from chats import chat
from onegpu.models import tiny_tokenizer
from onegpu.ray_scale_out.cluster import RayMissing, local_ray, require_ray


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
def chats_file(tmp_path_factory):
    """25 chats: an odd number for two workers."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(chat(i)) + "\n" for i in range(25)), encoding="utf-8")
    return path


@pytest.fixture
def tiny_config(tiny_config, chats_file):
    """One epoch, with held-out rows."""

    def make(**changes):
        settings = {"eval_data": str(chats_file), "eval_rows": 5, "max_steps": -1, "num_train_epochs": 1}
        return tiny_config(**settings | changes)

    return make
