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
import re
import sys
import threading
from functools import cache
from pathlib import Path

_DONTNEED = 4
_READ_ONLY_FILE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) r--. [0-9a-f]+ \S+ [1-9]\d* ", re.MULTILINE)
"""A line of /proc/self/maps: addresses, permissions, offset, device and inode (0 where there is no file)."""

WINDOW_BYTES = 12 * 2**20
"""How much may be read before pages are given back."""

MARGIN = 2 * 2**20
"""How much more is given back on both sides: the kernel maps pages around the one that was touched."""


class Pages:
    """Takes note of what was read, and gives it back a window at a time where it lies in a read-only mapping of a file.

    Thread-safe. The memory that is read must be alive during the call of ``read``.

    Parameters
    ----------
    lasting
        Whether the mappings that are read will all be there until the last ``read``. If not, an address may have come
        to belong to something else, so the mappings are looked up before each giving back (2 ms).
    """

    def __init__(self, *, lasting: bool):
        self._lasting = lasting
        self._regions: list[tuple[int, int]] | None = None
        self._lock = threading.Lock()
        self._touched: list[tuple[int, int]] = []
        self._n_bytes = 0

    def read(self, low: int, high: int) -> None:
        """Note that there was reading between two addresses; give back what makes a window together."""
        with self._lock:
            self._touched.append((low, high))
            self._n_bytes += high - low  # gaps too: the kernel maps pages around the touched ones
            if self._n_bytes < WINDOW_BYTES:
                return
            touched, self._touched, self._n_bytes = self._touched, [], 0
        regions = self._regions
        if regions is None:
            regions = _file_mappings()
            if self._lasting:
                self._regions = regions
        here = _containing(regions, low)
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for start, end in touched:
            region = _containing(regions, start)
            if region is not None and (self._lasting or region == here):
                a, b = spans.get(region, (start, end))
                spans[region] = min(a, start), max(b, end)
        for (first, last), (start, end) in spans.items():
            start = max(first, (start - MARGIN) // mmap.PAGESIZE * mmap.PAGESIZE)
            end = min(last, -(-(end + MARGIN) // mmap.PAGESIZE) * mmap.PAGESIZE)
            _madvise(start, end - start, _DONTNEED)


def _containing(regions: list[tuple[int, int]], address: int) -> tuple[int, int] | None:
    at = bisect.bisect_right(regions, (address, sys.maxsize)) - 1
    return regions[at] if at >= 0 and address < regions[at][1] else None


def _file_mappings() -> list[tuple[int, int]]:
    """Return (start, end) of the process's read-only mappings of files, in order of address."""
    try:
        text = Path("/proc/self/maps").read_bytes()
    except OSError:
        return []
    return sorted((int(start, 16), int(end, 16)) for start, end in _READ_ONLY_FILE.findall(text))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _madvise(address: int, n_bytes: int, advice: int) -> None:
    _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), advice)
