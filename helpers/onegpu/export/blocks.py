"""Weights as llama.cpp's 4- and 5-bit blocks, with the scale of each block searched for.

The ``gguf`` package writes these types by the block's extremes alone: one outlier then sets the step for its 31
neighbours. A step that clips it a little is often better, so several are tried and the one with the least squared error
is kept, as llama.cpp does where it has an importance matrix (``make_qx_quants`` in ggml/src/ggml-quants.c).
"""

from __future__ import annotations

import numpy as np
import torch

BLOCK_SIZE = 32

_SHARES = torch.linspace(0.7, 1.2, 11).tolist()  # of the step that reaches the block's extreme; holds 1.0
_AT_ONCE = 1 << 15  # blocks, 4 MiB in fp32


def quantize_blocks(weights: np.ndarray, kind: str) -> np.ndarray:
    """Quantize a matrix to one of llama.cpp's types of 4 or 5 bits.

    Parameters
    ----------
    weights
        float16 or float32, shape (rows, columns), columns a multiple of ``BLOCK_SIZE``.
    kind
        "q4_0", "q5_0" (weight = d * (q - half), half 8 or 16), "q4_1" or "q5_1" (weight = d * q + m).

    Returns
    -------
    numpy.ndarray
        uint8, shape (rows, bytes per row). A block is d in fp16, m in fp16 (``_1`` types), the fifth bits (5-bit types,
        4 bytes), then the low four bits of weights i and i + 16 in byte i (``ggml/src/ggml-common.h``).
    """
    bits, has_min = int(kind[1]), kind.endswith("_1")
    blocks = torch.from_numpy(np.array(weights)).reshape(-1, BLOCK_SIZE)
    packed = []
    for some in blocks.split(_AT_ONCE):
        d, m, q = _search(some.float(), bits, has_min)
        parts = [_fp16_bytes(d)] + ([_fp16_bytes(m)] if has_min else [])
        q = q.to(torch.uint8).numpy()
        if bits == 5:
            parts.append(np.packbits(q >> 4, axis=-1, bitorder="little"))
        low = q & 15
        parts.append(low[:, :16] | (low[:, 16:] << 4))
        packed.append(np.concatenate(parts, axis=-1))
    return np.concatenate(packed).reshape(len(weights), -1)


def _search(x: torch.Tensor, bits: int, has_min: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scale d and minimum m, shape (blocks, 1), and codes q, shape (blocks, 32), of the least squared error."""
    top, half = 2**bits - 1, 2 ** (bits - 1)
    if has_min:
        low, high = x.aminmax(dim=-1, keepdim=True)
        steps = [((high - low) * share / top, (high + low) / 2) for share in _SHARES]
    else:
        extreme = x.gather(-1, x.abs().argmax(-1, keepdim=True))
        # the side with one code more takes the extreme, or the other side where that fits the rest better
        ends = [end * share for end in (-half, half - 1) for share in _SHARES]
        steps = [(extreme * (1 / end), None) for end in ends]
    best = None
    for d, middle in steps:
        m = middle - d * (top / 2) if has_min else -half * d
        q = ((x - m) / d).nan_to_num(0.0, 0.0, 0.0).round_().clamp_(0, top)
        d, m = _fit(x, q, half, has_min)
        error = (d * q + m - x).square_().sum(-1, keepdim=True)
        if best is None:
            best = [error, d, m, q]
            continue
        better = error < best[0]
        best = [torch.where(better, new, old) for new, old in zip((error, d, m, q), best, strict=True)]
    return best[1], best[2], best[3]


def _fit(x: torch.Tensor, q: torch.Tensor, half: int, has_min: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares for d and m with the codes held, rounded to fp16 as they are stored."""
    codes = q - (q.mean(-1, keepdim=True) if has_min else half)
    power = codes.square().sum(-1, keepdim=True)
    d = torch.where(power > 0, (codes * x).sum(-1, keepdim=True) / power, 0.0).half().float()
    if not has_min:
        return d, -half * d
    return d, (x.mean(-1, keepdim=True) - d * q.mean(-1, keepdim=True)).half().float()


def _fp16_bytes(values: torch.Tensor) -> np.ndarray:
    return values.half().numpy().view(np.uint8)
