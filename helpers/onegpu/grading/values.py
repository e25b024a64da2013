"""Values that come back from a student's process, as JSON that can't run anything.

A pickle would run whatever the student's process put into it. Here a value is written by its kind, and read as one of a
few kinds: numbers, texts, containers, tensors, arrays, Arrow data, dataclasses, exceptions. Anything else arrives as an
``Opaque``, which knows its type's name and how it prints, and equals nothing.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import inspect
import sys
from collections.abc import Mapping, Sequence, Set
from fractions import Fraction
from typing import Any

MOST_BYTES = 64 * 2**20
_DEEPEST = 40
_MOST_ITEMS = 1_000_000


class Opaque:
    """A value of a kind that doesn't travel: its type's name and the start of its ``repr``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Writer:
    def __init__(self) -> None:
        self.left = _MOST_ITEMS
        self.bytes_left = MOST_BYTES

    def write(self, value: Any, depth: int = 0) -> Any:
        self.left -= 1
        if depth > _DEEPEST or self.left < 0:
            return _opaque(value)
        if value is None or value is True or value is False:
            return value
        if value is ...:
            return ["..."]
        kind = type(value)
        if isinstance(value, BaseException):
            return write_error(value)
        if isinstance(value, int):
            return ["int", hex(int(value))]
        if isinstance(value, float) and kind.__module__ != "numpy":
            return float(value)
        if isinstance(value, str):
            self.bytes_left -= len(value)
            return str(value) if self.bytes_left >= 0 else _opaque(value[:1000])
        if kind is complex:
            return ["complex", value.real, value.imag]
        if isinstance(value, bytes | bytearray):
            return [kind.__name__, self._binary(bytes(value))]
        if kind is Fraction:
            return ["fraction", hex(value.numerator), hex(value.denominator)]
        if kind is range:
            return ["range", value.start, value.stop, value.step]
        return (
            self._library(value, depth)
            or self._container(value, depth)
            or self._callable(value)
            or _opaque(value)
        )

    def _binary(self, content: bytes) -> str:
        self.bytes_left -= len(content)
        if self.bytes_left < 0:
            raise ValueError(f"the result is larger than {MOST_BYTES / 2**20:.0f} MiB")
        return base64.b64encode(content).decode("ascii")

    def _library(self, value: Any, depth: int) -> Any:
        """Write what torch, NumPy and Arrow hold; none of them is imported for it."""
        torch, numpy, arrow = (sys.modules.get(name) for name in ("torch", "numpy", "pyarrow"))
        if torch is not None and isinstance(value, torch.Tensor):
            try:
                return self._tensor(torch, value)
            except (RuntimeError, NotImplementedError, TypeError):  # meta, sparse and the like
                return None
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            if value.dtype.hasobject or value.dtype.names:
                return ["list", [self.write(item, depth + 1) for item in value.reshape(-1)[:1000].tolist()]]
            name = "array" if isinstance(value, numpy.ndarray) else "scalar"
            return [name, value.dtype.str, list(value.shape), self._binary(value.tobytes())]
        if arrow is not None and isinstance(
            value, arrow.Array | arrow.ChunkedArray | arrow.Table | arrow.RecordBatch | arrow.Scalar
        ):
            table, name = value, type(value).__name__
            if isinstance(value, arrow.Scalar):
                table, name = arrow.table({"": arrow.array([value.as_py()], value.type)}), "Scalar"
            elif isinstance(value, arrow.RecordBatch):
                table = arrow.Table.from_batches([value])
            elif not isinstance(value, arrow.Table):
                table = arrow.table({"": value})
            sink = arrow.BufferOutputStream()
            with arrow.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            return ["arrow", name, self._binary(sink.getvalue().to_pybytes())]
        return None

    def _tensor(self, torch: Any, value: Any) -> Any:
        if value.layout != torch.strided or value.is_quantized:
            return None
        plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        raw = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.reshape(-1)
        content = self._binary(raw.numpy().tobytes() if plain.numel() else b"")
        dtype = str(value.dtype).removeprefix("torch.")
        return ["tensor", dtype, list(value.shape), content, bool(value.requires_grad), bool(value.is_leaf)]

    def _container(self, value: Any, depth: int) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                f.name: self.write(getattr(value, f.name, None), depth + 1)
                for f in dataclasses.fields(value)
                if f.compare
            }
            return ["dataclass", type(value).__name__, fields]
        if isinstance(value, Mapping):
            try:
                items = list(value.items())
            except Exception:
                return None
            return ["dict", [[self.write(k, depth + 1), self.write(v, depth + 1)] for k, v in items]]
        if isinstance(value, Set):
            return ["set", [self.write(item, depth + 1) for item in value]]
        if isinstance(value, Sequence):
            name = "tuple" if isinstance(value, tuple) else "list"
            try:
                return [name, [self.write(item, depth + 1) for item in value]]
            except Exception:
                return None
        return None

    def _callable(self, value: Any) -> Any:
        if not callable(value) or not hasattr(value, "__name__"):
            return None
        return ["callable", str(value.__name__)[:200]]


def write_value(value: Any) -> Any:
    """Return a value as JSON content.

    Raises
    ------
    ValueError
        When it holds more than 64 MiB of binary data.
    """
    return _Writer().write(value)


def _opaque(value: Any) -> Any:
    try:
        text = repr(value)[:300]
    except Exception:
        text = f"<{type(value).__name__}>"
    return ["opaque", type(value).__name__, text]


def write_error(error: BaseException) -> Any:
    """Return an exception as JSON content: its name, those of its kinds that Python has, its message."""
    known = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    try:
        message = str(error)[:10_000]
    except Exception:
        message = ""
    return ["error", type(error).__name__, known, message]


def read_value(content: Any) -> Any:
    """Return the value that ``write_value`` wrote; whatever the content, nothing of it is run.

    Raises
    ------
    ValueError
        When the content is none that ``write_value`` makes.
    """
    try:
        return _read(content)
    except (TypeError, IndexError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a value: {error}") from None


def _read(content: Any) -> Any:
    if content is None or isinstance(content, bool | float | str):
        return content
    if not isinstance(content, list) or not content:
        raise ValueError("not a value")
    reader = _READERS.get(content[0])
    if reader is None:
        raise ValueError(f"not a kind of value: {str(content[0])[:40]}")
    return reader(*content[1:])


def _read_tensor(dtype: str, shape: list[int], content: str, requires_grad: bool, is_leaf: bool) -> Any:
    import torch

    kind = getattr(torch, str(dtype), None)
    if not isinstance(kind, torch.dtype) or any(n < 0 for n in shape):
        raise ValueError("not a tensor")
    raw = bytearray(base64.b64decode(content))
    flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
    value = flat.reshape([int(n) for n in shape])
    if requires_grad and (kind.is_floating_point or kind.is_complex):
        value = value.requires_grad_()
        return value if is_leaf else value.clone()
    return value


def _read_array(dtype: str, shape: list[int], content: str) -> Any:
    import numpy as np

    kind = np.dtype(str(dtype))
    if kind.hasobject:
        raise ValueError("not an array")
    return np.frombuffer(base64.b64decode(content), kind).reshape([int(n) for n in shape]).copy()


def _read_arrow(name: str, content: str) -> Any:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(base64.b64decode(content)) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(f"not Arrow data: {error}") from None
    if name == "Table":
        return table
    if name == "RecordBatch":
        return table.combine_chunks().to_batches()[0] if table.num_rows else table
    column = table.column(0)
    if name == "Scalar":
        return column[0]
    return column if name == "ChunkedArray" else column.combine_chunks()


def _read_dataclass(name: str, fields: dict[str, Any]) -> Any:
    values = {str(key): _read(value) for key, value in fields.items()}
    names = [key for key in values if key.isidentifier()]
    return dataclasses.make_dataclass(_identifier(name), names)(**{key: values[key] for key in names})


def _read_error(name: str, known: list[str], message: str) -> Exception:
    kinds = (getattr(builtins, str(kind), None) for kind in known)
    base = next((k for k in kinds if isinstance(k, type) and issubclass(k, Exception)), Exception)
    text = str(message)

    def init(self: Exception) -> None:
        Exception.__init__(self, text)

    # The message as it was: KeyError would put it in quotes, UnicodeError wants five arguments.
    return type(_identifier(name), (base,), {"__init__": init, "__str__": lambda self: text})()


def _read_callable(name: str) -> Any:
    def stays(*_: Any, **__: Any) -> Any:
        raise TypeError(f"{name} stays in the student's process")

    stays.__name__ = stays.__qualname__ = str(name)
    return stays


def _read_dict(items: list[list[Any]]) -> dict:
    return {_hashable(_read(key)): _read(value) for key, value in items}


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return Opaque(repr(value)[:300])
    return value


def _identifier(name: str) -> str:
    return str(name) if str(name).isidentifier() else "Unknown"


def _int(text: str) -> int:
    if len(text) > 100_000:
        raise ValueError("not a number that fits")
    return int(text, 16)


_READERS = {
    "...": lambda: ...,
    "int": _int,
    "complex": lambda real, imag: complex(float(real), float(imag)),
    "bytes": base64.b64decode,
    "bytearray": lambda content: bytearray(base64.b64decode(content)),
    "fraction": lambda n, d: Fraction(_int(n), _int(d) or 1),
    "range": lambda start, stop, step: range(int(start), int(stop), int(step) or 1),
    "list": lambda items: [_read(item) for item in items],
    "tuple": lambda items: tuple(_read(item) for item in items),
    "set": lambda items: {_hashable(_read(item)) for item in items},
    "dict": _read_dict,
    "dataclass": _read_dataclass,
    "tensor": _read_tensor,
    "array": _read_array,
    "scalar": lambda dtype, shape, content: _read_array(dtype, shape, content)[()],
    "arrow": _read_arrow,
    "error": _read_error,
    "callable": _read_callable,
    "opaque": lambda name, text: type(_identifier(name), (Opaque,), {})(str(text)[:300]),
}


def write_signature(function: Any) -> list[list[Any]] | None:
    """Return a function's parameters as JSON content: name, kind, whether it has a default; None if it shows none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, int(p.kind), p.default is not p.empty] for p in parameters]


def read_signature(content: Any) -> inspect.Signature | None:
    """Return the parameters that ``write_signature`` wrote; a default is ``...``."""
    if content is None:
        return None
    try:
        return inspect.Signature(
            [
                inspect.Parameter(
                    str(name),
                    inspect._ParameterKind(int(kind)),
                    default=... if has_default else inspect.Parameter.empty,
                )
                for name, kind, has_default in content
            ]
        )
    except (TypeError, ValueError):
        return None


def bounded(text: Any, most: int) -> str:
    """Return a text of at most so many characters."""
    text = str(text)
    return text if len(text) <= most else text[:most] + " …"


def with_gradient(data: Any, requires_grad: bool, gradient: Any) -> Any:
    """Make a parameter with its gradient, which torch's own pickles leave out."""
    import torch

    parameter = torch.nn.Parameter(data, requires_grad=requires_grad)
    parameter.grad = gradient
    return parameter
