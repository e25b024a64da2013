"""The widget of 00_start_here."""

from __future__ import annotations

from onegpu.exercises.start_here import weights_bytes
from onegpu.plots.start_here import GIB, T4_BYTES, weights
from onegpu.widgets.base import explore, slider


def weights_explorer() -> None:
    """Move the number of parameters, see in which precisions the weights fit on a T4."""

    def draw(billions: int) -> tuple:
        parameters = billions * 10**9
        fits = [str(bits) for bits in (32, 16, 8, 4) if weights_bytes(parameters, bits) <= T4_BYTES]
        listed = " and ".join([*filter(None, [", ".join(fits[:-1])]), *fits[-1:]])
        which = f"fit in {listed} bits" if fits else "fit in none of the four precisions"
        size = weights_bytes(parameters, 16) / GIB
        return weights(parameters), (
            f"The weights of {billions} billion parameters take {size:.2f} GiB in 16 bits; on a T4 they {which}."
        )

    explore(draw, billions=slider("billion parameters", 7, 1, 40))
