"""The report behind ``onegpu tokens``."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onegpu.models import tiny_tokenizer
from onegpu.sft_datasets import tokenize_rows
from onegpu.token_counting import report

ROWS = [
    {"prompt": "2+2?", "completion": "4"},
    {"prompt": "Say yes or no.", "completion": "Yes, of course."},
    {"prompt": "Count to three.", "completion": "1 2 3"},
]
TOKENS = pa.table({"input_ids": [[1, 2, 3], [4]], "labels": [[-100, 2, 3], [4]]})


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def truth(tokenizer, rows=ROWS):
    done = tokenize_rows(rows, tokenizer)
    return len(done), done.tokens, done.supervised_tokens


def figures(found):
    return found.counts.rows, found.counts.tokens, found.counts.supervised_tokens


def test_tokenized_file_with_counts_histogram_and_steps(tmp_path):
    pq.write_table(TOKENS, tmp_path / "rows.parquet")
    found = report(tmp_path / "rows.parquet", gradient_accumulation_steps=2)
    assert figures(found) == (2, 4, 3)
    text = str(found)
    for part in ("tokens          4", "1 | ", "steps, padded", "steps, packed", "padding, max length"):
        assert part in text
    content = json.loads(json.dumps(found.to_json()))
    assert (content["rows"], content["tokens"], content["supervised_tokens"]) == (2, 4, 3)
    assert content["steps"]["padded_steps"] == 1


def test_file_without_labels_is_counted_with_a_note(tmp_path):
    pq.write_table(TOKENS.drop_columns("labels"), tmp_path / "rows.parquet")
    found = report(tmp_path / "rows.parquet")
    assert figures(found) == (2, 4, None)
    assert "no column 'labels': tokens alone are counted" in str(found)
    with pytest.raises(ValueError, match="no column 'target'"):
        report(tmp_path / "rows.parquet", labels="target")


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow", "saved"])
def test_text_of_any_kind_is_tokenized_first(tmp_path, tokenizer, kind):
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "arrow":
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        datasets.Dataset.from_list(ROWS).select([2, 0, 1]).save_to_disk(path)
    assert figures(report(path, tokenizer=tokenizer)) == truth(tokenizer)


def test_splits_are_reported_each(tmp_path, tokenizer):
    parts = datasets.DatasetDict(
        train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS[:1])
    )
    parts.save_to_disk(tmp_path)
    found = report(tmp_path, tokenizer=tokenizer)
    assert figures(found)[0] == 4
    assert set(found.steps) == {"train", "test"}
    assert found.to_json()["splits"]["test"]["steps"]["padded_steps"] == 1
    assert "split train" in str(found)


def test_shipped_set_by_name_with_rows_prepared(tokenizer):
    def prepare(row):
        return {"prompt": row["message"], "completion": row["reply"]}

    found = report("support_triage", tokenizer=tokenizer, prepare=prepare)
    assert set(found.counts.splits) == {"train", "heldout"}
    assert found.counts.supervised_tokens > 0


def test_row_that_cannot_be_read_is_named(tmp_path, tokenizer):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+2?", "completion": "4"}\n{"x": 1}\n')
    with pytest.raises(ValueError, match="row 1"):
        report(tmp_path / "rows.jsonl", tokenizer=tokenizer)


def test_names_that_lead_nowhere_say_what_there_is(monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no shipped data set of that name \(.*support_triage"):
        report("support_tirage")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        report("./nothing/here.parquet")
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("no net"))
    )
    with pytest.raises(
        ValueError, match=r"owner/name: .* the hub gave no data set of that name \(ConnectionError\)"
    ):
        report("owner/name")


def test_hub_name_is_streamed(monkeypatch):
    stream = datasets.IterableDatasetDict(train=datasets.Dataset(TOKENS).to_iterable_dataset())
    monkeypatch.setattr(datasets, "load_dataset", lambda name, streaming: stream)
    assert figures(report("owner/name")) == (2, 4, 3)
