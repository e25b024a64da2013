"""Give memory-mapped pages back as they have been read, so that reading a file doesn't fill memory with it.

A page of a memory-mapped file counts as resident memory (RSS) from its first reading until it is given back, which
the kernel does only under pressure. So a count over 500 GB looks like 500 GB, and a container with a memory limit may
see it that way too. ``madvise(MADV_DONTNEED)`` gives pages back at once; the file's content stays in the page cache
and is read again on the next touch.

On memory that is not backed by a file the same call would *erase* the content. Therefore only addresses that
``/proc/self/maps`` shows as read-only mappings of a file are given back. Where there is no such file (macOS, Windows)
nothing is.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading
from pathlib import Path

_DONTNEED = 4
WINDOW_BYTES = 12 * 2**20
"""How much may be read before pages are given back."""


class Pages:
    """Counts what was read from read-only file mappings and gives it back a window at a time. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._regions = _file_mappings()
        self._starts = [start for start, _ in self._regions]
        self._touched: dict[int, list[int]] = {}  # region -> [lowest address, highest address, bytes]

    def read(self, address: int, n_bytes: int) -> None:
        """Note that these bytes were read; give back what has come together when it is a window or more."""
        region = bisect.bisect_right(self._starts, address) - 1
        if region < 0 or address >= self._regions[region][1] or n_bytes == 0:
            return
        with self._lock:
            low, high, total = self._touched.get(region, (address, address, 0))
            low, high, total = min(low, address), max(high, address + n_bytes), total + n_bytes
            if total < WINDOW_BYTES:
                self._touched[region] = [low, high, total]
                return
            self._touched.pop(region, None)
        self._give_back(region, low, high)

    def close(self) -> None:
        """Give back the rest."""
        for region, (low, high, _) in self._touched.items():
            self._give_back(region, low, high)
        self._touched.clear()

    def _give_back(self, region: int, low: int, high: int) -> None:
        # A window more on both sides: the kernel maps pages around the one that was touched.
        start, end = self._regions[region]
        low = max(start, (low - WINDOW_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE)
        high = min(end, -(-(high + WINDOW_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE)
        _madvise(low, high - low, _DONTNEED)


def _file_mappings() -> list[tuple[int, int]]:
    """Return (start, end) of the process's read-only mappings of files, in order of address."""
    regions = []
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        span, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        if permissions.startswith("r--") and inode != "0":
            start, end = (int(x, 16) for x in span.split("-"))
            regions.append((start, end))
    return sorted(regions)


def _madvise(address: int, n_bytes: int, advice: int) -> None:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function(address, n_bytes, advice)
