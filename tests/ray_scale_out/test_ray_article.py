"""The article's design: each fault shows. The mended actors are lesson 08's own code, whose output nbval compares."""

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
