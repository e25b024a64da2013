"""Shared data of the quantization tests."""

import math

import pytest
import torch

ARTICLE = [1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4]


@pytest.fixture
def eight():
    """The eight numbers of the lesson, quantized by hand there."""
    return torch.tensor(ARTICLE)


@pytest.fixture
def normal():
    """A million normally distributed numbers, the same in every run."""
    return torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))


def ulp(x):
    """Distance from |x| to the next number of its dtype, elementwise."""
    size = x.abs()
    return torch.nextafter(size, torch.full_like(size, math.inf)) - size
