"""Ray Data: the same rows for any number of blocks, in equal shares; room, and none."""

import time

import numpy as np
import pytest
from chats import chat
from onegpu.ray_scale_out.cluster import spilled_bytes
from onegpu.ray_scale_out.layout import schedule
from onegpu.ray_scale_out.pipeline import Recipe, count_rows, packed_dataset, packed_rows
from onegpu.ray_scale_out.window import windows

ROWS = [chat(i) for i in range(101)]


def plain(row):
    return {name: np.asarray(value).tolist() for name, value in row.items()}


@pytest.fixture(scope="module")
def run(tokenizer):
    """Windows of a run of two epochs for two workers, and its packed rows made in this process."""
    recipe = Recipe(tokenizer, 128)
    found = windows(ROWS, 16)
    counts = count_rows(found, recipe, parallel=False)
    placed, _ = schedule(found, counts, workers=2, batch_size=1, epochs=2)
    return recipe, found, counts, placed, list(packed_rows(placed, recipe))


def test_counts_are_those_of_one_process(cluster, run):
    recipe, found, counts, _, _ = run
    assert count_rows(found, recipe) == counts
    assert counts.read == counts.kept == len(ROWS)


@pytest.mark.parametrize("blocks", [1, 3, None])
def test_rows_are_those_of_one_process_whatever_the_blocks(cluster, run, blocks):
    recipe, _, _, placed, here = run
    there = packed_dataset(placed, recipe, blocks=blocks).take_all()
    assert [plain(row) for row in there] == [plain(row) for row in here]


def test_workers_of_different_speed_get_every_second_row_in_order(cluster, run, ray):
    recipe, _, _, placed, here = run

    @ray.remote(num_cpus=0)
    def use(shard, seconds):
        seen = []
        for batch in shard.iter_batches(batch_size=1, batch_format="pyarrow"):
            seen += batch["index"].to_pylist()
            time.sleep(seconds)
        return seen

    shards = packed_dataset(placed, recipe).streaming_split(2, equal=True)
    fast, slow = ray.get([use.remote(shards[0], 0.0), use.remote(shards[1], 0.01)], timeout=60)
    assert fast == list(range(0, len(here), 2))
    assert slow == list(range(1, len(here), 2))


def test_a_poisoned_row_is_named_with_its_number(cluster, tokenizer):
    bad = [*ROWS[:70], {"messages": [{"role": "user", "content": "Nobody answers."}]}, *ROWS[70:], {"x": 1}]
    with pytest.raises(ValueError, match=r"^row 70, ") as caught:
        count_rows(windows(bad, 16), Recipe(tokenizer, 128))
    assert "Traceback" not in str(caught.value)
    counts = count_rows(windows(bad, 16), Recipe(tokenizer, 128, bad_rows="skip"))
    assert counts.dropped == {"bad_row": (70, 102)}


def test_a_full_store_holds_the_producers_back(cluster, ray):
    """A consumer that takes nothing stops the tasks before it: 300 MB of rows never lie in a store of 40 MB."""
    limit = 40 * 2**20
    data = ray.data.range(60, override_num_blocks=60).map_batches(
        lambda batch: {"x": np.zeros((1, 5 * 2**20), np.uint8)}, batch_size=1
    )
    data.context.execution_options.resource_limits = data.context.execution_options.resource_limits.copy(
        object_store_memory=limit
    )
    rows = iter(data.iter_batches(batch_size=1, prefetch_batches=0))
    next(rows)
    time.sleep(2)
    used = 200 * 2**20 - ray.available_resources()["object_store_memory"]
    assert used < 2.5 * limit
    assert sum(1 for _ in rows) == 59


def test_what_the_store_cannot_hold_lies_on_disk_and_comes_back(cluster, ray):
    before = spilled_bytes()
    refs = [ray.put(np.full(30 * 2**20, i, np.uint8)) for i in range(10)]  # 300 MiB in a store of 200 MiB
    assert spilled_bytes() - before >= 90 * 2**20
    assert [int(ray.get(ref)[0]) for ref in refs] == list(range(10))
