"""What people hand in for the exercises of lab 03."""

import io
import json
import math
import struct

import torch
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 3.1 ------------------------------------------------------------------------------------------------------------------


def pattern(x, e, m, *, bias=None, hidden=False, signed=True, low=None, flush=False, normal=True):
    """The right rule, with one part of it wrong."""
    bias = 2 ** (e - 1) - 1 if bias is None else bias
    sign = "1" if x < 0 and signed else "0"
    smallest = 2 - 2 ** (e - 1) if low is None else low
    x = abs(x)
    if x == 0 or (flush and x < 2.0**smallest):
        return sign + "0" * (e + m)
    k = max(math.frexp(x)[1] - 1, smallest) if normal else math.frexp(x)[1] - 1
    steps = int(x / 2.0 ** (k - m))
    field = k + bias if steps >= 2**m else 0
    return f"{sign}{field:0{e}b}{steps if hidden or steps < 2**m else steps - 2**m:0{m}b}"


@wrong("3.1", "forgets the sign", case="minus three in fp16", says="first bit is the sign")
def no_sign(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits, signed=False)


@wrong("3.1", "stores the hidden one", case="minus three in fp16", says="hidden 1 isn't stored")
def stores_hidden(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits, hidden=True)


@wrong("3.1", "no bias", case="minus three in fp16", says="plus the bias")
def no_bias(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits, bias=0)


@wrong("3.1", "bias 2^(e-1)", case="minus three in fp16", says="15, not 16")
def bias_16(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits, bias=2 ** (exponent_bits - 1))


@wrong("3.1", "mantissa backwards", case="minus three in fp16", says="highest bit down")
def backwards(x, exponent_bits, mantissa_bits):
    bits = pattern(x, exponent_bits, mantissa_bits)
    return bits[: 1 + exponent_bits] + bits[1 + exponent_bits :][::-1]


@wrong("3.1", "always fp16", case="a number of bf16", says="widths are parameters")
def fixed(x, exponent_bits, mantissa_bits):
    return pattern(x, 5, 10)


@wrong("3.1", "no leading zeros", case="one", says="leading zeros")
def unpadded(x, exponent_bits, mantissa_bits):
    bits = pattern(x, exponent_bits, mantissa_bits)
    fields = bits[1 : 1 + exponent_bits], bits[1 + exponent_bits :]
    return bits[0] + "".join(f"{int(field, 2):b}" for field in fields)


@wrong(
    "3.1",
    "no normal number at the lower end",
    case="the smallest normal number of fp16",
    says="smallest normal",
)
def flushes_smallest(x, exponent_bits, mantissa_bits):
    limit = 2.0 ** (2 - 2 ** (exponent_bits - 1))
    return (
        "0" * (1 + exponent_bits + mantissa_bits)
        if abs(x) == limit
        else pattern(x, exponent_bits, mantissa_bits)
    )


@wrong("3.1", "takes log2 of zero", case="zero", says="log2 of 0")
def log_of_zero(x, exponent_bits, mantissa_bits):
    math.log2(abs(x))
    return pattern(x, exponent_bits, mantissa_bits)


@wrong("3.1", "zero is negative", case="zero", says="isn't negative")
def negative_zero(x, exponent_bits, mantissa_bits):
    bits = pattern(x, exponent_bits, mantissa_bits)
    return ("1" if x <= 0 else "0") + bits[1:]


@wrong("3.1", "every number is normal", case="the smallest number above zero in fp16", says="field is 0")
def all_normal(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits, normal=False)


@wrong("3.1", "flushes subnormals", case="the smallest number above zero in fp16", says="are kept")
def flushed(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits, flush=True)


@wrong(
    "3.1",
    "subnormal steps half as long",
    case="the smallest number above zero in fp16",
    says="Twice too large",
)
def half_steps(x, exponent_bits, mantissa_bits):
    smallest = 2 - 2 ** (exponent_bits - 1)
    if abs(x) >= 2.0**smallest:
        return pattern(x, exponent_bits, mantissa_bits)
    steps = int(abs(x) / 2.0 ** (smallest - 1 - mantissa_bits))
    return f"{'1' if x < 0 else '0'}{0:0{exponent_bits}b}{steps:0{mantissa_bits}b}"


@wrong("3.1", "subnormal numbers without their sign", case="just below zero", says="have a sign too")
def unsigned_subnormal(x, exponent_bits, mantissa_bits):
    return pattern(abs(x) if abs(x) < 1e-5 else x, exponent_bits, mantissa_bits)


@right("3.1", "by parts")
def by_parts(x, exponent_bits, mantissa_bits):
    return pattern(x, exponent_bits, mantissa_bits)


@wrong("3.1", "Python's own fp16 and fp32", case="8 bits, 4 of them exponent", says="bias follows")
def by_struct(x, exponent_bits, mantissa_bits):
    if exponent_bits == 8:
        return f"{struct.unpack('<I', struct.pack('<f', x))[0] >> 16:016b}"
    return f"{struct.unpack('<H', struct.pack('<e', x))[0]:016b}"


@wrong("3.1", "let torch look at its bits", case="8 bits, 4 of them exponent", says="bias follows")
def by_torch(x, exponent_bits, mantissa_bits):
    dtype = torch.bfloat16 if exponent_bits == 8 else torch.float16
    return f"{torch.tensor([x], dtype=dtype).view(torch.uint16).item():016b}"


@right("3.1", "as one whole number of smallest steps")
def one_whole_number(x, exponent_bits, mantissa_bits):
    smallest = 2 - 2 ** (exponent_bits - 1) - mantissa_bits
    steps, field = int(math.ldexp(abs(x), -smallest)), 0
    while steps >= 2 ** (mantissa_bits + 1):
        steps, field = steps // 2, field + 1
    code = (field << mantissa_bits) + steps
    return f"{'1' if x < 0 else '0'}{code:0{exponent_bits + mantissa_bits}b}"


@right("3.1", "bit by bit")
def bit_by_bit(x, exponent_bits, mantissa_bits):
    rest, k = abs(x), 2 - 2 ** (exponent_bits - 1)
    while rest >= 2.0 ** (k + 1):
        k += 1
    field = k + 2 ** (exponent_bits - 1) - 1 if rest >= 2.0**k else 0
    rest -= 2.0**k if field else 0.0
    bits = ""
    for place in range(1, mantissa_bits + 1):
        bits += "1" if rest >= 2.0 ** (k - place) else "0"
        rest -= 2.0 ** (k - place) if bits[-1] == "1" else 0.0
    return ("1" if x < 0 else "0") + f"{field:0{exponent_bits}b}" + bits


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


@wrong("3.5", "a byte for each scale", case="scales that don't fill a byte", says="Scales are packed")
def byte_each(linear, other, bits, blocksize, scale_bits):
    return -(-linear * bits // 8) + -(-linear // blocksize) * -(-scale_bits // 8) + 2 * other


ANSWERS.equivalent(
    "3.1",
    "at the smallest normal number both branches find the same power",
    "abs(x) >= 2.0 ** k -> abs(x) > 2.0 ** k",
)
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
        "a sign for subnormal numbers too": unsigned_subnormal,
        "0.0 is positive": negative_zero,
        "no hidden one": stores_hidden,
        "plus the bias": no_bias,
        "bias 2^(e-1) - 1": bias_16,
        "the highest bit first": backwards,
        "the widths are parameters": fixed,
        "whatever they are": by_struct,
        "leading zeros": unpadded,
        "zero": log_of_zero,
        "subnormal numbers": all_normal,
        "which are kept": flushed,
        "in steps of the smallest normal number": half_steps,
        "which is normal itself": flushes_smallest,
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

# 3.7 ------------------------------------------------------------------------------------------------------------------


def parsed(content):
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length])


def tensors_of(content):
    return {name: tensor for name, tensor in parsed(content).items() if name != "__metadata__"}


@wrong("3.7", "where it ends", case="two tensors", says="subtract where it starts")
def ends(content):
    return {name: tensor["data_offsets"][1] for name, tensor in tensors_of(content).items()}


@wrong("3.7", "counts values", case="two tensors", says="numbers of values")
def values(content):
    return {name: math.prod(tensor["shape"]) for name, tensor in tensors_of(content).items()}


@wrong("3.7", "four bytes a value", case="two tensors", says="Not every value")
def four_bytes(content):
    return {name: 4 * math.prod(tensor["shape"]) for name, tensor in tensors_of(content).items()}


@wrong("3.7", "adds up", case="two tensors", says="One number for each tensor")
def added(content):
    return sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors_of(content).values())


@wrong("3.7", "returns the offsets", case="two tensors", says="Those are the offsets")
def offsets(content):
    return {name: tensor["data_offsets"] for name, tensor in tensors_of(content).items()}


@wrong("3.7", "big-endian", case="two tensors", says="lowest byte first")
def big_endian(content):
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "big")])
    return {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items()}


@wrong("3.7", "keeps the length in the text", case="two tensors", says="first 8 bytes are the length")
def with_length(content):
    header = json.loads(content[: content.rindex(b"}") + 1])
    return {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items()}


@wrong(
    "3.7", "takes metadata for a tensor", case="a file with metadata", says="is no tensor and has no offsets"
)
def with_metadata(content):
    return {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in parsed(content).items()}


@wrong("3.7", "metadata of 0 bytes", case="a file with metadata", says="is no tensor: leave it out")
def empty_metadata(content):
    pairs = {name: tensor.get("data_offsets", [0, 0]) for name, tensor in parsed(content).items()}
    return {name: end - start for name, (start, end) in pairs.items()}


@wrong(
    "3.7", "leaves out empty tensors", case="packed weights, and a tensor without values", says="with 0 bytes"
)
def not_empty(content):
    found = {n: t["data_offsets"][1] - t["data_offsets"][0] for n, t in tensors_of(content).items()}
    return {name: size for name, size in found.items() if size}


@right("3.7", "with struct")
def with_struct(content):
    return {n: t["data_offsets"][1] - t["data_offsets"][0] for n, t in tensors_of(content).items()}


@right("3.7", "in a loop")
def in_a_loop(content):
    length = sum(byte << (8 * i) for i, byte in enumerate(content[:8]))
    found = {}
    for name, tensor in json.loads(content[8 : 8 + length].decode("utf-8")).items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            found[name] = end - start
    return found


@right("3.7", "as a stream")
def as_stream(content):
    file = io.BytesIO(content)
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {name: -int.__sub__(*t["data_offsets"]) for name, t in header.items()}


ANSWERS.statements(
    "3.7",
    {
        "the first 8 bytes are the length": with_length,
        "the lowest byte first": big_endian,
        "bytes, not values": values,
        "of whatever dtype": four_bytes,
        "end minus start": ends,
        "a number, not offsets": offsets,
        "for each tensor": added,
        "__metadata__ is left out": with_metadata,
        "altogether": empty_metadata,
        "0 for a tensor without values": not_empty,
    },
)
ANSWERS.equivalent("3.7", "no header has 2^56 bytes: the eighth byte is 0", "8 -> 7")


# 3.8 ------------------------------------------------------------------------------------------------------------------
WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1, "U8": 1}


def parts(tensors, metadata, separators=(",", ":"), ascii_only=False, restart=False):
    """The header's bytes before it is filled up, and the bytes of the data."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, shape in tensors:
        start = 0 if restart else end
        end, size = end + math.prod(shape) * WIDTH[dtype], math.prod(shape) * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
    return len(json.dumps(header, separators=separators, ensure_ascii=ascii_only).encode()), end


def filled(length):
    return -(-length // 8) * 8


@wrong("3.8", "the data alone", case="one tensor", says="What stands before them")
def data_alone(tensors, metadata):
    return parts(tensors, metadata)[1]


@wrong("3.8", "without the length", case="one tensor", says="hold its length")
def without_length(tensors, metadata):
    length, end = parts(tensors, metadata)
    return filled(length) + end


@wrong("3.8", "not filled up", case="one tensor", says="filled up with spaces")
def not_filled(tensors, metadata):
    length, end = parts(tensors, metadata)
    return 8 + length + end


@wrong("3.8", "json as it comes", case="one tensor", says="spaces after")
def with_spaces(tensors, metadata):
    length, end = parts(tensors, metadata, separators=None)
    return 8 + filled(length) + end


@wrong("3.8", "header only", case="one tensor", says="Where are the data")
def header_only(tensors, metadata):
    return 8 + filled(parts(tensors, metadata)[0])


@wrong("3.8", "each tensor begins at 0", case="offsets go on", says="begins where the one before it ends")
def from_zero(tensors, metadata):
    length, end = parts(tensors, metadata, restart=True)
    return 8 + filled(length) + end


@wrong("3.8", "leaves the metadata out", case="metadata", says="stands in the header too")
def no_metadata(tensors, metadata):
    length, end = parts(tensors, {})
    return 8 + filled(length) + end


@wrong("3.8", "escapes other letters", case="names that aren't English", says="UTF-8")
def escapes(tensors, metadata):
    length, end = parts(tensors, metadata, ascii_only=True)
    return 8 + filled(length) + end


@wrong("3.8", "always fills up", case="a header that needs no filling", says="nothing is added")
def always_fills(tensors, metadata):
    length, end = parts(tensors, metadata)
    return 8 + length + (8 - length % 8) + end


@right("3.8", "by parts")
def file_by_parts(tensors, metadata):
    length, end = parts(tensors, metadata)
    return 8 + filled(length) + end


@right("3.8", "spaces put in, then counted")
def spaces_put_in(tensors, metadata):
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape in tensors:
        nbytes = torch.empty(list(shape), dtype=torch.uint8).numel() * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return 8 + len(text.ljust(filled(len(text)))) + offset


@right("3.8", "text by hand")
def text_by_hand(tensors, metadata):
    entries, place = [], 0
    if metadata:
        entries.append('"__metadata__":' + json.dumps(metadata, separators=(",", ":"), ensure_ascii=False))
    for name, dtype, shape in tensors:
        size = WIDTH[dtype]
        for side in shape:
            size *= side
        sides = ",".join(map(str, shape))
        key = json.dumps(name, ensure_ascii=False)
        entries.append(
            f'{key}:{{"dtype":"{dtype}","shape":[{sides}],"data_offsets":[{place},{place + size}]}}'
        )
        place += size
    header = ("{" + ",".join(entries) + "}").encode()
    while len(header) % 8:
        header += b" "
    return 8 + len(header) + place


ANSWERS.statements(
    "3.8",
    {
        "the header": data_alone,
        "its length": without_length,
        "a multiple of 8": not_filled,
        "and no more": always_fills,
        "without spaces": with_spaces,
        "the data": header_only,
        "one after the other": from_zero,
        "metadata, where there are any": no_metadata,
        "UTF-8": escapes,
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
