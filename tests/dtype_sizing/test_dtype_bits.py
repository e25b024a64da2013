"""Numbers to bits and back, against torch's own rounding."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.dtype_sizing import FORMATS, count_between, decode, encode, flip_bit, neighbours, store

SMALL = ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]
TORCH_FLOATS = ["fp64", "fp32", *SMALL]


def torch_dtype(name):
    return getattr(torch, FORMATS[name].torch_name)


@pytest.mark.parametrize("name", SMALL)
def test_every_bit_pattern_decodes_as_torch_reads_it(name):
    bits = FORMATS[name].bits
    integers = torch.arange(2**bits, dtype=torch.int32).to(torch.uint16 if bits == 16 else torch.uint8)
    expected = integers.view(torch_dtype(name)).double().tolist()
    for code, value in enumerate(expected):
        ours = decode(code, name)
        assert ours == value or (math.isnan(ours) and math.isnan(value)), (code, ours, value)


@pytest.mark.parametrize("name", TORCH_FLOATS)
@given(value=st.floats(allow_nan=False, allow_infinity=False, width=64))
@settings(max_examples=300, deadline=None)
def test_rounding_is_torchs(name, value):
    if name.startswith("fp8") and abs(value) > FORMATS[name].max:
        return  # libraries differ there, see below
    # torch rounds float64 to the short formats by way of float32, which rounds twice: give it a float32.
    if name not in {"fp64", "fp32"}:
        value = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) < 3.4e38 else 1e38
    expected = torch.tensor(value, dtype=torch.float64).to(torch_dtype(name)).item()
    assert decode(encode(value, name), name) == expected


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_bits_to_number_to_bits_is_the_identity(fmt, data):
    code = data.draw(st.integers(0, 2**fmt.bits - 1))
    value = decode(code, fmt)
    if math.isnan(value):
        assert math.isnan(decode(encode(value, fmt), fmt))
    elif value == 0 and fmt.kind == "codebook":
        assert decode(encode(value, fmt), fmt) == 0  # fp4 has two zeros
    else:
        assert encode(value, fmt) == code


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
@given(value=st.floats(-20, 20))
@settings(max_examples=100, deadline=None)
def test_the_stored_number_is_no_further_than_its_neighbours(fmt, value):
    kept = store(value, fmt)
    for other in (kept.below, kept.above):
        if other is not None and math.isfinite(other):
            assert abs(kept.error) <= abs(other - value)


@pytest.mark.parametrize(
    ("value", "name", "kept"),
    [
        (65519.99, "fp16", 65504.0),
        (65520.0, "fp16", math.inf),
        (3e-8, "fp16", 2**-24),
        (2**-25, "fp16", 0.0),
        (2049, "fp16", 2048),
        (257, "bf16", 256),
        (1.003, "bf16", 1.0),
        (3.4e38, "bf16", math.inf),
        (61439, "fp8_e5m2", 57344),
        (61440, "fp8_e5m2", math.inf),
        (0.5, "nf4", 0.44070982933044434),
        (126.7, "int8", 127),
        (200, "int8", 127),
        (-200, "int8", -128),
        (2.5, "int8", 2),  # half to even
        (2.5, "fp4_e2m1", 2.0),
    ],
)
def test_published_roundings(value, name, kept):
    assert store(value, name).stored == kept


def test_int8_under_127_is_not_lossless():
    # The same article: "if absmax is under 127, int8 loses nothing". True of whole numbers only.
    assert store(0.4, "int8").stored == 0
    assert store(100.6, "int8").error == pytest.approx(0.4)


def test_e4m3_overflow_stays_finite_here_and_is_no_infinity_anywhere():
    # torch 2.13 saturates on a CPU; other versions give NaN.
    assert decode(encode(1e9, "fp8_e4m3"), "fp8_e4m3") == 448
    there = torch.tensor(1e9).to(torch.float8_e4m3fn).float().item()
    assert there == 448 or math.isnan(there)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@given(value=st.floats(-60000, 60000, width=16))
@settings(max_examples=100, deadline=None)
def test_neighbours_are_torch_nextafter(name, value):
    x = torch.tensor(value, dtype=torch_dtype(name))
    code = encode(x.item(), name)
    down = torch.nextafter(x, torch.tensor(-math.inf, dtype=x.dtype)).item()
    up = torch.nextafter(x, torch.tensor(math.inf, dtype=x.dtype)).item()
    assert neighbours(code, name) == (down, up)


def test_the_ends_have_one_neighbour():
    assert neighbours(encode(math.inf, "bf16"), "bf16") == (FORMATS["bf16"].max, None)
    assert neighbours(encode(-128, "int8"), "int8") == (None, -127)
    assert neighbours(encode(1.0, "nf4"), "nf4") == (0.7229568362236023, None)
    assert neighbours(encode(448, "fp8_e4m3"), "fp8_e4m3") == (416, None)


def test_nan_has_no_neighbours_and_no_place_in_integers():
    assert neighbours(encode(math.nan, "fp16"), "fp16") == (None, None)
    with pytest.raises(ValueError, match="int8 has no pattern for NaN"):
        encode(math.nan, "int8")


def test_minus_zero_keeps_its_sign():
    assert f"{encode(-0.0, 'fp16'):016b}" == "1" + "0" * 15


def test_flipping_the_sign_bit_negates():
    assert decode(flip_bit(encode(1.5, "bf16"), 0, "bf16"), "bf16") == -1.5


@given(code=st.integers(0, 2**16 - 1), position=st.integers(0, 15))
def test_flipping_a_bit_twice_gives_it_back(code, position):
    assert flip_bit(flip_bit(code, position, "bf16"), position, "bf16") == code


@pytest.mark.parametrize("call", [lambda: decode(2**16, "fp16"), lambda: flip_bit(0, 16, "fp16")])
def test_bits_that_do_not_exist_are_refused(call):
    with pytest.raises(ValueError, match="expected 0 to"):
        call()


@pytest.mark.parametrize("name", [*SMALL, "nf4", "int8", "int4", "fp4_e2m1"])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0.3, 0.7), (-1e30, 1e30), (2, 2)])
def test_count_between_is_what_counting_gives(name, low, high):
    values = {decode(code, name) for code in range(2 ** FORMATS[name].bits)}
    assert count_between(low, high, name) == sum(low <= v < high for v in values if math.isfinite(v))


def test_a_stored_number_shows_its_fields_and_error():
    kept = store(257, "bf16")
    assert kept.fields == ("0", "10000111", "0000000")
    assert (kept.error, kept.below, kept.above) == (-1, 255, 258)
    assert kept.relative_error == pytest.approx(1 / 257)
    assert "<code>0 10000111 0000000</code>" in kept._repr_html_()
