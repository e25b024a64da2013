"""A quantized tensor: small whole numbers, a few scales, and the rule that turns them back.

One rule for all schemes: ``value = level(code) * scale``, where values that lie next to each other in memory share a
scale in blocks. For int8 ``level(code) = code / 127`` and the scale is the block's largest magnitude (absmax); for
NF4 and FP4 the level comes from a table of 16; for zero-point int8 it is ``code - zero_point``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from onegpu.dtype_sizing import format_bytes

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Values handled at a time: a megabyte of fp32, which stays in a core's cache from the first step to the last.
CHUNK = 1 << 18


@dataclass(frozen=True, eq=False)
class DoubleQuantized:
    """Scales that are quantized themselves: 8-bit codes, an fp32 scale for every 256 of them, and one offset.

    QLoRA's double quantization (arXiv 2305.14314): the mean is taken off, so that positive scales use both halves of
    the signed 8-bit table.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offset: torch.Tensor
    blocksize: int

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offset."""
        return self.codes.nbytes + self.scales.nbytes + self.offset.nbytes

    def numel(self) -> int:
        """Number of scales."""
        return self.codes.numel()

    def dequantize(self) -> torch.Tensor:
        """Give the scales back in fp32."""
        from onegpu.quantization.tables import dynamic_table

        levels = dynamic_table().to(self.codes.device)[self.codes.long()]
        return levels * self.scales.repeat_interleave(self.blocksize)[: self.numel()] + self.offset


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """What a quantizer returns.

    Attributes
    ----------
    scheme
        "int8", "int8 zero-point", "dynamic8", "nf4" or "fp4".
    codes
        int8 or uint8. One a value, in the tensor's shape; 4-bit codes two to a byte in one dimension, the first value
        in the high half.
    scales
        One a block, as fp32 (fp64 for an fp64 tensor): what level 1 stands for. Or the same, quantized again.
    shape, dtype
        Of the tensor that was quantized, which ``dequantize`` gives back.
    blocksize
        Values that share a scale, in memory order; the last block may be shorter.
    zero_points
        int32, one a block; None for symmetric schemes.
    levels
        Largest code of an "int8" scheme: 127, or 7 for 4 bits kept one to a byte.
    """

    scheme: str
    codes: torch.Tensor
    scales: torch.Tensor | DoubleQuantized
    shape: torch.Size
    dtype: torch.dtype
    blocksize: int
    zero_points: torch.Tensor | None = None
    levels: int = 127

    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of everything stored: codes, scales and zero points."""
        return (
            self.codes.nbytes
            + self.scales.nbytes
            + (self.zero_points.nbytes if self.zero_points is not None else 0)
        )

    @property
    def bits_per_value(self) -> float:
        """Bits of memory a value, scales included."""
        return 8 * self.nbytes / self.numel() if self.numel() else 0.0

    def block_scales(self) -> torch.Tensor:
        """The scales as numbers, double quantization undone."""
        return self.scales.dequantize() if isinstance(self.scales, DoubleQuantized) else self.scales

    def step(self) -> torch.Tensor:
        """The distance between neighbouring levels of each block, for the schemes with equal steps.

        Rounding to the nearest level is off by half of it at most.
        """
        if self.scheme == "int8":
            return self.block_scales() / self.levels
        if self.scheme == "int8 zero-point":
            return self.block_scales()
        raise ValueError(f"{self.scheme} has levels at unequal distances, there is no one step")

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Turn codes back into numbers, in the given dtype or the one they had.

        Examples
        --------
        >>> from onegpu.quantization import quantize_absmax
        >>> quantize_absmax(torch.tensor([1.0, -2.0, 0.5])).dequantize()
        tensor([ 1.0079, -2.0000,  0.5039])
        """
        from onegpu.quantization.tables import pair_table, table

        dtype = dtype or self.dtype
        scales = self.block_scales()
        out = torch.empty(self.numel(), dtype=dtype, device=self.codes.device)
        codes = self.codes.reshape(-1)
        packed = self.scheme in ("nf4", "fp4")
        if packed:
            pairs = pair_table(self.scheme).to(codes.device, scales.dtype)
        elif self.scheme == "dynamic8":
            values = table("dynamic8").to(codes.device, scales.dtype)
        for start, stop, first, size in segments(self.numel(), self.blocksize):
            if packed:
                levels = pairs.index_select(0, codes[start // 2 : (stop + 1) // 2].int()).view(-1)
                levels = levels[start % 2 : start % 2 + stop - start]
            elif self.scheme == "dynamic8":
                levels = values.index_select(0, codes[start:stop].int())
            else:
                levels = codes[start:stop].to(scales.dtype)
                if self.scheme == "int8":
                    levels.div_(self.levels)
            rows = levels.view(-1, size)
            if self.zero_points is not None:
                rows.sub_(self.zero_points[first : first + len(rows), None])
            rows.mul_(scales[first : first + len(rows), None])
            if self.zero_points is not None:  # the outermost levels may lie half a step outside the data
                rows.clamp_(-torch.finfo(dtype).max, torch.finfo(dtype).max)
            out[start:stop] = rows.view(-1)
        return out.view(self.shape)

    def __str__(self) -> str:
        size = format_bytes(self.nbytes)
        return (
            f"{self.scheme}, block {self.blocksize:,}: shape {tuple(self.shape)}, {size}, "
            f"{self.bits_per_value:.4g} bits a value"
        )

    __repr__ = __str__


def segments(count: int, blocksize: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut ``count`` values into pieces of whole blocks that fit the cache, or pieces of one block too large for it.

    Yields
    ------
    start, stop, first_block, block_length
        ``stop - start`` is a multiple of ``block_length``, the length of the piece's blocks: ``blocksize``; less in
        the last block, or in a piece of a large one.

    Examples
    --------
    >>> list(segments(10, 4))
    [(0, 8, 0, 4), (8, 10, 2, 2)]
    """
    whole = count - count % blocksize
    if blocksize <= CHUNK:
        per_piece = CHUNK // blocksize * blocksize
        for start in range(0, whole, per_piece):
            yield start, min(start + per_piece, whole), start // blocksize, blocksize
        if whole < count:
            yield whole, count, whole // blocksize, count - whole
        return
    for first in range(0, count, blocksize):
        end = min(first + blocksize, count)
        for start in range(first, end, CHUNK):
            stop = min(start + CHUNK, end)
            yield start, stop, first // blocksize, stop - start


def check_input(x: torch.Tensor, blocksize: int | None, what: str = "x") -> int:
    """Refuse what can't be quantized; return the block size, the whole tensor's length for None."""
    if x.dtype not in FLOATS:
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise ValueError(f"{what} is {x.dtype}, expected one of {wanted}: convert it first, {what}.float()")
    if blocksize is None:
        return max(1, x.numel())
    if isinstance(blocksize, bool) or int(blocksize) != blocksize or blocksize < 1:
        raise ValueError(f"blocksize is {blocksize!r}, expected a whole number of 1 or more")
    return int(blocksize)


def flat(x: torch.Tensor) -> torch.Tensor:
    """The values in memory order of the shape, as one dimension; a copy only of what isn't contiguous."""
    return x.detach().reshape(-1)


def work_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype to compute in and of the scales: fp32, or fp64 for fp64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def refuse_nonfinite(values: torch.Tensor, shape: torch.Size, start: int = 0) -> None:
    """Raise for the first NaN or infinity, naming its index in a tensor of ``shape``."""
    bad = (~torch.isfinite(values)).reshape(-1)
    place = start + int(bad.nonzero()[0])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), shape)) if len(shape) else ()
    raise ValueError(
        f"x[{', '.join(map(str, index))}] is {values.reshape(-1)[place - start].item()}, expected finite numbers: "
        f"a scale for it would ruin its whole block. Mend it, or pass nonfinite='poison' to get that block back as NaN"
    )
