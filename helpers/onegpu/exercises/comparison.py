"""Are two results the same, and if not, where do they differ, in words a learner can act on.

Kinds are told apart before values: a list is not a tensor, int is not float (bytes are ints), int8 is not int64, a
shape is not another shape. What computes the same is the same: a tuple for a list, a NumPy or 0-d torch scalar for a
Python one, float64 for float32, one chunk for many.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any


def difference(
    got: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8, where: str = ""
) -> str | None:
    """Return None if ``got`` is right, else one sentence that says what differs first.

    Examples
    --------
    >>> difference([1, 2, 3], (1, 2, 3)) is None
    True
    >>> difference([1, 5, 3], [1, 2, 3])
    'at [1]: expected 2, got 5'
    >>> difference(2.0, 2)
    'expected an int, got the float 2.0 (bytes and counts are ints: // divides without a remainder)'
    """
    at = f"at {where}: " if where else ""

    def recurse(g: Any, e: Any, step: str) -> str | None:
        return difference(g, e, rtol=rtol, atol=atol, where=where + step)

    expected_kind, got_kind = _kind(expected), _kind(got)
    if expected_kind in ("tensor", "array"):
        return _array_difference(got, expected, got_kind, expected_kind, rtol, atol, at)
    if expected_kind in ("bool", "int", "float", "complex"):
        return _number_difference(got, expected, rtol, atol, at)
    if expected_kind != got_kind:
        return f"{at}expected {_a(expected)}, got {_a(got)}"
    if expected_kind == "arrow":
        return _arrow_difference(got, expected, recurse, at)
    if expected_kind == "frame":
        return _frame_difference(got, expected, recurse, at)
    if expected_kind == "dataclass":
        if type(got).__name__ != type(expected).__name__:
            return f"{at}expected {_a(expected)}, got {_a(got)}"
        for field in dataclasses.fields(expected):
            if not field.compare:
                continue
            if not hasattr(got, field.name):
                return f"{at}the field {field.name!r} is missing"
            found = recurse(getattr(got, field.name), getattr(expected, field.name), f".{field.name}")
            if found:
                return found
        return None
    if expected_kind == "dict":
        missing = [key for key in expected if key not in got]
        extra = [key for key in got if key not in expected]
        if missing or extra:
            parts = [
                f"the key {show(keys[0])} is {what}"
                for keys, what in ((missing, "missing"), (extra, "not expected"))
                if keys
            ]
            return at + ", ".join(parts)
        return next((d for key in expected if (d := recurse(got[key], expected[key], f"[{key!r}]"))), None)
    if expected_kind == "list":
        if len(got) != len(expected):
            return f"{at}expected {len(expected)} item{'s' * (len(expected) != 1)}, got {len(got)}"
        return next(
            (
                d
                for i, (g, e) in enumerate(zip(got, expected, strict=False))
                if (d := recurse(g, e, f"[{i}]"))
            ),
            None,
        )
    if expected_kind == "set":
        if set(got) == set(expected):
            return None
        missing, extra = set(expected) - set(got), set(got) - set(expected)
        parts = [
            f"{show(_some(s))} {what}" for s, what in ((missing, "missing"), (extra, "not expected")) if s
        ]
        return at + ", ".join(parts)
    if expected_kind == "text":
        return _text_difference(got, expected, at)
    try:
        same = bool(got is expected or got == expected)
    except Exception as error:
        return f"{at}{_a(got)} can't be compared with {_a(expected)}: {error}"
    return None if same else f"{at}expected {show(expected)}, got {show(got)}"


def only_type_differs(got: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Whether ``got`` holds the right values in the right places, and differs in type or dtype alone.

    Examples
    --------
    >>> only_type_differs(2.0, 2), only_type_differs({1}, [1]), only_type_differs("7", 7), only_type_differs([2], 2)
    (True, True, True, False)
    """
    return not _vast(got) and difference(_values(got), _values(expected), rtol=rtol, atol=atol) is None


def only_arrangement_differs(got: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> str:
    """Return "shape" if the values are right and nested otherwise, "order" if a list's items are in another, else "".

    Examples
    --------
    >>> only_arrangement_differs([[1, 2]], [1, 2]), only_arrangement_differs([2, 1], [1, 2])
    ('shape', 'order')
    """
    if _vast(got):
        return ""
    mine, right = _values(got), _values(expected)
    flat = list(_leaves(mine)), list(_leaves(right))
    if flat[1] and len(flat[0]) == len(flat[1]) and difference(*flat, rtol=rtol, atol=atol) is None:
        return "shape"
    if type(expected) is list and isinstance(mine, list) and len(set(map(repr, right))) > 1:
        in_order = [sorted(values, key=repr) for values in (mine, right)]
        if difference(*in_order, rtol=rtol, atol=atol) is None:
            return "order"
    return ""


def _vast(value: Any) -> bool:
    """Too much to be taken apart: nothing that an exercise asks for."""
    return _kind(value) in ("list", "dict", "set") and len(value) > 10_000


def _values(value: Any, depth: int = 6) -> Any:
    """What a value holds, without its types: nested lists, dicts, texts and floats."""
    kind = _kind(value)
    if kind == "tensor":
        value = value.detach().cpu().tolist()
    elif kind == "array":
        value = value.tolist()
    elif kind == "arrow" or hasattr(value, "as_py"):
        value = value.as_py() if hasattr(value, "as_py") else value.to_pylist()
    elif kind == "frame":
        value = value.to_dict("list") if value.ndim == 2 else value.tolist()
    elif kind == "set":
        value = sorted(value, key=repr)
    elif isinstance(value, Iterator):
        value = list(itertools.islice(value, 10_000))
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, bool | numbers.Real):
        return float(value) if abs(value) < 2**53 else value
    if depth and isinstance(value, Mapping):
        return {key: _values(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_values(item, depth - 1) for item in value]
    return value


def _leaves(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for value in values:
            yield from _leaves(value)
    else:
        yield values


def show(value: Any, limit: int = 160) -> str:
    """Write a value in at most ``limit`` characters, on one line.

    Examples
    --------
    >>> print(show([1, 2, 3]), show("a" * 500, limit=30))
    [1, 2, 3] 'aaaaaaaaaa … (500 characters)
    """
    try:
        return _shown(value, limit)
    except Exception:  # whatever an object's own repr does
        return _cut(f"<{type(value).__name__}>", limit)


def _shown(value: Any, limit: int) -> str:
    kind = _kind(value)
    if kind == "tensor":
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        size = f"{dtype} tensor" if not shape else f"{dtype} tensor of shape {shape}"
        # A quantized module's tensor may be huge: only its start is written.
        head = value.detach().reshape(-1)[:24].tolist() if value.numel() > 24 else value.detach().tolist()
        return _cut(f"{size}: {_plain(head)}{' …' if value.numel() > 24 else ''}", limit)
    if kind == "array":
        head = value.reshape(-1)[:24].tolist() if value.size > 24 else value.tolist()
        return _cut(
            f"{value.dtype} array of shape {value.shape}: {_plain(head)}{' …' if value.size > 24 else ''}",
            limit,
        )
    if kind == "arrow":
        head = value.slice(0, 8).to_pylist() if hasattr(value, "slice") else value.to_pylist()
        return _cut(
            f"{type(value).__name__} of {len(value)}: {_plain(head)}{' …' if len(value) > 8 else ''}", limit
        )
    if kind == "frame":
        return _cut(f"{type(value).__name__} {tuple(value.shape)}", limit)
    if isinstance(value, str):
        if len(value) <= limit and len(repr(value)) <= limit:
            return repr(value)
        tail = f" … ({len(value)} characters)"
        return repr(value[:limit])[: max(8, limit - len(tail))] + tail
    if callable(value) and hasattr(value, "__name__"):
        return _cut(f"the function {value.__name__}", limit)
    return _cut(_plain(value), limit)


_MOST = 60
"""Items of a container that are written; more don't fit a line."""


def _plain(value: Any, depth: int = 5) -> str:
    """``repr`` on one line, with floats at six digits, tensors inside containers short, and long containers cut."""
    if isinstance(value, str):
        return repr(value[:2000])
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}" if value != _whole(value) else repr(value)
    if type(value) in (dict, list, tuple, set, frozenset) and not depth:
        return "…"
    if isinstance(value, dict):
        items = [f"{_plain(k)}: {_plain(v, depth - 1)}" for k, v in itertools.islice(value.items(), _MOST)]
        return "{" + ", ".join(items) + (", …" if len(value) > _MOST else "") + "}"
    if type(value) in (list, tuple, set, frozenset):
        items = ", ".join(_plain(item, depth - 1) for item in itertools.islice(value, _MOST))
        items += ", …" if len(value) > _MOST else ""
        if isinstance(value, list):
            return f"[{items}]"
        if isinstance(value, tuple):
            return f"({items},)" if len(value) == 1 else f"({items})"
        return f"{{{items}}}" if value else "set()"
    if _kind(value) in ("tensor", "array", "arrow", "frame"):
        return show(value, 80)
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"<{type(value).__name__}>"
    # An address says nothing and differs each time.
    return re.sub(r"( object)? at 0x[0-9a-fA-F]+", "", text)


def _whole(value: float) -> int | None:
    """The whole number that a float is, None if it is none."""
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 2]} …"


def _some(items: set, most: int = 5) -> list:
    return sorted(items, key=repr)[:most]


def _a(value: Any) -> str:
    """A value's kind in words."""
    kind = _kind(value)
    if value is None:
        return "None"
    words = {"tensor": "a torch.Tensor", "array": "a NumPy array", "dict": "a dict", "set": "a set"}
    if kind in words:
        return words[kind]
    if kind in ("bool", "int", "float", "text"):
        return f"the {type(value).__name__} {show(value, 60)}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _kind(value: Any) -> str:
    """The sort of thing a value is; torch, NumPy, Arrow and pandas are never imported for it."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    arrow, pandas = sys.modules.get("pyarrow"), sys.modules.get("pandas")
    if torch is not None and isinstance(value, torch.Tensor):
        return "tensor"
    if numpy is not None and isinstance(value, numpy.ndarray):
        return "array"
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return "bool"
    if isinstance(value, numbers.Integral):
        return "int"
    if isinstance(value, numbers.Real):
        return "float"
    if isinstance(value, numbers.Complex):
        return "complex"
    if isinstance(value, str | bytes | bytearray):
        return "text"
    if arrow is not None and isinstance(
        value, arrow.Array | arrow.ChunkedArray | arrow.Table | arrow.RecordBatch
    ):
        return "arrow"
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        return "frame"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "dataclass"
    if isinstance(value, Mapping):
        return "dict"
    if isinstance(value, Set):
        return "set"
    if isinstance(value, Sequence):
        return "list"
    return f"object {type(value).__name__}"


def _number_difference(got: Any, expected: Any, rtol: float, atol: float, at: str) -> str | None:
    if _kind(got) == "tensor" and got.dim() == 0:
        got = got.detach().item()
    elif _kind(got) == "array" and got.ndim == 0:
        got = got.item()
    want, found = _kind(expected), _kind(got)
    if found not in ("bool", "int", "float", "complex"):
        return f"{at}expected {_a(expected)}, got {_a(got)}"
    if want == "int" and found == "float":
        return (
            f"{at}expected an int, got the float {show(got)} "
            "(bytes and counts are ints: // divides without a remainder)"
        )
    if (want == "bool") != (found == "bool"):
        return f"{at}expected {_a(expected)}, got {_a(got)}"
    if want in ("bool", "int"):
        return None if got == expected else f"{at}expected {show(expected)}, got {show(got)}"
    if _close(got, expected, rtol, atol):
        return None
    digits = f"{at}expected {show(expected)}, got {show(got)}"
    if show(expected) == show(got):  # the difference is beyond the digits shown
        return f"{at}expected {expected!r}, got {got!r}"
    return digits


def _close(got: Any, expected: Any, rtol: float, atol: float) -> bool:
    if isinstance(expected, complex) or isinstance(got, complex):
        return abs(got - expected) <= atol + rtol * abs(expected)
    got, expected = float(got), float(expected)
    if math.isnan(expected) or math.isnan(got):
        return math.isnan(expected) and math.isnan(got)
    if math.isinf(expected) or math.isinf(got):
        return got == expected
    return abs(got - expected) <= atol + rtol * abs(expected)


def _array_difference(
    got: Any, expected: Any, got_kind: str, expected_kind: str, rtol: float, atol: float, at: str
) -> str | None:
    if got_kind != expected_kind:
        return f"{at}expected {_a(expected)}, got {_a(got)}"
    if tuple(got.shape) != tuple(expected.shape):
        return f"{at}expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    if got.dtype != expected.dtype and [str(a.dtype).removeprefix("torch.") for a in (got, expected)] != [
        "float64",
        "float32",
    ]:
        return f"{at}expected the dtype {expected.dtype}, got {got.dtype}"
    import numpy as np

    if expected_kind == "tensor":
        import torch

        wide = torch.complex128 if expected.is_complex() else torch.float64
        exact = not (expected.is_floating_point() or expected.is_complex())
        g, e = (t.detach().cpu() if exact else t.detach().cpu().to(wide) for t in (got, expected))
        g, e = g.numpy(), e.numpy()
    else:
        exact = expected.dtype.kind not in "fc"
        g, e = got, expected
    wrong = g != e if exact else ~np.isclose(g, e, rtol=rtol, atol=atol, equal_nan=True)
    count = int(np.sum(wrong))
    if not count:
        return None
    if not wrong.shape:
        return f"{at}expected {show(e.item())}, got {show(g.item())}"
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    index = ", ".join(map(str, first))
    return (
        f"{at}{count} of {wrong.size} values differ, first at [{index}]: "
        f"expected {show(e[first].item())}, got {show(g[first].item())}"
    )


def _arrow_difference(got: Any, expected: Any, recurse: Any, at: str) -> str | None:
    import pyarrow as pa

    tables = [isinstance(v, pa.Table | pa.RecordBatch) for v in (got, expected)]
    if tables[0] != tables[1]:
        return f"{at}expected a {type(expected).__name__}, got a {type(got).__name__}"
    if all(tables):
        if got.schema.names != expected.schema.names:
            return f"{at}expected the columns {expected.schema.names}, got {got.schema.names}"
        return next(
            (
                d
                for name in expected.schema.names
                if (d := recurse(got.column(name), expected.column(name), f"[{name!r}]"))
            ),
            None,
        )
    if got.type != expected.type:
        return f"{at}expected the type {expected.type}, got {got.type}"
    if len(got) != len(expected):
        return f"{at}expected the length {len(expected)}, got {len(got)}"
    for i in range(len(expected)):
        found = recurse(got[i].as_py(), expected[i].as_py(), f"[{i}]")
        if found:
            return found
    return None


def _frame_difference(got: Any, expected: Any, recurse: Any, at: str) -> str | None:
    if type(got).__name__ != type(expected).__name__:
        return f"{at}expected a {type(expected).__name__}, got a {type(got).__name__}"
    if tuple(got.shape) != tuple(expected.shape):
        return f"{at}expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    if got.ndim == 1:
        return recurse(got.tolist(), expected.tolist(), "")
    if list(got.columns) != list(expected.columns):
        return f"{at}expected the columns {list(expected.columns)}, got {list(got.columns)}"
    for name in expected.columns:
        if str(got[name].dtype) != str(expected[name].dtype):
            return f"{at}column {name!r}: expected the dtype {expected[name].dtype}, got {got[name].dtype}"
        found = recurse(got[name].tolist(), expected[name].tolist(), f"[{name!r}]")
        if found:
            return found
    return None


def _text_difference(got: Any, expected: Any, at: str) -> str | None:
    if isinstance(got, str) != isinstance(expected, str):
        return f"{at}expected {type(expected).__name__}, got {type(got).__name__}"
    if got == expected:
        return None
    if len(expected) <= 40 and len(got) <= 40:
        return f"{at}expected {expected!r}, got {got!r}"
    i = next(
        (i for i, (g, e) in enumerate(zip(got, expected, strict=False)) if g != e),
        min(len(got), len(expected)),
    )
    here = [repr(text[i : i + 20]) if i < len(text) else "the end" for text in (expected, got)]
    before = repr(expected[max(0, i - 12) : i])
    return f"{at}the same up to character {i} (after {before}), then expected {here[0]}, got {here[1]}"
