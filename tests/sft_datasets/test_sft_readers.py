import json
import tracemalloc

import pytest
from onegpu.data import reading
from onegpu.sft_datasets import find_duplicates, read_rows, readers, to_example, validate

ROWS = [
    {"instruction": "Add.", "input": "2, 3", "output": "5"},
    {"instruction": "Say 'null'.", "input": "", "output": "null"},
    {"instruction": '줄\n바꿈, 따옴표 "', "input": "", "output": "네"},
]


def write(path, rows):
    import csv

    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    elif path.suffix in (".jsonl", ".ndjson"):
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", ["json", "jsonl", "ndjson", "csv", "tsv", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, suffix):
    assert list(read_rows(write(tmp_path / f"rows.{suffix}", ROWS))) == ROWS


def test_blank_csv_cells_stay_empty_and_null_stays_text_unsloth_10813(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("instruction,input,output\nadd,,4\nsay,null,NA\n")
    rows = list(read_rows(path))
    assert rows == [
        {"instruction": "add", "input": "", "output": "4"},
        {"instruction": "say", "input": "null", "output": "NA"},
    ]
    assert [message["content"] for message in to_example(rows[0]).messages] == ["add", "4"]


def test_columns_are_renamed_and_a_missing_one_is_named(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": "2+2?", "answer": "4", "id": 1}])
    names = {"question": "prompt", "answer": "completion"}
    assert list(read_rows(path, columns=names)) == [{"prompt": "2+2?", "completion": "4", "id": 1}]
    with pytest.raises(ValueError, match="row 0 has no column 'q'; found question, answer, id"):
        list(read_rows(path, columns={"q": "prompt"}))


def test_limit_reads_no_further(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\nbroken\n')
    assert list(read_rows(path, limit=2)) == [{"a": 1}, {"a": 2}]
    with pytest.raises(ValueError, match="limit=-1"):
        read_rows(path, limit=-1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"line 2: found '\{\"a\":.*expected one JSON object"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "line 2: found a list, expected an object"),
        ("a.json", '[{"a": 1}, {"a": 2', r"row 1\): found .*broken or cut off"),
        ("a.json", '[{"a": 1}, 3]', r"row 1\): found a int, expected an object"),
        ("a.json", "", "found no rows"),
        ("a.csv", "a,b\n1,2,3\n", r"line 2: found 3 cells, expected 2 \(a, b\)"),
        ("a.csv", 'a,b\n1,"2\n', "line 2: .*Mend the quotes"),
        ("a.txt", "hi", r"expected one of \.jsonl"),
    ],
)
def test_broken_files_say_where(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        list(read_rows(path))


def test_a_missing_file_is_not_taken_for_a_hub_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_rows("folder/rows.jsonl")


def test_json_array_inside_an_object_is_read(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"version": "1", "data": [{"a": 1}, {"a": [2, "]"]}]}')
    assert list(read_rows(path)) == [{"a": 1}, {"a": [2, "]"]}]


def test_json_rows_may_cross_chunks_of_any_size(tmp_path, monkeypatch):
    path = write(tmp_path / "rows.json", ROWS * 5)
    for size in (1, 2, 7, 50):
        monkeypatch.setattr(reading, "_CHUNK", size)
        assert list(read_rows(path)) == ROWS * 5


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, suffix):
    def peak(count):
        path = write(tmp_path / f"{count}.{suffix}", ROWS * count)
        for _ in read_rows(path, limit=3):
            pass
        tracemalloc.start()
        for _ in read_rows(path):
            pass
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(20_000) < peak(10_000) + 300_000


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_hub_that_gives_nothing_is_an_error_or_the_fallback_and_says_so(monkeypatch, capsys):
    import datasets

    def fails(*args, **kwargs):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(ValueError, match=r"owner/name: the hub gave no data set.*ConnectionError"):
        list(read_rows("owner/name"))
    assert list(read_rows("owner/name", fallback=lambda: iter(ROWS))) == ROWS
    assert "owner/name: the hub gave no rows (ConnectionError), so this is" in capsys.readouterr().out


@pytest.mark.parametrize("name", readers.HUB_SAMPLES)
def test_known_hub_sets_fall_back_to_a_shipped_sample_with_their_columns(monkeypatch, name):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: 1 / 0)
    rows = list(read_rows(name))
    assert set(rows[0]) == {"instruction", "output"} | ({"input"} if "Ko" not in name else set())
    assert validate(rows).clean_rows == len(rows)
    assert not find_duplicates(rows, threshold=0.6).pairs


def test_hub_rows_are_streamed(monkeypatch):
    import datasets
    from onegpu import runtime

    calls = {}

    def load(name, **options):
        calls.update(name=name, **options)
        return iter(ROWS)

    monkeypatch.setattr(runtime, "hub_reachable", lambda: (True, "200"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(read_rows("owner/name", split="test", limit=2)) == ROWS[:2]
    assert calls == {"name": "owner/name", "split": "test", "streaming": True}
