"""Adapters of every kind, and going on from one that is there: what is saved is what peft loads and what is merged."""

import json
import math
import shutil

import pytest
import torch
from onegpu import models
from onegpu.chat import open_speaker
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import FinetuneConfig, attach_adapters, finetune, predict_memory
from onegpu.qlora_finetune.merge import merge
from peft import PeftModel
from safetensors.torch import load_file

IDS = torch.tensor([[1, 40, 50, 60, 70, 9, 8, 7]])
KINDS = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "head": {"modules_to_save": ("lm_head",)},
    "embeddings, not quantized": {"modules_to_save": ("embed_tokens",), "quantization": None},
    "norms and dora": {"modules_to_save": ("norm",), "use_dora": True},
}


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS, use_cache=False).logits.float()


def tensors(folder):
    return load_file(folder / "adapter" / "adapter_model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_is_what_peft_loads_what_is_merged_who_answers_and_what_goes_on(
    kind, tiny_config, tmp_path
):
    config = tiny_config(**KINDS[kind], max_steps=4)
    result = finetune(config)
    assert result.losses[-1][1] < result.losses[0][1]
    loaded = models.load(config.model, quantization=config.quantization, dtype=torch.float32)
    plain = logits(loaded.model)
    adapted = logits(PeftModel.from_pretrained(loaded.model, result.adapter_dir))
    assert (adapted - plain).abs().max() > 0.01
    merged = merge(result.adapter_dir, tmp_path / "merged", dtype="fp32")
    found = logits(models.load(merged.folder, dtype=torch.float32).model)
    torch.testing.assert_close(found, adapted, rtol=1e-3, atol=1e-3)
    speaker = open_speaker(result.adapter_dir)
    torch.testing.assert_close(logits(speaker.model), adapted, rtol=1e-4, atol=1e-4)
    with speaker.without_adapters().voice():
        torch.testing.assert_close(logits(speaker.model), plain, rtol=1e-4, atol=1e-4)
    card = (tmp_path / "run" / "adapter" / "README.md").read_text()
    assert all(f"| {name} |" in card for name in KINDS[kind] if name != "quantization")

    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    (tmp_path / "run" / "report.json").unlink()
    before = tensors(tmp_path / "run")
    assert finetune(config, resume=True).losses == result.losses
    for name, tensor in tensors(tmp_path / "run").items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_what_is_trained_is_float32_in_16_bits_too(precision, tiny_config):
    loaded = models.load(
        tiny_config().model,
        quantization="nf4",
        dtype=getattr(torch, {"fp16": "float16", "bf16": "bfloat16"}[precision]),
    )
    model = attach_adapters(
        loaded.model, tiny_config(use_dora=True, modules_to_save=("lm_head",)), fp16=precision == "fp16"
    )
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    assert trained == {torch.float32}
    result = finetune(
        tiny_config(use_dora=True, modules_to_save=("lm_head",), precision=precision, max_steps=3)
    )
    assert all(math.isfinite(loss) for _, loss in result.losses)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"modules_to_save": ("head",)},
            r"names head, which LlamaForCausalLM does not have. It has .*'lm_head'",
        ),
        ({"modules_to_save": ("q_proj",)}, "both name model.layers.0.self_attn.q_proj"),
        (
            {"modules_to_save": ("q_proj",), "target_modules": ("v_proj",)},
            "q_proj, which is quantized and so can't",
        ),
    ],
)
def test_what_cant_be_trained_whole_is_refused_by_name(changes, message, tiny_config):
    with pytest.raises(ValueError, match=message):
        finetune(tiny_config(**changes))


def test_memory_of_what_isnt_predicted_is_refused_by_name(tiny_config):
    for changes in ({"use_dora": True}, {"modules_to_save": ("lm_head",)}):
        with pytest.raises(ValueError, match="use_dora and modules_to_save aren't predicted for our trainer"):
            predict_memory(FinetuneConfig(model="smollm2-135m", **changes), "T4")
    plain, rank_stabilized = (FinetuneConfig(model="smollm2-135m", use_rslora=on) for on in (False, True))
    assert predict_memory(rank_stabilized, "T4").peak_bytes == predict_memory(plain, "T4").peak_bytes


@pytest.fixture(scope="module")
def first(tiny_folder, chats_file, tmp_path_factory):
    """A finished run to go on from."""
    folder = tmp_path_factory.mktemp("first") / "run"
    finetune(
        FinetuneConfig(
            model=str(tiny_folder), data=str(chats_file), output_dir=str(folder), max_length=128, max_steps=3, lora_r=4,
            lora_alpha=8, learning_rate=1e-2, warmup_steps=0, max_new_tokens=4, eval_share=0.0, use_rslora=True,
            target_modules=("q_proj", "down_proj"),
        )
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("place", ["", "adapter"])
def test_a_run_goes_on_from_an_adapter(first, place, tiny_config, tmp_path):
    said = []
    config = tiny_config(
        adapter=str(first / place), lora_r=16, lora_alpha=32, max_steps=1, learning_rate=1e-12
    )
    result = finetune(config, say=said.append)
    assert any(
        line.startswith("starting from the adapter") and "rank 4, down_proj, q_proj" in line for line in said
    )
    assert result.config["lora_r"] == 4
    assert result.config["use_rslora"] is True
    was = tensors(first)
    for name, tensor in tensors(tmp_path / "run").items():
        torch.testing.assert_close(tensor, was[name], rtol=0, atol=1e-9)
    longer = finetune(
        tiny_config(adapter=str(first / place), lora_r=16, lora_alpha=32, output_dir=str(tmp_path / "2"))
    )
    assert longer.losses[0][1] == pytest.approx(result.losses[0][1])
    assert longer.losses[-1][1] < longer.losses[0][1]
    settings = [
        json.loads((f / "adapter" / "adapter_config.json").read_text()) for f in (first, tmp_path / "2")
    ]
    for name in ("r", "lora_alpha", "use_rslora", "base_model_name_or_path"):
        assert settings[0][name] == settings[1][name]


def test_dpo_from_an_adapter_starts_at_its_reference(first, tiny_config, tmp_path):
    """The reference is the model as it starts, so the first loss is ln 2; with new adapters that is the base."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Where is {i}?", "chosen": f"At {i}.", "rejected": "No."} for i in range(8)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny_config(
        adapter=str(first),
        lora_r=16,
        lora_alpha=32,
        data=str(pairs),
        method="dpo",
        max_length=None,
        max_steps=2,
    )
    result = finetune(config)
    assert result.losses[0][1] == pytest.approx(math.log(2), abs=1e-5)
    assert result.losses[1][1] < math.log(2) - 1e-4
    assert result.config["max_length"] == 512


def test_another_base_shape_or_kind_than_the_adapters_is_one_sentence(first, tiny_config, tmp_path):
    other = tmp_path / "other"
    tiny_model(hidden_size=128).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    open_ = {"lora_r": 16, "lora_alpha": 32}
    with pytest.raises(ValueError, match=r"was trained on the local folder .*, and model is .*other"):
        finetune(tiny_config(adapter=str(first), model=str(other), **open_))
    with pytest.raises(ValueError, match=r"lora_r is 8, but the adapter in .* has 4: leave lora_r out"):
        finetune(tiny_config(adapter=str(first), lora_r=8, lora_alpha=32))
    with pytest.raises(ValueError, match=r"target_modules is \('v_proj',\), but the adapter"):
        finetune(tiny_config(adapter=str(first), target_modules=("v_proj",), **open_))
    with pytest.raises(ValueError, match="use_dora is True, but the adapter"):
        finetune(tiny_config(adapter=str(first), use_dora=True, **open_))
    unnamed = shutil.copytree(first / "adapter", tmp_path / "unnamed")
    (unnamed / "base_model.json").unlink()
    settings = json.loads((unnamed / "adapter_config.json").read_text())
    (unnamed / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": None}))
    with pytest.raises(
        ValueError, match=r"doesn't belong to this model \(.*size mismatch.*give its own base"
    ):
        finetune(tiny_config(adapter=str(unnamed), model=str(other), **open_))
    assert not (tmp_path / "run" / "finetune_config.json").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: None, "holds no adapter_config.json"),
        (lambda f: (f / "finetune_config.json").write_text("{}"), "isn't finished"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "holds no adapter_model.safetensors"),
        (lambda f: [(f / n).write_text("{") for n in ("adapter_config.json", "adapter_model.safetensors")], "adapter_config.json is damaged"),
    ],
    ids=["nothing", "unfinished", "no weights", "damaged"],
)  # fmt: skip
def test_a_folder_without_a_whole_adapter_is_named(make, message, tiny_config, tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    make(folder)
    with pytest.raises(ValueError, match=message):
        finetune(tiny_config(adapter=str(folder)))


def test_the_adapter_that_a_run_starts_from_isnt_thrown_away(first, tiny_config, tmp_path):
    copy = shutil.copytree(first, tmp_path / "run")
    with pytest.raises(ValueError, match="which overwrite would throw away"):
        finetune(tiny_config(adapter=str(copy), lora_r=16, lora_alpha=32), overwrite=True)
    assert (copy / "adapter" / "adapter_model.safetensors").is_file()
