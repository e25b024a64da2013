"""Optimizers that run on meta tensors as well as on real ones, by the names that transformers gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from onegpu.runtime import import_bitsandbytes

PAGED_FROM = 100_000  # bitsandbytes pages states of at least so many numbers; smaller ones stay on the card


def make(name: str, parameters: list[torch.nn.Parameter], *, in_fp32: Iterable[torch.Tensor] = ()) -> Any:
    """Return the optimizer ``name`` (one of ``training_setup.OPTIMIZERS``) over the parameters.

    Parameters
    ----------
    in_fp32
        Parameters whose state an 8-bit optimizer is to keep in fp32.
    """
    if name == "adamw_torch":
        return torch.optim.AdamW(parameters, lr=1e-5, foreach=True)
    if name == "adamw_single":
        return torch.optim.AdamW(parameters, lr=1e-5, foreach=False)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-5, foreach=True)
    if name == "adamw_torch_fused":
        if parameters[0].device.type == "meta":
            return _MetaFusedAdamW(parameters)
        return torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        # As the Trainer sets it up.
        return Adafactor(parameters, lr=1e-5, scale_parameter=False, relative_step=False)
    bnb = import_bitsandbytes()
    paged = name.startswith("paged") and parameters[0].device.type != "meta"
    family = "Lion" if "lion" in name else "AdamW"
    kind = getattr(bnb.optim, f"{'Paged' if paged else ''}{family}{name.rpartition('_')[2]}")
    optimizer = kind(parameters, lr=1e-5)
    if name.startswith("paged") and not paged:
        optimizer.get_state_buffer = _paged_buffer  # on this object only
    # An optimizer's overrides lie in an object that all optimizers share: this one gets its own.
    optimizer.mng = bnb.optim.GlobalOptimManager.__new__(bnb.optim.GlobalOptimManager)
    optimizer.mng.initialize()
    optimizer.mng.pid2config = {id(p): {"optim_bits": 32} for p in in_fp32}
    return optimizer


def states(optimizer: Any) -> list[torch.Tensor]:
    """All tensors of an optimizer's state."""
    return [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]


class _MetaFusedAdamW(torch.optim.Optimizer):
    """Makes the states that AdamW(fused=True) makes: two moments, and a step counter on the card. No temporaries."""

    def __init__(self, parameters: list[torch.nn.Parameter]):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = {
                        "step": torch.zeros((), dtype=torch.float32, device=p.device),
                        "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                        "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
                    }


def _paged_buffer(p: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Make a state buffer; a paged one lives in unified memory, which torch doesn't count: an empty one here."""
    if p.numel() < PAGED_FROM:
        return torch.zeros_like(p, dtype=dtype, device=p.device)
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.empty_like(p, dtype=dtype)
