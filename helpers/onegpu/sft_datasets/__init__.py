"""SFT data sets: from rows of any format to token ids whose every supervised token is meant.

Read it in this order: `formats` (rows to messages), `templates` (messages to text, and which characters
are supervised), `tokenization` (text to ids and labels).
"""

from onegpu.sft_datasets.formats import Example, Message, Problem, RowError, format_of, to_example
from onegpu.sft_datasets.templates import Rendered, render
from onegpu.sft_datasets.tokenization import (
    IGNORE,
    Tokenized,
    TokenizedSet,
    supervised_mask,
    tokenize,
    tokenize_rows,
)

__all__ = [
    "IGNORE",
    "Example",
    "Message",
    "Problem",
    "Rendered",
    "RowError",
    "Tokenized",
    "TokenizedSet",
    "format_of",
    "render",
    "supervised_mask",
    "to_example",
    "tokenize",
    "tokenize_rows",
]
