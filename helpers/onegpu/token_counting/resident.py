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
import sys
import threading
from pathlib import Path

_DONTNEED = 4
WINDOW_BYTES = 12 * 2**20
"""How much may be read before pages are given back."""


class Pages:
    """Takes note of what was read, and gives it back a window at a time where it lies in a read-only mapping of a file.

    Thread-safe. The memory that is read must be alive during the call of ``read``.

    Parameters
    ----------
    lasting
        Whether the mappings that there are now will all be there until the last ``read``. If not, an address may have
        come to belong to something else, so the mappings are looked up before each giving back (1 ms).
    """

    def __init__(self, *, lasting: bool):
        self._lock = threading.Lock()
        self._regions = _file_mappings() if lasting else None
        self._touched: dict[
            int, tuple[int, int, int]
        ] = {}  # region -> lowest address, highest address, bytes

    def read(self, address: int, n_bytes: int) -> None:
        """Note that these bytes were read; give back what has come together when it is a window or more."""
        if n_bytes == 0:
            return
        region = (0, 0) if self._regions is None else _containing(self._regions, address)
        if region is None:
            return
        with self._lock:
            low, high, total = self._touched.get(region[0], (address, address, 0))
            low, high, total = min(low, address), max(high, address + n_bytes), total + n_bytes
            self._touched[region[0]] = (low, high, total)
            if total < WINDOW_BYTES:
                return
            del self._touched[region[0]]
        if self._regions is None:
            region = _containing(_file_mappings(), address)
        if region is not None:
            # A window more on both sides: the kernel maps pages around the one that was touched.
            low = max(region[0], (low - WINDOW_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE)
            high = min(region[1], -(-(high + WINDOW_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE)
            _madvise(low, high - low, _DONTNEED)


def _containing(regions: list[tuple[int, int]], address: int) -> tuple[int, int] | None:
    at = bisect.bisect_right(regions, (address, sys.maxsize)) - 1
    return regions[at] if at >= 0 and address < regions[at][1] else None


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
