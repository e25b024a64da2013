"""What the driver and its workers agree on. Imports nothing: Ray's controller reads it too."""

from __future__ import annotations

from dataclasses import dataclass

RESULT = "result.json"
"""In a run's last checkpoint."""


@dataclass(frozen=True)
class KillWorker:
    """A fault to inject: a worker ends itself with SIGKILL after a step, once.

    Attributes
    ----------
    rank, step : int
        Which worker, after which step.
    marker : str
        A file that says it has happened; on a shared disk.
    after_seconds : float
        How long it waits before. Ray looks for new checkpoints every two seconds (every half second where
        ``local_ray`` started it); one that it has not seen when a worker dies is lost.
    """

    rank: int
    step: int
    marker: str
    after_seconds: float = 3.0
