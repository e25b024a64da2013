"""What makes the trainer fast must not change a number: attention, adapters, head and loss against the plain way."""

import copy

import pytest
import torch
from chats import chat
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.packed_training import IGNORE_INDEX, collate_rows
from onegpu.packed_training.attention import packed_sdpa, use_packed_attention
from onegpu.packed_training.lora import fuse_lora
from onegpu.packed_training.loss import HeadLoss, no_mask, supervised_loss
from onegpu.qlora_finetune import FinetuneConfig, attach_adapters
from onegpu.sft_datasets import tokenize_rows
from torch.nn import functional as F


def examples(n=5):
    done = tokenize_rows([chat(i) for i in range(n)], tiny_tokenizer())
    return [{"input_ids": list(e.input_ids), "labels": list(e.labels)} for e in done]


def with_adapters(model, **changes):
    """Adapters whose B is not zero, so that every gradient is at work."""
    use_packed_attention(model)
    model = attach_adapters(
        model, FinetuneConfig(lora_r=4, lora_alpha=8, gradient_checkpointing=False, **changes)
    )
    generator = torch.Generator().manual_seed(1)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data = torch.randn(p.shape, generator=generator) * 0.1
    return model.train()


def padded_loss(model, rows):
    """Mean over supervised tokens the usual way: right padding, a mask, logits everywhere."""
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [3] * (width - len(r["input_ids"])) for r in rows])
    labels = torch.tensor([r["labels"] + [IGNORE_INDEX] * (width - len(r["labels"])) for r in rows])
    mask = torch.tensor([[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in rows])
    logits = model(input_ids=ids, attention_mask=mask).logits
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORE_INDEX
    )


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_packed_loss_and_gradients_equal_the_padded_full_logits_way(tiny_nf4):  # trl#784, functionary#265
    rows = examples()
    model = with_adapters(tiny_nf4.model)
    loss, n = supervised_loss(model, collate_rows([rows]))
    (loss / n).backward()
    ours = gradients(model)
    model.zero_grad()
    model.base_model.model.set_attn_implementation("sdpa")
    usual = padded_loss(model, rows)
    usual.backward()
    assert (loss / n).item() == pytest.approx(usual.item(), rel=1e-5)
    theirs = gradients(model)
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-3, atol=1e-6)


def test_examples_of_one_row_do_not_see_each_other(tiny_nf4):
    first, second = examples(2)
    model = with_adapters(tiny_nf4.model).eval()

    def hidden(*rows):
        batch = collate_rows([list(rows)])
        return model.base_model.model.model(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=no_mask(),
            seq_lens=batch["seq_lens"], use_cache=False,
        ).last_hidden_state[0]  # fmt: skip

    n = len(first["input_ids"])
    together = hidden(first, second)
    torch.testing.assert_close(together[:n], hidden(first))
    torch.testing.assert_close(together[n:], hidden(second))


def test_a_packed_row_without_its_lengths_is_refused():
    model = tiny_model()
    use_packed_attention(model)
    with pytest.raises(ValueError, match="got a packed row without its seq_lens"):
        model(input_ids=torch.tensor([[1, 2, 3]]), attention_mask=no_mask())


def test_lengths_must_add_up_to_the_row():
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="add up to 4 in a batch of 1 rows of 5 tokens"):
        packed_sdpa(torch.nn.Module(), q, q, q, no_mask(), seq_lens=(2, 2))


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_sliding_window_keeps_to_its_window(kv_heads):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 7, 8), torch.randn(1, kv_heads, 7, 8), torch.randn(1, kv_heads, 7, 8)
    out, _ = packed_sdpa(torch.nn.Module(), q, k, v, no_mask(), seq_lens=(5, 2), sliding_window=3)
    k, v = (t.repeat_interleave(4 // kv_heads, dim=1) for t in (k, v))
    window = torch.einsum("hd,hkd->hk", q[0, :, 4], k[0, :, 2:5]) / 8**0.5
    expected = torch.einsum("hk,hkd->hd", window.softmax(-1), v[0, :, 2:5])
    torch.testing.assert_close(out[0, 4], expected)


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("sliding_window", [None, 3])
def test_a_second_answer_sees_the_prompt_that_stands_before_the_first(kv_heads, sliding_window):
    """Prompt of 3 tokens with an answer of 2, then another answer of 4, of which the prompt comes before."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 9, 8), torch.randn(1, kv_heads, 9, 8), torch.randn(1, kv_heads, 9, 8)
    out, _ = packed_sdpa(
        torch.nn.Module(),
        q,
        k,
        v,
        no_mask(),
        seq_lens=(5, 4),
        prefix_lens=(0, 3),
        sliding_window=sliding_window,
    )
    again = [0, 1, 2, 5, 6, 7, 8]
    whole, _ = packed_sdpa(
        torch.nn.Module(),
        *(t[:, :, again] for t in (q, k, v)),
        no_mask(),
        seq_lens=(7,),
        sliding_window=sliding_window,
    )
    torch.testing.assert_close(out[:, 5:], whole[:, 3:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_of_16_bit_rows_on_a_cpu_is_that_of_float32_rounded(dtype):
    torch.manual_seed(0)
    plain = [torch.randn(1, heads, 60, 16).to(dtype).float().requires_grad_() for heads in (4, 2, 2)]
    short = [t.detach().to(dtype).requires_grad_() for t in plain]
    examples = {"seq_lens": (40, 20), "prefix_lens": (0, 10), "sliding_window": 30}
    wanted, _ = packed_sdpa(torch.nn.Module(), *plain, no_mask(), **examples)
    with torch.autocast("cpu", torch.bfloat16):  # which would cast back what the kernel is given
        found, _ = packed_sdpa(torch.nn.Module(), *short, no_mask(), **examples)
    assert torch.equal(found, wanted.to(dtype))
    slope = torch.randn_like(wanted).to(dtype)
    wanted.backward(slope.float())
    found.backward(slope)
    for ours, theirs in zip(short, plain, strict=True):
        assert torch.equal(ours.grad, theirs.grad.to(dtype))


def test_without_lengths_it_is_plain_sdpa():
    model = tiny_model()
    ids = torch.tensor([[3, 3, 5, 6, 7], [8, 9, 10, 11, 12]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    plain = model(input_ids=ids, attention_mask=mask).logits
    use_packed_attention(model)
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, plain)


def test_fused_adapter_equals_pefts_own_forward_and_backward(tiny_nf4):
    model = with_adapters(tiny_nf4.model)
    layer = next(m for m in model.modules() if type(m).__name__ == "Linear4bit" and hasattr(m, "lora_A"))
    x = torch.randn(2, 3, layer.in_features)

    def run(forward):
        leaf = x.clone().requires_grad_()
        out = forward(leaf)
        out.pow(2).sum().backward()
        grads = [leaf.grad, layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad]
        model.zero_grad()
        return [out.detach(), *(g.clone() for g in grads)]

    fused, plain = run(layer), run(lambda v: type(layer).forward(layer, v))
    for ours, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_layer_without_an_adapter_returns_the_products_dtype(tiny_nf4, dropout):
    """So adapters on a few layers leave no stream of fp32 behind; so does the base of a layer with dropout."""
    model = with_adapters(tiny_nf4.model, target_modules=("q_proj", "v_proj"), lora_dropout=dropout)
    layers = dict(model.named_modules())
    bare = next(layer for name, layer in layers.items() if name.endswith("down_proj"))
    x = torch.randn(1, 3, bare.in_features)

    def run(forward):
        leaf = x.clone().requires_grad_()
        out = forward(leaf)
        out.float().pow(2).sum().backward()
        return out.detach(), leaf.grad

    for ours, theirs in zip(run(bare), run(lambda v: type(bare).forward(bare, v)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, grad = run(bare)
        q = next(layer for name, layer in layers.items() if name.endswith("q_proj"))
        assert out.dtype == q(torch.randn(1, 3, q.in_features)).dtype == torch.bfloat16
    assert grad.dtype == torch.float32


def test_dropout_keeps_pefts_own_forward(tiny_nf4, monkeypatch):
    from onegpu.packed_training import lora

    model = with_adapters(tiny_nf4.model, lora_dropout=0.5)
    monkeypatch.setattr(lora.LoraLinear, "apply", lambda *a: pytest.fail("dropout needs peft's forward"))
    loss, n = supervised_loss(model, collate_rows([examples(2)]))
    assert torch.isfinite(loss / n)


def test_fuse_counts_the_layers_it_changed(tiny_nf4):
    model = with_adapters(tiny_nf4.model)
    assert fuse_lora(model) == 2 * 7  # two layers: q, k, v, o, gate, up, down


@pytest.mark.parametrize("positions", [1, 127, 128, 300])
def test_chunked_head_equals_cross_entropy(positions):
    torch.manual_seed(0)
    hidden, weight = torch.randn(positions, 64), torch.randn(500, 64)
    targets = torch.randint(0, 500, (positions,))
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    loss = HeadLoss.apply(ours, weight, targets).sum()
    full = F.cross_entropy(theirs @ weight.t(), targets, reduction="sum")
    (3 * loss).backward()
    (3 * full).backward()
    torch.testing.assert_close(loss, full)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_fp16_head_keeps_the_gradient_of_a_large_vocabulary():
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 64), torch.randn(100_000, 64) * 0.02
    targets = torch.randint(0, 100_000, (4,))
    half, exact = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    HeadLoss.apply(half, weight.half(), targets).sum().backward()
    F.cross_entropy(exact @ weight.t(), targets, reduction="sum").backward()
    assert F.cosine_similarity(half.grad.flatten(), exact.grad.flatten(), dim=0) > 0.9999


def test_head_with_softcap_goes_the_general_way(tiny_nf4):
    model = with_adapters(tiny_nf4.model)
    batch = collate_rows([examples(3)])
    plain, _ = supervised_loss(model, batch)
    model.base_model.model.config.final_logit_softcapping = 30.0  # Gemma 2; this Llama ignores it
    general, _ = supervised_loss(model, batch)
    assert general.item() == pytest.approx(plain.item(), rel=1e-5)
    ways = [loss.grad_fn.next_functions[0][0].name() for loss in (plain, general)]
    assert ways[0] != ways[1]


def test_no_supervised_token_gives_zero_not_nan(tiny_nf4):  # trl#6668, unsloth#2900
    row = examples(1)[0]
    row["labels"] = [IGNORE_INDEX] * len(row["labels"])
    loss, n = supervised_loss(with_adapters(tiny_nf4.model), collate_rows([[row]]))
    assert n == 0
    assert loss.item() == 0.0


def test_training_after_an_evaluation_has_the_same_gradients(tiny_nf4):
    """On CPUs with AVX512-BF16 bitsandbytes 0.50 would repack the weights for inference and cut the gradient."""
    model = with_adapters(tiny_nf4.model)
    batch = collate_rows([examples(3)])

    def grads():
        model.train()
        model.zero_grad()
        supervised_loss(model, batch)[0].backward()
        return gradients(model)

    before = copy.deepcopy(grads())
    with torch.no_grad():
        supervised_loss(model.eval(), batch)
    for name, grad in grads().items():
        torch.testing.assert_close(grad, before[name])


def test_head_runs_on_supervised_positions_only(tiny_nf4, monkeypatch):
    seen = []
    apply = HeadLoss.apply
    monkeypatch.setattr(
        HeadLoss, "apply", lambda hidden, *rest: (seen.append(len(hidden)), apply(hidden, *rest))[1]
    )
    batch = collate_rows([examples(4)])
    supervised_loss(with_adapters(tiny_nf4.model), batch)
    assert seen == [int((batch["labels"] != IGNORE_INDEX).sum())]
    assert seen[0] < batch["labels"].numel()
