"""A model's configuration, wherever it is: the catalogue, a folder, a config.json, a GGUF file, the hub.

And what of a model a training step doesn't show: towers for images and sound, weights that are stored quantized, experts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TOWERS = ("vision_config", "audio_config", "speech_config", "video_config")


def model_config(model: Any, max_length: int = 1) -> PretrainedConfig:
    """Return the configuration of a causal language model (of a multimodal one, its text part).

    Parameters
    ----------
    model
        A catalogue name, a folder, a path to config.json or to a .gguf, a hub id, or a transformers configuration.
    max_length
        Tokens of a row, which the model must have positions for.

    Raises
    ------
    ValueError
        For an unknown model, one that is no decoder-only language model or needs code of its own, one whose weights are
        stored in a form that isn't trained here, or rows longer than its positions.
    """
    config = _read(model)
    name = model if isinstance(model, (str, Path)) else getattr(config, "model_type", "a model")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} is an encoder-decoder ({config.model_type}): this topic covers decoder-only language models"
        )
    stored_weights(config)  # refuses what isn't known
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if towers(config):
        text = copy.deepcopy(config.get_text_config())
        if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING:
            quantization = getattr(config, "quantization_config", None)
            if quantization is not None:
                text.quantization_config = quantization
            text._onegpu_towers = _describe_towers(config)
            config = text
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"transformers has no causal language model of type {config.model_type!r} ({name})")
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise ValueError(
            f"max_length is {max_length}, but {name} has {positions} positions: use at most that"
        )
    return config


def towers(config: Any) -> str:
    """Name the parts of a multimodal model that aren't its language model; empty if there are none.

    Examples
    --------
    >>> from transformers import AutoConfig
    >>> towers(AutoConfig.for_model("gemma3")), towers(AutoConfig.for_model("llama"))
    ('the vision tower', '')
    """
    found = [name.removesuffix("_config") for name in TOWERS if getattr(config, name, None) is not None]
    named = f"the {' and '.join(found)} tower{'s' if len(found) > 1 else ''}" if found else ""
    return named or getattr(config, "_onegpu_towers", "")


def _describe_towers(config: Any) -> str:
    """Name the towers, and how many parameters they have where transformers can build them."""
    import torch
    from transformers import AutoModel

    count = 0
    for name in TOWERS:
        tower = getattr(config, name, None)
        if tower is not None:
            try:
                with torch.device("meta"):
                    count += sum(p.numel() for p in AutoModel.from_config(tower).parameters())
            except (ValueError, KeyError, AttributeError):
                return towers(config)
    return f"{towers(config)} ({count:,} parameters)"


@dataclass(frozen=True)
class StoredWeights:
    """How a checkpoint's weights are stored, where they are quantized.

    Attributes
    ----------
    method
        "nf4", "fp4" or "int8" (bitsandbytes), "mxfp4", or None: as they are.
    double_quantization
        Whether NF4's scales are quantized too.
    skipped
        Names of modules that aren't quantized.
    """

    method: str | None = None
    double_quantization: bool = False
    skipped: tuple[str, ...] = ()


def stored_weights(config: Any) -> StoredWeights:
    """Read a configuration's ``quantization_config``.

    Raises
    ------
    ValueError
        For a form that adapters aren't trained on here (AWQ, GPTQ, fp8, compressed-tensors and others).
    """
    found = getattr(config, "quantization_config", None)
    if not found:
        return StoredWeights()
    read = found.get if isinstance(found, dict) else lambda name, default=None: getattr(found, name, default)
    kind = str(read("quant_method", "bitsandbytes")).rpartition(".")[2].lower()
    skipped = tuple(read("llm_int8_skip_modules") or ())
    if kind == "bitsandbytes":
        if read("load_in_8bit") or read("_load_in_8bit"):
            return StoredWeights("int8", skipped=skipped)
        return StoredWeights(
            str(read("bnb_4bit_quant_type", "fp4")), bool(read("bnb_4bit_use_double_quant", False)), skipped
        )
    if kind == "mxfp4":
        return StoredWeights("mxfp4")
    bits = read("bits") or read("w_bit")
    raise ValueError(
        f"this checkpoint's weights are stored as {kind.upper()}{f' in {bits} bits' if bits else ''}: a training step on "
        "them isn't simulated. Give the model it was made from (method 'qlora' quantizes it to NF4)"
    )


def experts(config: Any) -> int:
    """Number of experts in a layer of a mixture of experts; 0 for a dense model."""
    text = config.get_text_config()
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return max((getattr(text, name, None) or 0 for name in names), default=0)


def _read(model: Any) -> PretrainedConfig:
    from transformers import AutoConfig, PretrainedConfig

    from onegpu.models import CatalogueEntry, find
    from onegpu.runtime import hub_reachable

    if isinstance(model, PretrainedConfig):
        return model
    path = Path(str(model)).expanduser()
    options: dict[str, Any] = {}
    if path.suffix.lower() in (".json", ".gguf"):
        if not path.is_file():
            raise ValueError(f"no file {str(model)!r}: expected a config.json or a .gguf that exists")
        source: Any = path
        if path.suffix.lower() == ".gguf":
            source, options = path.parent, {"gguf_file": path.name}
    else:
        source = find(model)
        if isinstance(source, CatalogueEntry):
            return source.config()
        if isinstance(source, Path) and not (source / "config.json").is_file():
            files = sorted(source.glob("*.gguf"))
            if not files:
                is_adapter = (source / "adapter_config.json").is_file()
                raise ValueError(
                    f"the folder {str(model)!r} "
                    + (
                        "holds an adapter: give its base model"
                        if is_adapter
                        else "holds no config.json and no .gguf file"
                    )
                )
            options = {"gguf_file": files[0].name}
    try:
        # A hub that doesn't answer must cost seconds, not minutes.
        offline = isinstance(source, str) and not hub_reachable(3.0)[0]
        return AutoConfig.from_pretrained(
            source, trust_remote_code=False, local_files_only=offline, **options
        )
    except OSError as error:
        raise ValueError(
            f"the configuration of {str(model)!r} can't be had: it is no catalogue name, and reading it failed "
            f"({str(error).splitlines()[0]}). Give a catalogue name, a folder or file with its configuration"
        ) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error) and "auto_map" not in str(error):
            raise ValueError(
                f"{str(model)!r} has no configuration that transformers knows: {str(error).split('. ')[0]}"
            ) from error
        raise ValueError(
            f"{str(model)!r} needs code of its own, which isn't run here: give a model of a kind that transformers has"
        ) from None
