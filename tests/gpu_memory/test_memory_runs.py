"""The runs that people do: published ones within half a percent, every loop, every kind of model, and the command line."""

import json
import re
import sys

import pytest
import torch
from onegpu.gpu_memory import TrainingSetup, judge, largest_length, remedies, report, simulated
from onegpu.gpu_memory import cuda_kernels as kernels
from onegpu.gpu_memory.published import PUBLISHED
from transformers import AutoConfig

GIB = 2**30
SHAPE = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
         "max_position_embeddings": 512}  # fmt: skip


def small(kind="llama", **changes):
    return AutoConfig.for_model(kind, **{"intermediate_size": 512, **SHAPE, **changes})


def run(config=None, **settings):
    return simulated(config or small(), **{"max_length": 128, "gpu": "L4", **settings})


# --- physics ---------------------------------------------------------------------------------------------------------

QUICK = [r for r in PUBLISHED if r.model in ("smollm2-135m", "smollm2-1.7b") or r.keeps]


@pytest.mark.parametrize(
    "published", QUICK, ids=lambda r: f"{r.model}-{r.settings['method']}-{r.settings['max_length']}"
)
def test_published_runs_are_met_within_half_a_percent(published):
    assert published.predict() == pytest.approx(published.measured_bytes, rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("published", [r for r in PUBLISHED if r not in QUICK], ids=lambda r: r.model)
def test_the_other_published_runs_too(published):
    assert published.predict() == pytest.approx(published.measured_bytes, rel=5e-3)


def test_softmax_backward_makes_a_matrix_of_its_own():
    # SoftMax.cu: tmp = grad * output, in fp32 where the scores were taken to fp32
    half, full = torch.empty(2, 8, dtype=torch.float16), torch.empty(2, 8)
    assert kernels.softmax_backward_bytes((full, full, -1, torch.float16), {}, None) == 2 * 8 * 4
    assert kernels.softmax_backward_bytes((half, half, -1, torch.float16), {}, None) == 2 * 8 * 2
    eager = {a: run(attention=a, method="full", loop="plain", max_length=512) for a in ("eager", "sdpa")}
    scores = 4 * 4 * 512 * 512
    assert eager["eager"].peak_bytes - eager["sdpa"].peak_bytes > 3 * scores


@pytest.mark.parametrize(("ids", "needed"), [(3072, 0), (3073, 3073 * (6 * 8 + 4 * 16))])
def test_embedding_backward_sorts_above_3072_ids(ids, needed):
    grad, index = torch.empty(ids, 16), torch.empty(ids, dtype=torch.int64)
    assert kernels.embedding_backward_bytes((grad, index, 10, -1, False), {}, None) == needed


def test_index_backward_sorts_its_indices():
    index = torch.arange(100)
    assert kernels.index_backward_bytes((None, [None, index], None, True), {}, None) == 100 * 8 * 5
    assert kernels.index_backward_bytes((None, [None, index], None, False), {}, None) == 0


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_card(function):
    """Bytes that a call takes at its highest beyond what it leaves."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    kept = function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated(), kept


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_softmax_backward_takes_that_on_a_card(dtype):
    grad, output = (torch.rand(8, 512, 512, device="cuda", dtype=dtype) for _ in range(2))
    call = torch.ops.aten._softmax_backward_data
    scratch, _ = on_card(lambda: call(grad, output, -1, dtype))
    assert scratch == pytest.approx(
        kernels.softmax_backward_bytes((grad, output, -1, dtype), {}, None), rel=0.01
    )


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("count", [3072, 8192])
def test_embedding_backward_takes_that_on_a_card(count):
    grad = torch.rand(count, 1024, device="cuda", dtype=torch.float16)
    index = torch.randint(0, 1000, (count,), device="cuda")
    args = (grad, index, 1000, -1, False)
    scratch, _ = on_card(lambda: torch.ops.aten.embedding_dense_backward(*args))
    assert scratch == pytest.approx(kernels.embedding_backward_bytes(args, {}, None), rel=0.05, abs=2**20)


@pytest.mark.gpu
@CUDA
def test_index_backward_takes_that_on_a_card():
    index = torch.randperm(100_000, device="cuda")
    whole, value = torch.zeros(100_000, 8, device="cuda"), torch.ones(100_000, 8, device="cuda")
    args = (whole, [index], value, True)
    scratch, _ = on_card(lambda: torch.ops.aten.index_put_(*args))
    assert scratch == pytest.approx(kernels.index_backward_bytes(args, {}, None), rel=0.5, abs=2**20)


# --- loops, tasks, methods ------------------------------------------------------------------------------------------


def test_trl_is_as_its_source_says():
    # trl 1.16: checkpointing, bf16 autocast, fp32 for a name, bf16 adapters on a quantized base, fused optimizer
    setup = TrainingSetup("smollm2-135m", loop="trl", gpu="T4").resolved
    assert setup.gradient_checkpointing
    assert (setup.dtype, setup.mixed_precision, setup.lora_dtype) == ("fp32", "bf16", "bf16")
    assert (setup.optim, setup.prepare_kbit, setup.packing) == ("adamw_torch_fused", False, False)
    trl = pytest.importorskip("trl")
    assert trl.SFTConfig.__dataclass_fields__["gradient_checkpointing"].default is True


def test_trl_makes_its_logits_in_tiles_and_the_trainer_at_once():
    config = small(vocab_size=40_000)
    trl, trainer = (
        run(
            config,
            loop=loop,
            per_device_train_batch_size=4,
            gradient_checkpointing=True,
            dtype="bf16",
            supervised_fraction=1.0,
        )
        for loop in ("trl", "trainer")
    )
    tokens = 4 * 128
    assert trl.peak_bytes < trainer.peak_bytes - 4 * tokens * 40_000
    whole = run(config, loop="trl", method="full", per_device_train_batch_size=4)
    frozen = run(config, loop="trl", method="lora", per_device_train_batch_size=4)
    assert whole.peak_bytes - frozen.peak_bytes > 4 * 40_000 * 256  # the head's gradient is summed in fp32


def test_the_tile_is_that_of_trls_source():
    chunked = pytest.importorskip("trl.kernels.chunked_logprob")
    from onegpu.gpu_memory import trl_head
    from trl.trainer import utils

    assert trl_head.TILE_POSITIONS == chunked.TOKEN_CHUNK_SIZE
    assert trl_head.TILE_VOCABULARY == utils._CHUNKED_LOGPROB_CHUNK_SIZE


def test_full_fine_tuning_under_autocast_keeps_16_bytes_a_parameter():
    found = run(method="full", loop="trainer", dtype="fp32", mixed_precision="bf16")["after_step"].by_category
    count = found["weights"] // 4
    kept = sum(found[c] for c in ("weights", "gradients", "optimizer_state"))
    assert kept == pytest.approx(16 * count, rel=1e-3)
    assert (
        TrainingSetup("smollm2-135m", method="full", gpu="T4").resolved.dtype == "fp32"
    )  # the scaler wants that


def test_dpo_takes_two_rows_a_pair_and_the_reference_comes_on_top():
    sft, dpo = (run(task=task, loop="trainer", gradient_checkpointing=True) for task in ("sft", "dpo"))
    assert dpo.setup.batch_size == 2 * sft.setup.batch_size
    assert dpo.peak_bytes > sft.peak_bytes


def test_our_own_dpo_takes_the_memory_of_a_row_and_makes_no_full_logits():
    """A row holds whole pairs, and the reference's pass keeps nothing: little comes on top of a fine-tune's row."""
    sft, dpo = (run(task=task, loop="onegpu") for task in ("sft", "dpo"))
    assert dpo.setup.tokens == sft.setup.tokens
    assert sft.peak_bytes <= dpo.peak_bytes < 1.02 * sft.peak_bytes
    textbook = run(task="dpo", loop="trainer", max_length=dpo.setup.max_length // 2)
    assert textbook.setup.tokens == dpo.setup.tokens
    assert dpo.peak_bytes < textbook.peak_bytes


def test_evaluation_keeps_no_activations_and_generation_the_cache():
    evaluated, trained = run(task="evaluate"), run(loop="plain", gradient_checkpointing=False)
    assert [m.name for m in evaluated.moments] == ["loaded", "after_forward"]
    assert evaluated.peak_bytes < trained.peak_bytes
    generated = run(task="generate")
    assert (
        generated["after_forward"].by_category["kv_cache"] == 2 * 2 * 2 * 128 * 128
    )  # layers, k and v, bytes, tokens, width


@pytest.mark.parametrize(
    ("optim", "each"), [("lion_32bit", 4), ("lion_8bit", 1), ("adafactor", None), ("sgd", 0)]
)
def test_other_optimizers_keep_what_they_say(optim, each):
    found = run(method="full", loop="plain", dtype="fp32", optim=optim)
    count = found["loaded"].by_category["weights"] // 4
    kept = found["after_step"].by_category.get("optimizer_state", 0)
    if each is None:  # a row and a column for each matrix
        assert 0 < kept < 0.05 * 4 * count
    else:
        assert kept == pytest.approx(each * count, rel=0.05)


def test_whole_modules_and_dora_are_trained_too():
    plain, with_head, dora = (
        run(method="lora", loop="trainer", **more)
        for more in ({}, {"modules_to_save": ("lm_head",)}, {"use_dora": True})
    )
    gradients = [f["after_step"].by_category["gradients"] for f in (plain, with_head, dora)]
    assert gradients[1] - gradients[0] >= 2 * 500 * 256
    assert gradients[2] > gradients[0]


def test_expanded_keys_take_the_fused_kernel_on_a_t4():
    grouped, expanded = (
        run(gpu="T4", attention=a, method="lora", loop="plain", max_length=512)
        for a in ("sdpa", "sdpa_expanded")
    )
    assert expanded.peak_bytes < grouped.peak_bytes - 4 * 4 * 512 * 512


@pytest.mark.parametrize(("settings", "why"), [
    ({"method": "full", "loop": "plain", "dtype": "fp16"}, "nan"),
    ({"loop": "trl", "mixed_precision": "fp16"}, "no kernel for bf16 gradients"),
])  # fmt: skip
def test_what_fits_but_does_not_train_is_said_to(settings, why):
    found = judge(run(gpu="T4", **settings))
    assert why in found.breakdown.setup.why_it_does_not_train
    assert why in str(found)


# --- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["T4", "L4"])
@pytest.mark.parametrize("kind", ["olmoe", "qwen3_moe"])
def test_experts_stay_in_16_bits_and_that_is_said(kind, gpu):
    config = small(kind, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, intermediate_size=128,
                   eos_token_id=1, pad_token_id=0)  # fmt: skip
    found = run(config, gpu=gpu)
    assert found["loaded"].by_category["weights"] >= 2 * 8 * 3 * 128 * 256 * 2
    assert any("8 experts" in note for note in found.notes)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors"])
def test_weights_that_are_stored_otherwise_are_refused_by_name(method):
    with pytest.raises(ValueError, match=f"stored as {method.upper()}"):
        run(small(quantization_config={"quant_method": method, "bits": 4}))


def test_a_4_bit_checkpoint_is_read():
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    found = run(small(quantization_config=stored))
    assert not found.setup.double_quantization
    with pytest.raises(ValueError, match="use method='qlora'"):
        run(small(quantization_config=stored), method="lora")


def test_a_tower_is_named_and_not_counted():
    config = AutoConfig.for_model("gemma3")
    config.text_config.num_hidden_layers = 1
    assert any("the vision tower (" in note for note in run(config).notes)


def test_a_configuration_file_is_enough(tmp_path):
    small().save_pretrained(tmp_path)
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path / "config.json")):
        assert run(source)["loaded"].allocated_bytes == run()["loaded"].allocated_bytes
    with pytest.raises(ValueError, match="no file"):
        run(tmp_path / "other.gguf")


def test_a_ggufs_header_is_its_configuration_and_it_is_not_quantized_again(tmp_path):
    import gguf

    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(256), writer.add_feed_forward_length(512), writer.add_block_count(2)
    (
        writer.add_head_count(4),
        writer.add_head_count_kv(2),
        writer.add_vocab_size(500),
        writer.add_context_length(512),
    )
    (
        writer.write_header_to_file(),
        writer.write_kv_data_to_file(),
        writer.write_tensors_to_file(),
        writer.close(),
    )
    of_file, of_config = (run(m, method="lora") for m in (path, small(tie_word_embeddings=True)))
    assert of_file.peak_bytes == of_config.peak_bytes
    assert any("dequantizes a GGUF" in note for note in of_file.notes)
    with pytest.raises(ValueError, match=r"quantized already and is loaded in 16 bits.*method='lora'"):
        run(path, method="qlora")


@pytest.mark.parametrize(
    ("file", "message"),
    [(None, "holds no config.json and no .gguf file"), ("adapter_config.json", "give its base model")],
)
def test_a_folder_without_a_configuration_is_named(file, message, tmp_path):
    if file:
        (tmp_path / file).write_text("{}")
    with pytest.raises(ValueError, match=message):
        run(tmp_path)


def test_one_name_of_a_layer_is_no_pattern():
    with pytest.raises(
        ValueError, match=r"target_modules is 'q_proj', a pattern .* \['down_proj'.*give names in a list"
    ):
        run(target_modules="q_proj")
    assert run(target_modules=r".*\.q_proj").peak_bytes == run(target_modules=("q_proj",)).peak_bytes


def test_a_model_with_code_of_its_own_is_refused_without_naming_arguments(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}})
    )
    with pytest.raises(ValueError, match="needs code of its own") as caught:
        run(tmp_path)
    assert "trust_remote_code" not in str(caught.value)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_remedies_come_in_the_order_in_which_one_would_take_them():
    config = small(num_hidden_layers=4, vocab_size=30_000)
    asked = {
        "method": "lora",
        "loop": "plain",
        "per_device_train_batch_size": 4,
        "max_length": 512,
        "gpu": "L4",
    }
    found = remedies(config, count=20, budget_bytes=10 * GIB, **asked)
    names = ["max_length" in f.changes for f in found], ["optim" in f.changes for f in found]
    assert found[0].changes == {"gradient_checkpointing": True}
    assert names[0].index(True) < names[1].index(True)
    assert found[[("method" in f.changes) for f in found].index(True)].changes["method"] == "qlora"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["T4", "V100"])
def test_what_does_not_fit_ends_in_a_verdict_and_something_that_fits(gpu):
    # once: "mixed_precision='fp16' needs fp32 trainable weights", about a setting that nobody gave
    found = report("polyglot-ko-1.3b", gpu, method="full", per_device_train_batch_size=16, max_length=256)
    assert not found.fit
    assert found.remedies
    assert all(found.remedies)


def test_the_longest_rows_fit_and_longer_ones_do_not():
    found = largest_length(small(max_position_embeddings=4096), "T4", loop="plain", attention="eager", method="full",
                           per_device_train_batch_size=16)  # fmt: skip
    assert found.value % 64 == 0
    assert found.fit
    assert found.next_fit is None or not found.next_fit


def test_the_table_fits_80_columns():
    text = str(report(small(), "T4", per_device_train_batch_size=4, max_length=256))
    assert max(map(len, text.splitlines())) <= 80


def call(monkeypatch, capsys, *arguments):
    from onegpu.cli import main

    monkeypatch.setattr(sys, "argv", ["onegpu", "memory", *map(str, arguments)])
    try:
        main()
        status = 0
    except SystemExit as stopped:
        status = stopped.code or 0
    out, err = capsys.readouterr()
    return status, out, err


def test_the_status_guards_a_job(monkeypatch, capsys, tmp_path):
    small().save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    assert call(monkeypatch, capsys, config)[0] == 0
    large = (config, "--method", "full", "--batch-size", 8192, "--loop", "plain")
    status, out, _ = call(monkeypatch, capsys, *large)
    assert status == 2
    assert "does not fit" in out
    assert call(monkeypatch, capsys, *large, "--exit-zero")[0] == 0


@pytest.mark.parametrize(("arguments", "says"), [
    (("--batch-size", "0"), "per_device_train_batch_size is 0"),
    (("--length", "513"), "max_length is 513, but"),
    (("--gpu", "t5"), "near are T4"),
    (("--loop", "unsloth"), "loop is 'unsloth', expected one of 'onegpu'"),
    (("--set", "optimizer=adam"), "near are optim"),
    (("--largest", "rank"), "expected batch or length"),
    (("--no-such-option",), "No such option"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_1(monkeypatch, capsys, tmp_path, arguments, says):
    small().save_pretrained(tmp_path)
    status, _, err = call(monkeypatch, capsys, tmp_path / "config.json", *arguments)
    assert status == 1
    assert re.search(re.escape(says), err)


def test_commas_make_a_list_of_targets(monkeypatch, capsys, tmp_path):
    small().save_pretrained(tmp_path)
    asked = ("--set", "target_modules=q_proj,v_proj", "--json")
    status, out, _ = call(monkeypatch, capsys, tmp_path / "config.json", *asked)
    assert status == 0
    assert json.loads(out)["settings"]["target_modules"] == ["q_proj", "v_proj"]
