"""Article 002's design: each fault shows, and the mended actors train as one process does."""

import pytest
from onegpu.ray_scale_out import article

ROWS = article.points(12)


@pytest.fixture(scope="module")
def ran(cluster):
    return article.run_article(ROWS, calls=4)


def test_each_call_gives_the_first_batch_again(ran):
    assert ran.batches == [[[0, 1, 2, 3]] * 4]


def test_the_data_never_ends(ran):
    assert not ran.ended
    assert sum(len(batch) for batch in ran.batches[0]) > len(ROWS)


def test_the_optimizer_steps_a_copy_that_nobody_uses(ran):
    assert not ran.optimizer_has_model
    assert ran.actor_weights == [[0.0, 0.0]]
    assert ran.losses[0] == [ran.losses[0][0]] * 4


def test_the_driver_would_save_an_untrained_model(ran):
    assert ran.driver_weights == [0.0, 0.0]


def test_loaders_that_reserve_all_there_is_leave_none_to_the_trainers(cluster, ray):
    """Two CPUs stand for two GPUs: the loaders take them, and the first trainer waits without end."""

    class Holder:
        def ready(self):
            return True

    loaders = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(2)]
    ray.get([loader.ready.remote() for loader in loaders], timeout=60)
    trainer = ray.remote(num_cpus=1)(Holder).remote()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(trainer.ready.remote(), timeout=3)


def test_mended_actors_train_as_one_process_does_also_with_unequal_shares(cluster):
    """Seven rows over two workers: in the last step of each epoch one has a row and the other none."""
    losses, weights = article.run_mended(ROWS[:7], batch_size=1, workers=2, epochs=2)
    alone, wanted = article.run_in_one_process(ROWS[:7], batch_size=2, epochs=2)
    assert losses == pytest.approx(alone, abs=1e-4)
    assert weights[0] == pytest.approx(wanted, abs=1e-5)
    assert weights[0] == weights[1]
