"""Programs on a stand-in for a GPU: no mixed devices, no host reads, and counts of launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.program import Program
from sweepd.agents.networks.optimizer import Adam
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import NoParams
from sweepd.envs.support.upload import upload
from tests.agents import helpers, off_policy_helpers
from tests.agents.card import DEVICE, Card, card, made_there
from tests.agents.helpers import make_adam_steps
from tests.agents.toy_env import (
    AbsentChoicesEnv,
    AbsentEnv,
    ChoiceEnv,
    ChoicesEnv,
    ImageEnv,
    ItemsEnv,
    MaskedEnv,
    Rematching,
    ToyEnv,
)
from tests.envs.games.toys import Nim
from tests.extra import with_extra

PER_SEAT = {"policies": "per-seat", "autoregressive": False}


def toy(kind: type[ToyEnv], members: int = 3) -> Callable[[], Any]:
    return lambda: kind(members, 4)


def ppo_in(env: Any, **changes: Any) -> PPO:
    ppo = PPO(helpers.shape_for(env, **changes), DEVICE)
    for slot in range(env.num_members):
        params = helpers.member_params(slot)
        ppo.add_member(slot, params, slot, 8, env.state_avg, env.state_std)
    ppo.begin(env.reset(list(range(env.num_members))))
    return ppo


def off_policy_in(env: Any, **changes: Any) -> Program:
    kind = off_policy_helpers.D3QN if env.if_discrete else off_policy_helpers.SAC
    sizes = {"minibatch": 16, "updates": 6, "buffer": 160, "horizon": 12} | changes
    program = kind(helpers.shape_for(env, algorithm=kind.algorithm, **sizes), DEVICE)
    for slot in range(env.num_members):
        params = off_policy_helpers.member_params(env, slot)
        program.add_member(slot, params, slot, 8, env.state_avg, env.state_std)
    program.begin(env.reset(list(range(env.num_members))))
    return program


def nim() -> Any:
    return Nim([NoParams()] * 3, 4, device=DEVICE)


PPO_CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "continuous": (toy(ToyEnv), {}),
    "discrete": (toy(ChoiceEnv), {}),
    "choices": (toy(ChoicesEnv), {}),
    "rematching": (toy(Rematching), {}),
    "masked": (toy(MaskedEnv), {}),
    "absent agents": (toy(AbsentEnv), {}),
    "absent agents, choices": (toy(AbsentChoicesEnv), {}),
    "images": (toy(ImageEnv), {}),
    "items": (toy(ItemsEnv), {}),
    "gru": (toy(ToyEnv), {"recurrent": "gru", "bptt": 4}),
    "lstm": (toy(ChoiceEnv), {"recurrent": "lstm", "bptt": 4}),
    "turns": (nim, {}),
    "turns, gru": (nim, {"recurrent": "gru", "bptt": 4}),
    "per seat": (nim, PER_SEAT),
}


# The others are recorded below, in the same way.
@pytest.mark.parametrize(
    "name", with_extra(PPO_CASES, set(PPO_CASES) - {"choices", "gru", "turns"})
)
def test_ppo_trains_and_acts_on_a_card(name: str) -> None:
    make, changes = PPO_CASES[name]
    env = made_there(make)
    with card(env):
        ppo = ppo_in(env, **changes)
        ppo.train(env, 1)
        with Card() as seen:
            ppo.train(env, 1)
        assert seen.total
        # Constants of a rollout may be copied to the device, but nothing in a step.
        assert seen.uploads <= 16  # the state of the streams, for each draw; rates
        act, obs = ppo.act_fn(), env.reset()
        legal = env.action_mask if env.spec.masked else None
        with torch.device(DEVICE):
            uniforms = torch.rand(env.num_envs, act.uniforms, dtype=torch.float64)
            ended = torch.zeros(env.num_envs, dtype=torch.bool)
        with torch.no_grad():
            act(obs, legal)  # allocates buffers
        with Card() as acting, torch.no_grad():
            assert act(obs, legal).device == act(obs, legal, uniforms).device == DEVICE
            act.done(ended)
        assert not acting.uploads


def game(name: str, *, versus: bool = False, members: int = 3) -> Callable[[], Any]:
    def make() -> Any:
        found = get_game(name)
        params = [found.params()] * members
        if not versus:
            return found.make(params, 4, together=1, device=DEVICE)
        assert found.versus is not None
        opponents = Scripted(found.scripted(params[0]), members, DEVICE)
        return found.versus(params, 4, together=1, device=DEVICE, opponents=opponents)

    return make


def crypto(*, windows: bool = False, members: int = 3) -> Any:
    # All rules are on.
    params = EnvParams(
        episode_bars=13,
        lookback=2,
        trailing_stop=0.1,
        max_holding_bars=5,
        time_decay_floor=0.5,
        drawdown_penalty=1.0,
        cash_penalty=1.0,
    )
    market = make_market(make_planted_market(3, assets=5, bars=1_500))
    first = market.first_bar(2)
    if windows:
        own = [(first, first + 3), (first, first + 6)]
        return CryptoEnv.for_windows(market, params, [own] * members, device=DEVICE)
    every = [params] * members
    return CryptoEnv(market, every, [[(first, first + 600)]] * members, 4, device=DEVICE)


# Enough where a step has hundreds of launches.
FEW_STEPS = {"horizon": 2, "minibatch": 8}
# Environments as studies use them, which are told their device.
ENVIRONMENTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "crypto": (crypto, {}),
    "cartpole": (game("cartpole"), {}),
    "bucket-brigade": (game("bucket-brigade"), FEW_STEPS),
    "hockey": (game("hockey"), FEW_STEPS),
    "hockey, opponents": (game("hockey", versus=True), FEW_STEPS),
    "card-duel": (game("card-duel"), FEW_STEPS),
    "card-duel, opponents": (game("card-duel", versus=True), FEW_STEPS),
    "kuhn": (game("kuhn"), {"autoregressive": False}),
    "kuhn, per seat": (game("kuhn"), PER_SEAT),
    "leduc": (game("leduc"), {"autoregressive": False}),
}


def play(env: Any, act: Any, steps: int) -> None:
    """Act and step, as evaluations do."""
    obs = env.observe()
    legal = {"legal": env.action_mask} if env.spec.masked else {}
    for _ in range(steps):
        obs, _, terminated, truncated = env.step(act(obs, **legal))
        getattr(act, "done", lambda _: None)(terminated | truncated)


EXPENSIVE = ("card-duel, opponents", "hockey, opponents", "kuhn, per seat")


@pytest.mark.parametrize("name", with_extra(ENVIRONMENTS, EXPENSIVE))
def test_environments_are_trained_in_and_evaluated_on_a_card(name: str) -> None:
    make, changes = ENVIRONMENTS[name]
    env = made_there(make, names_device=True)
    with card(env):
        ppo = ppo_in(env, **{"num_envs": env.envs_per_member, "minibatch": 16} | changes)
        ppo.train(env, 1)
        with Card() as seen:
            ppo.train(env, 1)
            assert seen.env_launches
            # Masks of the rows whose episodes end in a step, in crypto; starts drawn ahead.
            assert seen.uploads <= 12
            assert not seen.waits
            play(env, ppo.act_fn(), 2)


def test_windows_of_crypto_are_evaluated_on_a_card() -> None:
    env = made_there(partial(crypto, windows=True), names_device=True)
    with card(env):
        ppo = PPO(helpers.shape_for(made_there(crypto, names_device=True)), DEVICE)
        act = ppo.act_fn()
        env.reset()
        with Card():
            play(env, act, 7)  # some rows start again


@pytest.mark.parametrize("make", [crypto, game("cartpole")], ids=["sac", "d3qn"])
def test_off_policy_programs_train_in_environments_on_a_card(make: Callable[[], Any]) -> None:
    env = made_there(make, names_device=True)
    with card(env):
        program = off_policy_in(env, num_envs=env.envs_per_member)
        program.train(env, 3)
        with Card() as seen:
            program.train(env, 1)
        assert seen.uploads <= 16
        assert not seen.waits
        play(env, program.act_fn(), 2)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv], ids=["sac", "d3qn"])
def test_off_policy_programs_train_and_act_on_a_card(kind: type[ToyEnv]) -> None:
    env = made_there(toy(kind))
    with card(env):
        program = off_policy_in(env)
        program.train(env, 3)
        with Card() as seen:
            program.train(env, 1)
        assert seen.uploads <= 16  # the state of the streams, for each draw; rates
        act, obs = program.act_fn(), env.reset()
        with Card() as acting:
            assert act(obs).device == DEVICE
        assert not acting.uploads


def test_the_card_refuses_what_a_gpu_would_refuse_or_wait_for() -> None:
    there, here = torch.zeros(2, 3, device=DEVICE), torch.zeros(3, 2)
    with Card() as seen:
        for wrong in (
            lambda: there @ here,
            lambda: there[0].sum().item(),
            lambda: there.nonzero(),
            lambda: there.cpu(),
            lambda: torch.equal(there, there),
        ):
            with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
                wrong()
        before = seen.total
        there.copy_(here.mT)
        torch.tensor([1.0], device=DEVICE)
        there.view(3, 2).unsqueeze(0).mT[0].add_(1.0)
        assert seen.waits == seen.uploads == 2
        upload(here, DEVICE)
    assert (seen.uploads, seen.waits) == (3, 2)
    assert seen.total == before + 3  # the copies and the addition; views are free


class Recording:
    """A recorder that refuses what a CUDA graph cannot hold, and keeps what it counted."""

    def __init__(self) -> None:
        self.steps: list[Card] = []

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        with Card() as seen:
            step()
        assert not seen.uploads
        self.steps.append(seen)
        return lambda: None


@pytest.mark.parametrize("name", [*PPO_CASES, "crypto", "cartpole"])
def test_recorded_steps_of_ppo_copy_nothing_from_the_host(name: str) -> None:
    named = name in ENVIRONMENTS
    make, changes = (ENVIRONMENTS if named else PPO_CASES)[name]
    env, recording = made_there(make, names_device=named), Recording()
    with card(env):
        ppo = ppo_in(env, **changes)
        ppo.recorder = recording
        ppo.train(env, 3)
    assert len(recording.steps) >= (2 if named else 1)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv], ids=["sac", "d3qn"])
def test_recorded_off_policy_steps_copy_nothing_from_the_host(kind: type[ToyEnv]) -> None:
    env, recording = made_there(toy(kind)), Recording()
    with card(env):
        program = off_policy_in(env)
        program.recorder = recording
        program.train(env, 4)
    assert len(recording.steps) == 1


def plain_crypto() -> Any:
    market = make_market(make_planted_market(3, assets=7, bars=1_500))
    window = (market.first_bar(1), market.first_bar(1) + 600)
    params = [EnvParams(episode_bars=13)] * 3
    return CryptoEnv(market, params, [[window]] * 3, 4, device=DEVICE)


# Launches of a recorded step of a rollout: of the program, and of the environment, without and with
# ends of episodes in crypto, by whether there are fused kernels.
ROLLOUT_STEPS = {
    ("cartpole", True): (8, [1]),
    ("cartpole", False): (27, [43]),
    ("crypto", True): (8, [2, 3]),
    ("crypto", False): (22, [75, 106]),
}


@pytest.mark.parametrize(("name", "fused"), ROLLOUT_STEPS)
@pytest.mark.parametrize("running_scale", [False, True])
def test_launches_of_recorded_rollout_steps(name: str, fused: bool, running_scale: bool) -> None:
    make = game("cartpole") if name == "cartpole" else plain_crypto
    program, environment = ROLLOUT_STEPS[name, fused]
    env, recording = made_there(make, names_device=True, fused=fused), Recording()
    with card(env, fused=fused):
        ppo = ppo_in(env, running_scale=running_scale)
        ppo.recorder = recording
        ppo.train(env, 3)
    steps = [seen for seen in recording.steps if seen.env_launches]
    assert steps
    # Without fused kernels, a running scale clips observations, and stores them as they were.
    assert max(seen.total for seen in steps) <= program + 2 * (running_scale and not fused)
    # Of crypto's steps, those that end episodes launch more.
    assert sorted({seen.env_launches for seen in steps}) <= environment


# Launches of a program without its environment, per step of a rollout and per gradient step, which
# counts products with their summands as two. The goal of 40 is met by rollouts. Gradient steps
# differentiate two networks under autograd; without the fused kernels, also the loss, and Adam is
# operations. A CUDA graph launches all of them at once.
MOST = {
    ("continuous", True): (21, 70),
    ("continuous", False): (21, 166),
    ("discrete", True): (27, 63),
    ("discrete", False): (27, 162),
}


@pytest.mark.parametrize(
    ("name", "fused"),
    [pytest.param(*case, marks=[] if case[1] else [pytest.mark.extra]) for case in MOST],
)
def test_launches_do_not_depend_on_the_number_of_members(name: str, fused: bool) -> None:
    found = set()
    for members in (2, 10):
        counts = []
        for horizon in (12, 24):
            env = made_there(toy(ToyEnv if name == "continuous" else ChoiceEnv, members))
            with card(env, fused=fused), torch.no_grad():
                ppo = ppo_in(env, horizon=horizon)
                numbers = ppo.numbers
                with Card() as collecting:
                    ppo.rollout.collect(env, ppo.streams)
                variance = ppo.rollout.estimate(numbers["gamma"], numbers["gae_lambda"])
                with Card() as updating:
                    ppo._update(variance)
            counts.append((collecting.total, updating.total))
        # The longer rollout has 12 more steps, and 6 more gradient steps.
        (step, gradient), (steps, gradients) = counts
        # Whole rollouts and updates draw their random numbers, too.
        found.add(((steps - step) / 12, (gradients - gradient) / 6, *counts))
    assert len(found) == 1, found
    (per_step, per_gradient_step, *_) = found.pop()
    assert per_step <= MOST[name, fused][0]
    assert per_gradient_step <= MOST[name, fused][1]


@pytest.mark.parametrize(
    "make",
    [crypto, lambda members: game("cartpole", members=members)()],
    ids=["crypto", "cartpole"],
)
def test_launches_of_rollouts_do_not_depend_on_the_number_of_members(
    make: Callable[..., Any],
) -> None:
    found = []
    for members in (2, 10):
        env = made_there(partial(make, members=members), names_device=True)
        with card(env):
            ppo = ppo_in(env)
            ppo.train(env, 2)
            with Card() as seen:
                ppo.train(env, 1)
            found.append((seen.total, seen.env_launches, seen.uploads))
    assert found[0] == found[1]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_adam_over_all_networks_equals_the_fused_kernel_per_network(scale: float) -> None:
    torch.manual_seed(0)
    flat = torch.randn(2, 4, 48)
    fused, together = Adam(flat.clone()), Adam(flat.clone(), fused=False)
    make_adam_steps((fused, together), scale)
    weights = [adam._networks for adam in (fused, together)]
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one[1][0], other[1][0], rtol=2e-6, atol=2e-7)
        torch.testing.assert_close(one[3][0], other[3][0], rtol=1e-5, atol=1e-7 * scale)
        torch.testing.assert_close(one[4][0], other[4][0], rtol=1e-5, atol=1e-7 * scale**2)
    assert torch.equal(fused.step, together.step)
    assert torch.equal(together._flat[:, 3], flat[:, 3])  # never active, and its gradient is NaN
