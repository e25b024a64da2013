"""Find what is wrong with preference pairs, and whether length or position decided them.

A reward model learns the easiest thing that separates chosen from rejected. If longer answers won more
often, that is length; if the answer shown first won more often, it is the habit of the person who ranked.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onegpu.preference_data.rankings import (
    PreferencePair,
    Ranking,
    load_rankings,
    pairs_of,
    same_text,
    to_pairs,
)
from onegpu.sft_datasets import Problem, keys, read_rows
from onegpu.sft_datasets.formats import as_text, show, turn_of


class PairError(ValueError):
    """A row that can't become a ``PreferencePair``; ``problem`` holds row, field, code and what to do."""

    def __init__(self, problem: Problem):
        super().__init__(str(problem))
        self.problem = problem

    def __reduce__(self):
        return type(self), (self.problem,)


def pair_problems(row: Mapping[str, Any] | PreferencePair, row_index: int | None = None) -> list[Problem]:
    """List what is wrong with one pair.

    A row has prompt, chosen and rejected, each text or a list of messages; without a prompt, the turns before the last of
    chosen and rejected are the prompt. Where it stands in several places, it must be the same in all.

    Examples
    --------
    >>> [p.code for p in pair_problems({"prompt": "2+2?", "chosen": "4", "rejected": None})]
    ['not_text']
    >>> [p.code for p in pair_problems({"prompt": "2+2?", "chosen": "4", "rejected": "4 "})]
    ['identical_pair']
    """
    return _read_pair(row, row_index)[1]


def _read_pair(row: Any, row_index: int | None) -> tuple[dict[str, str], list[Problem]]:
    """Prompt, chosen and rejected as far as they can be read, and what is wrong."""
    if isinstance(row, PreferencePair):
        row = {"prompt": row.prompt, "chosen": row.chosen, "rejected": row.rejected}
    found: list[Problem] = []

    def problem(field, code, value, expected, fix):
        found.append(Problem(row_index, field, code, show(value), expected, fix))

    sides: dict[str, str] = {}
    questions: dict[str, list[tuple[str, Any]]] = {}  # where a prompt stands: its turns
    prompt = row.get("prompt")
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        questions["prompt"] = _turns(prompt)
    elif isinstance(prompt, str) and prompt.strip():
        questions["prompt"] = [("user", prompt)]
    elif prompt is not None and not isinstance(prompt, str):
        problem("prompt", "empty_prompt", prompt, "text", "Write the prompt or drop the row.")
    for field in ("chosen", "rejected"):
        value = row.get(field)
        if isinstance(value, Sequence) and not isinstance(value, str):
            turns = _turns(value)
            if not turns or turns[-1][0] != "assistant" or (len(turns) < 2 and "prompt" not in questions):
                expected = "the prompt's messages and then an assistant message"
                problem(
                    field,
                    "no_answer",
                    [role for role, _ in turns],
                    expected,
                    "Complete the list or drop the row.",
                )
                continue
            if len(turns) > 1:
                questions[field] = turns[:-1]
            value = turns[-1][1]
        if not isinstance(value, str):
            problem(field, "not_text", value, "text", "Write the answer or leave the row out.")
        elif not value.strip():
            problem(field, "empty_side", value, "an answer", "Write it or leave the row out.")
        else:
            sides[field] = value
    if not questions and not found:
        named = "Set columns if yours has another name, for example {'question': 'prompt'}."
        fix = "Write the prompt or drop the row." if "prompt" in row else named
        problem("prompt", "empty_prompt", prompt, "text", fix)
    places = list(questions)
    for other in places[1:]:
        # Where the prompt column holds the last question only, the turns before it are in the messages.
        if questions[other] != questions[places[0]] and questions[other][-1:] != questions[places[0]]:
            problem(
                other, "prompt_differs", questions[other], f"the same prompt as in {places[0]!r} ({show(questions[places[0]])})",
                "Pair answers to one prompt only.",
            )  # fmt: skip
            break
    for key in (*keys.SYSTEM, *keys.TOOLS, *keys.REFUSED_IN_ROWS):
        if row.get(key):
            problem(
                key,
                "refused_key",
                row[key],
                "no such key: a pair is one question and two answers",
                "Write it into the prompt, or drop the row.",
            )
    if len(sides) == 2 and same_text(sides["chosen"], sides["rejected"]):
        expected = "an answer other than the chosen one"
        problem(
            "rejected", "identical_pair", sides["rejected"], expected, "Drop the row: it teaches nothing."
        )
    turns = max(questions.values(), key=len, default=[])
    if turns and not found:
        if (
            len(turns) != 1
            or turns[0][0] != "user"
            or not isinstance(turns[0][1], str)
            or not turns[0][1].strip()
        ):
            field = next(name for name, value in questions.items() if value is turns)
            problem(
                field, "not_one_question", f"{len(turns)} turns before the answer ({', '.join(str(r) for r, _ in turns)})",
                "one user turn", "Render longer chats to text yourself, or drop the row.",
            )  # fmt: skip
        else:
            sides["prompt"] = turns[0][1]
    return sides, found


def _turns(messages: Sequence[Any]) -> list[tuple[str, Any]]:
    """(role, content) of messages under any of their names."""
    read = [turn_of(turn, "") if isinstance(turn, Mapping) else None for turn in messages]
    return [(turn.role, as_text(turn.content)) if turn else (None, None) for turn in read]


def to_pair(row: Mapping[str, Any] | PreferencePair, row_index: int | None = None) -> PreferencePair:
    """Read one row as a pair: prompt, chosen and rejected as text, or as lists of messages.

    Chats of more than one turn before the answers are not pairs of texts and are refused.

    Raises
    ------
    PairError
        (a ``ValueError``) naming row, field, what was found, what was expected and what to do.

    Examples
    --------
    >>> user = {"role": "user", "content": "2+2?"}
    >>> sides = {"chosen": [user, {"role": "assistant", "content": "4"}],
    ...          "rejected": [user, {"role": "assistant", "content": "5"}]}
    >>> to_pair(sides)
    PreferencePair(prompt='2+2?', chosen='4', rejected='5', group=0)
    """
    sides, found = _read_pair(row, row_index)
    if found:
        raise PairError(found[0])
    return row if isinstance(row, PreferencePair) else PreferencePair(**sides)


def read_pairs(
    source: str | os.PathLike, *, split: str = "train", limit: int | None = None
) -> list[PreferencePair]:
    """Read pairs from a file or the hub, as ``sft_datasets.read_rows`` does.

    UltraFeedback's binarized set ("HuggingFaceH4/ultrafeedback_binarized", split "train_prefs") falls back to the
    shipped rankings, written with its columns, where the hub can't be reached.

    Raises
    ------
    PairError
        The first pair that can't be trained on.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "pairs.csv")
    >>> with open(path, "w") as file: _ = file.write("prompt,chosen,rejected\\n2+2?,4,5\\n")
    >>> read_pairs(path)
    [PreferencePair(prompt='2+2?', chosen='4', rejected='5', group=0)]
    """
    fallback = ultrafeedback_sample if str(source) == ULTRAFEEDBACK else None
    rows = read_rows(source, split=split, limit=limit, fallback=fallback)
    return [to_pair(row, index) for index, row in enumerate(rows)]


ULTRAFEEDBACK = "HuggingFaceH4/ultrafeedback_binarized"


def ultrafeedback_sample() -> Iterator[dict[str, Any]]:
    """The shipped rankings' pairs with the columns of UltraFeedback's binarized set."""
    for pair in to_pairs(load_rankings()):
        question = {"role": "user", "content": pair.prompt}
        sides = {
            side: [question, {"role": "assistant", "content": text}]
            for side, text in (("chosen", pair.chosen), ("rejected", pair.rejected))
        }
        yield {"prompt": pair.prompt} | sides


@dataclass(frozen=True)
class PairReport:
    """What ``validate_pairs`` found.

    Attributes
    ----------
    rows, bad_rows
        Pairs read, and those that can't be trained on.
    counts
        Findings by code.
    problems
        The findings, in row order.
    length_bias
        Over the good pairs.
    """

    rows: int
    bad_rows: int
    counts: Mapping[str, int]
    problems: tuple[Problem, ...]
    length_bias: LengthBias

    @property
    def ok(self) -> bool:
        """True when every pair can be trained on."""
        return not self.bad_rows

    def __str__(self) -> str:
        lines = [f"{self.rows:,} pairs, {self.bad_rows:,} can't be trained on"]
        for code, count in self.counts.items():
            first = next(p for p in self.problems if p.code == code)
            lines.append(f"{code}: {count:,} (first: {first})")
        return "\n".join([*lines, str(self.length_bias)])


def validate_pairs(rows: Iterable[Mapping[str, Any] | PreferencePair], *, strict: bool = False) -> PairReport:
    """Check pairs: empty or missing sides, equal sides, prompts that differ, the same pair both ways.

    Raises
    ------
    PairError
        With strict, at the first pair that can't be trained on.

    Examples
    --------
    >>> report = validate_pairs([{"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    ...                          {"prompt": "2+2?", "chosen": "5", "rejected": "4"}])
    >>> dict(report.counts)
    {'contradicts': 1}
    """
    counts: Counter[str] = Counter()
    problems: list[Problem] = []
    good: list[PreferencePair] = []
    seen: dict[tuple[str, str, str], int] = {}
    total = bad = 0
    for index, row in enumerate(rows):
        total += 1
        sides, found = _read_pair(row, index)
        if not found:
            pair = row if isinstance(row, PreferencePair) else PreferencePair(**sides)
            key, other = (pair.prompt, pair.chosen, pair.rejected), (pair.prompt, pair.rejected, pair.chosen)
            for code, where, expected in (
                ("repeated", seen.get(key), "each pair once"),
                ("contradicts", seen.get(other), "one direction for two answers"),
            ):
                if where is not None:
                    fix = "Keep one of them; check_votes counts the votes for each side."
                    found.append(Problem(index, "chosen", code, f"the pair of row {where}", expected, fix))
            seen.setdefault(key, index)
        if found and strict:
            raise PairError(found[0])
        if found:
            bad += 1
            problems += found
            counts.update(problem.code for problem in found)
        else:
            good.append(pair)
    return PairReport(total, bad, dict(counts.most_common()), tuple(problems), length_bias(good))


@dataclass(frozen=True)
class LengthBias:
    """Whether longer answers win.

    Attributes
    ----------
    pairs
        Pairs compared.
    longer_wins
        Share of them whose chosen answer is longer (an equal length counts half); 0.5 is no bias.
    mean_difference
        Characters by which the chosen answer is longer, on average.
    correlation
        Of "the first answer is longer" with "the first answer wins", each +1, 0 or -1, over both orders
        of every pair: 2 longer_wins - 1 when no lengths are equal. 0 is no bias.
    """

    pairs: int
    longer_wins: float
    mean_difference: float
    correlation: float

    def __str__(self) -> str:
        return (
            f"length: the longer answer wins {self.longer_wins:.1%} of {self.pairs:,} pairs (50 % is no bias), "
            f"chosen longer by {self.mean_difference:+.1f} characters, correlation {self.correlation:+.3f}"
        )


def length_bias(pairs: Iterable[PreferencePair]) -> LengthBias:
    """Measure whether length decided, in characters.

    Examples
    --------
    >>> length_bias([PreferencePair("a", "long one", "short"), PreferencePair("b", "no", "never")]).longer_wins
    0.5
    """
    differences = [len(pair.chosen) - len(pair.rejected) for pair in pairs]
    count = len(differences)
    if not count:
        return LengthBias(0, 0.5, 0.0, 0.0)
    signs = [(d > 0) - (d < 0) for d in differences]
    wins = 0.5 + sum(signs) / (2 * count)
    unequal = sum(map(abs, signs))
    # Over both orders the means are 0, the wins all +-1, the lengths +-1 where unequal.
    correlation = sum(signs) / (count * unequal) ** 0.5 if unequal else 0.0
    return LengthBias(count, wins, sum(differences) / count, correlation)


@dataclass(frozen=True)
class PositionBias:
    """Whether the place in which an answer was shown decided.

    Attributes
    ----------
    pairs
        Pairs without ties.
    earlier_wins
        Share of them won by the answer shown earlier; 0.5 is no bias.
    mean_rank
        Mean rank by place shown, the first place first.
    """

    pairs: int
    earlier_wins: float
    mean_rank: tuple[float, ...]

    def __str__(self) -> str:
        ranks = ", ".join(f"{rank:.2f}" for rank in self.mean_rank)
        return (
            f"position: the answer shown earlier wins {self.earlier_wins:.1%} of {self.pairs:,} pairs (50 % is "
            f"no bias); mean rank by place {ranks}"
        )


def position_bias(rankings: Iterable[Ranking]) -> PositionBias:
    """Measure whether the order of showing decided.

    Examples
    --------
    >>> position_bias([Ranking("a", ("x", "y"), (1, 2)), Ranking("b", ("x", "y"), (2, 1))]).earlier_wins
    0.5
    """
    wins = total = 0
    by_place: dict[int, list[int]] = {}
    for ranking in rankings:
        for i, j in pairs_of(ranking.ranks):
            total += 1
            wins += i < j
        for place, rank in enumerate(ranking.ranks):
            by_place.setdefault(place, []).append(rank)
    means = tuple(sum(ranks) / len(ranks) for _, ranks in sorted(by_place.items()))
    return PositionBias(total, wins / total if total else 0.5, means)
