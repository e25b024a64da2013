"""Figures of topic 02: the pipeline, pairs, the Bradley-Terry curve, a reward model's training and mistakes, a DPO run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from onegpu.plots.base import COLOURS, LINES, MARKERS, captioned, figure
from onegpu.plots.drawing import arrow, box, canvas
from onegpu.preference_data import RewardTraining, pairs_of


def bradley_terry(
    pairs: Sequence[tuple[float, float]] = ((2.0, 0.5), (-1.0, -2.5)), most: float = 4.0
) -> Figure:
    """Draw pairs of rewards as pins on a ruler with their margin between them, and the chance that goes with a margin.

    Parameters
    ----------
    pairs
        Rewards of A and of B. All pairs are to have the same margin.
    most
        Margins are drawn from minus this to this.

    Examples
    --------
    >>> bradley_terry().onegpu_caption
    'A lies 1.5 above B in both pairs, so both have the same chance: 82 %. Where the pair lies on the ruler does not matter.'
    """
    made, (left, right) = figure(
        "From two rewards to a chance", "", "", rows=1, columns=2, size=(7.6, 3.2), width_ratios=(1.15, 1)
    )
    for row, (a, b) in enumerate(pairs):
        left.axhline(row, color=COLOURS[5], linewidth=1.0)
        for reward, name, colour in ((a, "A", 2), (b, "B", 1)):
            left.plot([reward], [row], MARKERS[colour], markersize=11, color=COLOURS[colour])
            left.annotate(
                f"{name}\n{reward:+g}",
                (reward, row),
                (0, -12),
                textcoords="offset points",
                ha="center",
                va="top",
            )
        left.annotate(
            "",
            (a, row + 0.16),
            (b, row + 0.16),
            arrowprops={"arrowstyle": "-|>", "lw": 2, "color": COLOURS[0]},
        )
        left.text((a + b) / 2, row + 0.22, f"m = {a - b:+g}", ha="center", va="bottom", color=COLOURS[0])
    left.set(ylim=(-0.75, len(pairs) - 0.3), yticks=[], xlabel="reward")
    left.margins(x=0.12)
    left.spines["left"].set_visible(False)
    left.grid(visible=False)
    margins = [most * k / 40 for k in range(-40, 41)]
    right.plot(margins, [1 / (1 + math.exp(-m)) for m in margins], color=COLOURS[0], marker="")
    margin = pairs[0][0] - pairs[0][1]
    chance = 1 / (1 + math.exp(-margin))
    right.plot([margin, margin, -most], [0, chance, chance], ":", color=COLOURS[5], marker="")
    right.plot([margin], [chance], "o", markersize=7, color=COLOURS[0])
    right.set(xlabel="margin m", ylabel="chance that A is preferred", ylim=(0, 1.03), xlim=(-most, most))
    return captioned(
        made,
        f"A lies {margin:g} above B in both pairs, so both have the same chance: {100 * chance:.0f} %. Where the pair lies on the "
        "ruler does not matter.",
    )


def pair_loss() -> Figure:
    """Draw the loss of a pair against its margin.

    Examples
    --------
    >>> pair_loss().onegpu_caption
    'At a margin of 0 the loss is ln 2 = 0.693 nats. At 4 hardly anything is left to learn (0.018); at -4 the loss is 4.018, and it grows in a straight line.'
    """
    margins = [k / 10 for k in range(-40, 41)]
    made, axes = figure(
        "What a margin costs", "margin: chosen reward - rejected reward", "loss (nats)", size=(7.0, 3.2)
    )
    axes.plot(margins, [math.log1p(math.exp(-margin)) for margin in margins], color=COLOURS[1], marker="")
    axes.plot([0], [math.log(2)], "o", color=COLOURS[1])
    axes.annotate("ln 2", (0, math.log(2)), textcoords="offset points", xytext=(8, 4))
    far = max(margins)
    return captioned(
        made,
        f"At a margin of 0 the loss is ln 2 = {math.log(2):.3f} nats. At {far:.0f} hardly anything is left to learn "
        f"({math.log1p(math.exp(-far)):.3f}); at -{far:.0f} the loss is {math.log1p(math.exp(far)):.3f}, and it grows in a "
        "straight line.",
    )


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
    held_out = f", on the held-out ones {done.held_out_loss[-1]:.2f}" if done.held_out_loss else ""
    return captioned(
        made,
        f"Both losses start at ln 2. After {len(done.train_loss) - 1} epochs the loss on the training rankings is "
        f"{done.train_loss[-1]:.2f} nats{held_out}.",
    )


def reward_and_length(lengths: Sequence[int], rewards: Sequence[float], ranks: Sequence[int]) -> Figure:
    """Draw each answer's reward against its length, best and worst answers marked.

    Examples
    --------
    >>> chart = reward_and_length([10, 20, 30], [1.0, 0.5, -1.0], [1, 2, 3])
    >>> [text.get_text() for text in chart.axes[0].get_legend().get_texts()]
    ['rank 1', 'rank 2', 'rank 3 and below']
    >>> chart.onegpu_caption
    'Each point is an answer. The correlation of reward and length is -0.96: 0 would be no link, 1 a ruler.'
    """
    made, axes = figure("Does it only like long answers?", "characters in the answer", "reward")
    for k, name in enumerate(("rank 1", "rank 2", "rank 3 and below")):
        points = [(n, r) for n, r, rank in zip(lengths, rewards, ranks, strict=True) if min(rank, 3) == k + 1]
        axes.plot(*zip(*points, strict=True), MARKERS[k], color=COLOURS[k], label=name)
    axes.axhline(0, color=COLOURS[5], linewidth=0.8)
    axes.legend()
    return captioned(
        made,
        "Each point is an answer. The correlation of reward and length is "
        f"{statistics.correlation(lengths, rewards):.2f}: 0 would be no link, 1 a ruler.",
    )


def right_by_kind(counts: Mapping[str, tuple[int, int]]) -> Figure:
    """Draw the share of right pairs for each kind of pair, with one standard error, and the line of a guess.

    Parameters
    ----------
    counts
        (right, pairs) by the kind's name.

    Examples
    --------
    >>> right_by_kind({"best over worst": (30, 36)}).onegpu_caption
    'Right: best over worst 30 of 36 (83 %, standard error 6 points). A guess gets 50 %.'
    """
    made, axes = figure("Which pairs does it order rightly?", "", "pairs that are right (%)")
    shares = [right / pairs for right, pairs in counts.values()]
    errors = [(share * (1 - share) / n) ** 0.5 for share, (_, n) in zip(shares, counts.values(), strict=True)]
    names = [f"{name}\n{right} of {pairs}" for name, (right, pairs) in counts.items()]
    axes.bar(
        names,
        [100 * share for share in shares],
        yerr=[100 * error for error in errors],
        capsize=6,
        width=0.5,
        color=COLOURS[2],
    )
    axes.axhline(50, color=COLOURS[5], linestyle="--", marker="", label="a guess")
    axes.set_ylim(0, 100)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="lower right")
    said = ", ".join(
        f"{name} {right} of {pairs} ({100 * share:.0f} %, standard error {100 * error:.0f} points)"
        for (name, (right, pairs)), share, error in zip(counts.items(), shares, errors, strict=True)
    )
    return captioned(made, f"Right: {said}. A guess gets 50 %.")


def dpo_margins(runs: Mapping[str, Sequence[tuple[float, bool]]]) -> Figure:
    """Draw the margin of every training pair when its turn came: seen for the first time, or again.

    Parameters
    ----------
    runs
        By name: of each pair that was trained on, in order, the margin before its step, and whether the pair was seen for the
        first time.

    Examples
    --------
    >>> dpo_margins({"a run": [(0.0, True), (1.5, False)]}).onegpu_caption
    'Each point is a pair. Seen for the first time: 0 of 1 above 0, mean +0.00. Seen before: 1 of 1, mean +1.50.'
    """
    made, several = figure(
        "DPO, pair by pair",
        "pairs trained on so far",
        "margin of the pair (before its step)",
        columns=len(runs),
        size=(7.0 if len(runs) == 1 else 9.4, 3.6),
        sharey=True,
    )
    panels = [several] if len(runs) == 1 else list(several)
    kinds = {"seen for the first time": True, "seen before": False}
    for axes, (run, history) in zip(panels, runs.items(), strict=True):
        for k, (name, wanted) in enumerate(kinds.items()):
            points = [(n, margin) for n, (margin, first) in enumerate(history) if first == wanted]
            axes.plot(*zip(*points, strict=True), MARKERS[k], color=COLOURS[k], alpha=0.75, label=name)
        axes.axhline(0, color=COLOURS[5], linewidth=0.8)
        if len(runs) > 1:
            axes.set_title(run, loc="left", fontsize=10)
    made.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)

    def said(wanted: bool) -> tuple[str, str]:
        found = [[margin for margin, first in history if first == wanted] for history in runs.values()]
        above = ", ".join(f"{sum(m > 0 for m in one)} of {len(one)}" for one in found)
        return above, ", ".join(f"{statistics.fmean(one):+.2f}" for one in found)

    (fresh, mean), (again, later) = said(True), said(False)
    return captioned(
        made,
        f"Each point is a pair. Seen for the first time: {fresh} above 0, mean {mean}. Seen before: {again}, mean {later}.",
    )


def dpo_held_out(margins: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw the mean margin of held-out pairs after each run, with one standard error over the pairs.

    Parameters
    ----------
    margins
        By group (a learning rate), then by run (a seed): the margin of each held-out pair.

    Examples
    --------
    >>> dpo_held_out({"lr 0.1": {"seed 0": [0.0, 0.4], "seed 1": [0.2, 0.2]}}).onegpu_caption
    'Mean margin of 2 held-out pairs. lr 0.1: +0.20, +0.20 (standard errors 0.20, 0.00).'
    """
    rows = sum(len(group) for group in margins.values())
    made, axes = figure(
        "Pairs of prompts that it has not seen", "mean margin, with one standard error over the pairs", "",
        size=(7.0, 1.4 + 0.32 * rows),
    )  # fmt: skip
    names, said, y = [], [], 0
    for k, (group, by_run) in enumerate(margins.items()):
        means = [statistics.fmean(one) for one in by_run.values()]
        errors = [statistics.stdev(one) / len(one) ** 0.5 for one in by_run.values()]
        places = range(y, y + len(by_run))
        axes.errorbar(means, places, xerr=errors, fmt=MARKERS[k], color=COLOURS[k], markersize=7, capsize=4)
        names += [f"{group}, {run}" for run in by_run]
        y += len(by_run)
        listed = (", ".join(form % x for x in xs) for form, xs in (("%+.2f", means), ("%.2f", errors)))
        said.append("{}: {} (standard errors {})".format(group, *listed))
    axes.axvline(0, color=COLOURS[5], linewidth=0.8)
    axes.set_yticks(range(rows), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    pairs = len(next(iter(next(iter(margins.values())).values())))
    return captioned(made, f"Mean margin of {pairs} held-out pairs. {'; '.join(said)}.")


def pipeline() -> Figure:
    """Draw two ways from ranked answers to a model, one over the other: InstructGPT's by a reward model and PPO, and DPO.

    Each model that lies in memory during the last step is a box with a thick edge.

    Examples
    --------
    >>> pipeline().onegpu_caption
    'Both begin with a fine-tuned model and ranked answers. InstructGPT trains a reward model, then holds 4 models and writes answers in a loop; DPO trains on the pairs themselves and holds 2.'
    """
    made, axes = canvas("From rankings to a model that prefers what people prefer", 14.2, 5.2)
    box(axes, 0.1, 2.3, 1.7, 1.2, "SFT\n(lesson 01)", 0)
    box(axes, 2.3, 2.3, 1.9, 1.2, "labelers rank\nits answers:\nA > B > C", 3)
    arrow(axes, (1.8, 2.9), (2.3, 2.9))
    axes.text(4.95, 4.95, "InstructGPT: the long way", fontsize=10, color="#8a2f1c", va="center")
    axes.text(4.95, 1.7, "DPO: the short cut", fontsize=10, color="#14564e", va="center")
    box(axes, 4.7, 0.3, 1.9, 1.1, "pairs:\nA over B, ...", 2)
    box(axes, 4.7, 3.5, 1.9, 1.1, "train a\nreward model", 1)
    arrow(axes, (4.2, 3.2), (4.7, 3.9), colour=1)
    models = ("policy\nwrites", "reward\nmarks", "reference\n(KL)", "value\nexpects")
    for k, text in enumerate(models):
        box(axes, 7.3 + 1.25 * k, 3.5, 1.15, 1.1, text, 1, 8.5, linewidth=2.2)
    arrow(axes, (6.6, 4.05), (7.3, 4.05), colour=1)
    props = {"arrowstyle": "-|>", "color": COLOURS[1], "lw": 1.4, "connectionstyle": "arc3,rad=-0.16"}
    axes.annotate("", (7.8, 3.46), (11.7, 3.46), arrowprops=props)
    axes.text(9.75, 2.92, "PPO: again and again", ha="center", va="center", fontsize=9, color="#8a2f1c")
    pair = ("policy", "reference:\nasked once")
    for k, text in enumerate(pair):
        box(axes, 7.3 + 2.45 * k, 0.3, 2.35, 1.1, text, 2, 9.5, linewidth=2.2)
    arrow(axes, (4.2, 2.6), (4.7, 1.0), colour=2, lw=2.2)
    arrow(axes, (6.6, 0.85), (7.3, 0.85), colour=2, lw=2.2)
    box(axes, 12.8, 2.3, 1.3, 1.2, "the tuned\nmodel", 0)
    arrow(axes, (12.2, 4.0), (13.2, 3.5), colour=1)
    arrow(axes, (12.1, 0.9), (13.2, 2.3), colour=2, lw=2.2)
    return captioned(
        made,
        f"Both begin with a fine-tuned model and ranked answers. InstructGPT trains a reward model, then holds {len(models)} "
        f"models and writes answers in a loop; DPO trains on the pairs themselves and holds {len(pair)}.",
    )


def dpo_pair(chosen: tuple[float, float], rejected: tuple[float, float], beta: float = 0.1) -> Figure:
    """Draw how far training moved the log-probability of a pair's two answers: the arrows are what DPO looks at.

    Parameters
    ----------
    chosen, rejected
        Log-probability under the reference and under the policy.
    beta
        What turns an arrow's length into a reward.

    Examples
    --------
    >>> dpo_pair((-20.0, -18.0), (-15.0, -16.0)).onegpu_caption
    'Chosen moved by +2, rejected by -1. Where they stand does not matter to the loss, only the arrows: times 0.1 they are the rewards.'
    """
    made, axes = figure(
        "What training has changed", "log-probability of the answer (nats)", "", size=(7.5, 2.5)
    )
    for place, ((before, after), colour) in enumerate(((chosen, 2), (rejected, 1))):
        axes.plot(
            [before], [place], MARKERS[place], markersize=9, color="white", markeredgecolor=COLOURS[colour]
        )
        axes.plot([after], [place], MARKERS[place], markersize=9, color=COLOURS[colour])
        axes.annotate(
            "", (after, place), (before, place),
            arrowprops={"arrowstyle": "-|>", "color": COLOURS[colour], "lw": 2, "shrinkA": 6, "shrinkB": 6},
        )  # fmt: skip
        axes.annotate(
            f"{after - before:+g}",
            ((before + after) / 2, place),
            (0, 8),
            textcoords="offset points",
            ha="center",
        )
    axes.set_yticks([0, 1], ["chosen", "rejected"])
    axes.set(ylim=(1.5, -0.6), xlim=(min(*chosen, *rejected) - 1, max(*chosen, *rejected) + 1))
    axes.grid(axis="y", visible=False)
    axes.set_title("empty: reference, full: policy", loc="right", fontsize=9)
    return captioned(
        made,
        f"Chosen moved by {chosen[1] - chosen[0]:+g}, rejected by {rejected[1] - rejected[0]:+g}. Where they stand does not "
        f"matter to the loss, only the arrows: times {beta:g} they are the rewards.",
    )


def ranking_graph(names: Sequence[str], ranks: Sequence[int]) -> Figure:
    """Draw answers as knots and each pair of a ranking as an arrow from better to worse; a tie has none.

    Examples
    --------
    >>> ranking_graph(["A", "B", "C"], [1, 2, 2]).onegpu_caption
    'A > B = C makes 2 pairs: A over B, A over C. No arrow joins B and C: they tie.'
    """
    made, axes = canvas("A ranking as pairs", 8, 3.2)
    count = len(names)
    levels = sorted(set(ranks))
    at = {}
    for rank in levels:
        tied = [name for name, one in zip(names, ranks, strict=True) if one == rank]
        for k, name in enumerate(tied):
            x = 0.6 + 5.4 * levels.index(rank) / max(1, len(levels) - 1)
            y = 1.15 + ((len(tied) - 1) / 2 - k) * 1.5  # the first on top
            at[name] = box(axes, x, y, 1.3, 0.9, f"{name}\nrank {rank}", min(rank - 1, 4))
    pairs = pairs_of(ranks)
    for better, worse in pairs:
        (ax, ay), (bx, by) = at[names[better]], at[names[worse]]
        arrow(
            axes,
            (ax + 0.65, ay),
            (bx - 0.65, by),
            bend=0.25 if abs(levels.index(ranks[better]) - levels.index(ranks[worse])) > 1 else 0.0,
        )
    ties = [(a, b) for a in range(count) for b in range(a + 1, count) if ranks[a] == ranks[b]]
    order = " > ".join(
        " = ".join(n for n, r in zip(names, ranks, strict=True) if r == rank) for rank in levels
    )
    said = ", ".join(f"{names[a]} over {names[b]}" for a, b in pairs)
    missing = " and ".join(names[i] for i in ties[0]) if ties else ""
    tail = f" No arrow joins {missing}: they tie." if ties else ""
    return captioned(made, f"{order} makes {len(pairs)} pairs: {said}.{tail}")
