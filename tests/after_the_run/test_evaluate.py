"""onegpu evaluate: the same loss as the run's own report, on any rows."""

import json

import pytest

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
