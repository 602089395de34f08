"""Programs on synthetic markets and CartPole, to try a device: with and without CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from sweepd.agents.algorithms import fused_loss
from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.algorithms.sac import SAC, SACParams
from sweepd.agents.engine import fused_step
from sweepd.agents.engine.program import Program
from sweepd.agents.networks import optimizer
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.features import Recipe, get_recipe, register_recipe
from sweepd.envs.crypto.market import Market, make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.games.cartpole import CartPole, CartPoleParams

ASSETS = 7
ALGORITHMS: dict[str, tuple[type[Program], type[Any]]] = {
    "ppo": (PPO, PPOParams),
    "sac": (SAC, SACParams),
    "d3qn": (D3QN, D3QNParams),
}


def now(device: torch.device) -> float:
    """Return the time in seconds after synchronising with the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class Cell:
    """Sizes of a program.

    Attributes:
        env: "crypto" or "cartpole".
        algorithm: its name.
        members: G.
        width: of both hidden layers.
        minibatch: transitions per gradient step and member.
        num_envs: environments per member.
        horizon: steps per rollout.
        epochs: passes over a rollout (PPO).
        updates: gradient steps per rollout (SAC, D3QN).
        buffer: transitions per member in the replay buffer (SAC, D3QN).
        recurrent: kind of recurrent networks; "": none.
        lookback: bars in an observation.
        columns: features of a bar; 0: all of the default recipe.
        bars: length of the market.
    """

    env: str = "crypto"
    algorithm: str = "ppo"
    members: int = 10
    width: int = 64
    minibatch: int = 256
    num_envs: int = 64
    horizon: int = 64
    epochs: int = 4
    updates: int = 64
    buffer: int = 65_536
    recurrent: str = ""
    lookback: int = 1
    columns: int = 0
    bars: int = 8_000

    @property
    def samples(self) -> int:
        """Transitions of a rollout, of all members."""
        return self.members * self.num_envs * self.horizon


@cache
def market_of(bars: int, columns: int) -> Market:
    """Make a synthetic market; with another number of feature columns than 0, of the first ones."""
    default = get_recipe("default")
    name = default.name
    if columns:

        def compute(given: Bars) -> Any:
            return default.compute(given)[:, :columns]

        names = tuple(f"column_{index}" for index in range(columns))
        recipe = Recipe(f"first-{columns}", 1, default.memory, (), names, compute)
        name = register_recipe(recipe).name
    return make_market(make_demo_market(0, assets=ASSETS, bars=bars), name)


def make_env(
    cell: Cell, device: torch.device, *, native: bool = True
) -> tuple[VecEnv, tuple[Tensor, Tensor]]:
    """Return an environment, and mean and deviation of its observations.

    Args:
        cell: sizes.
        device: where.
        native: whether compiled code makes its steps.
    """
    how: dict[str, Any] = {"device": device, "native": native}
    if cell.env == "cartpole":
        env = CartPole([CartPoleParams()] * cell.members, cell.num_envs, **how)
        return env, (torch.zeros(4), torch.tensor([2.4, 2.0, 0.2, 2.0]))
    market, lookback = market_of(cell.bars, cell.columns), cell.lookback
    windows = [(market.first_bar(lookback), market.length - 1)]
    params = [EnvParams(lookback=lookback)] * cell.members
    crypto = CryptoEnv(market, params, [windows] * cell.members, cell.num_envs, **how)
    return crypto, observation_normaliser(market, windows, lookback, lookback)


def make_program(
    cell: Cell,
    device: torch.device,
    *,
    graphs: bool = True,
    fused: bool = True,
    seeds: Mapping[int, int] | None = None,
    learning_rate: float = 3e-4,
) -> tuple[Any, VecEnv]:
    """Return a program with its members, and its environment, ready to train.

    Args:
        cell: sizes.
        device: where.
        graphs: whether steps are recorded as CUDA graphs; only a GPU can.
        fused: whether fused kernels are used; only a GPU can.
        seeds: seed of the member in each slot that has one; None: all have one.
        learning_rate: of all members.
    """
    env, normaliser = make_env(cell, device, native=fused or device.type != "cuda")
    kind, params = ALGORITHMS[cell.algorithm]
    sizes: dict[str, Any] = {"epochs": cell.epochs}
    if cell.algorithm != "ppo":
        sizes = {"updates": cell.updates, "buffer": cell.buffer, "algorithm": cell.algorithm}
    if cell.recurrent:
        sizes |= {"recurrent": cell.recurrent, "bptt": min(8, cell.horizon)}
    shape = Shape.for_env(
        env, net_width=cell.width, minibatch=cell.minibatch, horizon=cell.horizon, **sizes
    )
    with ExitStack() as stack:
        for module in () if fused else (fused_loss, fused_step, optimizer):
            stack.enter_context(patch.object(module, "kernels_for", lambda _: None))
        program: Any = kind(shape, device)
    if not graphs:
        program.recorder = None
    seeds = seeds if seeds is not None else {slot: slot for slot in range(cell.members)}
    early = {} if cell.algorithm == "ppo" else {"warmup": 0}
    for slot, seed in seeds.items():
        own = params(learning_rate=learning_rate, **early)
        program.add_member(slot, own, seed, 1_000_000, *normaliser)
    # Slots without a member have episodes, too, which count for nothing.
    program.begin(env.reset([seeds.get(slot, 1_000 + slot) for slot in range(cell.members)]))
    return program, env


def rate(program: Any, env: VecEnv, seconds: float) -> tuple[float, int]:
    """Return rollouts per second after a warm-up, and how many were measured."""
    program.train(env, 3)  # the second step of a kind is recorded, the third is a replay
    rollouts, start = 0, now(program.device)
    while True:
        program.train(env, 1)
        rollouts += 1
        passed = now(program.device) - start
        if passed >= seconds:
            return rollouts / passed, rollouts
