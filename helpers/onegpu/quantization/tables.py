"""Tables of levels: NF4, FP4, and the dynamic 8-bit map of bitsandbytes."""

from __future__ import annotations

import functools

import torch

from onegpu.dtype_sizing import fp4_codebook, nf4_codebook


@functools.cache
def table(scheme: str) -> torch.Tensor:
    """The levels of "nf4", "fp4" or "dynamic8" in code order, fp32 in [-1, 1].

    Examples
    --------
    >>> table("nf4")[[0, 7, 15]].tolist()
    [-1.0, 0.0, 1.0]
    """
    if scheme == "dynamic8":
        return dynamic_table()
    if scheme not in ("nf4", "fp4"):
        raise ValueError(f"no table of levels for {scheme!r}, expected 'nf4', 'fp4' or 'dynamic8'")
    levels = nf4_codebook() if scheme == "nf4" else [level + 0.0 for level in fp4_codebook()]
    return torch.tensor(levels, dtype=torch.float32)


@functools.cache
def dynamic_table(signed: bool = True) -> torch.Tensor:
    """Build the dynamic 8-bit map: 256 levels in seven decades, each with twice the levels of the one below.

    Fine near zero and coarse near one, and not symmetric: the most negative level is -0.993, so -absmax can't be
    stored exactly (arXiv 1511.04561; bitsandbytes' default for 8-bit blocks). Unsigned, each decade has twice as
    many: 8-bit AdamW stores its second moment, which is never negative, so.

    Returns
    -------
    (256,) fp32, ascending

    Examples
    --------
    >>> dynamic_table()[[0, 127, 255]].tolist()
    [-0.992968738079071, 0.0, 1.0]
    >>> dynamic_table(signed=False)[[0, 1, 255]].tolist()
    [0.0, 3.2500003044333425e-07, 1.0]
    """
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1, dtype=torch.float32)
        middles = 10.0 ** (decade - 6) * ((edges[:-1] + edges[1:]) / 2.0)
        levels += middles.tolist()
        if signed:
            levels += (-middles).tolist()
    return torch.tensor(sorted(levels), dtype=torch.float32)


@functools.cache
def pair_table(scheme: str) -> torch.Tensor:
    """The two levels that each packed byte stands for: (256, 2), the high half first."""
    levels = table(scheme)
    codes = torch.arange(256)
    return torch.stack([levels[codes >> 4], levels[codes & 15]], dim=1)


@functools.cache
def boundaries(scheme: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Where one level's range ends and the next one's begins, and the codes in ascending order of level.

    A value on a boundary belongs to the lower level, as in bitsandbytes.
    """
    levels = table(scheme)
    order = torch.argsort(levels, stable=True)
    ascending = levels[order]
    return tuple(((ascending[:-1] + ascending[1:]) / 2).tolist()), tuple(order.tolist())


# Bins over [-1, 1] are 1/512 wide: narrower than any level's range, so that a bin holds one boundary at most.
_BINS = 512


def bin_of(values: torch.Tensor) -> torch.Tensor:
    """The bin, 0 to 1024, of values in [-1, 1], as int32; a larger value never has a smaller bin."""
    return values.mul(_BINS).add_(_BINS).to(torch.int32)


@functools.cache
def bins(scheme: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """For each bin, how many boundaries lie in bins below it, and the boundary inside it (infinity for none).

    A value's rank among the levels is then two look-ups and a comparison, exactly what 15 comparisons give.
    """
    edges = torch.tensor(boundaries(scheme)[0], dtype=dtype)
    places = bin_of(edges)
    below = torch.tensor([int((places < i).sum()) for i in range(2 * _BINS + 1)], dtype=torch.uint8)
    inside = torch.full((2 * _BINS + 1,), torch.inf, dtype=dtype)
    inside[places.long()] = edges
    return below, inside
