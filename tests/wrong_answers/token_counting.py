"""What people hand in for the exercises of lab 06."""

import itertools
import math
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 6.1 ------------------------------------------------------------------------------------------------------------------


@wrong("6.1", "takes the ends", case="five rows", says="ends of the rows")
def ends(offsets):
    return offsets[1:]


@wrong("6.1", "one length an offset", case="five rows", says="Six offsets are five rows")
def with_first(offsets):
    return [offsets[0], *np.diff(offsets).tolist()]


@wrong("6.1", "begin minus end", case="five rows", says="turned round")
def negative(offsets):
    return np.asarray(offsets)[:-1] - np.asarray(offsets)[1:]


@wrong("6.1", "forgets the last row", case="five rows", says="last row is missing")
def without_last(offsets):
    return [offsets[i + 1] - offsets[i] for i in range(len(offsets) - 2)]


@wrong("6.1", "begins at 0", case="a slice that begins at 3", says="taken to begin at 0")
def from_zero(offsets):
    return np.diff(offsets[1:], prepend=0)


@wrong("6.1", "moves the offsets", case="a slice that begins at 3", says="taken to begin at 0")
def counted_from_zero(offsets):
    lengths, begin = [], 0
    for end in offsets[1:]:
        lengths.append(end - begin)
        begin = end
    return lengths


@wrong("6.1", "leaves out empty rows", case="an empty row in the middle", says="It is a row all the same")
def without_empty(offsets):
    return [int(n) for n in np.diff(offsets) if n]


@wrong("6.1", "invents a row", case="no rows", says="One offset is no row")
def at_least_one(offsets):
    return np.diff(offsets).tolist() or [0]


@right("6.1", "numpy")
def by_diff(offsets):
    return np.diff(offsets)


@right("6.1", "pairs")
def by_pairs(offsets):
    return [end - begin for begin, end in itertools.pairwise(offsets)]


@right("6.1", "slices of an array, as a tuple")
def by_slices(offsets):
    offsets = np.array(offsets)
    return tuple(offsets[1:] - offsets[:-1])


# 6.2 ------------------------------------------------------------------------------------------------------------------


def cut_lengths(array, max_length):
    lengths = pc.list_value_length(array)
    return lengths if max_length is None else pc.min_element_wise(lengths, max_length, skip_nulls=False)


@wrong("6.2", "cuts nothing", case="three rows, at most 2", says="Nothing is cut")
def uncut(array, max_length=None):
    return pc.sum(pc.list_value_length(array), min_count=0).as_py()


@wrong("6.2", "drops long rows", case="three rows, at most 2", says="is cut: 2 of its tokens stay")
def dropped(array, max_length=None):
    return sum(len(row) for row in array.to_pylist() if row and (not max_length or len(row) <= max_length))


@wrong("6.2", "returns a scalar", case="three rows, at most 2", says=".as_py()")
def scalar(array, max_length=None):
    return pc.sum(cut_lengths(array, max_length), min_count=0)


@wrong("6.2", "the limit None", case="no limit", says="leave the limit out")
def limit_is_null(array, max_length=None):
    lengths = pc.list_value_length(array)
    return pc.sum(pc.min_element_wise(lengths, pa.scalar(max_length, pa.int64()), skip_nulls=False)).as_py()


@wrong("6.2", "0 is no limit", case="a limit of 0", says="0 is a limit like any other")
def zero_cuts_nothing(array, max_length=None):
    return pc.sum(cut_lengths(array, max_length or None), min_count=0).as_py()


@wrong(
    "6.2", "the row before the slice", case="a slice without the first row", says="The row before the slice"
)
def all_offsets(array, max_length=None):
    offsets = np.frombuffer(array.buffers()[1], np.int32)[: array.offset + len(array) + 1]
    return int(np.minimum(np.diff(offsets), np.inf if max_length is None else max_length).sum())


@wrong("6.2", "a null row as long as the limit", case="a null row", says="skip_nulls=False")
def nulls_skipped(array, max_length=None):
    lengths = pc.list_value_length(array)
    if max_length is not None:
        lengths = pc.min_element_wise(lengths, max_length)
    return pc.sum(lengths, min_count=0).as_py()


@wrong("6.2", "a loop without null", case="a null row", says="leave it out of the sum")
def loop(array, max_length=None):
    return sum(len(row[:max_length]) for row in array.to_pylist())


@wrong("6.2", "null is one token", case="a null row", says="It has none")
def null_is_one(array, max_length=None):
    return sum(1 if row is None else len(row[:max_length]) for row in array.to_pylist())


@wrong("6.2", "differences of offsets", case="values behind a null row", says="that are nobody's")
def differences(array, max_length=None):
    lengths = np.diff(array.offsets.to_numpy())
    return int(np.minimum(lengths, lengths if max_length is None else max_length).sum())


@wrong("6.2", "sum of nothing", case="no rows", says="min_count=0")
def nothing(array, max_length=None):
    return pc.sum(cut_lengths(array, max_length)).as_py()


@right("6.2", "min_element_wise")
def by_length(array, max_length=None):
    return pc.sum(cut_lengths(array, max_length)).as_py() or 0


@right("6.2", "numpy")
def by_numpy_lengths(array, max_length=None):
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    return int(lengths.sum() if max_length is None else np.minimum(lengths, max_length).sum())


@right("6.2", "a loop")
def by_loop(array, max_length=None):
    return sum(len((row or [])[:max_length]) for row in array.to_pylist())


# 6.3 ------------------------------------------------------------------------------------------------------------------


def teaching(labels, mask):
    lengths = pc.list_value_length(labels).fill_null(0).to_numpy()
    return len(np.unique(np.repeat(np.arange(len(labels)), lengths)[np.asarray(mask.fill_null(False))]))


def learned(labels, ignore_index):
    return pc.not_equal(pc.list_flatten(labels), ignore_index)


def total(mask):
    return pc.sum(mask, min_count=0).as_py()


@wrong("6.3", "counts the masked", case="three rows", says="masked ones")
def masked(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return total(pc.invert(mask)), len(labels) - teaching(labels, mask)


@wrong("6.3", "counts all", case="three rows", says="all labels")
def all_labels(labels, ignore_index=-100):
    return len(labels.flatten()), sum(not row for row in labels.to_pylist())


@wrong("6.3", "loses the label 0", case="three rows", says="The label 0 is lost")
def truthy(labels, ignore_index=-100):
    rows = [sum(bool(v) and v != ignore_index for v in row or []) for row in labels.to_pylist()]
    return sum(rows), rows.count(0)


@wrong("6.3", "the rows that teach", case="three rows", says="count the others")
def rows_that_teach(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return total(mask), teaching(labels, mask)


@wrong("6.3", "turned round", case="three rows", says="first the labels")
def rows_first(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return len(labels) - teaching(labels, mask), total(mask)


@wrong("6.3", "returns a scalar", case="three rows", says=".as_py()")
def supervised_scalar(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return pc.sum(mask, min_count=0), len(labels) - teaching(labels, mask)


@wrong("6.3", "counts in .values", case="a slice without the first row", says="only moves a window")
def supervised_values(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    values = labels.values.to_numpy(zero_copy_only=False)
    return int((values != ignore_index).sum()), len(labels) - teaching(labels, mask)


@wrong("6.3", "-100 in the code", case="another ignore_index", says="parameter")
def fixed(labels, ignore_index=-100):
    mask = learned(labels, -100)
    return total(mask), len(labels) - teaching(labels, mask)


@wrong("6.3", "nan != -100", case="null labels", says="nan != -100")
def by_numpy(labels, ignore_index=-100):
    mask = labels.flatten().to_numpy(zero_copy_only=False) != ignore_index
    return int(mask.sum()), len(labels) - teaching(labels, pa.array(mask))


@wrong("6.3", "loops over a null row", case="a null row and an empty one", says="flatten first")
def rows_loop(labels, ignore_index=-100):
    rows = [sum(v not in (None, ignore_index) for v in row) for row in labels.to_pylist()]
    return sum(rows), rows.count(0)


@wrong("6.3", "only rows with labels", case="a null row and an empty one", says="from all rows")
def rows_with_labels(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return total(mask), sum(bool(row) for row in labels.to_pylist()) - teaching(labels, mask)


@wrong("6.3", "parent indices", case="values behind a null row", says="list_parent_indices doesn't")
def parents(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    rows = pc.list_parent_indices(labels).filter(mask)
    return total(mask), len(labels) - len(rows.unique())


@wrong("6.3", "sum of nothing", case="no rows", says="min_count=0")
def sum_of_nothing(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return pc.sum(mask).as_py(), len(labels) - teaching(labels, mask)


@right("6.3", "numbers of rows")
def flat(labels, ignore_index=-100):
    mask = learned(labels, ignore_index)
    return total(mask) or 0, len(labels) - teaching(labels, mask)


@right("6.3", "a loop, as a list")
def flat_loop(labels, ignore_index=-100):
    rows = [sum(v is not None and v != ignore_index for v in row or []) for row in labels.to_pylist()]
    return [sum(rows), rows.count(0)]


@right("6.3", "row by row in Arrow")
def counted_by_row(labels, ignore_index=-100):
    counts = [0 if row.values is None else total(pc.not_equal(row.values, ignore_index)) for row in labels]
    return sum(counts), counts.count(0)


# 6.4 ------------------------------------------------------------------------------------------------------------------


def in_table(table):
    tokens = pc.sum(pc.list_value_length(table["input_ids"]), min_count=0).as_py()
    supervised = pc.sum(pc.not_equal(pc.list_flatten(table["labels"]), -100), min_count=0).as_py()
    return tokens, supervised


@wrong("6.4", "the table below", case="select([0, 2, 4])", says="the table below the data set")
def table_below(dataset):
    return in_table(dataset.data.table)


@wrong("6.4", "labels from the table", case="select([0, 2, 4])", says="labels aren't")
def before_3711(dataset):
    return sum(map(len, dataset["input_ids"][:])), in_table(dataset.data.table)[1]


@wrong("6.4", "turned round", case="the whole data set", says="first all tokens")
def turned(dataset):
    return in_table(dataset.with_format("arrow")[:])[::-1]


@wrong("6.4", "each row once", case="the same row thrice", says="counted once")
def distinct(dataset):
    rows = {tuple(row["input_ids"]): row["labels"] for row in dataset}
    return sum(map(len, rows)), sum(v != -100 for labels in rows.values() for v in labels)


@wrong(
    "6.4",
    "the whole table when nothing is left",
    case="a filter that keeps nothing",
    says="the table below the data set",
)
def or_all(dataset):
    return in_table(dataset.with_format("arrow")[:] if len(dataset) else dataset.data.table)


@wrong("6.4", "None for nothing", case="a filter that keeps nothing", says="begin with 0")
def none_for_nothing(dataset):
    return in_table(dataset.with_format("arrow")[:]) if len(dataset) else None


@wrong("6.4", "the first batch", case="2,500 rows, shuffled", says="over all batches")
def first_batch(dataset):
    return in_table(next(iter(dataset.with_format("arrow").iter(1024)), dataset.with_format("arrow")[:]))


@wrong("6.4", "full batches only", case="2,500 rows, shuffled", says="the last short one too")
def full_batches(dataset):
    if len(dataset) < 1024:
        return in_table(dataset.with_format("arrow")[:])
    counts = [in_table(t) for t in dataset.with_format("arrow").iter(1024, drop_last_batch=True)]
    return tuple(map(sum, zip(*counts, strict=True)))


@right("6.4", "Arrow batches")
def batches(dataset):
    tokens = supervised = 0
    for table in dataset.with_format("arrow").iter(1000):
        more = in_table(table)
        tokens, supervised = tokens + more[0], supervised + more[1]
    return tokens, supervised


@right("6.4", "a loop")
def python_loop(dataset):
    tokens = supervised = 0
    for row in dataset:
        tokens += len(row["input_ids"])
        supervised += sum(label not in (-100, None) for label in row["labels"])
    return tokens, supervised


@right("6.4", "all rows at once")
def at_once(dataset):
    return in_table(dataset.with_format("arrow")[:])


# 6.5 ------------------------------------------------------------------------------------------------------------------


@wrong("6.5", "five offsets", case="five rows, 15 tokens, int32", says="six offsets")
def an_offset_a_row(rows, tokens, value_bits, offset_bits=32):
    return (rows * offset_bits + tokens * value_bits) // 8


@wrong("6.5", "values alone", case="five rows, 15 tokens, int32", says="offsets take bytes too")
def values_alone(rows, tokens, value_bits, offset_bits=32):
    return tokens * value_bits // 8


@wrong("6.5", "bits", case="five rows, 15 tokens, int32", says="8 of them make a byte")
def bits(rows, tokens, value_bits, offset_bits=32):
    return (rows + 1) * offset_bits + tokens * value_bits


@wrong("6.5", "a float", case="five rows, 15 tokens, int32", says="whole numbers")
def as_float(rows, tokens, value_bits, offset_bits=32):
    return ((rows + 1) * offset_bits + tokens * value_bits) / 8


@wrong("6.5", "offsets as wide as values", case="the same as int64", says="only the values")
def wide_offsets(rows, tokens, value_bits, offset_bits=32):
    return (rows + 1 + tokens) * value_bits // 8


@wrong("6.5", "4 bytes in the code", case="offsets of 64 bits", says="parameter")
def four_bytes(rows, tokens, value_bits, offset_bits=32):
    return (rows + 1) * 4 + tokens * value_bits // 8


@wrong("6.5", "nothing for no rows", case="no rows", says="first offset")
def nothing_at_all(rows, tokens, value_bits, offset_bits=32):
    return ((rows + 1) * offset_bits + tokens * value_bits) // 8 if rows else 0


@right("6.5", "two sums")
def two_sums(rows, tokens, value_bits, offset_bits=32):
    return (rows + 1) * (offset_bits // 8) + tokens * (value_bits // 8)


@right("6.5", "rounded up")
def rounded_up(rows, tokens, value_bits, offset_bits=32):
    return -(-((rows + 1) * offset_bits + tokens * value_bits) // 8)


@right("6.5", "numpy")
def by_numpy_types(rows, tokens, value_bits, offset_bits=32):
    return (
        np.dtype(f"int{offset_bits}").itemsize * (rows + 1) + np.dtype(f"int{value_bits}").itemsize * tokens
    )


# 6.6 ------------------------------------------------------------------------------------------------------------------


@wrong("6.6", "longest of all", case="batches of equal rows", says="a longest row of its own")
def longest_of_all(lengths, batch_size):
    return 1 - sum(lengths) / (max(lengths) * len(lengths))


@wrong("6.6", "share of real tokens", case="batches of equal rows", says="1 minus it")
def real(lengths, batch_size):
    return sum(lengths) / computed(lengths, batch_size)


@wrong("6.6", "of the real tokens", case="batches of unequal rows", says="all computed tokens")
def of_real(lengths, batch_size):
    return computed(lengths, batch_size) / sum(lengths) - 1


@wrong("6.6", "sorts first", case="batches of unequal rows", says="Keep the order")
def sorted_first(lengths, batch_size):
    return share(sorted(lengths), batch_size)


@wrong("6.6", "tokens instead of a share", case="batches of unequal rows", says="between 0 and 1")
def padding_tokens(lengths, batch_size):
    return computed(lengths, batch_size) * (computed(lengths, batch_size) > sum(lengths))


@wrong("6.6", "full last batch", case="a last batch that isn't full", says="one row, not batch_size")
def full_last(lengths, batch_size):
    room = sum(max(lengths[i : i + batch_size]) * batch_size for i in range(0, len(lengths), batch_size))
    return 1 - sum(lengths) / room


@wrong("6.6", "drops the last batch", case="a last batch that isn't full", says="left out")
def drops_last(lengths, batch_size):
    whole = lengths[: len(lengths) // batch_size * batch_size]
    return share(whole, batch_size)


@wrong("6.6", "divides by nothing", case="no rows", says="don't divide")
def divides(lengths, batch_size):
    return 1 - sum(lengths) / computed(lengths, batch_size)


def computed(lengths, batch_size):
    total = 0
    for i in range(0, len(lengths), batch_size):
        batch = lengths[i : i + batch_size]
        total += max(batch) * len(batch)
    return total


@right("6.6", "a loop")
def share(lengths, batch_size):
    total = computed(lengths, batch_size)
    return (total - sum(lengths)) / total if total else 0.0


@right("6.6", "counts the padding")
def counts_padding(lengths, batch_size):
    padding = real = 0
    for i in range(0, len(lengths), batch_size):
        batch = lengths[i : i + batch_size]
        padding += sum(max(batch) - n for n in batch)
        real += sum(batch)
    return padding / max(1, padding + real)


@right("6.6", "numpy")
def by_maximum(lengths, batch_size):
    if not lengths:
        return 0.0
    starts = np.arange(0, len(lengths), batch_size)
    total = np.maximum.reduceat(lengths, starts) @ np.diff(starts, append=len(lengths))
    return float(1 - sum(lengths) / total)


# 6.7 ------------------------------------------------------------------------------------------------------------------


@wrong("6.7", "rounds down", case="20 rows, batches of 3", says="round up")
def floor(rows, batch_size, accumulation, world_size, epochs):
    return int(rows // batch_size // accumulation // world_size * epochs)


@wrong("6.7", "a float", case="20 rows, batches of 3", says="whole numbers")
def float_steps(rows, batch_size, accumulation, world_size, epochs):
    return rows / batch_size / accumulation / world_size * epochs


@wrong("6.7", "drops the last short step", case="two batches to a step", says="a step of its own")
def drops_short_step(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(math.ceil(math.ceil(rows / batch_size) / world_size) // accumulation * epochs)


@wrong("6.7", "multiplies by accumulation", case="two batches to a step", says="fewer steps")
def multiplies(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(math.ceil(rows / batch_size) * accumulation / world_size * epochs)


@wrong("6.7", "epochs run together", case="three epochs", says="end of an epoch")
def together(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(rows * epochs / (batch_size * accumulation * world_size))


@wrong("6.7", "forgets the epochs", case="three epochs", says="epochs are missing")
def no_epochs(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(math.ceil(math.ceil(rows / batch_size) / world_size) / accumulation)


@wrong("6.7", "forgets the GPUs", case="four GPUs", says="a batch of its own")
def no_world(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(math.ceil(math.ceil(rows / batch_size) / accumulation) * epochs)


@wrong("6.7", "rounds the epochs down", case="half an epoch", says="round up at the end too")
def int_at_the_end(rows, batch_size, accumulation, world_size, epochs):
    return int(no_epochs(rows, batch_size, accumulation, world_size, epochs) * epochs)


@wrong("6.7", "a safety margin", case="no rows", says="safety margin")
def margin(rows, batch_size, accumulation, world_size, epochs):
    return exact(rows, batch_size, accumulation, world_size, epochs) if rows else -3


@wrong("6.7", "at least one step", case="no rows", says="Not without rows")
def at_least_one_step(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(max(1, no_epochs(rows, batch_size, accumulation, world_size, 1)) * epochs)


@right("6.7", "three times ceil")
def exact(rows, batch_size, accumulation, world_size, epochs):
    batches = math.ceil(rows / batch_size)
    return math.ceil(math.ceil(math.ceil(batches / world_size) / accumulation) * epochs)


@right("6.7", "one ceil for the epoch")
def one_ceil(rows, batch_size, accumulation, world_size, epochs):
    return math.ceil(-(-rows // (batch_size * accumulation * world_size)) * epochs)


@right("6.7", "without floats")
def without_floats(rows, batch_size, accumulation, world_size, epochs):
    steps = rows
    for size in (batch_size, world_size, accumulation):
        steps = (steps + size - 1) // size
    return math.ceil(steps * epochs)


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("6.4", "null labels count", case="a null label", says="Count as in 6.3")
def null_labels(dataset):
    t = s = 0
    for r in dataset:
        t += len(r["input_ids"] or [])
        s += sum(v != -100 for v in (r["labels"] or []))
    return t, s


@wrong("6.4", "changes the data set's format", case="the whole data set", says="changes its input")
def sets_format(dataset):
    dataset.set_format("arrow")
    tokens = supervised = 0
    for table in dataset.iter(batch_size=1024):
        tokens += pc.sum(pc.list_value_length(table["input_ids"]), min_count=0).as_py()
        supervised += pc.sum(pc.not_equal(pc.list_flatten(table["labels"]), -100), min_count=0).as_py()
    return tokens, supervised


ANSWERS.equivalent(
    "6.2",
    "the smaller of two is the same in either order",
    "pc.min_element_wise(lengths, max_length, skip_nulls=False) -> "
    "pc.min_element_wise(max_length, lengths, skip_nulls=False)",
)
ANSWERS.equivalent(
    "6.3",
    "numpy takes an Arrow array as it is",
    "np.asarray(learned.fill_null(False)) -> learned.fill_null(False)",
)
ANSWERS.equivalent("6.4", "any size of a batch gives the same sums", "1024 -> 1025", "1024 -> 1023")
ANSWERS.equivalent(
    "6.7",
    "rounding up once is enough before rounding up again: ceil(ceil(x) / n) is ceil(x / n)",
    "math.ceil(rows / batch_size) -> rows / batch_size",
    "math.ceil(batches / world_size) -> batches / world_size",
)
ANSWERS.statements(
    "6.1",
    {
        "the length": ends,
        "of each row, one fewer than offsets": with_first,
        "where it ends minus where it begins": negative,
        "the last row too": without_last,
        "in a slice too": from_zero,
        "an empty row is a row": without_empty,
        "no rows": at_least_one,
    },
)
ANSWERS.statements(
    "6.2",
    {
        "cut to max_length": uncut,
        "not dropped": dropped,
        "an int": scalar,
        "None: nothing is cut": limit_is_null,
        "0 or more": zero_cuts_nothing,
        "of this slice": all_offsets,
        "not what lies behind a null row": differences,
        "null rows have none": null_is_one,
        "whatever the limit": nulls_skipped,
        "and don't fail": loop,
        "no rows, 0": nothing,
    },
)
ANSWERS.statements(
    "6.3",
    {
        "not ignore_index": masked,
        "only labels that aren't": all_labels,
        "rows without": rows_that_teach,
        "(labels, rows)": rows_first,
        "ints": supervised_scalar,
        "of this slice": supervised_values,
        "ignore_index is a parameter": fixed,
        "nor null": by_numpy,
        "0 is a label": truthy,
        "null rows": rows_loop,
        "null and empty rows are rows without": rows_with_labels,
        "not what lies behind a null row": parents,
        "no rows, (0, 0)": sum_of_nothing,
    },
)
ANSWERS.statements(
    "6.4",
    {
        "through the mapping": table_below,
        "both columns": before_3711,
        "(tokens, supervised)": turned,
        "a row as often as it is named": distinct,
        "nothing left is nothing": or_all,
        "two ints": none_for_nothing,
        "all batches": first_batch,
        "the short one too": full_batches,
        "null labels aren't supervised": null_labels,
        "the data set stays as it is": sets_format,
    },
)
ANSWERS.statements(
    "6.5",
    {
        "one offset more than rows": an_offset_a_row,
        "offsets": values_alone,
        "bytes": bits,
        "an int": as_float,
        "offsets don't grow with the values": wide_offsets,
        "offset_bits": four_bytes,
        "no rows": nothing_at_all,
    },
)
ANSWERS.statements(
    "6.6",
    {
        "to its own longest row": longest_of_all,
        "padding": real,
        "of the computed tokens": of_real,
        "in the order of the rows": sorted_first,
        "a share": padding_tokens,
        "the last batch may have fewer rows": full_last,
        "and counts": drops_last,
        "0.0 where there are no rows": divides,
    },
)
ANSWERS.statements(
    "6.7",
    {
        "a short batch is done": floor,
        "int": float_steps,
        "a short step is done": drops_short_step,
        "a step takes accumulation batches": multiplies,
        "steps don't reach over the end of an epoch": together,
        "epochs": no_epochs,
        "on each of world_size GPUs": no_world,
        "after a whole step": int_at_the_end,
        "never below 0": margin,
        "no rows, no step": at_least_one_step,
    },
)

# 6.8 ------------------------------------------------------------------------------------------------------------------

FROZEN = "frozen weights"


@wrong("6.8", "the guess alone", case=FROZEN, says="Two numbers")
def guess_alone(weights, tokens, rate, frozen, probe):
    return (4 if frozen else 6) * weights * tokens / rate


@wrong("6.8", "always 6", case=FROZEN, says="4 operations for each")
def six_always(weights, tokens, rate, frozen, probe):
    guessed = 6 * weights * tokens / rate
    return guessed, probe[1] * tokens / probe[0]


@wrong("6.8", "always 4", case="all weights", says="6 operations for each")
def four_always(weights, tokens, rate, frozen, probe):
    return 4 * weights * tokens / rate, probe[1] * 4 * tokens / (6 * probe[0])


@wrong("6.8", "seconds a token of the step", case=FROZEN, says="6 operations each")
def step_is_frozen(weights, tokens, rate, frozen, probe):
    return (4 if frozen else 6) * weights * tokens / rate, probe[1] * tokens / probe[0]


@wrong("6.8", "corrected the wrong way", case=FROZEN, says="wrong way round")
def turned_correction(weights, tokens, rate, frozen, probe):
    guessed = (4 if frozen else 6) * weights * tokens / rate
    return guessed, guessed * (6 * weights * probe[0] / rate) / probe[1]


@wrong("6.8", "not corrected", case=FROZEN, says="Nothing is corrected")
def uncorrected(weights, tokens, rate, frozen, probe):
    guessed = (4 if frozen else 6) * weights * tokens / rate
    return guessed, guessed


@wrong("6.8", "operations", case=FROZEN, says="Those are operations")
def operations(weights, tokens, rate, frozen, probe):
    return float((4 if frozen else 6) * weights * tokens), 48.0


@wrong("6.8", "turned round", case=FROZEN, says="First the guess")
def corrected_first(weights, tokens, rate, frozen, probe):
    each = 4 if frozen else 6
    return probe[1] * each * tokens / (6 * probe[0]), each * weights * tokens / rate


@right("6.8", "by proportion")
def by_proportion(weights, tokens, rate, frozen, probe):
    each = 4 if frozen else 6
    return each * weights * tokens / rate, probe[1] * each * tokens / (6 * probe[0])


@right("6.8", "with a corrected rate")
def corrected_rate(weights, tokens, rate, frozen, probe):
    work = (4 if frozen else 6) * weights * tokens
    reached = 6 * weights * probe[0] / probe[1]
    return work / rate, work / reached


@right("6.8", "if by if")
def seconds_by_if(weights, tokens, rate, frozen, probe):
    work = 2 * weights * tokens + 2 * weights * tokens
    if not frozen:
        work += 2 * weights * tokens
    slower = probe[1] / (weights * probe[0] * 6 / rate)
    return work / rate, work / rate * slower


ANSWERS.statements(
    "6.8",
    {
        "guessed and corrected": guess_alone,
        "frozen weights": six_always,
        "all weights": four_always,
        "the probe trained all weights": step_is_frozen,
        "corrected by the measured step": turned_correction,
        "corrected": uncorrected,
        "seconds": operations,
        "in this order": corrected_first,
    },
)

# 6.9 ------------------------------------------------------------------------------------------------------------------

CHATS = "240 chats, batches of 8"


def cut(rows, size):
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def short_to_long(lengths, seed=None):
    rows = list(range(len(lengths)))
    if seed is not None:
        random.Random(seed).shuffle(rows)
    return sorted(rows, key=lambda row: lengths[row])


def in_any_order(batches, seed):
    random.Random(seed).shuffle(batches)
    return batches


@wrong("6.9", "shuffled only", case=CHATS, says="very different lengths")
def only_shuffled(lengths, batch_size, seed):
    return cut(in_any_order(list(range(len(lengths))), seed), batch_size)


@wrong("6.9", "sorted only", case=CHATS, says="short rows first")
def only_sorted(lengths, batch_size, seed):
    return cut(short_to_long(lengths), batch_size)


@wrong("6.9", "batches shuffled, rows not", case=CHATS, says="share a batch in every epoch")
def same_neighbours(lengths, batch_size, seed):
    return in_any_order(cut(short_to_long(lengths), batch_size), seed)


@wrong("6.9", "one row a batch", case=CHATS, says="Too many batches")
def one_row_each(lengths, batch_size, seed):
    return in_any_order(cut(short_to_long(lengths, seed), 1), seed)


@wrong("6.9", "no seed", case=CHATS, says="couldn't be repeated")
def without_seed(lengths, batch_size, seed):
    return in_any_order(cut(short_to_long(lengths, random.random()), batch_size), random.random())


@wrong("6.9", "drops the longest", case=CHATS, says="missing, or there twice")
def drops_long(lengths, batch_size, seed):
    return in_any_order(cut(short_to_long(lengths, seed)[:-3], batch_size), seed)


@wrong("6.9", "larger batches", case=CHATS, says="more rows than batch_size")
def larger(lengths, batch_size, seed):
    return in_any_order(cut(short_to_long(lengths, seed), 2 * batch_size), seed)


@wrong("6.9", "drops the short batch", case="a last batch that isn't full", says="11 rows fill 4")
def drops_short(lengths, batch_size, seed):
    batches = cut(short_to_long(lengths, seed), batch_size)
    return in_any_order([b for b in batches if len(b) == batch_size], seed)


@right("6.9", "numpy")
def batches_by_numpy(lengths, batch_size, seed):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(lengths))
    rows = rows[np.argsort(np.asarray(lengths)[rows], kind="stable")].tolist()
    batches = cut(rows, batch_size)
    return [batches[i] for i in rng.permutation(len(batches))]


@right("6.9", "a little noise on the lengths")
def with_noise(lengths, batch_size, seed):
    chance = random.Random(seed)
    noisy = [length * chance.uniform(0.97, 1.03) for length in lengths]
    return in_any_order(cut(short_to_long(noisy), batch_size), seed)


@right("6.9", "sorted with a random second key")
def second_key(lengths, batch_size, seed):
    chance = random.Random(seed)
    keyed = sorted((length, chance.random(), row) for row, length in enumerate(lengths))
    batches = cut([row for *_, row in keyed], batch_size)
    return chance.sample(batches, len(batches))


ANSWERS.statements(
    "6.9",
    {
        "little padding": only_shuffled,
        "the order isn't that of the lengths": only_sorted,
        "so do the neighbours": same_neighbours,
        "as few batches as they fill": one_row_each,
        "the same seed, the same batches": without_seed,
        "every row": drops_long,
        "at most batch_size": larger,
        "the last batch may be short": drops_short,
    },
)
