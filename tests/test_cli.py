"""The command line: errors that say what to do, status 1, no stack trace."""

import json
import subprocess
import sys

import pytest
from onegpu import cli
from typer.testing import CliRunner


def run(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "onegpu.cli", *args], capture_output=True, text=True, check=False, **kwargs
    )


def call(monkeypatch, capsys, *args):
    """Run in this process; return status, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["onegpu", *args])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    return stop.value.code or 0, captured.out, captured.err


def test_importing_the_package_is_instant():
    code = "import time; t = time.perf_counter(); import onegpu; print(time.perf_counter() - t)"
    seconds = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))
    assert seconds < 0.2


def test_help_names_the_commands():
    out = CliRunner().invoke(cli.app, ["--help"]).output
    assert all(name in out for name in ("lab", "finetune", "doctor", "merge", "notebooks"))


def test_unknown_model_is_an_error_without_a_trace(monkeypatch, capsys, tmp_path):
    status, _, err = call(
        monkeypatch, capsys, "finetune", "--model", "smollm2-136m", "--output-dir", str(tmp_path)
    )
    assert status == 1
    assert err.startswith("error: ")
    assert "smollm2-135m" in err  # the near match
    assert "Traceback" not in err


def test_debug_shows_the_trace(tmp_path):
    done = run("finetune", "--set", "max_length=0", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_wrong_setting_is_said_before_torch_is_loaded():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "onegpu.cli", "finetune", "--set", "max_length=0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "error: max_length is 0" in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.endswith(("| torch", "| transformers"))]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("max_length", "expected name=value"),
        ("maxlength=3", "expected name=value with a name from model"),
        ("max_length=long", "expected int"),
        ("max_length=0", "max_length is 0"),
        ("packing=3", "expected bool"),
        ("learning_rate=true", "expected float"),
    ],
)
def test_bad_setting_says_what_was_expected(monkeypatch, capsys, pair, message):
    status, _, err = call(monkeypatch, capsys, "finetune", "--set", pair)
    assert status == 1
    assert message in err


def test_report_file_that_cannot_be_written_is_found_before_training(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = call(monkeypatch, capsys, "finetune", "--json", str(tmp_path / "file" / "report.json"))
    assert status == 1
    assert "can't be written" in err


def test_data_that_is_neither_set_nor_file_is_named(monkeypatch, capsys, tmp_path):
    from onegpu.models import tiny_model, tiny_tokenizer

    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    status, _, err = call(
        monkeypatch, capsys, "finetune", "--model", str(tmp_path / "model"), "--data", "nowhere.jsonl",
        "--output-dir", str(tmp_path / "run"),
    )  # fmt: skip
    assert status == 1
    assert "nowhere.jsonl: no such file" in err


def test_finetune_prints_the_report_and_writes_json(monkeypatch, capsys, tmp_path):
    from onegpu.models import tiny_model, tiny_tokenizer

    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    status, out, _ = call(
        monkeypatch, capsys, "finetune", "--model", str(tmp_path / "model"), "--output-dir", str(tmp_path / "run"),
        "--json", str(tmp_path / "report.json"), "--set", "max_steps=2", "--set", "eval_rows=4",
        "--set", "max_new_tokens=4",
    )  # fmt: skip
    assert status == 0
    assert "intent right" in out
    report = json.loads((tmp_path / "report.json").read_text())
    for part in ("before", "after"):
        assert {"valid_json", "intent_accuracy", "loss"} <= set(report[part])
    assert report["tokens"] > report["supervised_tokens"] > 0
    assert report["tokens_per_second"] > 0
    assert report["train_seconds"] > 0
    assert report["peak_memory_bytes"] > 2**20
    assert report["adapter_dir"] == str(tmp_path / "run" / "adapter")


def test_merge_of_a_folder_without_adapter_says_so(monkeypatch, capsys, tmp_path):
    status, _, err = call(monkeypatch, capsys, "merge", str(tmp_path), str(tmp_path / "out"))
    assert status == 1
    assert "holds no adapter_config.json: give the folder of a finished run" in err


def test_tokens_prints_counts_and_steps(monkeypatch, capsys, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"input_ids": [[1, 2, 3], [4]], "labels": [[-100, 2, 3], [4]]}), tmp_path / "rows.parquet"
    )
    status, out, _ = call(monkeypatch, capsys, "tokens", str(tmp_path / "rows.parquet"), "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["rows"], found["tokens"], found["supervised_tokens"]) == (2, 4, 3)
    status, out, _ = call(monkeypatch, capsys, "tokens", str(tmp_path / "rows.parquet"))
    assert "rows by tokens" in out


def test_tokens_of_a_column_that_is_not_there_names_those_that_are(monkeypatch, capsys, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"ids": [[1, 2, 3]]}), tmp_path / "rows.parquet")
    status, _, err = call(monkeypatch, capsys, "tokens", str(tmp_path / "rows.parquet"))
    assert status == 1
    assert "found columns ids" in err


def test_memory_says_what_fits_and_gives_bytes(monkeypatch, capsys):
    line = (
        "memory",
        "smollm2-135m",
        "--method",
        "qlora",
        "--batch-size",
        "2",
        "--length",
        "128",
        "--gpu",
        "t4",
    )
    status, out, _ = call(monkeypatch, capsys, *line)
    assert status == 0
    assert "fits on T4" in out
    status, out, _ = call(monkeypatch, capsys, *line, "--json")
    found = json.loads(out)
    assert found["verdict"] == "fits"
    for way in ("simulated", "closed_form"):
        assert found[way]["allocated_bytes"]["loaded"] > 10**8
        assert found[way]["peak_bytes"]


def test_the_largest_batch_is_printed_as_json(monkeypatch, capsys):
    line = ("memory", "smollm2-135m", "--gpu", "1GiB", "--length", "64", "--largest", "batch", "--json")
    status, out, _ = call(monkeypatch, capsys, *line)
    found = json.loads(out)
    assert status == 0
    assert (found["fit"]["verdict"], found["next_fit"]["verdict"] != "fits") == ("fits", True)


def test_memory_simulates_a_run_on_rows_of_many_lengths(monkeypatch, capsys):
    line = ("memory", "smollm2-135m", "--gpu", "l4", "--loop", "trl", "--batch-size", "2", "--lengths")
    status, out, _ = call(monkeypatch, capsys, *line, "12,400,30", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["settings"]["lengths"] == {"examples": 3, "shortest": 12, "longest": 400}
    assert found["why_no_closed_form"]
    status, _, err = call(monkeypatch, capsys, *line, "12;400")
    assert (status, err) == (
        1,
        "error: --lengths 12;400: expected whole numbers with commas between, such as 12,400\n",
    )
    status, _, err = call(monkeypatch, capsys, *line, "12", "--data", "support_triage")
    assert (status, "leave one of --data and --lengths out" in err) == (1, True)


def test_memory_of_an_unknown_model_or_card_says_what_there_is(monkeypatch, capsys):
    status, _, err = call(monkeypatch, capsys, "memory", "smollm2-136m")
    assert (status, "smollm2-135m" in err) == (1, True)
    status, _, err = call(monkeypatch, capsys, "memory", "smollm2-135m", "--gpu", "t5")
    assert (status, "T4" in err) == (1, True)


def test_the_version_is_printed():
    import onegpu

    done = CliRunner().invoke(cli.app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"onegpu {onegpu.__version__}\n")
