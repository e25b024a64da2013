"""int8: absmax, blocks, rows and zero point."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onegpu.quantization import (
    quantization_error,
    quantize_absmax,
    quantize_blockwise,
    quantize_rowwise,
    quantize_zeropoint,
)
from onegpu.quantization import tensors as cutting

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def widest(dtype):
    return float(torch.finfo(dtype).max)


def tensors(dtypes=DTYPES, shapes=None):
    """Tensors of any shape and float dtype: subnormal, huge, zero and repeated values included."""

    def build(pair):
        dtype, shape = pair
        limit = widest(dtype)
        numbers = st.one_of(
            st.floats(-limit, limit),
            st.floats(-10, 10),
            st.floats(-1e-44, 1e-44),
            st.sampled_from([0.0, -0.0, 1.0]),
        )
        grid = arrays("float64", shape, elements=numbers)
        return grid.map(lambda values: torch.from_numpy(values.copy()).clamp(-limit, limit).to(dtype))

    shapes = shapes or st.one_of(st.just(()), array_shapes(max_dims=3, max_side=9, min_side=0))
    return st.tuples(st.sampled_from(dtypes), shapes).flatmap(build)


def per_value(q, figures):
    """Each value's own block figure, in the tensor's shape."""
    return figures.double().repeat_interleave(q.blocksize)[: q.numel()].view(q.shape)


def assert_off_by_half_a_step_at_most(x, q):
    back = q.dequantize()
    # The result is rounded to x's dtype, and products of huge or tiny numbers are off by a few ulp of the largest.
    largest = per_value(q, q.block_scales().abs() if q.zero_points is None else q.block_scales() * 255)
    info = torch.finfo(x.dtype)
    slack = largest * max(info.eps, 2**-22) + 2 * info.tiny * info.eps
    assert ((x.double() - back.double()).abs() <= per_value(q, q.step()) / 2 + slack).all()


def test_absmax_by_hand(eight):
    q = quantize_absmax(eight)
    assert q.codes.tolist() == [28, -12, -101, 28, -73, 19, 56, 127]
    assert q.scales.tolist() == eight[-1:].tolist()


@given(x=tensors(), blocksize=st.integers(1, 70))
@settings(max_examples=300, deadline=None)
def test_blocks_are_off_by_half_a_step_at_most(x, blocksize):
    assert_off_by_half_a_step_at_most(x, quantize_blockwise(x, blocksize))


@given(x=tensors())
@settings(max_examples=200, deadline=None)
def test_absmax_is_off_by_half_a_step_at_most(x):
    assert_off_by_half_a_step_at_most(x, quantize_absmax(x))


@given(x=tensors())
@settings(max_examples=300, deadline=None)
def test_zero_point_is_off_by_half_a_step_at_most(x):
    assert_off_by_half_a_step_at_most(x, quantize_zeropoint(x))


@given(x=tensors(), blocksize=st.integers(1, 70))
@settings(max_examples=300, deadline=None)
def test_quantizing_what_came_back_gives_the_same_codes_and_scales(x, blocksize):
    # onnxruntime#10170, LightCompress#334: a code of -128 would break it
    q = quantize_blockwise(x, blocksize)
    again = quantize_blockwise(q.dequantize(), blocksize)
    assert torch.equal(again.codes, q.codes)
    assert torch.equal(again.scales, q.scales)


@given(x=tensors(), blocksize=st.integers(1, 70))
@settings(max_examples=100, deadline=None)
def test_shape_and_dtype_come_back(x, blocksize):
    for q in (quantize_blockwise(x, blocksize), quantize_absmax(x), quantize_zeropoint(x)):
        back = q.dequantize()
        assert (back.shape, back.dtype) == (x.shape, x.dtype)
        assert (q.codes.shape, q.codes.dtype) == (x.shape, torch.int8)


@given(x=tensors(), blocksize=st.integers(1, 70))
@settings(max_examples=100, deadline=None)
def test_nbytes_is_what_is_stored(x, blocksize):
    scale_bytes = 8 if x.dtype == torch.float64 else 4
    blocks = -(-x.numel() // blocksize)
    assert quantize_blockwise(x, blocksize).nbytes == x.numel() + scale_bytes * blocks
    assert quantize_zeropoint(x).nbytes == x.numel() + (scale_bytes + 4) * min(1, x.numel())


@given(x=tensors(), blocksize=st.integers(1, 20), factor=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_no_step_falls_when_blocks_grow(x, blocksize, factor):
    # The bound on the error, for every input. The error itself can be lucky; see the next test.
    small, large = quantize_blockwise(x, blocksize), quantize_blockwise(x, blocksize * factor)
    assert (per_value(small, small.step()) <= per_value(large, large.step())).all()


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_the_error_grows_slowly_with_blocks(normal, scheme):
    # bitsandbytes#565, #1157: it jumped at 1024 and 4096
    from onegpu.quantization import quantize_4bit

    quantize = quantize_blockwise if scheme == "int8" else lambda x, b: quantize_4bit(x, "nf4", b)
    errors = [quantization_error(normal, quantize(normal, 2**k)).mae for k in range(5, 15)]
    assert errors == sorted(errors)
    assert max(b / a for a, b in itertools.pairwise(errors)) < 1.2


def test_codes_are_symmetric(normal):
    assert int(quantize_blockwise(normal).codes.min()) == -127
    assert torch.equal(quantize_absmax(-normal).codes, -quantize_absmax(normal).codes)


@pytest.mark.parametrize(
    "quantize", [quantize_absmax, quantize_blockwise, quantize_zeropoint, quantize_rowwise]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_come_back_as_zeros(quantize, dtype):
    # GPTQModel#1529, pytorch/ao#4713, coremltools#2851: NaN from 0 / 0
    q = quantize(torch.zeros(64, dtype=dtype))
    assert q.codes.count_nonzero() == 0 or q.scheme == "int8 zero-point"
    assert torch.isfinite(q.scales).all()
    assert torch.equal(q.dequantize(), torch.zeros(64, dtype=dtype))


def test_a_block_of_zeros_between_others_comes_back_as_zeros(normal):
    x = normal[0].clone()
    x[64:128] = 0
    back = quantize_blockwise(x).dequantize()
    assert back[64:128].count_nonzero() == 0
    assert back[:64].count_nonzero() > 60


@pytest.mark.parametrize("value", [0.1, -7.25, 3e38, 1e-45])
@pytest.mark.parametrize("quantize", [quantize_absmax, quantize_blockwise])
def test_a_constant_comes_back_exactly(quantize, value):
    x = torch.full((130,), value)
    assert torch.equal(quantize(x).dequantize(), x)


@pytest.mark.parametrize("value", [0.1, -7.25, 3e38, 1e-45])
def test_a_constant_comes_back_from_a_zero_point(value):
    x = torch.full((130,), value)
    assert torch.allclose(quantize_zeropoint(x).dequantize(), x, rtol=1e-6)


def test_one_sided_data_use_all_codes_with_a_zero_point():
    x = torch.linspace(0, 10, 1001)
    assert quantize_zeropoint(x).codes.unique().numel() == 256
    assert quantize_absmax(x).codes.unique().numel() == 128
    assert (
        quantization_error(x, quantize_zeropoint(x)).mse < quantization_error(x, quantize_absmax(x)).mse / 3
    )


def test_far_from_zero_the_zero_point_stays_a_code():
    # llm-awq#193, QuEST#18: values from 10.5 to 14 in 4 bits, where the zero point was clamped and the values wrong
    x = torch.linspace(10.5, 14.0, 8)
    q = quantize_zeropoint(x, bits=4)
    assert int(q.zero_points) == -8
    assert_off_by_half_a_step_at_most(x, q)
    assert q.step() == pytest.approx(14 / 15)


def test_zero_is_exact_with_a_zero_point():
    q = quantize_zeropoint(torch.tensor([-0.3, 0.0, 1.7]))
    assert q.dequantize()[1] == 0


@pytest.mark.parametrize(
    "quantize", [quantize_absmax, quantize_blockwise, quantize_zeropoint, quantize_rowwise]
)
@pytest.mark.parametrize(
    ("value", "name"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")]
)
def test_what_is_not_finite_is_refused_with_its_index(quantize, value, name):
    x = torch.ones(3, 100)
    x[1, 70] = value
    with pytest.raises(ValueError, match=rf"x\[1, 70\] is {name}, expected finite"):
        quantize(x)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_poison_ruins_its_block_and_no_other(value):
    # bitsandbytes turns NaN into -0.993 absmax, silently
    x = torch.linspace(-1, 1, 256)
    x[70] = value
    back = quantize_blockwise(x, nonfinite="poison").dequantize()
    assert back[64:128].isnan().all()
    assert torch.equal(back[128:], quantize_blockwise(x[128:]).dequantize())


def test_poison_ruins_all_of_a_tensor_with_one_scale():
    x = torch.tensor([1.0, float("nan")])
    assert quantize_absmax(x, nonfinite="poison").dequantize().isnan().all()
    assert quantize_zeropoint(x, nonfinite="poison").dequantize().isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_subnormal_blocks_keep_their_values(dtype):
    x = (
        torch.tensor([1, 2, 3, -63, 64, 100], dtype=dtype)
        * torch.finfo(dtype).smallest_normal
        * torch.finfo(dtype).eps
    )
    assert x[0] > 0
    assert torch.equal(quantize_absmax(x).dequantize(), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_do_not_overflow(dtype):
    limit = widest(dtype)
    x = torch.tensor([limit, -limit, limit / 2, 0], dtype=dtype)
    for q in (quantize_absmax(x), quantize_zeropoint(x)):
        assert torch.isfinite(q.dequantize()).all()
        assert torch.isfinite(q.scales).all()


def test_what_is_not_contiguous_is_read_in_its_own_order(normal):
    turned = normal.T
    assert not turned.is_contiguous()
    assert torch.equal(quantize_blockwise(turned).codes, quantize_blockwise(turned.contiguous()).codes)
    every_third = normal[:, ::3]
    assert torch.equal(quantize_blockwise(every_third).codes, quantize_blockwise(every_third.clone()).codes)


@pytest.mark.parametrize("quantize", [quantize_absmax, quantize_blockwise, quantize_zeropoint])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_nothing_stays_nothing(quantize, shape):
    q = quantize(torch.empty(shape))
    assert (q.nbytes, q.bits_per_value, q.dequantize().shape) == (0, 0.0, shape)


@pytest.mark.parametrize("quantize", [quantize_absmax, quantize_blockwise])
def test_one_number_comes_back_exactly(quantize):
    x = torch.tensor(-3.7)
    assert torch.equal(quantize(x).dequantize(), x)


def test_a_last_block_that_is_short_has_its_own_scale():
    # bitsandbytes#1884: the last partial block used data that wasn't there
    x = torch.cat([torch.full((64,), 100.0), torch.tensor([1.0])])
    q = quantize_blockwise(x, 64)
    assert q.scales.tolist() == [100.0, 1.0]
    assert q.dequantize()[-1] == 1.0


@pytest.mark.parametrize("blocksize", [1, 3, 64, 100, 1000, 4096, 5000, 12_345, None])
def test_pieces_for_the_cache_change_nothing(monkeypatch, normal, blocksize):
    x = normal.view(-1)[:12_345]
    blocksize = blocksize or x.numel()
    whole = quantize_blockwise(x, blocksize)
    for module in ("tensors", "blockwise"):
        monkeypatch.setattr(f"onegpu.quantization.{module}.CHUNK", 1000)
    pieces = quantize_blockwise(x, blocksize)
    assert torch.equal(pieces.codes, whole.codes)
    assert torch.equal(pieces.scales, whole.scales)
    assert torch.equal(pieces.dequantize(), whole.dequantize())


@given(count=st.integers(0, 300), blocksize=st.integers(1, 300))
def test_pieces_cover_everything_once(count, blocksize):
    chunk = cutting.CHUNK
    cutting.CHUNK = 50
    try:
        pieces = list(cutting.segments(count, blocksize))
    finally:
        cutting.CHUNK = chunk
    assert [start for start, _, _, _ in pieces] == [0, *(stop for _, stop, _, _ in pieces[:-1])][
        : len(pieces)
    ]
    assert (pieces[-1][1] if pieces else 0) == count
    for start, stop, first, size in pieces:
        assert (stop - start) % size == 0
        assert stop - start <= 50
        assert first == start // blocksize
        assert (stop - 1) // blocksize == first + (stop - start) // size - 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_other_dtypes_are_refused(dtype):
    # bitsandbytes#1540
    with pytest.raises(
        ValueError, match=r"expected one of float16, bfloat16, float32, float64: convert it first"
    ):
        quantize_absmax(torch.zeros(4).to(dtype))


@pytest.mark.parametrize("blocksize", [0, -1, 1.5, True])
def test_a_block_size_that_is_none_is_refused(blocksize):
    with pytest.raises(ValueError, match="blocksize is"):
        quantize_blockwise(torch.zeros(4), blocksize)


@pytest.mark.parametrize("options", [{"bits": 1}, {"bits": 9}, {"nonfinite": "ignore"}])
def test_options_that_do_not_exist_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        quantize_absmax(torch.zeros(4), **options)


def test_half_precision_is_quantized_like_its_values(normal):
    # bitsandbytes#1540: fp16 gave zeros on the CPU
    for dtype in (torch.float16, torch.bfloat16):
        short = normal.to(dtype)
        assert torch.equal(quantize_blockwise(short).codes, quantize_blockwise(short.float()).codes)


def test_gradients_stay_out():
    x = torch.ones(4, requires_grad=True)
    assert not quantize_absmax(x).dequantize().requires_grad


def test_fewer_bits_have_fewer_codes(normal):
    q = quantize_absmax(normal, bits=3)
    assert sorted(q.codes.unique().tolist()) == [-3, -2, -1, 0, 1, 2, 3]
    assert_off_by_half_a_step_at_most(normal, q)


def test_rows_have_their_own_scales():
    q = quantize_rowwise(torch.tensor([[1.0, -2.0, 0.5], [10.0, 0.0, 20.0]]))
    assert q.codes.tolist() == [[64, -127, 32], [64, 0, 127]]
    assert q.scales.tolist() == [2.0, 20.0]
    assert torch.allclose(q.dequantize()[0], torch.tensor([1.007874, -2.0, 0.503937]))


def test_a_number_has_no_rows():
    with pytest.raises(ValueError, match="without rows"):
        quantize_rowwise(torch.tensor(1.0))


def test_it_prints_in_one_line(normal):
    assert str(quantize_blockwise(normal)) == "int8, block 64: shape (1024, 1024), 1.06 MiB, 8.5 bits a value"
