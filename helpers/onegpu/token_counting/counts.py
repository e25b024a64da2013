"""What a count found: totals, and how many rows there are of each length, which everything else follows from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

PERCENTILES = (5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, repr=False)
class TokenCounts:
    """Tokens of a data set.

    A null row has no length: it counts in ``rows`` and ``null_rows`` and nowhere else. An empty row has length 0.

    Attributes
    ----------
    rows : int
        All rows, null and empty ones too.
    tokens : int
        Sum of the rows' lengths.
    supervised_tokens : int or None
        Labels that count in the loss: neither ``ignore_index`` nor null. None where no labels were counted.
    masked_tokens : int or None
        Labels equal to ``ignore_index`` (in unsigned columns also what it became there: -100 in uint32 is 4294967196).
    lengths : dict of int to int
        Number of rows by length, shortest first.
    null_rows : int
        Rows that are null.
    null_labels : int
        Null values inside the label lists.
    misaligned_rows : int
        Rows whose labels are not as many as their tokens.
    bytes_read : int
        Arrow buffers that were looked at (after decoding, for Parquet).
    splits : dict of str to TokenCounts
        The parts, where the data came in splits; the totals above are over all of them.
    """

    rows: int
    tokens: int
    supervised_tokens: int | None
    masked_tokens: int | None
    lengths: Mapping[int, int]
    null_rows: int = 0
    null_labels: int = 0
    misaligned_rows: int = 0
    bytes_read: int = 0
    splits: Mapping[str, TokenCounts] = field(default_factory=dict)

    @classmethod
    def total(cls, splits: Mapping[str, TokenCounts]) -> TokenCounts:
        """Add up the counts of several splits and keep them as ``splits``."""
        parts = list(splits.values())
        labelled = all(p.supervised_tokens is not None for p in parts)
        lengths: dict[int, int] = {}
        for part in parts:
            for length, rows in part.lengths.items():
                lengths[length] = lengths.get(length, 0) + rows

        def add(name):
            return sum(getattr(p, name) for p in parts)

        return cls(
            rows=add("rows"),
            tokens=add("tokens"),
            supervised_tokens=add("supervised_tokens") if labelled else None,
            masked_tokens=add("masked_tokens") if labelled else None,
            lengths=dict(sorted(lengths.items())),
            null_rows=add("null_rows"),
            null_labels=add("null_labels"),
            misaligned_rows=add("misaligned_rows"),
            bytes_read=add("bytes_read"),
            splits=dict(splits),
        )

    @property
    def empty_rows(self) -> int:
        """Rows of length 0 that are not null."""
        return self.lengths.get(0, 0)

    @property
    def longest(self) -> int:
        """Tokens of the longest row (0 where there is none)."""
        return max(self.lengths, default=0)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest row that is not null (0 where there is none)."""
        return min(self.lengths, default=0)

    @property
    def mean(self) -> float:
        """Tokens of a row that is not null, on average (0.0 where there is none)."""
        return self.tokens / max(1, self.rows - self.null_rows)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct lengths, and how many rows are at most that long; both int64."""
        lengths = np.fromiter(self.lengths.keys(), np.int64, len(self.lengths))
        rows = np.fromiter(self.lengths.values(), np.int64, len(self.lengths))
        return lengths, rows.cumsum()

    def percentile(self, q: float) -> int:
        """Return the smallest length that at least ``q`` percent of the rows don't exceed.

        Examples
        --------
        >>> counts = TokenCounts(4, 16, None, None, {2: 2, 3: 1, 9: 1})
        >>> counts.percentile(50), counts.percentile(75), counts.percentile(100)
        (2, 3, 9)
        """
        if not 0 <= q <= 100:
            raise ValueError(f"percentile {q}: expected a number from 0 to 100")
        lengths, at_most = self._table
        if not lengths.size:
            return 0
        # q * rows / 100 in this order: 0.07 * 100 would be a little more than 7.
        wanted = max(1, math.ceil(q * int(at_most[-1]) / 100))
        return int(lengths[np.searchsorted(at_most, wanted)])

    @property
    def percentiles(self) -> dict[int, int]:
        """Lengths at the 5th, 25th, 50th, 75th, 95th and 99th percentile."""
        return {q: self.percentile(q) for q in PERCENTILES}

    def histogram(self, bins: int = 12) -> list[tuple[int, int, int]]:
        """Group the lengths into at most ``bins`` bins of equal, round width.

        Returns
        -------
        list of (int, int, int)
            First length of the bin, last length, rows.

        Examples
        --------
        >>> TokenCounts(4, 16, None, None, {2: 2, 3: 1, 9: 1}).histogram(bins=2)
        [(0, 4, 3), (5, 9, 1)]
        """
        if bins < 1:
            raise ValueError(f"bins is {bins}, expected at least 1")
        if not self.lengths:
            return []
        width = _round_width(self.shortest, self.longest, bins)
        first = self.shortest // width
        rows = [0] * (self.longest // width - first + 1)
        for length, n in self.lengths.items():
            rows[length // width - first] += n
        return [((first + i) * width, (first + i + 1) * width - 1, n) for i, n in enumerate(rows)]

    def histogram_text(self, bins: int = 12, width: int = 40) -> str:
        """Draw the histogram as text.

        Examples
        --------
        >>> print(TokenCounts(4, 16, None, None, {2: 2, 3: 1, 9: 1}).histogram_text(bins=2, width=6))
        0-4 | ###### 3
        5-9 | ## 1
        """
        found = self.histogram(bins)
        most = max((n for *_, n in found), default=0)
        labels = [f"{low:,}-{high:,}" if high > low else f"{low:,}" for low, high, _ in found]
        wide = max(map(len, labels), default=0)
        bars = ("#" * math.ceil(width * n / most) + f" {n:,}" if n else "0" for *_, n in found)
        return "\n".join(f"{label:>{wide}} | {bar}" for label, bar in zip(labels, bars, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain JSON types."""
        out: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "rows", "tokens", "supervised_tokens", "masked_tokens", "longest", "shortest", "mean",
                "empty_rows", "null_rows", "null_labels", "misaligned_rows", "bytes_read",
            )
        }  # fmt: skip
        out["percentiles"] = {str(q): n for q, n in self.percentiles.items()}
        out["histogram"] = [{"from": low, "to": high, "rows": n} for low, high, n in self.histogram()]
        if self.splits:
            out["splits"] = {name: part.to_json() for name, part in self.splits.items()}
        return out

    def _figures(self) -> list[tuple[str, str]]:
        """Name and text of each figure worth printing."""
        out = [("rows", f"{self.rows:,}"), ("tokens", f"{self.tokens:,}")]
        if self.supervised_tokens is not None:
            share = self.supervised_tokens / max(1, self.tokens)
            out += [
                ("supervised", f"{self.supervised_tokens:,} ({share:.1%})"),
                ("masked", f"{self.masked_tokens:,}"),
            ]
        out.append(
            ("tokens per row", f"{self.shortest:,} to {self.longest:,}, mean {self.mean:,.1f}"),
        )
        out.append(("percentiles", ", ".join(f"{q} %: {n:,}" for q, n in self.percentiles.items())))
        warnings = (
            ("empty rows", self.empty_rows),
            ("null rows", self.null_rows),
            ("null labels", self.null_labels),
            ("misaligned", self.misaligned_rows),
        )
        notes = {"misaligned": " rows have more or fewer labels than tokens"}
        out += [(name, f"{n:,}{notes.get(name, '')}") for name, n in warnings if n]
        out += [
            (f"split {name}", f"{part.rows:,} rows, {part.tokens:,} tokens")
            for name, part in self.splits.items()
        ]
        return out

    def __str__(self) -> str:
        figures = self._figures()
        wide = max(len(name) for name, _ in figures)
        return "\n".join(f"{name:<{wide}}  {text}" for name, text in figures)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self._figures()
        )
        return f"<table>{cells}</table>"


def _round_width(low: int, high: int, bins: int) -> int:
    """Return the smallest width 1, 2 or 5 times a power of ten that covers low to high in that many bins."""
    power = 1
    while True:
        for width in (power, 2 * power, 5 * power):
            if high // width - low // width + 1 <= bins:
                return width
        power *= 10
