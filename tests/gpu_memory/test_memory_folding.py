"""Four layers stand for all: the trace that is made of them is the whole model's, event by event."""

import importlib

import pytest
from onegpu.gpu_memory import make_setup
from transformers import AutoConfig

module = importlib.import_module("onegpu.gpu_memory.simulated")
LAYERS = 7
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 512}  # fmt: skip
OF_GPT2 = {
    "n_embd": 64,
    "n_layer": LAYERS,
    "n_head": 4,
    "vocab_size": 300,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def config(kind, **changes):
    return AutoConfig.for_model(kind, **(OF_GPT2 if kind == "gpt2" else SIZES) | changes)


def traces(monkeypatch, of, **settings):
    """The trace of a step, made of four layers and whole; the first is None where the layers weren't alike."""
    setup = make_setup(of, **{"max_length": 48, "gpu": "T4"} | settings).resolved
    unfolded = []
    with monkeypatch.context() as patch:
        unfold = module.unfold
        patch.setattr(module, "unfold", lambda *a: unfolded.append(unfold(*a)) or unfolded[-1])
        module.trace_step(setup, of)
    with monkeypatch.context() as patch:
        patch.setattr(module, "fold", lambda *a: None)
        whole = module.trace_step(setup, of)
    return (unfolded or [None])[0], whole


def differing(one, other):
    """What of two traces isn't the same, by name."""
    names = ("events", "sizes", "categories", "operations", "recomputed", "marks", "work")
    return [name for name in names if getattr(one, name) != getattr(other, name)]


@pytest.mark.parametrize("loop", ["onegpu", "trl", "trainer", "plain"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "qwen3"])
def test_the_trace_is_the_whole_models_in_every_loop(monkeypatch, kind, loop):
    folded, whole = traces(monkeypatch, config(kind), loop=loop)
    assert differing(folded, whole) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "full", "loop": "plain", "optim": "adamw_8bit"},
        {"method": "full", "optim": "adamw_torch_fused", "gradient_accumulation_steps": 3},
        {"method": "full", "loop": "trainer", "optim": "lion_8bit", "gradient_checkpointing": True},
        {"method": "full", "gpu": "cpu"},
        {"method": "lora", "loop": "plain", "attention": "eager", "lora_dropout": 0.1, "optim": "sgd"},
        {"method": "lora", "loop": "trainer", "use_dora": True, "dtype": "fp16", "gpu": "L4"},
        {"method": "lora", "loop": "trl", "modules_to_save": "lm_head", "gpu": "L4"},
        {"quantization": "int8", "loop": "plain", "gpu": "cpu"},
        {"quantization": "int8", "loop": "onegpu", "gpu": "L4"},
        {"task": "dpo"},
        {"task": "dpo", "loop": "trainer", "gradient_checkpointing": True},
        {"task": "evaluate"},
        {"task": "generate", "loop": "plain"},
        {"lengths": (7, 30, 44, 12, 48, 21), "per_device_train_batch_size": 2, "packing": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_trace_is_the_whole_models_in_every_setting(monkeypatch, settings):
    folded, whole = traces(monkeypatch, config("llama"), **settings)
    assert differing(folded, whole) == []


def test_adafactors_trace_is_the_whole_models_and_its_bytes_moved_nearly(monkeypatch):
    """A few of the numbers that it moves beside the layers can't be told to be a layer's: the memory is exact."""
    folded, whole = traces(monkeypatch, config("llama"), method="full", loop="trainer", optim="adafactor")
    assert differing(folded, whole) == ["work"]
    assert folded.work["step"].moved_bytes == pytest.approx(whole.work["step"].moved_bytes, rel=1e-3)


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_the_trace_is_that_of_older_models_too(monkeypatch, kind):
    folded, whole = traces(monkeypatch, config(kind), method="full", loop="plain")
    assert differing(folded, whole) == []


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma3_text", {}),  # windows in five of six layers
        (
            "smollm3",
            {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2},
        ),  # every fourth layer without positions
        ("qwen2_moe", {"decoder_sparse_step": 2, "num_experts": 4, "moe_intermediate_size": 32}),
    ],
)
def test_a_model_whose_layers_differ_is_run_whole(monkeypatch, kind, changes):
    folded, whole = traces(monkeypatch, config(kind, **changes), method="full", loop="plain")
    assert folded is None
    assert len(whole.events) > 100


@pytest.mark.parametrize("targets", [("layers.6.self_attn.q_proj",), r".*\.[01]\.self_attn\.q_proj"])
def test_adapters_on_some_layers_alone_are_run_whole(monkeypatch, targets):
    folded, _ = traces(monkeypatch, config("llama"), loop="plain", target_modules=targets)
    assert folded is None


def test_twins_that_differ_are_found_out(monkeypatch):
    """A layer that makes one tensor more than its twin: nothing is made of that."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    forward, kept = LlamaMLP.forward, []

    def third_is_greedy(self, x):
        kept.append(x.shape)
        out = forward(self, x)
        return out + 1 if len(kept) == 3 else out

    monkeypatch.setattr(LlamaMLP, "forward", third_is_greedy)
    folded, _ = traces(monkeypatch, config("llama"), method="full", loop="plain")
    assert folded is None
