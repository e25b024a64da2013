"""Exercises of lab 03: from bits to gibibytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from onegpu.dtype_sizing import NumberFormat, encode, weight_groups
from onegpu.exercises.exercise import Case, Exercise, Mistake

LLAMA_2_7B = (6_476_005_376, 262_410_240)  # weights of linear layers, all others
MEMORY = {  # bytes; each mistake finds another one
    "first": 5_100_000_000,
    "in GB": 14_600_000_000,
    "rounded up": 16_000_000_000,
    "right": 15_700_000_000,
    "in whole GiB": 14_900_000_000,
    "too large": 40_000_000_000,
    "smallest": 2_700_000_000,
    "last": 9_000_000_000,
}


def to_bits(x: float, exponent_bits: int, mantissa_bits: int) -> str:
    """The bit pattern (sign, exponent, mantissa) of a number that an IEEE format holds."""
    fmt = NumberFormat("custom", "float", 1, exponent_bits, mantissa_bits, "ieee")
    return f"{encode(x, fmt):0{fmt.bits}b}"


def largest(exponent_bits: int, mantissa_bits: int) -> float:
    """The largest finite number of an IEEE format."""
    return NumberFormat("custom", "float", 1, exponent_bits, mantissa_bits, "ieee").max


def round_mantissa(x: float, mantissa_bits: int) -> float:
    """Round to the nearest number with so many mantissa bits, ties to even."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, mantissa_bits + 1)), exponent - mantissa_bits - 1)


def count_parameters(model: nn.Module) -> int:
    """Count a model's parameters, shared ones once, buffers not at all."""
    return weight_groups(model).parameters


def model_bytes(linear: int, other: int, bits: int, blocksize: int, scale_bits: int) -> int:
    """Bytes of a model whose linear weights are quantized in blocks, the rest in 16 bits."""
    blocks = -(-linear // blocksize)
    return -(-linear * bits // 8) + -(-blocks * scale_bits // 8) + 2 * other


def largest_that_fits(sizes: Mapping[str, int], memory_gib: float) -> str | None:
    """Name the largest model that fits a memory given in GiB."""
    fitting = [name for name, size in sizes.items() if size <= memory_gib * 2**30]
    return max(fitting, key=sizes.__getitem__, default=None)


def tensor_bytes(content: bytes) -> dict[str, int]:
    """Bytes of each tensor, from the beginning of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    offsets = {name: tensor["data_offsets"] for name, tensor in header.items()}
    return {name: end - start for name, (start, end) in offsets.items()}


def safetensors_file(
    tensors: Mapping[str, tuple[str, list[int], int]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file of zeros: name to (dtype, shape, bytes)."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(place)


SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1, "U8": 1}


def file_bytes(tensors: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> int:
    """Bytes of the safetensors file that holds these (name, dtype, shape) in this order: length, header, data."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8 + end


TWO_TENSORS = safetensors_file({"weight": ("F16", [4, 3], 24), "bias": ("F32", [3], 12)})
LONG = {f"layers.{i}.weight": ("F32", [i], 4 * i) for i in range(40)}


class Tied(nn.Module):
    """An embedding whose matrix is the output head's too, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embed.weight


class Masked(nn.Module):
    """A linear layer and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(32, 32, dtype=torch.bool))


def _frozen() -> tuple[nn.Module]:
    model = nn.Linear(8, 4)
    model.weight.requires_grad_(False)
    return (model,)


def _shared() -> tuple[nn.Module]:
    block = nn.Linear(8, 8)
    return (nn.Sequential(block, nn.ReLU(), block, nn.Linear(8, 2)),)


def _near(value: float):
    return lambda got: isinstance(got, int | float) and math.isclose(got, value, rel_tol=1e-6)


EXERCISES = (
    Exercise(
        "3.1",
        "the bits of a number",
        to_bits,
        level="core",
        difficulty=4,
        importance=4,
        minutes=20,
        hints=(
            "Do -3 on paper: which power of two lies just below 3, and what is left of it?",
            "Find the power of two at or below the magnitude, but never one below that of the smallest "
            "normal number. Count the magnitude in steps of that power over 2^m. Enough steps for a "
            "hidden 1: take it off, and the exponent field is the power plus the bias. Else the field is 0.",
        ),
        lesson="Three groups of bits",
        cases=(
            Case(
                "minus three in fp16",
                (-3.0, 5, 10),
                "3 = (1 + 512/1024) x 2^1: sign 1, exponent field 1 + 15 = 16, mantissa field 512.",
                expected="1100001000000000",
                mistakes=(
                    Mistake("0100001000000000", "The first bit is the sign: 1 for a negative number."),
                    Mistake(lambda got: len(got) == 17, "The hidden 1 isn't stored: take it off before you write the mantissa."),
                    Mistake("1000011000000000", "The exponent field is the exponent plus the bias, 2^(e-1) - 1."),
                    Mistake("1100011000000000", "The bias of 5 exponent bits is 2^4 - 1 = 15, not 16."),
                    Mistake("1100000000000001", "The mantissa is written from its highest bit down: 512 is 1000000000."),
                ),
            ),
            Case(
                "a number of bf16",
                (3.140625, 8, 7),
                "The widths are parameters: here 8 exponent and 7 mantissa bits.",
                expected="0100000001001001",
                mistakes=(
                    Mistake(lambda got: got == to_bits(3.140625, 5, 10), "That is fp16's pattern: the widths are parameters."),
                ),
            ),
            Case(
                "8 bits, 4 of them exponent",
                (14.0, 4, 3),
                "The bias follows from exponent_bits, here 2^3 - 1 = 7: 1.75 x 2^(10 - 7).",
                expected="01010110",
            ),
            Case(
                "one",
                (1.0, 5, 10),
                "1 = (1 + 0) x 2^0: exponent field 15, and each field at its full width.",
                expected="0011110000000000",
                mistakes=(Mistake(lambda got: len(got) < 16, "Each field has its full width: leading zeros are written too."),),
            ),
            Case(
                "the largest of fp16",
                (65504.0, 5, 10),
                "65504 = (2 - 2^-10) x 2^15: exponent field 30, mantissa all ones.",
                expected="0111101111111111",
            ),

            Case(
                "a number below one",
                (0.0999755859375, 5, 10),
                "1638/1024 x 2^-4, as near to 0.1 as fp16 comes: exponent field 11, mantissa field 614.",
                expected="0010111001100110",
            ),
            Case(
                "the smallest normal number of fp16",
                (2.0**-14, 5, 10),
                "Exponent field 1, mantissa 0: the hidden 1 is still there.",
                expected="0000010000000000",
                mistakes=(
                    Mistake("0000000000000000", "2^-14 is the smallest normal number of fp16: it has a hidden 1 and the field 1."),
                ),
            ),
            Case(
                "zero",
                (0.0, 5, 10),
                "Zero is all zeros; it has no power of two below it.",
                expected="0000000000000000",
                mistakes=(
                    Mistake(lambda got: isinstance(got, ValueError), "log2 of 0 doesn't exist: treat zero (and what lies near it) apart."),
                    Mistake("1000000000000000", "0.0 isn't negative: its sign bit is 0."),
                ),
            ),
            Case(
                "the smallest number above zero in fp16",
                (2.0**-24, 5, 10),
                "A subnormal number: exponent field 0, no hidden 1, and M / 2^m x 2^(1 - bias).",
                expected="0000000000000001",
                mistakes=(
                    Mistake(lambda got: "-" in got, "2^-24 is below the smallest normal number: its exponent field is 0, not negative."),
                    Mistake("0000000000000000", "Subnormal numbers are kept: 2^-24 is one step above 0."),
                    Mistake("0000000000000010", "Twice too large: subnormal numbers count in steps of 2^(1 - bias) / 2^m."),
                ),
            ),
            Case(
                "the largest subnormal number of fp16",
                (1023 * 2.0**-24, 5, 10),
                "1023 steps of 2^-24: one below the smallest normal number, so the exponent field is 0.",
                expected="0000001111111111",
            ),
            Case(
                "just below zero",
                (-3 * 2.0**-24, 5, 10),
                "A subnormal number has a sign too: three steps of 2^-24, and sign 1.",
                expected="1000000000000011",
                mistakes=(Mistake("0000000000000011", "Subnormal numbers have a sign too."),),
            ),
        ),
    ),
    Exercise(
        "3.2",
        "the largest number",
        largest,
        level="warm-up",
        difficulty=2,
        importance=3,
        minutes=8,
        hints=(
            "What is the largest mantissa, and what the largest exponent that isn't kept for "
            "infinity?",
            "All mantissa bits one is 2 minus the last bit's worth. The largest exponent equals the "
            "bias. Multiply.",
        ),
        lesson="What a format can hold",
        cases=(
            Case(
                "fp16",
                (5, 10),
                "All mantissa bits one, and the highest exponent that isn't kept for infinity.",
                expected=65504.0,
                rtol=1e-9,
                mistakes=(
                    Mistake(_near(65536.0), "2^16 is where infinity stands. All mantissa bits one gives 2 - 2^-m, not 2."),
                    Mistake(_near(131008.0), "That uses the highest exponent, which is kept for infinity and NaN: go one lower."),
                    Mistake(_near(32752.0), "Twice too small: the largest exponent is the bias itself, 2^(e-1) - 1 = 15."),
                    Mistake(_near(32768.0), "That is a 1 with mantissa 0: the largest number has all mantissa bits one."),
                    Mistake(_near(65472.0), "The mantissa's last bit is worth 2^-10, so the largest mantissa is 2 - 2^-10."),
                ),
            ),
            Case(
                "fp32",
                (8, 23),
                "The same rule with 8 and 23: about 3.4e38 (not e34).",
                expected=3.4028234663852886e38,
                rtol=1e-9,
            ),
            Case(
                "bf16",
                (8, 7),
                "bf16 has fp32's exponent, so nearly fp32's range: 3.39e38.",
                expected=3.3895313892515355e38,
                rtol=1e-9,
            ),
            Case("fp8 e5m2", (5, 2), "fp16's exponent with 2 mantissa bits.", expected=57344.0, rtol=1e-9),
            Case("4 exponent and 3 mantissa bits", (4, 3), "Any layout: (2 - 2^-3) x 2^7.", expected=240.0, rtol=1e-9),
        ),
    ),
    Exercise(
        "3.3",
        "rounding to fewer bits",
        round_mantissa,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "How far apart are the numbers around x? That depends on the power of two just below its "
            "magnitude.",
            "Find that power of two; the step is it divided by 2 to the mantissa bits. Count x in "
            "steps, round to a whole number with ties to even, multiply back. Zero has no power of "
            "two: treat it first.",
        ),
        lesson="What rounding does to training",
        cases=(
            Case(
                "1.003 in bf16",
                (1.003, 7),
                "Next to 1 the numbers are 2^-7 = 0.0078 apart, so 1.003 is nearest to 1.",
                expected=1.0,
                mistakes=(
                    Mistake(1.00390625, "That is rounded to one mantissa bit more than asked for."),
                    Mistake(1.0078125, "Rounded up: 1.003 is nearer to 1 than to 1.0078."),
                    Mistake(_near(1.003), "Nothing was rounded: the spacing depends on the number's own power of two."),
                ),
            ),
            Case(
                "257 in bf16",
                (257.0, 7),
                "Between 256 and 512 numbers with 7 mantissa bits are 2 apart.",
                expected=256.0,
                mistakes=(
                    Mistake(258.0, "257 lies halfway between 256 and 258: a tie goes to the even mantissa, which is 256."),
                    Mistake(257.0, "257 needs 8 mantissa bits behind the hidden one: with 7 it can't be kept."),
                ),
            ),
            Case(
                "259 in bf16",
                (259.0, 7),
                "A tie again, between 258 and 260: the even one of the two mantissas is that of 260.",
                expected=260.0,
                mistakes=(Mistake(258.0, "Cut off, or a tie rounded down: 260 has the even mantissa."),),
            ),
            Case(
                "a small number",
                (0.1, 7),
                "The spacing shrinks with the number: between 1/16 and 1/8 it is 2^-4 x 2^-7.",
                expected=0.10009765625,
                mistakes=(
                    Mistake(
                        0.1015625,
                        "0.1 was rounded to a multiple of 2^-7: the spacing shrinks with the number, relative to its power of two.",
                    ),
                ),
            ),
            Case(
                "a negative number",
                (-2051.0, 10),
                "Round the magnitude and keep the sign.",
                expected=-2052.0,
                mistakes=(Mistake(-2050.0, "A tie between 2050 and 2052, negative or not, goes to the even mantissa: 2052."),),
            ),

            Case(
                "3 mantissa bits",
                (1.7, 3),
                "Any number of bits: with 3 the numbers between 1 and 2 are 1/8 apart.",
                expected=1.75,
            ),
            Case(
                "beyond fp16",
                (70_000.0, 10),
                "Only the mantissa has a limit: with 10 bits the numbers between 65,536 and 131,072 are 64 apart.",
                expected=70_016.0,
            ),
            Case(
                "far below one",
                (1e-6, 10),
                "Only the mantissa has a limit: there are no subnormal numbers here.",
            ),
            Case("zero", (0.0, 7), "Zero has no power of two of its own: it stays 0.", expected=0.0),
        ),
    ),
    Exercise(
        "3.4",
        "how many parameters",
        count_parameters,
        level="warm-up",
        difficulty=1,
        importance=4,
        minutes=5,
        hints=(
            "Which method of a module yields each parameter once, however many names it has?",
            "Go over the module's parameters (not its state dict) and add up how many numbers each "
            "holds.",
        ),
        lesson="Count a model from its configuration",
        cases=(
            Case("one layer", lambda: (nn.Linear(8, 4),), "8 x 4 weights and 4 biases.", expected=36,
                 mistakes=(Mistake(32, "The bias counts too: every tensor in model.parameters()."),
                           Mistake(2, "That is the number of tensors: add up their numel()."),
                           Mistake(144, "That is bytes in fp32. Count numbers: numel(), not nbytes."))),
            Case("a tied output head", lambda: (Tied(),),
                 "The embedding's matrix and the head's are one tensor: 100 x 8 weights, and 16 of the norm.",
                 expected=816,
                 mistakes=(Mistake(1616, "The tied matrix was counted twice: it is one tensor under two names. "
                                         "model.parameters() yields it once; state_dict() lists it twice."),
                           Mistake(800, "The norm's 16 parameters are missing."))),
            Case("a causal mask", lambda: (Masked(),),
                 "A buffer is no parameter: 8 x 8 + 8.",
                 expected=72,
                 mistakes=(Mistake(1096, "The mask's 1,024 entries are a buffer: nothing learns them, they don't count. "
                                         "state_dict() mixes buffers with parameters."),)),
            Case("frozen weights", _frozen, "What isn't trained still takes memory: 36.", expected=36,
                 mistakes=(Mistake(4, "Frozen weights are parameters too: requires_grad says whether they are trained."),)),
            Case("one layer used twice", _shared, "The same layer in two places is one set of weights: 72 + 18.",
                 expected=90, mistakes=(Mistake(162, "The shared layer was counted twice."),)),
        ),
    ),
    Exercise(
        "3.5",
        "bytes of a quantized model",
        model_bytes,
        level="core",
        difficulty=3,
        importance=5,
        minutes=12,
        hints=(
            "Three parts: codes, scales, and what isn't quantized. Where do you have to round up?",
            "Codes: weights times bits, in started bytes. Scales: one for each started block, again "
            "in started bytes. The other parameters: two bytes each. Add them.",
        ),
        lesson="From numbers to bytes",
        cases=(
            Case("no scales", (1024, 100, 8, 64, 0), "1,024 x 8 bits and 100 x 2 bytes.", expected=1224,
                 mistakes=(Mistake(8392, "Bits were taken for bytes: 8 bits are one byte."),
                           Mistake(1124, "The other parameters take two bytes each."),
                           Mistake(1024, "The other parameters are missing: embeddings and norms stay in 16 bits."))),
            Case("NF4", (1024, 0, 4, 64, 32), "512 bytes of codes, and 16 blocks with a scale of 4 bytes.", expected=576,
                 mistakes=(Mistake(512, "The scales are missing: NF4 takes 4.5 bits a weight, not 4."),
                           Mistake(4608, "There is one scale a block of 64 weights, not one a weight."),
                           Mistake(1024, "scale_bits are bits: 32 of them are 4 bytes."))),
            Case("a started block", (65, 0, 8, 64, 32), "65 bytes of codes, and two blocks: the second holds one weight.",
                 expected=73, mistakes=(Mistake(69, "65 weights begin a second block, and it has a scale of its own: round up."),)),
            Case("half a byte", (65, 0, 4, 65, 0), "65 codes of 4 bits need 33 bytes.", expected=33,
                 mistakes=(Mistake(32, "The last code needs a byte too: round up."),
                           Mistake(32.5, "There is no half byte: round up to 33."))),
            Case("scales that don't fill a byte", (130, 3, 8, 32, 6),
                 "130 bytes of codes, 5 blocks of 6 bits in 4 bytes, and 3 x 2 bytes of the rest.", expected=140,
                 mistakes=(Mistake(139, "5 scales of 6 bits need 30 bits: a started byte counts whole."),
                           Mistake(141, "Scales are packed: 5 times 6 bits are 4 bytes, not one byte each."))),
            Case("Llama-2-7b", (*LLAMA_2_7B, 4, 64, 32), "3,642,753,024 bytes of linear layers and 524,820,480 of the rest.",
                 expected=4_167_573_504),
        ),
    ),
    Exercise(
        "3.6",
        "what fits",
        largest_that_fits,
        level="warm-up",
        difficulty=2,
        importance=3,
        minutes=8,
        hints=(
            "Bring both sides to the same unit before you compare.",
            "Turn the memory into bytes, keep the names whose size is not more than that, and take "
            "the one with the largest size, or None if none is left.",
        ),
        lesson="What fits",
        cases=(
            Case("a T4", (MEMORY, 14.75), "14.75 GiB are 15,837,691,904 bytes: the 15.7 GB of `right` fit.", expected="right",
                 mistakes=(Mistake("in GB", "14.75 GiB were taken for 14.75 GB: a GiB is 2^30 bytes, 7 % more than a GB."),
                           Mistake("in whole GiB", "14.75 was cut off to 14 GiB: memory_gib may be a fraction."),
                           Mistake("rounded up", "14.75 was rounded up to 15 GiB, which the card doesn't have."),
                           Mistake("too large", "The largest of all doesn't fit: leave out what is larger than the memory."),
                           Mistake("smallest", "That is the smallest of those that fit: the largest was asked for."),
                           Mistake("first", "That is the first that fits: the largest was asked for, wherever it stands."),
                           Mistake("last", "That is the last one that fits: the largest was asked for, wherever it stands."),
                           Mistake(lambda got: got == MEMORY["right"], "Return the model's name, not its size."),
                           Mistake(None, "Several fit: compare bytes with bytes, memory_gib x 2^30."))),
            Case("an exact fit", ({"a": 2**30, "b": 2**30 + 1}, 1.0), "What is exactly as large as the memory fits.", expected="a",
                 mistakes=(Mistake(None, "What is exactly as large as the memory fits: <=, not <."),)),
            Case("order doesn't matter", ({"small": 5, "large": 9, "middle": 7}, 1.0), "The largest that fits, wherever it stands.",
                 expected="large"),
            Case("nothing fits", ({"a": 2**31}, 1.0), "Nothing fits: return None.", expected=None),
            Case("no models", ({}, 1.0), "Nothing there, nothing fits: return None.", expected=None),
        ),
    ),
    Exercise(
        "3.7",
        "read a checkpoint's header",
        tensor_bytes,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "How does a program know where the header ends? The first 8 bytes say so.",
            "Make a whole number of the first 8 bytes, the lowest byte first; decode as many bytes after them "
            "as JSON; leave out the metadata; for each tensor take the distance of its two offsets.",
        ),
        lesson="Where this goes wrong",
        cases=(
            Case(
                "two tensors",
                (TWO_TENSORS,),
                "12 values of 2 bytes are 24, 3 values of 4 bytes are 12: the end of each tensor minus its start.",
                expected={"weight": 24, "bias": 12},
                mistakes=(
                    Mistake({"weight": 24, "bias": 36}, "That is where each tensor ends: subtract where it starts."),
                    Mistake({"weight": 12, "bias": 3}, "Those are numbers of values: bytes are asked for, the distance of the offsets."),
                    Mistake({"weight": 48, "bias": 12}, "Not every value has 4 bytes: take the distance of the offsets."),
                    Mistake(36, "One number for each tensor, by its name: the sum comes later."),
                    Mistake({"weight": [0, 24], "bias": [24, 36]}, "Those are the offsets: their distance is asked for."),
                    Mistake(
                        lambda got: isinstance(got, ValueError | OverflowError | MemoryError),
                        "The first 8 bytes are the length of the header, the lowest byte first (little-endian); the JSON "
                        "follows and is exactly so long.",
                    ),
                ),
            ),
            Case(
                "a file with metadata",
                (safetensors_file({"w": ("BF16", [5], 10)}, {"format": "pt"}),),
                "__metadata__ holds texts about the file and is no tensor: leave it out.",
                expected={"w": 10},
                mistakes=(
                    Mistake(lambda got: isinstance(got, KeyError | TypeError), "__metadata__ is no tensor and has no offsets: leave it out."),
                    Mistake({"w": 10, "__metadata__": 0}, "__metadata__ is no tensor: leave it out."),
                ),
            ),
            Case(
                "only the beginning of a file",
                (TWO_TENSORS[:-20],),
                "The header is enough: the data may be cut off.",
                expected={"weight": 24, "bias": 12},
            ),
            Case(
                "packed weights, and a tensor without values",
                (safetensors_file({"packed": ("U32", [4], 16), "none": ("F32", [0, 7], 0)}),),
                "Whatever lies in a word, its bytes are the distance of the offsets; nothing takes 0 bytes.",
                expected={"packed": 16, "none": 0},
                mistakes=(Mistake({"packed": 16}, "A tensor without values is there too, with 0 bytes."),),
            ),
            Case(
                "a long header",
                (safetensors_file(LONG),),
                "The length takes all 8 bytes, not one.",
            ),
            Case("no tensors", (safetensors_file({}),), "No tensors: an empty dictionary.", expected={}),
        ),
    ),
    Exercise(
        "3.8",
        "a file, to the byte",
        file_bytes,
        level="stretch",
        difficulty=4,
        importance=2,
        minutes=30,
        hints=(
            "Three parts: the length, the header, the data. Which of them do you know already, and what is in the header?",
            "Build the header as a dictionary: the metadata if there are any, then each tensor with its dtype, its shape and "
            "where it begins and ends, one after the other without gaps. Write it as JSON without spaces, count its bytes, "
            "round up to a multiple of 8. Add the 8 bytes of the length, and where the last tensor ends.",
        ),
        lesson="Where this goes wrong",
        cases=(
            Case(
                "one tensor",
                ([("w", "F16", [2, 3])], {}),
                'The header {"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}} has 57 characters and is filled up to '
                "64; with 8 for the length and 12 of data that makes 84.",
                expected=84,
                mistakes=(
                    Mistake(12, "Those are the data. What stands before them in the file?"),
                    Mistake(76, "The 8 bytes before the header, which hold its length, are missing."),
                    Mistake(77, "The header is filled up with spaces to a multiple of 8."),
                    Mistake(92, "JSON as json.dumps writes it has spaces after , and :, which this file hasn't: separators=(\",\", \":\")."),
                    Mistake(72, "Where are the data?"),
                ),
            ),
            Case(
                "offsets go on",
                ([("a", "F32", [100]), ("b", "BF16", [30]), ("c", "U8", [7])], {}),
                "Each tensor begins where the one before it ends: longer offsets make a longer header.",
                expected=651,
            ),
            Case(
                "metadata",
                ([("w0", "F16", [2, 3])], {"format": "pt"}),
                '"__metadata__":{"format":"pt"} stands in the header too, with its comma.',
                expected=116,
            ),
            Case(
                "names that aren't English",
                ([("층.층", "I8", [5])], {}),
                "The header is UTF-8: a Korean letter has three bytes, and isn't written as \\u....",
                expected=77,
            ),
            Case(
                "a header that needs no filling",
                ([("wxyz123a", "F16", [2, 3])], {}),
                "64 bytes are a multiple of 8 already: nothing is added.",
                expected=84,
            ),
            Case(
                "a number without dimensions, and nothing",
                ([("one", "F64", []), ("none", "F32", [0, 7])], {}),
                "A shape [] is one value, a shape with a 0 holds none.",
            ),
            Case("no tensors", ([], {}), "{} is a header of 2 bytes, filled up to 8, after its 8 bytes of length.", expected=16),
        ),
    ),
)  # fmt: skip
