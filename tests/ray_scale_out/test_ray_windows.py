"""Windows, schedules and shares: the arithmetic of the stream, in this process."""

import dataclasses
import json
from collections import Counter

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.packed_training import pack_lengths
from onegpu.qlora_finetune import prepare_data
from onegpu.ray_scale_out import pipeline
from onegpu.ray_scale_out.cluster import NotEnoughResources, data_cpus, spill_room, worker_resources
from onegpu.ray_scale_out.layout import StreamCounts, schedule, shard
from onegpu.ray_scale_out.pipeline import Recipe, count_rows, packed_rows, to_examples
from onegpu.ray_scale_out.training import _held_out_bad_rows, recipe_of, source_of, split_windows
from onegpu.ray_scale_out.window import Window, read_window, windows
from onegpu.sft_datasets import tokenize_rows

ROWS = [
    {"messages": [{"role": "user", "content": f"Question {i}?"}, {"role": "assistant", "content": "Yes. " * (1 + i % 5)}]}
    for i in range(53)
]  # fmt: skip


@pytest.fixture
def recipe(tokenizer):
    return Recipe(tokenizer, max_length=96, seed=None)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_all(found):
    return [pair for window in found for pair in read_window(window)]


@pytest.mark.parametrize("size", [1, 7, 53, 1000])
def test_windows_of_a_file_hold_each_row_once_with_its_number(tmp_path, size):
    found = windows(write(tmp_path / "rows.jsonl", ROWS), size)
    assert read_all(found) == list(enumerate(ROWS))
    assert [w.rows for w in found[:-1]] == [size] * (len(found) - 1)


def test_blank_lines_and_korean_text_move_no_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "주문"}\n\n{"a": 2}\n   \n{"a": 3}', encoding="utf-8")
    assert read_all(windows(path, 2)) == [(0, {"a": "주문"}), (1, {"a": 2}), (2, {"a": 3})]


def test_rows_of_other_columns_stay_as_they_are():
    """ray#46855, #54186: a table would fill the missing columns in."""
    rows = [{"a": 1}, {"b": [{"c": None}]}, {}]
    assert [row for _, row in read_all(windows(rows, 2))] == rows


@pytest.mark.parametrize(
    "select",
    [
        lambda d: d.select([0, 2, 4]),
        lambda d: d.filter(lambda row: row["n"] % 3 == 0),
        lambda d: d.shuffle(seed=0),
        lambda d: d.train_test_split(0.3, seed=0)["train"],
        lambda d: d.select([5, 5, 5]),
    ],
    ids=["select", "filter", "shuffle", "train_test_split", "repeat"],
)
def test_index_mappings_of_a_data_set_are_respected(select):
    """ray#36141: rows were taken from the table below the selection."""
    datasets.disable_progress_bars()
    chosen = select(datasets.Dataset.from_dict({"n": list(range(20))}))
    assert [row["n"] for _, row in read_all(windows(chosen, 3))] == chosen["n"]


def test_no_rows_and_no_window_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no rows"):
        windows([])
    with pytest.raises(FileNotFoundError, match="no such file"):
        windows(tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match="window_rows is 0"):
        windows(ROWS, 0)


def test_a_line_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": \n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: found '\{\"a\":'"):
        read_all(windows(path))


def test_a_line_of_json_that_is_no_object_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n[1, 2]\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: found a list, expected an object"):
        read_all(windows(path))


def test_one_window_packs_as_topic_07_does(recipe, tokenizer):
    examples = tokenize_rows(ROWS, tokenizer, recipe.max_length)
    rows = pack_lengths([len(e) for e in examples], recipe.max_length).rows
    assert [row["rows"] for row in packed_rows(windows(ROWS, 1000), recipe)] == rows


@pytest.mark.parametrize("size", [1, 8, 64])
def test_packing_in_windows_loses_no_row_and_no_label(recipe, tokenizer, size):
    alone = {e.row: e for e in tokenize_rows(ROWS, tokenizer, recipe.max_length)}
    seen = []
    for packed in packed_rows(windows(ROWS, size), recipe):
        for number, example in zip(packed["rows"], to_examples(packed), strict=True):
            assert example["input_ids"] == list(alone[number].input_ids)
            assert example["labels"] == list(alone[number].labels)
            seen.append(number)
    assert sorted(seen) == list(range(len(ROWS)))


def test_without_packing_each_example_is_a_row(tokenizer):
    rows = list(packed_rows(windows(ROWS, 8), Recipe(tokenizer, 96, packing=False, seed=None)))
    assert [row["rows"] for row in rows] == [[i] for i in range(len(ROWS))]


def test_a_bad_row_is_named_before_training(recipe):
    bad = [*ROWS[:40], {"messages": [{"role": "user", "content": "Nobody answers."}]}, *ROWS[40:]]
    with pytest.raises(ValueError, match="row 40"):
        count_rows(windows(bad, 8), recipe, parallel=False)


def test_skipped_rows_are_counted_and_named(tokenizer, tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    path.write_text(path.read_text() + "not json\n" + json.dumps({"prompt": "?", "completion": ""}) + "\n")
    counts = count_rows(windows(path, 8), Recipe(tokenizer, 96, bad_rows="skip"), parallel=False)
    assert counts.dropped == {"bad_row": (53, 54)}
    assert (counts.read, counts.kept) == (55, 53)


def test_counts_and_the_first_bad_row_do_not_depend_on_which_window_was_ready_first(recipe, monkeypatch):
    class LastFirst:
        """Stands for Ray Data, whose tasks end in any order."""

        def __init__(self, found):
            self.found = found

        def map_batches(self, *args, **settings):
            return self

        def take_all(self):
            return [pipeline.count_window(window, recipe) for window in reversed(self.found)]

    monkeypatch.setattr(pipeline, "window_dataset", LastFirst)
    found = windows(ROWS, 8)
    assert count_rows(found, recipe) == count_rows(found, recipe, parallel=False)
    with pytest.raises(ValueError, match="row 9"):
        count_rows(windows([*ROWS[:9], {}, *ROWS[9:30], {}], 8), recipe)


def test_rows_that_are_too_long_are_counted_and_named(tokenizer):
    long = {"prompt": "word " * 200, "completion": "yes"}
    counts = count_rows(windows([*ROWS[:3], long], 2), Recipe(tokenizer, 96), parallel=False)
    assert counts.dropped == {"too_long": (3,)}


def test_nothing_left_to_train_on_is_an_error_that_says_what_was_dropped(tokenizer):
    long = [{"prompt": "word " * 200, "completion": "yes"}] * 7
    with pytest.raises(ValueError, match=r"nothing left.*\n?.*too_long: 7 \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        count_rows(windows(long, 2), Recipe(tokenizer, 96), parallel=False)


def test_bad_rows_is_stop_or_skip(tokenizer):
    with pytest.raises(ValueError, match="bad_rows is 'ignore', expected 'stop' or 'skip'"):
        Recipe(tokenizer, 96, bad_rows="ignore")


def test_a_window_has_another_order_of_packed_rows_in_each_epoch_and_the_same_rows(tokenizer):
    recipe = Recipe(tokenizer, 96, seed=1)
    (window,) = windows(ROWS, 1000)
    first, second = (
        [row["rows"] for row in packed_rows([dataclasses.replace(window, epoch=epoch)], recipe)]
        for epoch in (0, 1)
    )
    assert first != second
    assert sorted(first) == sorted(second)


def test_max_steps_counts_more_than_epochs():
    found = [Window(i, i, 1) for i in range(4)]
    counts = StreamCounts((1,) * 4, 4, 4, 0, 0, {})
    placed, steps = schedule(found, counts, workers=1, batch_size=1, epochs=1, max_steps=10)
    assert steps == 10
    assert [w.epoch for w in placed] == [0] * 4 + [1] * 4 + [2] * 4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0.5, 1.0, 2.0, 2.5]),
)
def test_a_schedule_gives_every_row_once_an_epoch_and_full_steps(
    packed, workers, batch, accumulation, epochs
):
    found = [Window(i, i * 10, 10) for i in range(len(packed))]
    counts = StreamCounts(tuple(packed), 0, 1, 0, 0, {})
    placed, steps = schedule(
        found, counts, workers=workers, batch_size=batch, accumulation=accumulation, epochs=epochs
    )
    a_step = workers * batch * accumulation
    sizes = [packed[w.window] + w.fillers for w in placed]
    assert [w.first_index for w in placed] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert sum(sizes) % a_step == 0
    assert steps <= sum(sizes) // a_step
    assert sum(w.fillers for w in placed) < a_step * (placed[-1].epoch + 1)
    for epoch in range(placed[-1].epoch + 1):
        assert Counter(w.window for w in placed if w.epoch == epoch) == Counter(range(len(packed)))


def test_epochs_have_orders_of_their_own_and_the_seed_repeats_them():
    found = [Window(i, i, 1) for i in range(20)]
    counts = StreamCounts((1,) * 20, 20, 20, 0, 0, {})
    one, _ = schedule(found, counts, workers=1, batch_size=1, epochs=2, seed=3)
    two, _ = schedule(found, counts, workers=1, batch_size=1, epochs=2, seed=3)
    assert one == two
    assert [w.window for w in one[:20]] != [w.window for w in one[20:]]


@given(st.lists(st.integers(), max_size=30), st.integers(1, 7))
def test_shares_are_equal_and_lose_nothing(rows, workers):
    shares = shard(rows, workers)
    assert len({len(share) for share in shares}) == 1
    assert Counter(row for share in shares for row in share if row is not None) == Counter(rows)


def test_workers_leave_a_cpu_to_the_data_also_on_two_cpus():
    """ray#28822: on Colab's two CPUs, workers that take both leave nothing to read rows with."""
    asked = worker_resources(2, False, cpus=2, gpus=0)
    assert 2 * asked["CPU"] <= 1


def test_cpus_that_others_hold_are_not_counted_on():
    """An actor that a notebook's variable still holds took a tenth of a CPU: rows and workers waited for each other."""
    asked = worker_resources(2, False, cpus=2, gpus=0, free_cpus=1.9)
    assert 2 * asked["CPU"] + data_cpus(1.9) <= 1.9
    with pytest.raises(NotEnoughResources, match=r"all but 0\.2 of 2 CPUs"):
        worker_resources(2, False, cpus=2, gpus=0, free_cpus=0.2)


def test_more_workers_than_cpus_is_an_error():
    with pytest.raises(NotEnoughResources, match="3 workers on 2 CPUs"):
        worker_resources(3, False, cpus=2, gpus=0)


def test_more_workers_than_gpus_is_an_error():
    """ray#23395: two workers, one GPU, and the run hangs."""
    with pytest.raises(NotEnoughResources, match="the cluster has 1"):
        worker_resources(2, True, cpus=8, gpus=1)


def test_a_disk_too_full_to_spill_to_is_an_error():
    full = (100_000_000_000, 96_000_000_000, 4_000_000_000)
    with pytest.raises(NotEnoughResources, match="96% full"):
        spill_room("/data", usage=full)
    with pytest.raises(NotEnoughResources, match=r"can spill 35\.0 GB and the run may need 40\.0 GB"):
        spill_room("/data", 40_000_000_000, usage=(100_000_000_000, 60_000_000_000, 40_000_000_000))


def split(config, say):
    """Windows of a config, and what is left of them to train on."""
    source = source_of(config)
    found = windows(source.rows, 8)
    return found, *split_windows(source, found, recipe_of(config), config, say, parallel=False)


def trained(found, recipe):
    return [n for row in packed_rows(found, recipe) for n in row["rows"]]


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_a_share_is_held_out_as_in_one_process(tiny_config, tokenizer, tmp_path, kind):
    """The same rows, a question asked twice on one side; what is left is counted and packed without them."""
    path = tmp_path / f"rows.{kind}"
    again = {
        "messages": [{"role": "user", "content": " QUESTION 0?"}, {"role": "assistant", "content": "No."}]
    }
    twice = [*ROWS, again]
    if kind == "jsonl":
        write(path, twice)
    else:
        path.write_text(json.dumps(twice))
    config = tiny_config(data=str(path), eval_data=None, eval_rows=None, eval_share=0.2, max_length=96)
    alone = prepare_data(config, tokenizer)
    said = []
    found, counts, recipe, held = split(config, said.append)
    assert said == list(alone.notes)
    assert recipe.left_out == set(alone.held_out.examples.rows.tolist())
    assert held == alone.raw_held_out == [twice[n] for n in sorted(recipe.left_out)]
    assert (counts.kept, counts.tokens) == (len(alone.train), alone.train.tokens)
    packed = list(packed_rows(found, recipe))
    assert counts.packed == tuple(sum(row["window"] == w.window for row in packed) for w in found)
    assert sorted(n for row in packed for n in row["rows"]) == alone.train.examples.rows.tolist()


def test_named_held_out_rows_and_a_share_of_0_split_nothing(tiny_config, chats_file):
    for changes in ({}, {"eval_data": None, "eval_share": 0.0}):
        config = tiny_config(**changes)
        _, counts, recipe, held = split(config, pytest.fail)
        assert (counts.kept, recipe.left_out, held) == (25, frozenset(), [])


@pytest.mark.parametrize("eval_share", [0.0, 0.2])
def test_shares_of_several_sources_are_those_of_one_process(tiny_config, tokenizer, tmp_path, eval_share):
    """The same rows of each source, after the same were held out, though rows in both are too long."""
    long = {"prompt": "word " * 200, "completion": "yes"}
    many = write(tmp_path / "many.jsonl", [*ROWS[:20], long, *ROWS[20:40]])
    few = write(tmp_path / "few.jsonl", [long, *ROWS[40:]])
    config = tiny_config(
        data=(str(many), str(few)), data_shares=(0.75, 0.25), eval_data=None, eval_rows=None, eval_share=eval_share,
        max_length=96,
    )  # fmt: skip
    alone = prepare_data(config, tokenizer)
    said = []
    found, counts, _, held = split(config, said.append)
    assert said == list(alone.notes)
    assert held == alone.raw_held_out
    assert (counts.kept, counts.tokens) == (len(alone.train), alone.train.tokens)
    assert counts.dropped == {"too_long": (20, 41)}
    taken = [source_of(config).place(number)[0] for number in trained(found, split(config, said.append)[2])]
    assert sorted(Counter(taken)) == sorted([str(few), str(many)])
    assert Counter(taken)[str(many)] == 3 * Counter(taken)[str(few)]


def test_skipped_rows_are_listed_with_their_source_held_out_ones_too(tiny_config, tmp_path):
    bad = {"prompt": "Where?", "completion": " "}
    one = write(tmp_path / "one.jsonl", [*ROWS[:9], bad])
    two = write(tmp_path / "two.jsonl", [bad, *ROWS[9:]])
    held = write(tmp_path / "held.jsonl", [ROWS[0], bad])
    config = tiny_config(data=(str(one), str(two)), eval_data=str(held), eval_rows=None, bad_rows="skip")
    source = source_of(config)
    _, counts, recipe, _ = split(config, pytest.fail)
    listed = source.places(counts.bad_rows)
    assert [row[:2] for row in listed] == [(str(one), 9), (str(two), 0)]
    for _, number, problem in listed:
        assert problem.startswith(f"row {number}, field 'completion': found ' ', expected an answer")
    assert [row[:2] for row in _held_out_bad_rows(config, recipe.tokenizer)] == [(str(held), 1)]
    with pytest.raises(ValueError, match=r"held\.jsonl: row 1, field 'completion'"):
        _held_out_bad_rows(dataclasses.replace(config, bad_rows="stop"), recipe.tokenizer)
