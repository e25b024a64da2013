"""The models the course speaks of: where they are, what they may be used for, and their numbers.

The architecture numbers are enough to build a model's configuration without a network, so that memory and
parameter counts can be computed for models that nobody has to download. ``parameters`` is exact, counts tied
weights once, and is tested against the built model.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class CatalogueEntry:
    """One model: its names, licence, exact number of parameters, and configuration.

    ``parameters`` counts unique parameters (a tied output head once). ``revision`` is a commit on the hub, None
    where none is pinned. ``architecture`` holds keyword arguments of the transformers configuration class that
    belongs to ``model_type``.
    """

    name: str
    hub_id: str
    licence: str
    parameters: int
    model_type: str
    architecture: Mapping[str, Any] = field(repr=False)
    revision: str | None = None
    gated: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.hub_id}): {self.parameters:,} parameters, licence {self.licence}"

    def config(self) -> PretrainedConfig:
        """Build the transformers configuration, without a network."""
        from transformers import AutoConfig

        return AutoConfig.for_model(self.model_type, **self.architecture)


def _llama(
    layers, hidden, ffn, heads, kv, vocab, *, tied=False, context=4096, theta=10_000.0, eps=1e-5, **more
):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": context,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        **more,
    }


def _gpt2(layers, hidden, heads):
    return {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 50257, "n_positions": 1024}


def _polyglot(layers, hidden, ffn, heads, rotary=0.5):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "vocab_size": 30_080,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": rotary},
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _llama32(layers, hidden, ffn, heads, head_dim):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    numbers = _llama(layers, hidden, ffn, heads, 8, 128_256, tied=True, context=131_072, head_dim=head_dim)
    return {**numbers, "rope_parameters": rope, "bos_token_id": 128_000, "eos_token_id": 128_001}


def _smollm2(layers, hidden, ffn, heads, kv, theta=100_000.0):
    numbers = _llama(layers, hidden, ffn, heads, kv, 49_152, tied=True, context=8192, theta=theta)
    return {**numbers, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def _qwen(layers, hidden, ffn, heads, kv, *, tied, vocab=151_936, context=32_768, **more):
    return _llama(
        layers, hidden, ffn, heads, kv, vocab, tied=tied, context=context, theta=1e6, eps=1e-6, **more
    )


def _qwen3(layers, hidden, ffn, heads, *, tied):
    return _qwen(layers, hidden, ffn, heads, 8, tied=tied, context=40_960, head_dim=128)


def _gemma3(layers, hidden, ffn, heads, window, query_scalar):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262_144,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
        "sliding_window": window,
        "query_pre_attn_scalar": query_scalar,
    }


_LLAMA2, _LLAMA3, _LLAMA32 = "llama2", "llama3", "llama3.2"
_APACHE = "apache-2.0"

# Commits on the hub, where one is known from public records; the others load the latest.
_REVISIONS = {
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
    "smollm2-135m": "12fd25f77366fa6b3b4b768ec3050bf629380bac",
    "smollm2-360m": "a10cc1512eabd3dde888204e902eca88bddb4951",
    "smollm2-1.7b": "31b70e2e869a7173562077fd711b654946d38674",
    "tinyllama-1.1b": "fe8a4ea1ffedaf415f4da2f062534de366a451e6",
    "llama-2-7b": "01c7f73d771dfac7d292323805ebc428287df4f9",
    "llama-3-8b": "8cde5ca8380496c9a6cc7ef3a8b46a0372a1d920",
    "llama-3.2-1b": "4e20de362430cd3b72f300e6b0f18e50e7166e08",
    "mistral-7b-v0.1": "27d67f1b5f57dc0953326b2601d68371d40ea8da",
    "qwen2.5-0.5b": "060db6499f32faf8b98477b0a26969ef7d8b9987",
    "qwen2.5-1.5b": "8faed761d45a263340a0528343f099c05c9a4323",
    "qwen2.5-7b": "d149729398750b98c0af14eb82c78cfe92750796",
    "qwen3-0.6b": "c1899de289a04d12100db370d81485cdf75e47ca",
    "qwen3-1.7b": "70d244cc86ccca08cf5af4e1e306ecf908b1ad5e",
    "qwen3-4b": "1cfa9a7208912126459214e8b04321603b3df60c",
    "qwen3-8b": "b968826d9c46dd6066d109eabc6255188de91218",
    "gemma-3-270m": "9b0cfec892e2bc2afd938c98eabe4e4a7b1e0ca1",
}


def _row(name, hub_id, licence, parameters, model_type, architecture, gated=False):
    revision = _REVISIONS.get(name)
    return CatalogueEntry(name, hub_id, licence, parameters, model_type, architecture, revision, gated)


_ENTRIES = (
    _row("gpt2", "openai-community/gpt2", "mit", 124_439_808, "gpt2", _gpt2(12, 768, 12)),
    _row("gpt2-medium", "openai-community/gpt2-medium", "mit", 354_823_168, "gpt2", _gpt2(24, 1024, 16)),
    _row("gpt2-large", "openai-community/gpt2-large", "mit", 774_030_080, "gpt2", _gpt2(36, 1280, 20)),
    _row("gpt2-xl", "openai-community/gpt2-xl", "mit", 1_557_611_200, "gpt2", _gpt2(48, 1600, 25)),
    _row("polyglot-ko-1.3b", "EleutherAI/polyglot-ko-1.3b", _APACHE, 1_331_810_304, "gpt_neox",
       _polyglot(24, 2048, 8192, 16)),
    _row("polyglot-ko-3.8b", "EleutherAI/polyglot-ko-3.8b", _APACHE, 3_809_974_272, "gpt_neox",
       _polyglot(32, 3072, 12_288, 24)),
    _row("polyglot-ko-5.8b", "EleutherAI/polyglot-ko-5.8b", _APACHE, 5_885_059_072, "gpt_neox",
       _polyglot(28, 4096, 16_384, 16, rotary=0.25)),
    # The model card says 12,898,631,680; its own numbers give this.
    _row("polyglot-ko-12.8b", "EleutherAI/polyglot-ko-12.8b", _APACHE, 12_893_603_840, "gpt_neox",
       _polyglot(40, 5120, 20_480, 40)),
    _row("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", _APACHE, 134_515_008, "llama",
       _smollm2(30, 576, 1536, 9, 3)),
    _row("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", _APACHE, 361_821_120, "llama",
       _smollm2(32, 960, 2560, 15, 5)),
    _row("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", _APACHE, 1_711_376_384, "llama",
       _smollm2(24, 2048, 8192, 32, 32, theta=130_000.0)),
    _row("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", _APACHE, 1_100_048_384, "llama",
       _llama(22, 2048, 5632, 32, 4, 32_000, context=2048)),
    _row("llama-2-7b", "meta-llama/Llama-2-7b-hf", _LLAMA2, 6_738_415_616, "llama",
       _llama(32, 4096, 11_008, 32, 32, 32_000), gated=True),
    _row("llama-2-13b", "meta-llama/Llama-2-13b-hf", _LLAMA2, 13_015_864_320, "llama",
       _llama(40, 5120, 13_824, 40, 40, 32_000), gated=True),
    _row("llama-3-8b", "meta-llama/Meta-Llama-3-8B", _LLAMA3, 8_030_261_248, "llama",
       _llama(32, 4096, 14_336, 32, 8, 128_256, context=8192, theta=500_000.0, bos_token_id=128_000,
              eos_token_id=128_001), gated=True),
    _row("llama-3.2-1b", "meta-llama/Llama-3.2-1B", _LLAMA32, 1_235_814_400, "llama",
       _llama32(16, 2048, 8192, 32, 64), gated=True),
    _row("llama-3.2-3b", "meta-llama/Llama-3.2-3B", _LLAMA32, 3_212_749_824, "llama",
       _llama32(28, 3072, 8192, 24, 128), gated=True),
    _row("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", _APACHE, 7_241_732_096, "mistral",
       _llama(32, 4096, 14_336, 32, 8, 32_000, context=32_768, sliding_window=4096)),
    _row("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", _APACHE, 7_248_023_552, "mistral",
       _llama(32, 4096, 14_336, 32, 8, 32_768, context=32_768, theta=1e6, sliding_window=None)),
    _row("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", _APACHE, 494_032_768, "qwen2",
       _qwen(24, 896, 4864, 14, 2, tied=True)),
    _row("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", _APACHE, 1_543_714_304, "qwen2",
       _qwen(28, 1536, 8960, 12, 2, tied=True)),
    _row("qwen2.5-3b", "Qwen/Qwen2.5-3B", "qwen-research", 3_085_938_688, "qwen2",
       _qwen(36, 2048, 11_008, 16, 2, tied=True)),
    _row("qwen2.5-7b", "Qwen/Qwen2.5-7B", _APACHE, 7_615_616_512, "qwen2",
       _qwen(28, 3584, 18_944, 28, 4, tied=False, vocab=152_064)),
    _row("qwen3-0.6b", "Qwen/Qwen3-0.6B", _APACHE, 596_049_920, "qwen3", _qwen3(28, 1024, 3072, 16, tied=True)),
    _row("qwen3-1.7b", "Qwen/Qwen3-1.7B", _APACHE, 1_720_574_976, "qwen3", _qwen3(28, 2048, 6144, 16, tied=True)),
    _row("qwen3-4b", "Qwen/Qwen3-4B", _APACHE, 4_022_468_096, "qwen3", _qwen3(36, 2560, 9728, 32, tied=True)),
    _row("qwen3-8b", "Qwen/Qwen3-8B", _APACHE, 8_190_735_360, "qwen3", _qwen3(36, 4096, 12_288, 32, tied=False)),
    _row("gemma-3-270m", "google/gemma-3-270m", "gemma", 268_098_176, "gemma3_text",
       _gemma3(18, 640, 2048, 4, 512, 256), gated=True),
    _row("gemma-3-1b", "google/gemma-3-1b-pt", "gemma", 999_885_952, "gemma3_text",
       _gemma3(26, 1152, 6912, 4, 512, 256), gated=True),
)  # fmt: skip

CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""All entries by their short name, smallest family member first."""

_BY_HUB_ID = {entry.hub_id.lower(): entry for entry in _ENTRIES}


def find(name: str | Path) -> CatalogueEntry | Path | str:
    """Say what a name stands for: a catalogue entry, a local folder, or some other model on the hub.

    Catalogue names and hub ids are compared without regard to case. A name that says it is a path (absolute,
    or beginning with ``.`` or ``~``) is a folder; otherwise the catalogue comes first.

    Returns
    -------
    CatalogueEntry, Path or str
        The entry; the folder; or the hub id (``owner/name``) of a model that isn't in the catalogue.

    Raises
    ------
    ValueError
        If it is none of these. The message lists names that look alike.

    Examples
    --------
    >>> find("smollm2-135m").parameters
    134515008
    >>> find("Qwen/Qwen3-0.6B").name
    'qwen3-0.6b'
    >>> find("smolm2-135")
    Traceback (most recent call last):
    ValueError: unknown model 'smolm2-135': expected a name from the catalogue, a hub id (owner/name) or a local folder; near matches: 'smollm2-135m', 'smollm2-360m', 'smollm2-1.7b'
    """
    text = str(name).strip()
    folder = Path(text).expanduser()
    says_path = isinstance(name, Path) or folder.is_absolute() or text.startswith((".", "~"))
    if not says_path:
        entry = CATALOGUE.get(text.lower()) or _BY_HUB_ID.get(text.lower())
        if entry is not None:
            return entry
    if text and folder.is_dir():
        return folder
    if says_path:
        raise ValueError(f"no folder {text!r}: expected one with config.json and safetensors or GGUF weights")
    owner, slash, repository = text.partition("/")
    if slash and owner and repository and "/" not in repository:
        return text
    near = difflib.get_close_matches(text.lower(), [*CATALOGUE, *_BY_HUB_ID], n=3, cutoff=0.5)
    hint = (
        f"near matches: {', '.join(map(repr, near))}" if near else f"the catalogue has {', '.join(CATALOGUE)}"
    )
    raise ValueError(
        f"unknown model {text!r}: expected a name from the catalogue, a hub id (owner/name) or a local folder; {hint}"
    )


def config(name: str) -> PretrainedConfig:
    """Build a catalogue model's transformers configuration, without a network.

    Examples
    --------
    >>> config("qwen3-0.6b").head_dim
    128
    """
    entry = find(name)
    if not isinstance(entry, CatalogueEntry):
        raise ValueError(f"{name!r} is not in the catalogue, which has {', '.join(CATALOGUE)}")
    return entry.config()
