"""Exercises of lab 04: quantizers, from one scale to outlier columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import torch

from onegpu import quantization
from onegpu.exercises.exercise import Case, Exercise, Mistake

EIGHT = torch.tensor([1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4])
NF4 = quantization.table("nf4")
NORMAL = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
HEAVY = torch.where(torch.arange(64 * 128).view(64, 128) % 500 == 7, 10.0, 1.0) * NORMAL.flip(0) / 30


def bits_needed(x: torch.Tensor, tolerance: float) -> int | None:
    """The fewest bits, 2 to 16, with which absmax quantization of ``x`` is off by ``tolerance`` at most."""
    absmax = float(x.abs().max())
    for bits in range(2, 17):
        if absmax / (2 ** (bits - 1) - 1) / 2 <= tolerance:
            return bits
    return None


def quantize_minmax(x: torch.Tensor, blocksize: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """4-bit codes between each block's minimum and maximum, the minimum, and the step."""
    blocks = x.reshape(-1, blocksize)
    minimum = blocks.amin(1)
    step = (blocks.amax(1) - minimum) / 15
    codes = torch.round((blocks - minimum[:, None]) / torch.where(step > 0, step, 1.0)[:, None])
    return codes.to(torch.uint8).view(x.shape), minimum, step


def quantize_blockwise(x: torch.Tensor, blocksize: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Int8 codes of ``x``, and the absmax of each block."""
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


def perplexity(model: Any, ids: torch.Tensor) -> float:
    """How unsure a model is of each next token of ``ids``, of shape (1, tokens)."""
    return quantization.perplexity(model, ids).value


def my_format(weight: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """NF4 in blocks of 32 with scales in 16 bits: the tensors to store, and the weights that come out of them."""
    q = quantization.quantize_4bit(weight, "nf4", 32)
    scales = q.scales.half()
    levels = NF4[quantization.unpack_4bit(q.codes, weight.numel()).long()].view(-1, 32)
    return [q.codes, scales], (levels * scales.float()[:, None]).view(weight.shape)


def split_outliers(x: torch.Tensor, threshold: float) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Outlier columns of ``x``, int8 codes of the rest, and each row's absmax below the threshold."""
    split = quantization.split_outliers(x, threshold)
    return split.columns.tolist(), split.quantized.codes, split.quantized.scales


class Told:
    """A model whose logits are given: (tokens, vocabulary), for whatever it is asked."""

    def __init__(self, probabilities: torch.Tensor) -> None:
        self.logits = probabilities.log()[None]

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits[:, : input_ids.shape[1]])


def _told() -> tuple[Told, torch.Tensor]:
    # The token after position t is given 1/2, 1/4, 1/8; the token *at* position t is given 1/16 throughout.
    rows = [
        [1 / 16, 1 / 2, 1 / 4, 3 / 16],
        [1 / 4, 1 / 16, 1 / 4, 7 / 16],
        [1 / 8, 9 / 16, 1 / 16, 1 / 4],
        [1 / 16, 1 / 8, 1 / 8, 11 / 16],
    ]
    return Told(torch.tensor(rows)), torch.tensor([[0, 1, 2, 0]])


def _knows_nothing() -> tuple[Told, torch.Tensor]:
    return Told(torch.full((6, 50), 1 / 50)), torch.tensor([[3, 1, 4, 1, 5, 9]])


def _tiny() -> tuple[Any, torch.Tensor]:
    from onegpu.models import tiny_model

    return tiny_model(), torch.arange(5, 25)[None]


def _is_about(value: float):
    return lambda got: abs(float(got) - value) < 1e-3 * abs(value)


BITS_ALLOWED = 4.5
LOUDEST_DB = 15.0


def _format_differs(got: Any, _: Any, weight: torch.Tensor) -> str | None:
    """What is wrong with a learner's own format: a property, not a value."""
    if not (isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[1], torch.Tensor)):
        return "expected two things: a list of the tensors to store, and the restored weight"
    stored, restored = got
    if isinstance(stored, torch.Tensor) or not all(isinstance(part, torch.Tensor) for part in stored):
        return "the first part is no list of tensors"
    if restored.shape != weight.shape:
        return f"restored has the shape {tuple(restored.shape)}, the weight {tuple(weight.shape)}"
    if not restored.isfinite().all():
        return "restored holds NaN or infinity"
    bits = 8 * sum(part.nbytes for part in stored) / weight.numel()
    if bits > BITS_ALLOWED:
        return f"what is stored takes {bits:.3g} bits a weight, at most {BITS_ALLOWED:g} are allowed"
    if not weight.any():
        return "zeros don't come back as zeros" if restored.any() else None
    decibels = quantization.quantization_error(weight, restored.to(weight.dtype)).sqnr_db
    if decibels > 20 * math.log10(2) * bits:
        return (
            f"the error is smaller ({decibels:.1f} dB) than {bits:.3g} bits a weight can make it "
            f"({20 * math.log10(2) * bits:.1f} dB): restored doesn't come out of what is stored alone"
        )
    return f"the error is too large ({decibels:.1f} dB)" if decibels < LOUDEST_DB else None


def _format_case(name: str, weight: torch.Tensor, hint: str) -> Case:
    return Case(
        name,
        (weight,),
        hint,
        compare=lambda got, expected: _format_differs(got, expected, weight),
        mistakes=(
            Mistake(
                lambda got: 8 * sum(part.nbytes for part in got[0]) / weight.numel() > BITS_ALLOWED,
                "Count what is stored: codes two to a byte (pack), and the scales in as few bytes as they need.",
            ),
            Mistake(
                lambda got: not got[1].isfinite().all() or (not weight.any() and got[1].any()),
                "A block of zeros comes back as zeros: guard the division.",
            ),
            Mistake(lambda got: got[1].shape != weight.shape, "Undo the blocks: restored has the weight's shape."),
            Mistake(
                lambda got: "alone" in str(_format_differs(got, None, weight)),
                "Restore from the stored tensors and nothing else.",
            ),
            Mistake(
                lambda got: "too large" in str(_format_differs(got, None, weight)),
                "Compare restored with the weight block by block: are scale and level those of the same value?",
            ),
        ),
    )  # fmt: skip


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


def third_is(expected: Any):
    """A mistake that gives this as the third part of the result, about."""
    return lambda got: torch.allclose(
        torch.as_tensor(got[2]).float().reshape(-1), torch.tensor(expected), 1e-4
    )


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
        "how many bits it takes",
        bits_needed,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=10,
        hints=(
            "How far off can a value be at most, if the largest magnitude and the bits are known?",
            "Half a step is the most that rounding can lose, and a step is absmax over the largest code, "
            "2^(bits-1) - 1. Try bits from 2 to 16 and return the first that keeps the promise.",
        ),
        lesson="One byte for a number",
        cases=(
            Case(
                "eight numbers to within 0.025",
                (EIGHT, 0.025),
                "With 8 bits a step is 5.4 / 127 = 0.0425 and half of it 0.0213; with 7 bits half a step is 0.0429.",
                expected=8,
                mistakes=(
                    Mistake(9, "No value loses more than half a step: here a whole step was compared."),
                    Mistake(7, "The largest code of b bits is 2^(b-1) - 1: with 7 bits 63, not 127."),
                    Mistake(0.0425, "That is a step: the number of bits was asked for."),
                ),
            ),
            Case(
                "the largest magnitude is negative",
                (torch.tensor([-3.0, 1.0, 0.5]), 0.25),
                "absmax is 3: with 4 bits half a step is 3 / 7 / 2 = 0.214, with 3 bits 0.5.",
                expected=4,
                mistakes=(Mistake(3, "absmax is the largest magnitude, 3: take abs() before max()."),),
            ),
            Case(
                "exactly",
                (torch.tensor([7.0, 3.5]), 0.5),
                "With 4 bits a step is 1 and half of it 0.5: exactly the tolerance is allowed.",
                expected=4,
                mistakes=(Mistake(5, "Off by exactly the tolerance is allowed: <=, not <."),),
            ),
            Case(
                "a promise, not luck",
                (torch.tensor([127.0, 3.0, 64.0]), 0.4),
                "With 8 bits these three happen to lose nothing, but half a step is 0.5: 9 bits keep the promise for any "
                "values up to 127.",
                expected=9,
                mistakes=(Mistake(8, "These values happen to lie on the ticks. Asked is what no value can exceed: half a step."),),
            ),
            Case(
                "a matrix of zeros",
                (torch.zeros(2, 3), 0.1),
                "Zeros lose nothing with any number of bits: the fewest are 2.",
                expected=2,
            ),
            Case(
                "a hair too little",
                (EIGHT, 0.0212),
                "With 8 bits half a step is 5.4 / 127 / 2 = 0.02126, a little more than 0.0212: 9 bits.",
                expected=9,
                mistakes=(Mistake(8, "The largest code of 8 bits is 127, not 128: half a step is 0.02126."),),
            ),
            Case(
                "all 16 bits",
                (torch.tensor([1000.0, 0.5]), 0.016),
                "With 16 bits half a step is 1000 / 32767 / 2 = 0.01526, with 15 bits 0.0305.",
                expected=16,
                mistakes=(Mistake(None, "16 bits are allowed, and they do."),),
            ),
            Case(
                "more than 16 bits",
                (torch.tensor([1000.0, 0.001]), 0.008),
                "With 16 bits half a step is 0.01526: not enough. 17 bits would do, but 16 are the most: None.",
                expected=None,
                mistakes=(
                    Mistake(16, "16 bits don't reach the tolerance: return None."),
                    Mistake(lambda got: isinstance(got, int) and got > 16, "Only up to 16 bits: return None beyond."),
                ),
            ),
        ),
    ),
    Exercise(
        "4.2",
        "minimum and step in each block",
        quantize_minmax,
        level="core",
        difficulty=3,
        importance=4,
        minutes=20,
        hints=(
            "What does code 0 stand for here, and what does code 15?",
            "Rows of blocksize values; each row's minimum; the step is the row's range over 15. A code is how many steps a "
            "value lies above its row's minimum, rounded. Where the range is 0, divide by anything else. Codes go back into "
            "x's shape as uint8.",
        ),
        lesson="When all values lie on one side",
        cases=(
            Case(
                "two blocks",
                (torch.tensor([0.0, 15.0, 3.0, 7.6, -1.0, 0.52, 2.0, 1.0]), 4),
                "The first block goes from 0 to 15 in steps of 1, the second from -1 to 2 in steps of 0.2.",
                expected=(
                    torch.tensor([0, 15, 3, 8, 0, 8, 15, 10], dtype=torch.uint8),
                    torch.tensor([0.0, -1.0]),
                    torch.tensor([1.0, 0.2]),
                ),
                mistakes=(
                    Mistake(lambda got: len(got[1]) == 1, "Minimum and step belong to a block, not to the whole tensor."),
                    Mistake(third_is([15 / 16, 3 / 16]), "16 codes have 15 steps between them."),
                    Mistake(third_is([15 / 7, 2 / 7]), "That is the symmetric step: here the block's minimum is code 0."),
                    Mistake(lambda got: got[0].tolist()[3] == 7, "Cut off, not rounded: 7.6 steps are code 8."),
                    Mistake(lambda got: got[0].dim() == 2, "The codes have the shape of x: undo the blocks."),
                    Mistake(second_is([15.0, 2.0]), "The second result is the minimum, not the maximum."),
                ),
            ),
            Case(
                "far from zero",
                (torch.tensor([10.5, 11.0, 12.5, 14.0, 11.5, 13.0]), 6),
                "Nothing here has to contain 0: the minimum is 10.5 and the step 3.5 / 15.",
                mistakes=(Mistake(second_is([0.0]), "The range was stretched to 0, which this format doesn't need: it stores the minimum."),),
            ),
            Case(
                "blocks run across rows",
                (torch.tensor([[0.0, 30.0, 4.0], [9.0, 7.0, 6.0]]), 2),
                "Blocks follow the values in memory order: the second holds the 4 of row 0 and the 9 of row 1.",
                expected=(
                    torch.tensor([[0, 15, 0], [15, 15, 0]], dtype=torch.uint8),
                    torch.tensor([0.0, 4.0, 6.0]),
                    torch.tensor([2.0, 1 / 3, 1 / 15]),
                ),
            ),
            Case(
                "a block of equal values",
                (torch.tensor([3.0, 3.0, 3.0, 1.0, 2.0, 4.0]), 3),
                "Equal values have step 0 and codes 0: the minimum is the value.",
                expected=(
                    torch.tensor([0, 0, 0, 0, 5, 15], dtype=torch.uint8),
                    torch.tensor([3.0, 1.0]),
                    torch.tensor([0.0, 0.2]),
                ),
                mistakes=(Mistake(lambda got: got[2].tolist()[0] != 0, "The step of equal values is 0: guard the division, return what the block has."),),
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
            "The lesson's function needs whole blocks. What is different about the last one?",
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
        "perplexity",
        perplexity,
        level="core",
        difficulty=3,
        importance=5,
        minutes=15,
        hints=(
            "The logits at position t are the model's guess about which token?",
            "Leave out the last position's logits and the first token; cross-entropy of the rest, mean over "
            "the tokens; e to that, as a Python float.",
        ),
        lesson="What it does to the model",
        cases=(
            Case(
                "four tokens",
                _told,
                "The next tokens are given 1/2, 1/4 and 1/8. The mean loss is ln 64 / 3 = ln 4, so the perplexity is 4.",
                expected=4.0,
                mistakes=(
                    Mistake(_is_about(16.0), "Logits at position t are about token t + 1: here they were compared with token t."),
                    Mistake(_is_about(math.log(4)), "That is the mean loss: perplexity is e to it."),
                    Mistake(_is_about(64.0), "The mean over the tokens, not the sum, before e."),
                    Mistake(_is_about(2 ** math.log(4)), "The loss is in nats: e to it, not 2."),
                    Mistake(_is_about(3 / (7 / 8)), "The mean of the logarithms, not the logarithm of the mean."),
                    Mistake(_is_about(14 / 3), "Each token's own e to the loss was averaged: take the mean of the losses first."),
                ),
            ),
            Case(
                "a model that knows nothing",
                _knows_nothing,
                "50 equally likely tokens: perplexity 50.",
                expected=50.0,
            ),
            Case("a tiny Llama", _tiny, "As onegpu.quantization.perplexity computes it.", rtol=1e-4),
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
            "A row's absmax leaves out which values? And which columns have no codes?",
            "Mark magnitudes at or over the threshold; a column with any mark is an outlier column. A row's "
            "absmax is that of its values without a mark, in whichever column they stand. Quantize each row "
            "with it to -127..127, then put 0 into the codes of the outlier columns as a whole.",
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
    Exercise(
        "4.9",
        "a format of your own",
        my_format,
        level="stretch",
        difficulty=5,
        importance=3,
        minutes=60,
        hints=(
            "NF4 spends 4 bits on where and half a bit on how large. Would you divide them otherwise?",
            "Begin with what works: blocks, absmax, nearest level, pack; store codes and scales. Then change one "
            "thing at a time: scales in 16 bits and smaller blocks, levels fitted to the weights, the outlier's sign "
            "in the scale.",
        ),
        lesson="Where should sixteen levels lie?",
        cases=(
            _format_case("normal weights", NORMAL, "Stored and restored: shapes, bits, error."),
            _format_case("weights with outliers", HEAVY, "One weight in 500 is ten times as large: blocks confine it."),
            _format_case("zeros", torch.zeros(64, 128), "A layer of zeros comes back as zeros."),
        ),
        time_limit_s=60.0,
    ),
)  # fmt: skip
