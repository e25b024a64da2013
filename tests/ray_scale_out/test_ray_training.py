"""Ray Train: the losses of one process, a driver and a worker that die, and what is refused before it hangs."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from onegpu import models, runtime
from onegpu.packed_training.attention import use_packed_attention
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.qlora_finetune.adapters import attach_adapters
from onegpu.qlora_finetune.bases import read_base
from onegpu.qlora_finetune.lock import only_process
from onegpu.qlora_finetune.trainer import PackedRows, QLoraTrainer, training_arguments
from onegpu.ray_scale_out import NotEnoughResources, RayMissing, finetune_distributed, local_ray, training
from onegpu.ray_scale_out.handover import KillWorker
from onegpu.ray_scale_out.layout import schedule
from onegpu.ray_scale_out.pipeline import Recipe, count_rows, packed_rows, to_examples
from onegpu.ray_scale_out.training import newest_step
from onegpu.ray_scale_out.window import windows

WINDOW = 8
ROWS_OF_FILE = 25


def one_process(config, workers, tmp_path):
    """Losses of topic 07's trainer in this process, on the same packed rows, with the batch of all workers."""
    runtime.seed_everything(config.seed)
    loaded = models.load(config.model, quantization=config.quantization)
    use_packed_attention(loaded.model)
    model = attach_adapters(loaded.model, config)
    recipe = Recipe(loaded.tokenizer, config.max_length, config.packing, seed=config.seed)
    found = windows(config.data, WINDOW)
    placed, steps = schedule(
        found, count_rows(found, recipe, parallel=False), workers=workers, batch_size=1, epochs=config.num_train_epochs,
        accumulation=config.gradient_accumulation_steps, seed=config.seed,
    )  # fmt: skip
    rows = [to_examples(row) for row in packed_rows(placed, recipe)]
    examples = [example for row in rows for example in row]
    places, at = [], 0
    for row in rows:
        places.append(list(range(at, at + len(row))))
        at += len(row)

    class InOrder(QLoraTrainer):
        def _get_train_sampler(self, dataset=None):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    changed = dataclasses.replace(
        config, per_device_train_batch_size=workers, max_steps=steps, save_steps=10_000
    )
    args = training_arguments(changed, "fp32", str(tmp_path / "alone"), has_eval=False)
    trainer = InOrder(
        model=model, args=args, train_dataset=PackedRows(examples, places), processing_class=loaded.tokenizer
    )
    runtime.seed_everything(config.seed)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


DRIVER = """
import json, sys
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.ray_scale_out import finetune_distributed
from onegpu.ray_scale_out.handover import KillWorker

settings, fault, window = json.loads(sys.argv[1])
finetune_distributed(FinetuneConfig(**settings), num_workers=2, window_rows=window, fault=KillWorker(**fault))
"""


def processes_with(variable):
    """Ids of the processes that have an environment variable: a driver and all that it started. None without /proc."""
    if not Path("/proc/self/environ").is_file():
        return None
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or not ours
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def wait_for(condition, seconds):
    """Return whether a condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def killed_driver(ray, tiny_folder, chats_file, tmp_path_factory):
    """A driver with a Ray of its own, killed while its workers wait after step 3 of 7; the checkpoint is of step 2."""
    folder = tmp_path_factory.mktemp("interrupted")
    settings = {
        "model": str(tiny_folder), "data": str(chats_file), "eval_data": str(chats_file), "eval_rows": 5,
        "output_dir": str(folder / "run"), "max_length": 128, "learning_rate": 1e-2, "save_steps": 2,
        "warmup_steps": 0, "lora_r": 4, "lora_alpha": 8, "num_train_epochs": 1,
    }  # fmt: skip
    waits = {"rank": 1, "step": 3, "marker": str(folder / "waits"), "after_seconds": 600}
    variable = f"ONEGPU_TEST_DRIVER={folder}"
    name, value = variable.split("=")
    # What it can't remove itself lies in the test's folder; the paths of Ray's sockets must be short.
    folders = {"TMPDIR": str(folder), "RAY_TMPDIR": os.environ.get("RAY_TMPDIR", tempfile.gettempdir())}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps([settings, waits, WINDOW])],
        env=os.environ | folders | {name: value},
    )
    try:
        reached = wait_for(
            lambda: driver.poll() is not None or (newest_step(folder / "run") == 2 and (folder / "waits").exists()), 360
        )  # fmt: skip
        assert reached
        assert driver.poll() is None
        started = processes_with(variable)
        driver.kill()
        driver.wait()
        wait_for(lambda: not processes_with(variable), 120)  # 4 s, unless the machine is very busy
        left = processes_with(variable)
    finally:
        driver.kill()
        driver.wait()
        for pid in processes_with(variable) or ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return FinetuneConfig(**settings), folder, started, left


@pytest.fixture(scope="module")
def interrupted(cluster, killed_driver):
    """The same run taken up by another driver; then a worker is killed after step 5."""
    config, folder, _, _ = killed_driver
    fault = KillWorker(rank=1, step=5, marker=str(folder / "killed"), after_seconds=2)
    said = []
    result = finetune_distributed(
        config, num_workers=2, window_rows=WINDOW, fault=fault, resume=True, say=said.append
    )
    return config, result, folder, said


def test_a_killed_driver_leaves_no_process_behind(killed_driver):
    _, _, started, left = killed_driver
    if started is None or not sys.platform.startswith("linux"):
        pytest.skip("looks into Linux's /proc; elsewhere `ray stop` ends what a killed driver left")
    assert len(started) > 5
    assert left == []


def test_resume_is_refused_with_another_number_of_workers_or_other_rows(
    cluster, killed_driver, tmp_path, chats_file
):
    config, folder, _, _ = killed_driver
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("finetune_config.json", "layout.json"):
        shutil.copy(folder / "run" / name, copy)
    config = dataclasses.replace(config, output_dir=str(copy))
    with pytest.raises(
        ValueError, match=r"num_workers 2, now 1; window_rows 8, now 4.*lost or trained twice"
    ):
        finetune_distributed(config, num_workers=1, window_rows=4, resume=True)
    fingerprints = json.loads((folder / "run" / "fingerprints.json").read_text())
    assert len(fingerprints["rows"]) == len(fingerprints["weights"]) == 32
    assert fingerprints["versions"]
    (copy / "fingerprints.json").write_text(json.dumps(fingerprints | {"rows": "0" * 32}))
    with pytest.raises(ValueError, match="can't be resumed: the tokenized rows are not those"):
        finetune_distributed(config, num_workers=2, window_rows=WINDOW, resume=True)


def test_a_folder_that_another_process_trains_into_is_refused(cluster, tiny_config, tmp_path):
    config = tiny_config()
    (tmp_path / "run").mkdir()
    with only_process(tmp_path / "run"), pytest.raises(ValueError, match="another process is training into"):
        finetune_distributed(config, num_workers=1)


def test_what_is_left_open_follows_the_rows_as_in_a_single_run(cluster, tiny_config, chats_file):
    plan = training._plan(
        tiny_config(max_length=None, num_train_epochs=None), 2, WINDOW, 0.1, lambda line: None
    )
    assert (plan[0].max_length, plan[0].num_train_epochs) == (512, 5.0)
    *_, reasons, bad = plan
    assert reasons == (
        f"max_length=512, the longest example has {plan[1].longest} tokens",
        f"num_train_epochs=5, for {ROWS_OF_FILE} rows",
    )
    assert bad == []
    rows = Recipe(models.load_tokenizer(tiny_config().model), 512)
    counts = count_rows(windows(chats_file, WINDOW), rows, parallel=False)
    assert plan[1] == counts
    changed = chats_file.with_name("changed.jsonl")
    changed.write_text(chats_file.read_text().replace("Answer 3:", "Answer 4:", 1))
    other = count_rows(windows(changed, WINDOW), rows, parallel=False)
    assert (other.fingerprint != counts.fingerprint, other.kept) == (True, counts.kept)


def test_a_killed_driver_and_a_killed_worker_cost_the_steps_since_the_checkpoint_and_no_row(interrupted):
    _, result, folder, said = interrupted
    assert "going on from step 2" in said
    assert (folder / "killed").exists()
    assert result.resumed_at in (2, 4)  # the newest that Ray had seen
    assert result.steps == 7
    assert result.examples == ROWS_OF_FILE
    assert result.row_sum == sum(range(ROWS_OF_FILE))
    assert (result.tokens, result.supervised_tokens) == (result.counts.tokens, result.counts.supervised)
    assert [step for step, _ in result.losses] == list(range(1, 8))


def test_a_run_whose_driver_died_after_the_last_step_is_only_reported(interrupted, monkeypatch):
    """The newest checkpoint is then the result itself, which holds nothing to train on with."""
    from onegpu.ray_scale_out import worker

    _, _, folder, _ = interrupted
    (final,) = (path.parent for path in (folder / "run" / "ray").glob("*/result.json"))
    reported = []
    monkeypatch.setattr(worker.ray.train, "get_checkpoint", lambda: worker.ray.train.Checkpoint(str(final)))
    monkeypatch.setattr(
        worker.ray.train, "report", lambda metrics, checkpoint: reported.append((metrics, checkpoint))
    )
    worker.train({})
    assert [(metrics, checkpoint.path) for metrics, checkpoint in reported] == [({"step": 7}, str(final))]


def test_two_workers_have_the_losses_of_one_process_also_after_both_kills(interrupted, tmp_path):
    config, result, _, _ = interrupted
    alone = one_process(config, 2, tmp_path)
    assert [loss for _, loss in result.losses] == pytest.approx(alone, abs=1e-4)
    assert result.losses[-1][1] < result.losses[0][1]


def test_the_run_leaves_an_adapter_and_a_report(interrupted):
    _, result, folder, _ = interrupted
    assert (folder / "run" / "adapter" / "adapter_model.safetensors").is_file()
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["examples"] == ROWS_OF_FILE
    base = read_base(folder / "run" / "adapter")
    assert (base.model, base.quantization, bool(base.weights)) == (result.config["model"], "nf4", True)
    card = (folder / "run" / "adapter" / "README.md").read_text()
    assert "2 workers, each " in card
    assert f"| held-out loss (nats per token) | {result.loss_before:.3f} | {result.loss_after:.3f} |" in card
    assert "packed rows equal their examples alone" in result.self_check
    assert result.self_check in card
    assert result.loss_after < result.loss_before
    assert len(result.times) == 2
    assert "workers   2, started anew from step" in str(result)


def test_a_finished_run_is_neither_trained_over_nor_resumed(interrupted):
    config, _, _, _ = interrupted
    with pytest.raises(ValueError, match="holds an earlier run"):
        finetune_distributed(config)
    with pytest.raises(ValueError, match="finished"):
        finetune_distributed(config, resume=True)


def test_more_workers_than_cpus_is_an_error_not_a_hang(cluster, tiny_config):
    with pytest.raises(NotEnoughResources, match="3 workers on 2 CPUs"):
        finetune_distributed(tiny_config(), num_workers=3)


def test_workers_with_gpus_on_a_machine_without_is_an_error_not_a_hang(cluster, tiny_config):
    with pytest.raises(NotEnoughResources, match="the cluster has 0"):
        finetune_distributed(tiny_config(), use_gpu=True)


def test_a_poisoned_row_ends_the_run_before_a_worker_starts(cluster, tiny_config, chats_file, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(chats_file.read_text() + '{"messages": []}\n')
    with pytest.raises(ValueError, match="row 25"):
        finetune_distributed(tiny_config(data=str(path)))


def test_skipped_rows_are_listed_when_training_begins(
    cluster, tiny_config, chats_file, tmp_path, monkeypatch
):
    path = tmp_path / "rows.jsonl"
    path.write_text(chats_file.read_text() + '{"prompt": "Where?", "completion": " "}\n')

    def fit(config, dataset, num_workers, use_gpu, resources, folder, settings, max_failures):
        raise RuntimeError((folder / "bad_rows.jsonl").read_text())

    monkeypatch.setattr(training, "_fit", fit)
    with pytest.raises(RuntimeError, match="row 25, field 'completion'") as error:
        finetune_distributed(tiny_config(data=str(path), bad_rows="skip"), num_workers=1)
    (row,) = str(error.value).splitlines()
    assert (json.loads(row)["data"], json.loads(row)["row"]) == (str(path), ROWS_OF_FILE)


def test_a_ray_that_runs_already_is_used_and_stays(cluster, ray):
    with local_ray(7) as same:
        assert not same.started_here
        assert same.cpus == 2
    assert ray.is_initialized()


def test_rays_processes_skip_the_slow_import(cluster, ray):
    """1.6 s of CPU time in each process where JupyterLab is installed (``cluster._quick_start``)."""

    def origin():
        import gc
        import importlib.util

        return importlib.util.find_spec("rfc3987_syntax").origin, gc.get_threshold()[0]

    folder, threshold = ray.get(ray.remote(origin).remote(), timeout=60)
    assert "onegpu_ray_" in folder
    assert threshold == 100_000  # it was imported with Ray


def test_nobody_reads_the_logs_that_are_not_shown(cluster, ray):
    """A process of Ray's for them takes two seconds of CPU time."""
    assert "raylet" in ray._private.worker._global_node.all_processes
    assert "log_monitor" not in ray._private.worker._global_node.all_processes


def test_rays_workers_have_the_priority_of_everything_else(cluster, ray):
    """Ray's own niceness of 15 starves them beside any busy program."""
    assert ray.get(ray.remote(lambda: os.nice(0)).remote(), timeout=60) == os.nice(0)


def test_with_an_address_a_running_cluster_is_joined_and_left_running(cluster, ray):
    code = "from onegpu.ray_scale_out import local_ray\nwith local_ray(address='auto') as c: print(c.cpus, c.nodes)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.split() == ["2.0", "1"], done.stderr
    assert ray.cluster_resources()["CPU"] == 2


def test_a_dashboard_without_its_packages_is_an_error_that_says_what_to_install(ray, monkeypatch):
    """Ray says so after seconds, below its own stack trace; the extra "ray" does without the dashboard's packages."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("Ray was started"))
    monkeypatch.setitem(sys.modules, "aiohttp_cors", None)
    monkeypatch.delitem(sys.modules, "ray.dashboard.optional_deps", raising=False)
    with (
        pytest.raises(RayMissing, match=r"aiohttp_cors is missing.*'ray\[default\]'"),
        local_ray(2, dashboard=True),
    ):
        pass


@pytest.mark.slow
def test_the_dashboard_is_where_the_cluster_says(ray, tmp_path):
    """In a process of its own: the tests' Ray has none."""
    pytest.importorskip("ray.dashboard.optional_deps", reason="needs pip install 'ray[default]'")
    code = (
        "from urllib.request import urlopen\nfrom onegpu.ray_scale_out import local_ray\n"
        "with local_ray(2, dashboard=True) as c:\n"
        "    page = urlopen('http://' + c.dashboard, timeout=60)\n    print(page.status, str(c).split()[-1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout.split()[0] == "200", done.stderr
    assert done.stdout.split()[1].startswith("http://")


def test_an_address_where_nobody_answers_is_an_error(ray, monkeypatch):
    def init(**settings):
        raise ConnectionError("nobody")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(ValueError, match="no Ray cluster answers at 'host:6379'"),
        local_ray(address="host:6379"),
    ):
        pass
