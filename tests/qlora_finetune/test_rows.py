"""The rows of a run: shares, splits, bad rows, repairs, tasks, the cache, and in which order mistakes are found."""

import json
import tracemalloc

import pytest
from chats import chat
from onegpu import models
from onegpu.models import tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig, finetune, prepare_data
from onegpu.qlora_finetune import run as run_module
from onegpu.sft_datasets import cache, tokenize_rows, tokenized


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def pair(i, answer="It is on its way."):
    return {"prompt": f"Where is parcel {i}?", "completion": answer}


def texts(tokenized_set):
    return [tiny_tokenizer().decode(example.input_ids) for example in tokenized_set]


def prepared(**settings):
    return prepare_data(FinetuneConfig(**{"eval_share": 0.0, "max_length": 128} | settings), tiny_tokenizer())


def test_shares_take_of_each_source_what_it_can_give_without_repeating(tmp_path):
    many = write(tmp_path / "many.jsonl", [pair(i) for i in range(40)])
    few = write(tmp_path / "few.jsonl", [pair(i, "No.") for i in range(100, 110)])
    done = prepared(data=(many, few), data_shares=(0.75, 0.25))
    found = texts(done.train)
    assert len(done.train) == 40
    assert sum("No." in text for text in found) == 10
    assert len(set(found)) == 40
    assert done.notes == (
        f"{many}: 30 of 40 rows, for a share of 75.0%",
        f"{few}: 10 of 10 rows, for a share of 25.0%",
    )
    again = prepared(data=(many, few), data_shares=(0.75, 0.25))
    assert texts(again.train) == found
    assert set(texts(prepared(data=(many, few), data_shares=(0.75, 0.25), seed=1).train)) != set(found)


@pytest.mark.parametrize("shares", [(0.5, 0.4), (0.5, 0.5, 0.0), (1.0,), (1.5, -0.5)])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ValueError, match=r"data_shares is .* expected 2 numbers above 0 that add up to 1"):
        FinetuneConfig(data=("a.jsonl", "b.jsonl"), data_shares=shares)


def test_rows_with_the_same_question_stay_on_one_side(tmp_path):
    """Asked again in other case and spacing, answered otherwise: still one question."""
    rows = [pair(i) for i in range(60)]
    again = [{"prompt": f" where is  PARCEL {i}?", "completion": "Look again."} for i in range(60)]
    done = prepared(data=write(tmp_path / "rows.jsonl", rows + again), eval_share=0.25)
    assert len(done.held_out) == 30
    assert len(done.train) == 90

    def questions(some):
        return {"".join(c for c in text.split("assistant")[0] if c.isdigit()) for text in texts(some)}

    assert len(questions(done.held_out)) == 15
    assert not questions(done.held_out) & questions(done.train)
    assert "held out: 30 of 120 rows, split off by their questions" in done.notes[0]
    assert sorted(row["prompt"] for row in done.raw_held_out) == sorted(
        (rows + again)[number]["prompt"] for number in done.held_out.examples.rows
    )


def test_which_rows_are_held_out_hangs_on_their_text_and_the_seed_alone(tmp_path):
    rows = [pair(i) for i in range(60)]
    first = prepared(data=write(tmp_path / "a.jsonl", rows), eval_share=0.1)
    turned = prepared(data=write(tmp_path / "b.jsonl", rows[::-1]), eval_share=0.1)
    other = prepared(data=write(tmp_path / "a.jsonl", rows), eval_share=0.1, seed=1)
    assert set(texts(first.held_out)) == set(texts(turned.held_out)) != set(texts(other.held_out))


def test_eval_rows_bounds_what_is_split_off_and_too_few_rows_give_none(tmp_path):
    path = write(tmp_path / "rows.jsonl", [pair(i) for i in range(60)])
    assert len(prepared(data=path, eval_share=0.5, eval_rows=7).held_out) == 7
    few = prepared(data=write(tmp_path / "few.jsonl", [pair(i) for i in range(5)]), eval_share=0.1)
    assert few.held_out is None
    assert len(few.train) == 5


BAD = {"prompt": "Where?", "completion": " "}


def test_bad_rows_are_skipped_counted_and_listed_held_out_ones_too(tiny_config, tmp_path):
    data = write(tmp_path / "train.jsonl", [BAD, *(chat(i) for i in range(8)), {"question": "?"}])
    held = write(tmp_path / "held.jsonl", [chat(0), {"prompt": None}, chat(1)])
    with pytest.raises(ValueError, match="row 0, field 'completion': found ' ', expected an answer"):
        finetune(tiny_config(data=data, eval_data=held))
    result = finetune(tiny_config(data=data, eval_data=held, bad_rows="skip", max_steps=1))
    assert result.dropped_rows == {"bad_row": 2}
    assert result.dropped_held_out_rows == {"bad_row": 1}
    assert result.held_out_rows == 2
    assert "dropped   1 held-out rows (bad_row)" in str(result)
    listed = [json.loads(line) for line in (tmp_path / "run" / "bad_rows.jsonl").read_text().splitlines()]
    assert [(row["data"], row["row"]) for row in listed] == [(data, 0), (data, 9), (held, 1)]
    assert all("expected" in row["problem"] for row in listed)
    assert [sample["wanted"] for sample in result.samples] == [
        chat(i)["messages"][-1]["content"] for i in (0, 1)
    ]


def test_bad_rows_of_the_only_source_are_never_asked(tmp_path):
    """They are in neither half of a split."""
    rows = [BAD, *(pair(i) for i in range(40)), BAD]
    done = prepared(data=write(tmp_path / "rows.jsonl", rows), eval_share=0.2, bad_rows="skip")
    assert len(done.train) + len(done.held_out) == 40
    assert BAD not in done.raw_held_out
    assert [number for _, number, _ in done.bad_rows] == [0, 41]
    assert done.held_out.dropped == {}


def test_repairs_change_what_is_trained_and_what_is_asked(tiny_config, tmp_path):
    broken = [
        {"messages": [*(chat(i)["messages"][:1] * 2), {"role": "assistant", "content": f" Answer {i}. "}]}
        for i in range(6)
    ]
    path = write(tmp_path / "rows.jsonl", broken)
    with pytest.raises(ValueError, match="the repair merge_turns joins turns of one role"):
        prepared(data=path)
    config = tiny_config(data=path, eval_data=path, repairs=("strip", "merge_turns"), max_steps=1)
    done = prepare_data(config, tiny_tokenizer())
    question = chat(0)["messages"][0]["content"]
    mended = [
        {"role": "user", "content": f"{question}\n\n{question}"},
        {"role": "assistant", "content": "Answer 0."},
    ]
    assert done.train[0].input_ids == tokenize_rows([{"messages": mended}], tiny_tokenizer())[0].input_ids
    assert done.train.changes == {"strip": 6, "merge_turns": 6}
    assert "changed, merge_turns: 6 rows" in str(done)
    assert finetune(config).samples[0]["wanted"] == "Answer 0."


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_early_stopping_without_held_out_rows_is_refused_before_the_model(
    tiny_config, tmp_path, monkeypatch, share
):
    """Without a share even before the tokenizer; with one, as soon as the rows are counted."""
    loaded = []
    monkeypatch.setattr(run_module.models, "load", lambda *a, **k: pytest.fail("loaded a model"))
    tokenizer = models.load_tokenizer
    monkeypatch.setattr(
        run_module.models, "load_tokenizer", lambda name: loaded.append(name) or tokenizer(name)
    )
    data = write(tmp_path / "few.jsonl", [chat(i) for i in range(3)])
    config = tiny_config(data=data, early_stopping_patience=1, eval_steps=1, eval_share=share)
    with pytest.raises(
        ValueError, match="early_stopping_patience needs held-out rows, found none: set eval_data"
    ):
        finetune(config)
    assert len(loaded) == (share > 0)


def test_held_out_rows_of_several_tasks_are_each_scored_as_they_are_meant(tiny_config, chats_file, tmp_path):
    """Chats first: the task of the first source isn't that of all."""
    config = tiny_config(
        eval_data=(str(chats_file), "support_triage"), eval_rows=5, max_length=512, max_steps=1
    )
    done = prepare_data(config, tiny_tokenizer())
    assert [task.name for task in done.tasks] == ["chats"] * 5 + ["support triage"] * 5
    result = finetune(config)
    assert result.held_out_rows == 10
    assert (result.after.rows, result.after.valid_json) == (5, 0.0)  # a tiny model writes no JSON
    assert "held-out, 10 rows, 5 answered" in str(result)
    assert [sample["wanted"] for sample in result.samples] == [
        chat(i)["messages"][-1]["content"] for i in range(3)
    ]


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "rows"


def test_prepared_rows_are_taken_from_the_cache_and_are_the_same_run(tiny_config, cached, monkeypatch):
    config = tiny_config(eval_share=0.2)
    said = []
    first = prepare_data(config, tiny_tokenizer(), say=said.append)
    assert len(list(cached.glob("*.arrow"))) == 1
    monkeypatch.setattr(
        "onegpu.qlora_finetune.rows.tokenize_rows", lambda *a, **k: pytest.fail("tokenized again")
    )
    again = prepare_data(config, tiny_tokenizer(), say=said.append)
    assert ["kept in" in said[0], "taken from" in said[1]] == [True, True]
    assert str(cached) in said[0]
    assert again.fingerprint() == first.fingerprint()
    assert list(again.train) == list(first.train)
    assert again.raw_held_out == first.raw_held_out
    assert again.notes == first.notes
    monkeypatch.undo()
    off = prepare_data(tiny_config(eval_share=0.2, cache_rows=False), tiny_tokenizer(), say=said.append)
    assert off.fingerprint() == first.fingerprint()
    assert len(said) == 2


def test_a_run_on_cached_rows_has_the_same_losses(tiny_config, cached, tmp_path):
    whole = finetune(tiny_config(max_steps=4, cache_rows=False, output_dir=str(tmp_path / "whole")))
    config = tiny_config(max_steps=4)
    finetune(config)
    said = []
    again = finetune(config, overwrite=True, say=said.append)
    assert any("taken from" in line for line in said)
    assert again.losses == whole.losses


def test_memory_does_not_grow_with_the_rows_before_an_error(cached, tmp_path, monkeypatch):
    """Four times the rows, the same peak: what is held is a batch of rows and a batch of tokens."""
    monkeypatch.setattr(tokenized, "BATCH_TOKENS", 1 << 12)
    tokenizer, peaks = tiny_tokenizer(), []
    tokenize_rows([pair(0)], tokenizer)
    for count in (600, 2400):
        rows = [{"prompt": f"{i}?", "completion": "Yes, the parcel is here. " * 12} for i in range(count)]
        config = FinetuneConfig(data=write(tmp_path / "rows.jsonl", [*rows, BAD]), max_length=512)
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=f"row {count}, field 'completion'"):
                prepare_data(config, tokenizer)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert list(cached.iterdir()) == []


def test_pairs_whose_question_has_another_name_say_so_and_are_read_with_columns(tmp_path):
    path = write(tmp_path / "pairs.jsonl", [{"question": "2+2?", "chosen": "4", "rejected": "5"}])
    with pytest.raises(
        ValueError, match=r"field 'prompt': found None.* Set columns if yours has another name"
    ):
        prepared(data=path, method="dpo")
    assert len(prepared(data=path, method="dpo", columns={"question": "prompt"}).train) == 1


def test_pairs_are_cached_and_split_by_their_questions_too(cached, tmp_path):
    rows = [{"prompt": f"{i}?", "chosen": "Yes.", "rejected": "No."} for i in range(20)]
    path = write(tmp_path / "pairs.jsonl", [*rows, {"prompt": " 0?", "chosen": "A.", "rejected": "B."}])
    first, again = (prepared(data=path, method="dpo", eval_share=0.2) for _ in range(2))
    assert len(list(cached.glob("*.arrow"))) == 1
    assert first.fingerprint() == again.fingerprint()
    assert first.notes == again.notes
    assert len(first.held_out) == 4
    assert sum(row["prompt"].strip() == "0?" for row in first.raw_held_out) in (0, 2)
    alone = prepared(data=path, method="dpo", eval_share=0.2, cache_rows=False)
    assert alone.fingerprint() == first.fingerprint()
