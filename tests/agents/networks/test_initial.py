"""New networks equal ElegantRL's to the bit for the same seed, and load into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from elegantrl.agents.net import ActorDiscretePPO, ActorPPO, ActorSAC, CriticPPO, CriticTwin
from elegantrl.agents.net import QNetTwinDuel as TwinDuel
from torch import nn

from sweepd.agents.networks.initial import (
    d3qn_network,
    ppo_actor,
    ppo_critic,
    sac_actor,
    sac_critic,
)
from sweepd.agents.networks.portable import OrthogonalInDouble

Make = Callable[[Sequence[int], int, int], nn.Module]
PAIRS: dict[str, tuple[Make, Make]] = {
    "ActorPPO": (lambda *sizes: ppo_actor(*sizes, discrete=False), ActorPPO),
    "ActorDiscretePPO": (lambda *sizes: ppo_actor(*sizes, discrete=True), ActorDiscretePPO),
    "CriticPPO": (lambda dims, state_dim, _: ppo_critic(dims, state_dim), CriticPPO),
    "ActorSAC": (sac_actor, ActorSAC),
    "CriticTwin": (sac_critic, CriticTwin),
    "QNetTwinDuel": (d3qn_network, TwinDuel),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    ("dims", "state_dim", "action_dim"), [((64, 64), 5, 2), ((7,), 1, 1), ((32, 16, 8), 24, 6)]
)
@pytest.mark.parametrize("in_double", [False, True])
def test_weights_are_elegantrls(
    name: str, dims: tuple[int, ...], state_dim: int, action_dim: int, in_double: bool
) -> None:
    with torch.random.fork_rng(devices=[]):
        made, after = [], []
        for make in PAIRS[name]:
            torch.manual_seed(20)
            if in_double:
                with OrthogonalInDouble():
                    made.append(make(list(dims), state_dim, action_dim))
            else:
                made.append(make(list(dims), state_dim, action_dim))
            after.append(torch.rand(1))
    own, theirs = (module.state_dict() for module in made)
    assert list(own) == list(theirs)
    for part in own:
        assert torch.equal(own[part], theirs[part]), part
    assert torch.equal(*after)  # as many numbers were drawn
    for module, other in ((made[0], theirs), (made[1], own)):  # both ways
        module.load_state_dict(other)
    learns = [{p for p, tensor in m.named_parameters() if tensor.requires_grad} for m in made]
    assert learns[0] == learns[1]
