"""Policies per seat: gradients against two networks that know nothing of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from sweepd.agents.networks.mlp import Activations, forward
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.popart import scale_values
from sweepd.agents.algorithms.ppo import PPO, LossTerms, PPOParams
from sweepd.agents.engine.population import _named, _turned
from sweepd.agents.networks.shape import Shape
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.tensor_game import NoParams, TensorGame
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import member_params
from tests.agents.networks.test_gradients import log_prob_and_entropy, outputs
from tests.agents.networks.test_items import run
from tests.envs.games.toys import Nim

MEMBERS, ROWS, CPU = (0, 3), 24, torch.device("cpu")
SECOND = "seat1."


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


def networks_of(network: Mapping[str, Tensor], seat: int) -> dict[str, Tensor]:
    """The weights of a seat, by the names of a network of its own."""
    common = {name: part for name, part in network.items() if name.startswith("state_")}
    own = {
        name.removeprefix(SECOND): part
        for name, part in network.items()
        if name.startswith(SECOND) == bool(seat)
    }
    own |= common
    return {
        name: part.clone().requires_grad_(part.is_floating_point()) for name, part in own.items()
    }


def loss_of(
    ppo: PPO, slot: int, weights: dict[str, Tensor], role: int, rows: Tensor, count: int
) -> Tensor:
    """The loss of one network on the rows of its seat, as a share of `count` rows."""
    shape, batch, params = ppo.shape, ppo._batch, member_params(MEMBERS[slot])
    obs = batch.obs[slot][rows].to(torch.float64)
    if shape.items is None:
        obs = ppo.population.inputs(batch.obs)[slot][rows]
    given = outputs(shape, weights, obs, {})
    old, advantage, returns = batch.side[slot][rows][:, -3:].unbind(-1)
    if role:
        error = smooth_l1_loss(given[:, 0], returns, reduction="none")
        return params.value_coef * error.sum() / count
    assert batch.masks is not None
    log_prob, entropy = log_prob_and_entropy(
        shape, weights, given, batch.actions[slot][rows], batch.masks[slot][rows]
    )
    ratio, clip = (log_prob - old).exp(), params.clip
    gain = torch.minimum(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip))
    return -(gain + params.entropy_coef * entropy).sum() / count


@pytest.mark.parametrize("kind", ["nim", "card duel"])
def test_each_seat_learns_as_a_network_of_its_own(kind: str) -> None:
    """Autograd through a network per seat, each on the decisions of its seat alone."""
    env = games(kind)
    ppo = start(env)
    ppo.train(env, 1)
    with torch.no_grad():
        ppo.rollout.collect(env, ppo.streams)
        ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"], ppo._activations)
        torch.manual_seed(1)
        for leaf in ppo.population.weights.every():  # so that ratios and errors differ
            leaf += 0.05 * torch.randn_like(leaf)
        if env.spec.items is not None:
            ppo.population.weights.items[0][:, 0] = 0.0
        rows = ppo.rollout.index.batches(ppo.streams.permutations(1, ppo.rollout.index.items))[0]
        terms = LossTerms.of(ppo.numbers, ppo.population, ROWS)
        ppo._minibatch(rows, torch.zeros(len(MEMBERS), dtype=torch.bool), terms, stop_early=True)
    batch = ppo._batch
    assert batch.valid is not None
    for slot in range(len(MEMBERS)):
        valid = batch.valid[slot]
        second = batch.obs[slot][:, env.spec.seat_column] == 1
        both = _named(ppo.optimizer.grads, slot, ppo.shape)
        for seat in (0, 1):
            mine = valid & (second if seat else ~second)
            assert mine.any()
            for role, network in enumerate(ppo.export_member(slot)):
                weights = networks_of(network, seat)
                loss = loss_of(ppo, slot, weights, role, mine, int(valid.sum()))
                names = [name for name in both[role] if name.startswith(SECOND) == bool(seat)]
                plain = [name.removeprefix(SECOND) for name in names]
                theirs = torch.autograd.grad(loss, [weights[name] for name in plain])
                for name, other in zip(names, theirs, strict=True):
                    torch.testing.assert_close(
                        _turned(name, both[role][name]), other, rtol=1e-9, atol=1e-12, msg=name
                    )


@pytest.mark.parametrize("kind", ["nim", "card duel"])
def test_the_other_seats_weights_change_nothing(kind: str) -> None:
    env = games(kind)
    ppo = start(env)
    population, slots = ppo.population, len(MEMBERS)
    obs = env.observe().view(slots, -1, env.state_dim).repeat(1, 2, 1)
    half = obs.shape[1] // 2
    assert env.spec.seat_column is not None
    obs[:, :half, env.spec.seat_column], obs[:, half:, env.spec.seat_column] = 0, 1
    given = torch.randn(slots, 2 * half, env.action_dim), torch.randn(slots, 2 * half, 1)
    before, grads_before = run(population, obs, *given)
    # Both sets are the second one's of the first member: networks 1 (actor) and 1 + sets (critic).
    size = population.flat.shape[-1] // 2
    population.flat[:, 0, size:] += 0.1 * torch.randn(2, size)
    after, grads_after = run(population, obs, *given)
    for one, other in ((before.output, after.output), (before.value, after.value)):
        assert torch.equal(one[:, :half], other[:, :half])
        assert torch.equal(one[1], other[1])
        assert bool((one[0, half:] != other[0, half:]).any(-1).all())
    for one, other in zip(grads_before.every(), grads_after.every(), strict=True):
        # Sets of weights 0 (first seat) and 2, 3 (the other member); critics after all actors.
        changed = torch.arange(len(one)) % (2 * slots) == 1
        assert torch.equal(one[~changed], other[~changed])
    assert not torch.equal(grads_before.actor_in[1], grads_after.actor_in[1])


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

    def values() -> Tensor:
        acts = Activations(population.shape, obs.shape[1], CPU)
        forward(population.weights, population.inputs(obs), acts)
        return acts.value * population.value_std + population.value_avg

    before = values()
    numbers = torch.tensor([[3.0], [5.0]])
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
    actor, critic = ppo.export_member(0)
    assert actor["seat_column"].tolist() == [env.spec.seat_column]
    assert actor["seat1.items.embedding"].shape == actor["items.embedding"].shape
    assert "seat_column" not in critic
    assert not {"seat1.state_avg", "seat1.items.facts"} & set(actor)


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
