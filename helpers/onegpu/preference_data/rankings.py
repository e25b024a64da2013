"""Rankings of answers to one prompt, and the pairs that follow from them.

A ranking of K answers without ties holds K(K-1)/2 comparisons; a tie holds none. Pairs remember their
prompt's number, so that all pairs of a prompt can stay in one batch element, as InstructGPT does
(arXiv 2203.02155): spread over batches, each answer would be trained on K-1 times.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onegpu.sft_datasets import read_rows


@dataclass(frozen=True)
class Ranking:
    """Answers to one prompt, in the order in which they were shown, with their ranks.

    Attributes
    ----------
    prompt
        The question.
    answers
        In the order shown to the person who ranked them.
    ranks
        1 is best; answers that tie have the same rank.
    reason
        Why the person ranked them so.
    topic
        What the prompt is about; for splitting and for reading figures by topic.
    """

    prompt: str
    answers: tuple[str, ...]
    ranks: tuple[int, ...]
    reason: str = ""
    topic: str = ""

    def __post_init__(self):
        if len(self.answers) != len(self.ranks):
            raise ValueError(
                f"ranking of {self.prompt[:40]!r}: found {len(self.answers)} answers and {len(self.ranks)} "
                "ranks, expected as many ranks as answers. Add what is missing."
            )

    @property
    def best_first(self) -> tuple[tuple[int, str], ...]:
        """(rank, answer), the best first."""
        return tuple(sorted(zip(self.ranks, self.answers, strict=True), key=lambda pair: pair[0]))

    def __str__(self) -> str:
        lines = [f"prompt: {self.prompt}"] + [f"{rank}. {answer}" for rank, answer in self.best_first]
        return "\n".join(lines + ([f"because: {self.reason}"] if self.reason else []))


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt, of which one was preferred; ``group`` is the prompt's number."""

    prompt: str
    chosen: str
    rejected: str
    group: int = 0


def parse_order(order: str) -> dict[str, int]:
    """Read an order such as "A > B = C" as ranks.

    Raises
    ------
    ValueError
        A name that stands twice, or a part without a name.

    Examples
    --------
    >>> parse_order("B > A = C > D")
    {'B': 1, 'A': 2, 'C': 2, 'D': 4}
    """
    ranks: dict[str, int] = {}
    for tied in order.split(">"):
        rank = len(ranks) + 1
        for part in tied.split("="):
            name = part.strip()
            if not name or name in ranks:
                found = f"{name!r} twice" if name else "nothing between two signs"
                raise ValueError(
                    f"order {order!r}: found {found}, expected each name once, as in 'A > B = C'."
                )
            ranks[name] = rank
    return ranks


def pairs_of(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """All (better, worse) positions; a tie is never a pair.

    Parameters
    ----------
    ranks
        1 is best, equal ranks tie.

    Examples
    --------
    >>> pairs_of([1, 2, 3]), pairs_of([1, 2, 2]), pairs_of([1, 1, 1])
    ([(0, 1), (0, 2), (1, 2)], [(0, 1), (0, 2)], [])
    """
    order = sorted(range(len(ranks)), key=lambda i: ranks[i])
    return [(i, j) for at, i in enumerate(order) for j in order[at + 1 :] if ranks[i] < ranks[j]]


def to_pairs(rankings: Iterable[Ranking]) -> list[PreferencePair]:
    """Turn rankings into pairs, ranking after ranking.

    Examples
    --------
    >>> pairs = to_pairs([Ranking("2+2?", ("5", "4", "four"), (3, 1, 1))])
    >>> [(pair.chosen, pair.rejected, pair.group) for pair in pairs]
    [('4', '5', 0), ('four', '5', 0)]
    """
    return [
        PreferencePair(ranking.prompt, ranking.answers[i], ranking.answers[j], group)
        for group, ranking in enumerate(rankings)
        for i, j in pairs_of(ranking.ranks)
    ]


def to_ranking(row: Mapping[str, Any], row_index: int | None = None) -> Ranking:
    """Read one row: prompt, answers, and ranks (numbers, 1 is best) or an order such as "B>A=C".

    With an order, the answers are A, B, C, ... as they stand in the row.

    Raises
    ------
    ValueError
        Naming row, field, what was found and what was expected.

    Examples
    --------
    >>> to_ranking({"prompt": "2+2?", "answers": ["5", "4", "four"], "order": "B=C>A"}).ranks
    (3, 1, 1)
    """
    where = "ranking" if row_index is None else f"row {row_index}"

    def fail(field: str, found: str, expected: str, fix: str):
        raise ValueError(f"{where}, field {field!r}: found {found}, expected {expected}. {fix}")

    prompt, answers = row.get("prompt"), row.get("answers")
    if not isinstance(prompt, str) or not prompt.strip():
        fail("prompt", repr(prompt), "text", "Write the prompt or leave the row out.")
    if not isinstance(answers, Sequence) or isinstance(answers, str) or len(answers) < 2:
        fail("answers", repr(answers)[:60], "a list of two answers or more", "Leave the row out.")
    for i, answer in enumerate(answers):
        if not isinstance(answer, str) or not answer.strip():
            fail(f"answers[{i}]", repr(answer), "text", "Write the answer or remove it with its rank.")
    if row.get("order") is not None:
        named = parse_order(row["order"])
        names = [chr(ord("A") + i) for i in range(len(answers))]
        if set(named) != set(names):
            fail("order", repr(row["order"]), f"each of {', '.join(names)} once", "Name every answer.")
        ranks = [named[name] for name in names]
    else:
        ranks = row.get("ranks")
        if not isinstance(ranks, Sequence) or len(ranks) != len(answers):
            fail("ranks", repr(ranks), f"{len(answers)} numbers, one for each answer", "Rank every answer.")
        if not all(isinstance(rank, int) and rank >= 1 for rank in ranks):
            fail("ranks", repr(ranks), "whole numbers from 1 (best)", "Correct the ranks.")
    return Ranking(prompt, tuple(answers), tuple(ranks), row.get("reason") or "", row.get("topic") or "")


def load_rankings(path: str | Path | None = None) -> list[Ranking]:
    """Read rankings from any file that ``sft_datasets.read_rows`` reads; without a path, those shipped with this course.

    Raises
    ------
    ValueError
        A row that isn't a ranking, with its number; what isn't rows, with file and line.

    Examples
    --------
    >>> rankings = load_rankings()
    >>> len(rankings) >= 120, min(len(ranking.answers) for ranking in rankings)
    (True, 3)
    """
    return [to_ranking(row, i) for i, row in enumerate(read_rows("rankings" if path is None else path))]


def split_rankings(rankings: Iterable[Ranking], every: int = 4) -> tuple[list[Ranking], list[Ranking]]:
    """Hold out every fourth ranking of each topic, whole prompts with all their pairs.

    Splitting pairs instead would put two pairs of one prompt on both sides.

    Examples
    --------
    >>> train, held_out = split_rankings([Ranking(str(i), ("a", "b"), (1, 2)) for i in range(8)])
    >>> [ranking.prompt for ranking in held_out]
    ['3', '7']
    """
    train, held_out = [], []
    seen: Counter[str] = Counter()
    for ranking in rankings:
        seen[ranking.topic] += 1
        (held_out if seen[ranking.topic] % every == 0 else train).append(ranking)
    return train, held_out


@dataclass(frozen=True)
class VoteProblems:
    """What ``check_votes`` found in votes on the answers to one prompt.

    Attributes
    ----------
    repeated
        Pairs voted on more than once in the same direction, with the number of votes.
    contradictions
        Pairs voted on in both directions, with the votes for each: (a, b, votes for a, votes for b).
    cycles
        Sets of answers of which each was preferred, over some others, to every other: no ranking can
        hold them all. Contradicting pairs are cycles of two and listed above only.
    """

    repeated: tuple[tuple[str, str, int], ...]
    contradictions: tuple[tuple[str, str, int, int], ...]
    cycles: tuple[tuple[str, ...], ...]

    @property
    def ok(self) -> bool:
        """True when a ranking agrees with every vote."""
        return not self.contradictions and not self.cycles

    def __str__(self) -> str:
        lines = [f"{a} > {b} was voted {n} times" for a, b, n in self.repeated]
        lines += [f"{a} > {b}: {n} for, {m} against" for a, b, n, m in self.contradictions]
        lines += [f"{' > '.join(cycle)} > {cycle[0]} goes round in a circle" for cycle in self.cycles]
        return "\n".join(lines) or "no contradiction"


def check_votes(votes: Iterable[tuple[str, str]]) -> VoteProblems:
    """Find repeated, contradicting and cyclic votes.

    Parameters
    ----------
    votes
        (winner, loser), each a name of an answer to the same prompt.

    Raises
    ------
    ValueError
        A vote of an answer against itself.

    Examples
    --------
    >>> print(check_votes([("A", "B"), ("B", "C"), ("C", "A"), ("D", "A"), ("A", "D")]))
    A > D: 1 for, 1 against
    A > B > C > A goes round in a circle
    """
    counts = Counter(votes)
    for winner, loser in counts:
        if winner == loser:
            raise ValueError(f"vote {winner!r} over itself: expected two different answers. Remove the vote.")
    repeated = tuple((a, b, n) for (a, b), n in sorted(counts.items()) if n > 1)
    both = tuple(
        (a, b, n, counts[b, a]) for (a, b), n in sorted(counts.items()) if a < b and (b, a) in counts
    )
    # Without the contradicting pairs, so that a cycle is named only if it goes through three or more.
    beats = defaultdict(set)
    for a, b in counts:
        if (b, a) not in counts:
            beats[a].add(b)
    return VoteProblems(repeated, both, tuple(_cycles(beats)))


def _cycles(beats: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """One shortest cycle through each knot of answers that beat each other in a circle."""
    found, seen = [], set()
    for start in sorted(beats):
        if start in seen:
            continue
        paths, frontier = {start: (start,)}, [start]
        cycle = None
        while frontier and cycle is None:
            here = frontier.pop(0)
            for there in sorted(beats.get(here, ())):
                if there == start:
                    cycle = paths[here]
                    break
                if there not in paths:
                    paths[there] = (*paths[here], there)
                    frontier.append(there)
        if cycle:
            found.append(cycle)
            seen.update(cycle)
    return found


_SPACE = re.compile(r"\s+")


def same_text(a: str, b: str) -> bool:
    """Tell whether two answers are equal but for white space.

    Examples
    --------
    >>> same_text("Yes,  it is.\\n", "Yes, it is."), same_text("Yes", "yes")
    (True, False)
    """
    return _SPACE.sub(" ", a).strip() == _SPACE.sub(" ", b).strip()
