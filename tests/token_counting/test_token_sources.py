"""Where the tokens may come from, which columns are read, and what is refused."""

import os
import threading

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from onegpu.ray_scale_out import local_ray
from onegpu.token_counting import count_tokens, counting, files

TABLE = pa.table({
    "text": ["a", "b", "c", "d"],
    "input_ids": pa.array([[1, 2, 3], [4], [], [5, 6]], pa.list_(pa.int32())),
    "labels": pa.array([[-100, 2, 3], [4], [], [-100, -100]], pa.list_(pa.int64())),
})  # fmt: skip
TRUTH = (4, 6, 3)


def figures(counts):
    return counts.rows, counts.tokens, counts.supervised_tokens


def write_arrow(path, table=TABLE, new=pa.ipc.new_stream, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)


def test_table_batch_and_reader_count_the_same():
    batch = TABLE.combine_chunks().to_batches()[0]
    assert figures(count_tokens(TABLE)) == TRUTH
    assert figures(count_tokens(batch)) == TRUTH
    assert figures(count_tokens(TABLE.to_reader(max_chunksize=1))) == TRUTH


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_stream_and_file_formats(tmp_path, new, compression):
    write_arrow(tmp_path / "rows.arrow", new=new, compression=compression)
    assert figures(count_tokens(tmp_path / "rows.arrow")) == TRUTH
    assert figures(count_tokens(str(tmp_path / "rows.arrow"))) == TRUTH


@pytest.mark.parametrize("row_group_size", [1, 3, 100])
def test_parquet_in_row_groups_of_any_size(tmp_path, row_group_size):
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=row_group_size)
    assert figures(count_tokens(tmp_path / "rows.parquet")) == TRUTH


def test_parquet_without_rows(tmp_path):
    pq.write_table(TABLE[:0], tmp_path / "rows.parquet")
    assert figures(count_tokens(tmp_path / "rows.parquet")) == (0, 0, 0)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_folder_glob_and_list_of_files(tmp_path, suffix):
    (tmp_path / "more").mkdir()
    write = pq.write_table if suffix == "parquet" else lambda table, path: write_arrow(path, table)
    first, second = tmp_path / f"a.{suffix}", tmp_path / "more" / f"b.{suffix}"
    write(TABLE, first)
    write(TABLE[1:], second)
    (tmp_path / ".hidden").mkdir()
    write(TABLE, tmp_path / ".hidden" / f"c.{suffix}")
    (tmp_path / "README.md").write_text("about")
    assert figures(count_tokens(tmp_path)) == (7, 9, 4)
    assert figures(count_tokens(f"{tmp_path}/**/*.{suffix}")) == (7, 9, 4)
    assert figures(count_tokens(f"{tmp_path}/*.{suffix}")) == TRUTH
    assert figures(count_tokens([first, second])) == (7, 9, 4)


def test_pyarrow_dataset(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE[1:], tmp_path / "b.parquet")
    dataset = pyarrow.dataset.dataset(tmp_path)
    assert figures(count_tokens(dataset)) == (7, 9, 4)
    assert figures(count_tokens(dataset.filter(pyarrow.dataset.field("text") != "a"))) == (6, 6, 2)
    assert figures(count_tokens(pyarrow.dataset.dataset(TABLE))) == TRUTH
    write_arrow(tmp_path / "c.arrow", new=pa.ipc.new_file)
    assert figures(count_tokens(pyarrow.dataset.dataset(tmp_path / "c.arrow", format="ipc"))) == TRUTH


def test_pyarrow_dataset_where_a_file_lacks_the_labels(tmp_path):  # Arrow fills them with null
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE.drop_columns("labels"), tmp_path / "b.parquet")
    counts = count_tokens(pyarrow.dataset.dataset(tmp_path))
    assert (figures(counts), counts.misaligned_rows) == ((8, 12, 3), 3)


def test_saved_splits_in_a_folder(tmp_path):
    dataset = datasets.Dataset(TABLE)
    datasets.DatasetDict(train=dataset, test=dataset.select([3, 0])).save_to_disk(tmp_path)
    counts = count_tokens(tmp_path)
    assert figures(counts.splits["train"]) == TRUTH
    assert figures(counts.splits["test"]) == (2, 5, 2)


def test_only_the_needed_columns_of_a_parquet_file_are_read(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(TABLE, path, compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert chunk.path_in_schema == "text"
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = os.urandom(
        chunk.total_compressed_size
    )
    path.write_bytes(content)
    with pytest.raises(OSError, match=r".+"):
        pq.read_table(path)
    assert figures(count_tokens(path)) == TRUTH


def test_tokens_alone_are_counted_without_reading_a_value():
    counts = count_tokens(TABLE, labels=None)
    assert (counts.tokens, counts.supervised_tokens, counts.masked_tokens) == (6, None, None)
    assert counts.bytes_read == 5 * 4
    assert "supervised" not in str(counts)


def test_other_columns_and_another_ignore_index():
    table = pa.table({"ids": [[1, 2, 0]], "target": [[0, 2, -100]]})
    counts = count_tokens(table, column="ids", labels="target", ignore_index=0)
    assert (counts.tokens, counts.supervised_tokens, counts.masked_tokens) == (3, 2, 1)


def test_one_column_may_be_both():
    counts = count_tokens(TABLE, column="labels")
    assert (counts.tokens, counts.supervised_tokens) == (6, 3)


def test_columns_chunked_differently():
    labels = pa.chunked_array([TABLE.column("labels").chunk(0)[:1], TABLE.column("labels").chunk(0)[1:]])
    assert figures(count_tokens(TABLE.set_column(2, "labels", labels))) == TRUTH


def test_rows_with_more_labels_than_tokens_are_reported():
    table = pa.table({"input_ids": [[1, 2], [1], None], "labels": [[1, 2], [1, 2], [1]]})
    counts = count_tokens(table)
    assert counts.misaligned_rows == 2
    assert "2 rows have more or fewer labels than tokens" in str(counts)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_counts_the_same(threads):
    table = pa.concat_tables([TABLE] * 500)
    assert figures(count_tokens(table, threads=threads)) == (2000, 3000, 1500)


# A length column


def lengths_column(*values):
    return TABLE.append_column("length", pa.array(values, pa.int64()))


def test_length_column_is_not_used_unless_asked():  # axolotl#3711 takes it whenever it is there
    assert count_tokens(lengths_column(30, 1, 0, 2)).tokens == 6


def test_right_length_column_is_accepted(tmp_path):
    pq.write_table(lengths_column(3, 1, 0, 2), tmp_path / "rows.parquet")
    for source in (lengths_column(3, 1, 0, 2), tmp_path / "rows.parquet"):
        counts = count_tokens(source, length_column="length")
        assert (figures(counts), counts.misaligned_rows) == (TRUTH, 0)


@pytest.mark.parametrize("stale", [(30, 1, 0, 2), (3, 1, None, 2)])
def test_stale_length_column_is_refused(tmp_path, stale):  # a map that cuts input_ids leaves it stale
    table = lengths_column(*stale)
    pq.write_table(table, tmp_path / "rows.parquet")
    for source in (table, datasets.Dataset(table), tmp_path / "rows.parquet"):
        with pytest.raises(ValueError, match=r"length column is stale: row [02] of the stored data says"):
            count_tokens(source, length_column="length")


def test_null_row_may_have_a_null_length(tmp_path):
    table = pa.table({"input_ids": [[1, 2], None, []], "length": [2, None, 0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    for source in (table, tmp_path / "rows.parquet"):
        counts = count_tokens(source, labels=None, length_column="length")
        assert (counts.tokens, counts.null_rows, counts.empty_rows) == (2, 1, 1)


def test_stale_row_is_named_by_its_place_in_the_whole():
    right, wrong = lengths_column(3, 1, 0, 2), lengths_column(3, 30, 0, 2)
    with pytest.raises(ValueError, match="row 9 of the stored data says 30 and has 1 tokens"):
        count_tokens(pa.concat_tables([right, right, wrong]), length_column="length")


def test_the_first_of_two_failures_is_raised_whichever_thread_is_faster(monkeypatch):
    second_failed, count = threading.Event(), counting._count_piece

    def slow_at_first(piece, columns, first_row):
        if first_row == 0:
            assert second_failed.wait(60)
        try:
            return count(piece, columns, first_row)
        finally:
            second_failed.set()

    monkeypatch.setattr(counting, "_count_piece", slow_at_first)
    monkeypatch.setattr(counting, "_SMALL_BYTES", 0)
    table = pa.concat_tables([lengths_column(30, 1, 0, 2)] * 2)
    with pytest.raises(ValueError, match="row 0 of the stored data"):
        count_tokens(table, length_column="length", threads=2)


def test_an_interrupt_goes_before_what_is_wrong_with_a_piece(monkeypatch):
    both = threading.Barrier(2)

    def interrupted(piece, columns, first_row):
        both.wait(60)
        raise KeyboardInterrupt if first_row else ValueError("row 0")

    monkeypatch.setattr(counting, "_count_piece", interrupted)
    monkeypatch.setattr(counting, "_SMALL_BYTES", 0)
    pieces = [counting.Piece(batch) for batch in pa.concat_tables([TABLE] * 2).to_batches()]
    columns = counting.Columns("input_ids", "labels", -100)
    with pytest.raises(KeyboardInterrupt):
        counting.count_pieces(pieces, columns, threads=2)


def test_no_thread_counts_on_when_another_could_not_be_started(monkeypatch):
    start, threads = threading.Thread.start, []

    def one_only(thread):
        if threads:
            raise RuntimeError("can't start new thread")
        threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", one_only)
    with pytest.raises(RuntimeError, match="can't start"):
        count_tokens(pa.concat_tables([TABLE] * 100), threads=3)
    assert not threads[0].is_alive()


def test_list_views_whose_size_pyarrow_does_not_know_are_counted(monkeypatch):
    class Batch:  # pyarrow 18
        @property
        def nbytes(self):
            raise pa.ArrowTypeError("Extracting byte ranges not supported for type list_view")

    assert not counting._is_small(Batch())
    assert counting._is_small(TABLE.to_batches()[0])


def test_ray_dataset_that_is_empty_holds_nothing():
    class Dataset:
        def schema(self):
            return None

        def iter_batches(self):
            raise AssertionError

    Dataset.__module__ = "ray.data"
    assert count_tokens(Dataset()).rows == 0


def test_pieces_without_rows_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(counting, "ROWS", 3)
    tally, nothing = counting._Tally(), np.zeros(0, np.int64)
    for _ in range(10):
        tally.add(counting._Found(nothing, None, 0, 0, 0, 0, 0, 0, 0))
    assert len(tally._pending) <= 3


def test_mappings_are_looked_up_anew_for_arrow_files(tmp_path, monkeypatch):
    """A compressed batch lies in memory that is used again, where a file may have been mapped before."""
    pages, lasting = files.Pages, []
    monkeypatch.setattr(files, "Pages", lambda **settings: (lasting.append(settings), pages(**settings))[1])
    write_arrow(tmp_path / "rows.arrow", compression="lz4")
    assert figures(count_tokens(tmp_path / "rows.arrow")) == TRUTH
    assert lasting == [{"lasting": False}]


def test_stale_row_that_a_selection_leaves_out_does_not_matter():
    dataset = datasets.Dataset(lengths_column(30, 1, 0, 2))
    assert count_tokens(dataset.select([3, 1]), length_column="length").tokens == 3
    with pytest.raises(ValueError, match="row 0 of the stored data says 30 and has 3 tokens"):
        count_tokens(dataset.select([3, 0]), length_column="length")


def test_parquet_with_a_length_column_does_not_decode_the_tokens(tmp_path):
    rng = np.random.default_rng(0)
    n = rng.integers(1, 500, 9_000)
    ids = pa.ListArray.from_arrays(np.r_[0, n.cumsum()].astype(np.int32), np.zeros(n.sum(), np.int32))
    pq.write_table(pa.table({"input_ids": ids, "length": n}), tmp_path / "rows.parquet", row_group_size=100)
    plain = count_tokens(tmp_path / "rows.parquet", labels=None)
    short = count_tokens(tmp_path / "rows.parquet", labels=None, length_column="length")
    assert short.lengths == plain.lengths
    assert short.bytes_read < plain.bytes_read


@pytest.mark.parametrize("name", ["len", "text"])
def test_length_column_that_is_missing_or_text_is_refused(name):
    with pytest.raises(ValueError, match=f"length_column='{name}' is not an integer column"):
        count_tokens(TABLE, length_column=name)


# What is refused


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["ab", "c"], r"column 'input_ids' is string, expected lists of integers: tokenize it first"),
        (
            [["ab"], ["c"]],
            r"column 'input_ids' is list<.*string>, expected lists of integers: tokenize it first",
        ),
        ([[[1, 2], [3]]], r"is list<.*list<.*>>, expected lists of integers: each row holds lists of lists"),
        ([1, 2], r"is int64, expected lists of integers: choose another with column="),
        ([[1.5]], r"is list<.*double>, expected lists of integers: cast the values to int32 or int64"),
        ([[True]], r"is list<.*bool>, expected lists of integers"),
        ([{"a": 1}], r"is struct<a: int64>, expected lists of integers"),
    ],
)
def test_wrong_type_says_column_type_and_what_to_do(column, message):
    with pytest.raises(ValueError, match=message):
        count_tokens(pa.table({"input_ids": column}), labels=None)


def test_missing_columns_say_which_there_are():
    with pytest.raises(
        ValueError, match=r"no column 'input_ids': the columns are prompt. .* If 'prompt' holds the text"
    ):
        count_tokens(pa.table({"prompt": ["hi"]}))
    with pytest.raises(
        ValueError, match=r"no column 'labels': the columns are input_ids. .* or give labels=None"
    ):
        count_tokens(pa.table({"input_ids": [[1]]}))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_error_in_one_of_many_files_names_the_file(tmp_path, suffix):
    write = pq.write_table if suffix == "parquet" else lambda table, path: write_arrow(path, table)
    write(TABLE, tmp_path / f"a.{suffix}")
    write(TABLE.drop_columns("labels"), tmp_path / f"b.{suffix}")
    with pytest.raises(ValueError, match=rf"b.{suffix}: no column 'labels'"):
        count_tokens(tmp_path)


def test_tensor_columns_of_pyarrow():
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.array([[1, -100], [3, 4]]))
    assert figures(count_tokens(pa.table({"input_ids": tensors, "labels": tensors})[1:])) == (1, 2, 2)
    squares = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2, 2), np.int64))
    with pytest.raises(ValueError, match="each row holds lists of lists"):
        count_tokens(pa.table({"input_ids": squares}), labels=None)


def test_column_name_that_occurs_twice_is_refused():
    table = pa.Table.from_arrays([TABLE["input_ids"], TABLE["input_ids"]], ["input_ids", "input_ids"])
    with pytest.raises(ValueError, match="2 columns are called 'input_ids'"):
        count_tokens(table, labels=None)


def test_folder_with_the_same_rows_in_two_formats_is_refused(tmp_path):
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    write_arrow(tmp_path / "rows.arrow")
    with pytest.raises(ValueError, match="perhaps the same rows twice"):
        count_tokens(tmp_path)


def test_cache_folder_of_datasets_is_refused(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    write_arrow(tmp_path / "rows-train.arrow")
    write_arrow(tmp_path / "cache-0a1b.arrow")
    with pytest.raises(ValueError, match="is a cache folder of datasets"):
        count_tokens(tmp_path)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        count_tokens(tmp_path / "missing.parquet")
    with pytest.raises(FileNotFoundError, match="no such file"):
        count_tokens([tmp_path / "missing.parquet"])
    for nothing in (tmp_path, f"{tmp_path}/*.parquet", []):
        with pytest.raises(ValueError, match=r"no file ending in \.parquet, \.arrow"):
            count_tokens(nothing)


def test_file_that_is_no_arrow_file(tmp_path):
    (tmp_path / "rows.arrow").write_text("not arrow at all")
    with pytest.raises(ValueError, match="found no whole Arrow file"):
        count_tokens(tmp_path / "rows.arrow")
    whole = tmp_path / "whole.arrow"
    write_arrow(whole)
    (tmp_path / "cut.arrow").write_bytes(whole.read_bytes()[:-300])
    with pytest.raises((ValueError, OSError)):
        count_tokens(tmp_path / "cut.arrow")


def test_unknown_kind_of_data_set_is_named():
    with pytest.raises(TypeError, match=r"can't count tokens in a builtins.dict|builtins.int"):
        count_tokens(3)


# Ray


@pytest.fixture(scope="module")
def ray_data():
    data = pytest.importorskip("ray.data")
    with local_ray(1):
        yield data


def test_ray_dataset_of_any_origin(ray_data):
    assert figures(count_tokens(ray_data.from_arrow(TABLE))) == TRUTH
    rows = TABLE.to_pylist()
    assert figures(count_tokens(ray_data.from_items(rows))) == TRUTH
    assert figures(count_tokens(ray_data.from_pandas(TABLE.to_pandas()))) == TRUTH
    same_length = pa.table({"input_ids": [[1, 2], [3, 4]], "labels": [[1, -100], [3, 4]]})
    as_numpy = ray_data.from_arrow(same_length).map_batches(lambda batch: batch, batch_format="numpy")
    assert figures(count_tokens(as_numpy)) == (2, 4, 3)


def test_ray_dataset_of_tensors_of_two_dimensions_is_refused(ray_data):
    tensors = ray_data.from_numpy(np.zeros((3, 2, 2), np.int64))
    with pytest.raises(ValueError, match="each row holds lists of lists"):
        count_tokens(tensors, column="data", labels=None)


def test_ray_dataset_of_a_selection(ray_data):  # ray#36141: from_arrow(ds.data.table) has all the rows
    pytest.importorskip("aiohttp")
    dataset = datasets.Dataset(TABLE).select([0, 3])
    assert figures(count_tokens(ray_data.from_huggingface(dataset))) == (2, 5, 2)


def test_ray_dataset_without_rows_or_columns(ray_data):  # its .sum gives None there
    assert figures(count_tokens(ray_data.from_arrow(TABLE[:0]))) == (0, 0, 0)
    with pytest.raises(ValueError, match="no column 'labels'"):
        count_tokens(ray_data.from_arrow(TABLE.drop_columns("labels")))
