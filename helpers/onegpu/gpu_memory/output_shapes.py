"""What an operation makes of tensors of the same shapes is of the same shape: asked of torch once, then remembered.

Layers of a model are alike, so that most operations of a training step come dozens of times. On a meta tensor torch
works out shapes in Python, which takes more time than all the rest of a simulation.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

MOST_ENTRIES = 20_000
_IN_PLACE, _UNKNOWN, _VIEW, _LIST_IN_PLACE, _OTHER = "in place", "unknown", "view", "list in place", "other"
_known: dict[Any, Any] = {}


def output_on_meta(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run an operation on meta tensors, or make what it made the last time of tensors like these.

    Remembered is what makes fresh tensors, each with a storage of its own that it fills, and what changes its first
    tensor in place; views, and whatever else shares storages, run each time. An operation that changes a list of meta
    tensors in place has nothing to do.

    Examples
    --------
    >>> x = torch.empty(2, 3, device="meta")
    >>> [tuple(output_on_meta(torch.ops.aten.mm.default, (x, x.t()), {}).shape) for _ in range(2)]
    [(2, 2), (2, 2)]
    """
    kind = _kind(func)
    if kind is _VIEW or (kind is _LIST_IN_PLACE and args[0][0].device.type != "meta"):
        return func(*args, **kwargs)
    if kind is _LIST_IN_PLACE:
        return None
    try:
        tensors: list[torch.Tensor] = []
        key = (func, _key(args, tensors), _key(kwargs, tensors) if kwargs else None)
        made = _known.get(key)
    except TypeError:  # an argument that can't be a key
        return func(*args, **kwargs)
    if made is None:
        out = func(*args, **kwargs)
        if len(_known) >= MOST_ENTRIES:
            _known.clear()
        _known[key] = _description(func, args, out, tensors)
        return out
    if made is _UNKNOWN:
        return func(*args, **kwargs)
    if made is _IN_PLACE:
        return args[0]
    fresh = [
        torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in made[1]
    ]
    return fresh[0] if made[0] is None else made[0](fresh)


@functools.cache
def _kind(func: Any) -> str:
    if func.is_view:
        return _VIEW
    return _LIST_IN_PLACE if func._opname.startswith("_foreach_") and func._schema.is_mutable else _OTHER


def _key(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A value by its kind and, of a tensor, by what decides about shapes."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.shape, value.stride(), value.dtype, value.device.type
    if isinstance(value, (tuple, list)):
        if len(value) > 16:
            raise TypeError("too long for a key")
        return tuple([_key(one, tensors) for one in value])
    if isinstance(value, dict):
        return tuple([(name, _key(one, tensors)) for name, one in value.items()])
    return type(value), value


def _description(func: Any, args: tuple, out: Any, tensors: list[torch.Tensor]) -> Any:
    """How to make an output again, or why not: shapes don't say it where values count or storages are shared."""
    if not tensors or any(t.device.type != "meta" and t.ndim for t in tensors):
        return _UNKNOWN
    if func._schema.is_mutable:
        return _IN_PLACE if args and out is args[0] else _UNKNOWN
    several = isinstance(out, (tuple, list))
    made = list(out) if several else [out]
    if not all(
        isinstance(t, torch.Tensor) and t.device.type == "meta" and _fills_its_storage(t) for t in made
    ):
        return _UNKNOWN
    storages = [t.untyped_storage()._cdata for t in (*tensors, *made)]
    if len(set(storages[len(tensors) :])) < len(made) or set(storages[: len(tensors)]) & set(
        storages[len(tensors) :]
    ):
        return _UNKNOWN
    return type(out) if several else None, [(t.shape, t.stride(), t.dtype) for t in made]


def _fills_its_storage(t: torch.Tensor) -> bool:
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
    return t.storage_offset() == 0 and t.untyped_storage().nbytes() == last * t.element_size()
