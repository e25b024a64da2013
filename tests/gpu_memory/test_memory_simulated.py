"""What the simulator counts, for every method, optimizer and loop; what it leaves behind: nothing."""

import re
import subprocess
import sys

import bitsandbytes
import pytest
import torch
import transformers
from onegpu.gpu_memory import CATEGORIES
from onegpu.gpu_memory.cuda_kernels import META_RULES
from onegpu.gpu_memory.meta_model import quantized_linear
from onegpu.gpu_memory.tracking import StorageTracker
from plainly import closed_form, make_setup, simulated
from transformers import AutoConfig, masking_utils

GIB = 2**30


def small(kind="llama", **changes):
    numbers = {
        "llama": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512},
        "gpt_neox": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4,
                     "vocab_size": 500, "max_position_embeddings": 512},
        "gpt2": {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 500, "bos_token_id": 0, "eos_token_id": 1},
    }[kind]  # fmt: skip
    return AutoConfig.for_model(kind, **{**numbers, **changes})


def run(config=None, **settings):
    return simulated(
        config or small(), **{"per_device_train_batch_size": 2, "max_length": 64, "gpu": "L4", **settings}
    )


def parameters(config):
    with torch.device("meta"):
        return sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())


# --- totals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_every_moment_adds_up_and_the_peak_is_its_highest(kind, method):
    found = run(small(kind), method=method)
    names = [m.name for m in found.moments]
    assert names == ["loaded", "after_forward", "after_backward", "in_step", "after_step", "second_step"]
    for moment in found.moments:
        assert sum(moment.by_category.values()) == moment.allocated_bytes <= moment.reserved_bytes
        assert set(moment.by_category) <= set(CATEGORIES)
        assert moment.peak_bytes >= moment.allocated_bytes
    assert found.peak.bytes == found["second_step"].peak_bytes == sum(found.peak.by_category.values())


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_full_fine_tune_counts_weights_gradients_and_two_moments(dtype, size):
    config = small()
    found = run(config, dtype=dtype)["after_step"].by_category
    count = parameters(config)
    assert found["weights"] == found["gradients"] == size * count
    assert found["optimizer_state"] == 2 * size * count


@pytest.mark.parametrize("double", [False, True])
def test_qlora_counts_packed_weights_scales_and_tables(double):
    config = small()
    found = run(config, method="qlora", dtype="bf16", double_quantization=double, prepare_kbit=False)[
        "loaded"
    ].by_category
    linear = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256)
    assert found["weights"] == linear // 2 + 2 * (parameters(config) - linear)
    blocks = [n // 64 for n in (256 * 256, 128 * 256, 128 * 256, 256 * 256, *3 * [512 * 256])] * 2
    if double:  # one byte a block, fp32 for 256 of them, offset, two tables; and bitsandbytes' own table
        assert found["quantization_state"] == sum(b + 4 * -(-b // 256) + 4 + 64 + 1024 for b in blocks) + 1024
    else:
        assert found["quantization_state"] == sum(4 * b + 64 for b in blocks)


def test_prepare_kbit_makes_the_rest_fp32():
    # 3.9 GiB for Llama-3-8B's embedding and head
    config = small()
    kept, upcast = (
        run(config, method="qlora", prepare_kbit=k)["loaded"].by_category["weights"] for k in (False, True)
    )
    linear = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256)
    assert upcast - kept == 2 * (parameters(config) - linear)


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_lora_trains_rank_times_in_plus_out(dtype, size):
    found = run(method="lora", lora_r=4, target_modules=("q_proj", "down_proj"), lora_dtype=dtype)
    count = 2 * 4 * ((256 + 256) + (512 + 256))
    after = found["after_step"].by_category
    assert found["loaded"].by_category["lora"] == after["gradients"] == size * count
    assert after["optimizer_state"] == 2 * size * count


def test_a_tied_head_counts_once():
    tied, untied = (run(small(tie_word_embeddings=t), dtype="bf16") for t in (True, False))
    for moment, category in (("loaded", "weights"), ("after_step", "gradients")):
        assert untied[moment].by_category[category] - tied[moment].by_category[category] == 2 * 500 * 256


# --- optimizers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "state", "temporary"),
    [
        ("adamw_torch", 8, 4),
        ("adamw_single", 8, None),
        ("adamw_torch_fused", 8, 0),
        ("sgd", 0, 0),
        ("adamw_8bit", None, 0),
    ],
)
def test_optimizers_keep_and_need_what_they_say(optimizer, state, temporary):
    config = small()
    count = parameters(config)
    found = run(config, dtype="fp32", optim=optimizer)
    kept = found["after_step"].by_category.get("optimizer_state", 0)
    needed = found["in_step"].by_category.get("optimizer_temporaries", 0)
    if optimizer == "adamw_8bit":  # two bytes and scales of 256, fp32 for tensors under 4,096 numbers
        assert 2 * count < kept < 2.2 * count
    else:
        assert kept == pytest.approx(state * count, rel=1e-3)
    if temporary is not None:
        assert needed == pytest.approx(temporary * count, abs=2048)
    else:
        assert needed == 3 * 4 * 512 * 256  # root and quotient of the largest tensor, and the quotient before


@pytest.mark.parametrize("way", [simulated, closed_form])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_trainer_keeps_8_bit_adams_state_of_embeddings_in_fp32(way, kind):
    # Trainer.create_optimizer overrides bitsandbytes' manager: half a GiB more for each 100 million embeddings
    plain, trainer = (
        way(small(kind), dtype="bf16", optim="adamw_8bit", loop=loop, max_length=64, gpu="L4")["after_step"]
        for loop in ("plain", "trainer")
    )
    sizes = {"llama": [500 * 256], "gpt2": [500 * 256, 1024 * 256]}[kind]
    more = trainer.by_category["optimizer_state"] - plain.by_category["optimizer_state"]
    assert more == sum(8 * n - 2 * n - 2 * 4 * n // 256 for n in sizes)


def test_an_optimizer_of_a_simulation_leaves_bitsandbytes_manager_as_it_was():
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    before = dict(manager.pid2config), dict(manager.index2config), list(manager.module_weight_config_triple)
    run(dtype="bf16", optim="adamw_8bit", loop="trainer")
    assert before == (manager.pid2config, manager.index2config, manager.module_weight_config_triple)


def test_paged_states_are_not_in_torchs_count():
    config = small(hidden_size=512)
    plain, paged = (run(config, dtype="fp32", optim=o) for o in ("adamw_8bit", "paged_adamw_8bit"))
    assert (
        paged["after_step"].by_category["optimizer_state"]
        < plain["after_step"].by_category["optimizer_state"] / 4
    )
    assert any("unified memory" in note for note in paged.notes)


# --- activations -----------------------------------------------------------------------------------------


def test_checkpointing_keeps_layer_inputs_only():
    settings = {"dtype": "bf16", "max_length": 256}
    plain, checkpointed = (
        run(gradient_checkpointing=c, **settings)["after_forward"].by_category for c in (False, True)
    )
    stream = 2 * 2 * 256 * 256  # bytes of the residual stream: bf16, 2 rows, 256 tokens, width 256
    assert checkpointed["activations"] < plain["activations"] / 4
    # 2 layer inputs, and the last norm: its fp32 input, normed, output
    assert checkpointed["activations"] == pytest.approx((2 + 2 + 1 + 1) * stream, rel=0.1)


def test_the_plain_loop_keeps_cache_and_logits_and_the_trainer_does_not():
    plain, trainer = (run(loop=loop)["after_step"].by_category for loop in ("plain", "trainer"))
    assert plain["kv_cache"] == 2 * 2 * 2 * (
        2 * 64 * 128
    )  # layers, keys and values, bytes, rows x tokens x width
    assert plain["logits_and_loss"] == 2 * 2 * 64 * 500
    assert "kv_cache" not in trainer
    assert "logits_and_loss" not in trainer


def test_dropout_in_lora_costs_a_mask_and_a_copy():
    without, with_ = (
        run(method="lora", lora_dropout=p)["after_forward"].by_category["lora"] for p in (0.0, 0.1)
    )
    # Two adapters a layer. What dropout wrote takes the place of what it read; its mask comes on top, but not in the
    # first layer, whose input needs no gradient.
    assert with_ - without == 2 * (2 * 64 * 256)


def test_eager_attention_keeps_the_scores_of_every_head():
    sdpa, eager = (run(attention=a, max_length=256)["after_forward"] for a in ("sdpa", "eager"))
    scores = 2 * 4 * 256 * 256
    assert eager.allocated_bytes - sdpa.allocated_bytes > 2 * (4 + 2) * scores


def test_a_t4_writes_out_the_scores_of_grouped_heads_an_l4_does_not():
    # transformers#48633
    t4, l4 = (run(gpu=g, dtype="fp16", max_length=256)["after_forward"] for g in ("T4", "L4"))
    assert t4.allocated_bytes - l4.allocated_bytes > 2 * 4 * (2 * 4 * 256 * 256)


def test_autocast_keeps_16_bit_copies_of_the_adapters():
    # rsLoRA or not: a 7B model with r=16 on q, k, v, o has 0.0254 GiB of them
    found = simulated(
        "mistral-7b-v0.1", method="lora", loop="trainer", mixed_precision="bf16", gpu="A100", max_length=64,
        lora_r=16, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"),
    )  # fmt: skip
    without = simulated(found.setup, mixed_precision=None)
    adapters = found["loaded"].by_category["lora"]
    assert adapters // 2 / GIB == pytest.approx(0.0254, abs=5e-5)
    assert found["after_forward"].by_category["lora"] >= adapters + adapters // 2
    assert without["loaded"].by_category["lora"] == adapters


def test_the_trainers_autocast_makes_the_logits_fp32_once_more():
    # accelerate.utils.operations.convert_to_fp32
    plain, autocast = (run(loop="trainer", mixed_precision=m, max_length=256) for m in (None, "bf16"))
    size = 2 * 256 * 500
    assert plain["after_forward"].by_category["logits_and_loss"] == 4 * size
    assert autocast["after_forward"].by_category["logits_and_loss"] == 4 * size


def test_micro_batches_add_gradients_in_place():
    one, four = (run(dtype="bf16", gradient_accumulation_steps=n) for n in (1, 4))
    assert four["after_backward"].by_category["gradients"] == one["after_backward"].by_category["gradients"]
    assert four["in_step"].allocated_bytes == pytest.approx(one["in_step"].allocated_bytes, rel=1e-3)


# --- our own trainer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_our_trainer_never_has_all_logits(method):
    settings = {"method": method, "max_length": 512, "per_device_train_batch_size": 4}
    everywhere, supervised = (
        run(small(vocab_size=4096), loop=loop, gradient_checkpointing=False, **settings)
        for loop in ("plain", "onegpu")
    )
    all_logits = everywhere.peak.by_category["logits_and_loss"]
    assert all_logits >= 12 * 4 * 512 * 4096
    # a third of the tokens; with a frozen head a chunk of 128
    assert (
        supervised.peak.by_category.get("logits_and_loss", 0)
        < (0.35 if method == "full" else 0.1) * all_logits
    )
    assert supervised.peak_bytes < everywhere.peak_bytes
    assert supervised.setup.loop == "onegpu"


def test_our_trainer_runs_bitsandbytes_layers_through_its_own_lora():
    found = run(
        method="qlora",
        loop="onegpu",
        target_modules="all-linear",
        gpu="T4",
        gradient_checkpointing=True,
    )
    assert found.peak.by_category
    assert found["loaded"].by_category["quantization_state"] > 0
    assert found["after_step"].by_category["gradients"] == 4 * 8 * 2 * (
        4 * 256 + 256 + 256 + 2 * 128 + 3 * (256 + 512)
    )


# --- limits ----------------------------------------------------------------------------------------------


def test_any_decoder_that_transformers_knows_can_be_simulated():
    for name in ("gemma-3-270m", "qwen3-0.6b", "gpt2"):
        found = simulated(name, method="lora", max_length=64, gpu="L4")
        assert found["after_step"].by_category["optimizer_state"] > 0


def state_of_the_libraries():
    functions = (
        torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.dropout, torch.nn.functional.softmax,
        torch.autocast, torch.utils.checkpoint.checkpoint, masking_utils.find_packed_sequence_indices,
        masking_utils.create_causal_mask, bitsandbytes.nn.Linear4bit.forward,
        bitsandbytes.functional.quantize_4bit, torch.optim.AdamW.step,
    )  # fmt: skip
    modes = (
        torch.utils._python_dispatch._get_current_dispatch_mode(),
        len(torch.overrides._get_current_function_mode_stack()),
    )
    tables = {name: t.device.type for name, t in bitsandbytes.functional.name2qmap.items()}
    return (
        [id(f) for f in functions], modes, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(), torch.get_rng_state().tolist(), tables,
    )  # fmt: skip


@pytest.mark.parametrize("settings", [
    {"method": "qlora", "gradient_checkpointing": True, "mixed_precision": "bf16", "loop": "trainer"},
    {"method": "full", "attention": "eager"},
])  # fmt: skip
def test_nothing_is_left_behind(settings):
    before = state_of_the_libraries()
    run(**settings)
    assert state_of_the_libraries() == before


def test_nothing_is_left_behind_after_an_error(monkeypatch):
    before = state_of_the_libraries()

    def fail(*args):
        raise RuntimeError("no batch")

    monkeypatch.setattr(sys.modules["onegpu.gpu_memory.simulated"], "make_batch", fail)
    with pytest.raises(RuntimeError, match="no batch"):
        run(method="qlora", mixed_precision="bf16", loop="trainer")
    monkeypatch.undo()
    assert state_of_the_libraries() == before
    run()


def test_real_4_bit_layers_work_after_a_simulation():
    import bitsandbytes.functional as bnb

    run(method="qlora")
    packed, state = bnb.quantize_4bit(torch.ones(64, 64), quant_type="nf4", compress_statistics=True)
    assert torch.allclose(bnb.dequantize_4bit(packed, state), torch.ones(64, 64), atol=1e-2)


_TIMED = """
from onegpu.gpu_memory import simulated
import time
simulated("smollm2-135m", max_length=16, gpu="L4", method="qlora")
start = time.perf_counter()
simulated("llama-3-8b", method="qlora", gradient_checkpointing=True, max_length=2048, gpu="L4")
print(time.perf_counter() - start)
start = time.perf_counter()
simulated("polyglot-ko-1.3b", per_device_train_batch_size=16, max_length=256, dtype="fp16", gpu="T4")
print(time.perf_counter() - start)
from onegpu.runtime import peak_memory_bytes
print(peak_memory_bytes())
"""


@pytest.mark.slow
def test_an_8b_model_takes_under_2_gib_and_time_as_its_layers_do():
    out = subprocess.run(
        [sys.executable, "-c", _TIMED], capture_output=True, text=True, check=True
    ).stdout.split()
    large, medium, memory = map(float, out)
    assert large < 6 * medium  # 32 layers against 16; seconds alone say how busy the machine is
    assert memory < 2 * GIB


@pytest.mark.parametrize(("settings", "message"), [
    ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0, expected a whole number of at least 1"),
    ({"max_length": 513}, "max_length is 513, but llama has 512 positions"),
    ({"method": "dora"}, "method is 'dora', expected one of 'full', 'lora', 'qlora'"),
    ({"optim": "adam"}, "optim is 'adam', expected one of None, 'adamw_torch'"),
    ({"lora_r": 8}, "method='full' has no adapters, but lora_r was given"),
    ({"dtype": "fp16", "mixed_precision": "fp16"}, "transformers#23165"),
    ({"method": "lora", "dtype": "fp16", "mixed_precision": "fp16", "lora_dtype": "fp16"}, "transformers#23165"),
    ({"optim": "paged_adamw_8bit", "gpu": "cpu"}, "not on a CPU"),
    ({"attention": "flash_attention_2", "gpu": "T4"}, "needs compute capability 8.0, the T4 hasn't"),
    ({"gpu": "T5"}, "unknown GPU 'T5': near are T4"),
    ({"batch_size": 4}, "unknown setting batch_size: near are per_device_train_batch_size"),
    ({"quantization": "int8", "method": "lora"}, "quantization='int8' is for method='qlora'"),
    ({"task": "dpo"}, "needs a second model as the reference"),
    ({"task": "dpo", "method": "lora", "loop": "trl"}, "makes no full logits, which"),
    ({"method": "lora", "target_modules": ("nothing",)}, "not found in the base model"),
])  # fmt: skip
def test_bad_settings_say_what_was_found_and_expected(settings, message):
    with pytest.raises(ValueError, match="(?s).*" + re.escape(message)):
        run(**settings)


@pytest.mark.parametrize(("model", "message"), [
    ("smol", "unknown model 'smol'"),
    (AutoConfig.for_model("t5"), "encoder-decoder"),
    (AutoConfig.for_model("vit"), "no causal language model of type 'vit'"),
])  # fmt: skip
def test_models_that_cannot_be_trained_here_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        simulated(model)


def test_a_layer_in_8_bits_takes_what_bitsandbytes_makes_on_a_card():
    """Its CUDA code by hand (backends/cuda/ops.py, autograd/_functions.py), for one layer and n tokens."""
    n, wide, out = 64, 128, 256
    setup = make_setup("smollm2-135m", method="qlora", quantization="int8", gpu="T4").resolved

    def held(tracker):
        live, most = 0, 0
        for event in tracker.trace.events:
            live += tracker.trace.sizes[event] if event >= 0 else -tracker.trace.sizes[~event]
            most = max(most, live)
        return live, most

    linear = torch.nn.Linear(wide, out, bias=False, device="meta", dtype=torch.float16)
    with StorageTracker("meta", rules=META_RULES) as loading:
        layer = quantized_linear(linear, setup)
    whole, stored = 2 * wide * out, wide * out + 4 * out
    assert held(loading) == (stored, 2 * whole + stored)  # the weight, its copy in fp16, codes, scales
    x = torch.empty(n, wide, device="meta", dtype=torch.float16, requires_grad=True)
    with StorageTracker("meta", rules=META_RULES) as forward:
        y = layer(x)
    scales, codes = 4 * n, n * wide
    assert held(forward) == (
        2 * n * out,
        max(2 * n * wide + n * wide, codes + scales + 4 * n * out + 2 * n * out),
    )
    with StorageTracker("meta", rules=META_RULES) as backward:
        torch.autograd.grad(y.sum(), x)
    assert held(backward)[1] >= whole + 4 * out  # dequantized, for the product with the gradient
