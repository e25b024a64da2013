"""What a training worker does with its rows, and how a Ray is started, without starting one."""

import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from chats import chat
from onegpu.ray_scale_out import cluster as clusters
from onegpu.ray_scale_out.bottleneck import BottleneckMeter
from onegpu.ray_scale_out.layout import schedule
from onegpu.ray_scale_out.pipeline import PACKED, Recipe, count_rows, packed_rows, sealed, tokenize_batch
from onegpu.ray_scale_out.window import windows


class Shard:
    """Stands for Ray Data's iterator: gives batches with these indices."""

    def __init__(self, batches):
        self.batches = batches

    def iter_torch_batches(self, **settings):
        return ({"index": list(indices)} for indices in self.batches)


def rows_of(batches, rank=1, workers=2, skip=0):
    from onegpu.ray_scale_out.worker import RowsOfWorker  # needs Ray

    return list(RowsOfWorker(Shard(batches), rank, workers, 2, skip, BottleneckMeter(), 2))


def test_a_worker_takes_its_own_rows_in_order(ray):
    assert len(rows_of([[1, 3], [5, 7], [9, 11]])) == 3


def test_batches_that_were_trained_on_are_skipped_and_still_checked(ray):
    assert len(rows_of([[1, 3], [5, 7], [9, 11]], skip=2)) == 1
    with pytest.raises(RuntimeError, match="got packed row 7, expected 3"):
        rows_of([[1, 7], [5, 7], [9, 11]], skip=2)


@pytest.mark.parametrize("batches", [[[0, 2]], [[1, 3], [7, 9]], [[1, 1]], [[3, 1]]])
def test_rows_of_another_worker_missing_ones_and_repeated_ones_end_the_run(ray, batches):
    """Ray Data promises an order only where ``preserve_order`` is set: better no run than a wrong one."""
    with pytest.raises(RuntimeError, match="lost or trained twice"):
        rows_of(batches)


def test_a_filler_row_counts_no_token_no_label_and_no_example(ray, tokenizer):
    from onegpu.ray_scale_out.worker import CollatePacked

    recipe = Recipe(tokenizer, 128)
    found = windows([chat(i) for i in range(3)], 8)
    counts = count_rows(found, recipe, parallel=False)
    placed, _ = schedule(found, counts, workers=5, batch_size=1)
    rows = list(packed_rows(placed, recipe))
    assert len(rows) == 5
    batch = CollatePacked()(pa.Table.from_pylist(rows, PACKED))
    assert batch["index"] == list(range(5))
    assert sorted(batch["numbers"]) == [0, 1, 2]
    assert batch["tokens"] == counts.tokens < batch["input_ids"].numel()
    assert int((batch["labels"][:, 1:] != -100).sum()) == counts.supervised


@pytest.fixture
def started(ray, monkeypatch):
    """What ``ray.init`` would have got, and the environment at that moment."""
    seen = SimpleNamespace()

    def init(**settings):
        seen.settings, seen.environment = settings, dict(os.environ)
        seen.folder = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
        seen.found = seen.folder.joinpath("rfc3987_syntax.py").is_file()

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(clusters, "describe", lambda started_here: None)
    return seen


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_rays_processes_find_the_empty_module_and_this_process_keeps_its_path(started, monkeypatch, before):
    """``import ray`` compiles a grammar for a second where JupyterLab is installed, in each of some twenty processes."""
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    with clusters.local_ray(2):
        assert os.environ.get("PYTHONPATH") == before
        assert started.found
        assert started.folder.is_dir()
        paths = started.environment["PYTHONPATH"].split(os.pathsep)
        assert str(Path(clusters.__file__).parents[2]) in paths
        assert before is None or before in paths
        assert (
            "runtime_env" not in started.settings
        )  # Ray's first processes, started without one, would be thrown away
    assert not started.folder.exists()


def test_what_the_user_has_set_for_ray_stays(started, monkeypatch):
    name = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
    monkeypatch.setenv(name, "7")
    with clusters.local_ray(2):
        assert started.environment[name] == "7"
    monkeypatch.delenv(name)
    with clusters.local_ray(2):
        assert started.environment[name] == "0.5"
        assert started.environment["RAY_worker_niceness"] == "0"
        assert started.environment["RAY_idle_worker_killing_time_threshold_ms"] == "60000"


def test_processes_that_carry_stages_and_workers_functions_import_none_of_their_libraries(
    tokenizer, tmp_path
):
    """Ray's controller, coordinators and managers, some five processes of a run: seconds of CPU time in each."""
    from onegpu.ray_scale_out.training import train_worker

    carried = (functools.partial(tokenize_batch, recipe=sealed(Recipe(tokenizer, 128))), train_worker)
    (tmp_path / "carried").write_bytes(pickle.dumps(carried))
    code = (
        "import pickle, sys\nfrom pathlib import Path\nstage, _ = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "heavy = ('torch', 'transformers', 'peft')\nprint([m for m in heavy if m in sys.modules])\n"
        "from onegpu.ray_scale_out.pipeline import opened\nprint(opened(stage.keywords['recipe']).max_length)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "carried")], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:2] == ["[]", "128"], done.stderr
