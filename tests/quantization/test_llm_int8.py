"""LLM.int8: which columns are outliers, and what keeping them saves."""

import pytest
import torch
from onegpu.quantization import (
    int8_linear,
    quantization_error,
    quantize_absmax,
    quantize_rowwise,
    split_outliers,
)


@pytest.fixture
def activations():
    x = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    x[:, 17] *= 40
    return x


def test_the_published_example():
    split = split_outliers(torch.tensor([[1, 8, 0.5], [0.1, 0.2, -0.3]]))
    assert split.quantized.codes.tolist() == [[127, 0, 64], [42, 0, -127]]
    assert split.quantized.scales.tolist() == pytest.approx([1.0, 0.3])
    assert split.columns.tolist() == [1]
    assert split.outliers.tolist() == [[8.0], pytest.approx([0.2])]


@pytest.mark.parametrize(("value", "columns"), [(5.99, []), (6.0, [1]), (-6.0, [1])])
def test_the_threshold_itself_is_an_outlier(value, columns):
    assert split_outliers(torch.tensor([[1.0, value]])).columns.tolist() == columns


def test_without_a_threshold_nothing_is_taken_out():
    assert split_outliers(torch.tensor([[1.0, 100.0]]), threshold=0).columns.tolist() == []


def test_a_row_of_outliers_only_has_scale_zero():
    split = split_outliers(torch.tensor([[7.0, -8.0], [1.0, 2.0]]))
    assert split.quantized.scales.tolist() == [0.0, 2.0]
    assert split.columns.tolist() == [0, 1]


def test_the_input_is_left_as_it_was(activations):
    before = activations.clone()
    split_outliers(activations)
    assert torch.equal(activations, before)


def test_keeping_outliers_cuts_the_error_of_a_product(activations):
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    q, exact = quantize_rowwise(weight), activations @ weight.T
    kept = quantization_error(exact, int8_linear(activations, q))
    thrown_in = quantization_error(exact, int8_linear(activations, q, threshold=0))
    assert kept.sqnr_db > 38
    assert kept.sqnr_db > thrown_in.sqnr_db + 6


def test_more_dimensions_are_rows(activations):
    q = quantize_rowwise(torch.randn(8, 256, generator=torch.Generator().manual_seed(1)))
    folded = activations.view(4, 8, 256)
    assert torch.equal(int8_linear(folded, q), int8_linear(activations, q).view(4, 8, 8))


def test_no_rows_give_no_rows():
    q = quantize_rowwise(torch.ones(8, 4))
    assert int8_linear(torch.empty(0, 4), q).shape == (0, 8)


@pytest.mark.parametrize("weight", [quantize_absmax(torch.ones(4, 4)), quantize_rowwise(torch.ones(4))])
def test_weights_without_row_scales_are_refused(weight):
    with pytest.raises(ValueError, match="quantized with quantize_rowwise"):
        int8_linear(torch.ones(1, 4), weight)


def test_a_negative_threshold_is_refused():
    with pytest.raises(ValueError, match="threshold is -1"):
        split_outliers(torch.ones(1, 4), threshold=-1)


def test_it_says_which_columns(activations):
    assert str(split_outliers(activations)) == "32 rows of 256 features, 1 outlier columns: [17]"
