"""Whole models under each scheme, on a tiny random Llama."""

import math

import pytest
import torch
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.quantization import (
    SCHEMES,
    activation_outliers,
    held_out_text,
    int8_linear,
    linear_layers,
    perplexity,
    quantize_4bit,
    quantize_rowwise,
    quantized,
    token_losses,
    weight_errors,
)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def ids():
    return tiny_tokenizer()(held_out_text()[:600], return_tensors="pt").input_ids


def test_the_head_is_not_quantized(model):
    layers = linear_layers(model)
    assert len(layers) == 14
    assert "lm_head" not in layers


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_is_the_same_afterwards(model, ids, scheme):
    before = model(input_ids=ids).logits
    with quantized(model, scheme):
        during = model(input_ids=ids).logits
    assert torch.equal(during, before) == (scheme == "fp32")
    assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("scheme", ["nf4", "LLM.int8"])
def test_the_model_is_the_same_after_an_error(model, ids, scheme):
    before = model(input_ids=ids).logits
    with pytest.raises(RuntimeError, match="stop"), quantized(model, scheme):
        raise RuntimeError("stop")
    assert torch.equal(model(input_ids=ids).logits, before)


def test_inside_the_weights_are_what_the_packed_ones_stand_for(model):
    layer = model.model.layers[0].mlp.down_proj
    expected = quantize_4bit(layer.weight).dequantize()
    with quantized(model, "nf4"):
        assert torch.equal(layer.weight.data, expected)


def test_a_function_of_ones_own_is_a_scheme(model, ids):
    with quantized(model, "nf4"):
        named = model(input_ids=ids).logits
    with quantized(model, lambda weight: quantize_4bit(weight).dequantize()):
        assert torch.equal(model(input_ids=ids).logits, named)
    with quantized(model, quantize_4bit):
        assert torch.equal(model(input_ids=ids).logits, named)


def test_a_function_that_returns_another_shape_is_refused_and_nothing_is_changed(model, ids):
    before = model(input_ids=ids).logits
    with (
        pytest.raises(ValueError, match="expected the same shape"),
        quantized(model, lambda w: w.reshape(-1, 32)),
    ):
        pass
    assert torch.equal(model(input_ids=ids).logits, before)


def test_sixteen_bits_are_those_of_torch(model):
    layer = model.model.layers[0].mlp.down_proj
    weight = layer.weight.detach().clone()
    for scheme, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with quantized(model, scheme):
            assert torch.equal(layer.weight.data, weight.to(dtype).float())


def test_llm_int8_rounds_activations_too(model):
    layer = model.model.layers[0].mlp.down_proj
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    expected = int8_linear(x, quantize_rowwise(layer.weight))
    with quantized(model, "LLM.int8"):
        assert torch.equal(layer(x), expected)


def test_more_bits_have_smaller_errors_in_every_layer(model):
    rows = weight_errors(model, ("int8 block 64", "int8 per tensor", "nf4", "fp4"))
    by_layer = {}
    for row in rows:
        by_layer.setdefault(row.layer, []).append(row.error.sqnr_db)
    assert len(by_layer) == 14
    assert all(values == sorted(values, reverse=True) for values in by_layer.values())


def test_errors_of_chosen_layers_only(model):
    name = "model.layers.1.mlp.down_proj"
    assert [row.layer for row in weight_errors(model, ["nf4", "fp4"], [name])] == [name, name]


def test_without_the_split_outliers_ruin_the_product(model):
    layer = model.model.layers[0].mlp.down_proj
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    x[:, 3] = 500
    exact = layer(x)
    with quantized(model, "LLM.int8"):
        kept = (layer(x) - exact).abs().max()
    with quantized(model, "LLM.int8, no outliers kept"):
        thrown_in = (layer(x) - exact).abs().max()
    assert kept < thrown_in / 4


def test_fp32_has_no_error_to_list(model):
    assert weight_errors(model, ("fp32",)) == []


def test_an_unknown_scheme_is_refused(model):
    with (
        pytest.raises(ValueError, match="unknown scheme 'int3', expected one of fp32"),
        quantized(model, "int3"),
    ):
        pass
    with pytest.raises(ValueError, match="unknown scheme"):
        weight_errors(model, ("int3",))


def test_outliers_are_found_where_they_are(ids):
    model = tiny_model()
    norm = model.model.layers[1].input_layernorm
    with torch.no_grad():
        norm.weight[5] = 50
    found = {row.layer: row for row in activation_outliers(model, ids)}
    assert len(found) == 14
    assert 5 in found["model.layers.1.self_attn.q_proj"].columns
    assert found["model.layers.1.self_attn.q_proj"].largest > 6
    assert found["model.layers.0.self_attn.q_proj"].columns == ()
    assert not any(layer._forward_pre_hooks for layer in linear_layers(model).values())


def test_perplexity_is_exp_of_the_models_own_loss(model, ids):
    found = perplexity(model, ids)
    assert found.tokens == ids.shape[1] - 1
    assert found.value == pytest.approx(math.exp(model(input_ids=ids, labels=ids).loss.item()), rel=1e-5)


def test_token_losses_are_each_tokens_own(model, ids):
    losses = token_losses(model, ids)
    logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
    assert losses.shape == (ids.shape[1] - 1,)
    for place in (0, 7, ids.shape[1] - 2):
        assert losses[place].item() == pytest.approx(-logprobs[place, ids[0, place + 1]].item(), rel=1e-4)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (1, 1)])
def test_perplexity_needs_one_text_of_two_tokens(model, shape):
    with pytest.raises(ValueError, match="expected \\(1, tokens\\)"):
        perplexity(model, torch.zeros(shape, dtype=torch.long))


def test_the_held_out_text_is_five_paragraphs():
    assert len(held_out_text().strip().split("\n\n")) == 5
