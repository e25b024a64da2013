"""One table of files fed to everything that reads rows: the same rows, or the same error, from each."""

import bz2
import csv
import gzip
import io
import json
import lzma

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onegpu import data
from onegpu.models import tiny_tokenizer
from onegpu.preference_data import load_rankings, read_pairs
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.qlora_finetune.rows import read_examples
from onegpu.ray_scale_out.window import read_window, windows
from onegpu.sft_datasets import read_rows, tokenize_rows
from onegpu.token_counting import report

# Each row is a question and answer, a preference pair and a ranking at once. Its text holds what readers trip over: line
# separators that JSON doesn't escape, Korean, quotes, commas, "null".
TEXTS = [
    "line\u2028separator, paragraph\u2029separator, next\u0085line",
    '따옴표 "둘", 쉼표',
    "null",
    "NA",
    "two\nlines",
]
ROWS = [
    {"prompt": f"{text}?", "completion": f"{text}.", "chosen": f"{text}.", "rejected": "No idea.",
     "answers": ["No idea.", f"{text}."], "order": "B>A"}
    for text in TEXTS
]  # fmt: skip
FLAT = [
    {name: value for name, value in row.items() if isinstance(value, str) and name != "order"} for row in ROWS
]


def lines(rows=ROWS, end="\n"):
    return end.join(json.dumps(row, ensure_ascii=False) for row in rows) + end


def table(rows=FLAT, **options):
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), **options)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def parquet(rows=ROWS, **options):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, **options)
    return file.getvalue()


def arrow(open_writer, rows=ROWS):
    found = pa.Table.from_pylist(rows)
    file = io.BytesIO()
    with open_writer(file, found.schema) as writer:
        writer.write_table(found, max_chunksize=2)
    return file.getvalue()


def zstd(content):
    return pa.compress(content, "zstd", asbytes=True)


FILES = {
    "plain.jsonl": lines(),
    "ending.NDJSON": lines(),
    "windows.jsonl": lines(end="\r\n"),
    "blank_lines.jsonl": "\n" + lines(end="\n\n  \n"),
    "no_last_line_feed.jsonl": lines().rstrip("\n"),
    "bom.jsonl": lines().encode("utf-8-sig"),
    "utf16.jsonl": lines().encode("utf-16"),
    "utf16_no_bom.jsonl": lines().encode("utf-16-le"),
    "utf32.jsonl": lines().encode("utf-32"),
    "array_in_disguise.jsonl": json.dumps(ROWS, indent=1),
    "plain.json": json.dumps(ROWS, ensure_ascii=False),
    "indented.json": json.dumps(ROWS, ensure_ascii=False, indent=2),
    "ending.JSON": json.dumps(ROWS),
    "bom.json": json.dumps(ROWS).encode("utf-8-sig"),
    "utf16.json": json.dumps(ROWS).encode("utf-16"),
    "in_an_object.json": json.dumps({"version": "1.0", "count": 5, "tags": ["a"], "data": ROWS, "end": None}),
    "lines_in_disguise.json": lines(),
    "plain.csv": table(),
    "ending.CSV": table(),
    "bom.csv": table().encode("utf-8-sig"),
    "utf16.csv": table().encode("utf-16"),
    "semicolons.csv": table(delimiter=";"),
    "quoted.csv": table(quoting=csv.QUOTE_ALL),
    "unix.csv": table(lineterminator="\n"),
    "plain.tsv": table(delimiter="\t"),
    "plain.parquet": parquet(),
    "row_groups.parquet": parquet(row_group_size=2),
    "zstd.parquet": parquet(compression="zstd"),
    "file.arrow": arrow(pa.ipc.new_file),
    "stream.arrow": arrow(pa.ipc.new_stream),
    "file.feather": arrow(pa.ipc.new_file),
    "gzip.jsonl.gz": gzip.compress(lines().encode()),
    "two_members.jsonl.gz": gzip.compress(lines(ROWS[:2]).encode()) + gzip.compress(lines(ROWS[2:]).encode()),
    "zstd.jsonl.zst": lambda: zstd(lines().encode()),
    "bz2.jsonl.bz2": bz2.compress(lines().encode()),
    "xz.json.xz": lzma.compress(json.dumps(ROWS).encode()),
    "gzip.csv.gz": gzip.compress(table().encode()),
    "gzip_in_disguise.jsonl": gzip.compress(lines().encode()),
    "utf16.jsonl.gz": gzip.compress(lines().encode("utf-16")),
    "folder/": {"a.jsonl": lines(ROWS[:2]), "b/c.jsonl.gz": gzip.compress(lines(ROWS[2:]).encode()), "README.md": "hi"},
    "parquets/": {"part-0.parquet": parquet(ROWS[:3]), "part-1.parquet": parquet(ROWS[3:]), ".hidden": "x"},
    "splits/": {"train-00000-of-00001.jsonl": lines(), "test-00000-of-00001.jsonl": lines(ROWS[:1])},
    "split_folders/": {"train/a.jsonl": lines(), "validation/a.jsonl": lines(ROWS[:1])},
    "pattern/[ab]*.jsonl": {"a1.jsonl": lines(ROWS[:4]), "b.jsonl": lines(ROWS[4:]), "c.jsonl": lines(ROWS[:1])},
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(path),
    "saved_selection": lambda path: datasets.Dataset.from_list([*ROWS, *ROWS]).select(range(5, 10)).save_to_disk(path),
    "saved_shards": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(path, num_shards=3),
    "saved_splits": lambda path: datasets.DatasetDict(
        train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS[:1])
    ).save_to_disk(path),
}  # fmt: skip

BROKEN = {
    "cut.jsonl": (lines()[:-40], r"line 5: found .*expected one JSON object"),
    "two_on_a_line.jsonl": (lines(ROWS[:2]).replace("\n", " ", 1), "line 1: found .*Extra data"),
    "a_list.jsonl": (lines(ROWS[:1]) + "[1]\n", "line 2: found a list, expected an object"),
    "latin1.jsonl": (lines([{"prompt": "é", "completion": "é"}]).encode("latin-1"), "line 1: .*utf-8"),
    "latin1.csv": ("prompt,completion\né,é\n".encode("latin-1"), "byte 0xe9, which is not UTF-8"),
    "old_mac.jsonl": (lines(end="\r"), "line 1: found"),
    "cut.json": (json.dumps(ROWS)[:-30], r"row 4\): found .*broken or cut off"),
    "bad_comma.json": (json.dumps(ROWS).replace("}, {", "},, {"), r"row 1\): found"),
    "no_comma.json": (json.dumps(ROWS).replace("}, {", "} {"), "expected a comma"),
    "more_after.json": (json.dumps(ROWS) + json.dumps(ROWS), "expected the end of the file"),
    "number.json": ("3", "expected an array of objects"),
    "numbers.json": ("[1, 2]", "found a int, expected an object"),
    "two_arrays.json": (
        json.dumps({"train": ROWS, "test": ROWS}),
        "two arrays of objects, 'train' and 'test'",
    ),
    "empty.jsonl": ("", "found no rows"),
    "only_a_header.csv": ("prompt,completion\n", "found no rows"),
    "cut.parquet": (parquet()[:-20], "no whole Parquet file"),
    "text.parquet": ("hello", "a Parquet ending, but no Parquet file"),
    "cut.arrow": (arrow(pa.ipc.new_file)[:300], "no whole Arrow file"),
    "cut.jsonl.gz": (gzip.compress(lines().encode() * 50)[:-30], "can't be read on"),
    "cut.jsonl.zst": (lambda: zstd(lines().encode() * 50)[:-30], "can't be read on"),
    "a_cell_more.csv": ("prompt,completion\na,b,c\n", "line 2: found 3 cells, expected 2"),
    "open_quote.csv": ('prompt,completion\na,"b\n', "Mend the quotes"),
    "column_twice.csv": ("prompt,completion,prompt\na,b,c\n", "column 'prompt' twice"),
    "notes.txt": ("hello", "the ending '.txt', expected one of .jsonl"),
    "pointer.jsonl": ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "typo/": ({"a.jsonl": lines(), "b.jsnol": lines()}, "found b.jsnol, expected files ending in"),
    "two_kinds/": ({"a.jsonl": lines(), "a.parquet": parquet()}, "perhaps the same rows twice"),
    "other_split/": (
        {"test.jsonl": lines(), "validation.jsonl": lines()},
        "found the splits test, validation",
    ),
    "nothing/": ({"README.md": "hi"}, "found no file of rows"),
    "missing.jsonl": (None, "no such file or folder"),
    "pattern/*.jsonl": ({"a.csv": "x"}, "no file fits this pattern"),
}


def put(folder, name, content):
    path = folder / name
    if callable(content):
        try:
            content = content()
        except TypeError:
            content(str(path))
            return path
    if isinstance(content, dict):
        base = path.parent if "*" in name else path
        for part, text in content.items():
            put(base, part, text)
    elif content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def finetune_rows(path):
    return read_examples(FinetuneConfig(data=str(path))).train


def ray_rows(path):
    return [row for window in windows(path, 2) for _, row in read_window(window)]


def token_rows(path):
    """What `onegpu tokens` counts, beside what the rows themselves count."""
    return report(path, tokenizer=TOKENIZER, max_length=512).counts


TOKENIZER = tiny_tokenizer()
READERS = {
    "library": lambda path: list(read_rows(path)),
    "finetune": finetune_rows,
    "tokens": token_rows,
    "ray": ray_rows,
    "preferences": read_pairs,
    "rankings": load_rankings,
}


def test_the_table_is_as_long_as_it_should_be():
    assert len(FILES) >= 40


@pytest.fixture(scope="module", autouse=True)
def quiet():
    datasets.disable_progress_bars()


@pytest.mark.parametrize("name", FILES)
def test_every_command_reads_the_same_rows(tmp_path, name):
    path = put(tmp_path, name, FILES[name])
    rows = READERS["library"](path)
    has_lists = isinstance(rows[0].get("answers"), list)
    assert rows == (ROWS if has_lists else FLAT)
    assert finetune_rows(path) == rows
    assert ray_rows(path) == rows
    assert [(p.prompt, p.chosen, p.rejected) for p in read_pairs(path)] == [
        (row["prompt"], row["chosen"], row["rejected"]) for row in rows
    ]
    if has_lists:
        assert [r.best_first[0][1] for r in load_rankings(path)] == [row["chosen"] for row in rows]
    counts = token_rows(path)
    counts = counts.splits.get("train", counts)
    expected = tokenize_rows(rows, TOKENIZER)
    assert (counts.rows, counts.tokens) == (len(expected), expected.tokens)


@pytest.mark.parametrize("name", BROKEN)
def test_every_command_says_the_same_of_a_broken_file(tmp_path, name):
    content, message = BROKEN[name]
    path = put(tmp_path, name, content)
    said = {}
    for command, read in READERS.items():
        if command == "tokens" and name == "other_split/":
            continue  # it counts each split
        with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
            read(path)
        said[command] = str(caught.value)
    assert len(set(said.values())) == 1, said


@pytest.mark.parametrize("head", ['[{"prompt": "', '{"data": [{"prompt": "', '[{"prompt": [[['])
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_file_without_an_end_fills_no_memory_before_its_error(tmp_path, monkeypatch, head, suffix):
    """An open quote makes one row of all that follows; reading stops at the longest row, not at the file's end."""
    import tracemalloc

    monkeypatch.setattr(data.reading, "LONGEST_ROW", 1 << 16)
    path = tmp_path / f"rows.{suffix}"
    with path.open("w") as file:
        file.write(head)
        for _ in range(200):
            file.write("x" * 100_000)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"rows\.json"):
        list(read_rows(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000 < path.stat().st_size


def test_a_splits_rows_are_chosen_by_name(tmp_path):
    path = put(tmp_path, "splits/", FILES["splits/"])
    assert list(read_rows(path, split="test")) == ROWS[:1]
    assert len(list(read_rows(path, split=None))) == len(ROWS) + 1
    with pytest.raises(ValueError, match="found the splits test, train, expected 'heldout'"):
        list(read_rows(path, split="heldout"))


def test_a_shipped_set_is_read_by_its_name_and_split():
    assert list(read_rows("support_triage", split="heldout")) == data.rows("support_triage", "heldout")
    assert list(read_rows("support_triage", split=None)) == data.rows("support_triage")
    assert list(read_rows("alpaca_sample")) == data.rows("alpaca_sample")
