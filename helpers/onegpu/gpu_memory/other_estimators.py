"""What other public estimators say about the same fine-tune, and what each leaves out.

accelerate's own function is called; the two others are formulas, written down again here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onegpu.dtype_sizing import format_bytes
from onegpu.gpu_memory.training_setup import DTYPE_BYTES, make_setup


@dataclass(frozen=True)
class OtherEstimate:
    """One estimator's answer in bytes, and what it doesn't count."""

    name: str
    source: str
    bytes: int
    leaves_out: str

    def __str__(self) -> str:
        return f"{self.name}: {format_bytes(self.bytes, 'GiB')} (leaves out {self.leaves_out})"


def other_estimates(model: Any = None, /, **settings: Any) -> list[OtherEstimate]:
    """Ask three public estimators about a full fine-tune with AdamW.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``, or a setup.

    Returns
    -------
    list of OtherEstimate
        accelerate's ``estimate-memory``, the formula of Hugging Face's post on training memory, and EleutherAI's
        cookbook.

    Raises
    ------
    ValueError
        For LoRA and QLoRA, which none of them knows.

    Examples
    --------
    >>> asked = {"method": "full", "loop": "plain", "per_device_train_batch_size": 4, "max_length": 256, "dtype": "fp16"}
    >>> for estimate in other_estimates("polyglot-ko-1.3b", **asked):
    ...     print(estimate.name, format_bytes(estimate.bytes, "GiB"))
    accelerate estimate-memory 9.46 GiB
    HF train_memory formula 12.16 GiB
    EleutherAI cookbook 24.39 GiB
    """
    setup = make_setup(model, **settings).resolved
    if setup.adapters:
        raise ValueError(
            f"method={setup.method!r}: none of these estimators knows frozen or 4-bit weights, use 'full'"
        )
    config = setup.config()
    parameters = _parameters(config)
    return [
        _accelerate(setup, config),
        _train_memory(setup, parameters),
        _cookbook(setup, config, parameters),
    ]


def deepspeed_bytes(setup: Any) -> int:
    """What DeepSpeed's ``estimate_zero2_model_states_mem_needs`` says for one card: 2 + 18 bytes a parameter, frozen or not.

    From ``deepspeed/runtime/zero/stage_1_and_2.py`` in 0.19.8, without offload: 16-bit weights; 16-bit and fp32
    gradients, fp32 weights and two moments.
    """
    return 20 * _parameters(make_setup(setup).resolved.config())


def _accelerate(setup: Any, config: Any) -> OtherEstimate:
    import torch
    from accelerate.commands.estimate import estimate_training_usage
    from transformers import AutoModel

    with torch.device("meta"):
        headless = AutoModel.from_config(config, trust_remote_code=False)
    fp32 = sum(4 * p.numel() for p in headless.parameters())
    precision = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[setup.dtype]
    return OtherEstimate(
        "accelerate estimate-memory",
        "accelerate.commands.estimate, 'Training using Adam'",
        max(estimate_training_usage(fp32, precision).values()),
        "head, activations, batch and length",
    )


def _train_memory(setup: Any, parameters: int) -> OtherEstimate:
    b = DTYPE_BYTES[setup.dtype]
    activations = 4.6894e-4 * parameters + 1.8494e6  # numbers a token, fitted to modules' outputs
    state = parameters * b
    largest = max(state, int(activations * setup.tokens * b))
    return OtherEstimate(
        "HF train_memory formula",
        "huggingface.co/blog/train_memory",
        3 * state + largest,
        "logits, attention kernel, what overlaps in time",
    )


def _cookbook(setup: Any, config: Any, parameters: int) -> OtherEstimate:
    text = config.get_text_config()
    s, b, h = setup.max_length, setup.batch_size, text.hidden_size
    layer = 34 * s * b * h + 5 * text.num_attention_heads * s * s * b
    return OtherEstimate(
        "EleutherAI cookbook",
        "github.com/EleutherAI/cookbook, calc_transformer_mem.py",
        18 * parameters + layer * text.num_hidden_layers,
        "logits, KV cache; assumes fp32 copies",
    )


def _parameters(config: Any) -> int:
    from onegpu.dtype_sizing import weight_groups

    return weight_groups(config).parameters
