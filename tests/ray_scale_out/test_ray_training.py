"""Ray Train: the losses of one process, a worker that dies, and what is refused before it hangs."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from onegpu import models, runtime
from onegpu.qlora_finetune import FinetuneConfig
from onegpu.qlora_finetune.adapters import attach_adapters
from onegpu.qlora_finetune.attention import use_packed_attention
from onegpu.qlora_finetune.trainer import PackedRows, QLoraTrainer, training_arguments
from onegpu.ray_scale_out import NotEnoughResources, finetune_distributed, local_ray
from onegpu.ray_scale_out.layout import schedule
from onegpu.ray_scale_out.pipeline import Recipe, count_rows, packed_rows, to_examples
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


@pytest.fixture(scope="module")
def interrupted(cluster, tiny_folder, chats_file, tmp_path_factory):
    """A run of two workers of which one is killed after step 5 of 7; the last checkpoint is of step 4."""
    from onegpu.ray_scale_out.worker import KillWorker  # needs Ray

    folder = tmp_path_factory.mktemp("interrupted")
    config = FinetuneConfig(
        model=str(tiny_folder), data=str(chats_file), eval_data=str(chats_file), eval_rows=5,
        output_dir=str(folder / "run"), max_length=128, learning_rate=1e-2, save_steps=2, warmup_steps=0,
        lora_r=4, lora_alpha=8, num_train_epochs=1,
    )  # fmt: skip
    fault = KillWorker(rank=1, step=5, marker=str(folder / "killed"), after_seconds=5)
    result = finetune_distributed(config, num_workers=2, window_rows=WINDOW, fault=fault)
    return config, result, folder


def test_a_killed_worker_costs_the_steps_since_the_checkpoint_and_no_row(interrupted):
    _, result, folder = interrupted
    assert (folder / "killed").exists()
    assert result.resumed_at in (2, 4)  # the newest that Ray had seen
    assert result.steps == 7
    assert result.examples == ROWS_OF_FILE
    assert result.row_sum == sum(range(ROWS_OF_FILE))
    assert [step for step, _ in result.losses] == list(range(1, 8))


def test_two_workers_have_the_losses_of_one_process_also_after_a_kill(interrupted, tmp_path):
    config, result, _ = interrupted
    alone = one_process(config, 2, tmp_path)
    assert [loss for _, loss in result.losses] == pytest.approx(alone, abs=1e-4)
    assert result.losses[-1][1] < result.losses[0][1]


def test_the_run_leaves_an_adapter_and_a_report(interrupted):
    _, result, folder = interrupted
    assert (folder / "run" / "adapter" / "adapter_model.safetensors").is_file()
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["examples"] == ROWS_OF_FILE
    assert result.loss_after < result.loss_before
    assert len(result.times) == 2
    assert "workers   2, started anew from step" in str(result)


def test_a_finished_run_is_neither_trained_over_nor_resumed(interrupted):
    config, _, _ = interrupted
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


def test_a_ray_that_runs_already_is_used_and_stays(cluster, ray):
    with local_ray(7) as same:
        assert not same.started_here
        assert same.cpus == 2
    assert ray.is_initialized()


def test_with_an_address_a_running_cluster_is_joined_and_left_running(cluster, ray):
    code = "from onegpu.ray_scale_out import local_ray\nwith local_ray(address='auto') as c: print(c.cpus, c.nodes)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.split() == ["2.0", "1"], done.stderr
    assert ray.cluster_resources()["CPU"] == 2


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
