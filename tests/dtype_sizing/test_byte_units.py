"""One pair of functions for bytes in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegpu.dtype_sizing import UNITS, format_bytes, parse_bytes


def test_16_gb_are_14_9_gib():
    # gpt4all#1685
    assert format_bytes(parse_bytes("16 GB"), "GiB") == "14.90 GiB"


def test_83_gb_fit_on_an_80_gib_card():
    # torchtune#1346: "83 GB used on an 80 GB card" were 77 GiB
    assert format_bytes(83 * 10**9, "GiB", digits=0) == "77 GiB"


def test_a_billion_bf16_parameters_are_two_gb_and_1_86_gib():
    # The article divides 2e9 by 1024 three times and calls the 1.86 "GB".
    assert (format_bytes(2 * 10**9, "GB"), format_bytes(2 * 10**9)) == ("2.00 GB", "1.86 GiB")


def test_a_gib_is_1_073741824_gb():
    assert format_bytes(parse_bytes("1 GiB"), "GB", digits=9) == "1.073741824 GB"
    assert format_bytes(parse_bytes("1 GB"), "GiB", digits=12) == "0.931322574615 GiB"


@pytest.mark.parametrize(
    "text", ["8 Gb", "8Gbit", "8 Gib", "8 Mbps", "8 b", "8 bits", "8 gb", "8 kb", "8 Gibit"]
)
def test_bits_are_refused(text):
    with pytest.raises(ValueError, match=r"counts bits, expected bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["8G", "8 g", "8 M", "8 gB", "8GIB"])
def test_what_could_be_either_is_refused(text):
    with pytest.raises(ValueError, match=r"1000s.*1024s|doesn't say"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("8", "no unit"), ("8 bananas", "unknown unit"), ("", "a number and a unit"), ("-1 GB", "a number"),
     ("1.5.2 GB", "a number"), ("1,5 GB", "Write 1.5 GB"), ("12,34,567 B", "Write 1234567 B"), ("1,5000 MiB", "thousands"),
     (-1, "zero or more"), (1.5, "whole number"), (True, "whole number")],
)  # fmt: skip
def test_other_nonsense_is_refused_saying_why(text, why):
    with pytest.raises(ValueError, match=why):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("14.75 GiB", 15_837_691_904), ("16GB", 16 * 10**9), ("512 MiB", 2**29), ("1 KB", 1000), ("3 bytes", 3),
     ("1,024 KiB", 2**20), ("1,234,567.5 kB", 1_234_567_500), (".5 KiB", 512), ("0.1 GiB", 107_374_182), (7, 7)],
)  # fmt: skip
def test_sizes_are_read(text, count):
    assert parse_bytes(text) == count


def test_printing_in_bits_is_refused():
    with pytest.raises(ValueError, match="counts bits"):
        format_bytes(1, "Gb")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.00 KiB"), (2**20 - 1, "1.00 MiB"), (-(2**30), "-1.00 GiB"),
     (2**70, "1,048,576.00 PiB")],
)  # fmt: skip
def test_the_unit_is_the_largest_that_leaves_one(count, text):
    assert format_bytes(count) == text


@given(count=st.integers(0, 2**70), unit=st.sampled_from(sorted(UNITS)))
def test_reading_what_was_printed_is_off_by_half_a_printed_digit_at_most(count, unit):
    printed = format_bytes(count, unit, digits=3)
    assert abs(parse_bytes(printed) - count) <= UNITS[unit] / 2000 + 1


@given(st.integers(0, 2**70))
def test_whole_bytes_come_back_exactly(count):
    assert parse_bytes(format_bytes(count, "B")) == count
