"""NF4 and FP4: levels, packing, double quantization."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.quantization import (
    double_quantize,
    pack_4bit,
    quantization_error,
    quantize_4bit,
    quantize_blockwise,
    quantize_dynamic8,
    table,
    unpack_4bit,
)

from .test_int8 import per_value, tensors

SCHEMES = ["nf4", "fp4"]


def nf4_reference(x, blocksize=64):
    """NF4 in eight lines, as the lesson drafts it: what the fast one must equal. Returns packed codes and absmax."""
    levels, flat = table("nf4"), x.reshape(-1)
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % blocksize)).view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = blocks * (1 / torch.where(absmax > 0, absmax, 1.0))[:, None]
    codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2).view(-1)[: len(flat)]
    pairs = torch.nn.functional.pad(codes, (0, len(flat) % 2), value=7).view(-1, 2)
    return (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8), absmax


@given(
    values=st.lists(st.floats(-100, 100, width=32).filter(lambda v: v == 0 or abs(v) > 1e-20), max_size=200),
    blocksize=st.sampled_from([1, 3, 32, 64, 100]),
)
def test_the_fast_nf4_equals_the_one_in_eight_lines(values, blocksize):
    x = torch.tensor(values, dtype=torch.float32)
    fast = quantize_4bit(x, "nf4", blocksize)
    packed, absmax = nf4_reference(x, blocksize)
    assert torch.equal(fast.codes, packed)
    assert torch.equal(fast.scales, absmax)


def test_the_fast_nf4_equals_the_reference_on_a_million_values():
    x = torch.randn(1000, 1001, generator=torch.Generator().manual_seed(1))
    packed, absmax = nf4_reference(x)
    assert torch.equal(quantize_4bit(x).codes, packed)
    assert torch.equal(quantize_4bit(x).scales, absmax)


def test_the_first_value_is_the_high_half_of_the_byte():
    q = quantize_4bit(torch.tensor([1.0, -1.0, 0.0, 0.5]))
    assert q.codes.tolist() == [0xF0, 0x7C]
    assert q.dequantize().tolist() == pytest.approx([1, -1, 0, 0.44070983])


@given(codes=st.lists(st.integers(0, 15), max_size=40))
def test_packing_loses_nothing(codes):
    packed = pack_4bit(torch.tensor(codes, dtype=torch.int64))
    assert packed.dtype == torch.uint8
    assert packed.numel() == (len(codes) + 1) // 2
    assert unpack_4bit(packed, len(codes)).tolist() == codes


@pytest.mark.parametrize("codes", [[16], [-1], [0.5]])
def test_codes_that_do_not_fit_are_refused(codes):
    with pytest.raises(ValueError, match="0 to 15"):
        pack_4bit(torch.tensor(codes))


@pytest.mark.parametrize("count", [2, 5])
def test_unpacking_more_or_less_than_is_there_is_refused(count):
    with pytest.raises(ValueError, match="hold 4 codes, or one less"):
        unpack_4bit(torch.zeros(2, dtype=torch.uint8), count)


def test_packed_codes_must_be_bytes():
    with pytest.raises(ValueError, match="expected uint8"):
        unpack_4bit(torch.zeros(2), 4)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(x=tensors(), blocksize=st.integers(1, 70))
@settings(max_examples=200, deadline=None)
def test_each_value_gets_its_nearest_level(scheme, x, blocksize):
    q = quantize_4bit(x, scheme, blocksize)
    largest = per_value(q, q.block_scales())
    levels = table(scheme).double() * largest.unsqueeze(-1)
    nearest = (levels - x.double().unsqueeze(-1)).abs().min(-1).values
    info = torch.finfo(x.dtype)
    slack = largest * max(info.eps, 2**-21) + 2 * info.tiny * info.eps
    assert ((q.dequantize().double() - x.double()).abs() <= nearest + slack).all()


@pytest.mark.parametrize("scheme", [*SCHEMES, "dynamic8"])
@given(x=tensors(), blocksize=st.integers(1, 70))
@settings(max_examples=200, deadline=None)
def test_quantizing_what_came_back_gives_it_again(scheme, x, blocksize):
    if scheme == "dynamic8" and x.dtype in (torch.float16, torch.bfloat16):
        return  # the dynamic map's fine levels lie closer together than these dtypes' numbers
    quantize = quantize_dynamic8 if scheme == "dynamic8" else lambda x, b: quantize_4bit(x, scheme, b)
    back = quantize(x, blocksize).dequantize()
    again = quantize(back, blocksize)
    if scheme == "dynamic8":  # -absmax isn't a level there: the scale may shrink, once
        assert (again.block_scales() <= quantize(x, blocksize).block_scales()).all()
        return
    assert torch.equal(again.block_scales(), quantize(x, blocksize).block_scales())
    assert torch.equal(again.dequantize(), back)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("shape", "packed", "blocks"), [((65,), 33, 2), ((7, 9), 32, 1), ((64,), 32, 1), ((), 1, 1)]
)
def test_odd_sizes(scheme, shape, packed, blocks):
    # bitsandbytes#1884, #2043; and a tensor of one dimension comes back in one
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q = quantize_4bit(x, scheme)
    assert (q.codes.shape, q.scales.shape) == ((packed,), (blocks,))
    assert q.dequantize().shape == x.shape


def test_padding_does_not_change_the_last_scale():
    q = quantize_4bit(torch.tensor([0.1, 0.2, -0.4]), blocksize=2)
    assert q.scales.tolist() == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("blocksize", [1, 3, 7, 64, 333, 1001, 4096])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pieces_that_end_inside_a_byte_change_nothing(monkeypatch, normal, scheme, blocksize):
    x = normal.view(-1)[:12_345]
    whole = quantize_4bit(x, scheme, blocksize)
    for module in ("tensors", "blockwise"):
        monkeypatch.setattr(f"onegpu.quantization.{module}.CHUNK", 1001)
    pieces = quantize_4bit(x, scheme, blocksize)
    assert torch.equal(pieces.codes, whole.codes)
    assert torch.equal(pieces.dequantize(), whole.dequantize())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_come_back_as_zeros(scheme):
    q = quantize_4bit(torch.zeros(64), scheme, double_quantization=True)
    assert torch.equal(q.dequantize(), torch.zeros(64))


def test_a_block_of_zeros_is_stored_as_bitsandbytes_stores_it():
    # bytes of 119 = 0x77, absmax 0
    q = quantize_4bit(torch.zeros(64))
    assert set(q.codes.tolist()) == {0x77}
    assert q.scales.tolist() == [0]


def test_nf4_beats_fp4_on_normal_data_and_double_quantization_costs_little(normal):
    errors = {
        "nf4": quantization_error(normal, quantize_4bit(normal)).mae,
        "nf4-dq": quantization_error(normal, quantize_4bit(normal, double_quantization=True)).mae,
        "fp4": quantization_error(normal, quantize_4bit(normal, "fp4")).mae,
    }
    assert errors["nf4"] == pytest.approx(0.07278, abs=2e-4)
    assert errors["nf4-dq"] == pytest.approx(0.07286, abs=2e-4)
    assert errors["fp4"] == pytest.approx(0.09650, abs=2e-4)


def test_equal_steps_beat_the_dynamic_map_on_normal_data(normal):
    equal = quantization_error(normal, quantize_blockwise(normal)).mse
    dynamic = quantization_error(normal, quantize_dynamic8(normal)).mse
    assert dynamic / equal == pytest.approx(2.5, abs=0.2)


def test_the_dynamic_map_has_no_level_at_minus_one():
    back = quantize_dynamic8(torch.tensor([-3.0, 1.0])).dequantize()
    assert back.tolist() == pytest.approx([-2.97890615, 0.99609375])


def test_the_dynamic_map_keeps_small_values_that_equal_steps_lose():
    x = torch.tensor([1.0, 1e-4])
    assert quantize_blockwise(x).dequantize()[1] == 0
    assert quantize_dynamic8(x).dequantize()[1] == pytest.approx(1e-4, rel=0.2)


def test_bits_per_value_with_and_without_double_quantization(normal):
    assert quantize_4bit(normal).bits_per_value == 4.5
    assert quantize_4bit(normal, double_quantization=True).bits_per_value == 4.126983642578125


def test_double_quantization_saves_0_373_bits(normal):
    # arXiv 2305.14314
    saved = (
        quantize_4bit(normal).bits_per_value - quantize_4bit(normal, double_quantization=True).bits_per_value
    )
    assert saved == pytest.approx(0.373, abs=5e-4)


@given(st.lists(st.floats(0, 2.0**100, width=32), max_size=600))
@settings(max_examples=50, deadline=None)
def test_scales_survive_double_quantization_within_a_percent_of_the_range(values):
    scales = torch.tensor(values, dtype=torch.float32)
    twice = double_quantize(scales)
    assert twice.numel() == len(values)
    assert twice.nbytes == len(values) + 4 * -(-len(values) // 256) + 4
    for start in range(0, len(values), 256):
        part = scales[start : start + 256]
        reach = (part - twice.offset).abs().max()
        assert (
            (twice.dequantize()[start : start + 256] - part).abs() <= 0.01 * reach + 1e-5 * twice.offset
        ).all()


@pytest.mark.parametrize("double", [False, True])
def test_poison_ruins_its_block_and_no_other_block_of_scales(double):
    x = torch.linspace(-1, 1, 64 * 300)
    x[70] = float("nan")
    back = quantize_4bit(x, double_quantization=double, nonfinite="poison").dequantize()
    assert back[64:128].isnan().all()
    if not double:
        assert back.isnan().sum() == 64


def test_nan_is_refused_with_its_index():
    x = torch.zeros(3, 5)
    x[2, 4] = float("nan")
    with pytest.raises(ValueError, match=r"x\[2, 4\] is nan"):
        quantize_4bit(x)


@pytest.mark.parametrize("scheme", ["int4", "NF4", None])
def test_other_tables_are_refused(scheme):
    with pytest.raises(ValueError, match="expected 'nf4' or 'fp4'"):
        quantize_4bit(torch.zeros(4), scheme)
    with pytest.raises(ValueError, match="no table of levels"):
        table(scheme)


def test_unequal_levels_have_no_step():
    with pytest.raises(ValueError, match="no one step"):
        quantize_4bit(torch.ones(4)).step()
