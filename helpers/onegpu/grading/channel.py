"""Messages between the examiner and a student's process: a length, then the content.

The examiner's messages are pickles. The student's are JSON, which the examiner reads without running anything.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import signal
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

MOST_BYTES = 256 * 2**20


class Closed(Exception):
    """The other side is gone."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back the signals that stop a student's code, so that they can't tear a message apart."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StudentSide:
    """The student's end: sends JSON, receives pickles."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        content = json.dumps(message).encode()
        with undisturbed():
            self._outgoing.write(struct.pack(">Q", len(content)) + content)
            self._outgoing.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for a message.

        Raises
        ------
        Closed
            When the examiner is gone.
        """
        with undisturbed():
            (size,) = struct.unpack(">Q", self._exactly(8))
            content = self._exactly(size)
        return pickle.loads(content)

    def _exactly(self, size: int) -> bytes:
        content = self._incoming.read(size)
        if len(content) < size:
            raise Closed
        return content
