"""Take a model with you: merged, as a GGUF file, for Ollama, to the hub.

Nothing is called done before it was checked: a GGUF file is read back, its log-probabilities and its answers in
llama.cpp are compared with the merged model's in transformers, and only then does it get its name.

In order of reading: ``gguf_files`` (convert, quantize, read back), ``checks``, ``modelfile`` (Ollama), ``hub`` and
``exporting`` (one export from start to end).
"""

from onegpu.export.checks import Agreement, Answers, compare_answers, compare_logprobs
from onegpu.export.exporting import FORMATS, Exported, export
from onegpu.export.gguf_files import TYPES, GgufSummary, convert, quantize, read_back
from onegpu.export.hub import check_login, push
from onegpu.export.modelfile import Turns, find_turns, modelfile

__all__ = [
    "FORMATS",
    "TYPES",
    "Agreement",
    "Answers",
    "Exported",
    "GgufSummary",
    "Turns",
    "check_login",
    "compare_answers",
    "compare_logprobs",
    "convert",
    "export",
    "find_turns",
    "modelfile",
    "push",
    "quantize",
    "read_back",
]
