"""SFT data sets: from rows of any format to token ids whose every supervised token is meant.

Read it in this order: ``formats`` (rows to messages), ``templates`` (messages to text, and which characters
are supervised), ``tokenization`` (text to ids and labels); then ``readers``, ``validation``, ``normalisation``,
``duplicates``, ``figures`` and ``tables``.
"""

from onegpu.sft_datasets.duplicates import (
    Duplicates,
    Pair,
    deduplicate,
    find_duplicates,
    find_leakage,
    normalise_text,
    similarity,
)
from onegpu.sft_datasets.figures import (
    Lengths,
    PackingFigures,
    Profile,
    answer_type,
    first_word,
    packing_figures,
    profile,
    script_of,
)
from onegpu.sft_datasets.formats import Example, Message, Problem, RowError, format_of, to_example
from onegpu.sft_datasets.normalisation import Normalised, normalise
from onegpu.sft_datasets.readers import read_rows
from onegpu.sft_datasets.tables import to_dataset
from onegpu.sft_datasets.templates import Rendered, render
from onegpu.sft_datasets.tokenization import (
    IGNORE,
    Tokenized,
    TokenizedSet,
    collate,
    supervised_mask,
    tokenize,
    tokenize_rows,
)
from onegpu.sft_datasets.validation import ValidationReport, validate

__all__ = [
    "IGNORE",
    "Duplicates",
    "Example",
    "Lengths",
    "Message",
    "Normalised",
    "PackingFigures",
    "Pair",
    "Problem",
    "Profile",
    "Rendered",
    "RowError",
    "Tokenized",
    "TokenizedSet",
    "ValidationReport",
    "answer_type",
    "collate",
    "deduplicate",
    "find_duplicates",
    "find_leakage",
    "first_word",
    "format_of",
    "normalise",
    "normalise_text",
    "packing_figures",
    "profile",
    "read_rows",
    "render",
    "script_of",
    "similarity",
    "supervised_mask",
    "to_dataset",
    "to_example",
    "tokenize",
    "tokenize_rows",
    "validate",
]
