"""Formats as data, against torch.finfo and published tables."""

import math
from fractions import Fraction

import bitsandbytes.functional as bnb
import pytest
import torch
from onegpu.dtype_sizing import FORMATS, fp4_codebook, nf4_codebook, number_format

TORCH_FLOATS = [fmt for fmt in FORMATS.values() if fmt.kind == "float" and fmt.torch_name]


@pytest.mark.parametrize("fmt", TORCH_FLOATS, ids=lambda fmt: fmt.name)
def test_what_follows_from_the_layout_is_what_torch_finfo_says(fmt):
    info = torch.finfo(getattr(torch, fmt.torch_name))
    assert (fmt.max, fmt.min) == (info.max, info.min)
    assert fmt.smallest_normal == info.tiny
    assert fmt.smallest_subnormal == info.smallest_normal * info.eps
    assert fmt.epsilon == info.eps
    assert fmt.bits == info.bits


def test_int8_is_what_torch_iinfo_says():
    info = torch.iinfo(torch.int8)
    assert (FORMATS["int8"].min, FORMATS["int8"].max, FORMATS["int8"].bits) == (info.min, info.max, info.bits)


@pytest.mark.parametrize(
    ("name", "largest", "tiny", "subnormal", "epsilon"),
    [
        ("fp32", 3.4028234663852886e38, 1.1754943508222875e-38, 1.401298464324817e-45, 2**-23),
        ("fp16", 65504, 6.103515625e-05, 5.960464477539063e-08, 0.0009765625),
        ("bf16", 3.3895313892515355e38, 1.1754943508222875e-38, 2**-133, 0.0078125),
        ("fp8_e4m3", 448, 2**-6, 2**-9, 0.125),
        ("fp8_e5m2", 57344, 2**-14, 2**-16, 0.25),
        ("fp4_e2m1", 6, 1, 0.5, 0.5),
    ],
)
def test_published_limits(name, largest, tiny, subnormal, epsilon):
    fmt = FORMATS[name]
    found = (fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, fmt.epsilon)
    assert found == (largest, tiny, subnormal, epsilon)


def test_fp32_reaches_e38_not_e34():
    # A blog article that this course started from says 3.4e34.
    assert math.floor(math.log10(FORMATS["fp32"].max)) == 38


def test_tf32_uses_19_bits_and_is_stored_in_32():
    assert (FORMATS["tf32"].bits, FORMATS["tf32"].storage_bytes(10)) == (19, 40)


def test_nf4_from_its_definition_is_bitsandbytes_table_to_the_bit():
    assert list(nf4_codebook()) == bnb.get_4bit_type("nf4", device="cpu").tolist()


def test_nf4_has_seven_negative_levels_zero_and_eight_positive_ones():
    signs = [math.copysign(1, level) if level else 0 for level in nf4_codebook()]
    assert signs == [-1] * 7 + [0] + [1] * 8


def test_fp4_is_bitsandbytes_table_to_the_bit():
    assert list(fp4_codebook()) == bnb.get_4bit_type("fp4", device="cpu").tolist()


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("int4", 4),
        ("nf4", Fraction(9, 2)),
        ("nf4-dq", Fraction("4.126953125")),
        ("fp4", Fraction(9, 2)),
        ("mxfp4", Fraction(17, 4)),
        ("nvfp4", Fraction(9, 2)),  # aiconfigurator#391: 9/16 of a byte, not 1/2
    ],
)
def test_bits_per_value_contain_the_scales(name, bits):
    assert FORMATS[name].bits_per_value == bits


def test_nvfp4_takes_nine_sixteenths_of_a_byte():
    # aiconfigurator#391
    assert FORMATS["nvfp4"].bytes_per_value == 9 / 16
    assert FORMATS["nvfp4"].storage_bytes(1024) == 576


def test_published_bytes_of_llama_2_7b_linear_layers():
    count = 6_476_005_376
    assert FORMATS["nf4"].storage_bytes(count) == 3_642_753_024
    assert FORMATS["nf4-dq"].storage_bytes(count) == 3_340_771_328


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 1 + 4), (64, 32 + 4), (65, 33 + 8)])
def test_a_started_block_pays_for_a_whole_scale(count, size):
    assert FORMATS["nf4"].storage_bytes(count) == size


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="-1 values"):
        FORMATS["bf16"].storage_bytes(-1)


@pytest.mark.parametrize(
    ("name", "found"), [(torch.bfloat16, "bf16"), ("Float16", "fp16"), ("torch.float8_e4m3fn", "fp8_e4m3")]
)
def test_formats_are_found_by_torch_names(name, found):
    assert number_format(name).name == found


def test_an_unknown_format_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"unknown number format 'fp12', expected one of fp64"):
        number_format("fp12")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_formats_print_in_one_line(fmt):
    assert "\n" not in str(fmt)
    assert str(fmt).startswith(f"{fmt.name}: ")
