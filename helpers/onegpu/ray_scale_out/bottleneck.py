"""Where does a training step's time go: into waiting for rows, or into computing?

The one idea: a loop over a loader has two kinds of moments. Inside ``next(loader)`` the device waits for data; between
two ``next`` it computes. Two clock readings a step tell them apart, in any loop, on any device.

On a GPU kernels run after the call that starts them has returned: give ``synchronize=torch.cuda.synchronize``, or the
computing of one step is counted as the waiting of the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step, by what they were spent on.

    Attributes
    ----------
    waiting, computing : tuple of float
        Seconds, one entry a step.

    Examples
    --------
    >>> times = StepTimes((0.3, 0.3), (0.1, 0.1))
    >>> round(times.share_waiting, 3)
    0.75
    >>> print(times)
    2 steps: 0.30 s waiting for data and 0.10 s computing each; 75% of the time waits, the data is the bottleneck
    """

    waiting: tuple[float, ...]
    computing: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def share_waiting(self) -> float:
        """Share of all the time that was spent waiting for data, 0 to 1."""
        total = sum(self.waiting) + sum(self.computing)
        return sum(self.waiting) / total if total else 0.0

    @property
    def seconds(self) -> float:
        """All steps together."""
        return sum(self.waiting) + sum(self.computing)

    @property
    def typical(self) -> StepTimes:
        """One step, its waiting and its computing the medians of all: a moment in which the machine stalls moves neither.

        >>> StepTimes((0.3, 0.3, 9.0), (0.1, 0.1, 0.1)).typical
        StepTimes(waiting=(0.3,), computing=(0.1,))
        """
        if not len(self):
            return self
        return StepTimes((statistics.median(self.waiting),), (statistics.median(self.computing),))

    @property
    def verdict(self) -> str:
        """What to work on, in words."""
        if self.share_waiting > 0.5:
            return "the data is the bottleneck"
        if self.share_waiting > 0.1:
            return "the data costs time: prepare it ahead"
        return "computing is the bottleneck"

    def without_first(self, steps: int = 1) -> StepTimes:
        """Leave out the first steps, in which a pipeline fills and libraries warm up."""
        return StepTimes(self.waiting[steps:], self.computing[steps:])

    def __str__(self) -> str:
        n = max(1, len(self))
        return (
            f"{len(self)} steps: {sum(self.waiting) / n:.2f} s waiting for data and {sum(self.computing) / n:.2f} s "
            f"computing each; {self.share_waiting:.0%} of the time waits, {self.verdict}"
        )


class BottleneckMeter:
    """Measures waiting and computing of any training loop.

    Parameters
    ----------
    synchronize
        Called before each clock reading; ``torch.cuda.synchronize`` on a GPU.
    clock
        Seconds, monotonic.

    Examples
    --------
    >>> meter = BottleneckMeter()
    >>> for batch in meter.watch([1, 2, 3]):
    ...     pass  # forward, backward, step
    >>> len(meter.times)
    3
    """

    def __init__(
        self, synchronize: Callable[[], None] | None = None, clock: Callable[[], float] = time.perf_counter
    ):
        self._synchronize, self._clock = synchronize, clock
        self._waiting: list[float] = []
        self._computing: list[float] = []

    def _now(self) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return self._clock()

    def watch(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches; time until a batch comes is waiting, until the next is asked for, computing.

        The last computing ends when the loop asks for more, or is left with ``break``.
        """
        started = self._now()
        for batch in loader:
            ready = self._now()
            self._waiting.append(ready - started)
            try:
                yield batch
            finally:
                started = self._now()
                self._computing.append(started - ready)

    @property
    def times(self) -> StepTimes:
        """The complete steps so far."""
        n = min(len(self._waiting), len(self._computing))
        return StepTimes(tuple(self._waiting[:n]), tuple(self._computing[:n]))


def loaders_needed(data_seconds: float, compute_seconds: float) -> int:
    """Return how many CPUs must prepare batches side by side so that computing never waits.

    Parameters
    ----------
    data_seconds
        One CPU's time for one batch.
    compute_seconds
        The training step's time for one batch.

    Examples
    --------
    >>> loaders_needed(0.9, 0.2)
    5
    """
    if data_seconds < 0 or compute_seconds <= 0:
        raise ValueError(
            f"data_seconds is {data_seconds} and compute_seconds {compute_seconds}, expected 0 or more, and above 0"
        )
    import math

    return max(1, math.ceil(data_seconds / compute_seconds - 1e-9))
