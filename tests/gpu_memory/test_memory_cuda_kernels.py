"""What a card does differently from a meta tensor."""

import pytest
import torch
from onegpu.gpu_memory.cuda_kernels import (
    CudaChoices,
    attention_kernel,
    efficient_backward_bytes,
    flash_backward_bytes,
)
from onegpu.runtime.gpus import GPUS
from torch.nn import functional as F


def meta(*shape, dtype=torch.float16, grad=True):
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=grad)


@pytest.mark.parametrize(
    ("gpu", "dtype", "head_dim", "masked", "grouped", "kernel"),
    [
        ("T4", torch.float16, 128, False, False, "efficient"),  # flash-attention#762: no flash on a T4
        ("T4", torch.float16, 64, False, True, "math"),  # transformers#48633
        ("T4", torch.bfloat16, 64, False, False, "math"),
        ("T4", torch.float32, 64, False, False, "efficient"),
        ("A100-80GB", torch.bfloat16, 128, False, True, "flash"),
        ("A100-80GB", torch.bfloat16, 128, True, False, "efficient"),
        ("A100-80GB", torch.float32, 128, False, False, "efficient"),
        ("A100-80GB", torch.float32, 128, False, True, "math"),
        ("L4", torch.float16, 288, False, False, "efficient"),
        ("L4", torch.float16, 60, True, False, "math"),
        ("CPU", torch.float32, 64, False, False, "cpu"),
    ],
)
def test_attention_kernel(gpu, dtype, head_dim, masked, grouped, kernel):
    assert attention_kernel(GPUS[gpu], dtype, head_dim, masked=masked, grouped=grouped) == kernel


@pytest.mark.parametrize(
    ("gpu", "op"), [("T4", "EfficientAttention"), ("L4", "FlashAttention"), ("CPU", "ForCpu")]
)
def test_attention_takes_the_cards_kernel_and_keeps_the_shape(gpu, op):
    q = meta(2, 4, 16, 8, dtype=torch.float32 if gpu == "CPU" else torch.float16)
    with CudaChoices(GPUS[gpu]):
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert out.shape == q.shape
    assert op in out.grad_fn.name()


def test_flash_pads_a_head_whose_width_is_no_multiple_of_8():
    q = meta(1, 2, 16, 12)
    with CudaChoices(GPUS["L4"]):
        assert F.scaled_dot_product_attention(q, q, q).shape == q.shape


def test_dropout_keeps_one_byte_a_number_on_a_card_and_its_noise_on_a_cpu():
    x = meta(10, 10)
    with CudaChoices(GPUS["T4"]):
        assert "NativeDropout" in F.dropout(x, 0.1).grad_fn.name()
        assert F.dropout(x, 0.0) is x
        assert F.dropout(x, 0.1, training=False) is x
    with CudaChoices(GPUS["CPU"]):
        assert "Mul" in F.dropout(x, 0.1).grad_fn.name()


def test_softmax_reads_fp16_directly_but_not_bf16():
    with CudaChoices(GPUS["T4"]):
        half = F.softmax(meta(4, 4), dim=-1, dtype=torch.float32)
        brain = F.softmax(meta(4, 4, dtype=torch.bfloat16), dim=-1, dtype=torch.float32)
    assert half.dtype == brain.dtype == torch.float32
    assert "ToCopy" not in half.grad_fn.next_functions[0][0].name()
    assert "ToCopy" in brain.grad_fn.next_functions[0][0].name()


@pytest.fixture
def autocast():
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", False)


@pytest.mark.usefixtures("autocast")
def test_autocast_multiplies_in_16_bits_and_normalizes_in_fp32():
    x, w = meta(4, 8, dtype=torch.float32), torch.nn.Parameter(meta(8, 8, dtype=torch.float32))
    with CudaChoices(GPUS["L4"]):
        y = F.linear(x, w)
        assert y.dtype == (x @ w).dtype == torch.bfloat16
        assert F.layer_norm(y, (8,)).dtype == torch.float32
        assert y.pow(2).dtype == F.softmax(y, -1).dtype == y.sum().dtype == torch.float32
        assert (y + y).dtype == torch.bfloat16


@pytest.mark.usefixtures("autocast")
def test_autocast_copies_a_trainable_fp32_weight_once_until_it_is_left():
    copies = []
    w = torch.nn.Parameter(meta(8, 8, dtype=torch.float32))
    frozen = torch.nn.Parameter(meta(8, 8, dtype=torch.float32), requires_grad=False)
    choices = CudaChoices(GPUS["L4"], on_copy=copies.append)
    with choices:
        for weight in (w, w, frozen):
            F.linear(meta(4, 8), weight)
        choices.leave_autocast()
        F.linear(meta(4, 8), w)
    assert len(copies) == 2


def test_flash_backward_needs_an_fp32_gradient_of_the_queries():
    # flash_api.cpp: softmax_d [b, h, 128-rounded], dq_accum [b, 128-rounded, h, 32-rounded] in fp32
    q, k = meta(2, 4, 100, 64), meta(2, 2, 100, 64)
    assert flash_backward_bytes((q, q, q), {}, None) == 4 * 2 * 4 * 128 * (1 + 64)
    grouped = flash_backward_bytes((q, q, k), {}, None)
    assert grouped == 4 * 2 * 4 * 128 * 65 + 2 * 2 * (2 * 100 * 4 * 64)


def test_efficient_backward_needs_row_sums_and_an_fp32_gradient_of_the_queries():
    q = meta(2, 4, 128, 64)
    assert efficient_backward_bytes((q, q, q), {}, None) == 4 * 2 * 4 * (128 + 128 * 64)
