"""What the lesson shows: how parameters are stored, what a rank costs, a loss curve that grows."""

import pytest
import torch
from onegpu import models
from onegpu.qlora_finetune import FinetuneConfig, attach_adapters, stored_as
from onegpu.widgets.qlora_finetune import ALL, ATTENTION, LiveLoss, layer_shapes


def test_stored_as_counts_packed_weights_whole_and_bytes_as_they_are(tiny_folder):
    loaded = models.load(tiny_folder, quantization="nf4", dtype=torch.float16)
    model = attach_adapters(loaded.model, FinetuneConfig(lora_r=4), fp16=True)
    found = stored_as(model)
    assert found["nf4"] == (73_728, 36_864, 0)
    assert found["float16"] == (384 * 64, 384 * 64 * 2, 0)  # the embeddings, tied to the head
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found["float32"] == (trained + 5 * 64, 4 * (trained + 5 * 64), trained)  # and five norms


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-1.5b", "llama-3-8b"])
@pytest.mark.parametrize(("targets", "names"), [(ALL, "all-linear"), (ATTENTION, ["q_proj", "v_proj"])])
def test_adapted_shapes_are_those_that_peft_adapts(name, targets, names):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(models.find(name).config())
        model = get_peft_model(model, LoraConfig(r=3, target_modules=names, task_type="CAUSAL_LM"))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert 3 * sum(map(sum, layer_shapes(name, targets))) == trained


def test_live_curve_is_drawn_at_the_first_and_the_last_step_and_not_too_often(monkeypatch):
    from onegpu.widgets import qlora_finetune as widgets

    drawn = []
    monkeypatch.setattr(widgets, "png", lambda figure: (drawn.append(figure), b"png")[1])
    live = LiveLoss(every_s=1e9)
    for step in range(1, 11):
        live(step, 10, 4.0 - 0.3 * step)
    assert len(drawn) == 2
    assert live.losses[-1] == (10, 1.0)
    assert "Step 10 of 10: the loss is 1.00, at the first step it was 3.70." in live.picture.value


def test_a_mixture_and_a_convolution_train_and_the_report_says_what_is_special(tiny_config, tmp_path):
    from onegpu.models import tiny_tokenizer
    from onegpu.qlora_finetune import finetune
    from packed_training.families import build
    from safetensors.torch import load_file

    reports = {}
    for family in ("mixtral", "lfm2"):
        folder = tmp_path / family
        build(family).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        result = finetune(
            tiny_config(model=str(folder), max_steps=1, output_dir=str(tmp_path / f"run_{family}"))
        )
        reports[family] = str(result)
        if family == "mixtral":  # attention is in 4 bits; experts, embeddings and head aren't
            four = result.weights["nf4"]["parameters"]
            assert four == 2 * (64 * 64 * 2 + 64 * 32 * 2)
            share = four / sum(n["parameters"] for n in result.weights.values())
            assert f"only {share:.0%} of the parameters are in 4 bits" in reports[family]
    adapted = load_file(tmp_path / "run_mixtral" / "adapter" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in adapted} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert "packed rows equal their examples alone" in reports["mixtral"]
    assert (
        "one example per forward pass: its layers let examples of one row see each other" in reports["lfm2"]
    )
