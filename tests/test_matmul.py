"""Float32 products by oneDNN: the same numbers, and the setting put back."""

import pytest
import torch
from onegpu.runtime import matmul, onednn_matmul
from torch._subclasses.fake_tensor import FakeTensorMode


def setting():
    return torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize("shape", [(1, 64, 64), (228, 576, 1536), (37, 1536, 576)])
def test_products_keep_float32_accuracy(shape):
    m, k, n = shape
    a, b = torch.randn(m, k), torch.randn(n, k)
    exact = a.double() @ b.double().t()
    with onednn_matmul() as switched:
        assert switched == (setting() == "bf16")
        found = [torch.nn.functional.linear(a, b), a @ b.t()]
    for product in found:
        assert (product - exact).norm() < 1e-6 * exact.norm()


def test_the_setting_is_put_back_also_after_an_error():
    before = setting()
    with pytest.raises(ZeroDivisionError), onednn_matmul():
        raise ZeroDivisionError
    assert setting() == before


def test_nothing_is_switched_where_the_products_would_be_coarser(monkeypatch):
    class Coarse(torch.Tensor):
        def __matmul__(self, other):
            return (self.bfloat16().as_subclass(torch.Tensor) @ other.bfloat16()).float()

    make = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *a, **k: make(*a, **k).as_subclass(Coarse))
    matmul._is_exact.cache_clear()
    try:
        assert not matmul._is_exact()
        before = setting()
        with onednn_matmul() as switched:
            assert not switched
            assert setting() == before
    finally:
        matmul._is_exact.cache_clear()


@pytest.mark.parametrize(
    "around", [FakeTensorMode, lambda: torch.device("meta"), lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_where_it_is_first_asked_changes_no_answer(around):  # a simulation of memory, then training
    matmul._is_exact.cache_clear()
    with around():
        first = matmul._is_exact()
    matmul._is_exact.cache_clear()
    assert first == matmul._is_exact()


def test_a_torch_without_the_setting_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    matmul._is_exact.cache_clear()
    try:
        with onednn_matmul() as switched:
            assert not switched
    finally:
        matmul._is_exact.cache_clear()
