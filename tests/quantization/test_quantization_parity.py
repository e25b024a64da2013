"""Against bitsandbytes on the CPU. Its known faults are avoided by shape, not by tolerance."""

import bitsandbytes.functional as bnb
import pytest
import torch
from onegpu.quantization import (
    dynamic_table,
    int8_linear,
    quantization_error,
    quantize_4bit,
    quantize_blockwise,
    quantize_dynamic8,
    quantize_rowwise,
    split_outliers,
    table,
)

# bitsandbytes 0.50 dequantizes 4-bit rows wrongly on CPUs with AVX-512 where a row isn't whole blocks
# (bitsandbytes#1828): its codes and scales are right, so those are compared, and values only for whole blocks.
SHAPES = [(64, 64), (32, 576), (7, 9), (65,), (64, 96), (1, 1), (5, 64, 3)]


def random(shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("blocksize", [32, 64, 128, 1024, 4096])
@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_4bit_codes_and_absmax_are_equal(shape, scheme, blocksize, dtype):
    x = random(shape, dtype)
    packed, state = bnb.quantize_4bit(x, blocksize=blocksize, quant_type=scheme)
    q = quantize_4bit(x, scheme, blocksize)
    assert torch.equal(q.codes, packed.view(-1))
    assert torch.equal(q.scales, state.absmax)


@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
def test_a_million_4bit_codes_are_equal(normal, scheme):
    packed, _ = bnb.quantize_4bit(normal, quant_type=scheme)
    assert torch.equal(quantize_4bit(normal, scheme).codes, packed.view(-1))


@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
def test_zeros_and_level_values_get_the_same_codes(scheme):
    x = torch.cat([table(scheme), torch.zeros(3), -torch.zeros(2), torch.tensor([1e-3, -1e-3, 1e-9])])
    packed, _ = bnb.quantize_4bit(x, quant_type=scheme)
    ours, theirs = quantize_4bit(x, scheme).codes, packed.view(-1)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_4bit_values_are_equal_where_rows_are_whole_blocks(scheme, dtype):
    x = random((96, 192), dtype)
    packed, state = bnb.quantize_4bit(x, blocksize=64, quant_type=scheme)
    assert torch.equal(quantize_4bit(x, scheme).dequantize(), bnb.dequantize_4bit(packed, state))


@pytest.mark.parametrize(
    ("shape", "blocksize"), [((64, 96), 64), ((64, 64), 128), ((3, 64), 128), ((4, 128), 256)]
)
def test_where_rows_are_not_whole_blocks_ours_are_level_times_scale(shape, blocksize):
    x = random(shape)
    q = quantize_4bit(x, "nf4", blocksize)
    packed, state = bnb.quantize_4bit(x, blocksize=blocksize, quant_type="nf4")
    bytes_ = packed.view(-1)
    levels = table("nf4")[torch.stack([bytes_ >> 4, bytes_ & 15], 1).view(-1).long()]
    scales = state.absmax.repeat_interleave(blocksize)[: x.numel()]
    assert torch.equal(q.dequantize().view(-1), levels * scales)


def test_one_dimension_comes_back_in_one():
    # bitsandbytes gives (64,) back as (1, 64)
    assert quantize_4bit(random((64,))).dequantize().shape == (64,)


def test_double_quantized_scales_are_within_one_code():
    x = random((512, 512))
    _, state = bnb.quantize_4bit(x, quant_type="nf4", compress_statistics=True)
    q = quantize_4bit(x, double_quantization=True)
    assert torch.equal(q.scales.offset, state.offset)
    assert torch.equal(q.scales.scales, state.state2.absmax)
    assert (q.scales.codes.int() - state.absmax.int()).abs().max() <= 1
    assert (q.scales.codes != state.absmax).float().mean() < 0.01
    assert q.nbytes == x.numel() // 2 + state.absmax.nbytes + state.state2.absmax.nbytes + state.offset.nbytes


@pytest.mark.parametrize("signed", [True, False])
def test_the_dynamic_map_is_equal(signed):
    assert torch.equal(dynamic_table(signed), bnb.create_dynamic_map(signed=signed))


def test_where_nothing_is_said_bitsandbytes_means_fp4_and_we_mean_nf4():
    x = random((4, 64))
    packed, state = bnb.quantize_4bit(x)
    assert (state.quant_type, state.blocksize) == ("fp4", 64)
    assert torch.equal(packed.view(-1), quantize_4bit(x, "fp4").codes)
    assert quantize_4bit(x).scheme == "nf4"


@pytest.mark.parametrize("blocksize", [16, 100])
def test_block_sizes_that_bitsandbytes_refuses_work_here(blocksize):
    x = random((8, 100))
    with pytest.raises(ValueError, match="blocksize"):
        bnb.quantize_4bit(x, blocksize=blocksize, quant_type="nf4")
    assert quantize_4bit(x, "nf4", blocksize).scales.numel() == -(-800 // blocksize)


@pytest.mark.parametrize("blocksize", [64, 256, 4096])
def test_dynamic_codes_are_within_one(normal, blocksize):
    # Near zero the levels lie closer than the 1/32768 steps of bitsandbytes' own look-up.
    codes, state = bnb.quantize_blockwise(normal, blocksize=blocksize)
    q = quantize_dynamic8(normal, blocksize)
    assert torch.equal(q.scales, state.absmax)
    scaled = normal.view(-1, blocksize).abs() / q.scales[:, None]
    plain = (scaled > 1e-3).view(normal.shape)
    assert (q.codes.int() - codes.int())[plain].abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("blocksize", [64, 100, 256, 4096])
def test_int8_codes_are_within_one_of_the_linear_map(normal, blocksize, dtype):
    # Its map has 0 at 127 and almost 0 at 128; the CPU looks codes up in steps of 1/32768, so that about one in a
    # thousand is off by one, and an exact zero may become code 131 (bitsandbytes gives 0 back as 2e-5 absmax).
    x = normal[:256].to(dtype)
    codes, state = bnb.quantize_blockwise(x, code=bnb.create_linear_map(), blocksize=blocksize)
    theirs = codes.int() - 127
    theirs[theirs > 0] -= 1
    q = quantize_blockwise(x, blocksize)
    assert torch.equal(q.scales, state.absmax)
    difference = (q.codes.int() - theirs).abs()
    near_zero = q.codes == 0
    assert difference[~near_zero].max() <= 1
    assert difference[near_zero].max() <= 4
    assert (difference > 0).float().mean() < 0.02


def test_exact_zeros_come_back_as_zeros_here():
    x = torch.tensor([0.0, 1.0])
    codes, state = bnb.quantize_blockwise(x, code=bnb.create_linear_map())
    theirs = bnb.dequantize_blockwise(codes, state)
    assert quantize_blockwise(x).dequantize()[0] == 0
    assert abs(theirs[0]) < 3e-5  # and 0 in the other backends


def test_the_default_map_has_2_5_times_the_error(normal):
    codes, state = bnb.quantize_blockwise(normal, blocksize=64)
    default = quantization_error(normal, bnb.dequantize_blockwise(codes, state)).mse
    assert default / quantization_error(normal, quantize_blockwise(normal)).mse == pytest.approx(2.5, abs=0.2)


@pytest.mark.parametrize("shape", [(8, 64), (3, 7), (1, 576)])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_llm_int8_codes_scales_and_outlier_columns_are_equal(shape, spread):
    x = (spread * random(shape)).half()
    x[0, 2] = 8.0
    codes, scales, columns = bnb.int8_vectorwise_quant(x.clone(), threshold=6.0)
    split = split_outliers(x)
    assert torch.equal(split.columns, columns)
    assert torch.equal(split.quantized.codes, codes)
    assert torch.equal(split.quantized.scales, scales)


def test_rowwise_codes_are_equal_without_a_threshold():
    x = random((50, 64)).half()
    codes, scales, _ = bnb.int8_vectorwise_quant(x)
    q = quantize_rowwise(x)
    assert torch.equal(q.codes, codes)
    assert torch.equal(q.scales, scales)


def test_llm_int8_products_are_equal():
    x, weight = random((16, 128)).half(), random((96, 128), seed=1).half()
    x[3, 5] = 9.0
    bias = random((96,), seed=2).half()
    q = quantize_rowwise(weight)
    codes, scales, columns = bnb.int8_vectorwise_quant(x.clone(), threshold=6.0)
    theirs, _ = torch.ops.bitsandbytes.int8_mixed_scaled_mm.default(
        x, codes, q.codes, scales, q.scales, outlier_cols=columns, bias=bias
    )
    ours = int8_linear(x, q, bias)
    assert ours.dtype == torch.float16
    # fp16 results, which bitsandbytes rounds once more on the way: two units in the last place of the largest
    assert (ours - theirs).abs().max() <= 2 * 2**-10 * theirs.abs().max()
    assert torch.allclose(ours.float(), x.float() @ weight.float().T + bias, atol=0.5)
