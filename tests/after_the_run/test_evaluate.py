"""onegpu evaluate: the same loss as the run's own report, on any rows."""

import json

import pytest
from onegpu.qlora_finetune import FinetuneConfig, finetune

from .test_chat import call


def test_the_held_out_rows_of_the_run_give_its_own_loss(monkeypatch, capsys, tiny_run, tmp_path):
    rows = str(tiny_run.parent / "held_out.jsonl")
    report = json.loads((tiny_run / "report.json").read_text())
    status, out, err = call(
        monkeypatch,
        capsys,
        "evaluate",
        str(tiny_run),
        "--data",
        rows,
        "--compare",
        "--json",
        str(tmp_path / "x.json"),
    )
    assert status == 0, err
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["scores"]["loss"] == pytest.approx(report["after"]["loss"], rel=2e-4)
    assert found["base_scores"]["loss"] == pytest.approx(report["before"]["loss"], rel=2e-4)
    assert found["rows"] == 3
    assert len(found["answers"]) == 3
    assert "loss (nats per token)" in out


def test_pairs_are_scored_as_in_the_runs_own_report(monkeypatch, capsys, tiny_folder, tmp_path):
    rows = [{"prompt": f"Number {i}?", "chosen": "yes" * (1 + i % 2), "rejected": "no"} for i in range(6)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = FinetuneConfig(
        method="dpo", beta=0.3, model=str(tiny_folder), data=str(path), eval_data=str(path), max_steps=4, lora_r=4,
        learning_rate=1e-2, warmup_steps=0, max_new_tokens=3, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    after = finetune(config).after
    run, report = str(tmp_path / "run"), tmp_path / "x.json"
    status, out, err = call(
        monkeypatch, capsys, "evaluate", run, "--data", str(path), "--compare", "--json", str(report)
    )
    assert status == 0, err
    found = json.loads(report.read_text())
    assert found["scores"]["pairs"] == 6
    assert found["scores"]["margin"] == pytest.approx(after.margin, rel=1e-3)
    assert found["scores"]["margins_above_0"] == after.margins_above_0 == 6
    assert found["scores"]["chosen_likelier"] == after.chosen_likelier
    assert (found["base_scores"]["margin"], found["perplexity"]) == (None, None)
    assert "6 of 6" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--data", "support_triage", "--rows", "0"], "rows is 0"),
        (["--data", "support_triage", "--json", "/dev/null/x"], "can't be written"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(monkeypatch, capsys, tiny_run, more, message):
    status, out, err = call(monkeypatch, capsys, "evaluate", str(tiny_run), *more)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err
