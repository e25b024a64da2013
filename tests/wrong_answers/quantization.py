"""What people hand in for the exercises of lab 04."""

import math
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


def fewest(absmax, tolerance, *, share=0.5, largest=lambda bits: 2 ** (bits - 1) - 1, strict=False, most=16):
    """The right rule, with one part of it wrong."""
    for bits in range(2, most + 1):
        lost = float(absmax) / largest(bits) * share
        if lost < tolerance or (lost == tolerance and not strict):
            return bits
    return None


@wrong("4.1", "a whole step", case="eight numbers to within 0.025", says="more than half a step")
def whole_step(x, tolerance):
    return fewest(x.abs().max(), tolerance, share=1.0)


@wrong(
    "4.1", "one bit too many in the largest code", case="eight numbers to within 0.025", says="2^(b-1) - 1"
)
def unsigned_codes(x, tolerance):
    return fewest(x.abs().max(), tolerance, largest=lambda bits: 2**bits - 1)


@wrong("4.1", "returns the step", case="eight numbers to within 0.025", says="number of bits")
def returns_step(x, tolerance):
    bits = fewest(x.abs().max(), tolerance)
    return round(float(x.abs().max()) / (2 ** (bits - 1) - 1), 4)


@wrong(
    "4.1",
    "largest value, not magnitude",
    case="the largest magnitude is negative",
    says="take abs() before max()",
)
def largest_value(x, tolerance):
    return fewest(x.max(), tolerance)


@wrong("4.1", "strictly less", case="exactly", says="<=, not <")
def strictly_less(x, tolerance):
    return fewest(x.abs().max(), tolerance, strict=True)


@wrong("4.1", "measures these values", case="a promise, not luck", says="what no value can exceed")
def measured(x, tolerance):
    for bits in range(2, 17):
        if (x - quantization.quantize_absmax(x, bits=min(bits, 8)).dequantize()).abs().max() <= tolerance:
            return bits
        if bits >= 8:
            return fewest(x.abs().max(), tolerance)
    return None


@wrong("4.1", "16 at most, whatever comes", case="more than 16 bits", says="don't reach the tolerance")
def sixteen(x, tolerance):
    return fewest(x.abs().max(), tolerance) or 16


@wrong("4.1", "goes on", case="more than 16 bits", says="Only up to 16")
def goes_on(x, tolerance):
    return fewest(x.abs().max(), tolerance, most=60)


@right("4.1", "a loop")
def in_a_loop(x, tolerance):
    return fewest(x.abs().max(), tolerance)


@right("4.1", "next of a generator")
def by_next(x, tolerance):
    absmax = max(abs(value) for value in x.reshape(-1).tolist())
    return next((b for b in range(2, 17) if absmax <= 2 * tolerance * (2 ** (b - 1) - 1)), None)


@right("4.1", "levels from -largest to largest")
def by_levels(x, tolerance):
    absmax, bits, largest = x.abs().max().item(), 2, 1
    while bits <= 16:
        if absmax / largest / 2 <= tolerance:
            return bits
        bits, largest = bits + 1, 2 * largest + 1
    return None


# 4.2 ------------------------------------------------------------------------------------------------------------------


def minmax(x, blocksize, *, steps=15, low=None, rounding=torch.round, view=True, high=None):
    """The right rule, with one part of it wrong."""
    blocks = x.reshape(-1, blocksize)
    minimum = blocks.amin(1) if low is None else low(blocks)
    step = ((blocks.amax(1) if high is None else high(blocks)) - minimum) / steps
    codes = rounding((blocks - minimum[:, None]) / safe(step)[:, None]).to(torch.uint8)
    return codes.view(x.shape) if view else codes, minimum, step


@wrong("4.2", "one range for all", case="two blocks", says="belong to a block")
def one_range(x, blocksize):
    return minmax(x, x.numel())


@wrong("4.2", "16 steps", case="two blocks", says="15 steps between")
def steps_16(x, blocksize):
    return minmax(x, blocksize, steps=16)


@wrong("4.2", "the symmetric step", case="two blocks", says="minimum is code 0")
def symmetric(x, blocksize):
    blocks = x.reshape(-1, blocksize)
    step = blocks.abs().amax(1) / 7
    codes = torch.round(blocks / safe(step)[:, None]) + 8
    return codes.to(torch.uint8).view(x.shape), blocks.amin(1), step


@wrong("4.2", "cuts off", case="two blocks", says="not rounded")
def cuts(x, blocksize):
    return minmax(x, blocksize, rounding=lambda steps: (steps + 1e-4).floor())


@wrong("4.2", "codes stay in blocks", case="two blocks", says="undo the blocks")
def in_blocks(x, blocksize):
    return minmax(x, blocksize, view=False)


@wrong("4.2", "returns the maximum", case="two blocks", says="not the maximum")
def returns_maximum(x, blocksize):
    codes, minimum, step = minmax(x, blocksize)
    return codes, minimum + 15 * step, step


@wrong("4.2", "the range holds 0", case="far from zero", says="stretched to 0")
def holds_zero(x, blocksize):
    return minmax(
        x,
        blocksize,
        low=lambda blocks: blocks.amin(1).clamp(max=0),
        high=lambda blocks: blocks.amax(1).clamp(min=0),
    )


@wrong("4.2", "each row for itself", case="blocks run across rows", says="memory order")
def rows_only(x, blocksize):
    if x.dim() == 1:
        return minmax(x, blocksize)
    parts = [minmax(row, len(row)) for row in x]
    return tuple(torch.stack([p[0] for p in parts])) and (
        torch.stack([p[0] for p in parts]), torch.cat([p[1] for p in parts]), torch.cat([p[2] for p in parts])
    )  # fmt: skip


@wrong("4.2", "invents a step", case="a block of equal values", says="guard the division")
def invents(x, blocksize):
    codes, minimum, step = minmax(x, blocksize)
    return codes, minimum, safe(step)


@right("4.2", "with where")
def with_where(x, blocksize):
    return minmax(x, blocksize)


@right("4.2", "block by block")
def block_by_block(x, blocksize):
    codes, lows, steps = [], [], []
    for part in x.reshape(-1).split(blocksize):
        low, high = part.min(), part.max()
        step = (high - low) / 15
        codes.append(torch.zeros_like(part) if step == 0 else torch.round((part - low) / step))
        lows.append(low)
        steps.append(step)
    return torch.cat(codes).to(torch.uint8).view(x.shape), torch.stack(lows), torch.stack(steps)


@right("4.2", "with nan_to_num")
def with_nan(x, blocksize):
    blocks = x.reshape(-1, blocksize)
    low, high = torch.aminmax(blocks, dim=1)
    step = (high - low) / 15
    codes = torch.round((blocks - low[:, None]) / step[:, None]).nan_to_num(0)
    return codes.to(torch.uint8).reshape(x.shape), low, step


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


def next_losses(model, ids):
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")


@wrong("4.7", "no shift", case="four tokens", says="compared with token t")
def no_shift(model, ids):
    with torch.no_grad():
        return math.exp(torch.nn.functional.cross_entropy(model(input_ids=ids).logits[0], ids[0]))


@wrong("4.7", "the mean loss", case="four tokens", says="perplexity is e to it")
def mean_loss(model, ids):
    return next_losses(model, ids).mean().item()


@wrong("4.7", "the sum", case="four tokens", says="not the sum")
def summed(model, ids):
    return math.exp(next_losses(model, ids).sum())


@wrong("4.7", "two to it", case="four tokens", says="e to it, not 2")
def power_of_two(model, ids):
    return 2 ** next_losses(model, ids).mean().item()


@wrong("4.7", "logarithm of the mean", case="four tokens", says="mean of the logarithms")
def log_of_mean(model, ids):
    return 1 / (-next_losses(model, ids)).exp().mean().item()


@wrong("4.7", "mean of e to the losses", case="four tokens", says="mean of the losses first")
def mean_of_exp(model, ids):
    return next_losses(model, ids).exp().mean().item()


@right("4.7", "cross-entropy")
def by_cross_entropy(model, ids):
    return math.exp(next_losses(model, ids).mean())


@right("4.7", "log_softmax and gather")
def by_gather(model, ids):
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
    return (-logprobs[:-1].gather(1, ids[0, 1:, None]).mean()).exp().item()


@right("4.7", "a loop over tokens")
def token_by_token(model, ids):
    with torch.no_grad():
        probabilities = model(input_ids=ids).logits[0].double().softmax(-1)
    nll = [-math.log(probabilities[t, token]) for t, token in enumerate(ids[0, 1:].tolist())]
    return math.exp(sum(nll) / len(nll))


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
ANSWERS.equivalent(
    "4.1", "a function that ends prints or returns None: the same result", "return None -> print(None)"
)
ANSWERS.equivalent(
    "4.1", "a tensor without dimensions compares like its number", "x.abs().max().item() -> x.abs().max()"
)
LAST_DIMENSION = "of two dimensions the last is the second"
SAFE_DIVISOR = "where all values are equal it doesn't matter what 0 is divided by"
ANSWERS.equivalent(
    "4.2",
    LAST_DIMENSION,
    "blocks.amin(dim=1) -> blocks.amin(dim=-1)",
    "blocks.amax(dim=1) -> blocks.amax(dim=-1)",
)
ANSWERS.equivalent("4.2", NAN_CODES, "step > 0 -> step >= 0", "0 -> -1")
ANSWERS.equivalent("4.2", SAFE_DIVISOR, "1.0 -> 2.0", "1.0 -> 0.5")
ANSWERS.equivalent("4.3", NAN_CODES, "absmax > 0 -> absmax >= 0", "0 -> -1")
ANSWERS.equivalent("4.3", SAFE_DIVISOR, "1.0 -> 2.0", "1.0 -> 0.5")
ANSWERS.equivalent(
    "4.7",
    "torch raises NotImplementedError, which a check takes for an exercise that isn't attempted",
    "torch.nn.functional.cross_entropy(logits, ids[0, 1:]) -> torch.nn.functional.cross_entropy(ids[0, 1:], logits)",
)
ANSWERS.equivalent("4.7", "of one text the first is the last", "0 -> -1", "0 -> -1 (2)")
ANSWERS.equivalent(
    "4.9",
    "a format of one's own: of what is stored only the bytes are counted, nobody but its author can decode it",
    "codes[:, ::2] * 16 + codes[:, 1::2] -> codes[:, ::2] * 16 - codes[:, 1::2]",
    "codes[:, ::2] * 16 + codes[:, 1::2] -> codes[:, ::2] * 16",
    "codes[:, ::2] * 16 + codes[:, 1::2] -> codes[:, 1::2]",
    "codes[:, ::2] * 16 -> codes[:, ::2] / 16",
    "codes[:, ::2] * 16 -> codes[:, ::2]",
    "codes[:, ::2] * 16 -> 16",
    "16 -> 17",
    "16 -> 15",
    "1 -> 0 (4)",
)
ANSWERS.equivalent(
    "4.9",
    "other blocks (rows, columns) make another format, which keeps the rules",
    "weight.reshape(-1, 32) -> weight",
    "blocks.abs().amax(dim=1, keepdim=True) -> blocks.abs().amax(dim=0, keepdim=True)",
    "blocks.abs().amax(dim=1, keepdim=True) -> blocks.abs().amax(dim=-1, keepdim=True)",
)
ANSWERS.equivalent(
    "4.9",
    "a block of zeros is 0 times whatever level, and fp16 becomes fp32 where the two meet",
    "scales > 0 -> scales >= 0",
    "1.0 -> 2.0",
    "1.0 -> 0.5",
    "0 -> -1",
    "torch.where(scales > 0, scales, 1.0).float() -> torch.where(scales > 0, scales, 1.0)",
    "scales.float() -> scales",
)
ANSWERS.statements(
    "4.1",
    {
        "half a step": whole_step,
        "the largest code is 2^(bits-1) - 1": unsigned_codes,
        "the number of bits": returns_step,
        "the largest magnitude": largest_value,
        "tolerance at most": strictly_less,
        "no value can exceed it": measured,
        "None beyond": sixteen,
        "16 bits": goes_on,
    },
)
ANSWERS.statements(
    "4.2",
    {
        "each block": one_range,
        "15 steps": steps_16,
        "the minimum is code 0": symmetric,
        "rounded": cuts,
        "codes in x's shape": in_blocks,
        "the minimum, the second result": returns_maximum,
        "no zero needed": holds_zero,
        "memory order, across rows": rows_only,
        "equal values have step 0": invents,
    },
)
ANSWERS.statements(
    "4.7",
    {
        "the next token": no_shift,
        "e to it": mean_loss,
        "the mean": summed,
        "natural logarithms": power_of_two,
        "of the logarithms": log_of_mean,
        "before e": mean_of_exp,
    },
)

# 4.9 ------------------------------------------------------------------------------------------------------------------


def blocked(weight, blocksize, bits=4):
    q = quantization.quantize_blockwise(weight, blocksize, bits=bits)
    return q, quantization.pack_4bit((q.codes.reshape(-1).int() + 7).to(torch.uint8))


@wrong("4.9", "codes of a byte each", case="normal weights", says="two to a byte")
def unpacked_codes(weight):
    q = quantization.quantize_blockwise(weight, 64, bits=4)
    return [q.codes, q.scales], q.dequantize()


@wrong("4.9", "hands the weight back", case="normal weights", says="nothing else")
def the_weight_itself(weight):
    q, packed = blocked(weight, 64)
    return [packed, q.scales], weight.clone()


@wrong("4.9", "stays in blocks", case="normal weights", says="Undo the blocks")
def stays_in_blocks(weight):
    q, packed = blocked(weight, 64)
    return [packed, q.scales], q.dequantize().view(-1, 64)


@wrong("4.9", "another block's scale", case="normal weights", says="block by block")
def rolled_scales(weight):
    q, packed = blocked(weight, 64)
    return [packed, q.scales], -q.dequantize()


@wrong("4.9", "one scale for all", case="weights with outliers", says="block by block")
def one_scale_for_all(weight):
    q, packed = blocked(weight, weight.numel())
    return [packed, q.scales], q.dequantize()


@wrong("4.9", "zeros are not guarded", case="zeros", says="guard the division")
def zeros_unguarded(weight):
    blocks = weight.reshape(-1, 64)
    absmax = blocks.abs().amax(1, keepdim=True)
    restored = (torch.round(blocks / absmax * 7) / 7 * absmax).view(weight.shape)
    return [torch.zeros(weight.numel() // 2, dtype=torch.uint8), absmax], restored


@right("4.9", "NF4 as it is")
def plain_nf4(weight):
    q = quantization.quantize_4bit(weight, "nf4")
    return [q.codes, q.scales], q.dequantize()


@right("4.9", "equal steps, scales in bf16")
def equal_steps_bf16(weight):
    q, packed = blocked(weight, 32)
    scales = q.scales.bfloat16()
    restored = q.codes.reshape(-1, 32) / 7 * scales.float()[:, None]
    return [packed, scales], restored.view(weight.shape)


@right("4.9", "double quantization in blocks of 32")
def doubled(weight):
    q = quantization.quantize_4bit(weight, "nf4", 32, double_quantization=True)
    return [q.codes, q.scales.codes, q.scales.scales, q.scales.offset], q.dequantize()


ANSWERS.statements(
    "4.9",
    {
        "at most 4.5 bits": unpacked_codes,
        "restored from what is stored": the_weight_itself,
        "in the weight's shape": stays_in_blocks,
        "close to the weight": rolled_scales,
        "with outliers too": one_scale_for_all,
        "zeros": zeros_unguarded,
    },
)
