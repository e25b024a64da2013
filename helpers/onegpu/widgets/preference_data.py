"""The ranking widget of topic 02: an order of three answers, their rewards, and the loss that follows."""

from __future__ import annotations

import math
from html import escape

from onegpu.preference_data import pairs_of, parse_order
from onegpu.widgets.base import choice, explore, slider

ANSWERS = {
    "A": "Hold it under cool running water for twenty minutes.",
    "B": "Cool it.",
    "C": "Rub butter on it.",
}
ORDERS = (
    "A > B > C", "A > C > B", "B > A > C", "B > C > A", "C > A > B", "C > B > A",
    "A > B = C", "B > A = C", "C > A = B", "A = B > C", "A = C > B", "B = C > A", "A = B = C",
)  # fmt: skip
"""Every order of three answers, with and without ties."""
STEP = 0.5


def _loss(rewards: list[float], pairs: list[tuple[int, int]]) -> float:
    return sum(math.log1p(math.exp(rewards[j] - rewards[i])) for i, j in pairs) / len(pairs)


def _after_a_step(rewards: list[float], pairs: list[tuple[int, int]]) -> list[float]:
    """Rewards after one step of gradient descent on themselves, of size ``STEP``."""
    moved = list(rewards)
    for i, j in pairs:
        push = STEP / len(pairs) / (1 + math.exp(rewards[i] - rewards[j]))
        moved[i] += push
        moved[j] -= push
    return moved


def draw(order: str, a: float, b: float, c: float) -> tuple[str, str]:
    """Draw the pairs of an order as a table, with margin, chance and loss.

    Examples
    --------
    >>> draw("A > B > C", 2.0, 1.0, -0.5)[1]
    'A > B > C makes 3 pairs; their mean loss is 0.1979, and one step makes it 0.1874. Equal rewards cost 0.6931.'
    >>> draw("A = B = C", 0.0, 0.0, 0.0)[1]
    'A = B = C makes no pair: nobody said which is better, so there is nothing to learn.'
    """
    names, rewards = list(ANSWERS), [a, b, c]
    ranks = parse_order(order)
    pairs = sorted(pairs_of([ranks[name] for name in names]))
    listed = "".join(
        f"<li><b>{name}</b> (rank {ranks[name]}, reward {reward:+.1f}): {escape(ANSWERS[name])}</li>"
        for name, reward in zip(names, rewards, strict=True)
    )
    shown = f"<p>“I burned my finger.”</p><ul>{listed}</ul>"
    if not pairs:
        return shown, f"{order} makes no pair: nobody said which is better, so there is nothing to learn."
    lines = ""
    for i, j in pairs:
        margin = rewards[i] - rewards[j]
        lines += (
            f"<tr><td>{names[i]} over {names[j]}</td><td>{margin:+.1f}</td>"
            f"<td>{1 / (1 + math.exp(-margin)):.1%}</td><td>{_loss(rewards, [(i, j)]):.4f}</td></tr>"
        )
    head = "<tr><th>pair</th><th>margin</th><th>chance that it wins</th><th>loss (nats)</th></tr>"
    loss, after = _loss(rewards, pairs), _loss(_after_a_step(rewards, pairs), pairs)
    count = f"{len(pairs)} pair{'s' * (len(pairs) > 1)}"
    return (
        f"{shown}<table><thead>{head}</thead><tbody>{lines}</tbody></table>",
        f"{order} makes {count}; their mean loss is {loss:.4f}, and one step makes it {after:.4f}. "
        f"Equal rewards cost {math.log(2):.4f}.",
    )


def ranking_explorer() -> None:
    """Show the ranking widget: choose an order and rewards, see pairs, chances and loss."""
    explore(
        draw,
        order=choice("your order", list(ORDERS)),
        a=slider("reward of A", 0.0, -4.0, 4.0, 0.5),
        b=slider("reward of B", 0.0, -4.0, 4.0, 0.5),
        c=slider("reward of C", 0.0, -4.0, 4.0, 0.5),
    )
