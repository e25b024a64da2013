"""The tracker sees each storage once, when it comes and when it goes."""

import pytest
import torch
from onegpu.gpu_memory.replay import replay, settle_categories
from onegpu.gpu_memory.tracking import StorageTracker, _with_all_heads


def alive(trace):
    return sum(trace.sizes[e] if e >= 0 else -trace.sizes[~e] for e in trace.events)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_storage_counts_once_however_many_views_it_has(device):
    with StorageTracker(device) as tracker:
        x = torch.zeros(10, 10, device=device)
        views = [x[1:], x.t(), x.view(100), x.detach()]
    assert tracker.trace.sizes == [400]
    assert len(views) == 4


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_storage_is_released_when_its_last_view_dies(device):
    with StorageTracker(device) as tracker:
        x = torch.zeros(100, device=device)
        view = x[50:]
        del x
        assert alive(tracker.trace) == 400
        del view
        assert alive(tracker.trace) == 0


def test_tensors_on_another_device_are_not_counted():
    with StorageTracker("meta") as tracker:
        torch.zeros(10)
    assert tracker.trace.events == []


def test_each_pass_takes_one_cublas_workspace_at_its_first_product():
    with StorageTracker("meta", workspace_bytes=8_519_680) as tracker:
        x = torch.empty(4, 4, device="meta", requires_grad=True)
        y = (x @ x) @ x
        forward = tracker.trace.categories.count("cublas_workspace")
        tracker.in_backward = True
        y.sum().backward()
    assert (forward, tracker.trace.categories.count("cublas_workspace")) == (1, 2)


def test_tensors_as_wide_as_the_vocabulary_are_logits():
    with StorageTracker("meta", vocab_size=7) as tracker:
        kept = [torch.empty(3, 7, device="meta"), torch.empty(7, 3, device="meta")]
    assert tracker.trace.categories == ["logits_and_loss", None]
    assert len(kept) == 2


def residual(x, w):
    h = x @ w
    return (h.sigmoid() * 2 + h.relu() * 3).sum()


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_gradients_of_a_residual_stream_add_up_in_place_as_without_a_tracker(device):
    x, w = (torch.ones(64, 64, device=device, requires_grad=True) for _ in range(2))
    plain = residual(x, w)
    plain.backward()
    expected = x.grad
    x.grad = w.grad = None
    with StorageTracker(device) as tracker:
        loss = residual(x, w)
        tracker.in_backward = True
        before = len(tracker.trace.sizes)
        loss.backward()
    assert "add" not in tracker.trace.operations[before:]
    if device == "cpu":
        assert torch.equal(x.grad, expected)


def test_a_gradient_that_is_used_elsewhere_is_not_overwritten():
    x = torch.ones(8, 8, requires_grad=True)
    with StorageTracker("cpu") as tracker:
        y = x * 2
        loss = (y.view(4, 16) * 3).sum() + (y.view(4, 16).exp()).sum()
        tracker.in_backward = True
        loss.backward()
    torch.testing.assert_close(x.grad, 2 * (3 + torch.full((8, 8), 2.0).exp()))


def test_what_outlives_the_forward_pass_is_an_activation_and_the_rest_a_temporary():
    with StorageTracker("meta") as tracker:
        tracker.trace.begin("load")
        weight = torch.empty(4, device="meta")
        tracker.trace.begin("forward")
        kept = torch.empty(8, device="meta")
        torch.empty(16, device="meta")
        tracker.trace.begin("backward")
        torch.empty(32, device="meta")
        tracker.trace.begin("after_backward")
        tracker.trace.begin("step")
        torch.empty(64, device="meta")
        tracker.trace.begin("after_step")
    settle_categories(tracker.trace)
    assert tracker.trace.categories == [
        "weights",
        "activations",
        "temporaries",
        "temporaries",
        "optimizer_temporaries",
    ]
    moments = {m.name: m for m in replay(tracker.trace, exact=True).moments}
    assert moments["after_forward"].by_category == {"weights": 16, "activations": 32}
    assert moments["in_step"].allocated_bytes == 16 + 32 + 256
    del weight, kept


def test_grouped_attention_counts_as_attention_with_all_heads():
    """torch before 2.13 (Colab's) has no formula for fewer heads of keys and values than of queries."""
    query, key = (torch.empty(1, heads, 8, 4, device="meta") for heads in (6, 2))
    given = _with_all_heads((query, key, key, None, True))
    assert [x.shape for x in given[:3]] == [query.shape] * 3
    assert given[3:] == (None, True)
