"""onegpu: fine-tune a language model on one small GPU, with every byte and every token accounted for.

Importing the package is instant: each module loads what it needs when it is imported itself. Whoever knows a
topic's name knows its module: ``onegpu.token_counting`` belongs to ``course/06_token_counting.ipynb``.
"""

__version__ = "0.1.0"
