"""Widgets of 07_qlora_finetune: what a rank costs, and a loss curve that grows while the model trains."""

from __future__ import annotations

import base64
import time

import ipywidgets

from onegpu import models
from onegpu.plots.base import png
from onegpu.plots.qlora_finetune import loss_curve, rank
from onegpu.widgets.base import choice, explore

ATTENTION, ALL = "attention (q and v)", "all linear layers"


def layer_shapes(model: str, targets: str = ALL) -> list[tuple[int, int]]:
    """Return (out, in) of the layers of a catalogue model that get an adapter, all blocks.

    Examples
    --------
    >>> sum(16 * (o + i) for o, i in layer_shapes("smollm2-135m"))
    4884480
    """
    config = models.find(model).config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    hidden, wide = config.hidden_size, config.intermediate_size
    q, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    block = [(q, hidden), (kv, hidden)]
    if targets == ALL:
        block += [(kv, hidden), (hidden, q), (wide, hidden), (wide, hidden), (hidden, wide)]
    return block * config.num_hidden_layers


def rank_explorer() -> None:
    """Choose a model, the adapted layers and the rank; see how much is trained and what it takes."""

    def draw(model: str, targets: str, r: int) -> tuple:
        shapes = layer_shapes(model, targets)
        trained = r * sum(map(sum, shapes))
        frozen = models.find(model).parameters
        return rank(shapes, r, frozen), (
            f"Rank {r} on {targets} of {model} trains {trained:,} parameters, {100 * trained / frozen:.2f} % of the frozen "
            f"ones: {4 * trained / 2**20:.0f} MiB of adapters in fp32, {16 * trained / 2**20:.0f} MiB with gradients and "
            "AdamW's two moments."
        )

    explore(
        draw,
        model=choice("model", ["smollm2-135m", "qwen2.5-1.5b", "llama-2-7b", "llama-3-8b"]),
        targets=choice("adapted layers", [ALL, ATTENTION]),
        r=choice("rank", [2**exponent for exponent in range(9)], 16),
    )


class LiveLoss:
    """A loss curve that is drawn anew while a fine-tune runs: give it to ``finetune(on_step=...)``."""

    def __init__(self, every_s: float = 2.0):
        from IPython.display import display

        self.every_s = every_s
        self.losses: list[tuple[int, float]] = []
        self.drawn_at = 0.0
        self.picture = ipywidgets.HTML("<p>The loss curve appears here with the first step.</p>")
        view = {"version_major": 2, "version_minor": 0, "model_id": self.picture.model_id}
        words = "A loss curve that grows while the model trains."
        data = {"text/plain": words, "application/vnd.jupyter.widget-view+json": view}
        self.display = display(data, raw=True, display_id=True)

    def __call__(self, step: int, steps: int, loss: float) -> None:
        self.losses.append((step, loss))
        now = time.monotonic()
        if step in (1, steps) or now - self.drawn_at >= self.every_s:
            self.drawn_at = now
            said = f"Step {step} of {steps}: the loss is {loss:.2f}, at the first step it was {self.losses[0][1]:.2f}."
            data = base64.b64encode(png(loss_curve(self.losses, steps=steps))).decode()
            if step == steps and self.display is not None:  # the whole curve, for the page that is stored
                shown = {"text/plain": said, "image/png": data}
                self.display.update(shown, raw=True, metadata={"image/png": {"alt": said}})
            self.picture.value = f'<img alt="{said}" src="data:image/png;base64,{data}" style="max-width:100%"><p aria-live="polite">{said}</p>'


def live_loss() -> LiveLoss:
    """Show an empty loss curve and return what fills it."""
    return LiveLoss()
