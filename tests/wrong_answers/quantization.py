"""What people hand in for the exercises of lab 04."""

from statistics import NormalDist

import numpy as np
import torch
from onegpu import quantization
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right


def safe(absmax):
    """The divisor: absmax, and 1 where it is 0."""
    return torch.where(absmax > 0, absmax, torch.ones_like(absmax))


# 4.1 ------------------------------------------------------------------------------------------------------------------


@wrong("4.1", "multiplies by 128", case="eight numbers", says="-127 to 127")
def by_128(x):
    absmax = x.abs().max()
    return (x / safe(absmax) * 128).round().int().to(torch.int8), absmax


@wrong("4.1", "cuts off", case="eight numbers", says="drops the fraction")
def cuts(x):
    absmax = x.abs().max()
    return (x / safe(absmax) * 127).to(torch.int8), absmax


@wrong("4.1", "rounds down", case="eight numbers", says="Rounded down")
def floors(x):
    absmax = x.abs().max()
    return (x / safe(absmax) * 127).floor().to(torch.int8), absmax


@wrong("4.1", "returns the step", case="eight numbers", says="absmax itself")
def returns_step(x):
    absmax = x.abs().max()
    return (x / safe(absmax) * 127).round().to(torch.int8), absmax / 127


@wrong("4.1", "returns the factor", case="eight numbers", says="not the factor")
def returns_factor(x):
    absmax = x.abs().max()
    return (x / safe(absmax) * 127).round().to(torch.int8), 127 / absmax


@wrong("4.1", "drops the signs", case="eight numbers", says="signs are lost")
def drops_signs(x):
    absmax = x.abs().max()
    return (x.abs() / safe(absmax) * 127).round().to(torch.int8), absmax


@wrong(
    "4.1",
    "largest value, not magnitude",
    case="the largest magnitude is negative",
    says="take abs() before max()",
)
def largest_value(x):
    largest = x.max()
    return (x / safe(largest) * 127).round().clamp(-127, 127).to(torch.int8), largest


@wrong("4.1", "a scale for each row", case="a matrix", says="whole tensor shares one")
def rowwise(x):
    absmax = x.abs().amax(-1, keepdim=True)
    codes = (x / safe(absmax) * 127).round().to(torch.int8)
    return codes, absmax.squeeze(-1)


@wrong("4.1", "flattens", case="a matrix", says="shape of x")
def flattens(x):
    absmax = x.abs().max()
    return (x.reshape(-1) / safe(absmax) * 127).round().to(torch.int8), absmax


@wrong("4.1", "no guard for zeros", case="all zeros", says="0 / 0")
def divides_by_zero(x):
    absmax = x.abs().max()
    scaled = x / absmax * 127
    return scaled.round().to(torch.int8), absmax * scaled.abs().max() / 127


@wrong("4.1", "invents a scale for zeros", case="all zeros", says="what the tensor has")
def invents(x):
    absmax = x.abs().max().clamp(min=1e-8)
    return (x / absmax * 127).round().to(torch.int8), absmax


@right("4.1", "a guard with where")
def guarded(x):
    absmax = x.abs().max()
    return (x / safe(absmax) * 127).round().to(torch.int8), absmax


@right("4.1", "times 127 first")
def times_first(x):
    absmax = x.abs().max()
    if absmax == 0:
        return torch.zeros(x.shape, dtype=torch.int8), absmax
    return torch.round(127 * x / absmax).to(torch.int8), absmax


@right("4.1", "by the step")
def by_step(x):
    absmax = torch.max(x.max(), -x.min())
    step = absmax / 127
    codes = torch.round(x / step) if step > 0 else torch.zeros_like(x)
    return codes.type(torch.int8), absmax


# 4.2 ------------------------------------------------------------------------------------------------------------------


def affine(x, low, high, *, steps=255, bottom=-128, turn=1):
    """The right rule, with one part of it wrong."""
    scale = (high - low) / steps
    if scale == 0:
        return torch.zeros(x.shape, dtype=torch.int8), scale, 0
    zero = int(torch.round(bottom - turn * low / scale))
    return (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8), scale, zero


def zero_in(x):
    zero = torch.zeros(())
    return torch.minimum(zero, x.min()), torch.maximum(zero, x.max())


@wrong("4.2", "half the codes", case="from zero up", says="waste half of int8")
def half(x):
    low, high = zero_in(x)
    return affine(x, low, high, steps=127, bottom=0)


@wrong("4.2", "256 steps", case="from zero up", says="255 steps")
def steps_256(x):
    return affine(x, *zero_in(x), steps=256)


@wrong("4.2", "codes from 0 to 255", case="from zero up", says="half of int8")
def unsigned(x):
    return affine(x, *zero_in(x), bottom=0)


@wrong("4.2", "symmetric", case="both signs", says="symmetric scale")
def symmetric(x):
    low, high = zero_in(x)
    if low == 0:
        return affine(x, low, high)
    absmax = x.abs().max()
    return (x / absmax * 127).round().to(torch.int8), absmax / 127, 0


@wrong("4.2", "turns the sign of low", case="both signs", says="sign of low is turned")
def turned(x):
    return affine(x, *zero_in(x), turn=-1)


@wrong("4.2", "range without zero", case="far from zero", says="must contain 0")
def plain_range(x):
    low, high = x.min(), x.max()
    return affine(x, low, high)


@wrong("4.2", "zero only on the low side", case="all negative", says="on this side too")
def one_side(x):
    return affine(x, torch.minimum(torch.zeros(()), x.min()), x.max())


@wrong("4.2", "no guard for zeros", case="all zeros", says="0 / 0")
def zeros_divide(x):
    low, high = zero_in(x)
    scale = (high - low) / 255
    if scale == 0:
        return torch.zeros(x.shape, dtype=torch.int8), low / scale, 0
    return affine(x, low, high)


@right("4.2", "clamped range")
def clamped(x):
    return affine(x, *zero_in(x))


@right("4.2", "with Python numbers")
def by_numbers(x):
    low, high = min(0.0, x.min().item()), max(0.0, x.max().item())
    scale = (high - low) / 255
    if not scale:
        return torch.zeros(x.shape, dtype=torch.int8), torch.tensor(0.0), 0
    zero = round(-128 - low / scale)
    return torch.clamp(torch.round(x / scale) + zero, -128, 127).to(torch.int8), torch.tensor(scale), zero


@right("4.2", "a zero appended")
def appended(x):
    both = torch.cat([x.reshape(-1), torch.zeros(1)])
    return affine(x, both.min(), both.max())


# 4.3 ------------------------------------------------------------------------------------------------------------------


def blocks_of(x, blocksize):
    values = x.reshape(-1)
    missing = -len(values) % blocksize
    return torch.cat([values, values.new_zeros(missing)]).view(-1, blocksize)


@wrong("4.3", "one scale for all", case="two blocks", says="One scale for all")
def one_scale(x, blocksize):
    absmax = x.abs().max()
    return (x / absmax * 127).round().to(torch.int8), absmax.repeat(-(-x.numel() // blocksize))


@wrong("4.3", "codes stay in blocks", case="two blocks", says="undo the view")
def stays(x, blocksize):
    blocks = blocks_of(x, blocksize)
    absmax = blocks.abs().amax(1)
    return (blocks / safe(absmax)[:, None] * 127).round().to(torch.int8), absmax


@wrong("4.3", "keepdim returned", case="two blocks", says="no keepdim")
def keepdim(x, blocksize):
    blocks = blocks_of(x, blocksize)
    absmax = blocks.abs().amax(1, keepdim=True)
    codes = (blocks / safe(absmax) * 127).round().to(torch.int8)
    return codes.view(-1)[: x.numel()].view(x.shape), absmax


@wrong("4.3", "every second value", case="two blocks", says="Blocks are neighbours")
def interleaved(x, blocksize):
    blocks = x.reshape(blocksize, -1)
    absmax = blocks.abs().amax(0)
    return (blocks / safe(absmax) * 127).round().to(torch.int8).view(x.shape), absmax


@wrong("4.3", "drops the last block", case="a short last block", says="nothing may be dropped")
def drops(x, blocksize):
    whole = x.numel() // blocksize * blocksize
    blocks = x.reshape(-1)[:whole].view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    codes = (blocks / safe(absmax)[:, None] * 127).round().to(torch.int8).view(-1)
    return torch.cat([codes, codes.new_zeros(x.numel() - whole)]).view(x.shape), absmax


@wrong("4.3", "keeps the padding", case="a short last block", says="padding is still there")
def padded(x, blocksize):
    blocks = blocks_of(x, blocksize)
    absmax = blocks.abs().amax(1)
    codes = (blocks / safe(absmax)[:, None] * 127).round().to(torch.int8).view(-1)
    return (codes.view(x.shape) if codes.numel() == x.numel() else codes), absmax


@wrong("4.3", "each row for itself", case="blocks run across rows", says="through the whole tensor")
def each_row(x, blocksize):
    rows = x if x.dim() == 2 else x[None]
    parts = [solve(row, blocksize) for row in rows]
    return torch.stack([codes for codes, _ in parts]).view(x.shape), torch.cat(
        [absmax for _, absmax in parts]
    )


@wrong("4.3", "no guard for zeros", case="a block of zeros", says="0 / 0")
def unguarded(x, blocksize):
    blocks = blocks_of(x, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax[:, None] * 127
    return scaled.round().to(torch.int8).view(-1)[: x.numel()].view(x.shape), absmax * scaled.abs().amax(
        1
    ) / 127


@wrong("4.3", "storage order", case="a matrix that isn't contiguous", says="reshape(-1)")
def storage(x, blocksize):
    codes, absmax = (
        solve(x.T.contiguous(), blocksize) if x.dim() == 2 and not x.is_contiguous() else solve(x, blocksize)
    )
    return (codes.T if codes.shape != x.shape else codes), absmax


def solve(x, blocksize):
    blocks = blocks_of(x, blocksize)
    absmax = blocks.abs().amax(1)
    codes = (blocks / safe(absmax)[:, None] * 127).round().to(torch.int8)
    return codes.view(-1)[: x.numel()].view(x.shape), absmax


@right("4.3", "padded blocks")
def by_padding(x, blocksize):
    return solve(x, blocksize)


@right("4.3", "a loop over blocks")
def by_loop(x, blocksize):
    values = x.flatten()
    codes, scales = torch.empty(values.shape, dtype=torch.int8), []
    for start in range(0, len(values), blocksize):
        block = values[start : start + blocksize]
        absmax = block.abs().max()
        scales.append(absmax)
        codes[start : start + blocksize] = torch.round(127 * block / absmax) if absmax > 0 else 0
    return codes.reshape(x.shape), torch.stack(scales)


@right("4.3", "torch.split")
def by_split(x, blocksize):
    parts = x.reshape(-1).split(blocksize)
    absmax = torch.stack([part.abs().max() for part in parts])
    codes = [(part / safe(m) * 127).round() for part, m in zip(parts, absmax, strict=True)]
    return torch.cat(codes).to(torch.int8).reshape(x.shape), absmax


# 4.4 ------------------------------------------------------------------------------------------------------------------

inverse = NormalDist().inv_cdf


def side(count, outermost, *, last=False):
    found = [inverse(p) for p in np.linspace(outermost, 0.5, count + 1)]
    return found if last else found[:-1]


@wrong("4.4", "not divided by the largest", case="NF4", says="Divide all levels")
def undivided(negative, positive, outermost):
    return sorted([*(-q for q in side(negative, outermost)), 0.0, *side(positive, outermost)])


@wrong("4.4", "no zero", case="NF4", says="Zero is a level")
def no_zero(negative, positive, outermost):
    top = side(positive, outermost)
    return sorted([*(-q / top[0] for q in side(negative, outermost)), *(q / top[0] for q in top)])


@wrong("4.4", "zero twice", case="NF4", says="there twice")
def zero_twice(negative, positive, outermost):
    top = side(positive, outermost, last=True)
    return sorted([*(-q / top[0] for q in side(negative, outermost, last=True)), *(q / top[0] for q in top)])


@wrong("4.4", "not sorted", case="NF4", says="ascending")
def unsorted(negative, positive, outermost):
    top = side(positive, outermost)
    return [*(q / top[0] for q in top), 0.0, *(-q / top[0] for q in side(negative, outermost))]


@wrong("4.4", "equal steps", case="NF4", says="equally spaced levels")
def equal_steps(negative, positive, outermost):
    return [-i / negative for i in range(negative, 0, -1)] + [i / positive for i in range(positive + 1)]


@wrong("4.4", "quantiles of one long row", case="NF4", says="most negative level is -1")
def one_row(negative, positive, outermost):
    count = negative + positive + 1
    found = [inverse(p) for p in np.linspace(1 - outermost, outermost, count + 1)[1:]]
    found[min(range(count), key=lambda i: abs(found[i]))] = 0.0
    return [q / max(found) for q in found]


@wrong("4.4", "always NF4", case="eight levels", says="is a parameter")
def always_nf4(negative, positive, outermost):
    return full(7, 8, outermost)


@wrong("4.4", "always 0.9677", case="another outermost quantile", says="outermost is a parameter")
def always_outermost(negative, positive, outermost):
    return full(negative, positive, 0.9677083)


def full(negative, positive, outermost):
    top = side(positive, outermost)
    return sorted(q / top[0] for q in [*(-q for q in side(negative, outermost)), 0.0, *top])


@right("4.4", "with numpy's linspace")
def by_linspace(negative, positive, outermost):
    return full(negative, positive, outermost)


@right("4.4", "with torch's quantile function")
def by_torch(negative, positive, outermost):
    def half_side(count):
        return torch.special.ndtri(torch.linspace(outermost, 0.5, count + 1, dtype=torch.float64)[:-1])

    levels = (
        torch.cat([-half_side(negative), torch.zeros(1, dtype=torch.float64), half_side(positive)])
        .sort()
        .values
    )
    return (levels / levels.max()).tolist()


@right("4.4", "built outwards")
def outwards(negative, positive, outermost):
    step_up, step_down = (outermost - 0.5) / positive, (outermost - 0.5) / negative
    up = [inverse(0.5 + step_up * i) for i in range(1, positive + 1)]
    down = [-inverse(0.5 + step_down * i) for i in range(negative, 0, -1)]
    return [level / up[-1] for level in (*down, 0.0, *up)]


# 4.5 ------------------------------------------------------------------------------------------------------------------


def nearest(scaled, levels):
    return (scaled[:, None] - levels).abs().argmin(1).to(torch.uint8)


def scale_by(x, largest):
    return x / largest if largest > 0 else x


@wrong("4.5", "the next level up", case="values at levels", says="not the next level up")
def next_up(x, levels):
    return torch.bucketize(scale_by(x, x.abs().max()), levels).to(torch.uint8)


@wrong("4.5", "returns the level", case="values at levels", says="index")
def returns_level(x, levels):
    return levels[nearest(scale_by(x, x.abs().max()), levels).long()]


@wrong("4.5", "int64 codes", case="values at levels", says="uint8")
def long_codes(x, levels):
    return nearest(scale_by(x, x.abs().max()), levels).long()


@wrong("4.5", "the level below", case="nearer to the level above", says="nearer to 0.5626")
def level_below(x, levels):
    scaled = scale_by(x, x.abs().max())
    return (torch.bucketize(scaled, levels, right=True) - 1).to(torch.uint8)


@wrong("4.5", "no scaling", case="a block of larger values", says="reach from -1 to 1 only")
def unscaled(x, levels):
    return nearest(x, levels)


@wrong(
    "4.5",
    "largest value, not magnitude",
    case="the largest magnitude is negative",
    says="largest magnitude, 8",
)
def by_largest(x, levels):
    return nearest(scale_by(x, x.max()), levels)


@wrong("4.5", "no guard for zeros", case="all zeros", says="0 / 0")
def zero_block(x, levels):
    scaled = x / x.abs().max()
    return torch.where(scaled.isnan(), 0, nearest(scaled, levels)).to(torch.uint8)


@right("4.5", "distances to all levels")
def by_distance(x, levels):
    return nearest(scale_by(x, x.abs().max()), levels)


@right("4.5", "boundaries halfway")
def by_boundaries(x, levels):
    scaled = scale_by(x, x.abs().max())
    return torch.bucketize(scaled, (levels[:-1] + levels[1:]) / 2).to(torch.uint8)


@right("4.5", "a loop")
def by_hand(x, levels):
    absmax = max(abs(value) for value in x.tolist()) or 1.0
    table = levels.tolist()
    codes = [min(range(len(table)), key=lambda i: abs(table[i] - value / absmax)) for value in x.tolist()]
    return torch.tensor(codes, dtype=torch.uint8)


# 4.6 ------------------------------------------------------------------------------------------------------------------


def even(codes):
    return torch.cat([codes, codes.new_zeros(len(codes) % 2)])


@wrong("4.6", "low half first", case="four codes", says="halves are exchanged")
def low_first(codes):
    codes = even(codes)
    return codes[::2] | (codes[1::2] << 4)


@wrong("4.6", "first half with second half", case="four codes", says="Neighbours share")
def halves(codes):
    codes = even(codes)
    middle = len(codes) // 2
    return (codes[:middle] << 4) | codes[middle:]


@wrong("4.6", "adds without a shift", case="four codes", says="Shift by 4 bits")
def adds(codes):
    codes = even(codes)
    return codes[::2] + codes[1::2]


@wrong("4.6", "one byte each", case="four codes", says="share one byte")
def unpacked(codes):
    return codes << 4


@wrong("4.6", "int64", case="four codes", says="uint8")
def wide(codes):
    codes = even(codes).long()
    return codes[::2] * 16 + codes[1::2]


@wrong("4.6", "drops the last", case="an odd number", says="dropped")
def drops_last(codes):
    codes = codes[: len(codes) // 2 * 2]
    return (codes[::2] << 4) | codes[1::2]


@wrong("4.6", "the last in the low half", case="an odd number", says="high half as well")
def last_low(codes):
    if len(codes) % 2:
        codes = torch.cat([codes[:-1], codes.new_zeros(1), codes[-1:]])
    return (codes[::2] << 4) | codes[1::2]


@right("4.6", "slices")
def by_slices(codes):
    codes = even(codes)
    return (codes[::2] << 4) | codes[1::2]


@right("4.6", "times 16")
def times_16(codes):
    pairs = even(codes).view(-1, 2).int()
    return (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8)


@right("4.6", "a loop")
def pack_loop(codes):
    values = [*codes.tolist(), 0]
    packed = [16 * values[i] + values[i + 1] for i in range(0, len(codes), 2)]
    return torch.tensor(packed, dtype=torch.uint8)


# 4.7 ------------------------------------------------------------------------------------------------------------------


@wrong("4.7", "a scale a value", case="NF4", says="64 values share one")
def scale_each(bits, blocksize, scale_bits, second_blocksize):
    return float(bits + scale_bits)


@wrong("4.7", "scales for free", case="NF4", says="take room too")
def free_scales(bits, blocksize, scale_bits, second_blocksize):
    return float(bits)


@wrong("4.7", "the wrong way round", case="NF4", says="not 64 / 32")
def turned_round(bits, blocksize, scale_bits, second_blocksize):
    return bits + blocksize / scale_bits


@wrong("4.7", "bits of the block", case="NF4", says="divide by its number")
def block_bits(bits, blocksize, scale_bits, second_blocksize):
    return float(bits * blocksize + scale_bits)


@wrong("4.7", "in bytes", case="NF4", says="in bits")
def in_bytes(bits, blocksize, scale_bits, second_blocksize):
    return (bits + scale_bits / blocksize) / 8


@wrong("4.7", "always 64", case="int8", says="128 here")
def always_64(bits, blocksize, scale_bits, second_blocksize):
    return bits + scale_bits / 64


@wrong("4.7", "no second level", case="double quantization", says="second level is missing")
def one_level(bits, blocksize, scale_bits, second_blocksize):
    return bits + scale_bits / blocksize


@wrong("4.7", "second level a scale, not a value", case="double quantization", says="not 32 / 256")
def per_scale(bits, blocksize, scale_bits, second_blocksize):
    return bits + scale_bits / blocksize + (32 / second_blocksize if second_blocksize else 0)


@wrong("4.7", "keeps the first scales", case="double quantization", says="in place of 32")
def keeps_first(bits, blocksize, scale_bits, second_blocksize):
    if not second_blocksize:
        return bits + scale_bits / blocksize
    return bits + (scale_bits + 32) / blocksize + 32 / (blocksize * second_blocksize)


@right("4.7", "the sum")
def the_sum(bits, blocksize, scale_bits, second_blocksize):
    second = 32 / (blocksize * second_blocksize) if second_blocksize else 0
    return bits + scale_bits / blocksize + second


@right("4.7", "bits of a scale first")
def scale_first(bits, blocksize, scale_bits, second_blocksize):
    if second_blocksize > 0:
        scale_bits = scale_bits + 32 / second_blocksize
    return bits + scale_bits / blocksize


@right("4.7", "over one large block")
def large_block(bits, blocksize, scale_bits, second_blocksize):
    scales = max(1, second_blocksize)
    values = blocksize * scales
    total = bits * values + scale_bits * scales + (32 if second_blocksize else 0)
    return total / values


# 4.8 ------------------------------------------------------------------------------------------------------------------


def rows_to_int8(x):
    absmax = x.abs().amax(1)
    return (x / safe(absmax)[:, None] * 127).round().to(torch.int8), absmax


def split(x, threshold):
    large = x.abs() >= threshold
    codes, absmax = rows_to_int8(torch.where(large, 0.0, x))
    columns = large.any(0).nonzero().view(-1).tolist()
    codes[:, columns] = 0
    return columns, codes, absmax


@wrong("4.8", "outliers stay in", case="one large value", says="still in")
def stay_in(x, threshold):
    return (split(x, threshold)[0], *rows_to_int8(x))


@wrong("4.8", "only the value is zeroed", case="one large value", says="The whole column")
def only_value(x, threshold):
    large = x.abs() >= threshold
    return (large.any(0).nonzero().view(-1).tolist(), *rows_to_int8(torch.where(large, 0.0, x)))


@wrong("4.8", "scale with the outlier", case="one large value", says="before you take the absmax")
def scale_with(x, threshold):
    columns = split(x, threshold)[0]
    codes, absmax = rows_to_int8(x)
    codes[:, columns] = 0
    return columns, codes, absmax


@wrong("4.8", "one absmax for all", case="one large value", says="for each row")
def one_absmax(x, threshold):
    columns, codes, absmax = split(x, threshold)
    return columns, codes, absmax.max()


@wrong(
    "4.8",
    "positive outliers only",
    case="a negative outlier, and one just at the threshold",
    says="magnitude 7",
)
def positive_only(x, threshold):
    columns = (x >= threshold).any(0).nonzero().view(-1).tolist()
    codes, absmax = rows_to_int8(torch.where(x >= threshold, 0.0, x))
    codes[:, columns] = 0
    return columns, codes, absmax


@wrong("4.8", "strictly larger", case="a negative outlier, and one just at the threshold", says=">=, not >")
def strictly(x, threshold):
    return split(x, threshold + 1e-6)


@wrong("4.8", "lists each outlier", case="two in one column", says="listed twice")
def each_outlier(x, threshold):
    _, codes, absmax = split(x, threshold)
    return sorted((x.abs() >= threshold).nonzero()[:, 1].tolist()), codes, absmax


@wrong(
    "4.8",
    "in the order of the rows",
    case="a negative outlier, and one just at the threshold",
    says="ascending",
)
def row_order(x, threshold):
    _, codes, absmax = split(x, threshold)
    return list(dict.fromkeys((x.abs() >= threshold).nonzero()[:, 1].tolist())), codes, absmax


@wrong("4.8", "no guard for zeros", case="a row of zeros", says="0 / 0")
def zero_row(x, threshold):
    columns, codes, absmax = split(x, threshold)
    return columns, codes, absmax * (absmax / absmax)


@right("4.8", "where and any")
def by_where(x, threshold):
    return split(x, threshold)


@right("4.8", "columns first")
def columns_first(x, threshold):
    columns = [c for c in range(x.shape[1]) if (x[:, c].abs() >= threshold).any()]
    rest = x.clone()
    rest[rest.abs() >= threshold] = 0
    codes, absmax = rows_to_int8(rest)
    for column in columns:
        codes[:, column] = 0
    return columns, codes, absmax


@right("4.8", "row by row")
def row_by_row(x, threshold):
    columns = sorted({int(c) for c in (x.abs() >= threshold).nonzero()[:, 1]})
    codes, scales = torch.zeros(x.shape, dtype=torch.int8), []
    for r, row in enumerate(x):
        kept = row * (row.abs() < threshold)
        scales.append(kept.abs().max())
        if scales[-1] > 0:
            codes[r] = torch.round(kept / scales[-1] * 127)
    codes[:, columns] = 0
    return columns, codes, torch.stack(scales)


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("4.2", "no clamp", case="a largest value that rounds up twice", says="wrapped to -128")
def no_clamp(x):
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    if scale == 0:
        return torch.zeros_like(x, dtype=torch.int8), scale, 0
    zero_point = int(torch.round(-128 - low / scale))
    return (torch.round(x / scale) + zero_point).to(torch.int8), scale, zero_point


@wrong("4.5", "the levels it knows", case="other levels", says="levels is a parameter")
def known_levels(x, levels):
    nf4 = quantization.table("nf4")
    absmax = x.abs().max()
    scaled = x / absmax if absmax > 0 else x
    return (scaled[:, None] - nf4[None, :]).abs().argmin(1).to(torch.uint8)


@wrong(
    "4.8",
    "absmax of the columns that are left",
    case="a large value beside an outlier's column",
    says="in any column",
)
def rest_only(x, threshold):
    large = (x.abs() >= threshold).any(0)
    rest = x.masked_fill(large, 0.0)
    absmax = rest.abs().amax(1)
    codes = torch.round(127 * rest / torch.where(absmax > 0, absmax, 1.0)[:, None]).to(torch.int8)
    return large.nonzero().view(-1).tolist(), codes, absmax


NAN_CODES = "0 / 0 as int8 is 0 on this machine, which nobody promises: no check can see it"
ANSWERS.equivalent(
    "4.1",
    NAN_CODES,
    "if absmax == 0: … -> if False: …",
    "return (torch.zeros(x.shape, dtype=torch.int8), absmax) -> print((torch.zeros(x.shape, dtype=torch.int8), absmax))",
    "0 -> 1",
    "0 -> -1",
)
ANSWERS.equivalent(
    "4.2",
    "in place on a tensor that the function made itself",
    "x.min().clamp(max=0) -> x.min().clamp_(max=0)",
    "x.max().clamp(min=0) -> x.max().clamp_(min=0)",
    "codes.clamp(-128, 127) -> codes.clamp_(-128, 127)",
)
ANSWERS.equivalent(
    "4.2", "the smallest value never rounds below -128: two halves round to even", "128 -> 129 (2)"
)
ANSWERS.equivalent(
    "4.4",
    "all levels differ",
    "(level / top for level in levels) -> {level / top for level in levels}",
)
ANSWERS.equivalent("4.5", "a magnitude is never below 0", "absmax > 0 -> absmax")
ANSWERS.equivalent(
    "4.5",
    "the last dimension, in place on a table of its own, and a distance without its sign",
    "(scaled[:, None] - levels[None, :]).abs().argmin(dim=1) -> (scaled[:, None] - levels[None, :]).abs().argmin(dim=-1)",
    "(scaled[:, None] - levels[None, :]).abs() -> (scaled[:, None] - levels[None, :]).abs_()",
    "scaled[:, None] - levels[None, :] -> levels[None, :] - scaled[:, None]",
)
ANSWERS.equivalent(
    "4.8", "of two dimensions the last is the second", "rest.abs().amax(dim=1) -> rest.abs().amax(dim=-1)"
)
ANSWERS.equivalent("4.8", NAN_CODES, "absmax > 0 -> absmax >= 0", "0 -> -1 (2)")
ANSWERS.equivalent("4.8", "a row of zeros is 0 whatever it is divided by", "1.0 -> 2.0", "1.0 -> 0.5")

ANSWERS.statements(
    "4.1",
    {
        "the largest magnitude": largest_value,
        "127": by_128,
        "round": floors,
        "before it becomes int8": cuts,
        "absmax, the second result": returns_step,
        "codes keep the sign": drops_signs,
        "one for all": rowwise,
        "codes in x's shape": flattens,
        "zeros: absmax 0": invents,
        "zeros: codes 0": divides_by_zero,
    },
)
ANSWERS.statements(
    "4.2",
    {
        "the smallest value gets -128": half,
        "255 steps": steps_256,
        "int8": unsigned,
        "the range, not the magnitude": symmetric,
        "minus low": turned,
        "low = min(0, smallest)": plain_range,
        "high = max(0, largest)": one_side,
        "kept within -128 and 127": no_clamp,
        "zeros": zeros_divide,
    },
)
ANSWERS.statements(
    "4.3",
    {
        "one absmax a block": one_scale,
        "codes in x's shape": stays,
        "absmax has one dimension": keepdim,
        "blocks are neighbours": interleaved,
        "the last may be shorter": drops,
        "without padding": padded,
        "across rows": each_row,
        "a block of zeros": unguarded,
        "in the order of x.reshape(-1)": storage,
    },
)
ANSWERS.statements(
    "4.4",
    {
        "divided by the largest": undivided,
        "0 is added": no_zero,
        "0.5 is left out": zero_twice,
        "ascending": unsorted,
        "quantiles": equal_steps,
        "each side for itself": one_row,
        "negative and positive": always_nf4,
        "outermost": always_outermost,
    },
)
ANSWERS.statements(
    "4.5",
    {
        "the nearest": next_up,
        "above as well as below": level_below,
        "which level, not its value": returns_level,
        "uint8": long_codes,
        "divided by absmax": unscaled,
        "absmax, not the largest value": by_largest,
        "levels": known_levels,
        "zeros": zero_block,
    },
)
ANSWERS.statements(
    "4.6",
    {
        "the first code into the high half": low_first,
        "each pair": halves,
        "times 16": adds,
        "two codes a byte": unpacked,
        "uint8": wide,
        "an odd last code has a byte": drops_last,
        "in its high half": last_low,
    },
)
ANSWERS.statements(
    "4.7",
    {
        "scales included": free_scales,
        "shared by a block": scale_each,
        "divided by it": turned_round,
        "a value, not a block": block_bits,
        "bits": in_bytes,
        "blocksize": always_64,
        "a second level": one_level,
        "shared by second_blocksize scales": per_scale,
        "scale_bits": keeps_first,
    },
)
ANSWERS.statements(
    "4.8",
    {
        "the column": only_value,
        "is taken out": stay_in,
        "magnitude": positive_only,
        "threshold or more": strictly,
        "each column once": each_outlier,
        "ascending": row_order,
        "absmax below the threshold": scale_with,
        "in any column": rest_only,
        "for each row": one_absmax,
        "a row of zeros": zero_row,
    },
)
