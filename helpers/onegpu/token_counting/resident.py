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
from functools import cache
from pathlib import Path

_DONTNEED = 4
WINDOW_BYTES = 6 * 2**20
"""How much each thread may read before pages are given back."""

_WINDOW_READS = 4096
"""Small reads after which pages are given back, too, so that the list of them stays short."""

MARGIN = 2**18
"""How much more is given back on both sides: the kernel maps pages around the one that was touched."""


class _Window(threading.local):
    """What this thread has read since it last gave pages back."""

    def __init__(self):
        self.touched: list[tuple[int, int]] = []
        self.n_bytes = 0


class Pages:
    """Takes note of what was read, and gives it back a window at a time where it lies in a read-only mapping of a file.

    Each thread has a window of its own. The memory that is read must be alive during the call of ``read``.

    Parameters
    ----------
    lasting
        Whether the mappings that are read will all be there until the last ``read``. If not, an address may have come
        to belong to something else, so the mappings are looked up before each giving back (0.5 ms).
    """

    def __init__(self, *, lasting: bool):
        self._lasting = lasting
        self._mappings: list[bytes] | None = None
        self._window = _Window()

    def read(self, low: int, high: int) -> None:
        """Note that there was reading between two addresses; give back what makes a window together."""
        window = self._window
        window.touched.append((low, high))
        window.n_bytes += high - low  # gaps too, since pages around touched ones are mapped
        if window.n_bytes < WINDOW_BYTES and len(window.touched) < _WINDOW_READS:
            return
        touched, window.touched, window.n_bytes = window.touched, [], 0
        mappings = self._mappings
        if mappings is None:
            mappings = _mappings()
            if self._lasting:
                self._mappings = mappings
        here = region = _file_around(mappings, low)
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for start, end in touched:
            if region is None or not region[0] <= start < region[1]:
                region = _file_around(mappings, start)
            if region is not None and (self._lasting or region == here):
                a, b = spans.get(region, (start, end))
                spans[region] = min(a, start), max(b, end)
        for (first, last), (start, end) in spans.items():
            start = max(first, (start - MARGIN) // mmap.PAGESIZE * mmap.PAGESIZE)
            end = min(last, -(-(end + MARGIN) // mmap.PAGESIZE) * mmap.PAGESIZE)
            _madvise(start, end - start, _DONTNEED)


def _mappings() -> list[bytes]:
    """Return a line for each mapping of the process, in order of address; none where the system keeps no such list."""
    try:
        return Path("/proc/self/maps").read_bytes().rstrip(b"\n").split(b"\n")
    except OSError:
        return []


def _file_around(mappings: list[bytes], address: int) -> tuple[int, int] | None:
    """Return (start, end) of the read-only mapping of a file in which an address lies; None if it lies elsewhere."""
    at = bisect.bisect_right(mappings, address, key=lambda line: int(line[: line.index(b"-")], 16)) - 1
    if at < 0:
        return None
    addresses, permissions, _, _, inode, *_ = mappings[at].split(None, 5)
    start, end = (int(part, 16) for part in addresses.split(b"-"))
    is_file = permissions.startswith(b"r--") and inode != b"0"
    return (start, end) if is_file and address < end else None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _madvise(address: int, n_bytes: int, advice: int) -> None:
    _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), advice)
