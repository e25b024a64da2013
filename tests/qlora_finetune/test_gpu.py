"""On a CUDA device, as on a T4: fp16 forced and memory limited to 14.5 GiB. Skipped where there is none."""

import gc

import pytest
import torch
from onegpu import models
from onegpu.models import CATALOGUE
from onegpu.packed_training.attention import use_packed_attention
from onegpu.qlora_finetune import FinetuneConfig, OutOfMemory, finetune, predict_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
T4_BYTES = int(14.5 * 2**30)


@pytest.fixture(autouse=True)
def t4_memory():
    """As much memory as a T4 lets a program have."""
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, T4_BYTES / total))
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def random_qwen(folder):
    """Qwen2.5-1.5B's shape with random weights and the tiny tokenizer: no download."""
    from onegpu.models import tiny_tokenizer
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(CATALOGUE["qwen2.5-1.5b"].config(), dtype=torch.float16)
    tokenizer = tiny_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    return random_qwen(tmp_path_factory.mktemp("qwen"))


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [1024, 2048])
def test_fp16_training_under_t4_memory_peaks_where_it_was_predicted(qwen_folder, tmp_path, max_length):
    config = FinetuneConfig(
        model=str(qwen_folder), max_length=max_length, max_steps=4, gradient_accumulation_steps=2, precision="fp16",
        learning_rate=1e-4, warmup_steps=0, eval_rows=1, max_new_tokens=2, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    predicted = predict_memory(config)
    torch.cuda.reset_peak_memory_stats()
    result = finetune(config)
    print(f"predicted {predicted.peak_bytes:,}, measured {result.peak_memory_bytes:,} bytes")
    assert result.precision == "fp16"
    assert all(torch.isfinite(torch.tensor([loss for _, loss in result.losses])))
    assert result.peak_memory_bytes == pytest.approx(predicted.peak_bytes, rel=0.10)
    assert result.peak_memory_bytes < 12 * 2**30


@pytest.mark.slow
def test_trainable_parameters_are_fp32_on_the_gpu(qwen_folder):
    from onegpu.qlora_finetune import attach_adapters

    loaded = models.load(qwen_folder, quantization="nf4", dtype=torch.float16)
    use_packed_attention(loaded.model)
    model = attach_adapters(loaded.model, FinetuneConfig(), fp16=True)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.slow
def test_out_of_memory_on_the_gpu_is_explained_and_freed(qwen_folder, tmp_path):
    config = FinetuneConfig(
        model=str(qwen_folder), max_length=4096, per_device_train_batch_size=4, gradient_checkpointing=False,
        precision="fp16", max_steps=1, eval_rows=1, max_new_tokens=2, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    with pytest.raises(OutOfMemory, match="predicted for these settings"):
        finetune(config)
    assert torch.cuda.memory_allocated() < 64 * 2**20
