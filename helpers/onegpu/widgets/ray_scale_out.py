"""Widget of topic 08: what limits a step on 1 to 1,024 GPUs."""

from __future__ import annotations

from typing import Any

from onegpu import plots
from onegpu.ray_scale_out.scaling import ScalingModel
from onegpu.widgets.base import choice, explore

TRAINED = {"LoRA, 10 million": 10_000_000, "LoRA, 100 million": 100_000_000, "all 8 billion": 8_000_000_000}
NETWORK = {"1 Gbit/s": 1.25e8, "10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10, "400 Gbit/s": 5e10}
CPUS = {"2 for each GPU": 2.0, "8 for all GPUs": 0.0}
TOKENIZER = {"100,000 tokens/s": 100_000.0, "20,000 tokens/s": 20_000.0, "1,000 tokens/s": 1_000.0}


def draw(trained: str, network: str, cpus: str, tokenizer: str) -> tuple[Any, str]:
    """Draw the useful share over the number of workers, and say what limits 1,024 of them."""
    model = ScalingModel(
        gradient_bytes=4 * TRAINED[trained], bandwidth_bytes_per_second=NETWORK[network], cpus_per_worker=CPUS[cpus],
        data_tokens_per_second=TOKENIZER[tokenizer],
    )  # fmt: skip
    points = model.sweep()
    at_8, last = model.at(8), points[-1]
    return plots.ray_scale_out.scaling({f"{trained}, {network}, CPUs: {cpus}": points}), (
        f"8 workers are useful {at_8.efficiency:.0%} of the time and limited by {at_8.limited_by}, 1,024 are useful "
        f"{last.efficiency:.0%} and limited by {last.limited_by}."
    )


def explorer() -> None:
    """Show choices of what is trained, the network, and who prepares the rows."""
    explore(
        draw,
        trained=choice("trained parameters", list(TRAINED)),
        network=choice("network", list(NETWORK), "10 Gbit/s"),
        cpus=choice("CPUs that prepare rows", list(CPUS)),
        tokenizer=choice("a CPU prepares", list(TOKENIZER)),
    )
