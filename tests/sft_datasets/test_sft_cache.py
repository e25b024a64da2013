"""Prepared rows on disk: the same rows, found again only when nothing has changed, rebuilt where damaged."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from onegpu.models import tiny_tokenizer
from onegpu.sft_datasets import cache, read_rows, tokenize_rows
from onegpu.sft_datasets.tokenized import BATCH_TOKENS, FlatExamples, Tokenized, batches_of

ROWS = [{"prompt": f"{i} + {i}?", "completion": f"{2 * i}." + " Sure." * (i % 5)} for i in range(40)]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 0)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


class Maker:
    """Tokenizes a file, and counts how often."""

    def __init__(self, path, tokenizer, **options):
        self.path, self.tokenizer, self.options, self.times = path, tokenizer, options, 0
        self.said = []

    def __call__(self, lay):
        self.times += 1
        return tokenize_rows(read_rows(self.path), self.tokenizer, lay=lay, **self.options)

    def get(self):
        self.entry = cache.place(str(self.path), "train", self.tokenizer, self.options)
        return cache.read_or_make(self.entry, self, self.said.append)


def same(a, b):
    assert list(a) == list(b)
    assert (a.rows, a.dropped, a.truncated, a.bad_rows, a.unused_keys, a.changes, a.end_ids) == (
        b.rows, b.dropped, b.truncated, b.bad_rows, b.unused_keys, b.changes, b.end_ids
    )  # fmt: skip


def test_rows_come_back_as_they_were_made_without_tokenizing(file, tokenizer):
    options = {"max_length": 30, "truncation": "right", "bad_rows": "skip", "repairs": ("strip",)}
    with file.open("a") as more:
        more.write(json.dumps({"prompt": "?", "completion": " x ", "mood": "glad"}) + "\n")
        more.write(json.dumps({"prompt": "?", "completion": None}) + "\n")
    make = Maker(file, tokenizer, **options)
    first = make.get()
    again = make.get()
    assert make.times == 1
    same(first, again)
    same(again, make(FlatExamples.of))
    assert again.bad_rows
    assert again.unused_keys == {"mood": 1}
    assert again.changes == {"strip": 1}
    assert "kept in" in make.said[0]
    assert "taken from" in make.said[1]
    assert str(make.entry) in make.said[1]


@pytest.mark.parametrize("change", ["a row", "a setting", "the template", "a token", "the code"])
def test_whatever_rows_hang_on_is_in_their_name(file, tokenizer, make, monkeypatch, change):
    first = cache.place(str(file), "train", tokenizer, {"turns": "all"})
    other = make()
    if change == "a row":
        file.write_text(file.read_text().replace("7 + 7", "8 + 7"))
    elif change == "the template":
        other.chat_template += " "
    elif change == "a token":
        other.add_tokens(["<more>"])
    elif change == "the code":
        monkeypatch.setattr(cache, "_versions", lambda: ["another"])
    settings = {"turns": "last" if change == "a setting" else "all"}
    assert cache.place(str(file), "train", other, settings) != first


def test_the_place_of_a_file_is_not_in_its_name(file, tokenizer):
    moved = file.with_name("other.jsonl")
    shutil.copy(file, moved)
    first, second = (cache.place(str(path), "train", tokenizer, {}) for path in (file, moved))
    assert first == second


def test_small_files_shipped_sets_and_hub_names_are_not_cached(file, tokenizer, monkeypatch):
    for source in ("support_triage", "someone/rows"):
        assert cache.place(source, "train", tokenizer, {}) is None
    monkeypatch.setattr(cache, "LEAST_BYTES", file.stat().st_size + 1)
    assert cache.place(str(file), "train", tokenizer, {}) is None


@pytest.mark.parametrize("damage", ["cut", "one bit", "figures cut", "other figures", "no rows"])
def test_a_damaged_entry_is_made_anew_and_said(file, tokenizer, damage):
    make = Maker(file, tokenizer)
    whole = make.get()
    rows, about = make.entry.with_suffix(".arrow"), make.entry.with_suffix(".json")
    content = bytearray(rows.read_bytes())
    rows.unlink()  # not in place: the first result has it mapped
    if damage == "cut":
        rows.write_bytes(content[:-9])
    elif damage == "one bit":
        content[len(content) // 2] ^= 1
        rows.write_bytes(content)
    elif damage == "figures cut":
        rows.write_bytes(content)
        about.write_text(about.read_text()[:20])
    elif damage == "other figures":
        known = json.loads(about.read_text()) | {"rows_read": 3}
        rows.write_bytes(content)
        about.write_text(json.dumps(known))
    again = make.get()
    assert make.times == 2
    assert "damaged" in make.said[1]
    same(whole, again)
    make.get()
    assert make.times == 2


def test_a_killed_preparation_leaves_nothing_that_is_taken(file):
    code = f"""
import os, signal
from onegpu.models import tiny_tokenizer
from onegpu.sft_datasets import cache, read_rows, tokenize_rows
cache.LEAST_BYTES = 0
def rows():
    for i, row in enumerate(read_rows({str(file)!r})):
        if i == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row
entry = cache.place({str(file)!r}, "train", tiny_tokenizer(), {{}})
print(entry, flush=True)
cache.read_or_make(entry, lambda lay: tokenize_rows(rows(), tiny_tokenizer(), batch_size=8, lay=lay))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    make = Maker(file, tiny_tokenizer())
    assert len(make.get()) == len(ROWS)
    assert str(make.entry) == done.stdout.strip()  # another process gives the same name
    assert make.times == 1
    (left,) = make.entry.parent.glob(".*")
    os.utime(left, (0, 0))
    file.write_text(json.dumps(ROWS[0]) + "\n")
    make.get()
    assert not left.exists()


def test_an_error_in_a_row_leaves_no_entry(file, tokenizer):
    file.write_text(json.dumps(ROWS[0]) + '\n{"prompt": "?", "completion": ""}\n')
    make = Maker(file, tokenizer)
    with pytest.raises(ValueError, match="row 1"):
        make.get()
    assert list(make.entry.parent.iterdir()) == []


def test_where_nothing_can_be_written_rows_are_prepared_in_memory(file, tokenizer, monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("ONEGPU_CACHE", str(tmp_path / "taken"))
    make = Maker(file, tokenizer)
    assert len(make.get()) == len(ROWS)
    assert "in memory" in make.said[0]


def example(number, length):
    ids = tuple(range(number, number + length))
    return Tokenized(
        ids, (-100, *ids[1:]), length - 1, length=length, prompt_length=1, row=number, question=-number
    )


def test_examples_of_several_batches_are_found_taken_and_joined(monkeypatch):
    monkeypatch.setattr("onegpu.sft_datasets.tokenized.BATCH_TOKENS", 50)
    made = [example(i, 3 + i % 7) for i in range(100)]
    flat = FlatExamples.of(iter(made))
    assert len(flat.batches) > 5
    assert list(flat) == made
    assert flat[-1] == made[-1]
    assert flat[3:5] == tuple(made[3:5])
    assert flat.lengths.tolist() == [len(one) for one in made]
    some = np.array([70, 2, 99])
    assert list(flat.take(some)) == [made[i] for i in some]
    joined = FlatExamples.join([flat.take(some), FlatExamples.of([]), flat])
    assert list(joined) == [*(made[i] for i in some), *made]
    assert joined.digest() == FlatExamples.of(iter(joined)).digest() != flat.digest()
    assert joined.rows.tolist() == [e.row for e in joined]


def _memory(path, result):
    import resource

    from onegpu.sft_datasets.tokenized import FlatExamples

    tokens = 4_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many = (example(i % 1000, 500) for i in range(tokens // 500))
    flat = cache._write(path, many) if path else FlatExamples.of(many)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result.put(((peak - before) * 1024 / tokens, int(flat.lengths.sum())))


@pytest.mark.skipif(sys.platform == "win32", reason="measures with resource")
@pytest.mark.parametrize(("mapped", "most"), [(True, 4), (False, 16)])
def test_a_token_takes_at_most_16_bytes_and_next_to_none_on_disk(tmp_path, mapped, most):
    """The peak while laying, batches of 2 MiB included."""
    assert BATCH_TOKENS * 8 == 2 * 2**20
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    worker = context.Process(target=_memory, args=(tmp_path / "rows.arrow" if mapped else None, result))
    worker.start()
    bytes_a_token, tokens = result.get(timeout=120)
    worker.join()
    assert tokens == 4_000_000
    assert bytes_a_token < most


def test_batches_are_closed_by_tokens():
    batches = list(batches_of(example(i % 1000, 1000) for i in range(600)))
    assert [b.num_rows for b in batches] == [263, 263, 74]
