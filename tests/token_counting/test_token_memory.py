"""Peak memory doesn't follow the size of the data, and pages are given back without harm."""

import json
import subprocess
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onegpu.token_counting import count_tokens, resident
from onegpu.token_counting.recipes import count_with_python

MIB = 2**20
TOKENS = 14_000_000  # 160 MiB: labels int64, ids int32

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc and returns pages on Linux"
)

MEASURE = """
import sys, json, datasets, pyarrow as pa, pyarrow.parquet, pyarrow.dataset
from onegpu.token_counting import count_tokens

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

kind, path, small = sys.argv[1:]

def make(path):
    if kind in ("file", "parquet"):
        return path
    if kind == "pyarrow":
        return pyarrow.dataset.dataset(path)
    dataset = datasets.Dataset.from_file(path)
    if kind == "selected":
        return dataset.select(range(len(dataset) - 1, -1, -2))
    return dataset.to_iterable_dataset() if kind == "stream" else dataset

count_tokens(make(small))
dataset = make(path)
before = peak()
counts = count_tokens(dataset)
print(json.dumps([counts.tokens, counts.supervised_tokens, peak() - before]))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    offsets = np.arange(0, TOKENS + 1, 1000, dtype=np.int32)
    ids = np.arange(TOKENS, dtype=np.int32)
    labels = np.where(ids % 2 == 0, -100, ids).astype(np.int64)
    table = pa.table({
        "input_ids": pa.ListArray.from_arrays(offsets, ids), "labels": pa.ListArray.from_arrays(offsets, labels)
    })  # fmt: skip
    for name, part in (("rows", table), ("small", table[:2])):
        with (
            pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(part, max_chunksize=1000)
        # One row group, stored as it is: read whole, it would take more than the limit.
        pq.write_table(part, folder / f"{name}.parquet", compression="none", use_dictionary=False)
    return folder


@linux
@pytest.mark.parametrize("kind", ["dataset", "selected", "file", "parquet", "pyarrow", "stream"])
def test_counting_takes_less_than_64_mib(written, kind):
    suffix = "parquet" if kind in ("parquet", "pyarrow") else "arrow"
    files = [str(written / f"{name}.{suffix}") for name in ("rows", "small")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, kind, *files], capture_output=True, text=True, check=True
    )
    tokens, supervised, extra_bytes = json.loads(done.stdout)
    expected = TOKENS // 2 if kind == "selected" else TOKENS
    assert (tokens, supervised) == (expected, expected // 2)
    assert extra_bytes < 64 * MIB


def test_rows_are_as_they_were_after_counting(written):
    dataset = datasets.Dataset.from_file(str(written / "rows.arrow"))
    before = dataset[13_000]
    assert count_tokens(dataset).tokens == TOKENS
    assert dataset[13_000] == before
    assert count_with_python(dataset.select([0, 13_999])) == (2_000, 1_000)


@linux
def test_only_read_only_file_mappings_are_given_back(written, monkeypatch):
    given_back = []
    monkeypatch.setattr(resident, "WINDOW_BYTES", 1)
    monkeypatch.setattr(resident, "_madvise", lambda address, n, advice: given_back.append((address, n)))
    with pa.memory_map(str(written / "small.arrow")) as mapped:
        table = pa.ipc.open_stream(mapped).read_all()
        count_tokens(table)
        buffers = [b for c in table.columns for b in c.chunk(0).buffers() if b is not None]
        assert given_back
        assert all(any(a <= b.address < a + n for a, n in given_back) for b in buffers[:1])
        given_back.clear()
        in_memory = pa.table(table.to_pydict())
        count_tokens(in_memory)
        assert given_back == []


def test_what_could_be_erased_is_never_given_back():
    """Given back, pages without a file, or that may be written to, would lose their content."""
    mappings = [
        b"1000-2000 r--s 00000000 fd:00 77 /data/rows.arrow",
        b"2000-3000 r--p 00000000 00:00 0",
        b"4000-5000 rw-p 00000000 fd:00 77 /data/rows.arrow",
        b"5000-6000 r--p 00001000 fd:00 78 /data/more rows.arrow",
    ]
    found = [
        resident._file_around(mappings, at)
        for at in (0x0, 0x1000, 0x1FFF, 0x2000, 0x3000, 0x4000, 0x5FFF, 0x6000)
    ]
    rows, more = (0x1000, 0x2000), (0x5000, 0x6000)
    assert found == [None, rows, rows, None, None, None, more, None]


def test_what_was_read_in_two_files_is_given_back_in_both(monkeypatch):
    page, given_back = resident.mmap.PAGESIZE, []
    monkeypatch.setattr(resident, "MARGIN", 0)
    monkeypatch.setattr(resident, "WINDOW_BYTES", 3 * page)
    monkeypatch.setattr(resident, "_madvise", lambda address, n, advice: given_back.append((address, n)))
    lines = [
        b"%x-%x r--s 0 fd:00 %d /data" % (first * page, last * page, first)
        for first, last in ((10, 20), (30, 40))
    ]
    monkeypatch.setattr(resident, "_mappings", lambda: lines)
    pages = resident.Pages(lasting=True)
    for first, last in ((12, 13), (14, 15), (35, 36)):
        pages.read(first * page, last * page)
    assert given_back == [(12 * page, 3 * page), (35 * page, page)]


def test_many_small_reads_are_given_back_before_the_list_of_them_grows(monkeypatch):
    monkeypatch.setattr(resident, "_WINDOW_READS", 3)
    monkeypatch.setattr(resident, "_mappings", lambda: [b"%x-%x r--s 0 fd:00 7 /data" % (2**20, 2**21)])
    given_back = []
    monkeypatch.setattr(resident, "_madvise", lambda address, n, advice: given_back.append((address, n)))
    pages = resident.Pages(lasting=True)
    for i in range(7):
        pages.read(2**20 + i, 2**20 + i + 1)
    assert len(given_back) == 2


@linux
def test_a_mapped_file_of_an_odd_name_ends_no_count(tmp_path):
    path = tmp_path / "a\rb.bin"
    path.write_bytes(bytes(resident.mmap.PAGESIZE))
    with pa.memory_map(str(path)) as mapped:
        address = mapped.read_buffer().address
        assert resident._file_around(resident._mappings(), address)[0] == address
