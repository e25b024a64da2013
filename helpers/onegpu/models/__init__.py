"""The models of the course: a catalogue, loading, counting parameters, and tiny ones for tests.

>>> CATALOGUE["smollm2-135m"].parameters
134515008
"""

from onegpu.models.catalogue import CATALOGUE, CatalogueEntry, config, find
from onegpu.models.counting import ParameterCount, count_parameters
from onegpu.models.loading import Loaded, Source, fetch, load, load_tokenizer, locate, quantization_config
from onegpu.models.tiny import TINY_VOCAB_SIZE, tiny_model, tiny_tokenizer
from onegpu.models.wheel import ModelNotAvailable, cache_folder
from onegpu.models.whole import check_files

__all__ = [
    "CATALOGUE",
    "TINY_VOCAB_SIZE",
    "CatalogueEntry",
    "Loaded",
    "ModelNotAvailable",
    "ParameterCount",
    "Source",
    "cache_folder",
    "check_files",
    "config",
    "count_parameters",
    "fetch",
    "find",
    "load",
    "load_tokenizer",
    "locate",
    "quantization_config",
    "tiny_model",
    "tiny_tokenizer",
]
