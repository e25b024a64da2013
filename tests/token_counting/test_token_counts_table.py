"""Every operation of ``datasets`` that changes which rows there are, against the numbers measured for it.

Rows have 1 to 10 tokens (55 in all), of which the last half, rounded up, is supervised (30 in all).
"""

import pickle

import datasets
import pytest
from onegpu.token_counting import count_tokens
from onegpu.token_counting.recipes import count_with_pandas, count_with_python, count_with_table


def ten_rows():
    ids = [list(range(n)) for n in range(1, 11)]
    labels = [[-100] * (n // 2) + list(range(n // 2, n)) for n in range(1, 11)]
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": labels})


def split(**options):
    return lambda ds: ds.train_test_split(0.3, **options)


TABLE = {  # operation: (what it does, truth, before axolotl#3711, after it)
    "original": (lambda ds: ds, (55, 30), (55, 30), (55, 30)),
    "select first three": (lambda ds: ds.select([0, 1, 2]), (6, 4), (6, 4), (6, 4)),
    "select range": (lambda ds: ds.select(range(3)), (6, 4), (6, 4), (6, 4)),
    "take": (lambda ds: ds.take(3), (6, 4), (6, 4), (6, 4)),
    "select last range": (lambda ds: ds.select(range(7, 10)), (27, 14), (27, 14), (27, 14)),
    "skip": (lambda ds: ds.skip(7), (27, 14), (27, 14), (27, 14)),
    "select one": (lambda ds: ds.select([9]), (10, 5), (10, 5), (10, 5)),
    "select none": (lambda ds: ds.select([]), (0, 0), (0, 0), (0, 0)),
    "select every other of five": (lambda ds: ds.select([0, 2, 4]), (9, 6), (9, 30), (55, 30)),
    "select the same thrice": (lambda ds: ds.select([0, 0, 0]), (3, 3), (3, 30), (55, 30)),
    "select a stride": (lambda ds: ds.select(range(0, 10, 2)), (25, 15), (25, 30), (55, 30)),
    "shard with gaps": (lambda ds: ds.shard(2, 0, contiguous=False), (25, 15), (25, 30), (55, 30)),
    "shuffle": (lambda ds: ds.shuffle(seed=0), (55, 30), (55, 30), (55, 30)),
    "shuffle, select": (lambda ds: ds.shuffle(seed=0).select(range(3)), (15, 9), (15, 30), (55, 30)),
    "filter": (lambda ds: ds.filter(lambda r: len(r["input_ids"]) <= 5), (15, 9), (15, 30), (55, 30)),
    "filter, all kept": (lambda ds: ds.filter(lambda r: True), (55, 30), (55, 30), (55, 30)),
    "filter, none kept": (lambda ds: ds.filter(lambda r: False), (0, 0), (0, 30), (55, 30)),
    "train of a split": (lambda ds: split(seed=0)(ds)["train"], (40, 21), (40, 30), (55, 30)),
    "test of a split": (lambda ds: split(seed=0)(ds)["test"], (15, 9), (15, 30), (55, 30)),
    "train, not shuffled": (lambda ds: split(shuffle=False)(ds)["train"], (28, 16), (28, 16), (28, 16)),
    "test, not shuffled": (lambda ds: split(shuffle=False)(ds)["test"], (27, 14), (27, 14), (27, 14)),
    "shard": (lambda ds: ds.shard(2, 0), (15, 9), (15, 9), (15, 9)),
    "repeat": (lambda ds: ds.repeat(2), (110, 60), (110, 60), (110, 60)),
    "select, rename": (
        lambda ds: ds.add_column("x", [0] * 10).select([0, 2, 4]).rename_column("x", "y"),
        (9, 6), (9, 30), (55, 30),
    ),
    "select, pickle": (lambda ds: pickle.loads(pickle.dumps(ds.select([0, 2, 4]))), (9, 6), (9, 30), (55, 30)),
    "concatenate two selections": (
        lambda ds: datasets.concatenate_datasets([ds.select([0, 2, 4]), ds.select([9])]),
        (19, 11), (19, 35), (65, 35),
    ),
    "concatenate whole and selection": (
        lambda ds: datasets.concatenate_datasets([ds, ds.select([9, 3])]), (69, 37), (69, 60), (110, 60),
    ),
    "interleave": (
        lambda ds: datasets.interleave_datasets([ds.select([0, 2, 4]), ds.select([9, 1, 5])]),
        (27, 15), (27, 60), (110, 60),
    ),
    "select, map": (lambda ds: ds.select([0, 2, 4]).map(lambda r: r), (9, 6), (9, 6), (9, 6)),
    "select, flatten_indices": (lambda ds: ds.select([0, 2, 4]).flatten_indices(), (9, 6), (9, 6), (9, 6)),
}  # fmt: skip


@pytest.mark.parametrize("operation", TABLE)
def test_counts_what_training_sees_after(operation):
    change, truth, _, _ = TABLE[operation]
    dataset = change(ten_rows())
    counts = count_tokens(dataset)
    assert (counts.rows, counts.tokens, counts.supervised_tokens) == (len(dataset), *truth)
    assert counts.masked_tokens == truth[0] - truth[1]
    assert count_with_python(dataset) == truth


@pytest.mark.parametrize("operation", TABLE)
def test_recipes_of_others_give_the_numbers_that_were_measured(operation):
    change, _, before, after = TABLE[operation]
    dataset = change(ten_rows())
    assert count_with_pandas(dataset) == before
    assert count_with_table(dataset) == after


def test_saved_and_loaded_selection_counts_right(tmp_path):
    ten_rows().select([0, 2, 4]).save_to_disk(tmp_path / "saved")
    assert count_tokens(datasets.load_from_disk(tmp_path / "saved")).tokens == 9
    assert count_tokens(tmp_path / "saved").supervised_tokens == 6


def test_selection_written_to_parquet_counts_right(tmp_path):
    ten_rows().select([0, 2, 4]).to_parquet(tmp_path / "rows.parquet")
    counts = count_tokens(tmp_path / "rows.parquet")
    assert (counts.rows, counts.tokens, counts.supervised_tokens) == (3, 9, 6)


@pytest.mark.parametrize("kept", [lambda n: n <= 5, lambda n: n > 5, lambda n: False])
def test_filter_after_shuffle_after_select_keeps_its_rows(kept):  # datasets#3010, #3190, #3459, #5112
    dataset = (
        ten_rows().select([9, 7, 5, 3, 1, 1]).shuffle(seed=1).filter(lambda r: kept(len(r["input_ids"])))
    )
    counts = count_tokens(dataset)
    assert (counts.tokens, counts.supervised_tokens) == count_with_python(dataset)


@pytest.mark.parametrize("rows", [[0, 2, 4], []])
def test_flattened_and_renumbered_indices(rows):  # datasets#5541, #5038, #5043
    dataset = ten_rows().shuffle(seed=0).flatten_indices().select(rows)
    assert count_tokens(dataset).tokens == count_with_python(dataset)[0]
    assert count_tokens(dataset.flatten_indices()).tokens == count_with_python(dataset)[0]


def test_indices_kept_in_a_file_count_the_same(tmp_path):
    ten_rows().save_to_disk(tmp_path / "saved")
    dataset = datasets.load_from_disk(tmp_path / "saved")
    chosen = dataset.select([8, 8, 0], indices_cache_file_name=str(tmp_path / "indices.arrow"))
    counts = count_tokens(chosen)
    assert (counts.rows, counts.tokens, counts.lengths) == (3, 19, {1: 1, 9: 2})


def test_columns_chosen_by_a_format_do_not_matter():
    dataset = ten_rows().with_format("numpy", columns=["labels"]).select([0, 2, 4])
    assert count_tokens(dataset).tokens == 9


def test_transform_applied_on_access_is_refused():
    dataset = ten_rows()
    dataset.set_transform(lambda batch: batch)
    with pytest.raises(ValueError, match="transform that is applied when a row is read"):
        count_tokens(dataset)
    assert count_tokens(dataset.with_format(None)).tokens == 55


def test_splits_are_counted_each_and_together():
    parts = ten_rows().train_test_split(0.3, seed=0)
    counts = count_tokens(parts)
    assert {name: part.tokens for name, part in counts.splits.items()} == {"train": 40, "test": 15}
    assert (counts.rows, counts.tokens, counts.supervised_tokens) == (10, 55, 30)
    assert counts.lengths == dict.fromkeys(range(1, 11), 1)


def test_error_in_a_split_names_the_split():
    parts = datasets.DatasetDict(train=ten_rows(), test=ten_rows().remove_columns("labels"))
    with pytest.raises(ValueError, match="split 'test': no column 'labels'"):
        count_tokens(parts)


def test_streams_are_counted_after_their_operations():
    stream = ten_rows().to_iterable_dataset(num_shards=3)
    assert count_tokens(stream).tokens == 55
    assert count_tokens(stream.filter(lambda r: len(r["input_ids"]) <= 5)).supervised_tokens == 9
    assert count_tokens(stream.shuffle(seed=0, buffer_size=4).take(10)).tokens == 55
    parts = count_tokens(datasets.IterableDatasetDict(train=stream, test=stream.take(2)))
    assert (parts.tokens, parts.splits["test"].tokens) == (58, 3)


def test_stream_from_a_generator_with_unknown_features():
    def rows():
        for n in range(1, 601):
            yield {"text": "x", "input_ids": [1] * (n % 7), "labels": [-100] * (n % 7)}

    stream = datasets.IterableDataset.from_generator(rows)
    counts = count_tokens(stream)
    assert (counts.rows, counts.tokens, counts.supervised_tokens) == (
        600,
        sum(n % 7 for n in range(1, 601)),
        0,
    )
    with pytest.raises(ValueError, match="no column 'ids': the columns are text, input_ids, labels"):
        count_tokens(stream, column="ids")
