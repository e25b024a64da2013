"""One process at a time in a run's folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, so that no second process trains into it.

    The lock is the operating system's, on ``.lock``: it ends with the process, however that ends. Where the file system
    knows no locks (some network drives), there is none.

    Raises
    ------
    ValueError
        If another process holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    held = True
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process is training into {folder}: wait for it or stop it, or choose another output_dir"
        ) from None
    except (NotImplementedError, OSError):
        held = False
    try:
        yield
    finally:
        if held:
            lock.release()
