"""The training step itself, as it is written in a plain loop, in transformers' Trainer and in our own trainer.

The same code runs over meta tensors (simulated) and over real ones (measured). What a variable still refers to is what
stays in memory, so the loops are real ones: in the plain loop ``outputs`` lives on, in the Trainer it is gone when
``compute_loss`` returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from onegpu.gpu_memory.micro_batches import MicroBatch, full_micro_batch
from onegpu.gpu_memory.training_setup import ResolvedSetup
from onegpu.gpu_memory.trl_head import fused_head_loss
from onegpu.packed_training.loss import example_logprobs, supervised_loss
from onegpu.preference_data import dpo_loss

Phase = Callable[[str], None]
CACHE_NAMES = ("cache", "past_key_values")  # the name since transformers 5.2x, and the one before


def make_batch(
    setup: ResolvedSetup, config: Any, device: torch.device | str, micro: MicroBatch | None = None
) -> dict[str, Any]:
    """Make the inputs of a micro-batch (of full rows if none is given): ids, labels, and what the loop adds to them."""
    vocabulary = config.get_text_config().vocab_size
    micro = full_micro_batch(setup) if micro is None else micro
    real = torch.device(device).type != "meta"
    if micro.padded:
        batch = {
            "input_ids": _ids(micro.shape, vocabulary, device),
            "labels": _ids(micro.shape, vocabulary, device),
        }
        if setup.loop in ("trl", "trainer") or micro.needs_mask:
            batch["attention_mask"] = torch.ones(micro.shape, dtype=torch.int64, device=device)
            if real:
                for row, length in enumerate(micro.lengths):
                    batch["attention_mask"][row, length:] = 0
                    batch["labels"][row, length:] = -100
        return batch
    labels = _ids(micro.shape, vocabulary, device)
    if real:
        labels[:, : micro.tokens - setup.supervised_of(micro.tokens)] = -100
    if len(set(micro.lengths)) == 1:
        positions = torch.arange(micro.lengths[0], device=device).repeat(1, len(micro.lengths))
    else:
        positions = torch.cat([torch.arange(n, device=device) for n in micro.lengths])[None]
    batch = {"input_ids": _ids(micro.shape, vocabulary, device), "position_ids": positions, "labels": labels}
    return batch | ({"seq_lens": micro.lengths} if setup.loop == "onegpu" else {})


def _ids(shape: tuple[int, int], vocabulary: int, device: torch.device | str) -> torch.Tensor:
    if torch.device(device).type == "meta":
        return torch.empty(shape, dtype=torch.int64, device="meta")
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, shape, generator=generator).to(device)


def run_step(
    model: nn.Module,
    optimizer: Any,
    setup: ResolvedSetup,
    config: Any,
    *,
    device: Any,
    autocast: Any,
    phase: Phase,
    batches: Sequence[Callable[..., dict[str, Any]]] = (),
) -> Any:
    """Run one optimizer step, saying where each phase begins; return what the loop's variables still hold.

    Parameters
    ----------
    model, optimizer
        Ready to train.
    device
        Where the batch is made.
    autocast
        A function that returns a context manager, entered around each forward pass.
    phase
        Called with "forward", "backward", "after_backward", "step", "after_step"; micro-batches repeat the first two.
    batches
        Make the micro-batches from (setup, config, device); ``make_batch`` each of an accumulated step's if not given.
    """
    outputs = loss = batch = None
    if not setup.trains:
        phase("forward")
        batch = (batches or (make_batch,))[0](setup, config, device)
        with torch.no_grad(), autocast():
            return _infer(model, setup, batch), loss, batch
    forward = partial(_forward, model, setup, autocast)
    for make in batches or (make_batch,) * setup.gradient_accumulation_steps:
        phase("forward")
        batch = make(setup, config, device)
        if setup.loop == "plain" and setup.task == "sft":
            outputs = forward(batch)
            loss = outputs.loss / setup.gradient_accumulation_steps
        else:
            loss = _compute_loss(forward, batch, setup)
            batch = None
        phase("backward")
        loss.backward()
        if setup.loop != "plain":
            loss = loss.detach()
    phase("after_backward")
    if setup.loop != "plain":
        _clip_gradients([p.grad for p in model.parameters() if p.grad is not None])
    phase("step")
    optimizer.step()
    phase("after_step")
    return outputs, loss, batch


@torch.no_grad()
def _clip_gradients(gradients: list[torch.Tensor], max_norm: float = 1.0) -> None:
    """``clip_grad_norm_`` in its foreach form, which refuses meta tensors."""
    norms = torch._foreach_norm(gradients)
    total = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_(gradients, torch.clamp(max_norm / (total + 1e-6), max=1.0))


def _forward(model: nn.Module, setup: ResolvedSetup, autocast: Any, batch: dict[str, Any]) -> Any:
    with autocast():
        if setup.task == "dpo":
            return (_own_preference_loss if setup.loop == "onegpu" else _preference_loss)(model, batch)
        if setup.loop == "onegpu":
            return supervised_loss(model, batch)
        if setup.loop == "trl":
            return fused_head_loss(model, batch)
        outputs = model(**batch)
    if setup.loop == "trainer" and setup.mixed_precision:
        from accelerate.utils.operations import convert_to_fp32

        outputs = convert_to_fp32(outputs)  # accelerate makes the logits fp32 once more
    return outputs


def _compute_loss(forward: Any, batch: dict[str, Any], setup: ResolvedSetup) -> torch.Tensor:
    found = forward(batch)
    if setup.task == "dpo":
        loss = found
    elif setup.loop in ("onegpu", "trl"):
        loss = found[0] / found[1]
    else:
        loss = found["loss"]
    return loss / setup.gradient_accumulation_steps


def _infer(model: nn.Module, setup: ResolvedSetup, batch: dict[str, Any]) -> Any:
    """An evaluation's forward pass; or generation: the prompt, and one more token on top of its KV cache."""
    if setup.task == "evaluate":
        return model(**batch, use_cache=False)
    ids = batch["input_ids"]
    prompt, last = (ids[:, :-1], ids[:, -1:]) if ids.shape[1] > 1 else (ids, ids)
    outputs = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    name = next(name for name in CACHE_NAMES if name in outputs)
    cache = {name: outputs[name]}
    del outputs
    return model(input_ids=last, **cache, use_cache=True, logits_to_keep=1)


def _preference_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """DPO (arXiv 2305.18290, eq. 7): one pass over chosen and rejected rows, one of the reference without gradients.

    The reference is the model with its adapters off.
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    policy = _row_logprobs(model(**inputs, use_cache=False).logits, batch["labels"])
    with torch.no_grad(), model.disable_adapter():
        reference = _row_logprobs(model(**inputs, use_cache=False).logits, batch["labels"])
    return dpo_loss(*policy.chunk(2), *reference.chunk(2)).losses.mean()


def _own_preference_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """DPO as our own trainer takes it for pairs that come for the first time: the reference before the model."""
    with torch.no_grad(), model.disable_adapter():
        reference = example_logprobs(model, batch).view(-1, 2)
    return dpo_loss(*example_logprobs(model, batch).view(-1, 2).T, *reference.T).losses.mean()


def _row_logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scores = logits[:, :-1].float().log_softmax(-1)
    targets = labels[:, 1:]
    return (
        scores.gather(-1, targets.clamp(min=0)[..., None])[..., 0].masked_fill(targets == -100, 0.0).sum(-1)
    )


def prepare_own_trainer(model: nn.Module, setup: ResolvedSetup) -> nn.Module:
    """Do to a loaded model what our own trainer does: packed attention, adapters, checkpointing, fused LoRA."""
    # They load transformers' modeling and peft, which the formulas do without.
    from onegpu.gpu_memory.meta_model import quiet_warnings
    from onegpu.packed_training.adapters import add_lora
    from onegpu.packed_training.attention import use_packed_attention

    try:
        use_packed_attention(model)
    except ValueError as error:
        raise ValueError(
            f"our trainer can't pack rows of this model ({error}). Ask for loop='trl' or 'trainer'"
        ) from error
    if not setup.adapters:
        if setup.gradient_checkpointing:
            _enable_checkpointing(model)
        return model
    targets = setup.target_modules
    if targets is None:
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as defaults

        targets = defaults[model.config.model_type]
    with quiet_warnings():
        return add_lora(
            model, r=setup.lora_r, alpha=setup.lora_alpha, dropout=setup.lora_dropout, target_modules=targets,
            gradient_checkpointing=setup.gradient_checkpointing, fp16=setup.mixed_precision == "fp16",
        )  # fmt: skip


def enable_checkpointing(model: nn.Module, *, watch: Callable[[Callable], Callable] | None = None) -> None:
    """Switch gradient checkpointing on, as the Trainer does.

    Parameters
    ----------
    watch
        Wraps the function that each layer recomputes.
    """
    _enable_checkpointing(model)
    if watch is not None:
        watch_checkpointing(model, watch)


def watch_checkpointing(model: nn.Module, watch: Callable[[Callable], Callable]) -> None:
    """Wrap what the checkpointed layers of this one model recompute."""
    for module in model.modules():
        checkpoint = getattr(module, "_gradient_checkpointing_func", None)
        if checkpoint is not None:
            module._gradient_checkpointing_func = partial(_checkpoint_watched, checkpoint, watch)


def _checkpoint_watched(checkpoint: Callable, watch: Callable, function: Callable, *args: Any) -> Any:
    return checkpoint(watch(function), *args)


def _enable_checkpointing(model: nn.Module) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False


def make_optimizer(model: nn.Module, setup: ResolvedSetup) -> Any:
    """Make the optimizer of a setup over the trainable parameters.

    transformers' Trainer lets 8-bit optimizers keep the state of embeddings in fp32.
    """
    from onegpu.gpu_memory import optimizers

    embeddings = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    in_fp32 = [] if setup.loop == "plain" else embeddings
    return optimizers.make(setup.optim, [p for p in model.parameters() if p.requires_grad], in_fp32=in_fp32)


@contextlib.contextmanager
def no_autocast() -> Iterator[None]:
    """Do nothing."""
    yield
