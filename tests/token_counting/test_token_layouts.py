"""Every way in which Arrow can lay out a list column, against a plain Python loop."""

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegpu.token_counting import TokenCounts, count_tokens, counting, sources
from onegpu.token_counting import labels as labels_module

LIST_TYPES = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
VALUE_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()]


def python_loop(ids, labels, ignore_index=-100):
    """The reference: what a person would write who had time."""
    lengths = [len(row) for row in ids if row is not None]
    flat = [label for row in labels if row is not None for label in row]
    masked = sum(label == ignore_index for label in flat)
    nulls = sum(label is None for label in flat)
    return TokenCounts(
        rows=len(ids),
        tokens=sum(lengths),
        supervised_tokens=len(flat) - masked - nulls,
        masked_tokens=masked,
        lengths={n: lengths.count(n) for n in sorted(set(lengths))},
        null_rows=ids.count(None),
        null_labels=nulls,
        misaligned_rows=sum(len(a or []) != len(b or []) for a, b in zip(ids, labels, strict=True)),
    )


def same(found, expected):
    assert {**vars(found), "bytes_read": 0} == vars(expected)


def lay_out(rows, kind, value_type, behind_nulls=0, before=0):
    """Build a list array whose null rows may have values behind them, over a child array that starts elsewhere.

    Views are laid out back to front, so that their offsets fall.
    """
    wrap = value_type.bit_width if pa.types.is_unsigned_integer(value_type) else None
    values, offsets, sizes = [7] * before, [], []
    order = range(len(rows) - 1, -1, -1) if "view" in kind else range(len(rows))
    for i in order:
        offsets.append(len(values))
        values += [7] * behind_nulls if rows[i] is None else rows[i]
        sizes.append(len(values) - offsets[-1])
    if wrap:
        values = [v if v is None or v >= 0 else v + 2**wrap for v in values]
    child = pa.array([7, 7, *values], value_type)[2:]
    mask = pa.array([row is None for row in rows], pa.bool_())
    integer = pa.int64() if kind.startswith("large") else pa.int32()
    make = getattr(pa, {"list": "ListArray", "large_list": "LargeListArray", "list_view": "ListViewArray",
                        "large_list_view": "LargeListViewArray"}[kind])  # fmt: skip
    if "view" in kind:
        return make.from_arrays(
            pa.array(offsets[::-1], integer), pa.array(sizes[::-1], integer), child, mask=mask
        )
    return make.from_arrays(pa.array([*offsets, len(values)], integer), child, mask=mask)


label = st.sampled_from([-100, -100, 0, 5, None])
label_rows = st.lists(st.none() | st.lists(label, max_size=6), max_size=12)


@st.composite
def tables(draw, kinds=tuple(LIST_TYPES)):
    """A table in some layout, and its rows in Python."""
    kind, value_type = draw(st.sampled_from(kinds)), draw(st.sampled_from(VALUE_TYPES))
    labels = draw(label_rows)
    ids = [
        row if row is None else [3] * max(0, len(row) + draw(st.sampled_from([0, 0, 0, 1, -1])))
        for row in labels
    ]

    def column(rows, value_type):
        cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
        chunks = []
        for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            extra = draw(st.integers(0, 2))
            laid = lay_out(
                [[1]] * extra + rows[a:b] + [None] * extra, kind, value_type, draw(st.integers(0, 3)), extra
            )
            chunks.append(laid[extra : extra + b - a])
        return pa.chunked_array(chunks, LIST_TYPES[kind](value_type))

    return (
        pa.table(
            {
                "other": pa.nulls(len(ids)),
                "labels": column(labels, value_type),
                "input_ids": column(ids, pa.int32()),
            }
        ),
        ids,
        labels,
    )


@given(tables(), st.integers(0, 12), st.integers(0, 12))
def test_any_table_counts_like_a_python_loop(table_and_rows, start, stop):
    table, ids, labels = table_and_rows
    same(count_tokens(table), python_loop(ids, labels))
    part = slice(start, max(start, stop))
    same(count_tokens(table[part]), python_loop(ids[part], labels[part]))


@given(tables(kinds=("list", "large_list")), st.data())
def test_any_selection_of_a_selection_counts_like_a_python_loop(table_and_rows, data):
    table, ids, labels = table_and_rows
    dataset = datasets.Dataset(table.drop_columns("other"))
    rows = list(range(len(ids)))
    for _ in range(2):
        chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=15)) if rows else []
        dataset, rows = dataset.select(chosen), [rows[i] for i in chosen]
        same(count_tokens(dataset), python_loop([ids[i] for i in rows], [labels[i] for i in rows]))


@given(tables(kinds=("list", "large_list")), st.data())
def test_small_blocks_and_windows_change_nothing(table_and_rows, data):
    table, ids, labels = table_and_rows
    chosen = data.draw(st.lists(st.sampled_from(range(len(ids))), max_size=15)) if ids else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module, "BLOCK", data.draw(st.integers(1, 5)))
        patch.setattr(labels_module, "_GROUP", data.draw(st.integers(1, 9)))
        patch.setattr(labels_module, "_SHORT", data.draw(st.sampled_from([0, 3, 10**9])))
        patch.setattr(counting, "_LONG", data.draw(st.integers(0, 4)))
        patch.setattr(counting, "ROWS", 3)
        patch.setattr(sources, "ROWS", 3)
        patch.setattr(sources, "_WINDOW_ROWS", data.draw(st.integers(1, 5)))
        found = count_tokens(datasets.Dataset(table.drop_columns("other")).select(chosen), threads=1)
    same(found, python_loop([ids[i] for i in chosen], [labels[i] for i in chosen]))


@given(
    st.lists(st.none() | st.lists(label, min_size=3, max_size=3), max_size=8),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_fixed_size_lists_count_like_a_python_loop(rows, start, stop):  # arrow#41672
    part = slice(start, max(start, stop))
    array = pa.array(rows, pa.list_(pa.int64(), 3))
    same(
        count_tokens(pa.table({"input_ids": array, "labels": array})[part]),
        python_loop(rows[part], rows[part]),
    )


def test_slice_is_not_read_through():  # arrow#37733: .values of this slice holds 6 values, .offsets end at 6
    array = pa.array([[1], [2, 3], [4, 5, 6]])[1:]
    counts = count_tokens(pa.table({"input_ids": array, "labels": array}))
    assert (counts.tokens, counts.supervised_tokens, counts.bytes_read) == (5, 5, 2 * 3 * 4 + 5 * 8)


def test_sliced_fixed_size_list_is_not_read_through():  # arrow#41672
    array = pa.array([[1, 2], [-100, 4]], pa.list_(pa.int64(), 2))[1:]
    counts = count_tokens(pa.table({"input_ids": array, "labels": array}))
    assert (counts.tokens, counts.supervised_tokens) == (2, 1)


def test_batches_of_one_table_do_not_count_each_others_values():  # 3,000 rows x 3: summing .values gives 27,000
    array = pa.array([[1, 2, 3]] * 3_000)
    table = pa.table({"input_ids": array, "labels": array})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1024))
    assert count_tokens(reader).supervised_tokens == 9_000


def test_null_and_empty_rows_are_told_apart():
    array = pa.array([[1, 2], None, [], [3]])
    counts = count_tokens(pa.table({"input_ids": array, "labels": array}))
    assert (counts.rows, counts.tokens, counts.null_rows, counts.empty_rows) == (4, 3, 1, 1)
    assert counts.mean == 1.0
    assert counts.lengths == {0: 1, 1: 1, 2: 1}


def test_values_behind_a_null_row_do_not_count():
    array = pa.ListArray.from_arrays([0, 2, 4, 5], [1, 2, 3, 4, 5], mask=pa.array([False, True, False]))
    counts = count_tokens(pa.table({"input_ids": array, "labels": array}))
    assert (counts.tokens, counts.supervised_tokens) == (3, 3)


def test_null_labels_are_neither_supervised_nor_masked():
    table = pa.table({"input_ids": [[1, 2, 3]], "labels": [[-100, None, 3]]})
    counts = count_tokens(table)
    assert (counts.supervised_tokens, counts.masked_tokens, counts.null_labels) == (1, 1, 1)


def test_mask_behind_a_null_label_does_not_count():
    flat = pa.array(np.array([-100, -100, 3, -100]), mask=np.array([False, True, False, True]))
    assert np.frombuffer(flat.buffers()[1], np.int64).tolist() == [-100, -100, 3, -100]
    table = pa.table({"labels": pa.ListArray.from_arrays([0, 2, 4], flat)})
    counts = count_tokens(table, column="labels")
    assert (counts.supervised_tokens, counts.masked_tokens, counts.null_labels) == (1, 1, 2)
    assert count_tokens(datasets.Dataset(table).select([1, 1]), column="labels").masked_tokens == 0


def test_many_rows_of_few_and_of_many_tokens_are_all_in_the_histogram():
    n = np.random.default_rng(0).integers(0, 3, 200_000)
    n[70_000] = 2_000_000
    offsets = np.r_[0, n.cumsum()].astype(np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, np.zeros(offsets[-1], np.int8))})
    counts = count_tokens(table, labels=None)
    assert counts.lengths == {int(k): int((n == k).sum()) for k in (0, 1, 2, 2_000_000)}


@pytest.mark.parametrize("column", [[], [None, None]])
def test_column_without_a_type_holds_no_tokens(column):
    table = pa.table({"input_ids": pa.array(column), "labels": pa.array(column)})
    assert table.schema.field("labels").type == pa.null()
    counts = count_tokens(table)
    assert (counts.rows, counts.tokens, counts.supervised_tokens, counts.null_rows) == (
        len(column),
        0,
        0,
        len(column),
    )


def test_empty_dataset_of_null_type():
    counts = count_tokens(datasets.Dataset.from_dict({"input_ids": [], "labels": []}))
    assert (counts.rows, counts.tokens, counts.longest, counts.shortest, counts.mean) == (0, 0, 0, 0, 0.0)


def test_list_of_nulls_holds_labels_of_no_value():
    table = pa.table({"input_ids": [[1, 2]], "labels": pa.array([[None, None]])})
    counts = count_tokens(table)
    assert (counts.tokens, counts.supervised_tokens, counts.null_labels) == (2, 0, 2)


@pytest.mark.parametrize(("value_type", "wrapped"), [(pa.uint32(), 4294967196), (pa.uint64(), 2**64 - 100)])
def test_mask_that_became_a_large_number_is_still_a_mask(value_type, wrapped):
    labels = pa.array([[wrapped, 5, wrapped]], pa.list_(value_type))
    counts = count_tokens(pa.table({"input_ids": [[1, 2, 3]], "labels": labels}))
    assert (counts.supervised_tokens, counts.masked_tokens) == (1, 2)


@pytest.mark.parametrize(("value_type", "wrapped"), [(pa.uint8(), 156), (pa.uint16(), 65436)])
def test_small_unsigned_labels_that_may_be_mask_or_token_are_refused(value_type, wrapped):
    def table(*labels):
        return pa.table(
            {"input_ids": [[1] * len(labels)], "labels": pa.array([labels], pa.list_(value_type))}
        )

    with pytest.raises(ValueError, match=f"hold {wrapped}, which is what -100 turns into"):
        count_tokens(table(wrapped, 5))
    assert count_tokens(table(4, 5)).supervised_tokens == 2
    assert count_tokens(table(wrapped, 5), ignore_index=wrapped).supervised_tokens == 1


@pytest.mark.parametrize("ignore_index", [-1000, 1000])
def test_ignore_index_out_of_the_types_range_masks_nothing(ignore_index):
    labels = pa.array([[-100, 5]], pa.list_(pa.int8()))
    counts = count_tokens(pa.table({"input_ids": [[1, 2]], "labels": labels}), ignore_index=ignore_index)
    assert (counts.supervised_tokens, counts.masked_tokens) == (2, 0)


def test_rows_past_two_to_the_31_values():  # LLaMA-Factory#7526, ray#29492, xtuner#972
    far = 2**31
    values = np.zeros(far + 8, np.int8)  # not touched but for its end
    values[far + 5] = -100
    array = pa.LargeListArray.from_arrays([0, far + 5, far + 8], values)
    assert count_tokens(pa.table({"input_ids": array}), labels=None).tokens == far + 8
    table = pa.table({"input_ids": array, "labels": array})
    assert count_tokens(table[1:]).supervised_tokens == 2
    dataset = datasets.Dataset(table, fingerprint="far")  # given, since it would be a hash of all the bytes
    assert count_tokens(dataset.select([1, 1, 1], new_fingerprint="thrice")).supervised_tokens == 6


def test_chunks_that_hold_more_than_two_to_the_31_values_together():
    chunk = pa.ListArray.from_arrays([0, 2**30], np.zeros(2**30, np.int8))
    column = pa.chunked_array([chunk] * 5)
    counts = count_tokens(pa.table({"input_ids": column}), labels=None)
    assert (counts.tokens, counts.longest) == (5 * 2**30, 2**30)


def test_row_named_many_times_counts_as_often():
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], [1, 2]], "labels": [[1], [-100, 2]]})
    counts = count_tokens(dataset.select([1] * 70_000 + [0]))
    assert (counts.rows, counts.tokens, counts.supervised_tokens) == (70_001, 140_001, 70_001)


def test_rows_that_are_long_and_far_apart_are_read_alone():
    rows = [[1] * 5_000 for _ in range(40)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows}).select([0, 20, 39])
    counts = count_tokens(dataset)
    assert counts.supervised_tokens == 15_000
    assert counts.bytes_read < 16_000 * 8


def test_rows_that_overlap_and_go_back_are_counted_one_by_one():
    """Together they are as long as the values from first to last, of which two belong to none of them."""
    values = pa.array([1, -100, 3, -100, -100, 6])
    rows = pa.ListViewArray.from_arrays([0, 1, 5], [3, 2, 1], values)
    counts = count_tokens(pa.table({"input_ids": rows, "labels": rows}))
    assert (counts.tokens, counts.masked_tokens) == (6, 2)


def test_hits_that_start_in_the_middle_of_a_byte_are_counted_where_they_are():
    hits = pa.array([True] * 5 + [False, True] * 100)[5:]
    starts, ends = np.array([0, 67, 128]), np.array([3, 128, 131])
    assert labels_module._count_hits(hits, starts, ends, None) == 1 + 31 + 1
    assert labels_module._count_hits(hits, starts, ends, np.array([1, 10, 100])) == 1 + 310 + 100
