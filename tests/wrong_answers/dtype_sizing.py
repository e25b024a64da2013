"""What people hand in for the exercises of lab 03."""

import math
import struct

import torch
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 3.1 ------------------------------------------------------------------------------------------------------------------


def fields(bits, e):
    return int(bits[0]), int(bits[1 : 1 + e], 2), int(bits[1 + e :], 2), len(bits) - 1 - e


def ieee(bits, e, *, bias=None, hidden=1.0, signed=True, subnormal=True, top=True, nan=True):
    """The right rule, with one part of it wrong."""
    sign, exponent, mantissa, m = fields(bits, e)
    bias = 2 ** (e - 1) - 1 if bias is None else bias
    factor = -1.0 if sign and signed else 1.0
    if top and exponent == 2**e - 1:
        return math.nan if mantissa and nan else factor * math.inf
    if exponent == 0 and subnormal:
        return factor * mantissa / 2**m * 2.0 ** (1 - bias)
    return factor * (hidden + mantissa / 2**m) * 2.0 ** (exponent - bias)


@wrong("3.1", "forgets the sign", case="minus three in fp16", says="negative")
def no_sign(bits, exponent_bits):
    return ieee(bits, exponent_bits, signed=False)


@wrong("3.1", "no hidden one", case="minus three in fp16", says="hidden one before the point")
def no_hidden(bits, exponent_bits):
    return ieee(bits, exponent_bits, hidden=0.0)


@wrong("3.1", "bias 2^(e-1)", case="minus three in fp16", says="15, not 16")
def bias_16(bits, exponent_bits):
    return ieee(bits, exponent_bits, bias=2 ** (exponent_bits - 1))


@wrong("3.1", "no bias", case="minus three in fp16", says="stored with a bias")
def no_bias(bits, exponent_bits):
    return ieee(bits, exponent_bits, bias=0)


@wrong("3.1", "mantissa as a whole number", case="minus three in fp16", says="is a fraction")
def whole_mantissa(bits, exponent_bits):
    sign, exponent, mantissa, _ = fields(bits, exponent_bits)
    return (-1.0) ** sign * (1 + mantissa) * 2.0 ** (exponent - 2 ** (exponent_bits - 1) + 1)


@wrong("3.1", "always five exponent bits", case="bf16 has 8 exponent bits", says="not fixed ones")
def fixed(bits, exponent_bits):
    return ieee(bits, 5)


@wrong("3.1", "zero is the smallest normal number", case="zero", says="no hidden one")
def no_subnormal(bits, exponent_bits):
    return ieee(bits, exponent_bits, subnormal=False)


@wrong(
    "3.1",
    "flushes subnormals",
    case="the smallest number above zero in fp16",
    says="fill the gap around zero",
)
def flushed(bits, exponent_bits):
    value = ieee(bits, exponent_bits)
    return 0.0 if abs(value) < 2.0 ** (2 - 2 ** (exponent_bits - 1)) else value


@wrong(
    "3.1", "subnormal exponent -bias", case="the smallest number above zero in fp16", says="exponent 1 - bias"
)
def half_subnormal(bits, exponent_bits):
    return ieee(bits, exponent_bits) / (1 if int(bits[1 : 1 + exponent_bits], 2) else 2)


@wrong(
    "3.1", "a hidden one in subnormals", case="the smallest number above zero in fp16", says="no hidden one"
)
def hidden_subnormal(bits, exponent_bits):
    return 0.0 if int(bits, 2) == 0 else ieee(bits, exponent_bits, subnormal=False)


@wrong("3.1", "no infinity", case="infinity", says="kept for infinity and NaN")
def no_infinity(bits, exponent_bits):
    return ieee(bits, exponent_bits, top=False)


@wrong("3.1", "infinity for NaN", case="not a number", says="Infinity has mantissa 0")
def no_nan(bits, exponent_bits):
    return ieee(bits, exponent_bits, nan=False)


@right("3.1", "by parts")
def by_parts(bits, exponent_bits):
    return ieee(bits, exponent_bits)


@wrong("3.1", "let fp32 or fp16 decode it", case="8 bits, 4 of them exponent", says="bias follows")
def by_struct(bits, exponent_bits):
    number = int(bits, 2)
    if exponent_bits == 8:
        return struct.unpack("<f", struct.pack("<I", number << 16))[0]
    return struct.unpack("<e", struct.pack("<H", number))[0]


@wrong("3.1", "let torch decode it", case="8 bits, 4 of them exponent", says="bias follows")
def by_torch(bits, exponent_bits):
    dtype = torch.bfloat16 if exponent_bits == 8 else torch.float16
    return torch.tensor([int(bits, 2)], dtype=torch.uint16).view(dtype).item()


# 3.2 ------------------------------------------------------------------------------------------------------------------


@wrong("3.2", "mantissa of two", case="fp16", says="not 2")
def round_power(exponent_bits, mantissa_bits):
    return 2.0**2 ** (exponent_bits - 1)


@wrong("3.2", "uses infinity's exponent", case="fp16", says="go one lower")
def too_high(exponent_bits, mantissa_bits):
    return (2 - 2.0**-mantissa_bits) * 2.0**2 ** (exponent_bits - 1)


@wrong("3.2", "exponent one too low", case="fp16", says="the bias itself")
def too_low(exponent_bits, mantissa_bits):
    return (2 - 2.0**-mantissa_bits) * 2.0 ** (2 ** (exponent_bits - 1) - 2)


@wrong("3.2", "mantissa 0", case="fp16", says="all mantissa bits one")
def mantissa_zero(exponent_bits, mantissa_bits):
    return 2.0 ** (2 ** (exponent_bits - 1) - 1)


@wrong("3.2", "one mantissa bit short", case="fp16", says="2 - 2^-10")
def bit_short(exponent_bits, mantissa_bits):
    return (2 - 2.0 ** (1 - mantissa_bits)) * 2.0 ** (2 ** (exponent_bits - 1) - 1)


@wrong("3.2", "always fp16", case="fp32", says="about 3.4e38")
def always_fp16(exponent_bits, mantissa_bits):
    return 65504.0


@wrong("3.2", "looks the formats up", case="fp8 e5m2", says="2 mantissa bits")
def by_name(exponent_bits, mantissa_bits):
    dtype = {(5, 10): torch.float16, (8, 23): torch.float32, (8, 7): torch.bfloat16}.get(
        (exponent_bits, mantissa_bits)
    )
    return torch.finfo(dtype or torch.float16).max


@right("3.2", "the formula")
def formula(exponent_bits, mantissa_bits):
    return (2 - 2.0**-mantissa_bits) * 2.0 ** (2 ** (exponent_bits - 1) - 1)


@right("3.2", "as a whole number")
def whole(exponent_bits, mantissa_bits):
    return float((2 ** (mantissa_bits + 1) - 1) << (2 ** (exponent_bits - 1) - 1 - mantissa_bits))


@right("3.2", "with ldexp")
def by_ldexp(exponent_bits, mantissa_bits):
    top = 2 ** (exponent_bits - 1) - 1
    return math.ldexp(1, top + 1) - math.ldexp(1, top - mantissa_bits)


# 3.3 ------------------------------------------------------------------------------------------------------------------


def spacing(x, mantissa_bits):
    return 2.0 ** (math.floor(math.log2(abs(x))) - mantissa_bits)


@wrong("3.3", "ties away from zero", case="257 in bf16", says="even mantissa, which is 256")
def ties_up(x, mantissa_bits):
    if x == 0:
        return 0.0
    step = spacing(x, mantissa_bits)
    return math.copysign(math.floor(abs(x) / step + 0.5) * step, x)


@wrong("3.3", "one bit too many", case="1.003 in bf16", says="one mantissa bit more")
def one_more(x, mantissa_bits):
    return round_half_even(x, mantissa_bits + 1)


@wrong("3.3", "cuts off", case="259 in bf16", says="Cut off")
def cut(x, mantissa_bits):
    if x == 0:
        return 0.0
    step = spacing(x, mantissa_bits)
    return math.trunc(x / step) * step


@wrong("3.3", "rounds up", case="1.003 in bf16", says="Rounded up")
def up(x, mantissa_bits):
    if x == 0:
        return 0.0
    step = spacing(x, mantissa_bits)
    return math.ceil(x / step) * step


@wrong("3.3", "whole numbers only", case="1.003 in bf16", says="own power of two")
def large_only(x, mantissa_bits):
    return x if 0 < abs(x) < 2 else round_half_even(x, mantissa_bits)


@wrong("3.3", "absolute spacing below one", case="a small number", says="shrinks with the number")
def absolute(x, mantissa_bits):
    return round(x * 2**mantissa_bits) / 2**mantissa_bits if abs(x) < 1 else round_half_even(x, mantissa_bits)


@wrong("3.3", "adds half and floors negatives", case="a negative number", says="negative or not")
def floor_negative(x, mantissa_bits):
    if x >= 0:
        return round_half_even(x, mantissa_bits)
    step = spacing(x, mantissa_bits)
    return math.floor(x / step + 0.5) * step


def round_half_even(x, mantissa_bits):
    if x == 0:
        return 0.0
    step = spacing(x, mantissa_bits)
    return round(x / step) * step


@right("3.3", "round() rounds half to even")
def by_round(x, mantissa_bits):
    return round_half_even(x, mantissa_bits)


@right("3.3", "with frexp")
def by_frexp(x, mantissa_bits):
    fraction, exponent = math.frexp(x)
    return round(fraction * 2 ** (mantissa_bits + 1)) / 2 ** (mantissa_bits + 1) * 2.0**exponent


@right("3.3", "in whole steps, with Decimal")
def with_decimal(x, mantissa_bits):
    from decimal import ROUND_HALF_EVEN, Decimal

    if x == 0:
        return 0.0
    step = Decimal(2) ** (math.frexp(x)[1] - 1 - mantissa_bits)
    return float((Decimal(x) / step).to_integral_value(ROUND_HALF_EVEN) * step)


# 3.4 ------------------------------------------------------------------------------------------------------------------


@wrong("3.4", "weights only", case="one layer", says="bias counts too")
def weights_only(model):
    return sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight"))


@wrong("3.4", "counts tensors", case="one layer", says="number of tensors")
def tensors(model):
    return len(list(model.parameters()))


@wrong("3.4", "counts bytes", case="one layer", says="bytes in fp32")
def in_bytes(model):
    return sum(p.nbytes for p in model.parameters())


@wrong("3.4", "state_dict lists tied weights twice", case="a tied output head", says="counted twice")
def state(model):
    return sum(value.numel() for value in model.state_dict().values())


@wrong("3.4", "matrices only", case="one layer", says="bias counts too")
def matrices(model):
    return sum(p.numel() for p in model.parameters() if p.dim() == 2)


@wrong("3.4", "buffers counted", case="a causal mask", says="a buffer")
def with_buffers(model):
    return sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in model.buffers())


@wrong("3.4", "trainable only", case="frozen weights", says="Frozen weights are parameters too")
def trainable(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@wrong("3.4", "every child once more", case="one layer used twice", says="counted twice")
def children(model):
    layers = list(model) if isinstance(model, torch.nn.Sequential) else [model]
    return sum(p.numel() for layer in layers for p in layer.parameters())


@right("3.4", "parameters() yields each once")
def plain(model):
    return sum(p.numel() for p in model.parameters())


@right("3.4", "by identity")
def by_identity(model):
    return sum(
        {id(p): p.numel() for m in model.modules() for p in m._parameters.values() if p is not None}.values()
    )


@right("3.4", "a loop")
def loop(model):
    total = 0
    for _, parameter in model.named_parameters():
        size = 1
        for length in parameter.shape:
            size *= length
        total += size
    return total


# 3.5 ------------------------------------------------------------------------------------------------------------------


@wrong("3.5", "bits for bytes", case="no scales", says="one byte")
def bits_as_bytes(linear, other, bits, blocksize, scale_bits):
    return linear * bits + -(-linear // blocksize) * scale_bits // 8 + 2 * other


@wrong("3.5", "others in one byte", case="no scales", says="two bytes each")
def one_byte(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + -(-linear // blocksize) * scale_bits // 8 + other


@wrong("3.5", "others forgotten", case="no scales", says="stay in 16 bits")
def only_linear(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + -(-linear // blocksize) * scale_bits // 8


@wrong("3.5", "no scales", case="NF4", says="4.5 bits")
def no_scales(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + 2 * other


@wrong("3.5", "a scale a weight", case="NF4", says="one scale a block")
def scale_each(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + linear * scale_bits // 8 + 2 * other


@wrong("3.5", "scale bits for bytes", case="NF4", says="are bits")
def scale_as_bytes(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + -(-linear // blocksize) * scale_bits + 2 * other


@wrong("3.5", "drops the last block", case="a started block", says="round up")
def floors_blocks(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + linear // blocksize * scale_bits // 8 + 2 * other


@wrong("3.5", "drops the last half byte", case="half a byte", says="round up")
def floors_bytes(linear, other, bits, blocksize, scale_bits):
    return linear * bits // 8 + -(-linear // blocksize) * scale_bits // 8 + 2 * other


@right("3.5", "with ceil")
def by_ceil(linear, other, bits, blocksize, scale_bits):
    blocks = math.ceil(linear / blocksize)
    return math.ceil(linear * bits / 8) + math.ceil(blocks * scale_bits / 8) + 2 * other


@right("3.5", "with divmod")
def by_divmod(linear, other, bits, blocksize, scale_bits):
    whole_blocks, rest = divmod(linear, blocksize)
    blocks = whole_blocks + (rest > 0)
    return (linear * bits + 7) // 8 + (blocks * scale_bits + 7) // 8 + other * 16 // 8


@right("3.5", "with helpers")
def by_helpers(linear, other, bits, blocksize, scale_bits):
    def up(a, b):
        return (a + b - 1) // b

    return up(linear * bits, 8) + up(up(linear, blocksize) * scale_bits, 8) + 2 * other


# 3.6 ------------------------------------------------------------------------------------------------------------------


@wrong("3.6", "GB for GiB", case="a T4", says="taken for 14.75 GB")
def decimal(sizes, memory_gib):
    return max((n for n, s in sizes.items() if s <= memory_gib * 1e9), key=sizes.get, default=None)


@wrong("3.6", "the largest, whether it fits or not", case="a T4", says="doesn't fit")
def no_limit(sizes, memory_gib):
    return max(sizes, key=sizes.get, default=None)


@wrong("3.6", "the smallest", case="a T4", says="the smallest of those")
def smallest(sizes, memory_gib):
    return min((n for n, s in sizes.items() if s <= memory_gib * 2**30), key=sizes.get, default=None)


@wrong("3.6", "cuts the GiB off", case="a T4", says="may be a fraction")
def whole_gib(sizes, memory_gib):
    return max((n for n, s in sizes.items() if s <= int(memory_gib) * 2**30), key=sizes.get, default=None)


@wrong("3.6", "the first that fits", case="a T4", says="the first that fits")
def first_fit(sizes, memory_gib):
    return next((n for n, s in sizes.items() if s <= memory_gib * 2**30), None)


@wrong("3.6", "bytes against GiB", case="a T4", says="bytes with bytes")
def units(sizes, memory_gib):
    return max((n for n, s in sizes.items() if s <= memory_gib), key=sizes.get, default=None)


@wrong("3.6", "strictly smaller", case="an exact fit", says="exactly as large")
def strict(sizes, memory_gib):
    return max((n for n, s in sizes.items() if s < memory_gib * 2**30), key=sizes.get, default=None)


@wrong("3.6", "the last that fits", case="a T4", says="wherever it stands")
def last(sizes, memory_gib):
    found = [n for n, s in sizes.items() if s <= memory_gib * 2**30]
    return found[-1] if found else None


@wrong("3.6", "empty text for nothing", case="nothing fits", says="return None")
def empty(sizes, memory_gib):
    return max((n for n, s in sizes.items() if s <= memory_gib * 2**30), key=sizes.get, default="")


@right("3.6", "a generator")
def by_generator(sizes, memory_gib):
    return max((n for n, s in sizes.items() if s <= memory_gib * 2**30), key=sizes.get, default=None)


@right("3.6", "sorted")
def by_sorting(sizes, memory_gib):
    for name in sorted(sizes, key=sizes.get, reverse=True):
        if sizes[name] / 2**30 <= memory_gib:
            return name
    return None


@right("3.6", "a loop")
def by_loop(sizes, memory_gib):
    best = None
    for name, size in sizes.items():
        if size <= memory_gib * 1024**3 and (best is None or size > sizes[best]):
            best = name
    return best


@wrong("3.1", "infinity without its sign", case="minus infinity", says="infinity has a sign")
def unsigned_infinity(bits, exponent_bits):
    sign = -1.0 if bits[0] == "1" else 1.0
    e, m = bits[1 : 1 + exponent_bits], bits[1 + exponent_bits :]
    bias, fraction = 2 ** (exponent_bits - 1) - 1, int(m, 2) / 2 ** len(m)
    if "0" not in e:
        return math.nan if fraction else math.inf
    if "1" not in e:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (int(e, 2) - bias)


@wrong("3.1", "subnormal numbers without their sign", case="just below zero", says="have a sign too")
def unsigned_subnormal(bits, exponent_bits):
    e, m = bits[1 : 1 + exponent_bits], bits[1 + exponent_bits :]
    if "1" not in e and "1" in m:
        return int(m, 2) / 2 ** len(m) * 2.0 ** (2 - 2 ** (exponent_bits - 1))
    sign = -1.0 if bits[0] == "1" else 1.0
    if "0" not in e:
        return math.nan if "1" in m else sign * math.inf
    return (
        sign * (1 + int(m, 2) / 2 ** len(m)) * 2.0 ** (int(e, 2) - 2 ** (exponent_bits - 1) + 1) * ("1" in e)
    )


@wrong("3.5", "a byte for each scale", case="scales that don't fill a byte", says="Scales are packed")
def byte_each(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + -(-linear // blocksize) * -(-scale_bits // 8) + 2 * other


ANSWERS.equivalent("3.1", "a bit has no white space", "bits[0] -> bits[0].strip()")
ANSWERS.equivalent(
    "3.6",
    "names are the keys of a dictionary: none comes twice, and an empty one is no model",
    "[name for name in sizes if sizes[name] <= memory_gib * 2 ** 30] -> "
    "{name for name in sizes if sizes[name] <= memory_gib * 2 ** 30}",
    "(… for name in sizes if sizes[name] <= memory_gib * 2 ** 30) -> "
    "(… for name in sizes if name and sizes[name] <= memory_gib * 2 ** 30)",
)

ANSWERS.statements(
    "3.1",
    {
        "a sign bit": no_sign,
        "infinity with the sign": unsigned_infinity,
        "a sign for subnormal numbers too": unsigned_subnormal,
        "1 + M / 2^m": no_hidden,
        "M / 2^m": whole_mantissa,
        "2^(E - bias)": no_bias,
        "bias 2^(e-1) - 1": bias_16,
        "e is a parameter": fixed,
        "E all ones, M 0: infinity": no_infinity,
        "otherwise NaN": no_nan,
        "E = 0: subnormal": flushed,
        "without the hidden one": hidden_subnormal,
        "2^(1 - bias)": half_subnormal,
        "zero": no_subnormal,
    },
)
ANSWERS.statements(
    "3.2",
    {
        "all mantissa bits one": mantissa_zero,
        "of m bits": bit_short,
        "2 minus the last bit": round_power,
        "not infinity's exponent": too_high,
        "the highest that is left": too_low,
        "any layout": always_fp16,
        "any, not a list of known ones": by_name,
    },
)
ANSWERS.statements(
    "3.3",
    {
        "to the nearest": up,
        "the nearest, not the lower": cut,
        "a tie to the even mantissa": ties_up,
        "m mantissa bits": one_more,
        "2^(k-m) apart, for each k": large_only,
        "below one too": absolute,
        "negative numbers too": floor_negative,
    },
)
ANSWERS.statements(
    "3.4",
    {
        "numbers, not tensors": tensors,
        "numbers, not bytes": in_bytes,
        "all parameters": weights_only,
        "each tensor once, whatever its names": state,
        "each module once": children,
        "no buffers": with_buffers,
        "frozen ones too": trainable,
    },
)
ANSWERS.statements(
    "3.5",
    {
        "bits": bits_as_bytes,
        "the other parameters": only_linear,
        "16 bits each": one_byte,
        "a scale": no_scales,
        "for a block": scale_each,
        "scale_bits are bits": scale_as_bytes,
        "round up to whole blocks": floors_blocks,
        "round up to whole bytes": floors_bytes,
        "of all scales together": byte_each,
    },
)
ANSWERS.statements(
    "3.6",
    {
        "GiB": decimal,
        "a fraction of one": whole_gib,
        "bytes against bytes": units,
        "the largest": smallest,
        "wherever it stands": first_fit,
        "that fits": no_limit,
        "an exact fit fits": strict,
        "None if none does": empty,
    },
)


@wrong("3.3", "casts of two formats", case="3 mantissa bits", says="Any number of bits")
def two_formats(x, mantissa_bits):
    return torch.tensor(x, dtype=torch.bfloat16 if mantissa_bits == 7 else torch.float16).item()


@wrong("3.3", "fp16 where it fits the bits", case="beyond fp16", says="Only the mantissa has a limit")
def limited(x, mantissa_bits):
    if mantissa_bits == 10:
        return torch.tensor(x, dtype=torch.float16).item()
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, mantissa_bits + 1)), exponent - mantissa_bits - 1)


@wrong("3.3", "subnormal numbers of fp16", case="far below one", says="no subnormal numbers")
def with_subnormals(x, mantissa_bits):
    mantissa, exponent = math.frexp(x)
    if mantissa_bits == 10:
        exponent = max(exponent, -13)
        mantissa = math.ldexp(x, -exponent)
    return math.ldexp(round(math.ldexp(mantissa, mantissa_bits + 1)), exponent - mantissa_bits - 1)


ANSWERS.statements(
    "3.3",
    {
        "so many bits, however many": two_formats,
        "no overflow": limited,
        "no subnormal numbers": with_subnormals,
    },
)


@wrong("3.1", "a bias of two formats", case="8 bits, 4 of them exponent", says="bias follows")
def two_biases(bits, exponent_bits):
    sign = -1.0 if bits[0] == "1" else 1.0
    e, m = bits[1 : 1 + exponent_bits], bits[1 + exponent_bits :]
    bias, fraction = 15 if exponent_bits == 5 else 127, int(m, 2) / 2 ** len(m)
    if "0" not in e:
        return math.nan if fraction else sign * math.inf
    if "1" not in e:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (int(e, 2) - bias)


ANSWERS.statements("3.1", {"a bias for any e": two_biases})


@right("3.1", "sums of powers of two")
def sums_of_powers(bits, exponent_bits):
    sign, e, m = (-1.0) ** int(bits[0]), bits[1 : 1 + exponent_bits], bits[1 + exponent_bits :]
    fraction = sum(2.0**-k for k, bit in enumerate(m, 1) if bit == "1")
    power = int(e, 2) - (2 ** (exponent_bits - 1) - 1)
    if set(e) == {"1"}:
        return sign * math.inf if fraction == 0 else math.nan
    return sign * math.ldexp(1 + fraction, power) if "1" in e else sign * math.ldexp(fraction, power + 1)


@right("3.1", "as one whole number, scaled")
def one_whole_number(bits, exponent_bits):
    width = len(bits) - 1 - exponent_bits
    number = int(bits, 2)
    mantissa, exponent = number % 2**width, number // 2**width % 2**exponent_bits
    if exponent == 2**exponent_bits - 1:
        value = math.nan if mantissa else math.inf
    else:
        whole = mantissa + (2**width if exponent else 0)
        value = math.ldexp(whole, max(exponent, 1) - 2 ** (exponent_bits - 1) + 1 - width)
    return -value if bits[0] == "1" else value
