"""The look into a table's memory."""

import subprocess
import sys

import datasets
import pyarrow as pa
import pytest
from onegpu.token_counting.buffers import describe_buffers, shared_bytes

TABLE = pa.table({
    "input_ids": pa.array([[1], [2, 3], [4, 5, 6], [], [7]], pa.list_(pa.int32())),
    "labels": pa.array([[1], [2, 3], None, [], [7]], pa.large_list(pa.int64())),
})  # fmt: skip


def test_every_buffer_is_listed_with_the_part_that_is_used():
    found = [(b.column, b.role, b.used_bytes) for b in describe_buffers(TABLE)]
    assert found == [
        ("input_ids", "offsets", 24), ("input_ids", "values", 28),
        ("labels", "validity", 1), ("labels", "offsets", 48), ("labels", "values", 32),
    ]  # fmt: skip


def test_slice_shares_all_that_it_uses():
    part = describe_buffers(TABLE[1:3])
    assert shared_bytes(describe_buffers(TABLE), part) == sum(b.used_bytes for b in part)
    assert [b.used_bytes for b in part if b.column == "input_ids"] == [12, 20]


def test_selection_shares_the_table_and_adds_indices():
    dataset = datasets.Dataset(TABLE)
    whole, chosen = describe_buffers(dataset), describe_buffers(dataset.select([0, 2, 4]))
    assert chosen[:-1] == whole
    assert (chosen[-1].column, chosen[-1].used_bytes) == ("(indices)", 24)
    assert shared_bytes(whole, chosen) == sum(b.used_bytes for b in whole)


def test_copy_shares_nothing():
    dataset = datasets.Dataset(TABLE).select([0, 2, 4])
    assert (
        shared_bytes(
            describe_buffers(dataset), describe_buffers(dataset.flatten_indices(keep_in_memory=True))
        )
        == 0
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_mapped_file_is_named(tmp_path):
    datasets.Dataset(TABLE).save_to_disk(tmp_path)
    dataset = datasets.load_from_disk(tmp_path)
    assert {b.file for b in describe_buffers(dataset)} == {"data-00000-of-00001.arrow"}
    assert {b.file for b in describe_buffers(TABLE)} == {None}
    assert "in data-00000-of-00001.arrow" in str(describe_buffers(dataset)[0])


def test_resident_memory_grows_with_what_is_held():
    """In a process of its own: this one may hold freed memory enough, from other tests, to grow by nothing."""
    code = (
        "from onegpu.token_counting.buffers import resident_bytes\n"
        "before = resident_bytes()\n"
        "held = bytearray(b'x') * (64 * 2**20)\n"
        "print(resident_bytes()['own'] - before['own'])"
    )
    grown = int(subprocess.check_output([sys.executable, "-c", code]))
    assert 60 * 2**20 < grown < 80 * 2**20
