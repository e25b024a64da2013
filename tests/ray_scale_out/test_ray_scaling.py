"""The ring, the scaling model and the bottleneck meter: no Ray needed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.ray_scale_out.bottleneck import BottleneckMeter, StepTimes, loaders_needed
from onegpu.ray_scale_out.scaling import ScalingModel, ring_allreduce, ring_seconds


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 2**31))
def test_every_worker_ends_with_the_sum(workers, elements, seed):
    vectors = np.random.default_rng(seed).integers(-100, 100, (workers, elements))
    run = ring_allreduce(list(vectors))
    for result in run.results:
        np.testing.assert_array_equal(result, vectors.sum(0))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_bytes_and_rounds_of_the_simulated_ring_are_those_of_the_formula(workers):
    vectors = [np.ones(64, np.float32)] * workers
    run = ring_allreduce(vectors)
    assert run.rounds == 2 * (workers - 1)
    assert run.sent_bytes == 2 * (workers - 1) / workers * 256
    assert ring_seconds(256, workers, 1.0) == run.sent_bytes
    assert ring_seconds(0, workers, 1.0, latency_seconds=1.0) == run.rounds


def test_the_inputs_of_a_ring_stay_as_they_are():
    vectors = [np.ones(4), np.ones(4)]
    ring_allreduce(vectors)
    assert all((v == 1).all() for v in vectors)


def test_a_ring_of_unequal_vectors_is_refused():
    with pytest.raises(ValueError, match="one shape"):
        ring_allreduce([np.ones(3), np.ones(4)])


def test_lora_gradients_do_not_need_a_fast_network_and_full_gradients_do():
    lora = ScalingModel(gradient_bytes=40_000_000).at(64)
    full = ScalingModel(gradient_bytes=4 * 8_000_000_000).at(64)
    assert lora.limited_by == "compute"
    assert lora.efficiency > 0.8
    assert full.limited_by == "network"
    assert full.efficiency < 0.05


def test_loaders_that_do_not_grow_with_the_workers_become_the_limit():
    points = ScalingModel(cpus_per_worker=0, shared_cpus=8, data_tokens_per_second=5_000).sweep((1, 8, 1024))
    assert [p.limited_by for p in points] == ["compute", "compute", "data"]
    assert points[-1].tokens_per_second == pytest.approx(8 * 5_000)


def test_loaders_that_come_with_each_worker_keep_the_time_for_rows_as_it_is():
    model = ScalingModel(cpus_per_worker=2, tokens_per_worker=1000, data_tokens_per_second=5_000)
    assert model.at(1).data_seconds == model.at(64).data_seconds == pytest.approx(0.1)


def test_more_workers_are_never_slower_together_than_one():
    rates = [p.tokens_per_second for p in ScalingModel().sweep()]
    assert rates == sorted(rates)


def test_impossible_clusters_are_refused():
    with pytest.raises(ValueError, match="both 0"):
        ScalingModel(cpus_per_worker=0, shared_cpus=0)
    with pytest.raises(ValueError, match="at least 1"):
        ring_seconds(10, 0, 1.0)


class Clock:
    """Moves only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def slow_rows(clock, seconds, n):
    for i in range(n):
        clock.now += seconds
        yield i


def test_time_in_the_loader_is_waiting_and_time_in_the_loop_is_computing():
    clock = Clock()
    meter = BottleneckMeter(clock=clock)
    for _ in meter.watch(slow_rows(clock, 3.0, 4)):
        clock.now += 1.0
    assert meter.times == StepTimes((3.0,) * 4, (1.0,) * 4)
    assert meter.times.share_waiting == 0.75
    assert "data is the bottleneck" in str(meter.times)


def test_a_loop_left_with_break_counts_its_last_step():
    clock = Clock()
    meter = BottleneckMeter(clock=clock)
    batches = meter.watch(slow_rows(clock, 1.0, 10))
    for i in batches:
        clock.now += 2.0
        if i == 1:
            break
    batches.close()
    assert meter.times == StepTimes((1.0, 1.0), (2.0, 2.0))


def test_the_device_is_waited_for_before_each_reading_of_the_clock():
    clock = Clock()
    late = {"kernels": 0.0}

    def synchronize():
        clock.now += late["kernels"]
        late["kernels"] = 0.0

    meter = BottleneckMeter(synchronize, clock)
    for _ in meter.watch(slow_rows(clock, 0.0, 3)):
        late["kernels"] = 5.0  # started, not finished
    assert meter.times == StepTimes((0.0,) * 3, (5.0,) * 3)


def test_a_meter_without_steps_reads_zero():
    assert BottleneckMeter().times.share_waiting == 0.0
    assert BottleneckMeter().times.typical.share_waiting == 0.0


def test_the_first_steps_can_be_left_out():
    times = StepTimes((9.0, 1.0, 2.0), (8.0, 3.0, 4.0))
    assert times.without_first() == StepTimes((1.0, 2.0), (3.0, 4.0))
    assert times.without_first(2) == StepTimes((2.0,), (4.0,))


def test_a_moment_in_which_the_machine_stalls_does_not_move_the_typical_step():
    times = StepTimes((0.2, 0.2, 30.0), (0.1, 20.0, 0.1))
    assert times.typical == StepTimes((0.2,), (0.1,))


@pytest.mark.parametrize(
    ("waiting", "said"),
    [(0.6, "the data is the bottleneck"), (0.3, "prepare it ahead"), (0.05, "computing is")],
)
def test_the_verdict_says_what_to_work_on(waiting, said):
    assert said in StepTimes((waiting,), (1.0 - waiting,)).verdict


@pytest.mark.parametrize(
    ("data", "compute", "cpus"), [(0.9, 0.2, 5), (0.4, 0.2, 2), (0.01, 0.2, 1), (0.6, 0.2, 3), (2.1, 0.3, 7)]
)
def test_loaders_needed(data, compute, cpus):
    """The last: 2.1 / 0.3 is 7.000000000000001 in floating point."""
    assert loaders_needed(data, compute) == cpus


@pytest.mark.parametrize(("data", "compute"), [(-1.0, 0.2), (0.2, 0.0)])
def test_loaders_for_impossible_times_are_refused(data, compute):
    with pytest.raises(ValueError, match="expected 0 or more, and above 0"):
        loaders_needed(data, compute)
