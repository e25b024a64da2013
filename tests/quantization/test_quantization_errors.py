"""Error figures."""

import itertools
import math

import pytest
import torch
from onegpu.quantization import quantization_error, quantize_absmax


def test_figures_by_hand():
    error = quantization_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 2.0]))
    assert (error.mse, error.mae, error.largest) == (2.0, 1.0, 2.0)
    assert error.sqnr_db == pytest.approx(10 * math.log10(25 / 4))
    assert error.cosine == pytest.approx(17 / (5 * math.sqrt(13)))


def test_nothing_lost_is_infinite_sqnr_and_cosine_one():
    x = torch.tensor([0.1, -0.7])
    error = quantization_error(x, x)
    assert (error.mse, error.sqnr_db) == (0.0, math.inf)
    assert error.cosine == pytest.approx(1.0)


def test_zeros_against_zeros_and_against_something():
    zeros = torch.zeros(3)
    assert quantization_error(zeros, zeros).cosine == 1.0
    worse = quantization_error(zeros, torch.ones(3))
    assert (worse.cosine, worse.sqnr_db) == (0.0, -math.inf)


def test_it_is_torchs_own_figures_over_pieces(normal):
    back = quantize_absmax(normal).dequantize()
    error = quantization_error(normal, back)
    difference = (normal.double() - back.double()).abs()
    assert error.mse == pytest.approx(float(difference.square().mean()), rel=1e-12)
    assert error.largest == float(difference.max())
    cosine = torch.nn.functional.cosine_similarity(normal.double().view(1, -1), back.double().view(1, -1))
    assert error.cosine == pytest.approx(float(cosine), rel=1e-12)


def test_a_bit_more_is_six_decibels_more(normal):
    decibels = [quantization_error(normal, quantize_absmax(normal, bits=bits)).sqnr_db for bits in (6, 7, 8)]
    steps = [b - a for a, b in itertools.pairwise(decibels)]
    assert all(5.8 < step < 6.4 for step in steps)


def test_shapes_must_be_the_same():
    with pytest.raises(ValueError, match="expected the same"):
        quantization_error(torch.zeros(2), torch.zeros(3))


def test_nothing_has_no_error():
    with pytest.raises(ValueError, match="empty"):
        quantization_error(torch.zeros(0), torch.zeros(0))
