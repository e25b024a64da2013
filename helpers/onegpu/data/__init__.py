"""The rows shipped with the course: JSON Lines files that a person can read, described in the README beside them.

A data set is a file ``NAME.jsonl``. Its held-out rows are either in the same file or in ``NAME_heldout.jsonl``; in both
cases each row says in its field ``split`` where it belongs. ``reading`` reads rows from files of any kind.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from onegpu.data.reading import (
    COMPRESSIONS,
    SUFFIXES,
    find_files,
    is_lines,
    numbered_lines,
    parse_line,
    read_files,
)

__all__ = [
    "COMPRESSIONS",
    "INTENTS",
    "SUFFIXES",
    "URGENCIES",
    "find_files",
    "is_lines",
    "names",
    "numbered_lines",
    "parse_line",
    "path",
    "read_files",
    "rows",
    "splits",
]

INTENTS = (
    "track_order",
    "change_order",
    "cancel_order",
    "return_item",
    "refund_status",
    "damaged_item",
    "wrong_item",
    "payment_problem",
    "account_access",
    "product_question",
    "subscription",
    "feedback",
)
"""What a customer wants: the intent labels of the support triage task."""

URGENCIES = ("low", "normal", "high")
"""How soon somebody must act: the urgency labels of the support triage task."""

_SUFFIX = ".jsonl"
_HELD_OUT = "_heldout"


def names() -> list[str]:
    """Names of the shipped data sets, sorted.

    A file of held-out rows belongs to its set and has no name of its own here; ``path`` knows it all the same.

    Examples
    --------
    >>> {"support_triage", "support_triage_ko"} <= set(names())
    True
    >>> "support_triage_heldout" in names()
    False
    """
    files_here = _stems()
    return [
        name
        for name in files_here
        if not (name.endswith(_HELD_OUT) and name.removesuffix(_HELD_OUT) in files_here)
    ]


def path(name: str) -> Path:
    """Path of a shipped file, by its name without ``.jsonl``.

    Raises
    ------
    ValueError
        If there is no such file; the message names those that there are.

    Examples
    --------
    >>> path("support_triage_heldout").name
    'support_triage_heldout.jsonl'
    >>> path("support_tirage")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: no shipped data file 'support_tirage': there are ...
    """
    if name not in _stems():
        raise ValueError(f"no shipped data file {name!r}: there are {', '.join(_stems())}")
    return Path(str(files(__name__).joinpath(name + _SUFFIX)))


def rows(name: str, split: str | None = None) -> list[dict[str, Any]]:
    """Rows of a shipped data set in the order of its files, the held-out file last.

    Parameters
    ----------
    name
        One of ``names()``, or the name of a single file.
    split
        Only the rows whose field ``split`` is this, for instance ``"train"`` or ``"heldout"``. None: all rows.

    Raises
    ------
    ValueError
        If there is no such set, a line is not a JSON object, or no row has this split.

    Examples
    --------
    >>> row = rows("support_triage", "heldout")[0]
    >>> list(row)
    ['id', 'split', 'message', 'intent', 'urgency', 'reply']
    >>> row["intent"] in INTENTS and row["urgency"] in URGENCIES
    True
    >>> len(rows("support_triage_ko"))
    96
    >>> rows("support_triage_ko", "test")
    Traceback (most recent call last):
    ...
    ValueError: 'support_triage_ko' has no rows of split 'test': its splits are heldout, train
    """
    found = list(read_files(path(name)))
    if name + _HELD_OUT in _stems():
        found += read_files(path(name + _HELD_OUT))
    if split is None:
        return found
    chosen = [row for row in found if row.get("split") == split]
    if not chosen:
        there_are = ", ".join(splits(name)) or "none (no field 'split')"
        raise ValueError(f"{name!r} has no rows of split {split!r}: its splits are {there_are}")
    return chosen


def splits(name: str) -> tuple[str, ...]:
    """Splits of a shipped data set, sorted; () where its rows have no field ``split``.

    Examples
    --------
    >>> splits("support_triage"), splits("alpaca_sample")
    (('heldout', 'train'), ())
    """
    return tuple(sorted({row["split"] for row in rows(name) if "split" in row}))


def _stems() -> list[str]:
    return sorted(
        entry.name.removesuffix(_SUFFIX)
        for entry in files(__name__).iterdir()
        if entry.name.endswith(_SUFFIX)
    )
