"""Exercises of lab 06: tokens from offsets, through an indices mapping, to bytes and steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onegpu.exercises.comparison import show
from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.token_counting import TokenCounts, count_tokens, training_steps
from onegpu.token_counting.recipes import no_progress_bars


def row_lengths(offsets: Sequence[int]) -> list[int]:
    """Return the length of each row, from the offsets of a list column."""
    return np.diff(offsets).tolist()


def tokens_within(array: pa.Array, max_length: int | None = None) -> int:
    """Count the tokens of a list array whose rows are cut to max_length (None: not cut)."""
    lengths = pc.list_value_length(array)
    if max_length is not None:
        lengths = pc.min_element_wise(lengths, max_length, skip_nulls=False)
    return pc.sum(lengths, min_count=0).as_py()


def learned_labels(labels: pa.Array, ignore_index: int = -100) -> tuple[int, int]:
    """Count the labels of a list array that are neither ignore_index nor null, and the rows that have none of them."""
    lengths = pc.list_value_length(labels).fill_null(0)
    learned = np.asarray(pc.not_equal(pc.list_flatten(labels), ignore_index).fill_null(False))
    rows = np.repeat(np.arange(len(labels)), lengths)[learned]
    return np.count_nonzero(learned), len(labels) - len(np.unique(rows))


def count_dataset(dataset: Any) -> tuple[int, int]:
    """Count (tokens, supervised tokens) of a Dataset."""
    counts = count_tokens(dataset)
    return counts.tokens, counts.supervised_tokens


def column_bytes(rows: int, tokens: int, value_bits: int, offset_bits: int = 32) -> int:
    """Return the bytes of a list column: its offsets and its values."""
    return ((rows + 1) * offset_bits + tokens * value_bits) // 8


def padding_share(lengths: list[int], batch_size: int) -> float:
    """Return the share of padding when each batch is padded to its longest row, 0 to 1."""
    batches = [lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size)]
    computed = sum(max(batch) * len(batch) for batch in batches)
    return 1 - sum(lengths) / computed if computed else 0.0


def optimizer_steps(rows: int, batch_size: int, accumulation: int, world_size: int, epochs: float) -> int:
    """Return the optimizer steps of a run."""
    return training_steps(
        TokenCounts(rows, rows, None, None, {1: rows} if rows else {}),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        world_size=world_size,
        num_train_epochs=epochs,
    ).padded_steps


def run_seconds(
    weights: int, tokens: int, rate: float, frozen: bool, probe: tuple[int, float]
) -> tuple[float, float]:
    """Return the seconds of a run, guessed from operations and corrected by a measured step of all weights."""
    each = 4 if frozen else 6
    guessed = each * weights * tokens / rate
    probe_tokens, seconds = probe
    return guessed, guessed * seconds / (6 * weights * probe_tokens / rate)


def my_batches(lengths: Sequence[int], batch_size: int, seed: int) -> list[list[int]]:
    """Cut row numbers into batches of similar lengths, in an order and with neighbours of the seed's."""
    chance = random.Random(seed)
    rows = list(range(len(lengths)))
    chance.shuffle(rows)
    rows.sort(key=lambda row: lengths[row])
    batches = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    chance.shuffle(batches)
    return batches


MOST_PADDING = 0.2
"""Share of padding at most in exercise 6.9."""


def long_tailed(rows: int) -> list[int]:
    """Lengths of made-up chats: many short, a few long."""
    return (np.random.default_rng(0).lognormal(4, 0.8, rows).astype(int) + 1).tolist()


def _played(function: Callable[..., Any], lengths: list[int], batch_size: int, seed: int) -> Any:
    """Make batches with a seed, again with it, and with the next one; say what is in them."""
    first, again, other = (function(list(lengths), batch_size, n) for n in (seed, seed, seed + 1))
    if not isinstance(first, list) or not all(isinstance(batch, list) for batch in first):
        return first
    computed = [max(lengths[row] for row in batch) * len(batch) for batch in first]
    together = lambda batches: sorted(sorted(batch) for batch in batches)  # noqa: E731
    longest = [max(lengths[row] for row in batch) for batch in first]
    real = sum(lengths[row] for batch in first for row in batch)
    return {
        "rows": sorted(row for batch in first for row in batch) == list(range(len(lengths))),
        "batches": len(first),
        "largest": max(map(len, first), default=0),
        "padding": round(1 - real / max(1, sum(computed)), 3),
        "same seed, same batches": first == again,
        "short rows first": longest == sorted(longest),
        "other seed, other neighbours": together(first) != together(other),
    }


def _batches_problem(got: Any, expected: Any) -> str | None:
    """What is wrong with somebody's batches, or None."""
    if not isinstance(got, dict):
        return f"{show(got)} is no list of lists of row numbers"
    for name in ("rows", "batches", "largest", "same seed, same batches"):
        if got[name] != expected[name]:
            return f"{name}: expected {expected[name]}, got {got[name]}"
    if got["padding"] > MOST_PADDING:
        return f"{got['padding']:.0%} of what is computed is padding"
    if got["short rows first"] and not expected["short rows first"]:
        return "the batches stand in the order of their lengths"
    if expected["other seed, other neighbours"] and not got["other seed, other neighbours"]:
        return "another seed gives the same neighbours"
    return None


def ten_rows() -> Any:
    """Make a Dataset of rows with 1 to 10 tokens: 55 in all, 30 of them supervised."""
    import datasets

    ids = [list(range(n)) for n in range(1, 11)]
    labels = [[-100] * (n // 2) + row[n // 2 :] for n, row in enumerate(ids, 1)]
    return datasets.Dataset(
        pa.table({"input_ids": ids, "labels": labels}), fingerprint="ten rows"
    )  # given, since it would be a hash of the data


def _with_a_null() -> Any:
    import datasets

    rows = {"input_ids": [[1, 2, 3], [4, 5, 6]], "labels": [[-100, None, 3], [-100, 0, 6]]}
    return datasets.Dataset(pa.table(rows), fingerprint="a null label")


def _of(change: Any) -> Any:
    """Arguments for a case: a fresh Dataset, changed."""

    def make() -> tuple:
        return (change(ten_rows()),)

    return make


def _nothing_kept(dataset: Any) -> Any:
    with no_progress_bars():
        return dataset.filter(lambda row: False, keep_in_memory=True, load_from_cache_file=False)


def _same_numbers(got: Any, expected: list[int]) -> str | None:
    """Compare lengths, whatever they came in: list, tuple, numpy or Arrow array."""
    found = got.to_pylist() if isinstance(got, pa.Array | pa.ChunkedArray) else np.asarray(got).tolist()
    return None if found == expected else f"expected {expected}, got {show(found)}"


_WHOLE_TABLE = (
    "It counts the table below the data set (dataset.data): rows that select or filter left out are still in there. "
    "Read the data set itself, for instance in Arrow batches with dataset.with_format('arrow').iter(1024)."
)
_ONLY_TOKENS = (
    "The tokens are right, the labels aren't: they were read from dataset.data, which knows nothing of the indices. "
    "Read both columns through the data set."
)


def _are(*numbers: int) -> Any:
    return lambda got: _same_numbers(got, list(numbers)) is None


def _is_none(got: Any) -> bool:
    return got is None or (isinstance(got, TypeError) and "NoneType" in str(got))


EXERCISES = (
    Exercise(
        "6.1",
        "lengths from offsets",
        row_lengths,
        level="warm-up",
        difficulty=1,
        importance=5,
        minutes=5,
        hints=(
            "Where does row i begin, and where does it end?",
            "Each length is an offset minus the one before it; there is one fewer than offsets.",
        ),
        lesson="Where the rows begin",
        cases=(
            Case(
                "five rows",
                ([0, 1, 3, 6, 10, 15],),
                "Row i begins at offsets[i] and ends where row i + 1 begins, at offsets[i + 1].",
                expected=[1, 2, 3, 4, 5],
                compare=_same_numbers,
                mistakes=(
                    Mistake(
                        _are(1, 3, 6, 10, 15),
                        "Those are the ends of the rows. A length is an end minus the beginning of the same row.",
                    ),
                    Mistake(
                        _are(0, 1, 2, 3, 4, 5),
                        "Six offsets are five rows: each row needs a beginning and an end.",
                    ),
                    Mistake(
                        _are(-1, -2, -3, -4, -5),
                        "The sign is turned round: end minus beginning.",
                    ),
                    Mistake(_are(1, 2, 3, 4), "The last row is missing."),
                ),
            ),
            Case(
                "a slice that begins at 3",
                ([3, 6, 10],),
                "After a slice the offsets don't begin at 0, and they are not moved: lengths are differences, nothing else.",
                expected=[3, 4],
                compare=_same_numbers,
                mistakes=(
                    Mistake(
                        _are(6, 4),
                        "The first row is taken to begin at 0. In a slice it begins at offsets[0].",
                    ),
                ),
            ),
            Case(
                "an empty row in the middle",
                ([0, 2, 2, 5],),
                "Two equal offsets are a row of length 0. It is a row all the same.",
                expected=[2, 0, 3],
                compare=_same_numbers,
            ),
            Case(
                "no rows",
                ([0],),
                "One offset is no row: the result is empty.",
                expected=[],
                compare=_same_numbers,
            ),
        ),
    ),
    Exercise(
        "6.2",
        "tokens within a limit",
        tokens_within,
        level="core",
        difficulty=3,
        importance=5,
        minutes=10,
        hints=(
            "No value need be read: cutting changes lengths. What is the length of a null row, and what becomes of it?",
            "Take the length of each list value (null for null rows, and a slice keeps its window), then the smaller "
            "of it and the limit, so that null stays null, and sum. Mind the sum over nothing.",
        ),
        lesson="The draft breaks",
        cases=(
            Case(
                "three rows, at most 2",
                lambda: (pa.array([[1], [2, 3], [4, 5, 6]]), 2),
                "The rows keep 1, 2 and 2 tokens.",
                expected=5,
                mistakes=(
                    Mistake(6, "Nothing is cut: the last row has 3 tokens and keeps 2."),
                    Mistake(
                        3, "The long row is dropped, or rows are counted. It is cut: 2 of its tokens stay."
                    ),
                    Mistake(
                        lambda got: isinstance(got, pa.Scalar),
                        "That is an Arrow scalar, not a Python number: .as_py() turns it into one.",
                    ),
                ),
            ),
            Case(
                "no limit",
                lambda: (pa.array([[1], [2, 3], [4, 5, 6]]),),
                "With max_length=None nothing is cut: 1 + 2 + 3.",
                expected=6,
                mistakes=(
                    Mistake(_is_none, "The smaller one of a length and None is null: leave the limit out."),
                ),
            ),
            Case(
                "a limit of 0",
                lambda: (pa.array([[1], [2, 3]]), 0),
                "Nothing stays.",
                expected=0,
                mistakes=(Mistake(3, "0 is a limit like any other: only None means that nothing is cut."),),
            ),
            Case(
                "a slice without the first row",
                lambda: (pa.array([[1, 2, 3], [4, 5], [6, 7, 8, 9]])[1:], 3),
                "The slice holds rows of 2 and of 4 tokens; they keep 2 and 3.",
                expected=5,
                mistakes=(
                    Mistake(
                        8,
                        "The row before the slice is counted too: .values and .offsets show more than the slice. "
                        "list_value_length keeps to its window.",
                    ),
                ),
            ),
            Case(
                "a null row",
                lambda: (pa.array([[1, 2], None, [], [3]]), 4),
                "A null row has no tokens, whatever the limit.",
                expected=3,
                mistakes=(
                    Mistake(_is_none, "A null row has no length: leave it out of the sum."),
                    Mistake(
                        7,
                        "The null row counts as 4 tokens: min_element_wise passes nulls over, so the limit is the smaller "
                        "one. With skip_nulls=False null stays null.",
                    ),
                    Mistake(4, "The null row is counted as one token. It has none."),
                ),
            ),
            Case(
                "values behind a null row",
                lambda: (
                    pa.ListArray.from_arrays(
                        [0, 2, 4, 5], [1, 2, 3, 4, 5], mask=pa.array([False, True, False])
                    ),
                    1,
                ),
                "The middle row is null although two values lie behind it; the others keep one token each.",
                expected=2,
                mistakes=(
                    Mistake(
                        3,
                        "Differences of offsets give the null row a length too: values lie behind it that are nobody's. "
                        "Ask the rows for their lengths.",
                    ),
                ),
            ),
            Case(
                "offsets of 64 bits",
                lambda: (pa.array([[1], [2, 3]], pa.large_list(pa.int64())), 1),
                "A large_list is the same with offsets of 64 bits.",
                expected=2,
            ),
            Case(
                "no rows",
                lambda: (pa.array([], pa.list_(pa.int64())), 8),
                "No rows hold 0 tokens.",
                expected=0,
                mistakes=(
                    Mistake(_is_none, "pyarrow.compute.sum of nothing is null. With min_count=0 it is 0."),
                ),
            ),
        ),
    ),
    Exercise(
        "6.3",
        "labels and rows that teach",
        learned_labels,
        level="core",
        difficulty=4,
        importance=5,
        minutes=12,
        hints=(
            "Lay the lists end to end first. What does a comparison make of a null? And which row did a label come from?",
            "Flatten, compare each label with ignore_index, and count what is true; a null is neither true nor false. "
            "The rows' lengths say which row a flattened label is of: repeat each row's number as often as it has labels "
            "(0 times where it is null), keep those of labels that are learned from, and see how many rows are left over.",
        ),
        lesson="The draft breaks",
        cases=(
            Case(
                "three rows",
                lambda: (pa.array([[-100, -100, 0], [-100, 9, 9], [-100]]),),
                "0, 9 and 9 are learned from; the last row has none of them.",
                expected=(3, 1),
                mistakes=(
                    Mistake(
                        (2, 2),
                        "The label 0 is lost: it is a token like any other, only ignore_index is left out.",
                    ),
                    Mistake((4, 1), "Those are the masked ones: count the labels that are not -100."),
                    Mistake((7, 0), "Those are all labels: leave out the -100."),
                    Mistake((3, 2), "Those are the rows that have such labels: count the others."),
                    Mistake((1, 3), "The order is turned round: first the labels, then the rows."),
                    Mistake(
                        lambda got: isinstance(got[0], pa.Scalar),
                        "That is an Arrow scalar, not a Python number: .as_py() turns it into one.",
                    ),
                ),
            ),
            Case(
                "a slice without the first row",
                lambda: (pa.array([[1, 2, 3], [-100, 4], [5], [-100]])[1:],),
                "The slice holds the labels -100, 4, 5 and -100, in three rows.",
                expected=(2, 1),
                mistakes=(
                    Mistake(
                        lambda got: got[0] == 5,
                        ".values are those of the whole array: a slice only moves a window over them. .flatten() keeps "
                        "to the window.",
                    ),
                ),
            ),
            Case(
                "another ignore_index",
                lambda: (pa.array([[0, 0, 7], [-100, 9], [0]]), 0),
                "Here 0 means masked, and -100 is a label like any other.",
                expected=(3, 1),
                mistakes=(
                    Mistake((5, 0), "ignore_index is a parameter: don't write -100 into the function."),
                ),
            ),
            Case(
                "null labels",
                lambda: (pa.array([[-100, None, 3], [None, -100]]),),
                "A null is neither -100 nor a label to learn from.",
                expected=(1, 1),
                mistakes=(
                    Mistake(
                        lambda got: got[0] == 3,
                        "A null is counted as supervised: as a numpy float it is nan, and nan != -100 is true; as a "
                        "Python None likewise. Arrow's not_equal gives null there, which sum leaves out.",
                    ),
                ),
            ),
            Case(
                "a null row and an empty one",
                lambda: (pa.array([[5, 6], None, [-100], []]),),
                "Neither has a label: with the row of -100 they are three rows that teach nothing.",
                expected=(2, 3),
                mistakes=(
                    Mistake(_is_none, "A null row became None, which can't be looped over: flatten first."),
                    Mistake(
                        lambda got: got[0] == 2,
                        "Null and empty rows have no labels, so no flattened label names them. Take the rows that teach "
                        "from all rows.",
                    ),
                ),
            ),
            Case(
                "values behind a null row",
                lambda: (
                    pa.ListArray.from_arrays(
                        [0, 2, 4, 5], [-100, 2, 3, 4, -100], mask=pa.array([False, True, False])
                    ),
                ),
                "The middle row is null although two values lie behind it: they are nobody's. list_flatten leaves them out; "
                "list_parent_indices doesn't.",
                expected=(1, 2),
            ),
            Case(
                "no rows",
                lambda: (pa.array([], pa.list_(pa.int64())),),
                "No rows hold 0 labels, and none of them is without.",
                expected=(0, 0),
                mistakes=(
                    Mistake(
                        lambda got: got[0] is None,
                        "pyarrow.compute.sum of nothing is null. With min_count=0 it is 0.",
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "6.4",
        "through the indices mapping",
        count_dataset,
        level="core",
        difficulty=3,
        importance=5,
        minutes=15,
        hints=(
            "Who knows the list of rows: the table, or the data set?",
            "Read the data set in Arrow batches, through a copy of it in Arrow's format, and add up "
            "6.2 of the one column and 6.3 of the other over all batches.",
        ),
        lesson="The list over the table",
        cases=(
            Case(
                "the whole data set",
                _of(lambda dataset: dataset),
                "Rows of 1 to 10 tokens: 55 in all, of which 30 are supervised. Return (tokens, supervised).",
                expected=(55, 30),
                mistakes=(
                    Mistake(
                        (30, 55), "The order is turned round: first all tokens, then the supervised ones."
                    ),
                ),
            ),
            Case(
                "select([0, 2, 4])",
                _of(lambda dataset: dataset.select([0, 2, 4])),
                "Rows of 1, 3 and 5 tokens.",
                expected=(9, 6),
                mistakes=(Mistake((55, 30), _WHOLE_TABLE), Mistake((9, 30), _ONLY_TOKENS)),
            ),
            Case(
                "the same row thrice",
                _of(lambda dataset: dataset.select([1, 1, 1])),
                "Training sees the row of 2 tokens three times, so it counts three times.",
                expected=(6, 3),
                mistakes=(
                    Mistake((2, 1), "It is counted once. An indices mapping may name a row several times."),
                ),
            ),
            Case(
                "a null label",
                lambda: (_with_a_null(),),
                "A null label is no supervised one: there is nothing to learn from it (6.3).",
                expected=(6, 3),
                mistakes=(
                    Mistake(
                        (6, 4), "The null is counted as supervised: None != -100 is true. Count as in 6.3."
                    ),
                ),
            ),
            Case(
                "a filter that keeps nothing",
                _of(_nothing_kept),
                "No rows are left: (0, 0).",
                expected=(0, 0),
                mistakes=(
                    Mistake((55, 30), _WHOLE_TABLE),
                    Mistake(_is_none, "The sum over no batches is None or missing: begin with 0."),
                ),
            ),
            Case(
                "2,500 rows, shuffled",
                _of(lambda dataset: dataset.repeat(250).shuffle(seed=0, keep_in_memory=True)),
                "250 times the ten rows.",
                expected=(13_750, 7_500),
                mistakes=(
                    Mistake(
                        lambda got: got[0] < 13_750,
                        "Part of the rows is missing: add up over all batches, the last short one too.",
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "6.5",
        "bytes of a column",
        column_bytes,
        level="warm-up",
        difficulty=2,
        importance=3,
        minutes=8,
        hints=(
            "How many offsets do three rows need?",
            "One offset more than rows, each of offset_bits, and tokens values of value_bits. Add the"
            " bits, then make bytes of them.",
        ),
        lesson="Half a gigabyte, four ways",
        cases=(
            Case(
                "five rows, 15 tokens, int32",
                (5, 15, 32),
                "6 offsets of 4 bytes and 15 values of 4 bytes.",
                expected=84,
                mistakes=(
                    Mistake(80, "Five rows have six offsets: the last row needs an end."),
                    Mistake(60, "Those are the values. The offsets take bytes too."),
                    Mistake(672, "Those are bits: 8 of them make a byte."),
                    Mistake(lambda got: isinstance(got, float), "Bytes are whole numbers: divide with //."),
                ),
            ),
            Case(
                "the same as int64",
                (5, 15, 64),
                "6 offsets of 4 bytes and 15 values of 8 bytes: the offsets don't grow with the values.",
                expected=144,
                mistakes=(Mistake(168, "The offsets still have 32 bits each: only the values have 64."),),
            ),
            Case(
                "offsets of 64 bits",
                (5, 15, 32, 64),
                "6 offsets of 8 bytes and 15 values of 4 bytes.",
                expected=108,
                mistakes=(Mistake(84, "offset_bits is a parameter: a large_list has offsets of 64 bits."),),
            ),
            Case(
                "no rows",
                (0, 0, 32),
                "Even an empty column has its first offset.",
                expected=4,
            ),
            Case(
                "9.5 million rows of 16,384 labels",
                (9_500_000, 9_500_000 * 16_384, 64),
                "About 1.25 TB of values and 38 MB of offsets.",
                expected=1_245_222_000_004,
            ),
        ),
    ),
    Exercise(
        "6.6",
        "share of padding",
        padding_share,
        level="core",
        difficulty=3,
        importance=4,
        minutes=12,
        hints=(
            "How many tokens does one batch compute?",
            "Cut the lengths into batches in their order. A batch computes its longest row times its "
            "rows. The share is 1 minus real over computed; no rows have no padding.",
        ),
        lesson="From lengths to steps",
        cases=(
            Case(
                "batches of equal rows",
                ([5, 5, 3, 3], 2),
                "Each batch is as long as its rows: no padding.",
                expected=0.0,
                mistakes=(
                    Mistake(
                        lambda got: abs(got - 0.2) < 1e-9,
                        "All rows are padded to the longest of the set. Each batch has a longest row of its own.",
                    ),
                    Mistake(
                        lambda got: abs(got - 1.0) < 1e-9,
                        "That is the share of real tokens: 1 minus it is padding.",
                    ),
                ),
            ),
            Case(
                "batches of unequal rows",
                ([5, 3, 3, 5], 2),
                "Two batches of 2 x 5 computed tokens, 16 of them real: 4 of 20 are padding.",
                expected=0.2,
                mistakes=(
                    Mistake(
                        lambda got: abs(got - 0.25) < 1e-9,
                        "Padding is divided by the real tokens. The share is of all computed tokens, padding included.",
                    ),
                    Mistake(
                        lambda got: abs(got - 0.0) < 1e-9,
                        "Keep the order of the rows: sorting first would change the batches.",
                    ),
                    Mistake(
                        lambda got: abs(got - 0.8) < 1e-9,
                        "That is the share of real tokens: 1 minus it is padding.",
                    ),
                    Mistake(lambda got: abs(got - 20) < 1e-9, "A share lies between 0 and 1."),
                ),
            ),
            Case(
                "a last batch that isn't full",
                ([4, 2, 6], 2),
                "The last batch holds one row of 6 and is not padded to two rows: 8 + 6 computed, 12 real.",
                expected=1 / 7,
                mistakes=(
                    Mistake(
                        lambda got: abs(got - 0.4) < 1e-9, "The last batch has one row, not batch_size rows."
                    ),
                    Mistake(
                        lambda got: abs(got - 0.25) < 1e-9,
                        "The last batch is left out. It is computed all the same.",
                    ),
                ),
            ),
            Case(
                "one row at a time",
                ([4, 2, 6], 1),
                "A batch of one row needs no padding.",
                expected=0.0,
            ),
            Case(
                "no rows",
                ([], 2),
                "Nothing is computed, so nothing is padding: 0.0.",
                expected=0.0,
                mistakes=(
                    Mistake(
                        lambda got: isinstance(got, ZeroDivisionError),
                        "Nothing was computed: don't divide by it.",
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "6.7",
        "optimizer steps",
        optimizer_steps,
        level="core",
        difficulty=3,
        importance=4,
        minutes=12,
        hints=(
            "Round up at each stage, from rows to batches to steps, and only then look at epochs.",
            "Rows make batches, batches make rounds over all GPUs, rounds make steps of an epoch: "
            "each division rounded up. Multiply by the epochs and round up once more.",
        ),
        lesson="From lengths to steps",
        cases=(
            Case(
                "20 rows, batches of 3",
                (20, 3, 1, 1, 1),
                "Six batches of 3 and one of 2 make 7 steps.",
                expected=7,
                mistakes=(
                    Mistake(6, "The last batch isn't full, and it is trained on all the same: round up."),
                    Mistake(lambda got: isinstance(got, float), "Steps are whole numbers."),
                ),
            ),
            Case(
                "two batches to a step",
                (20, 3, 2, 1, 1),
                "7 batches, two to a step: the last step has one batch.",
                expected=4,
                mistakes=(
                    Mistake(
                        3, "The seventh batch makes a step of its own at the end of the epoch: round up."
                    ),
                    Mistake(14, "Accumulation makes fewer steps, not more: several batches share one."),
                ),
            ),
            Case(
                "three epochs",
                (20, 3, 2, 1, 3),
                "Each epoch ends with its own short step: 3 times 4.",
                expected=12,
                mistakes=(
                    Mistake(
                        lambda got: got in (10, 11),
                        "The epochs are run together. A step doesn't reach over the end of an epoch: round up first, "
                        "then multiply.",
                    ),
                    Mistake(4, "The epochs are missing."),
                ),
            ),
            Case(
                "four GPUs",
                (100, 2, 1, 4, 1),
                "50 batches, four at a time: 13 steps.",
                expected=13,
                mistakes=(
                    Mistake(50, "Each GPU takes a batch of its own: world_size batches make one step."),
                    Mistake(12, "The last two batches make a step too: round up."),
                    Mistake(200, "More GPUs make fewer steps, not more."),
                ),
            ),
            Case(
                "half an epoch",
                (20, 3, 2, 1, 0.6),
                "0.6 times 4 steps is 2.4; training stops after the third.",
                expected=3,
                mistakes=(Mistake(2, "Part of a step isn't dropped: round up at the end too."),),
            ),
            Case(
                "few rows",
                (1, 8, 4, 2, 3),
                "One row is one short batch, so one step an epoch.",
                expected=3,
                mistakes=(
                    Mistake(
                        lambda got: got <= 0,
                        "There is something to train on, so there is a step. No formula may say 0 or less here.",
                    ),
                ),
            ),
            Case(
                "no rows",
                (0, 8, 4, 1, 3),
                "Nothing to train on takes no step.",
                expected=0,
                mistakes=(
                    Mistake(
                        lambda got: got < 0,
                        "A negative number of steps: an estimate that subtracts a safety margin does that.",
                    ),
                    Mistake(3, "At least one step an epoch? Not without rows."),
                ),
            ),
        ),
    ),
    Exercise(
        "6.8",
        "seconds of a run",
        run_seconds,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "How many operations has the run, and how many the measured step? Which of the two trained all weights?",
            "Operations: 4 or 6 for each weight and token. The guess is that over the rate. The measured step took longer "
            "than its own guess, by some factor; the run will, too.",
        ),
        lesson="How long will it take?",
        cases=(
            Case(
                "frozen weights",
                (10, 300, 500.0, True, (20, 4.8)),
                "4 x 10 x 300 operations at 500 a second; the step of 20 tokens should have taken 2.4 s and took 4.8.",
                expected=(24.0, 48.0),
                mistakes=(
                    Mistake(
                        lambda got: isinstance(got, float),
                        "Two numbers are asked for: the guess and the corrected one.",
                    ),
                    Mistake(
                        lambda got: got[0] == 36.0,
                        "Frozen weights have no gradients of their own: 4 operations for each, not 6.",
                    ),
                    Mistake(
                        lambda got: got == (24.0, 72.0),
                        "The measured step trained all weights: 6 operations each, whatever the run does.",
                    ),
                    Mistake(
                        lambda got: got == (24.0, 12.0),
                        "The wrong way round: the step took twice its guess, so the run takes longer, too.",
                    ),
                    Mistake(
                        lambda got: got == (24.0, 24.0),
                        "Nothing is corrected: hold the measured step against its own guess.",
                    ),
                    Mistake(
                        lambda got: got[0] == 12_000.0,
                        "Those are operations: seconds are operations over operations a second.",
                    ),
                    Mistake(
                        lambda got: got == (48.0, 24.0),
                        "First the guess, then the corrected one.",
                    ),
                ),
            ),
            Case(
                "all weights",
                (7, 100, 400.0, False, (10, 0.525)),
                "6 x 7 x 100 operations at 400 a second; the step of 10 tokens should have taken 1.05 s and took half of it.",
                expected=(10.5, 5.25),
                mistakes=(
                    Mistake(
                        lambda got: got[0] == 7.0, "All weights are trained here: 6 operations for each."
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "6.9",
        "batches with little padding",
        my_batches,
        level="stretch",
        difficulty=4,
        importance=3,
        minutes=25,
        hints=(
            "Sorting by length takes nearly all padding away. What does it take away besides?",
            "Shuffle the rows with a generator of the seed, sort them by length (equal lengths stay shuffled), cut them into "
            "batches, and shuffle the batches.",
        ),
        lesson="From lengths to steps",
        run=_played,
        cases=(
            Case(
                "240 chats, batches of 8",
                lambda: (long_tailed(240), 8, 5),
                f"At most {MOST_PADDING:.0%} padding, every row once, in as few batches as they fill.",
                compare=_batches_problem,
                mistakes=(
                    Mistake(
                        lambda got: not got["rows"],
                        "A row is missing, or there twice: over an epoch each is trained on once.",
                    ),
                    Mistake(
                        lambda got: got["batches"] > 30,
                        "Too many batches: without padding, and with an optimizer step for a few rows each. 240 rows fill 30.",
                    ),
                    Mistake(
                        lambda got: got["largest"] > 8,
                        "A batch has more rows than batch_size.",
                    ),
                    Mistake(
                        lambda got: not got["same seed, same batches"],
                        "The same seed gives other batches: a run couldn't be repeated or resumed.",
                    ),
                    Mistake(
                        lambda got: got["padding"] > MOST_PADDING,
                        "Rows of very different lengths share a batch: let neighbours be alike.",
                    ),
                    Mistake(
                        lambda got: got["short rows first"],
                        "Training would see the short rows first and the long ones last, in every run: shuffle the batches.",
                    ),
                    Mistake(
                        lambda got: not got["other seed, other neighbours"],
                        "The same rows share a batch in every epoch: rows of equal length can change places.",
                    ),
                ),
            ),
            Case(
                "a last batch that isn't full",
                lambda: ([4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4], 3, 11),
                "11 rows fill 4 batches of at most 3.",
                compare=_batches_problem,
            ),
        ),
    ),
)
