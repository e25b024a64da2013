"""Figures of topic 02: the Bradley-Terry curve, a reward model's training, reward against length, a DPO run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, LINES, MARKERS, figure
from onegpu.preference_data import DpoStep, RewardTraining


def bradley_terry() -> Figure:
    """Draw the chance that the chosen answer wins, and the loss, against the margin of rewards.

    Examples
    --------
    >>> len(bradley_terry().axes)
    2
    """
    margins = [k / 10 for k in range(-40, 41)]
    chances = [1 / (1 + math.exp(-margin)) for margin in margins]
    made, (left, other) = figure(
        "From a margin to a loss", "chosen reward - rejected reward", "", rows=1, columns=2
    )
    left.plot(margins, chances, color=COLOURS[0], marker="")
    left.set_ylabel("chance that chosen wins")
    other.plot(margins, [-math.log(chance) for chance in chances], color=COLOURS[1], marker="")
    other.set_ylabel("loss (nats)")
    other.plot([0], [math.log(2)], "o", color=COLOURS[1])
    other.annotate("ln 2", (0, math.log(2)), textcoords="offset points", xytext=(8, 4))
    return made


def reward_training(done: RewardTraining) -> Figure:
    """Draw training and held-out loss by epoch, with the line of a guess.

    Examples
    --------
    >>> from onegpu.preference_data import Accuracy
    >>> done = RewardTraining(None, (0.69, 0.5), (0.69, 0.6), Accuracy(1, 0, 1), None)
    >>> len(reward_training(done).axes[0].lines)
    3
    """
    made, axes = figure("A reward model learns", "epoch", "Bradley-Terry loss (nats)")
    for k, (name, losses) in enumerate({"training": done.train_loss, "held out": done.held_out_loss}.items()):
        axes.plot(
            range(len(losses)),
            losses,
            label=name,
            color=COLOURS[k],
            linestyle=LINES[k],
            marker=MARKERS[k],
            markevery=5,
        )
    axes.axhline(math.log(2), color=COLOURS[5], linestyle=":", label="ln 2: all rewards equal")
    axes.set_ylim(bottom=0)
    axes.legend()
    return made


def reward_and_length(lengths: Sequence[int], rewards: Sequence[float], ranks: Sequence[int]) -> Figure:
    """Draw each answer's reward against its length, best and worst answers marked.

    Examples
    --------
    >>> chart = reward_and_length([10, 20, 30], [1.0, 0.5, -1.0], [1, 2, 3])
    >>> [text.get_text() for text in chart.axes[0].get_legend().get_texts()]
    ['rank 1', 'rank 2', 'rank 3 and below']
    """
    made, axes = figure("Does it only like long answers?", "characters in the answer", "reward")
    for k, name in enumerate(("rank 1", "rank 2", "rank 3 and below")):
        points = [(n, r) for n, r, rank in zip(lengths, rewards, ranks, strict=True) if min(rank, 3) == k + 1]
        axes.plot(*zip(*points, strict=True), MARKERS[k], color=COLOURS[k], label=name, alpha=0.8)
    axes.legend()
    return made


def dpo_history(history: Sequence[DpoStep]) -> Figure:
    """Draw the implied rewards of chosen and rejected answers, and their margin, by step.

    Examples
    --------
    >>> len(dpo_history([DpoStep(0, 0.69, 0.0, 0.0, 0.0, 0.0, -40.0, -41.0)]).axes[0].lines)
    4
    """
    made, axes = figure("A DPO run", "step", "implied reward (beta = 0.1)")
    curves = {
        "chosen": [step.chosen_reward for step in history],
        "rejected": [step.rejected_reward for step in history],
        "margin": [step.margin for step in history],
    }
    for k, (name, values) in enumerate(curves.items()):
        axes.plot(
            [step.step for step in history],
            values,
            label=name,
            color=COLOURS[k],
            linestyle=LINES[k],
            marker=MARKERS[k],
        )
    axes.axhline(0, color=COLOURS[5], linewidth=0.8)
    axes.legend()
    return made
