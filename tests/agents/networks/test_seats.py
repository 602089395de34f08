"""Policies per seat: two networks of a member that know nothing of each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.popart import scale_values
from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.shape import Shape
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.tensor_game import NoParams, TensorGame
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import member_params
from tests.agents.networks.test_gradients import check_gradients
from tests.envs.games.toys import Nim

MEMBERS, ROWS, CPU = (0, 3), 24, torch.device("cpu")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def normaliser(env: TensorGame) -> tuple[Tensor, Tensor]:
    """A mean and a deviation that leave what networks look up as it is."""
    avg = torch.zeros(env.state_dim)
    if env.spec.items is not None:
        return avg, torch.tensor(env.spec.items.scales())
    avg, std = avg + 1.0, torch.full((env.state_dim,), 1.5)
    assert env.spec.seat_column is not None
    avg[env.spec.seat_column], std[env.spec.seat_column] = 0.0, 1.0
    return avg, std


def start(env: TensorGame, **changes: Any) -> PPO:
    sizes = {"net_width": 9, "horizon": 12, "minibatch": ROWS, "epochs": 2}
    ppo = PPO(Shape.for_env(env, **{**sizes, "policies": "per-seat", **changes}))
    for slot, member in enumerate(MEMBERS):
        # The exported actors are to have the present weights, not their running mean.
        params = member_params(member, weight_average=0.0)
        ppo.add_member(slot, params, 100 + member, 8, *normaliser(env))
    env.reset([200 + slot for slot in range(len(MEMBERS))])
    ppo.begin(env.observe())
    return ppo


def games(kind: str) -> TensorGame:
    if kind == "card duel":
        return CardDuel([CardDuelParams()] * len(MEMBERS), 6)
    return Nim([NoParams()] * len(MEMBERS), 6)


@pytest.mark.parametrize("kind", ["nim", "card duel"])
def test_each_seat_learns_as_a_network_of_its_own(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = games(kind)
    ppo = start(env)
    check_gradients(ppo, env, monkeypatch)
    batch = ppo._batch
    assert batch.valid is not None
    second = batch.obs[..., env.seat_column] == 1
    for mine in (batch.valid & second, batch.valid & ~second):
        assert mine.any(1).all()


@pytest.mark.parametrize("kind", ["nim", "card duel"])
def test_the_other_seats_weights_change_nothing(kind: str) -> None:
    env = games(kind)
    ppo = start(env)
    slots, population = len(MEMBERS), ppo.population
    obs = env.observe().view(slots, -1, env.state_dim).repeat(1, 2, 1)
    half = obs.shape[1] // 2
    assert env.seat_column is not None
    obs[:, :half, env.seat_column], obs[:, half:, env.seat_column] = 0, 1
    x = population.critic.normalised(obs)
    for own in (population.actor, population.critic):
        net = Net(own.spec, own.flat)
        slope = torch.randn_like(net.forward(x)[0].detach())

        def run(net: Net = net, slope: Tensor = slope) -> tuple[Tensor, Tensor]:
            leaves = [leaf.requires_grad_() for leaf in net.weights.values()]
            output, _ = net.forward(x)
            found = torch.autograd.grad(output, leaves, slope)
            gradients = Net(net.spec, torch.zeros_like(net.flat))
            for into, gradient in zip(gradients.weights.values(), found, strict=False):
                into.copy_(gradient)
            return output.detach(), gradients.flat.view(slots, 2, -1)

        before, gradients_before = run()
        with torch.no_grad():  # the second policy of the first member
            net.flat.view(slots, 2, -1)[0, 1] += 0.1 * torch.randn(net.flat.shape[1] // 2)
        after, gradients_after = run()
        assert torch.equal(before[:, :half], after[:, :half])
        assert torch.equal(before[1], after[1])
        assert bool((before[0, half:] != after[0, half:]).any(-1).all())
        assert torch.equal(gradients_before[:, 0], gradients_after[:, 0])
        assert torch.equal(gradients_before[1], gradients_after[1])
        assert not torch.equal(gradients_before[0, 1], gradients_after[0, 1])


def test_a_shared_policy_is_the_first_of_two() -> None:
    """With the same seed; so the decisions of the first seat begin alike."""
    env = games("nim")
    both, shared = start(env), start(env, policies="shared")
    for slot in range(len(MEMBERS)):
        for one, other in zip(both.export_member(slot), shared.export_member(slot), strict=True):
            assert all(torch.equal(one[name], part) for name, part in other.items())
            assert not torch.equal(one["net.0.weight"], one["seat1.net.0.weight"])
    assert both.population.flat.shape[-1] == 2 * shared.population.flat.shape[-1]


def test_return_scaling_keeps_the_values_of_both_seats() -> None:
    env = games("nim")
    population = start(env).population
    obs = env.observe().view(len(MEMBERS), -1, env.state_dim)
    population.value_std.fill_(2.0)

    @torch.no_grad()
    def values() -> Tensor:
        critic = population.critic
        return critic.value(critic.forward(critic.normalised(obs))[0])

    before = values()
    numbers = torch.tensor([[3.0], [5.0]])
    with torch.no_grad():
        scale_values(population, numbers, numbers + 1.0, torch.full((2, 1), 0.5), numbers > 4.0)
    assert population.value_std[:, 0, 0].tolist()[0] == 2.0
    assert float(population.value_std[1]) != 2.0
    torch.testing.assert_close(values(), before)


def test_a_member_survives_export_and_import() -> None:
    env = games("card duel")
    ppo = start(env)
    ppo.train(env, 1)
    other = start(games("card duel"))
    other.population.import_member(1, *ppo.export_member(0))
    assert torch.equal(other.population.flat[:, 1], ppo.population.flat[:, 0])
    actor, _ = ppo.export_member(0)
    assert actor["seat1.items.embedding"].shape == actor["items.embedding"].shape
    assert "seat1.state_avg" not in actor


def test_what_is_refused() -> None:
    env = games("nim")
    with pytest.raises(InputError, match="must be one of shared, per-seat, not 'two'"):
        start(env, policies="two")
    with pytest.raises(InputError, match="tells the seat"):
        start(env, seat_column=None)
    with pytest.raises(InputError, match="must be 'shared' where"):
        start(env, autoregressive=True)
    numbers = {"state_dim": 3, "action_dim": 1, "seat_column": 2, "policies": "per-seat"}
    with pytest.raises(InputError, match="must be 'shared' where actions are numbers"):
        Shape(**numbers)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="d3qn has no policies per seat"):
        D3QN(Shape(**numbers, if_discrete=True, algorithm="d3qn"), CPU)  # type: ignore[arg-type]
    avg, std = normaliser(env)
    std[4] = 2.0
    with pytest.raises(InputError, match="must be 0 and 1 in column 4, which tells the seat"):
        start(env).add_member(0, PPOParams(), 0, 1, avg, std)
