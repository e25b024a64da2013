"""Exact and near duplicates within a data set, and between training and evaluation rows (leakage).

The algorithm. Text is normalised (Unicode NFKC, case folded, every run of white space one space, ends
stripped). Rows whose normalised text is equal are *exact* duplicates. For *near* duplicates a text is the
set of its character 5-grams (the text itself if it is shorter), and two rows are near when the Jaccard
similarity |A and B| / |A or B| of their sets reaches the threshold. No sampling: the pairs are found
exactly, with the prefix filter of set-similarity joins (Bayardo, Ma and Srikant, WWW 2007). If the grams of
every set are sorted by rarity, two sets of similarity t or more share a gram among the first
|A| - ceil(t |A|) + 1 of each, so only rows that share a rare gram are compared. Good for some ten thousand
rows; for millions take MinHash.

Characters rather than words, because Korean words carry their particles and short instructions have few
words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onegpu.sft_datasets.formats import Example, to_example

FIELDS = ("prompt", "answer", "all")
NGRAM = 5


@dataclass(frozen=True)
class Pair:
    """Two rows that are the same or nearly so: ``first`` < ``second``, or training and evaluation row."""

    first: int
    second: int
    similarity: float
    kind: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second}: {self.kind}, similarity {self.similarity:.2f}"


@dataclass(frozen=True)
class Duplicates:
    """What ``find_duplicates``, ``deduplicate`` or ``find_leakage`` found.

    Attributes
    ----------
    rows
        Rows compared; for leakage, the evaluation rows.
    pairs
        Sorted by their second row. Its ``kind`` is "exact", "near", or, for rows with the same question
        and unlike answers, "conflict".
    """

    rows: int
    pairs: tuple[Pair, ...]

    @property
    def affected(self) -> tuple[int, ...]:
        """The rows to drop when the first of each pair stays; for leakage, the leaked evaluation rows."""
        return tuple(sorted({pair.second for pair in self.pairs}))

    @property
    def share(self) -> float:
        """Affected rows as a share of all."""
        return len(self.affected) / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        kinds = Counter(pair.kind for pair in self.pairs)
        detail = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "none"
        return f"{len(self.affected):,} of {self.rows:,} rows ({self.share:.1%}); pairs: {detail}"


def normalise_text(text: str) -> str:
    """The text as duplicates are compared.

    Examples
    --------
    >>> normalise_text("  Name a\\tFRUIT. ")
    'name a fruit.'
    """
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text).casefold()).strip()


def similarity(a: str, b: str) -> float:
    """Jaccard similarity of the character 5-grams of two texts, 0 to 1.

    Examples
    --------
    >>> similarity("Name a fruit.", "Name a  Fruit."), round(similarity("Name a fruit.", "Name a fruit!"), 2)
    (1.0, 0.8)
    """
    x, y = _grams(normalise_text(a)), _grams(normalise_text(b))
    return len(x & y) / len(x | y)


def find_duplicates(
    rows: Iterable[Mapping[str, Any] | Example], *, fields: str = "prompt", threshold: float | None = 0.8
) -> Duplicates:
    """Find pairs of rows that say the same.

    Parameters
    ----------
    rows
        Rows of any format, or ``Example`` values.
    fields
        What to compare: "prompt" (all turns but the last answer), "answer" (the last answer), "all".
    threshold
        The least similarity of a near duplicate, over 0 and at most 1; None for exact ones only.

    Returns
    -------
    Duplicates
        Each exact copy is paired with the first of its kind only. With fields="prompt", a pair whose
        answers aren't equal is a "conflict" if the prompts are.

    Examples
    --------
    >>> rows = [{"prompt": "Name a fruit.", "completion": "Apple"}, {"prompt": "name a fruit. ", "completion": "Fig"},
    ...         {"prompt": "Name one fruit.", "completion": "Kiwi"}, {"prompt": "Name a town.", "completion": "Ulm"}]
    >>> for pair in find_duplicates(rows, threshold=0.25).pairs: print(pair)
    0 and 1: conflict, similarity 1.00
    0 and 2: near, similarity 0.25
    """
    examples = [to_example(row, i) for i, row in enumerate(rows)]
    texts = [_text(example, fields) for example in examples]
    first: dict[str, int] = {}
    pairs: list[Pair] = []
    for i, text in enumerate(texts):
        j = first.setdefault(text, i)
        if j != i:
            conflict = fields == "prompt" and _text(examples[i], "answer") != _text(examples[j], "answer")
            pairs.append(Pair(j, i, 1.0, "conflict" if conflict else "exact"))
    if _checked(threshold) is not None:
        distinct = {i: text for text, i in first.items()}
        pairs += [
            Pair(min(i, j), max(i, j), s, "near")
            for i, j, s in _similar(distinct, distinct, threshold, own=True)
        ]
    return Duplicates(len(examples), tuple(sorted(pairs, key=lambda p: (p.second, p.first))))


def deduplicate(
    rows: Iterable[Mapping[str, Any] | Example], *, fields: str = "prompt", threshold: float | None = 0.8
) -> tuple[list, Duplicates]:
    """Keep the first of each set of duplicates; do it before you split the data.

    A row is dropped if an earlier row *that is kept* is its duplicate, so a chain of rows each a little
    unlike the last doesn't shrink to its first.

    Returns
    -------
    (list, Duplicates)
        The kept rows, as they were given, and the pairs that dropped the others.

    Examples
    --------
    >>> rows = [{"prompt": "Name a fruit.", "completion": a} for a in ("Apple", "Fig")]
    >>> kept, report = deduplicate(rows)
    >>> len(kept), report.affected
    (1, (1,))
    """
    rows = list(rows)
    found = find_duplicates(rows, fields=fields, threshold=threshold)
    dropped: set[int] = set()
    reasons = []
    for pair in found.pairs:  # sorted by second, so `first` is already decided
        # An exact copy is paired with the first of its kind only; that one may itself be a dropped row.
        if pair.second not in dropped and (pair.first not in dropped or pair.kind != "near"):
            dropped.add(pair.second)
            reasons.append(pair)
    kept = [row for i, row in enumerate(rows) if i not in dropped]
    return kept, Duplicates(len(rows), tuple(reasons))


def find_leakage(
    train: Iterable[Mapping[str, Any] | Example],
    evaluation: Iterable[Mapping[str, Any] | Example],
    *,
    fields: str = "prompt",
    threshold: float | None = 0.8,
) -> Duplicates:
    """Find evaluation rows that the training rows give away.

    Returns
    -------
    Duplicates
        In its pairs ``first`` is the training row's number and ``second`` the evaluation row's; ``share`` is
        the share of evaluation rows that leaked.

    Examples
    --------
    >>> train = [{"prompt": "Name a fruit.", "completion": "Apple"}]
    >>> test = [{"prompt": "Name a tool.", "completion": "Saw"}, {"prompt": "NAME A FRUIT.", "completion": "Fig"}]
    >>> print(find_leakage(train, test))
    1 of 2 rows (50.0%); pairs: 1 exact
    """
    ours = [_text(to_example(row, i), fields) for i, row in enumerate(train)]
    theirs = [_text(to_example(row, i), fields) for i, row in enumerate(evaluation)]
    first: dict[str, int] = {}
    for i, text in enumerate(ours):
        first.setdefault(text, i)
    pairs = [Pair(first[text], i, 1.0, "exact") for i, text in enumerate(theirs) if text in first]
    if _checked(threshold) is not None:
        index = {i: text for text, i in first.items()}
        queries = {i: text for i, text in enumerate(theirs) if text not in first}
        pairs += [Pair(j, i, s, "near") for i, j, s in _similar(queries, index, threshold)]
    return Duplicates(len(theirs), tuple(sorted(pairs, key=lambda p: (p.second, p.first))))


def _checked(threshold: float | None) -> float | None:
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold}: expected a number over 0 and at most 1, or None.")
    return threshold


def _text(example: Example, fields: str) -> str:
    if fields not in FIELDS:
        raise ValueError(f"fields={fields!r}: expected one of {', '.join(FIELDS)}.")
    turns: Sequence = example.messages
    turns = {"prompt": turns[:-1], "answer": turns[-1:], "all": turns}[fields]
    return normalise_text("\n".join(turn["content"] for turn in turns))


def _grams(text: str) -> set[str]:
    return {text[i : i + NGRAM] for i in range(len(text) - NGRAM + 1)} or {text}


def _similar(
    queries: Mapping[int, str], index: Mapping[int, str], threshold: float, own: bool = False
) -> list[tuple[int, int, float]]:
    """(query, indexed, similarity) of all pairs at or over the threshold; with ``own``, each pair once."""
    sets = {("i", i): _grams(text) for i, text in index.items()}
    if not own:
        sets |= {("q", i): _grams(text) for i, text in queries.items()}
    frequency = Counter(gram for grams in sets.values() for gram in grams)

    def prefix(grams: set[str]) -> list[str]:
        rarest_first = sorted(grams, key=lambda gram: (frequency[gram], gram))
        # The small number guards against ceil(0.7 * 10) being 8 for the float 7.000000000000001.
        return rarest_first[: len(grams) - math.ceil(threshold * len(grams) - 1e-9) + 1]

    having: defaultdict[str, list[int]] = defaultdict(list)
    for i in index:
        for gram in prefix(sets["i", i]):
            having[gram].append(i)
    found = []
    for i in queries:
        grams = sets["i" if own else "q", i]
        for j in {j for gram in prefix(grams) for j in having.get(gram, ())}:
            if own and j >= i:
                continue
            other = sets["i", j]
            if min(len(grams), len(other)) < threshold * max(len(grams), len(other)) - 1e-9:
                continue
            shared = len(grams & other)
            value = shared / (len(grams) + len(other) - shared)
            if value >= threshold:
                found.append((i, j, value))
    return found
