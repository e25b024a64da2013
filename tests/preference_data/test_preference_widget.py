import re

import pytest
import torch
from onegpu.preference_data import parse_order, ranking_loss
from onegpu.widgets.preference_data import ORDERS, draw


@pytest.mark.parametrize("order", ORDERS)
def test_the_loss_shown_is_the_ranking_loss_and_a_step_lowers_it(order):
    rewards = [0.5, -1.0, 2.0]
    ranks = [parse_order(order)[name] for name in "ABC"]
    sentence = draw(order, *rewards)[1]
    if len(set(ranks)) == 1:
        assert "no pair" in sentence
        return
    loss, after, _ = map(float, re.findall(r"\d\.\d{4}", sentence))
    assert loss == pytest.approx(ranking_loss(torch.tensor(rewards), ranks).item(), abs=1e-4)
    assert after < loss


def test_every_order_of_three_answers_can_be_chosen():
    ranks = {tuple(parse_order(order)[name] for name in "ABC") for order in ORDERS}
    assert len(ranks) == len(ORDERS) == 13  # as many weak orders as three things have


def test_a_step_is_one_of_gradient_descent():
    rewards = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    ranking_loss(rewards, [1, 2, 3]).backward()
    moved = rewards.detach() - 0.5 * rewards.grad
    assert f"{ranking_loss(moved, [1, 2, 3]).item():.4f}" in draw("A > B > C", 0.5, -1.0, 2.0)[1]
