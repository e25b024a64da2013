"""The number formats of deep learning, as data: how many bits, what they mean, what follows from that.

A floating-point format is three small integers (sign, exponent and mantissa bits) and a rule for its top exponent.
Everything else, the largest value, the smallest, the spacing, is computed from them here and compared with
torch.finfo in the tests. Formats that share a scale in a block of values (NF4, MXFP4, NVFP4) cost more than their
elements: 4-bit weights take 4.127 to 4.5 bits each.

Sources: IEEE 754-2019; OCP 8-bit Floating Point (OFP8) 1.0; OCP Microscaling Formats (MX) 1.0; QLoRA, arXiv
2305.14314 (NF4, double quantization).
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist


@dataclass(frozen=True)
class NumberFormat:
    """One number format.

    Attributes
    ----------
    name
        As this course writes it ("bf16", "nf4").
    kind
        "float" (sign, exponent, mantissa), "integer" (two's complement) or "codebook" (a table of levels, times
        a scale).
    sign_bits, exponent_bits, mantissa_bits
        The layout. An integer has its value bits in ``mantissa_bits``; a codebook has the bits of its index there.
    specials
        What the highest exponent means in a float: "ieee" (infinity and NaN), "nan only" (one NaN pattern, no
        infinity: e4m3fn) or "none" (all patterns are numbers: e2m1).
    storage_bits
        Bits one element takes in memory: 32 for tf32, of which 19 are used.
    block_size
        Values that share a scale; 0 where there is none.
    scale_bits
        Bits of scale for each block, second-level scales included, as an exact fraction.
    torch_name
        Name of the torch dtype, None where torch has none for single values.
    note
        One line for tables.
    """

    name: str
    kind: str
    sign_bits: int
    exponent_bits: int
    mantissa_bits: int
    specials: str = "none"
    storage_bits: int = 0
    block_size: int = 0
    scale_bits: Fraction = Fraction(0)
    torch_name: str | None = None
    note: str = ""

    @property
    def bits(self) -> int:
        """Bits of one element's pattern, without its share of a scale."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def bits_per_value(self) -> Fraction:
        """Bits a value takes in memory, its share of the scales included, exactly."""
        shared = self.scale_bits / self.block_size if self.block_size else Fraction(0)
        return (self.storage_bits or self.bits) + shared

    @property
    def bytes_per_value(self) -> float:
        """The same in bytes, as a float."""
        return float(self.bits_per_value / 8)

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field (floats)."""
        return 2 ** (self.exponent_bits - 1) - 1 if self.kind == "float" else 0

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number (floats)."""
        return 1 - self.bias

    @property
    def max_code(self) -> int:
        """The bit pattern of the largest finite number."""
        if self.kind == "integer":
            return 2**self.mantissa_bits - 1
        if self.kind == "codebook":
            return max(range(2**self.bits), key=self.levels.__getitem__)
        top = 2 ** (self.exponent_bits + self.mantissa_bits) - 1  # all ones
        return {"none": top, "nan only": top - 1, "ieee": top - 2**self.mantissa_bits}[self.specials]

    @property
    def max(self) -> float:
        """The largest finite number; for a block format, in units of the scale."""
        from onegpu.dtype_sizing.bits import decode

        return decode(self.max_code, self)

    @property
    def min(self) -> float:
        """The most negative finite number."""
        if self.kind == "integer":
            return float(-(2**self.mantissa_bits))
        return min(self.levels) if self.kind == "codebook" else -self.max

    @property
    def smallest_normal(self) -> float | None:
        """The smallest number with full precision; None for integers and tables."""
        return math.ldexp(1.0, self.min_exponent) if self.kind == "float" else None

    @property
    def smallest_subnormal(self) -> float | None:
        """The smallest number above zero; None for integers and tables."""
        if self.kind != "float":
            return None
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float | None:
        """The gap from 1 to the next number; None for tables."""
        if self.kind == "codebook":
            return None
        return math.ldexp(1.0, -self.mantissa_bits) if self.kind == "float" else 1.0

    @property
    def levels(self) -> tuple[float, ...]:
        """A table format's values in code order, in units of the scale."""
        if self.kind != "codebook":
            raise ValueError(f"{self.name} is no table of levels, its kind is {self.kind!r}")
        return nf4_codebook() if self.name.startswith("nf4") else fp4_codebook()

    def storage_bytes(self, count: int) -> int:
        """Bytes that ``count`` values take as one tensor, scales included, partial bytes and blocks rounded up.

        Of double quantization's scales the second level is counted too; per-tensor constants (an offset, the code
        tables) are not: they don't grow with the tensor.

        Examples
        --------
        >>> FORMATS["bf16"].storage_bytes(1_000_000_000)
        2000000000
        >>> FORMATS["nf4"].storage_bytes(6_476_005_376)  # Llama-2-7b's linear layers
        3642753024
        """
        if count < 0:
            raise ValueError(f"{count} values: expected zero or more")
        data = -(-count * (self.storage_bits or self.bits) // 8)
        if not self.block_size:
            return data
        blocks = -(-count // self.block_size)
        if self.name == "nf4-dq":  # one byte a block, and one fp32 for every 256 of those
            return data + blocks + 4 * -(-blocks // NF4_SECOND_BLOCK)
        return data + math.ceil(blocks * self.scale_bits / 8)

    def __str__(self) -> str:
        layout = f"{self.sign_bits} sign, {self.exponent_bits} exponent, {self.mantissa_bits} mantissa bits"
        if self.kind == "codebook":
            layout = f"table of {2**self.bits} levels"
        elif self.kind == "integer":
            layout = f"{self.bits}-bit two's complement"
        return f"{self.name}: {layout}, {float(self.bits_per_value):g} bits a value, largest {self.max:g}"


NF4_BLOCK = 64
NF4_SECOND_BLOCK = 256
NF4_OFFSET = 0.9677083  # bitsandbytes' create_normal_map: the outermost quantile


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


@functools.cache
def nf4_codebook() -> tuple[float, ...]:
    """Build NF4's 16 levels from their definition: quantiles of the normal distribution, divided by the largest.

    Eight positive levels from 9 equally spaced probabilities between 0.9677083 and 0.5 (0.5 itself, which is level
    0, left out), seven negative ones from 8, and zero. So zero is a level, and so are -1 and 1, and between them
    the levels are closest together where normally distributed weights are most frequent.

    Returns
    -------
    tuple of 16 floats
        Ascending, each exactly representable in fp32: bitsandbytes' table to the bit.

    Examples
    --------
    >>> [round(level, 4) for level in nf4_codebook()[:8]]
    [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
    """
    # The reference takes its probabilities from an fp32 linspace; double precision would differ in the last digits.
    positive = [_quantile(p) for p in _float32_linspace(NF4_OFFSET, 0.5, 9)[:-1]]
    negative = [-_quantile(p) for p in _float32_linspace(NF4_OFFSET, 0.5, 8)[:-1]]
    levels = sorted([*negative, 0.0, *positive])
    return tuple(_float32(level / positive[0]) for level in levels)


def _float32_linspace(start: float, stop: float, count: int) -> list[float]:
    step = _float32((_float32(stop) - _float32(start)) / (count - 1))
    forward = [_float32(_float32(start) + _float32(step * i)) for i in range(count)]
    backward = [_float32(_float32(stop) - _float32(step * (count - 1 - i))) for i in range(count)]
    return forward[: count // 2] + backward[count // 2 :]  # torch fills from both ends


def _quantile(probability: float) -> float:
    return _float32(NormalDist().inv_cdf(probability))


@functools.cache
def fp4_codebook() -> tuple[float, ...]:
    """bitsandbytes' FP4: a sign and three bits whose eight values, divided by 12, reach from 0 to 1.

    The three bits read 0, 1/16, 8, 12, 4, 6, 2, 3 in code order; this is not the E2M1 of MXFP4 and NVFP4.

    Examples
    --------
    >>> [round(12 * level, 4) for level in fp4_codebook()[:8]]
    [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0]
    """
    magnitudes = [_float32(value / 12) for value in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
    return tuple(magnitudes + [-value for value in magnitudes])


_FORMATS = (
    NumberFormat("fp64", "float", 1, 11, 52, "ieee", torch_name="float64", note="double precision"),
    NumberFormat("fp32", "float", 1, 8, 23, "ieee", torch_name="float32", note="single precision, the default"),
    NumberFormat("tf32", "float", 1, 8, 10, "ieee", storage_bits=32,
                 note="how Ampere and later multiply fp32 matrices; stored as fp32"),
    NumberFormat("fp16", "float", 1, 5, 10, "ieee", torch_name="float16", note="half precision; small range"),
    NumberFormat("bf16", "float", 1, 8, 7, "ieee", torch_name="bfloat16", note="fp32's range, 3 digits"),
    NumberFormat("fp8_e4m3", "float", 1, 4, 3, "nan only", torch_name="float8_e4m3fn", note="no infinity"),
    NumberFormat("fp8_e5m2", "float", 1, 5, 2, "ieee", torch_name="float8_e5m2", note="fp16's range"),
    NumberFormat("fp4_e2m1", "float", 1, 2, 1, note="the element of mxfp4 and nvfp4"),
    NumberFormat("int8", "integer", 1, 0, 7, torch_name="int8", note="needs a scale to hold weights"),
    NumberFormat("int4", "integer", 1, 0, 3, note="two to a byte, scale not counted"),
    NumberFormat("nf4", "codebook", 0, 0, 4, block_size=NF4_BLOCK, scale_bits=Fraction(32),
                 note="an fp32 absmax for every 64 values"),
    NumberFormat("nf4-dq", "codebook", 0, 0, 4, block_size=NF4_BLOCK,
                 scale_bits=8 + Fraction(32, NF4_SECOND_BLOCK), note="double quantization: absmax in 8 bits"),
    NumberFormat("fp4", "codebook", 0, 0, 4, block_size=NF4_BLOCK, scale_bits=Fraction(32),
                 note="bitsandbytes' default 4-bit table"),
    NumberFormat("mxfp4", "float", 1, 2, 1, block_size=32, scale_bits=Fraction(8),
                 note="e2m1 and a power-of-two scale (e8m0) for every 32 values"),
    NumberFormat("nvfp4", "float", 1, 2, 1, block_size=16, scale_bits=Fraction(8),
                 note="e2m1 and an e4m3 scale for every 16 values"),
)  # fmt: skip

FORMATS: dict[str, NumberFormat] = {fmt.name: fmt for fmt in _FORMATS}
"""All formats by name, widest first."""

_ALIASES = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16",
    "bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3", "float8_e4m3": "fp8_e4m3", "e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2", "e5m2": "fp8_e5m2", "e2m1": "fp4_e2m1", "nf4+dq": "nf4-dq", "nf4_dq": "nf4-dq",
}  # fmt: skip


def number_format(name) -> NumberFormat:
    """Find a format by this course's name, torch's, or the torch dtype itself.

    Examples
    --------
    >>> number_format("bfloat16").name, number_format("torch.float16").bits
    ('bf16', 16)
    """
    if isinstance(name, NumberFormat):
        return name
    text = str(name).removeprefix("torch.").lower()
    text = _ALIASES.get(text, text)
    if text not in FORMATS:
        raise ValueError(f"unknown number format {name!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[text]
