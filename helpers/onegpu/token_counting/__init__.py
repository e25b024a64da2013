"""Count the tokens of a data set, right and fast: from Arrow's offsets, without reading what isn't needed.

Three ideas carry it. A row's length is the difference of two offsets. Labels can be compared where they lie in the
memory-mapped file. And a ``datasets.Dataset`` is a table *and* an indices mapping: to count the table alone counts
rows that ``filter`` took out.

Read it in this order: ``counts`` (what comes out), ``columns`` (what a list column is in memory), ``counting`` (one piece),
``sources`` and ``files`` (where pieces come from), ``resident`` (why memory stays small); then ``steps`` (optimizer steps, padding,
packing), ``recipes`` (how others count), ``buffers`` (a look into a table's memory) and ``report`` (the command line).
"""

from onegpu.token_counting.columns import MissingColumn
from onegpu.token_counting.counts import TokenCounts
from onegpu.token_counting.report import TokenReport, report
from onegpu.token_counting.sources import count_tokens
from onegpu.token_counting.steps import TrainingSteps, training_steps

__all__ = [
    "MissingColumn",
    "TokenCounts",
    "TokenReport",
    "TrainingSteps",
    "count_tokens",
    "report",
    "training_steps",
]
