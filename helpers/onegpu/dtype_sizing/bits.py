"""Any number to its bits and back, in every format, and what the rounding costs.

``encode`` and ``decode`` read the layout off ``NumberFormat``; Python's own floats (fp64) carry the values, which hold
every number of every other format exactly.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from onegpu.dtype_sizing.formats import NumberFormat, number_format


def decode(code: int, fmt: str | NumberFormat) -> float:
    """Turn a bit pattern into the number it stands for.

    For formats with a shared scale (nf4, mxfp4...) the scale is taken as 1.

    Raises
    ------
    ValueError
        If the pattern has more bits than the format.

    Examples
    --------
    >>> decode(0b0_01111_0000000000, "fp16"), decode(0b1_10000_1000000000, "fp16"), decode(12, "nf4")
    (1.0, -3.0, 0.44070982933044434)
    """
    fmt = number_format(fmt)
    if not 0 <= code < 2**fmt.bits:
        raise ValueError(f"code {code} doesn't fit {fmt.name}: expected 0 to {2**fmt.bits - 1}")
    if fmt.kind == "codebook":
        return fmt.levels[code]
    if fmt.kind == "integer":
        return float(code - 2**fmt.bits if code >> (fmt.bits - 1) else code)
    magnitude = code & (2 ** (fmt.bits - 1) - 1)
    sign = -1.0 if code >> (fmt.bits - 1) else 1.0
    exponent, mantissa = magnitude >> fmt.mantissa_bits, magnitude & (2**fmt.mantissa_bits - 1)
    if magnitude > fmt.max_code:
        infinite = fmt.specials == "ieee" and mantissa == 0
        return sign * math.inf if infinite else math.nan
    if exponent == 0:  # subnormal: no hidden one
        return sign * math.ldexp(mantissa, fmt.min_exponent - fmt.mantissa_bits)
    return sign * math.ldexp(2**fmt.mantissa_bits + mantissa, exponent - fmt.bias - fmt.mantissa_bits)


def encode(value: float, fmt: str | NumberFormat) -> int:
    """Round a number to the nearest one of a format (ties to the even pattern) and return its bits.

    Too large: infinity where the format has one; the largest number where it hasn't (integers, tables, e4m3, e2m1).
    Libraries disagree about e4m3 overflow, so don't rely on it. Tables take the lower of two equally near levels,
    as bitsandbytes does.

    Raises
    ------
    ValueError
        For NaN in a format that has none.

    Examples
    --------
    >>> f"{encode(1.0, 'bf16'):016b}"
    '0011111110000000'
    >>> decode(encode(65519.99, "fp16"), "fp16"), decode(encode(65520, "fp16"), "fp16")
    (65504.0, inf)
    """
    fmt = number_format(fmt)
    value = float(value)
    if math.isnan(value) and fmt.specials == "none":
        raise ValueError(f"{fmt.name} has no pattern for NaN: all {2**fmt.bits} of them are numbers")
    if fmt.kind == "codebook":
        return _nearest_level(value, fmt)
    if fmt.kind == "integer":
        return round(min(max(value, fmt.min), fmt.max)) % 2**fmt.bits
    sign_bit = (1 << (fmt.bits - 1)) if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        # IEEE: a quiet NaN, the mantissa's top bit set; e4m3fn has one pattern, all ones.
        return sign_bit | (
            fmt.max_code + (1 if fmt.specials == "nan only" else 1 + 2 ** (fmt.mantissa_bits - 1))
        )
    return sign_bit | _encode_magnitude(abs(value), fmt)


def _encode_magnitude(value: float, fmt: NumberFormat) -> int:
    overflow = fmt.max_code + (1 if fmt.specials == "ieee" else 0)
    if math.isinf(value):
        return overflow
    exponent = max(math.frexp(value)[1] - 1, fmt.min_exponent) if value else fmt.min_exponent
    # How many of the smallest steps at this size; a carry into the next exponent comes out right by itself.
    steps = round(math.ldexp(value, fmt.mantissa_bits - exponent))
    code = ((exponent - fmt.min_exponent) << fmt.mantissa_bits) + steps
    return min(code, overflow)


def _nearest_level(value: float, fmt: NumberFormat) -> int:
    # Zero appears twice in fp4, as +0 and -0; the positive one, which comes first in code order, is used.
    order = sorted({level: code for code, level in reversed(list(enumerate(fmt.levels)))}.items())
    levels = [level for level, _ in order]
    above = bisect.bisect_left(levels, value)
    if above == 0 or (above < len(levels) and levels[above] - value < value - levels[above - 1]):
        return order[above][1]
    return order[above - 1][1]


def neighbours(code: int, fmt: str | NumberFormat) -> tuple[float | None, float | None]:
    """The next smaller and next larger number of the format; None where there is none (infinity counts as one).

    Examples
    --------
    >>> neighbours(encode(1.0, "bf16"), "bf16")
    (0.99609375, 1.0078125)
    >>> neighbours(encode(127, "int8"), "int8")
    (126.0, None)
    """
    fmt = number_format(fmt)
    value = decode(code, fmt)
    if math.isnan(value):
        return None, None
    if fmt.kind == "codebook":
        levels = sorted(set(fmt.levels))
        place = levels.index(value)
        below = levels[place - 1] if place else None
        above = levels[place + 1] if place + 1 < len(levels) else None
        return below, above
    if fmt.kind == "integer":
        return (value - 1 if value > fmt.min else None), (value + 1 if value < fmt.max else None)
    # Signed magnitudes order floats like integers: ... -2, -1, 0, 1, 2 ... smallest steps.
    magnitude = code & (2 ** (fmt.bits - 1) - 1)
    place = -magnitude if code >> (fmt.bits - 1) else magnitude
    largest = fmt.max_code + (1 if fmt.specials == "ieee" else 0)

    def at(place: int) -> float | None:
        if abs(place) > largest:
            return None
        return decode(abs(place) | ((1 << (fmt.bits - 1)) if place < 0 else 0), fmt)

    return at(place - 1), at(place + 1)


@dataclass(frozen=True)
class Stored:
    """A number as a format stores it.

    Attributes
    ----------
    given, stored
        The number put in, and the one that comes out.
    code
        The bit pattern as an integer.
    below, above
        The format's neighbours of ``stored``; None at the ends.
    format
        The format.
    """

    given: float
    stored: float
    code: int
    below: float | None
    above: float | None
    format: NumberFormat

    @property
    def error(self) -> float:
        """``stored - given``."""
        return 0.0 if self.stored == self.given else self.stored - self.given

    @property
    def relative_error(self) -> float:
        """``|error| / |given|``; 0 where nothing was lost."""
        if self.error == 0:
            return 0.0
        return abs(self.error / self.given) if self.given else math.inf

    @property
    def fields(self) -> tuple[str, str, str]:
        """Sign, exponent and mantissa bits as strings (an index is all mantissa)."""
        fmt, bits = self.format, f"{self.code:0{self.format.bits}b}"
        cut = fmt.sign_bits + fmt.exponent_bits
        return bits[: fmt.sign_bits], bits[fmt.sign_bits : cut], bits[cut:]

    @property
    def bits(self) -> str:
        """The bit pattern, its fields set apart by spaces."""
        return " ".join(part for part in self.fields if part)

    def __str__(self) -> str:
        lost = "exact" if self.error == 0 else f"error {self.error:+.3g} ({self.relative_error:.2g} relative)"
        return f"{self.given!r} in {self.format.name}: {self.bits} = {self.stored!r}, {lost}"

    def _repr_html_(self) -> str:
        from html import escape

        rows = [
            ("bits", f"<code>{self.bits}</code>"),
            ("stored", repr(self.stored)),
            ("error", f"{self.error:+.6g} ({self.relative_error:.2g} relative)"),
            ("neighbours", f"{self.below!r} and {self.above!r}"),
        ]
        body = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in rows)
        return f"<table><caption>{escape(repr(self.given))} in {self.format.name}</caption>{body}</table>"


def store(value: float, fmt: str | NumberFormat) -> Stored:
    """Put a number into a format and look at what is kept.

    Examples
    --------
    >>> print(store(257, "bf16"))
    257 in bf16: 0 10000111 0000000 = 256.0, error -1 (0.0039 relative)
    >>> store(0.1, "fp32").stored
    0.10000000149011612
    """
    fmt = number_format(fmt)
    code = encode(value, fmt)
    return Stored(value, decode(code, fmt), code, *neighbours(code, fmt), fmt)


def flip_bit(code: int, position: int, fmt: str | NumberFormat) -> int:
    """Flip one bit, position 0 being the leftmost (the sign).

    Examples
    --------
    >>> decode(flip_bit(encode(1.0, "fp16"), 1, "fp16"), "fp16")  # the exponent's top bit
    inf
    """
    fmt = number_format(fmt)
    if not 0 <= position < fmt.bits:
        raise ValueError(f"bit {position} of {fmt.name}: expected 0 to {fmt.bits - 1}")
    return code ^ (1 << (fmt.bits - 1 - position))


def count_between(low: float, high: float, fmt: str | NumberFormat) -> int:
    """How many numbers of a format lie in ``[low, high)``.

    Examples
    --------
    >>> [count_between(low, 2 * low, "fp16") for low in (0.25, 0.5, 1.0, 1024.0)]
    [1024, 1024, 1024, 1024]
    """
    fmt = number_format(fmt)
    if not low <= high:
        raise ValueError(f"low {low}, high {high}: expected low <= high")
    if fmt.kind == "codebook":
        return sum(low <= level < high for level in set(fmt.levels))
    if fmt.kind == "integer":
        first, end = max(math.ceil(low), int(fmt.min)), min(math.ceil(high), int(fmt.max) + 1)
        return max(0, end - first)
    return max(0, _place_at_or_above(high, fmt) - _place_at_or_above(low, fmt))


def _place_at_or_above(value: float, fmt: NumberFormat) -> int:
    """The place (0 for zero, counting numbers upward) of the first finite number >= value; past the last if none."""
    if value > fmt.max:
        return fmt.max_code + 1
    if value <= fmt.min:
        return -fmt.max_code
    code = encode(value, fmt)
    magnitude = code & (2 ** (fmt.bits - 1) - 1)
    place = -magnitude if code >> (fmt.bits - 1) else magnitude
    return place + 1 if decode(code, fmt) < value else place
