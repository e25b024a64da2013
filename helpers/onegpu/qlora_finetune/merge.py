"""Merge an adapter into its base: a 16-bit model that needs neither peft nor bitsandbytes.

The base is what the adapter was trained on: the quantized weights, dequantized. Merging into the original weights adds
the quantization error that the adapter learned to live with; merging into 4 bits rounds the adapter away (peft#2321).

Plain adapters on linear layers are merged tensor by tensor from the base's files: memory holds the adapter, one file of
the result (1 GiB at most) and one tensor. Whatever else peft knows (embeddings, whole modules, experts) goes through
peft's own merge, with the whole model in memory.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from onegpu import models
from onegpu.dtype_sizing import format_bytes
from onegpu.qlora_finetune.adapters import adapter_folder, read_adapter
from onegpu.qlora_finetune.bases import BASE_FILE, Base, fingerprint, read_base
from onegpu.runtime import import_bitsandbytes

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
FILE_BYTES = 2**30
"""Size at which the merged model starts a new file; with the adapter and one tensor it bounds the memory of a merge."""

RECORDED = "as recorded"


@dataclass(frozen=True)
class Merged:
    """What was merged into what, and where the result is."""

    folder: Path
    adapter: str
    base: Base
    dtype: str
    files: int
    size_bytes: int
    by_peft: str

    def __str__(self) -> str:
        how = "dequantized" if self.base.quantization else "as they are"
        out = (
            f"merged {self.adapter}\ninto   {self.base} ({how})\nas     {self.dtype}, {format_bytes(self.size_bytes)} in "
            f"{self.files} file{'s' if self.files > 1 else ''}: {self.folder}"
        )
        return out + (
            f"\nby     peft, with the whole model in memory: {self.by_peft}" if self.by_peft else ""
        )


class UnknownBase(ValueError):
    """The adapter doesn't say what it was trained on; ``missing`` names what has to be given."""

    def __init__(self, message: str, missing: tuple[str, ...]):
        super().__init__(message)
        self.missing = missing


def merge_adapter(
    adapter_dir: str | Path,
    output_dir: str | Path,
    base: str | Path | None = None,
    quantization: str | None = RECORDED,
    dtype: str | torch.dtype = "fp16",
) -> Path:
    """Merge an adapter into its base and save a model that needs neither peft nor bitsandbytes; ``merge`` says how.

    Returns
    -------
    Path
        The folder of the merged model.
    """
    return merge(adapter_dir, output_dir, base, quantization, dtype).folder


def merge(
    adapter_dir: str | Path,
    output_dir: str | Path,
    base: str | Path | None = None,
    quantization: str | None = RECORDED,
    dtype: str | torch.dtype = "fp16",
) -> Merged:
    """Merge an adapter into its base and save the model.

    Parameters
    ----------
    adapter_dir
        A folder with ``adapter_config.json`` and ``adapter_model.safetensors``, from here, from peft or from TRL; or the
        folder of a run.
    output_dir
        Must not exist, or be empty.
    base
        Catalogue name, hub id or folder. None: what the adapter folder says.
    quantization
        Of the base in training: its weights are dequantized. None merges into the weights as they are. By default
        what the adapter folder says.
    dtype
        Of the saved model: "fp16", "bf16" or "fp32".

    Raises
    ------
    UnknownBase
        A ValueError where base or quantization are neither recorded nor given.
    ValueError
        If there is no adapter, it doesn't belong to the base, the output folder is in use, or a merged weight is too
        large for the dtype.
    """
    adapter_dir, output_dir = adapter_folder(adapter_dir), Path(output_dir)
    if isinstance(dtype, torch.dtype):
        dtype = next((name for name, kind in DTYPES.items() if kind == dtype), str(dtype))
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    config, tensors = read_adapter(adapter_dir)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} is not empty: give a new folder")
    wanted = _base_wanted(adapter_dir, base, quantization)
    try:
        source = models.fetch(wanted.model)
    except ValueError as error:
        raise ValueError(
            f"the adapter {adapter_dir} stands on {wanted.model}, which can't be had ({error}). Say which base to take: "
            "base=... (command line --base)"
        ) from error
    if base is None and wanted.weights and fingerprint(source.folder) != wanted.weights:
        raise ValueError(
            f"{adapter_dir} was trained on other weights than {source} holds: fetch the base that it names ({wanted}), "
            "or say which base to take all the same (base=..., command line --base)"
        )
    part = output_dir.with_name(output_dir.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        by_peft = _why_not_by_tensor(config, tensors, source.folder, wanted)
        if by_peft:
            _merge_by_peft(adapter_dir, part, wanted, DTYPES[dtype])
        else:
            _merge_by_tensor(config, tensors, source.folder, part, wanted, DTYPES[dtype])
        _copy_rest(adapter_dir, source.folder, part, DTYPES[dtype])
        if output_dir.exists():
            output_dir.rmdir()
        part.replace(output_dir)
    except OSError as error:
        raise ValueError(
            f"{output_dir} can't be written ({error.strerror or error}): nothing was changed"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = sorted(output_dir.glob("*.safetensors"))
    rank = config.get("r")
    layers = sum(name.endswith(".lora_A.weight") for name in tensors)
    return Merged(
        output_dir, f"{adapter_dir} (rank {rank}, {layers} layers)", wanted, dtype, len(files),
        sum(path.stat().st_size for path in files), by_peft,
    )  # fmt: skip


def _base_wanted(adapter_dir: Path, base: str | Path | None, quantization: str | None) -> Base:
    recorded = read_base(adapter_dir)
    if base is None and recorded is None:
        raise UnknownBase(
            f"{adapter_dir} doesn't say what it was trained on: give base=... (command line --base)",
            ("base",),
        )
    known = recorded or Base("", "hub", None, "unknown", "unknown")
    wanted = known.quantization if quantization == RECORDED else quantization
    if wanted == "unknown":
        raise UnknownBase(
            f"{adapter_dir} doesn't say how its base was quantized in training: give quantization='nf4', 'int8' or "
            "None (command line --quantization nf4, int8 or none)",
            ("quantization",),
        )
    if wanted not in models.loading.QUANTIZATIONS:
        raise ValueError(
            f"quantization is {wanted!r}, expected 'nf4', 'int8' or None (command line --quantization nf4, int8 or none)"
        )
    name = str(base) if base is not None else known.model
    same = base is None or name == known.model
    return Base(
        name, known.kind if same else ("folder" if Path(name).is_dir() else "hub"), known.revision if same else None,
        wanted, known.dtype, known.weights if same else "",
    )  # fmt: skip


# --- tensor by tensor


def _why_not_by_tensor(config: dict, tensors: dict[str, torch.Tensor], folder: Path, base: Base) -> str:
    """Say what of this adapter or base is more than low-rank parts of linear layers ("" if nothing is)."""
    odd = {n for n in tensors if not re.search(r"\.(lora_[AB]\.weight|lora_magnitude_vector(\.weight)?)$", n)}
    if odd:
        return f"it holds {min(odd).rsplit('.', 2)[-2]} too"
    for name in ("target_parameters", "layer_replication", "alora_invocation_tokens", "use_qalora", "velora_config",
                 "kasa_config", "arrow_config"):  # fmt: skip
        if config.get(name):
            return f"it uses {name}"
    if not isinstance(init := config.get("init_lora_weights", True), bool) and init not in (
        "gaussian",
        "orthogonal",
    ):
        return f"its start, {init}, changed the base"
    if not list(folder.glob("*.safetensors")):
        return "the base isn't plain safetensors"
    skeleton = _skeleton(folder)
    linear = skeleton.linear
    missing = {m for m in _parts(tensors) if m not in linear or linear[m] + ".weight" not in skeleton.stored}
    if missing:
        return f"{min(missing)} is stored under another name or is no linear layer"
    quantized = {key for key in skeleton.quantized if key + ".weight" not in skeleton.stored}
    if base.quantization and quantized:
        return f"{min(quantized)} is stored under another name"
    return ""


@dataclass(frozen=True)
class _Skeleton:
    """A base without its weights.

    ``linear`` names for each linear module its key in the files, ``quantized`` holds the keys of those that a
    quantization packs, ``stored`` says for each key of the files which file it is in, ``transposed`` holds the keys
    of GPT-2's Conv1D layers, whose weight is (in, out).
    """

    linear: dict[str, str]
    quantized: frozenset[str]
    transposed: frozenset[str]
    stored: dict[str, Path]


def _skeleton(folder: Path) -> _Skeleton:
    from accelerate import init_empty_weights
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    stored: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            stored |= dict.fromkeys(file.keys(), path)
    prefix = model.base_model_prefix + "."
    bare = not any(key.startswith(prefix) for key in stored)  # GPT-2's first files have no "transformer."
    linear, transposed, quantized = {}, set(), set()
    skip = get_keys_to_not_convert(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            key = name.removeprefix(prefix) if bare else name
            linear[name] = key
            if isinstance(module, Conv1D):
                transposed.add(key)
            if not any(name == s or name.endswith("." + s) or name.startswith(s + ".") for s in skip):
                quantized.add(key)
    return _Skeleton(linear, frozenset(quantized), frozenset(transposed), stored)


def _parts(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Sort an adapter's tensors by module: its A (r, in), B (out, r) and, for DoRA, magnitude (out,)."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        module, kind = re.fullmatch(
            r"(?:base_model\.model\.)?(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?", name
        ).groups()
        found.setdefault(module, {})[kind] = tensor
    return found


def _merge_by_tensor(
    config: dict, tensors: dict[str, torch.Tensor], folder: Path, part: Path, base: Base, dtype: torch.dtype
) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    skeleton = _skeleton(folder)
    adapted = {skeleton.linear[module] + ".weight": (module, of) for module, of in _parts(tensors).items()}
    quantized = {key + ".weight" for key in skeleton.quantized} if base.quantization else set()
    was = getattr(torch, base.dtype, None) if base.dtype != "unknown" else None

    def merged() -> Iterator[tuple[str, torch.Tensor]]:
        for path in dict.fromkeys(skeleton.stored.values()):
            for key in (k for k, p in skeleton.stored.items() if p == path):
                with safe_open(path, "pt") as file:  # opened anew: the pages of an open file count as ours
                    tensor = file.get_tensor(key)
                if not tensor.is_floating_point():
                    yield key, tensor.clone()
                    continue
                turned = key.removesuffix(".weight") in skeleton.transposed
                weight = tensor.t().contiguous() if turned else tensor
                if key in quantized:
                    weight = _dequantized(weight.to(was or weight.dtype), base.quantization)
                if key in adapted:
                    module, of = adapted[key]
                    weight = add_adapter(weight, of, _scaling(config, module), where=module)
                yield key, _cast((weight.t() if turned else weight), dtype, key)

    files: list[dict[str, torch.Tensor]] = [{}]
    weight_map, size, total = {}, 0, 0

    def write() -> None:
        save_file(files[0], part / f"model-{len(written) + 1:05d}.safetensors", metadata={"format": "pt"})
        written.append(list(files[0]))
        files[0] = {}

    written: list[list[str]] = []
    for key, tensor in merged():
        this = tensor.numel() * tensor.element_size()
        if size + this > FILE_BYTES and files[0]:
            write()
            size = 0
        files[0][key] = tensor
        size, total = size + this, total + this
    write()
    if len(written) == 1:
        (part / "model-00001.safetensors").rename(part / "model.safetensors")
        return
    for i, keys in enumerate(written, 1):
        name = f"model-{i:05d}-of-{len(written):05d}.safetensors"
        (part / f"model-{i:05d}.safetensors").rename(part / name)
        weight_map |= dict.fromkeys(keys, name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (part / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def add_adapter(
    weight: torch.Tensor, of: dict[str, torch.Tensor], scaling: float, where: str = "the layer"
) -> torch.Tensor:
    """Return ``W + scaling B A`` in float32, and for DoRA each row scaled to its magnitude (arXiv 2402.09353).

    Parameters
    ----------
    weight
        Shape (out, in), any float dtype.
    of
        ``lora_A`` (r, in), ``lora_B`` (out, r), and for DoRA ``lora_magnitude_vector`` (out,).

    Raises
    ------
    ValueError
        If the shapes don't belong together.
    """
    a, b = of["lora_A"].float(), of["lora_B"].float()
    if (b.shape[0], a.shape[1]) != tuple(weight.shape):
        raise ValueError(
            f"the adapter doesn't belong to this base: {where} is {tuple(weight.shape)} there, and "
            f"{(b.shape[0], a.shape[1])} in the adapter. Give the base that it was trained on"
        )
    total = torch.addmm(weight.float(), b, a, alpha=scaling)
    magnitude = of.get("lora_magnitude_vector")
    if magnitude is not None:
        total.mul_((magnitude.float().flatten() / total.norm(dim=1))[:, None])
    return total


def _scaling(config: dict, module: str) -> float:
    def of(default: float, pattern: dict[str, float]) -> float:
        return next((v for k, v in pattern.items() if re.match(rf"(.*\.)?({k})$", module)), default)

    r = of(config["r"], config.get("rank_pattern") or {})
    alpha = of(config["lora_alpha"], config.get("alpha_pattern") or {})
    return alpha / (math.sqrt(r) if config.get("use_rslora") else r)


def _dequantized(weight: torch.Tensor, quantization: str | None) -> torch.Tensor:
    """Quantize a weight (out, in) as the base of the training was, and back: NF4, or LLM.int8, which starts from fp16."""
    bnb = import_bitsandbytes().functional
    if quantization == "int8":
        codes, scales, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
        return bnb.int8_vectorwise_dequant(codes, scales)
    return bnb.dequantize_4bit(
        *bnb.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    )


def _cast(tensor: torch.Tensor, dtype: torch.dtype, key: str) -> torch.Tensor:
    found = tensor.to(dtype, copy=True).contiguous()
    if not torch.isfinite(found).all():
        raise ValueError(
            f"{key} doesn't fit {str(dtype).removeprefix('torch.')} (largest {float(tensor.abs().max()):.3g}): merge "
            "with dtype='bf16' (command line --dtype bf16)"
        )
    return found


# --- by peft, and the files around the weights


def _merge_by_peft(adapter_dir: Path, part: Path, base: Base, dtype: torch.dtype) -> None:
    from peft import PeftModel

    loaded = models.load(base.model, quantization=base.quantization, dtype=torch.float32)
    model = loaded.model.dequantize() if base.quantization else loaded.model
    try:
        merged = PeftModel.from_pretrained(model, adapter_dir).merge_and_unload()
    except RuntimeError as error:
        raise ValueError(
            f"the adapter doesn't belong to this base ({str(error).splitlines()[-1].strip()}). Give the base that it "
            "was trained on"
        ) from error
    for name, parameter in merged.named_parameters():
        parameter.data = _cast(parameter.data, dtype, name)
    merged.save_pretrained(part)


def _copy_rest(adapter_dir: Path, folder: Path, part: Path, dtype: torch.dtype) -> None:
    """Write configuration, generation settings (with the ids that end an answer) and tokenizer beside the weights."""
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    config.dtype = dtype
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(part)
    if (adapter_dir / BASE_FILE).is_file():  # for the system prompt: who talks to the model looks there
        shutil.copyfile(adapter_dir / BASE_FILE, part / BASE_FILE)
    for place in (adapter_dir, folder):
        if (place / "generation_config.json").is_file():
            shutil.copyfile(place / "generation_config.json", part / "generation_config.json")
            break
    has_tokenizer = (adapter_dir / "tokenizer_config.json").is_file()
    AutoTokenizer.from_pretrained(adapter_dir if has_tokenizer else folder).save_pretrained(part)
