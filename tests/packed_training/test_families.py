"""Every family trains on the loss that transformers computes for each example alone, packed where that is right."""

import contextlib

import pytest
import torch
from onegpu.packed_training import collate_rows, self_check
from onegpu.packed_training.adapters import add_lora, linear_layers
from onegpu.packed_training.loss import supervised_loss
from onegpu.packed_training.self_check import some_examples, use_row_layout
from torch.nn import functional as F

from .families import ALL, MORE_THAN_ATTENTION, PACKED, build


def examples(lengths=(12, 30, 7, 19)):
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(4, 380, (n,), generator=generator).tolist() for n in lengths]
    return [{"input_ids": ids, "labels": ids} for ids in rows]


def mean_loss_of_transformers(model, row):
    with torch.no_grad():
        losses = [
            model(input_ids=(ids := torch.tensor([e["input_ids"]])), labels=ids, use_cache=False).loss
            for e in row
        ]
    lengths = torch.tensor([len(e["input_ids"]) - 1.0 for e in row])
    return float(torch.stack(losses) @ lengths / lengths.sum())


@pytest.mark.parametrize("family", ALL)
def test_the_loss_is_transformers_own_for_each_example_alone(family):
    row = examples()
    model = build(family)
    wanted = mean_loss_of_transformers(model, row)
    model = add_lora(model, r=4, alpha=8)
    check = use_row_layout(model, row)
    assert check.packed == (family in PACKED), check
    loss, n = supervised_loss(model.train(), collate_rows([row]), **check.layout)
    assert loss.item() / n == pytest.approx(wanted, rel=2e-5)
    loss.backward()
    adapters = {name: p for name, p in model.named_parameters() if "lora_B" in name}
    dead = [name for name, p in adapters.items() if p.grad is None or not p.grad.any()]
    assert adapters
    assert not dead


def beginning_alike(lengths=(22, 40, 17, 29), alike=10):
    """Examples that begin with the same tokens, of which the labels know nothing."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randint(100, (alike,), generator=generator).tolist()
    found = []
    for n in lengths:
        ids = start + torch.randint(100, (n - alike,), generator=generator).tolist()
        found.append({"input_ids": ids, "labels": [-100] * (alike + 1) + ids[alike + 1 :]})
    return found


@pytest.mark.parametrize("family", ALL)
def test_what_all_examples_begin_with_is_computed_once_and_changes_no_loss_and_no_gradient(family):
    row = beginning_alike()
    model = add_lora(build(family), r=4, alpha=8)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    layout = use_row_layout(model, row).layout
    assert layout["shared_start"] == (family in PACKED)
    widths = []
    model.get_input_embeddings().register_forward_hook(lambda m, args, out: widths.append(out.shape[1]))
    found = []
    for shared in (layout["shared_start"], False):
        loss, n = supervised_loss(model.train(), collate_rows([row]), **layout | {"shared_start": shared})
        loss.backward()
        found.append(
            (loss.detach(), n, {k: p.grad for k, p in model.named_parameters() if p.grad is not None})
        )
        model.zero_grad()
    (ours, n, slopes), (theirs, m, wanted) = found
    assert n == m
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for name, slope in wanted.items():
        torch.testing.assert_close(
            slopes[name], slope, rtol=1e-3, atol=1e-4 * float(slope.abs().max()), msg=name
        )
    if layout["shared_start"]:
        assert widths == [sum(map(len, (e["input_ids"] for e in row))) - 3 * 10, 108]


def test_a_start_that_changes_losses_is_found(monkeypatch):
    model = add_lora(build(next(iter(PACKED))), r=4, alpha=8)
    assert use_row_layout(model, beginning_alike()).shared_start
    assert not use_row_layout(model, examples()).shared_start  # nothing is alike
    cut = self_check.share_start

    def from_zero(batch):
        batch = cut(batch)
        return batch | {"position_ids": torch.cat([torch.arange(n) for n in batch["seq_lens"]])[None]}

    monkeypatch.setattr(self_check, "share_start", from_zero)
    check = use_row_layout(model, beginning_alike())
    assert check.packed
    assert not check.shared_start


def attention_after_asking(model, row):
    """The attention of a model that was asked to pack unchecked; where it refuses, the message says what to do."""
    with contextlib.suppress(ValueError):
        use_row_layout(model, row, check=False)
        return model.config._attn_implementation
    with pytest.raises(ValueError, match="packing=False"):
        use_row_layout(model, row, check=False)
    return model.config._attn_implementation


@pytest.mark.parametrize("family", MORE_THAN_ATTENTION)
def test_unchecked_packing_would_have_been_wrong_or_refused(family):
    row = examples()
    model = build(family)
    wanted = mean_loss_of_transformers(model, row)
    if "packed_sdpa" not in attention_after_asking(model, row):
        return
    with torch.no_grad():
        loss, n = supervised_loss(model, collate_rows([row]), chunked_head=False)
    assert abs(loss.item() / n - wanted) > 1e-4


def test_a_leak_shows_in_half_precision_too():
    model = build("bamba").bfloat16()
    assert not use_row_layout(model, examples()).packed
    assert use_row_layout(build("llama").bfloat16(), examples()).packed


def test_a_head_that_is_no_plain_product_is_found(monkeypatch):
    model = build("recurrent_gemma")  # soft cap: no weight of the head says so
    monkeypatch.setattr("onegpu.packed_training.loss._plain_head", lambda model: model.lm_head.weight)
    check = use_row_layout(model, examples())
    assert not check.chunked_head
    assert "the model's own head: ours differs" in str(check)


def test_an_attention_that_does_more_than_ours_is_found(monkeypatch):
    model = build("llama")
    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: plain(*a, **k) * 0.5)
    row = examples()
    check = use_row_layout(model, row)
    assert check.packed  # what both sides share is the model's own business

    from onegpu.packed_training import attention

    monkeypatch.undo()
    monkeypatch.setattr(
        attention, "F", type("F", (), {"scaled_dot_product_attention": lambda *a, **k: plain(*a, **k) * 0.5})
    )
    check = use_row_layout(build("llama"), row)
    assert not check.packed
    assert "its attention does more than ours" in str(check)


def test_without_packing_each_example_is_a_forward_pass_of_its_own():
    model = build("llama")
    seen = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    check = use_row_layout(model, examples(), packing=False)
    seen.clear()
    supervised_loss(model, collate_rows([examples(), examples((5,))]), **check.layout)
    assert seen == [12, 30, 7, 19, 5]
    assert model.config._attn_implementation != "packed_sdpa"


def test_switched_off_says_so_and_a_model_that_cant_run_is_named():
    model = build("llama")
    assert str(use_row_layout(model, some_examples(model), check=False)) == "switched off (self_check=False)"
    model.model.layers[0].mlp.down_proj = torch.nn.Linear(3, 3)
    with pytest.raises(
        ValueError, match="LlamaForCausalLM can't be trained here: even one example alone fails"
    ):
        use_row_layout(model, examples())


@pytest.mark.parametrize(
    ("family", "left_out"),
    [
        ("mixtral", {"lm_head": "head"}),
        ("phimoe", {"lm_head": "head", "router": "router"}),
        ("qwen2_moe", {"lm_head": "head", "shared_expert_gate": "router"}),
        (
            "jamba",
            {
                "lm_head": "head",
                "out_proj": "read past the adapter",
                "dt_proj": "read past the adapter",
            },
        ),
    ],
)
def test_router_head_and_state_space_projections_get_no_adapter(family, left_out):
    model = build(family)
    layers = linear_layers(model)
    assert {name.rsplit(".", 1)[-1]: why for name, why in layers.items() if why} == left_out
    model = add_lora(model, r=4, alpha=8)
    adapted = {
        n.split("base_model.model.")[1].split(".lora_A")[0]
        for n, _ in model.named_parameters()
        if "lora_A" in n
    }
    assert adapted == {name for name, why in layers.items() if not why}


def test_a_vision_tower_gets_no_adapter():
    model = build("llama")
    model.vision_tower = torch.nn.Sequential(torch.nn.Linear(4, 4))
    assert linear_layers(model)["vision_tower.0"] == "not reached by text"


def test_an_unknown_name_gets_the_layers_there_are_but_for_the_head():
    with pytest.raises(
        ValueError, match=r"Its linear layers are \['down_proj', 'gate_proj', 'k_proj', 'o_proj', 'q"
    ):
        add_lora(build("llama"), r=4, alpha=8, target_modules=["query_key_value"])
    with pytest.raises(ValueError, match=r"'v_proj'\]; 'all-linear'"):
        add_lora(build("llama"), r=4, alpha=8, target_modules=["lm"])
