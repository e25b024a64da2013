"""Model sizes, against published counts and against real modules and files."""

import bitsandbytes as bnb
import pytest
import torch
from onegpu.dtype_sizing import (
    FORMATS,
    TRAINING_RECIPES,
    format_bytes,
    model_size,
    models_that_fit,
    training_state_bytes,
    weight_groups,
)
from onegpu.models import CATALOGUE, config, count_parameters, tiny_model


@pytest.mark.parametrize("name", CATALOGUE)
def test_groups_add_up_to_the_catalogue_count(name):
    assert weight_groups(name).parameters == CATALOGUE[name].parameters


@pytest.mark.parametrize(
    ("name", "linear"),
    [("gpt2", 84_934_656), ("polyglot-ko-1.3b", 1_207_959_552), ("llama-2-7b", 6_476_005_376),
     ("llama-3-8b", 6_979_321_856), ("llama-3.2-1b", 973_078_528), ("qwen2.5-0.5b", 357_826_560),
     ("qwen3-0.6b", 440_401_920), ("smollm2-135m", 106_168_320)],
)  # fmt: skip
def test_linear_weights_are_counted_without_embeddings_and_head(name, linear):
    assert weight_groups(name).linear == linear


@pytest.mark.parametrize(
    ("name", "adapters"),
    [("gpt2", 2_359_296), ("polyglot-ko-1.3b", 12_582_912), ("llama-2-7b", 39_976_960), ("llama-3-8b", 41_943_040),
     ("llama-3.2-1b", 11_272_192), ("qwen2.5-0.5b", 8_798_208), ("qwen3-0.6b", 10_092_544),
     ("smollm2-135m", 4_884_480)],
)  # fmt: skip
def test_adapters_on_all_linear_layers_follow_from_their_shapes(name, adapters):
    # rank 16: a matrix of rank x columns and one of rows x rank for each layer
    assert sum(16 * (rows + columns) for rows, columns in weight_groups(name).linear_shapes) == adapters


@pytest.mark.parametrize(
    ("name", "unique", "doubled"),
    [("qwen3-0.6b", 596_049_920, 751_632_384), ("qwen3-1.7b", 1_720_574_976, 2_031_739_904)],
)
def test_a_tied_head_is_counted_once(name, unique, doubled):
    # Hub displays show the doubled number.
    numbers = config(name)
    assert weight_groups(name).parameters == unique
    assert unique + numbers.vocab_size * numbers.hidden_size == doubled


def test_buffers_are_no_parameters():
    # Leaderboard files list polyglot-ko-1.3b as 1.432 B: with 24 causal masks of 2048 x 2048.
    class OldAttention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("bias", torch.ones(2048, 2048, dtype=torch.bool, device="meta"))
            self.dense = torch.nn.Linear(64, 64, device="meta")

    groups = weight_groups(torch.nn.ModuleList(OldAttention() for _ in range(24)))
    assert groups.buffer_bytes == 24 * 2048 * 2048
    assert groups.parameters == 24 * (64 * 64 + 64)
    assert CATALOGUE["polyglot-ko-1.3b"].parameters + 24 * 2048 * 2048 == 1_432_473_600
    assert weight_groups("polyglot-ko-1.3b").parameters == 1_331_810_304


def test_a_model_card_number_is_not_trusted():
    # polyglot-ko-12.8b's card says 12,898,631,680; its own hyper-parameters give this.
    assert weight_groups("polyglot-ko-12.8b").parameters == 12_893_603_840


def test_a_four_bit_model_has_not_lost_half_its_parameters():
    # bitsandbytes#834: Llama-2-7b "has" 3,540,389,888 in 4 bits: half the linear weights, the rest, and LoRA r=16.
    groups = weight_groups("llama-2-7b")
    assert groups.other == 262_410_240
    assert groups.linear // 2 + groups.other + 39_976_960 == 3_540_389_888
    assert groups.parameters == 6_738_415_616


def test_a_peft_print_can_be_checked_from_the_count():
    # llama-cookbook#309 and #16
    for name, lora, total, percent in [
        ("llama-2-7b", 4_194_304, 6_742_609_920, 0.06220594176090199),
        ("llama-2-13b", 6_553_600, 13_022_417_920, 0.05032552357220002),
    ]:
        assert weight_groups(name).parameters + lora == total
        assert 100 * lora / total == percent


@pytest.mark.parametrize(
    ("name", "dtype", "gb", "gib"),
    [("llama-2-7b", "fp32", "26.953662", "25.102554"), ("llama-2-7b", "fp16", "13.476831", "12.551277"),
     ("llama-2-7b", "int8", "6.738416", "6.275639"), ("llama-2-7b", "int4", "3.369208", "3.137819"),
     ("llama-3-8b", "bf16", "16.060522", "14.957527"), ("polyglot-ko-1.3b", "fp16", "2.663621", "2.480690")],
)  # fmt: skip
def test_published_sizes(name, dtype, gb, gib):
    size = model_size(name, dtype).total_bytes
    assert format_bytes(size, "GB", digits=6) == f"{gb} GB"
    assert format_bytes(size, "GiB", digits=6) == f"{gib} GiB"


@pytest.mark.parametrize(
    ("name", "gib"), [("llama-2-7b", "3.6001"), ("llama-3-8b", "5.3107"), ("polyglot-ko-1.3b", "0.8110")]
)
def test_published_nf4_sizes_with_double_quantization(name, gib):
    assert (
        format_bytes(model_size(name, "nf4-dq", rest_dtype="fp16").total_bytes, "GiB", digits=4)
        == f"{gib} GiB"
    )


def test_without_double_quantization_the_scales_take_half_a_bit():
    size = model_size("llama-2-7b", "nf4")
    assert size.weights_bytes + size.scales_bytes == 3_642_753_024


def test_get_memory_footprint_leaves_the_scales_out():
    # transformers prints 166,471,168 bytes for SmolLM2-135M in NF4 with fp32 rest.
    size = model_size("smollm2-135m", "nf4-dq", rest_dtype="fp32")
    assert size.weights_bytes + size.rest_bytes + size.buffer_bytes == 166_471_168
    absmax_bytes = 106_168_320 // 64
    second_level = sum(
        4 * -(-rows * columns // (64 * 256)) for rows, columns in weight_groups(size.name).linear_shapes
    )
    assert size.scales_bytes == absmax_bytes + second_level + 4 * 210


@pytest.mark.parametrize(("dtype", "nested"), [("nf4", False), ("nf4-dq", True)])
def test_sizes_are_those_of_bitsandbytes_tensors(dtype, nested):
    model = tiny_model(hidden_size=64, intermediate_size=192)
    layers = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    stored = scales = 0
    for layer in layers:
        packed, state = bnb.functional.quantize_4bit(
            layer.weight.data, quant_type="nf4", compress_statistics=nested
        )
        stored += packed.nbytes
        scales += state.absmax.nbytes + ((state.state2.absmax.nbytes + state.offset.nbytes) if nested else 0)
    size = model_size(model, dtype, rest_dtype="fp32")
    assert (size.weights_bytes, size.scales_bytes) == (stored, scales)
    assert size.rest_bytes == 4 * (
        count_parameters(model).total - sum(layer.weight.numel() for layer in layers)
    )


def test_a_packed_module_counts_in_full():
    layer = bnb.nn.Linear4bit(64, 128, bias=False, quant_type="nf4")
    layer.load_state_dict({"weight": torch.randn(128, 64)})
    layer = layer.to("cpu")
    groups = weight_groups(torch.nn.ModuleList([layer]))
    assert groups.linear_shapes == ((128, 64),)
    assert (groups.parameters, groups.other) == (8192, 0)


def test_llm_int8_has_a_scale_for_each_row():
    size = model_size("smollm2-135m", "int8", rest_dtype="fp16")
    rows = sum(rows for rows, _ in weight_groups("smollm2-135m").linear_shapes)
    assert (size.weights_bytes, size.scales_bytes) == (106_168_320, 4 * rows)


def test_gpt2_layers_are_read_the_right_way_round():
    assert (2304, 768) in weight_groups("gpt2").linear_shapes  # c_attn keeps its weight transposed


def test_quantized_embeddings_are_refused():
    with pytest.raises(ValueError, match="rest_dtype=nf4"):
        model_size("gpt2", "nf4", rest_dtype="nf4")


def test_a_configuration_and_a_module_give_the_same_size():
    by_config = model_size(config("smollm2-135m"), "fp16")
    assert by_config.total_bytes == model_size("smollm2-135m", "fp16").total_bytes
    model = tiny_model()
    assert model_size(model, "fp32").total_bytes == model_size(model.config, "fp32").total_bytes


def test_a_folder_with_a_configuration_is_enough(tmp_path):
    tiny_model().config.save_pretrained(tmp_path)
    assert model_size(tmp_path, "fp32").total_bytes == 4 * 98_624


def test_llama_3_8b_in_16_bits_does_not_fit_a_t4_and_in_nf4_does():
    assert "llama-3-8b" not in {size.name for size in models_that_fit("T4", "fp16")}
    assert "llama-3-8b" in {size.name for size in models_that_fit("T4", "nf4-dq")}


def test_a_reserve_makes_room():
    whole = models_that_fit("14.75 GiB", "fp16")
    less = models_that_fit("14.75 GiB", "fp16", reserve="4 GiB")
    assert {size.name for size in less} < {size.name for size in whole}
    assert all(size.total_bytes <= 10.75 * 2**30 for size in less)


def test_nothing_fits_in_a_megabyte():
    assert models_that_fit("1 MiB", "nf4-dq") == []


def test_recipes_of_adam_say_what_they_count():
    # Megatron-LM#654: 18 = 2+4+4+8; MS-AMP#173 and others count 16.
    assert [recipe.bytes_per_parameter for recipe in TRAINING_RECIPES.values()] == [16, 16, 18]
    assert (
        str(TRAINING_RECIPES["fp32 AdamW"])
        == "fp32 AdamW: 4 weights + 4 gradients + 8 optimizer = 16 bytes a parameter"
    )


def test_adamw_on_llama_2_7b():
    # AIInfraGuide#24 claims 26.8 GB for what is 12 x 6.7 without the weights.
    size = training_state_bytes(6_738_415_616)
    assert (format_bytes(size, "GB"), format_bytes(size, "GiB")) == ("107.81 GB", "100.41 GiB")
    assert format_bytes(size - 4 * 6_738_415_616, "GB", digits=1) == "80.9 GB"


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match="unknown recipe 'sgd'"):
        training_state_bytes(1, "sgd")


def test_sizes_print_both_units():
    size = model_size("llama-2-7b", "nf4-dq")
    assert "3.600 GiB = 3.866 GB" in str(size)
    assert "<td>GiB" not in size._repr_html_()
    assert "<th>GiB</th><th>GB</th>" in size._repr_html_()


@pytest.mark.parametrize("dtype", FORMATS)
def test_bits_per_parameter_lie_between_the_formats(dtype):
    size = model_size("smollm2-135m", dtype)
    low, high = sorted((float(FORMATS[dtype].bits_per_value), 16.0))
    if size.rest_dtype is None:
        assert size.bits_per_parameter == FORMATS[dtype].bits_per_value
    else:
        assert low < size.bits_per_parameter < high
