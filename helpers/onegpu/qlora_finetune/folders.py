"""Where a run's files go, so that they outlive the session."""

from __future__ import annotations

from pathlib import Path

DRIVE = Path("/content/drive/MyDrive")
"""Where Colab mounts Google Drive."""


def output_folder(name: str, drive: Path = DRIVE) -> Path:
    """Return the folder of a run: on Google Drive if it is mounted (Colab), else ``runs/`` here.

    A Colab session ends without notice and takes its disk with it. Checkpoints on Drive stay, and
    ``finetune(config, resume=True)`` goes on from them in the next session.

    Parameters
    ----------
    name
        Of the run: one part of a path.
    drive
        Where Drive would be mounted.

    Raises
    ------
    ValueError
        If the name isn't one part of a path.

    Examples
    --------
    >>> output_folder("triage", drive=Path("no/such/folder")).as_posix()
    'runs/triage'
    """
    if not name or Path(name).name != name or name in (".", ".."):
        raise ValueError(f"name is {name!r}, expected one part of a path, such as 'triage'")
    return (drive / "onegpu_runs" if drive.is_dir() else Path("runs")) / name
