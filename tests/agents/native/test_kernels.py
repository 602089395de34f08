"""The native kernels against torch: outputs of networks, whole updates, and their bits."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, RolloutStats
from sweepd.agents.engine.program import Program
from sweepd.agents.native.choice import KERNELS, chosen, require
from sweepd.agents.native.kernels import SOURCE, Kernels, NetKernel
from sweepd.agents.native.self_test import DIGEST, FEED_FORWARD, IMAGES, RECURRENT, digest
from sweepd.agents.networks import convolution
from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.agents.networks.convolution import Filters, filters_for
from sweepd.agents.networks.shape import PER_SEAT
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.core.vec_env import Step
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.poker.kuhn import Kuhn
from sweepd.envs.games.tensor_game import NoParams, TensorGame
from sweepd.envs.native import build, threads
from sweepd.envs.native.build import VARIABLE
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.helpers import assert_same, member_params, shape_for, start
from tests.agents.networks.nets import random_net
from tests.agents.off_policy_helpers import started
from tests.agents.toy_env import (
    AbsentChoicesEnv,
    AbsentEnv,
    ChoiceEnv,
    ChoicesEnv,
    EntitiesEnv,
    ImageEnv,
    ItemsEnv,
    MaskedEnv,
    PaddedEnv,
    ToyEnv,
)

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native kernels: {error}", allow_module_level=True)

SLOTS, ENVS = 5, 8


class IdsEnv(ItemsEnv):
    """Items without features, nor any other columns."""

    items = Items(6, (ItemGroup("hand", 3), ItemGroup("row", 2)))

    def _observe(self) -> Tensor:
        return super()._observe()[:, ItemsEnv.items.id_columns()]


class MaskedImageEnv(MaskedEnv):
    """Images, and several choices that may be illegal."""

    image_shape, obs_dtype = ImageEnv.image_shape, ImageEnv.obs_dtype

    def __init__(self, members: int, envs_per_member: int) -> None:
        super().__init__(members, envs_per_member)
        self.state_dim = 2 * 9 * 10
        self._final = torch.zeros(self.num_envs, self.state_dim, dtype=torch.uint8)
        self.state_avg = torch.zeros(self.state_dim)
        self.state_std = torch.full((self.state_dim,), 255.0)

    def _observe(self) -> Tensor:
        return ImageEnv._observe(self)  # type: ignore[arg-type]


MEMBERS = {slot: slot for slot in range(SLOTS)}


def kernels() -> Kernels:
    found = KERNELS.loaded()
    assert found is not None
    return found


def test_kernels_compile_without_warnings(tmp_path: Path) -> None:
    flags = [flag for flag in (*build.FLAGS, *build.vector_flags()) if flag != "-w"]
    # GCC's own AVX-512 header has a false positive of -Wmaybe-uninitialized.
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-maybe-uninitialized", "-O1"]
    command = [build.compiler(), *flags, *warnings, f"-I{build.SHARED}", str(SOURCE)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "kernels.so")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# Functions.


def test_functions_are_within_two_units_in_the_last_place() -> None:
    x = torch.cat((torch.linspace(-87.3, 88.7, 2**18), torch.linspace(-1, 1, 2**16)))
    exponential, _, tangent = kernels().functions(x)
    assert units_off(exponential, x.double().exp()) < 1.5
    assert units_off(tangent, x.double().tanh()) < 1.5
    x = torch.cat((torch.logspace(-37, 38, 2**18), torch.linspace(0.5, 2, 2**16)))
    _, logarithm, tangent = kernels().functions(x)
    assert units_off(logarithm, x.double().log()) < 1.5
    assert units_off(tangent, x.double().tanh()) < 1.5


def test_functions_of_numbers_that_are_not_finite() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 89.0, -104.0, -1e30, 0.0, 1.0] * 2)
    exponential, logarithm, tangent = (found[:8].tolist() for found in kernels().functions(x))
    assert exponential[0] != exponential[0]
    assert exponential[1:7] == [torch.inf, 0.0, torch.inf, 0.0, 0.0, 1.0]
    assert logarithm[0] != logarithm[0]
    assert (logarithm[1], logarithm[7]) == (torch.inf, 0.0)
    assert tangent[0] != tangent[0]
    assert tangent[1:7] == [1.0, -1.0, 1.0, -1.0, -1.0, 0.0]


def units_off(found: Tensor, right: Tensor) -> float:
    """Return the largest error, in units in the last place of float32."""
    rounded = right.float()
    unit = (torch.nextafter(rounded, torch.tensor(torch.inf)) - rounded).double()
    return float(((found.double() - right).abs() / unit).max())


# Outputs.


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("width", "depth", "actions", "rows"), [(64, 2, 7, 97), (33, 1, 40, 5)])
def test_outputs_are_those_of_torch(
    width: int, depth: int, actions: int, rows: int, activation: str
) -> None:
    for kind, columns in (("ActorPPO", 11), ("CriticPPO", 14)):
        spec = NetSpec(
            kind=kind,
            columns=columns,
            actions=actions,
            hidden=(width,) * depth,
            activation=activation,
        )
        net = random_net(spec, 3, learns=False)
        # As in a rollout: the rows of one step of many.
        obs = torch.randn(3, 4, rows, 14, generator=torch.Generator().manual_seed(0))[:, 1]
        torch.testing.assert_close(NetKernel(kernels(), net)(obs)[0], net.forward(obs)[0])


FEW_CHANNELS = (Filters(5, 3, 2), Filters(20, 2, 1), Filters(33, 2, 2))


@pytest.mark.parametrize("rows", [1, 29])
@pytest.mark.parametrize(
    ("image", "filters", "width"),
    [
        ((4, 84, 84), None, 64),
        ((3, 50, 48), None, 33),
        ((1, 26, 30), None, 16),
        ((7, 12, 11), FEW_CHANNELS, 33),
        ((5, 9, 9), (Filters(17, 4, 1), Filters(1, 3, 1)), 64),
        ((1, 6, 5), (Filters(3, 1, 3),), 16),
        ((2, 5, 5), (Filters(16, 5, 7),), 16),
    ],
)
def test_outputs_for_images_are_those_of_torch(
    image: tuple[int, int, int], filters: tuple[Filters, ...] | None, width: int, rows: int
) -> None:
    columns = image[0] * image[1] * image[2]
    spec = NetSpec(
        kind="ActorDiscretePPO",
        columns=columns,
        actions=5,
        hidden=(width, width),
        image=image,
        filters=filters or filters_for(image),
    )
    net = random_net(spec, 3, learns=False)
    numbers = torch.Generator().manual_seed(0)
    # As in a rollout: the rows of one step of many.
    size = 3, 2, rows, columns
    obs = torch.randint(0, 256, size, generator=numbers, dtype=torch.uint8)[:, 1]
    net.normalisers["state_std"].mul_(100.0)
    for same in (False, True):  # normalisers of columns that differ, and equal ones
        if same:
            net.normalisers["state_avg"].fill_(3.0), net.normalisers["state_std"].fill_(255.0)
        wanted = net.forward(net.normalised(obs))[0]
        found = NetKernel(kernels(), net)(obs)[0]
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    with pytest.raises(TypeError, match=r"networks read torch\.float32 though"):
        NetKernel(kernels(), net)(obs.float())


# Updates.


def trained(
    kind: type[ToyEnv], rollouts: int, settings: dict[str, Any] | None = None, **changes: Any
) -> tuple[PPO, list[RolloutStats]]:
    env = kind(SLOTS, ENVS, **settings or {})
    ppo = start(env, MEMBERS, num_envs=ENVS, **changes)
    return ppo, ppo.train(env, rollouts)


# Two parts of a minibatch, the last one of which is not full.
PARTS = {"horizon": 100, "minibatch": 480}
IN_PARTS: list[tuple[type[ToyEnv], dict[str, Any]]] = [
    (ToyEnv, {}),
    (AbsentChoicesEnv, {"autoregressive": True}),
    (ItemsEnv, {}),
    (EntitiesEnv, {"entity_width": 16}),
    (ImageEnv, {"recurrent": "gru", "bptt": 4}),
]


@pytest.mark.parametrize(
    ("kind", "settings", "changes"),
    [
        (ToyEnv, {"privileged": True}, {}),
        (ToyEnv, {}, {"net_width": 33, "minibatch": 70, "net_depth": 3}),
        (ToyEnv, {"action_dim": 20}, {"net_depth": 1}),
        (ToyEnv, {"privileged": True}, {"net_width": 33, "minibatch": 70, "activation": "tanh"}),
        (ToyEnv, {}, {"net_depth": 3, "activation": "silu"}),
        (ToyEnv, {}, {"net_depth": 11}),
        (ChoicesEnv, {}, {"activation": "elu"}),
        (ItemsEnv, {}, {"net_width": 33, "activation": "tanh"}),
        (ChoiceEnv, {}, {}),
        (ChoicesEnv, {}, {}),
        (ChoicesEnv, {}, {"autoregressive": True}),
        (MaskedEnv, {}, {"net_width": 17}),
        (AbsentEnv, {}, {}),
        (PaddedEnv, {}, {}),
        (AbsentChoicesEnv, {}, {"net_width": 64}),
        (ItemsEnv, {}, {}),
        (ItemsEnv, {}, {"item_width": 33, "net_width": 32, "minibatch": 20}),
        (IdsEnv, {}, {"item_width": 5}),
        (EntitiesEnv, {}, {"entity_width": 16}),
        (
            EntitiesEnv,
            {"privileged": True},
            {"entity_width": 32, "net_width": 33, "horizon": 14, "minibatch": 110},
        ),
        (EntitiesEnv, {}, {"entity_width": 16, "net_depth": 1, "activation": "tanh"}),
        (ToyEnv, {"privileged": True}, {"recurrent": "gru", "bptt": 4}),
        (
            ToyEnv,
            {"max_step": 3},
            {"recurrent": "gru", "bptt": 3, "net_width": 33, "minibatch": 72},
        ),
        (ChoicesEnv, {}, {"recurrent": "gru", "bptt": 12, "minibatch": 96, "autoregressive": True}),
        (AbsentEnv, {}, {"recurrent": "gru", "bptt": 2, "net_depth": 1, "activation": "silu"}),
        (ToyEnv, {"max_step": 5}, {"recurrent": "lstm", "bptt": 12, "minibatch": 96}),
        (MaskedEnv, {}, {"recurrent": "lstm", "bptt": 4, "net_width": 33, "activation": "tanh"}),
        (AbsentChoicesEnv, {}, {"recurrent": "lstm", "bptt": 6, "minibatch": 48, "net_depth": 3}),
        (ItemsEnv, {}, {"recurrent": "lstm", "bptt": 1, "minibatch": 30}),
        (EntitiesEnv, {}, {"recurrent": "gru", "bptt": 4, "entity_width": 16}),
        (ImageEnv, {}, {}),
        (ImageEnv, {}, {"net_width": 33, "minibatch": 70, "activation": "tanh", "net_depth": 1}),
        (ImageEnv, {}, {"recurrent": "gru", "bptt": 4}),
        (MaskedImageEnv, {}, {"autoregressive": True}),
        *((kind, {}, PARTS | changes) for kind, changes in IN_PARTS),
    ],
)
def test_an_update_is_that_of_torch(
    kind: type[ToyEnv],
    settings: dict[str, Any],
    changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, moments, steps and statistics after a rollout; some members stop at a target KL."""
    ours, stats = trained(kind, 1, settings, **changes)
    monkeypatch.setenv(VARIABLE, "torch")
    before, _ = trained(kind, 0, settings, **changes)
    theirs, right = trained(kind, 1, settings, **changes)
    assert_close_updates(before, ours, theirs)
    assert_close_stats(stats[0], right[0])


def assert_close_updates(
    before: PPO, ours: PPO, theirs: PPO, weights: float = 1e-4, moments: float = 1e-5
) -> None:
    """Check weights, moments and steps of a native program against those of a torch program."""
    assert ours._native is not None
    assert theirs._native is None
    assert torch.equal(ours.optimizer.step, theirs.optimizer.step)
    start_flat = before.population.flat
    # Adam divides small gradients by their size, and so their rounding.
    for found, wanted, most in (
        (ours.population.flat - start_flat, theirs.population.flat - start_flat, weights),
        (ours.optimizer.m, theirs.optimizer.m, moments),
        (ours.optimizer.v, theirs.optimizer.v, moments),
    ):
        assert float((found - wanted).norm() / wanted.norm()) < most


def assert_close_stats(stats: RolloutStats, right: RolloutStats) -> None:
    for name in RolloutStats._fields:
        found, wanted = getattr(stats, name), getattr(right, name)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6, msg=name)


class WideImageEnv(ImageEnv):
    """So large images that fewer than a minibatch pass through the convolutions together."""

    image_shape = (1, 50, 48)

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, **settings)
        self.state_dim = 50 * 48
        numbers = torch.Generator().manual_seed(0)
        self.state_avg = 20.0 * torch.rand(self.state_dim, generator=numbers)
        self.state_std = 100.0 + 50.0 * torch.rand(self.state_dim, generator=numbers)
        self._final = torch.zeros(self.num_envs, self.state_dim, dtype=torch.uint8)

    def _observe(self) -> Tensor:
        image = torch.zeros(self.num_envs, 50, 48, dtype=torch.uint8)
        rows, column = torch.arange(self.num_envs), ((self._s[:, 0] + 1.0) * 24.0).clamp(0, 47)
        image[rows, :, column.long()] = 200
        image[rows, self._age.long().clamp(max=49)] += 50
        return image.flatten(1)


@pytest.mark.parametrize(
    ("kind", "filters"),
    [
        (ImageEnv, None),
        (WideImageEnv, None),
        (ImageEnv, FEW_CHANNELS),
        (ImageEnv, (Filters(18, 2, 3),)),
        (ImageEnv, (Filters(4, 3, 1), Filters(40, 3, 3))),
    ],
)
def test_weights_of_convolutions_are_those_of_torch(
    kind: type[ImageEnv], filters: tuple[Filters, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every gradient and weight after three rollouts."""
    if filters is not None:
        monkeypatch.setattr(convolution, "_SIZES", {1: filters})
    changes: dict[str, Any] = {"net_width": 33, "minibatch": 96}
    ours, _ = trained(kind, 3, **changes)
    monkeypatch.setenv(VARIABLE, "torch")
    before, _ = trained(kind, 0, **changes)
    theirs, _ = trained(kind, 3, **changes)
    # Rounding decides the sign of an activation near 0 now and then, and so a row of a gradient.
    close = {"weights": 0.1, "moments": 0.01}
    assert_close_updates(before, ours, theirs, **close)
    for critic, name in enumerate(("actor", "critic")):
        net = getattr(before.population, name)
        start_flat = before.population.flat[critic]
        pairs = [
            [net.views(ppo.population.flat[critic] - start_flat) for ppo in (ours, theirs)],
            [net.views(ppo.optimizer.m[critic]) for ppo in (ours, theirs)],
        ]
        for (found, wanted), most in zip(pairs, close.values(), strict=True):
            for part, right in wanted.items():
                assert float(right.norm()) > 0, part
                assert float((found[part] - right).norm() / right.norm()) < most, part


def test_leaving_out_padding_changes_no_bit() -> None:
    """-0.0 counts as a number that is not 0, so nothing is left out of its products."""
    (ours, stats), (whole, right) = (
        trained(PaddedEnv, 3, {"zero": zero}, net_width=33) for zero in (0.0, -0.0)
    )
    assert torch.equal(ours.population.flat, whole.population.flat)
    assert torch.equal(ours.optimizer.v, whole.optimizer.v)
    for found, wanted in zip(stats, right, strict=True):
        assert_same(found._asdict(), wanted._asdict())


def kuhn(rollouts: int, **changes: Any) -> tuple[PPO, list[RolloutStats]]:
    """Train on Kuhn poker: players in turns, masks, and columns that only critics read."""
    return played(Kuhn([NoParams()] * SLOTS, ENVS), rollouts, **changes)


def card_duel(rollouts: int, **changes: Any) -> tuple[PPO, list[RolloutStats]]:
    """Train on the card duel: items with and without features, facts, and several choices."""
    return played(CardDuel([CardDuelParams()] * SLOTS, ENVS), rollouts, item_width=5, **changes)


def played(env: TensorGame, rollouts: int, **changes: Any) -> tuple[PPO, list[RolloutStats]]:
    ppo = PPO(shape_for(env, **{"autoregressive": False, **changes}))  # type: ignore[arg-type]
    std = (
        torch.ones(env.state_dim)
        if env.spec.items is None
        else torch.tensor(env.spec.items.scales())
    )
    avg = torch.zeros(env.state_dim)
    for slot in range(SLOTS):
        ppo.add_member(slot, member_params(slot), 100 + slot, 8, avg, std)
    env.reset([200 + slot for slot in range(SLOTS)])
    ppo.begin(env.observe())
    return ppo, ppo.train(env, rollouts)


def test_an_update_on_a_game_whose_critics_know_more_is_that_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, stats = kuhn(1)
    assert ours.shape.privileged_dim == 3
    monkeypatch.setenv(VARIABLE, "torch")
    before, _ = kuhn(0)
    theirs, right = kuhn(1)
    assert_close_updates(before, ours, theirs)
    assert_close_stats(stats[0], right[0])
    # The critics' weights on the privileged columns, the last ones, were trained.
    known = slice(ours.shape.state_dim, None)
    first, earlier = (one.population.critic.weights["net.0.weight"] for one in (ours, before))
    moved = first - earlier
    assert (moved[:, known].abs().amax((1, 2)) > 1e-4).all()


@pytest.mark.parametrize("play", [kuhn, card_duel])
def test_an_update_of_policies_per_seat_is_that_of_torch(
    play: Callable[..., tuple[PPO, list[RolloutStats]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, stats = play(1, policies=PER_SEAT)
    monkeypatch.setenv(VARIABLE, "torch")
    before, _ = play(0, policies=PER_SEAT)
    theirs, right = play(1, policies=PER_SEAT)
    assert_close_updates(before, ours, theirs)
    assert_close_stats(stats[0], right[0])
    # Both sets of weights of every member moved, by different ways.
    moved = (ours.population.flat - before.population.flat).view(2, SLOTS, 2, -1)
    assert (moved.norm(dim=3) > 0).all()
    assert ((moved[:, :, 0] - moved[:, :, 1]).norm(dim=2) > 0).all()


def test_an_item_that_is_not_in_the_vocabulary_is_found() -> None:
    ppo, _ = trained(ItemsEnv, 0)
    native = ppo.act_fn()
    assert native._run.native is not None
    obs = ppo.obs.clone()
    native(obs)
    obs[-1, 0] = ItemsEnv.items.vocabulary
    with pytest.raises(RunError, match="not in the vocabulary of 6 ids"):
        native(obs)


def test_the_running_mean_of_the_weights_follows_native_updates() -> None:
    env = ToyEnv(SLOTS, ENVS)
    ppo = start(env, MEMBERS, num_envs=ENVS)
    assert ppo._native is not None
    lengths = torch.tensor([member_params(slot).weight_average for slot in range(SLOTS)])
    assert len(set(lengths.tolist())) == 3  # 0, 0.5 and 1
    mean = torch.zeros_like(ppo.population.flat[0])
    for number in range(1, 5):
        ppo.train(env, 1)
        present = ppo.population.flat[0]
        mean += (present - mean) / (lengths * number).clamp_min(1.0).unsqueeze(1)
        wanted = torch.where(lengths.unsqueeze(1) > 0, mean, present)
        torch.testing.assert_close(ppo.population.acting().flat, wanted, rtol=1e-5, atol=1e-7)
    for slot in range(SLOTS):
        assert torch.equal(ppo.population.acting().flat[slot], ppo.population.flat[0, slot]) == (
            lengths[slot] == 0
        )
    # What acts in evaluations is what is exported: the mean.
    other = start(ToyEnv(SLOTS, ENVS), MEMBERS, num_envs=ENVS)
    for slot in range(SLOTS):
        other.import_actor(slot, ppo.export_member(slot)[0])
    assert_same(other.acting_weights(), stacked(ppo))
    obs = torch.randn(SLOTS * 7, env.state_dim)
    assert torch.equal(ppo.act_fn()(obs), other.act_fn()(obs))


def stacked(ppo: PPO) -> dict[str, Tensor]:
    """The exported actors as one dictionary."""
    actors = [ppo.export_member(slot)[0] for slot in range(SLOTS)]
    return {name: torch.stack([actor[name] for actor in actors]) for name in actors[0]}


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv, ChoicesEnv, MaskedEnv, ItemsEnv, ImageEnv])
def test_drawn_and_deterministic_actions_are_those_of_torch(
    kind: type[ToyEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = kind(SLOTS, 50, **({} if kind in (ItemsEnv, ImageEnv) else {"privileged": True}))
    ppo = start(env, MEMBERS)
    native = ppo.act_fn()
    monkeypatch.setenv(VARIABLE, "torch")
    in_torch = ppo.act_fn()
    assert native._run.native is not None
    assert in_torch._run.native is None
    obs = ppo.obs[:, : env.state_dim].clone()
    legal = env.action_mask if env.spec.masked else None
    uniforms = torch.rand(len(obs), native.uniforms, dtype=torch.float64)
    for drawn in (None, uniforms):
        found, wanted = (act(obs, legal, drawn).double() for act in (native, in_torch))
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(("cell", "width"), [("gru", 16), ("lstm", 33)])
def test_recurrent_actors_act_over_episodes_as_in_torch(
    cell: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = ToyEnv(SLOTS, 100)
    ppo = start(env, MEMBERS, recurrent=cell, bptt=4, net_width=width)
    native = ppo.act_fn()
    monkeypatch.setenv(VARIABLE, "torch")
    in_torch = ppo.act_fn()
    numbers = torch.Generator().manual_seed(0)
    for _ in range(5):
        obs = torch.randn(SLOTS * 100, env.state_dim, generator=numbers)
        ended = torch.rand(SLOTS * 100, generator=numbers) < 0.3
        found, wanted = (act(obs) for act in (native, in_torch))
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)
        native.done(ended), in_torch.done(ended)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_checkpoint_of_a_recurrent_member_goes_on_in_torch(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = trained(AbsentEnv, 1, recurrent=cell, bptt=4)
    native, _ = trained(AbsentEnv, 0, recurrent=cell, bptt=4)
    monkeypatch.setenv(VARIABLE, "torch")
    in_torch, _ = trained(AbsentEnv, 0, recurrent=cell, bptt=4)
    assert (native._native is None, in_torch._native is None) == (False, True)
    flats = []
    for other in (native, in_torch):
        for slot in range(SLOTS):
            other.set_member(slot, ours.get_member(slot))
        other.train(AbsentEnv(SLOTS, ENVS), 1)
        flats.append(other.population.flat - ours.population.flat)
    assert float((flats[0] - flats[1]).norm() / flats[1].norm()) < 1e-4


def test_some_members_of_these_tests_stop_early() -> None:
    ppo, _ = trained(ToyEnv, 1)
    assert len(set(ppo.optimizer.step.tolist())) > 1


@pytest.mark.parametrize("part", ["actor", "critic"])
@pytest.mark.parametrize("target_kl", [0.0, 1e9])
def test_both_networks_stop_where_one_is_not_finite(
    part: str, target_kl: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that diverges keeps the weights of the step before, as in torch."""

    def diverged() -> PPO:
        env = ToyEnv(SLOTS, ENVS)
        ppo = start(env, MEMBERS, num_envs=ENVS)
        ppo.numbers["target_kl"].fill_(target_kl)
        ppo._collect(env)
        explained = ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
        # One transition is bad, which is in one minibatch of every epoch.
        samples = ppo.rollout.samples()
        column = samples.advantages if part == "actor" else samples.returns
        column[2, 5] = torch.inf if part == "actor" else torch.nan
        ppo._update(explained)
        return ppo

    with torch.no_grad():
        ours = diverged()
        monkeypatch.setenv(VARIABLE, "torch")
        theirs = diverged()
    assert ours.diverged == theirs.diverged == [slot == 2 for slot in range(SLOTS)]
    assert torch.equal(ours.optimizer.step, theirs.optimizer.step)
    torch.testing.assert_close(ours.population.flat, theirs.population.flat, rtol=1e-4, atol=1e-5)


# Bits.


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    for number in (1, 2, 5):
        torch.set_num_threads(number)
        assert digest(kernels()) == DIGEST


@pytest.mark.parametrize(("kind", "changes"), IN_PARTS)
def test_bits_do_not_change_where_networks_make_each_step_together(
    kind: type[ToyEnv], changes: dict[str, Any]
) -> None:
    """As where there are more threads than networks. Some members stop at a target KL."""
    found = []
    for number in (1, 20):
        torch.set_num_threads(number)
        ppo, stats = trained(kind, 2, **PARTS, **changes)
        found.append((ppo.population.flat, ppo.optimizer.v, *stats[-1]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class ThreadsEnv(ToyEnv):
    """Notes the threads of torch and of native code in every step."""

    def __init__(self, members: int, envs_per_member: int, *, fails: bool = False) -> None:
        super().__init__(members, envs_per_member)
        self.fails, self.seen = fails, set[tuple[int, int]]()

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        self.seen.add((torch.get_num_threads(), threads.count()))
        if self.fails:
            raise RuntimeError("this step fails")
        return super().step(action, out)


@pytest.mark.parametrize("off_policy", [False, True])
def test_torch_has_one_thread_in_rollouts_of_native_programs(
    monkeypatch: pytest.MonkeyPatch, off_policy: bool
) -> None:
    def seen(**settings: Any) -> set[tuple[int, int]]:
        env = ThreadsEnv(SLOTS, ENVS, **settings)
        program: Program = (
            started(env, MEMBERS)[0] if off_policy else start(env, MEMBERS, num_envs=ENVS)
        )
        try:
            program.train(env, 1)
        except RuntimeError:
            assert env.fails
        assert (torch.get_num_threads(), threads.count()) == (3, 3)
        return env.seen

    torch.set_num_threads(3)
    assert seen() == seen(fails=True) == {(1, 3)}
    monkeypatch.setenv(VARIABLE, "torch")
    assert seen() == {(3, 3)}


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the processor has no AVX-512"
)
def test_bits_do_not_depend_on_the_width_of_vectors() -> None:
    """The library for AVX2 gives the same bits. torch reads the variable when it is loaded."""
    done = subprocess.run(
        [sys.executable, "-m", "sweepd.agents.native.self_test"],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "avx2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == DIGEST


def test_a_forked_process_has_threads_of_its_own() -> None:
    torch.set_num_threads(2)
    assert digest(kernels()) == DIGEST
    child = os.fork()
    if not child:
        os._exit(int(digest(kernels()) != DIGEST))
    assert os.waitpid(child, 0)[1] == 0


# Where they are not used.


def test_networks_that_are_deeper_than_the_kernels_stay_in_torch() -> None:
    ppo, _ = trained(ImageEnv, 0, net_depth=33)
    assert ppo._native is None


def test_without_a_compiler_torch_trains_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(KERNELS, "_tried", False)
    monkeypatch.setattr(KERNELS, "_found", None)
    with caplog.at_level(logging.WARNING):
        ppo, _ = trained(ToyEnv, 1)
        trained(ToyEnv, 1)
    assert ppo._native is None
    [record] = caplog.records
    assert "no C++ compiler (install g++ or clang++)" in record.getMessage()


def test_a_library_with_other_bits_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, other in (("_expected", "of other kernels"), ("_tried", False), ("_found", None)):
        monkeypatch.setattr(KERNELS, name, other)
    assert KERNELS.loaded() is None
    assert "self-test" in caplog.text
    assert "not used: what was compiled fails its self-test" in KERNELS.status()


# Studies.

CPU = torch.device("cpu")


def test_a_new_study_records_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in ("ppo", "sac", "d3qn"):
        assert (
            chosen(algorithm, "fp32", CPU, recurrent=False, images=False)
            == f"native {FEED_FORWARD}, torch 4"
        )
    name = f"native {FEED_FORWARD}, recurrent {RECURRENT}, torch 4"
    assert chosen("ppo", "fp32", CPU, recurrent=True, images=False) == name
    name = f"native {FEED_FORWARD}, images {IMAGES}, torch 4"
    assert chosen("ppo", "fp32", CPU, recurrent=False, images=True) == name
    assert chosen("elegantrl:sac", "fp32", CPU, recurrent=False, images=False) == "torch 4"
    assert chosen("ppo", "bf16", CPU, recurrent=True, images=False) == "torch 4"
    monkeypatch.setenv(VARIABLE, "torch")
    assert chosen("ppo", "fp32", CPU, recurrent=False, images=False) == "torch 4"


def test_a_study_goes_on_with_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    require(f"native {FEED_FORWARD}, torch 4")
    require(f"native {FEED_FORWARD}, recurrent {RECURRENT}, torch 4")
    assert trained(ToyEnv, 0)[0]._native is not None
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored
    require("torch 4")
    assert trained(ToyEnv, 0)[0]._native is None


def test_a_study_with_other_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = f"native {FEED_FORWARD}, torch 4"
    # torch had other bits in the last two.
    for other in ("native of before, torch 4", f"native {FEED_FORWARD}, torch 2", "torch 2"):
        with pytest.raises(InputError, match=f"'{other}', and this version .*'{recorded}'"):
            require(other)
    for kind, present in (("recurrent", RECURRENT), ("images", IMAGES)):
        other = f"native {FEED_FORWARD}, {kind} of before, torch 4"
        with pytest.raises(InputError, match=f"'{other}', and this version .* {kind} {present}"):
            require(other)
    monkeypatch.setattr(KERNELS, "loaded", lambda: None)
    with pytest.raises(InputError, match="cannot be used on this machine"):
        require(recorded)
    monkeypatch.setenv(VARIABLE, "torch")
    with pytest.raises(InputError, match=f"{VARIABLE}=torch forbids them"):
        require(recorded)


def test_moments_of_weights_without_gradients_become_zero() -> None:
    """Not subnormal, where an operation takes 100 cycles and rounding ends the decay."""
    env = Kuhn([NoParams()] * SLOTS, ENVS)
    ppo, _ = played(env, 1)
    moments = ppo.optimizer.m, ppo.optimizer.v
    for moment in moments:
        moment[moment != 0] = 1e-39
    ppo.population.flat.zero_()  # all hidden units are off
    ppo.train(env, 1)
    tiny = torch.finfo(torch.float32).tiny
    assert not any(((moment != 0) & (moment.abs() < tiny)).any() for moment in moments)
