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
