"""A merged model is its base plus the adapter, whoever made the adapter; what can't be known is asked or refused."""

import json
import shutil

import pytest
import torch
from onegpu import models
from onegpu.models import tiny_tokenizer
from onegpu.qlora_finetune import merge as merge_module
from onegpu.qlora_finetune.bases import BASE_FILE, Base, read_base
from onegpu.qlora_finetune.merge import UnknownBase, merge
from packed_training.families import ALL, build
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

IDS = torch.tensor([[1, 40, 50, 60, 70, 9, 8, 7]])
QUICK = ("llama", "gpt2", "qwen2", "gemma2", "bloom", "mixtral", "lfm2", "falcon_h1")
TARGETS = {"gpt2": ["c_attn", "c_fc"], "bloom": ["query_key_value"], "lfm2": ["in_proj", "q_proj", "w1"]}


def some_family(family, folder):
    build(family).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def adapt(model, folder, **changes):
    """Save an adapter of peft's own, none of whose tensors is zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = get_peft_model(
            model,
            LoraConfig(
                **{"r": 4, "lora_alpha": 16, "task_type": "CAUSAL_LM", "target_modules": "all-linear"}
                | changes
            ),
        )
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
            elif "modules_to_save" in name or "magnitude" in name:
                parameter.data.mul_(1.1)
    model.save_pretrained(folder)
    return folder


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS, use_cache=False).logits.float()


def check(base_dir, adapter, tmp_path, quantization=None, **kwargs):
    """Merge, and hold the result's logits against base and adapter together."""
    done = merge(adapter, tmp_path / "merged", quantization=quantization, dtype="fp32", **kwargs)

    def base():
        model = models.load(base_dir, quantization=quantization, dtype=torch.float32).model
        # LLM.int8 rounds the activations too, at each call; what is merged are the weights.
        return model.dequantize() if quantization == "int8" else model

    wanted = logits(PeftModel.from_pretrained(base(), adapter))
    plain = logits(base())
    found = logits(models.load(done.folder, dtype=torch.float32).model)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.std()))
    assert float((wanted - plain).abs().max()) > 20 * float((found - wanted).abs().max())
    assert not list(tmp_path.glob("*.part"))
    return done


@pytest.mark.parametrize(
    "family", [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in ALL]
)
def test_merged_equals_base_and_adapter(family, tmp_path):
    from onegpu.packed_training.adapters import add_lora

    folder = some_family(family, tmp_path / "base")
    model = add_lora(
        models.load(folder, dtype=torch.float32).model,
        r=4,
        alpha=8,
        target_modules=TARGETS.get(family, "all-linear"),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "adapter")
    check(folder, tmp_path / "adapter", tmp_path)


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_merged_equals_the_quantized_base_and_adapter(family, quantization, tmp_path):
    folder = some_family(family, tmp_path / "base")
    base = models.load(folder, quantization=quantization, dtype=torch.float32).model
    adapt(base, tmp_path / "adapter", target_modules=TARGETS.get(family, ["q_proj", "down_proj"]))
    done = check(folder, tmp_path / "adapter", tmp_path, quantization)
    assert not done.by_peft


@pytest.mark.parametrize(
    ("changes", "by_peft"),
    [
        ({"use_rslora": True}, False),
        ({"use_dora": True}, False),
        ({"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 3}}, False),
        ({"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}, True),
        ({"target_modules": ["q_proj", "embed_tokens"]}, True),
        ({"init_lora_weights": "pissa", "target_modules": ["q_proj", "v_proj"]}, True),
        ({"trainable_token_indices": [5, 6], "target_modules": ["q_proj"]}, True),
    ],
    ids=["rslora", "dora", "patterns", "modules_to_save", "embeddings", "pissa", "tokens"],
)
def test_every_kind_of_adapter_that_peft_makes_is_merged_right(changes, by_peft, tmp_path):
    folder = some_family("llama", tmp_path / "base")
    adapt(models.load(folder, dtype=torch.float32).model, tmp_path / "adapter", **changes)
    assert bool(check(folder, tmp_path / "adapter", tmp_path).by_peft) == by_peft


def test_files_are_written_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_module, "FILE_BYTES", 100_000)
    folder = some_family("llama", tmp_path / "base")
    adapt(models.load(folder, dtype=torch.float32).model, tmp_path / "adapter", target_modules=["q_proj"])
    done = check(folder, tmp_path / "adapter", tmp_path)
    assert done.files > 2
    index = json.loads((done.folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {p.name for p in done.folder.glob("*.safetensors")}


@pytest.fixture
def llama(tmp_path):
    folder = some_family("llama", tmp_path / "base")
    return adapt(
        models.load(folder, dtype=torch.float32).model, tmp_path / "adapter", target_modules=["q_proj"]
    )


def test_the_folder_of_a_run_says_what_it_was_trained_on(tiny_config, tmp_path):
    from onegpu.qlora_finetune import finetune

    config = tiny_config(max_steps=2, max_length=128)
    result = finetune(config)
    alone = shutil.copytree(result.adapter_dir, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "run")
    base = read_base(alone)
    assert (base.model, base.kind, base.quantization, base.dtype) == (
        config.model,
        "folder",
        "nf4",
        "float32",
    )
    assert base.weights
    card = (alone / "README.md").read_text()
    assert "nf4" in card
    assert "| lora_r | 4 |" in card
    assert json.loads((alone / "generation_config.json").read_text())["eos_token_id"] == [2]
    done = merge(alone, tmp_path / "merged")
    assert str(base) in str(done)
    assert json.loads((done.folder / "generation_config.json").read_text())["eos_token_id"] == [2]
    saved = load_file(done.folder / "model.safetensors")
    assert {t.dtype for t in saved.values()} == {torch.float16}


def test_an_unknown_quantization_is_asked_for(llama, tmp_path):
    with pytest.raises(UnknownBase, match="--quantization nf4, int8 or none") as error:
        merge(llama, tmp_path / "merged")
    assert error.value.missing == ("quantization",)
    assert not (tmp_path / "merged").exists()


def test_an_unknown_base_is_asked_for(llama, tmp_path):
    config = json.loads((llama / "adapter_config.json").read_text())
    (llama / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(UnknownBase, match="--base"):
        merge(llama, tmp_path / "merged")


def test_other_weights_under_the_same_name_are_refused_unless_they_are_asked_for(llama, tmp_path):
    folder = tmp_path / "base"
    Base(str(folder), "folder", None, None, "float32", "0" * 32).save(llama)
    with pytest.raises(ValueError, match="was trained on other weights"):
        merge(llama, tmp_path / "merged")
    assert merge(llama, tmp_path / "merged", base=folder).files == 1


def test_another_shape_is_named(llama, tmp_path):
    other = tmp_path / "other"
    models.tiny_model(hidden_size=128).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    with pytest.raises(ValueError, match=r"q_proj is \(128, 128\) there, and \(64, 64\) in the adapter"):
        merge(llama, tmp_path / "merged", base=other, quantization=None)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("adapter_model.safetensors", b"", "is damaged"),
        ("adapter_model.safetensors", None, "holds no adapter_model.safetensors"),
        ("adapter_config.json", b"", "is damaged"),
        ("adapter_config.json", b'{"peft_type": "IA3"}', "is a IA3 adapter"),
        (BASE_FILE, b"{", "base_model.json is damaged"),
        (BASE_FILE, b'{"model": "x"}', "base_model.json is damaged"),
    ],
)
def test_damaged_and_foreign_files_are_named(llama, tmp_path, file, content, message):
    if content is None:
        (llama / file).unlink()
    else:
        (llama / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        merge(llama, tmp_path / "merged", quantization=None)
    assert not (tmp_path / "merged").exists()


def test_a_weight_that_fp16_cant_hold_is_refused(llama, tmp_path):
    base = models.load(tmp_path / "base", dtype=torch.float32).model
    base.model.layers[0].mlp.up_proj.weight.data.mul_(1e7)
    base.save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match="--dtype bf16"):
        merge(llama, tmp_path / "merged", quantization=None)
    assert not (tmp_path / "merged").exists()
    merge(llama, tmp_path / "merged", quantization=None, dtype="bf16")
