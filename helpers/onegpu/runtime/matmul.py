"""Float32 matrix products on a CPU at the speed that its vector units have."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def onednn_matmul() -> Iterator[bool]:
    """Let oneDNN multiply float32 matrices on the CPU inside this block; yield whether it does.

    PyTorch hands float32 products to MKL, which leaves AVX-512 unused on processors that are not Intel's: measured on
    an AMD EPYC with two threads, 200 GFLOP/s against 450 with oneDNN. PyTorch's only switch to oneDNN also permits it
    to compute in bf16, and with AMX units it would; so one product is compared with float64 first, and where it is
    not a float32 product, nothing is switched. CUDA is not touched. The setting is restored at the end.

    Examples
    --------
    >>> import torch
    >>> with onednn_matmul():
    ...     product = torch.ones(2, 3) @ torch.ones(3, 2)
    >>> product.tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    import torch

    if not _is_exact():
        yield False
        return
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield True
    finally:
        settings.fp32_precision = before


@functools.cache
def _is_exact() -> bool:
    """Whether oneDNN, permitted to use bf16, still computes float32 products (error about 4e-7, in bf16 2e-3).

    Found out in a thread of its own, since the answer is kept: the first caller may be under autocast, or simulating
    with tensors that hold no numbers, and both end at the thread's border.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_compare_with_float64).result()


def _compare_with_float64() -> bool:
    import torch

    settings = getattr(torch.backends.mkldnn, "matmul", None)
    if not torch.backends.mkldnn.is_available() or not hasattr(settings, "fp32_precision"):
        return False
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(256, 512, generator=generator), torch.randn(512, 256, generator=generator)
    exact = a.double() @ b.double()
    before = settings.fp32_precision
    try:
        settings.fp32_precision = "bf16"
        errors = [(a @ b - exact).norm(), (torch.nn.functional.linear(a, b.t()) - exact).norm()]
    except RuntimeError:  # refused on this processor
        return False
    finally:
        settings.fp32_precision = before
    return bool(max(errors) < 1e-5 * exact.norm())
