"""A run that can be watched: a log that grows and survives a resume, reporters, settings from a file."""

import json

import pytest
from onegpu.qlora_finetune import FinetuneConfig, Interrupted, finetune
from onegpu.qlora_finetune.config_file import read_config_file
from onegpu.qlora_finetune.watching import LOG_FILE, read_log

from .test_chat import call


@pytest.fixture
def config(tiny_run, tmp_path):
    def make(**changes):
        saved = json.loads((tiny_run / "finetune_config.json").read_text())
        return FinetuneConfig(**saved | {"output_dir": str(tmp_path / "run"), "max_steps": 6} | changes)

    return make


def test_the_log_grows_while_it_trains_and_holds_samples(config, tmp_path):
    seen = []
    result = finetune(
        config(eval_steps=2), on_step=lambda *step: seen.append(len(read_log(tmp_path / "run" / LOG_FILE)))
    )
    assert seen == sorted(set(seen))  # a line more at each step, not all at the end
    lines = read_log(tmp_path / "run" / LOG_FILE)
    assert tuple((x["step"], x["loss"]) for x in lines if "loss" in x) == result.losses
    assert [x["step"] for x in lines if "samples" in x] == [2, 4, 6]
    assert set(lines[-2] if "samples" in lines[-2] else next(x for x in lines if "samples" in x)) == {
        "step",
        "samples",
    }
    assert lines[0]["step"] == 0
    assert lines[0]["eval_loss"] == pytest.approx(result.before.loss)
    assert "held-out loss" in str(result)


def test_after_a_break_each_step_stands_in_the_log_once(config, tmp_path):
    import os
    import signal

    def stop(step, steps, loss):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        finetune(config(), on_step=stop)
    with (tmp_path / "run" / LOG_FILE).open("a") as file:
        file.write('{"step": 5, "loss": 9.9}\n{"step": 6, "lo')  # of a session that was killed later
    result = finetune(config(), resume=True)
    lines = read_log(tmp_path / "run" / LOG_FILE)
    assert [x["step"] for x in lines if "loss" in x] == [1, 2, 3, 4, 5, 6]
    assert tuple((x["step"], x["loss"]) for x in lines if "loss" in x) == result.losses


def test_tensorboard_gets_the_losses(config, tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    finetune(config(max_steps=2, report_to="tensorboard"))
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_a_reporter_that_is_not_there_is_said_before_anything_is_written(config, tmp_path):
    with pytest.raises(ValueError, match="report_to is 'tensorbord', expected none or some of"):
        finetune(config(report_to="tensorbord"))
    with pytest.raises(ValueError, match="needs a package that isn't here: pip install"):
        finetune(config(report_to=["neptune"]))
    assert not (tmp_path / "run").exists()


def test_settings_come_from_yaml_or_json_and_the_line_comes_first(tiny_run, tmp_path, monkeypatch, capsys):
    saved = json.loads((tiny_run / "finetune_config.json").read_text())
    text = "\n".join(
        [f"model: {saved['model']}", f"data: {saved['data']}", f"output_dir: {tmp_path / 'x'}", "max_steps: 1", "max_length: 128",
         "learning_rate: 3e-3", "target_modules: [q_proj, v_proj]", "max_new_tokens: 3"]
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text(text)
    status, out, err = call(
        monkeypatch,
        capsys,
        "finetune",
        "--config",
        str(tmp_path / "c.yaml"),
        "--output-dir",
        str(tmp_path / "y"),
    )
    assert status == 0, err
    assert not (tmp_path / "x").exists()
    used = json.loads((tmp_path / "y" / "finetune_config.json").read_text())
    assert (used["learning_rate"], used["target_modules"], used["max_steps"]) == (
        0.003,
        ["q_proj", "v_proj"],
        1,
    )
    assert f"onegpu chat {tmp_path / 'y'}" in out
    again = FinetuneConfig(**read_config_file(tmp_path / "y" / "finetune_config.json"))
    assert not again.differences(used)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "max_step: 3", "there is no setting 'max_step': did you mean max_steps?"),
        ("c.yaml", "max_steps: many", "max_steps is 'many', expected int"),
        ("c.yaml", "learning_rate: high", "learning_rate is 'high', expected a number"),
        ("c.yaml", "a: [1", "c.yaml: while parsing"),
        ("c.json", "{", "c.json: Expecting"),
        ("c.yaml", "- 1", "holds a list, expected settings by name"),
        ("c.yaml", "packing: 1", "packing is 1, expected bool"),
    ],
)
def test_a_bad_settings_file_is_one_sentence(monkeypatch, capsys, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    status, _, err = call(monkeypatch, capsys, "finetune", "--config", str(tmp_path / name))
    assert (status, err.count("\n")) == (1, 1)
    assert message in err
