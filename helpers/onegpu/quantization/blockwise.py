"""Quantize to int8 and to 4 bits: one scale for the tensor, for each row, or for each block.

All functions are one loop over pieces of the tensor that fit a core's cache, so that memory is read once: find each
block's largest magnitude, divide by it, round, store. Sources: 8-bit block-wise quantization, arXiv 2110.02861;
NF4 and double quantization, arXiv 2305.14314; zero-point, arXiv 1712.05877.
"""

from __future__ import annotations

import torch

from onegpu.quantization.tables import bin_of, bins, boundaries
from onegpu.quantization.tensors import (
    CHUNK,
    DoubleQuantized,
    QuantizedTensor,
    check_input,
    flat,
    refuse_nonfinite,
    segments,
    work_dtype,
)

NONFINITE = ("raise", "poison")
# Blocks whose absmax lies outside are moved by a power of two first, where 1 / absmax would leave the float's range.
_EXTREMES = {torch.float32: (2.0**-100, 2.0**100, 2.0**64), torch.float64: (2.0**-900, 2.0**900, 2.0**512)}


def quantize_absmax(x: torch.Tensor, *, bits: int = 8, nonfinite: str = "raise") -> QuantizedTensor:
    """Quantize symmetrically with one scale for the whole tensor: ``code = round(127 * x / absmax)``.

    Parameters
    ----------
    x
        fp16, bf16, fp32 or fp64, any shape.
    bits
        2 to 8; codes of fewer than 8 bits still take a byte each.
    nonfinite
        "raise" refuses NaN and infinity, naming the first; "poison" gives their block back as NaN.

    Returns
    -------
    QuantizedTensor
        Codes from -127 to 127 (never -128: the negative of every level is a level). A tensor of zeros has scale 0
        and comes back as zeros; an empty one stays empty.

    Examples
    --------
    >>> q = quantize_absmax(torch.tensor([1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4]))
    >>> q.codes.tolist()
    [28, -12, -101, 28, -73, 19, 56, 127]
    """
    return _symmetric(x, None, bits, nonfinite)


def quantize_blockwise(
    x: torch.Tensor, blocksize: int = 64, *, bits: int = 8, nonfinite: str = "raise"
) -> QuantizedTensor:
    """Quantize symmetrically with one scale for every ``blocksize`` values: an outlier ruins its block only.

    Blocks run through the tensor in memory order, across rows; the last one may be shorter. Any blocksize of 1 or
    more, any shape.

    Examples
    --------
    >>> q = quantize_blockwise(torch.tensor([0.1, 0.2, 50.0, 25.0]), blocksize=2)
    >>> q.codes.tolist(), q.scales.tolist()
    ([64, 127, 127, 64], [0.20000000298023224, 50.0])
    """
    return _symmetric(x, check_input(x, blocksize), bits, nonfinite)


def quantize_rowwise(x: torch.Tensor, *, nonfinite: str = "raise") -> QuantizedTensor:
    """Quantize to int8 with one scale for each row (the last dimension): LLM.int8's "vector-wise".

    Examples
    --------
    >>> quantize_rowwise(torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])).codes.tolist()
    [[64, -127, 32], [0, 0, 0]]
    """
    if x.dim() == 0:
        raise ValueError("x is a single number without rows, expected one dimension or more")
    return _symmetric(x, max(1, x.shape[-1]), 8, nonfinite)


def quantize_zeropoint(x: torch.Tensor, *, bits: int = 8, nonfinite: str = "raise") -> QuantizedTensor:
    """Quantize between the tensor's smallest and largest value: ``code = round(x / scale) + zero_point``.

    Uses all codes where data lie to one side of zero, which symmetric codes waste half of. The range always
    contains 0, so that 0 is stored exactly and the zero point is one of the codes.

    Examples
    --------
    >>> q = quantize_zeropoint(torch.tensor([0.0, 1.0, 2.55]))
    >>> q.codes.tolist(), q.zero_points.tolist()
    ([-128, -28, 127], [-128])
    """
    blocksize = check_input(x, None)
    _check_options(bits, nonfinite)
    values, dtype = flat(x), work_dtype(x)
    low_code, high_code = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low = high = torch.zeros((), dtype=dtype, device=x.device)
    for start, stop, _, _ in segments(x.numel(), blocksize):
        piece_low, piece_high = torch.aminmax(values[start:stop].to(dtype))
        low, high = torch.minimum(low, piece_low), torch.maximum(high, piece_high)
    finite = bool(torch.isfinite(low) & torch.isfinite(high))
    if not finite and nonfinite == "raise":
        refuse_nonfinite(x.detach(), x.shape)
    # In double precision and rounded up, so that the range never needs a code too many; not by subtraction, which
    # could overflow.
    exact = high.double() / (high_code - low_code) - low.double() / (high_code - low_code)
    scale = exact.to(dtype)
    if finite:
        scale = torch.where(scale.double() < exact, torch.nextafter(scale, scale + torch.inf), scale)
    codes = torch.zeros(x.numel(), dtype=torch.int8, device=x.device)
    zero_point = 0
    if finite and scale > 0:
        zero_point = int(torch.round(low_code - low.double() / scale.double()))
        for start, stop, _, _ in segments(x.numel(), blocksize):
            steps = (values[start:stop].to(dtype) / scale).round_().add_(zero_point)
            codes[start:stop] = steps.clamp_(low_code, high_code)
    scales = (scale if finite else torch.full_like(scale, torch.nan)).reshape(1)
    if x.numel() == 0:
        scales = scales[:0]
    points = torch.full(scales.shape, zero_point, dtype=torch.int32, device=x.device)
    return QuantizedTensor(
        "int8 zero-point", codes.view(x.shape), scales, x.shape, x.dtype, blocksize, points, high_code
    )


def quantize_4bit(
    x: torch.Tensor,
    scheme: str = "nf4",
    blocksize: int = 64,
    *,
    double_quantization: bool = False,
    nonfinite: str = "raise",
) -> QuantizedTensor:
    """Quantize to the nearest of 16 levels of a table, two codes to a byte.

    Parameters
    ----------
    scheme
        "nf4" or "fp4". bitsandbytes' function defaults to fp4; what people mean is nf4.
    blocksize
        Values that share an absmax.
    double_quantization
        Quantize the absmax values as well: 4.127 bits a value in place of 4.5 at blocksize 64.

    Examples
    --------
    >>> q = quantize_4bit(torch.tensor([1.0, -1.0, 0.0, 0.5]))
    >>> [hex(byte) for byte in q.codes.tolist()]
    ['0xf0', '0x7c']
    """
    if scheme not in ("nf4", "fp4"):
        raise ValueError(f"scheme is {scheme!r}, expected 'nf4' or 'fp4'")
    q = _to_table(x, scheme, blocksize, nonfinite)
    if not double_quantization:
        return q
    return QuantizedTensor(scheme, q.codes, double_quantize(q.scales), q.shape, q.dtype, q.blocksize)


def quantize_dynamic8(x: torch.Tensor, blocksize: int = 64, *, nonfinite: str = "raise") -> QuantizedTensor:
    """Quantize to bitsandbytes' default 8-bit map, which is fine near zero and coarse near one.

    Made for optimizer states, which span many decades. On normally distributed weights equal steps do better:
    2.5 times less squared error in blocks of 64.
    """
    return _to_table(x, "dynamic8", blocksize, nonfinite)


def double_quantize(scales: torch.Tensor, blocksize: int = 256) -> DoubleQuantized:
    """Quantize the scales of a 4-bit tensor: subtract their mean, then 8 bits in blocks of 256.

    Examples
    --------
    >>> twice = double_quantize(torch.tensor([0.5, 1.0, 1.5]))
    >>> twice.offset.item(), twice.nbytes
    (1.0, 11)
    """
    offset = scales.mean() if scales.numel() else scales.new_zeros(())
    q = _to_table(scales - offset, "dynamic8", blocksize, "raise" if scales.isfinite().all() else "poison")
    return DoubleQuantized(q.codes, q.scales, offset, blocksize)


def pack_4bit(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes from 0 to 15 two to a byte, the first in the high half; an odd last one is followed by 0.

    Examples
    --------
    >>> [hex(byte) for byte in pack_4bit(torch.tensor([15, 0, 7])).tolist()]
    ['0xf0', '0x70']
    """
    values = codes.reshape(-1)
    if values.numel() and (values.is_floating_point() or int(values.min()) < 0 or int(values.max()) > 15):
        raise ValueError("codes: expected whole numbers from 0 to 15")
    return _pack(values.to(torch.uint8), 0)


def unpack_4bit(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Undo ``pack_4bit``: the first ``count`` codes, as uint8.

    Examples
    --------
    >>> unpack_4bit(torch.tensor([0xF0, 0x70], dtype=torch.uint8), 3).tolist()
    [15, 0, 7]
    """
    if packed.dtype != torch.uint8:
        raise ValueError(f"packed is {packed.dtype}, expected uint8")
    values = packed.reshape(-1)
    if (count + 1) // 2 != values.numel():
        raise ValueError(f"{values.numel()} bytes hold {2 * values.numel()} codes, or one less: not {count}")
    return torch.stack([values >> 4, values & 15], dim=1).view(-1)[:count]


def _pack(codes: torch.Tensor, padding: int) -> torch.Tensor:
    if codes.numel() % 2:
        codes = torch.cat([codes, codes.new_tensor([padding])])
    pairs = codes.view(-1, 2)
    return (pairs[:, 0] << 4) | pairs[:, 1]


def _symmetric(x: torch.Tensor, blocksize: int | None, bits: int, nonfinite: str) -> QuantizedTensor:
    blocksize = check_input(x, blocksize)
    _check_options(bits, nonfinite)
    largest = 2 ** (bits - 1) - 1
    codes = torch.empty(x.numel(), dtype=torch.int8, device=x.device)
    scales = _scaled_pieces(
        x, blocksize, nonfinite, largest, lambda start, stop, piece: codes[start:stop].copy_(piece.round_())
    )
    return QuantizedTensor("int8", codes.view(x.shape), scales, x.shape, x.dtype, blocksize, levels=largest)


def _to_table(x: torch.Tensor, scheme: str, blocksize: int, nonfinite: str) -> QuantizedTensor:
    blocksize = check_input(x, blocksize)
    _check_options(8, nonfinite)
    edges, order = boundaries(scheme)
    ascending = torch.tensor(order, dtype=torch.uint8, device=x.device)
    in_order = order == tuple(range(len(order)))
    four_bit = len(order) == 16
    # 4-bit codes are made for a piece of whole blocks and packed there; an odd piece leaves its last code in `carry`.
    size = (x.numel() + 1) // 2 if four_bit else x.numel()
    codes = torch.empty(size, dtype=torch.uint8, device=x.device)
    zero_code = int(ascending[sum(edge < 0 for edge in edges)])
    if four_bit:
        below, inside = (part.to(x.device) for part in bins(scheme, work_dtype(x)))
    else:
        edge_tensor = torch.tensor(edges, dtype=work_dtype(x), device=x.device)
    carry: list[torch.Tensor] = []

    def store(start: int, stop: int, piece: torch.Tensor) -> None:
        if four_bit:
            place = bin_of(piece.clamp_(-1, 1))
            found = below.index_select(0, place)
            found += torch.gt(piece, inside.index_select(0, place)).view(torch.uint8)
        else:
            found = torch.bucketize(piece, edge_tensor, out_int32=True).to(torch.uint8)
        if not in_order:
            found = ascending.index_select(0, found.int())
        if not four_bit:
            codes[start:stop] = found
            return
        if start % 2:
            found = torch.cat([carry.pop(), found])
            start -= 1
        if (stop - start) % 2 and stop < x.numel():
            carry.append(found[-1:].clone())
            found, stop = found[:-1], stop - 1
        codes[start // 2 : (stop + 1) // 2] = _pack(found, zero_code)

    scales = _scaled_pieces(x, blocksize, nonfinite, 1, store)
    return QuantizedTensor(
        scheme, codes if four_bit else codes.view(x.shape), scales, x.shape, x.dtype, blocksize
    )


def _scaled_pieces(x: torch.Tensor, blocksize: int, nonfinite: str, largest: int, store) -> torch.Tensor:
    """Call ``store(start, stop, piece)`` with every piece of ``x`` divided by its block's absmax, times ``largest``.

    The piece is a buffer that ``store`` may overwrite. Returns each block's absmax.
    """
    values, dtype = flat(x), work_dtype(x)
    scales = torch.empty(-(-x.numel() // blocksize), dtype=dtype, device=x.device)
    buffer = torch.empty(min(CHUNK, x.numel()), dtype=dtype, device=x.device)
    whole_blocks = blocksize <= CHUNK
    if not whole_blocks:
        _large_block_absmax(values, blocksize, scales, buffer)
    for start, stop, first, size in segments(x.numel(), blocksize):
        piece = buffer[: stop - start].view(-1, size)
        source = values[start:stop].view(-1, size)
        absmax = scales[first : first + len(piece)]
        if source.dtype != dtype:
            source = source.to(dtype)
        if whole_blocks:
            torch.abs(source, out=piece)
            torch.amax(piece, 1, out=absmax)
        lowest, highest = torch.aminmax(absmax)
        finite = bool(torch.isfinite(highest))  # NaN and infinity both reach the maximum
        if not finite:
            if nonfinite == "raise":
                refuse_nonfinite(x.detach(), x.shape)
            absmax.masked_fill_(~torch.isfinite(absmax), torch.nan)
        low, high, shift = _EXTREMES[dtype]
        factor = largest / absmax
        if finite and low <= lowest and highest <= high:
            torch.mul(source, factor.unsqueeze(1), out=piece)
        else:
            # A block of zeros, one near the ends of the float's range, or a poisoned one.
            move = (
                torch.ones_like(absmax)
                .masked_fill_(absmax < low, shift)
                .masked_fill_(absmax > high, 1 / shift)
            )
            factor = torch.where(absmax > 0, largest / (absmax * move), 0.0)
            torch.mul(source, move.unsqueeze(1), out=piece)
            piece.mul_(factor.unsqueeze(1)).nan_to_num_(0.0, 0.0, 0.0)
        store(start, stop, piece.view(-1))
    return scales


def _large_block_absmax(
    values: torch.Tensor, blocksize: int, scales: torch.Tensor, buffer: torch.Tensor
) -> None:
    scales.zero_()
    for start, stop, block, _ in segments(values.numel(), blocksize):
        piece = buffer[: stop - start].copy_(values[start:stop]).abs_()
        scales[block] = torch.maximum(scales[block], piece.amax())


def _check_options(bits: int, nonfinite: str) -> None:
    if bits not in range(2, 9):
        raise ValueError(f"bits is {bits!r}, expected 2 to 8")
    if nonfinite not in NONFINITE:
        raise ValueError(f"nonfinite is {nonfinite!r}, expected one of {NONFINITE}")
