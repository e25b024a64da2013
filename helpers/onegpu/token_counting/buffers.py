"""A look into a table's memory: which buffers it has, where they lie, and which part of them its rows use.

To see with one's own eyes what copies and what doesn't: two tables share a buffer when the addresses are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from onegpu.token_counting.columns import list_rows


@dataclass(frozen=True)
class Buffer:
    """One stretch of memory behind a column.

    Attributes
    ----------
    column : str
        Name; "(indices)" for the indices mapping of a ``datasets.Dataset``.
    chunk : int
        Number of the chunk.
    role : str
        "validity" (one bit a row: is it there), "offsets", "sizes" or "values".
    address : int
        Where it begins.
    n_bytes : int
        How long it is.
    used_bytes : int
        How much of it belongs to the table's rows; less than ``n_bytes`` after a slice.
    file : str or None
        Name of the file that is mapped there; None for ordinary memory, and where the system doesn't say (not Linux).
    """

    column: str
    chunk: int
    role: str
    address: int
    n_bytes: int
    used_bytes: int
    file: str | None

    def __str__(self) -> str:
        where = f"in {self.file}" if self.file else "in memory"
        name = f"{self.column}[{self.chunk}] {self.role}"
        return (
            f"{name:<24} {self.used_bytes:>12,} of {self.n_bytes:>12,} bytes at 0x{self.address:012x} {where}"
        )


def describe_buffers(data: Any) -> tuple[Buffer, ...]:
    """List the buffers of a pyarrow Table or a ``datasets.Dataset``, column by column, chunk by chunk.

    For a Dataset these are the buffers of the table below it and, if it has one, of its indices mapping.

    Examples
    --------
    >>> table = pa.table({"input_ids": pa.array([[1], [2, 3], [4, 5, 6]], pa.list_(pa.int32()))})
    >>> [(b.role, b.used_bytes) for b in describe_buffers(table)]
    [('offsets', 16), ('values', 24)]
    >>> [(b.role, b.used_bytes) for b in describe_buffers(table[1:])]
    [('offsets', 12), ('values', 20)]
    >>> shared_bytes(describe_buffers(table), describe_buffers(table[1:]))
    32
    """
    table = data if isinstance(data, pa.Table) else data.data.table
    files = _mapped_files()
    found = [
        buffer
        for name, column in zip(table.column_names, table.columns, strict=True)
        for i, chunk in enumerate(column.chunks)
        for buffer in _buffers(name, i, chunk, files)
    ]
    if getattr(data, "_indices", None) is not None:
        for i, chunk in enumerate(data._indices.table.column(0).chunks):
            found += _buffers("(indices)", i, chunk, files)
    return tuple(found)


def shared_bytes(before: Iterable[Buffer], after: Iterable[Buffer]) -> int:
    """Count the used bytes of the buffers ``after`` that lie in buffers of ``before``: what wasn't copied."""
    spans = [(b.address, b.address + b.n_bytes) for b in before]
    return sum(b.used_bytes for b in after if any(low <= b.address < high for low, high in spans))


def _buffers(name: str, chunk: int, array: pa.Array, files: list[tuple[int, int, str]]) -> list[Buffer]:
    roles: list[tuple[str, pa.Buffer | None, int]]
    kind, n = array.type, len(array)
    validity = ("validity", array.buffers()[0], -(-n // 8))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        rows = list_rows(array)
        width = 8 if pa.types.is_large_list(kind) else 4
        roles = [validity, ("offsets", array.buffers()[1], (n + 1) * width)]
        if not pa.types.is_null(kind.value_type):
            used = int(rows.lengths.sum()) * kind.value_type.bit_width // 8
            roles.append(("values", array.values.buffers()[1], used))
    elif pa.types.is_primitive(kind):
        roles = [validity, ("values", array.buffers()[1], -(-n * kind.bit_width // 8))]
    else:  # text and others: only what all have
        roles = [
            validity,
            *(("values", buffer, buffer.size) for buffer in array.buffers()[1:] if buffer is not None),
        ]
    return [
        Buffer(
            name,
            chunk,
            role,
            buffer.address,
            buffer.size,
            min(used, buffer.size),
            _file_at(files, buffer.address),
        )
        for role, buffer, used in roles
        if buffer is not None and (role != "validity" or array.null_count)
    ]


def _mapped_files() -> list[tuple[int, int, str]]:
    """Return (start, end, file name) of the process's file mappings; nothing where the system doesn't say."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[4] != "0" and parts[5].startswith("/"):
            start, end = (int(x, 16) for x in parts[0].split("-"))
            found.append((start, end, Path(parts[5]).name))
    return found


def _file_at(files: list[tuple[int, int, str]], address: int) -> str | None:
    return next((name for start, end, name in files if start <= address < end), None)


def resident_bytes() -> dict[str, int]:
    """Say how much memory this process holds now: "file" (pages of mapped files) and "own" (everything else).

    Pages of a mapped file can be given back by the kernel at any time, since they can be read again; the rest can't.
    Only Linux tells them apart; elsewhere all of it is "own".
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        import psutil

        return {"own": psutil.Process().memory_info().rss, "file": 0}
    kib = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Rss")}
    return {"own": (kib["RssAnon"] + kib["RssShmem"]) * 1024, "file": kib["RssFile"] * 1024}
