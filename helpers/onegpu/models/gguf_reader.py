"""gguf's reader, three times as quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def read_gguf(file: str | Path) -> Any:
    """Return a ``gguf.GGUFReader`` of a file.

    It cuts two arrays out of the mapped file for each token of a vocabulary. Slices of a ``numpy.memmap`` cost several
    times those of a plain array over the same memory: 2.1 s and 0.7 s for 49,152 tokens.

    Raises
    ------
    OSError, ValueError
        As from ``gguf.GGUFReader``.
    """
    import gguf
    import numpy as np

    class PlainReader(gguf.GGUFReader):
        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.memmap) -> None:
            self._data = np.asarray(mapped)

    return PlainReader(file)
