"""Exercises of lab 04: quantizers, from one scale to outlier columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import torch

from onegpu import quantization
from onegpu.exercises.exercise import Case, Exercise, Mistake

EIGHT = torch.tensor([1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4])
NF4 = quantization.table("nf4")


def quantize_absmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Int8 codes of `x`, and its absmax."""
    q = quantization.quantize_absmax(x)
    return q.codes, q.scales[0]


def quantize_zeropoint(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Int8 codes of `x` between its smallest and largest value, the scale, and the zero point."""
    q = quantization.quantize_zeropoint(x)
    return q.codes, q.scales[0], int(q.zero_points[0])


def quantize_blockwise(x: torch.Tensor, blocksize: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Int8 codes of `x`, and the absmax of each block."""
    q = quantization.quantize_blockwise(x, blocksize)
    return q.codes, q.scales


def normal_levels(negative: int, positive: int, outermost: float) -> list[float]:
    """Levels at equally spaced quantiles of the normal distribution, the largest at 1."""
    inverse = NormalDist().inv_cdf

    def half(count: int) -> list[float]:
        return [inverse(outermost + (0.5 - outermost) * i / count) for i in range(count)]

    return sorted(
        [level / half(positive)[0] for level in [*(-q for q in half(negative)), 0.0, *half(positive)]]
    )


def nearest_codes(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """The index of the level nearest to each value over the block's absmax, as uint8."""
    absmax = x.abs().max()
    scaled = x / absmax if absmax > 0 else x
    return (scaled[:, None] - levels[None, :]).abs().argmin(1).to(torch.uint8)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Two 4-bit codes to a byte, the first in the high half."""
    return quantization.pack_4bit(codes)


def bits_per_value(bits: int, blocksize: int, scale_bits: int, second_blocksize: int) -> float:
    """Bits a value takes with its share of the scales, and of the scales' scales."""
    scales = scale_bits / blocksize
    return bits + scales + (32 / (blocksize * second_blocksize) if second_blocksize else 0.0)


def split_outliers(x: torch.Tensor, threshold: float) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Outlier columns of `x`, int8 codes of the rest, and each row's absmax below the threshold."""
    split = quantization.split_outliers(x, threshold)
    return split.columns.tolist(), split.quantized.codes, split.quantized.scales


def codes_are(*expected: Any):
    """A mistake that gives these codes as the first part of the result."""
    return lambda got: got[0].tolist() == list(expected)


def second_is(expected: Any):
    """A mistake that gives this as the second part of the result, about."""
    return lambda got: torch.allclose(
        torch.as_tensor(got[1], dtype=torch.float32).reshape(-1),
        torch.tensor(expected, dtype=torch.float32).reshape(-1),
        1e-4,
    )


def second_absmax(*expected: float):
    """A mistake that gives these row scales as the third part of the result, about."""
    return lambda got: torch.allclose(got[2], torch.tensor(expected), 1e-4)


def has_nan(got: Sequence[Any]) -> bool:
    """Whether a float anywhere in the result is NaN."""
    return any(
        bool(part.isnan().any()) if isinstance(part, torch.Tensor) and part.is_floating_point()
        else isinstance(part, float) and math.isnan(part)
        for part in got
    )  # fmt: skip


EXERCISES = (
    Exercise(
        "4.1",
        "one scale for all",
        quantize_absmax,
        level="core",
        difficulty=2,
        importance=5,
        minutes=12,
        hints=(
            "One number decides the whole scale. Which one, and what if it is 0?",
            "Take the largest magnitude. If it is 0, all codes are 0. Else divide by it, multiply by "
            "127, round to the nearest, and only then convert to int8.",
        ),
        lesson="One byte for a number",
        cases=(
            Case(
                "eight numbers",
                (EIGHT,),
                "Divide by the largest magnitude, multiply by 127, round to the nearest whole number, store as int8.",
                expected=(
                    torch.tensor([28, -12, -101, 28, -73, 19, 56, 127], dtype=torch.int8),
                    torch.tensor(5.4),
                ),
                mistakes=(
                    Mistake(
                        codes_are(28, -12, -102, 28, -73, 19, 57, -128),
                        "Multiplied by 128: the largest code would be 128, which int8 doesn't have, and it wrapped to -128. "
                        "Symmetric codes reach from -127 to 127.",
                    ),
                    Mistake(
                        codes_are(28, -11, -101, 28, -72, 18, 56, 127),
                        "Cut off, not rounded: .to(torch.int8) drops the fraction. Call torch.round first.",
                    ),
                    Mistake(
                        codes_are(28, -12, -102, 28, -73, 18, 56, 127),
                        "Rounded down: use torch.round, which goes to the nearest.",
                    ),
                    Mistake(second_is(5.4 / 127), "The second result is absmax itself, 5.4, not absmax / 127."),
                    Mistake(second_is(127 / 5.4), "The second result is absmax itself, 5.4, not the factor 127 / absmax."),
                    Mistake(
                        lambda got: got[0].min() >= 0,
                        "The signs are lost: take the magnitude for absmax only, not for the codes.",
                    ),
                ),
            ),
            Case(
                "the largest magnitude is negative",
                (torch.tensor([-3.0, 1.0, 0.5]),),
                "absmax is the largest magnitude: 3.",
                expected=(torch.tensor([-127, 42, 21], dtype=torch.int8), torch.tensor(3.0)),
                mistakes=(
                    Mistake(second_is(1.0), "The largest value is 1, the largest magnitude 3: take abs() before max()."),
                ),
            ),
            Case(
                "a matrix",
                (torch.tensor([[1.0, -2.0], [4.0, 0.0]]),),
                "One scale for the whole tensor, codes in its shape.",
                mistakes=(
                    Mistake(
                        lambda got: got[1].dim() == 1,
                        "One absmax for each row or column: here the whole tensor shares one, a tensor without dimensions.",
                    ),
                    Mistake(lambda got: got[0].dim() == 1, "The codes have the shape of x."),
                ),
            ),
            Case(
                "all zeros",
                (torch.zeros(4),),
                "A tensor of zeros has absmax 0 and codes 0.",
                atol=0.0,
                mistakes=(
                    Mistake(has_nan, "0 / 0 is NaN: treat absmax 0 apart."),
                    Mistake(
                        lambda got: got[1] > 0,
                        "absmax of zeros is 0: guard the division, but return what the tensor has.",
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "4.2",
        "a zero point",
        quantize_zeropoint,
        level="core",
        difficulty=4,
        importance=3,
        minutes=20,
        hints=(
            "Do the formulas on paper for [0, 1, 2.55]. Where must 0 land, and where the largest "
            "value?",
            "Low and high from the data, both pulled to include 0. Scale from their distance. The "
            "zero point is where 0 lands, rounded. Codes are values in steps, rounded, moved by the "
            "zero point, and kept inside int8's range before they become int8.",
        ),
        lesson="When all values lie on one side",
        cases=(
            Case(
                "from zero up",
                (torch.tensor([0.0, 1.0, 2.55]),),
                "scale = (high - low) / 255, zero_point = round(-128 - low / scale), code = round(x / scale) + zero_point.",
                expected=(torch.tensor([-128, -28, 127], dtype=torch.int8), torch.tensor(0.01), -128),
                mistakes=(
                    Mistake(
                        lambda got: got[0].tolist()[0] == 0 and got[2] == 0,
                        "Codes from 0 to 127 waste half of int8: the zero point moves the smallest value to -128.",
                    ),
                    Mistake(
                        second_is(2.55 / 256),
                        "256 codes have 255 steps between them: scale = (high - low) / 255.",
                    ),
                    Mistake(
                        lambda got: got[0].dtype == torch.int8 and got[0].tolist()[:1] == [0] and got[0].tolist()[1] == 100,
                        "Codes from 0 to 255 don't fit int8: the smallest is -128.",
                    ),
                ),
            ),
            Case(
                "both signs",
                (torch.tensor([-1.0, 0.5, 3.03]),),
                "low = -1, high = 3.03: scale 4.03 / 255, zero point round(-128 + 63.28) = -65.",
                mistakes=(
                    Mistake(second_is(3.03 / 127), "That is the symmetric scale: here the range is high - low."),
                    Mistake(lambda got: got[2] == -191, "The sign of low is turned: zero_point = round(-128 - low / scale)."),
                ),
            ),
            Case(
                "far from zero",
                (torch.tensor([10.5, 11.0, 12.5, 14.0]),),
                "The range always contains 0: low = min(0, smallest), high = max(0, largest). So low is 0 here.",
                mistakes=(
                    Mistake(
                        second_is(3.5 / 255),
                        "The range must contain 0: low = min(0, smallest). Otherwise the zero point is -893, no code, and "
                        "clamping it shifts every value (llm-awq#193).",
                    ),
                ),
            ),
            Case(
                "all negative",
                (torch.tensor([-2.0, -1.5, -0.3]),),
                "The range always contains 0: high = max(0, largest) is 0, so 0 has code 127.",
                mistakes=(
                    Mistake(second_is(1.7 / 255), "The range must contain 0 on this side too: high = max(0, largest)."),
                ),
            ),

            Case(
                "a largest value that rounds up twice",
                (torch.tensor([-1.5, 0.0, 253.5]),),
                "scale 1, zero point -126: 253.5 rounds to 254, and 254 - 126 = 128 is no int8. Keep codes within -128 and "
                "127 before you convert.",
                expected=(torch.tensor([-128, -126, 127], dtype=torch.int8), torch.tensor(1.0), -126),
                mistakes=(
                    Mistake(
                        codes_are(-128, -126, -128),
                        "The largest value has the smallest code: 128 wrapped to -128. Keep codes within -128 and 127 "
                        "before you convert to int8.",
                    ),
                ),
            ),
            Case(
                "all zeros",
                (torch.zeros(3),),
                "Zeros have scale 0, zero point 0 and codes 0: there is nothing to divide by.",
                mistakes=(Mistake(has_nan, "0 / 0 is NaN: treat scale 0 apart."),),
            ),
        ),
    ),
    Exercise(
        "4.3",
        "a scale for each block",
        quantize_blockwise,
        level="core",
        difficulty=3,
        importance=5,
        minutes=15,
        hints=(
            "You have 4.1. What do you call it on?",
            "Flatten in memory order and cut into pieces of blocksize, the last as short as it is. "
            "Quantize each piece for itself, join the codes and bring them into x's shape; collect "
            "one absmax a piece.",
        ),
        lesson="Let neighbours share a step",
        cases=(
            Case(
                "two blocks",
                (torch.tensor([0.1, 0.2, 50.0, 25.0]), 2),
                "The first two values share one scale, the next two another.",
                expected=(torch.tensor([64, 127, 127, 64], dtype=torch.int8), torch.tensor([0.2, 50.0])),
                mistakes=(
                    Mistake(codes_are(0, 1, 127, 64), "One scale for all: the outlier 50 squeezes 0.1 and 0.2 to 0 and 1."),
                    Mistake(
                        lambda got: got[0].shape == (2, 2),
                        "The codes have the shape of x: undo the view into blocks.",
                    ),
                    Mistake(
                        lambda got: got[1].shape == (2, 1),
                        "absmax has one dimension, a number for each block: no keepdim in what you return.",
                    ),
                    Mistake(
                        second_is([50.0, 25.0]),
                        "Blocks are neighbours: values 0 and 1, then 2 and 3. Here every second value was put together.",
                    ),
                ),
            ),
            Case(
                "a short last block",
                (torch.tensor([1.0, 2.0, 4.0, 8.0, -3.0]), 2),
                "Five values in blocks of two: the last block holds one value and has a scale of its own.",
                mistakes=(
                    Mistake(lambda got: len(got[1]) == 2, "The last value's block is missing: nothing may be dropped."),
                    Mistake(lambda got: got[0].numel() == 6, "The padding is still there: cut the codes to x's length."),
                ),
            ),
            Case(
                "blocks run across rows",
                (torch.tensor([[1.0, 2.0, 100.0], [4.0, 8.0, 3.0]]), 2),
                "Blocks follow the values in memory order: the second block is the 100 of row 0 and the 4 of row 1.",
                mistakes=(
                    Mistake(
                        lambda got: len(got[1]) == 4,
                        "Each row was cut for itself: blocks run through the whole tensor, x.reshape(-1).",
                    ),
                    Mistake(lambda got: got[0].dim() == 1, "The codes have the shape of x."),
                ),
            ),
            Case(
                "a block of zeros",
                (torch.tensor([0.0, 0.0, 0.0, 5.0, 1.0]), 3),
                "The first block has absmax 0 and codes 0; the second is as always.",
                mistakes=(Mistake(has_nan, "0 / 0 is NaN: treat blocks with absmax 0 apart."),),
            ),
            Case("a matrix that isn't contiguous", lambda: (torch.arange(6.0).view(2, 3).T, 2),
                 "Take the values in the order of x's own rows: reshape(-1), not view(-1) or the storage."),
        ),
    ),
    Exercise(
        "4.4",
        "levels from the normal distribution",
        normal_levels,
        level="core",
        difficulty=4,
        importance=3,
        minutes=20,
        hints=(
            "Write one side first: which probabilities, and what does the quantile function make of "
            "them?",
            "For a side with n levels take n + 1 equally spaced probabilities from outermost to 0.5 "
            "and leave 0.5 out. Quantiles of both sides, one with a minus, and a zero. Divide by the "
            "largest, sort.",
        ),
        lesson="Where should sixteen levels lie?",
        cases=(
            Case(
                "NF4",
                (7, 8, 0.9677083),
                "For n levels on a side: the quantiles of n + 1 equally spaced probabilities from outermost to 0.5, without "
                "the last; then zero; then divide everything by the largest.",
                expected=NF4.tolist(),
                rtol=1e-5,
                atol=1e-6,
                mistakes=(
                    Mistake(
                        lambda got: len(got) == 16 and max(got) > 1.5,
                        "Divide all levels by the largest, so that they reach from -1 to 1.",
                    ),
                    Mistake(lambda got: len(got) == 15, "Zero is a level of its own: 7 + 1 + 8 = 16."),
                    Mistake(lambda got: len(got) == 17, "0 is there twice: leave out the probability 0.5 of each side."),
                    Mistake(lambda got: list(got) != sorted(got), "In ascending order, please: sorted(...)."),
                    Mistake(
                        lambda got: len(got) == 16 and abs(got[-2] - 7 / 8) < 0.01,
                        "Those are equally spaced levels. Equally spaced are the probabilities; their quantiles are not.",
                    ),
                    Mistake(
                        lambda got: len(got) == 16 and min(got) > -0.999,
                        "The most negative level is -1: each side begins at the outermost quantile.",
                    ),
                ),
            ),
            Case(
                "eight levels",
                (3, 4, 0.9677083),
                "The number of levels on each side is a parameter: here 3, zero, and 4.",
                rtol=1e-5,
                atol=1e-6,
            ),
            Case("another outermost quantile", (7, 8, 0.99), "outermost is a parameter.", rtol=1e-5, atol=1e-6),
        ),
    ),
    Exercise(
        "4.5",
        "the nearest level",
        nearest_codes,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "For one value: how far is it from each level? Then for all values at once.",
            "Divide by the block's largest magnitude (zeros stay as they are). Make a table of "
            "distances, values down and levels across, and take the position of the smallest in each "
            "row, as uint8.",
        ),
        lesson="Where should sixteen levels lie?",
        cases=(
            Case(
                "values at levels",
                (torch.tensor([1.0, -1.0, 0.0, 0.5]), NF4),
                "0.5 lies between 0.4407 (code 12) and 0.5626 (code 13), nearer to the first.",
                expected=torch.tensor([15, 0, 7, 12], dtype=torch.uint8),
                mistakes=(
                    Mistake(lambda got: got.tolist() == [15, 0, 7, 13], "0.5 is nearer to 0.4407 than to 0.5626: not the next level up."),
                    Mistake(lambda got: got.is_floating_point(), "Return the level's index (its code), not its value."),
Mistake(lambda got: got.tolist() == [15, 0, 7, 12], "Right codes, as the wrong dtype: uint8, please."),
                ),
            ),
            Case(
                "nearer to the level above",
                (torch.tensor([1.0, 0.55, -0.62]), NF4),
                "0.55 is nearest to 0.5626 (code 13), -0.62 to -0.6962 (code 1).",
                expected=torch.tensor([15, 13, 1], dtype=torch.uint8),
                mistakes=(
                    Mistake(lambda got: got.tolist() == [15, 12, 1], "0.55 is nearer to 0.5626: don't take the level below, take the nearest."),
                ),
            ),
            Case(
                "a block of larger values",
                (torch.tensor([20.0, -10.0, 5.0]), NF4),
                "Divide by the block's absmax first: levels reach from -1 to 1.",
                mistakes=(
                    Mistake(lambda got: got.tolist() == [15, 0, 15], "Divide by absmax (20) first: the levels reach from -1 to 1 only."),
                ),
            ),

            Case(
                "a block of small values",
                (torch.tensor([0.02, -0.01, 0.005]), NF4),
                "Divide by the block's absmax, however small it is.",
            ),
            Case(
                "other levels",
                (torch.tensor([-0.8, 0.3, 0.7]), torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])),
                "levels is a parameter: here there are five, and the codes are 0 to 4.",
                expected=torch.tensor([0, 3, 4], dtype=torch.uint8),
            ),
            Case(
                "the largest magnitude is negative",
                (torch.tensor([-8.0, 4.0, 2.0]), NF4),
                "absmax is 8, so -8 becomes -1, code 0.",
                mistakes=(Mistake(lambda got: got[1].item() == 15, "Divided by the largest value, 4: take the largest magnitude, 8."),),
            ),
            Case(
                "all zeros",
                (torch.zeros(3), NF4),
                "Zeros get the code of level 0, which is 7.",
                expected=torch.tensor([7, 7, 7], dtype=torch.uint8),
                mistakes=(Mistake(lambda got: got.tolist() == [0, 0, 0], "0 / 0 is NaN, and the nearest to NaN is nothing: treat absmax 0 apart."),),
            ),
        ),
    ),
    Exercise(
        "4.6",
        "two codes to a byte",
        pack,
        level="warm-up",
        difficulty=2,
        importance=3,
        minutes=8,
        hints=(
            "What does moving a code up by four bits do to its number?",
            "An odd number of codes gets a 0 at its end. Every second code, from the first on, goes "
            "into the high half; the ones between into the low half. Join the two.",
        ),
        lesson="What a block takes in memory",
        cases=(
            Case(
                "four codes",
                (torch.tensor([15, 0, 7, 12], dtype=torch.uint8),),
                "The first code goes into the high half: 15 x 16 + 0 = 240, 7 x 16 + 12 = 124.",
                expected=torch.tensor([0xF0, 0x7C], dtype=torch.uint8),
                mistakes=(
                    Mistake(lambda got: got.tolist() == [0x0F, 0xC7], "The halves are exchanged: the first code goes into the high half (x 16, or << 4)."),
                    Mistake(lambda got: got.tolist() == [0xF7, 0x0C], "Neighbours share a byte: codes 0 and 1, then 2 and 3."),
                    Mistake(lambda got: got.tolist() == [15, 19], "Shift by 4 bits, or multiply by 16: the sum alone can't be taken apart again."),
                    Mistake(lambda got: got.numel() == 4, "Two codes share one byte: four codes are two bytes."),
                    Mistake(lambda got: got.tolist() == [240, 124] and got.dtype != torch.uint8, "One byte each: uint8."),
                ),
            ),
            Case(
                "an odd number",
                (torch.tensor([15, 0, 7], dtype=torch.uint8),),
                "The last code has no partner: its low half is 0, so 7 becomes 0x70 = 112.",
                mistakes=(
                    Mistake(lambda got: got.numel() == 1, "The last code was dropped: it has a byte of its own."),
                    Mistake(lambda got: got.tolist() == [0xF0, 0x07], "The last code goes into the high half as well: 0x70."),
                ),
            ),
            Case("one code", (torch.tensor([9], dtype=torch.uint8),), "One code is one byte, 0x90."),
            Case("nothing", (torch.zeros(0, dtype=torch.uint8),), "No codes, no bytes."),
        ),
    ),
    Exercise(
        "4.7",
        "what a value costs",
        bits_per_value,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "Spread a scale's bits over the values that share it.",
            "The value's own bits, plus a block's scale divided by the block. With a second level, 32"
            " more bits divided by all the values that share them.",
        ),
        lesson="What a block takes in memory",
        cases=(
            Case(
                "NF4",
                (4, 64, 32, 0),
                "64 values share a scale of 32 bits: half a bit each.",
                expected=4.5,
                mistakes=(
                    Mistake(36.0, "A scale for every value? 64 values share one."),
                    Mistake(4.0, "The scales take room too: 32 bits for every 64 values."),
                    Mistake(6.0, "64 values share 32 bits: 32 / 64, not 64 / 32."),
                    Mistake(288.0, "That is the block: divide by its number of values."),
                    Mistake(0.5625, "Those are bytes: the answer is in bits."),
                ),
            ),
            Case("int8", (8, 128, 32, 0), "8 + 32 / 128.", expected=8.25,
                 mistakes=(Mistake(8.5, "The block size is a parameter: 128 here."),)),
            Case(
                "double quantization",
                (4, 64, 8, 256),
                "Scales take 8 bits, and 256 of them share one of 32 bits: 4 + 8 / 64 + 32 / (64 x 256).",
                expected=4.126953125,
                mistakes=(
                    Mistake(4.125, "The second level is missing: 32 bits for every 256 scales, so for every 64 x 256 values."),
                    Mistake(4.25, "One second-level scale covers 256 scales of 64 values each: 32 / (64 x 256), not 32 / 256."),
                    Mistake(lambda got: abs(got - 4.625) < 0.01, "Scales take scale_bits = 8 here, in place of 32."),
                ),
            ),
            Case("nvfp4", (4, 16, 8, 0), "4 + 8 / 16: 4.5 bits, 9 / 16 of a byte.", expected=4.5),
        ),
    ),
    Exercise(
        "4.8",
        "outlier columns",
        split_outliers,
        level="core",
        difficulty=4,
        importance=4,
        minutes=20,
        hints=(
            "What is left of the matrix once the outlier columns are taken out, and whose absmax is "
            "it then?",
            "Mark magnitudes at or over the threshold; a column with any mark is an outlier column. "
            "Put zeros into these columns as a whole. What remains is quantized row by row with its "
            "own absmax, as in 4.1.",
        ),
        lesson="What flows between the layers",
        cases=(
            Case(
                "one large value",
                (torch.tensor([[1.0, 8.0, 0.5], [0.1, 0.2, -0.3]]), 6.0),
                "Column 1 holds an 8: it is taken out of all rows. The rest of each row is quantized with its own absmax.",
                expected=([1], torch.tensor([[127, 0, 64], [42, 0, -127]], dtype=torch.int8), torch.tensor([1.0, 0.3])),
                mistakes=(
                    Mistake(
                        lambda got: got[1].tolist() == [[16, 127, 8], [42, 85, -127]],
                        "The outlier is still in: its row's scale is 8, and 0.5 keeps 8 of 127 steps.",
                    ),
                    Mistake(
                        lambda got: got[1].tolist() == [[127, 0, 64], [42, 85, -127]],
                        "Only the large value was zeroed. The whole column is multiplied in floating point, so its codes "
                        "are 0 in every row.",
                    ),
                    Mistake(
                        lambda got: got[1].tolist() == [[16, 0, 8], [42, 0, -127]],
                        "The row's absmax still contains the outlier: zero it before you take the absmax.",
                    ),
                    Mistake(
                        lambda got: got[2].dim() == 0 or len(got[2]) != 2,
                        "One absmax for each row.",
                    ),
                ),
            ),
            Case(
                "a negative outlier, and one just at the threshold",
                (torch.tensor([[1.0, -7.0, 0.5, 2.0], [6.0, 0.2, -0.3, 1.0]]), 6.0),
                "Magnitudes of 6 or more are outliers: -7 in column 1, and the 6 in column 0.",
                mistakes=(
                    Mistake(lambda got: list(got[0]) == [0], "-7 has magnitude 7: compare abs(x) with the threshold."),
                    Mistake(lambda got: list(got[0]) == [1], "6.0 is an outlier too: >=, not >."),
Mistake(lambda got: list(got[0]) == [1, 0], "The columns in ascending order, please."),
                ),
            ),
            Case("two in one column", (torch.tensor([[9.0, 1.0], [7.0, 2.0]]), 6.0),
                 "A column is listed once, however many outliers it holds.",
                 mistakes=(Mistake(lambda got: list(got[0]) == [0, 0], "Column 0 is listed twice: each column once."),)),
            Case(
                "a large value beside an outlier's column",
                (torch.tensor([[5.9, 0.5], [8.0, 0.1]]), 6.5),
                "Column 0 is taken out. absmax is a row's largest magnitude below the threshold, in every column: 5.9 in row 0.",
                expected=([0], torch.tensor([[0, 11], [0, 127]], dtype=torch.int8), torch.tensor([5.9, 0.1])),
                mistakes=(
                    Mistake(
                        second_absmax(0.5, 0.1),
                        "absmax was taken of the columns that are left. Here, as in bitsandbytes, it is the row's largest "
                        "magnitude below the threshold in any column.",
                    ),
                ),
            ),
            Case("no outliers", (torch.tensor([[1.0, -2.0], [0.5, 0.25]]), 2.5), "No columns, and plain codes row by row."),
            Case("a row of zeros", (torch.tensor([[0.0, 0.0], [1.0, -4.0]]), 3.5), "A row of zeros has absmax 0 and codes 0; 4 is over the threshold here.",
                 mistakes=(Mistake(has_nan, "0 / 0 is NaN: treat rows with absmax 0 apart."),)),
        ),
    ),
)  # fmt: skip
