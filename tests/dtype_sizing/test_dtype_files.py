"""Sizes of datasets and checkpoints, against Arrow and real files."""

import json

import datasets
import pytest
import torch
from onegpu.dtype_sizing import (
    checkpoint_size,
    column_dtype,
    dataset_bytes,
    predict_dataset_bytes,
    read_header,
)
from onegpu.exercises.dtype_sizing import file_bytes
from onegpu.models import tiny_model
from safetensors.torch import save, save_file


def rows_of(names, lengths):
    return {name: [[1] * length for length in lengths] for name in names}


NAMES = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "special_tokens_mask",
    "labels",
    "position_ids",
    "other",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_columns_name_decides_its_dtype(name):
    dataset = datasets.Dataset.from_dict(rows_of([name], [3, 2]))
    assert dataset_bytes(dataset).columns[name][0] == column_dtype(name)


@pytest.mark.parametrize("name", ["input_ids", "attention_mask"])
def test_a_value_too_large_makes_the_column_int64(name):
    largest = 2**31
    dataset = datasets.Dataset.from_dict({name: [[largest]]})
    assert dataset_bytes(dataset).columns[name][0] == column_dtype(name, largest=largest) == "int64"


def test_the_prediction_is_arrows_size_to_the_byte():
    lengths = [7, 1, 0, 300]
    dataset = datasets.Dataset.from_dict(rows_of(NAMES, lengths))
    assert predict_dataset_bytes(len(lengths), sum(lengths), NAMES) == dataset_bytes(dataset)


def test_labels_are_twice_as_large_as_the_ids_they_copy():
    size = predict_dataset_bytes(1, 1_000_000, ("input_ids", "labels"))
    assert size.columns["labels"][1] - 4 == 2 * (size.columns["input_ids"][1] - 4)


def test_tokens_without_rows_are_refused():
    with pytest.raises(ValueError, match="0 rows with 5 tokens"):
        predict_dataset_bytes(0, 5)


def test_an_empty_dataset_is_empty():
    assert predict_dataset_bytes(0, 0).total_bytes == 0


def tensor(dtype, shape, size):
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


def test_32_bit_words_hold_eight_weights():
    # omlx#3489
    header = {
        "w.weight": tensor("U32", [4096, 512], 4096 * 512 * 4),
        "w.scales": tensor("F16", [4096, 64], 4096 * 64 * 2),
        "w.biases": tensor("F16", [4096, 64], 4096 * 64 * 2),
    }
    size = checkpoint_size(header, bits=4)
    assert size.parameters == 4096 * 4096
    assert size.bits_per_parameter == 4 + 2 * 16 / 64
    with pytest.raises(ValueError, match="give bits=4 or bits=8"):
        checkpoint_size(header)


@pytest.mark.parametrize("indexed", [True, False])
def test_gptq_and_awq_zeros_and_scales_are_no_parameters(indexed):
    # huggingface.js#2323
    gptq = {"w.qweight": tensor("I32", [128, 512], 128 * 512 * 4), "w.g_idx": tensor("I32", [1024], 4096)}
    awq = {"w.qweight": tensor("I32", [1024, 64], 1024 * 64 * 4)}
    shared = {"w.scales": tensor("F16", [8, 512], 8192), "w.qzeros": tensor("I32", [8, 64], 2048)}
    assert checkpoint_size({**(gptq if indexed else awq), **shared}).parameters == 1024 * 512


def test_rounded_names_are_no_divisor():
    # inference-atlas#153: "16.44 bits a parameter" came from dividing by a rounded 35B.
    size = checkpoint_size({"w": tensor("BF16", [35_951_822_704], 2 * 35_951_822_704)})
    assert size.bits_per_parameter == 16
    assert round(8 * size.data_bytes / 35e9, 2) == 16.44


def test_a_bitsandbytes_file_counts_in_full(tmp_path):
    import bitsandbytes as bnb

    layer = bnb.nn.Linear4bit(64, 128, bias=True, quant_type="nf4", compress_statistics=True)
    layer.load_state_dict({"weight": torch.randn(128, 64), "bias": torch.zeros(128)})
    layer = layer.to("cpu")
    save_file(
        {name: value.contiguous() for name, value in layer.state_dict().items()}, tmp_path / "a.safetensors"
    )
    size = checkpoint_size(tmp_path)
    assert size.parameters == 128 * 64 + 128
    assert size.stored_elements != size.parameters
    assert 0 < size.state_bytes < size.data_bytes


def test_a_plain_file_is_counted_from_its_header(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    size = checkpoint_size(tmp_path / "model.safetensors")
    assert (size.parameters, size.data_bytes) == (98_624, 4 * 98_624)
    assert "__metadata__" not in read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize("content", [b"", b"\xff" * 64])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="no safetensors file"):
        checkpoint_size(tmp_path / "x.safetensors")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no \.safetensors file"):
        checkpoint_size(tmp_path)


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}])
@pytest.mark.parametrize("names", [(), ("w",), ("a.weight", "층.0", 'with "quotes"', "none")])
def test_exercise_3_8_predicts_a_real_file_to_the_byte(names, metadata):
    dtypes = (torch.float32, torch.bfloat16, torch.uint8, torch.int64)
    shapes = ((100,), (3, 5), (), (0, 7))
    tensors = {n: torch.zeros(s, dtype=d) for n, s, d in zip(names, shapes, dtypes, strict=False)}
    content = save(tensors, metadata or None)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    header.pop("__metadata__", None)
    in_order = [(name, tensor["dtype"], tensor["shape"]) for name, tensor in header.items()]
    assert file_bytes(in_order, metadata) == len(content)
