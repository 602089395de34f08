"""The trainers that benchmarks compare, on the same tasks with the same sizes and parameters.

    ours      G members x num_envs envs in one program
    torch     the same without native kernels (SWEEPD_KERNELS=torch)
    elegant   ElegantRL's AgentPPO (its discrete one on CartPole)
    sb3       Stable-Baselines3's PPO behind a thin wrapper
    cleanrl   `plain_ppo.py`, a PPO in CleanRL's style
    leanrl    `compiled_ppo.py`, the same in LeanRL's style, by `torch.compile`
    jax-vmap  `jax_ppo.py`, G members in one jitted program (PureJaxRL's style), by `vmap`
    jax-map   the same by `lax.map`

Other peers train one member at a time. All explore without autograd and do not evaluate or log.
ElegantRL's buffer counts steps, so its repeat_times is epochs x num_envs, which gives all trainers
equally many minibatches per transition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.bench.harness import torch_only
from scripts.bench.speed.elegantrl_run import ElegantEnv, make_agent, train_rollout
from scripts.bench.speed.pictures import pictures_of
from scripts.bench.speed.plain_ppo import PlainPPO
from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.tensor_game import NoParams

PEERS = ("elegant", "sb3", "cleanrl")
# With a C++ compiler, or where JAX is installed.
COMPILED_PEERS = ("leanrl", "jax-vmap", "jax-map")
TIMEFRAME = "1h"
SEED = 0

Rollout = Callable[[], int]  # trains for one rollout, returns the transitions of all members


@dataclass(frozen=True)
class Cell:
    """A task and the sizes of one comparison.

    Attributes:
        task: "crypto", "cartpole", or "images" of the shape `image`, for ours.
    """

    task: str
    num_envs: int
    minibatch: int
    width: int
    horizon: int
    epochs: int
    depth: int = 2
    members: int = 10
    recurrent: str = ""  # of ours
    image: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        network = "x".join([str(self.width)] * self.depth)
        return (
            f"{self.task}, {network}, minibatch {self.minibatch:,}, num_envs {self.num_envs:,}, "
            f"horizon {self.horizon:,}, epochs {self.epochs}, {self.members} members"
        )

    def shape(self, env: VecEnv, slots: int) -> Shape:
        """Return the shape of `slots` members on `env`."""
        return Shape.for_env(
            env,
            slots=slots,
            net_width=self.width,
            net_depth=self.depth,
            num_envs=self.num_envs,
            horizon=self.horizon,
            minibatch=self.minibatch,
            epochs=self.epochs,
            recurrent=self.recurrent,
        )


PARAMS = {
    "crypto": PPOParams(),
    "images": PPOParams(),
    "cartpole": PPOParams(gamma=0.99, entropy_coef=0.003, clip=0.2, max_grad_norm=1.0),
}


@functools.cache
def market() -> Market:
    """Make a market of seven assets with mean-reverting log prices, which is learnable."""
    return make_market(make_planted_market(0, assets=7, bars=16_000, timeframe=TIMEFRAME))


def training_window() -> tuple[int, int]:
    """Return the market's training bars."""
    return market().first_bar(1), int(0.75 * market().length)


def make_env(cell: Cell, members: int) -> VecEnv:
    """Make the rows of that many members, not yet reset."""
    if cell.task == "cartpole":
        return CartPole([CartPoleParams()] * members, cell.num_envs)
    if cell.image is not None:
        return pictures_of(cell.image)([NoParams()] * members, cell.num_envs)
    return CryptoEnv(
        market(), [EnvParams()] * members, [[training_window()]] * members, cell.num_envs
    )


def normaliser(cell: Cell) -> tuple[Tensor, Tensor]:
    """Return the observations' mean and deviation over the training bars; on others fixed ones."""
    if cell.task == "cartpole":
        return torch.zeros(4), torch.ones(4)
    if cell.image is not None:
        columns = math.prod(cell.image)
        return torch.zeros(columns), torch.full((columns,), 255.0)
    return observation_normaliser(market(), [training_window()], 1, 1)


def ours(cell: Cell) -> Rollout:
    """Train all members together."""
    env = make_env(cell, cell.members)
    ppo = PPO(cell.shape(env, cell.members))
    for slot in range(cell.members):
        ppo.add_member(slot, PARAMS[cell.task], slot, 1_000, *normaliser(cell))
    ppo.begin(env.reset(list(range(cell.members))))

    def rollout() -> int:
        ppo.train(env, 1)
        return ppo.shape.slots * ppo.shape.samples

    return rollout


def ours_torch(cell: Cell) -> Rollout:
    """Train all members together with torch's kernels."""
    with torch_only():
        return ours(cell)


def elegant(cell: Cell) -> Rollout:
    """Train one member with ElegantRL."""
    env = make_env(cell, 1)
    env.reset([SEED])
    adapted, shape = ElegantEnv(env), cell.shape(env, 1)
    torch.manual_seed(SEED)
    agent = make_agent(adapted, shape, PARAMS[cell.task], *normaliser(cell))

    def rollout() -> int:
        train_rollout(agent, adapted, shape.horizon)
        return shape.samples

    return rollout


def cleanrl(cell: Cell) -> Rollout:
    """Train one member with `PlainPPO`."""
    return _alone(PlainPPO, cell)


def leanrl(cell: Cell) -> Rollout:
    """Train one member with `CompiledPPO`."""
    from scripts.bench.speed.compiled_ppo import CompiledPPO

    return _alone(CompiledPPO, cell)


def _alone(kind: type[PlainPPO], cell: Cell) -> Rollout:
    env = make_env(cell, 1)
    env.reset([SEED])
    torch.manual_seed(SEED)
    return kind(env, cell.shape(env, 1), PARAMS[cell.task], *normaliser(cell)).rollout


def sb3(cell: Cell) -> Rollout:
    """Train one member with Stable-Baselines3."""
    from stable_baselines3 import PPO as SB3PPO

    from scripts.bench.sb3_env import SB3Env

    env, params = make_env(cell, 1), PARAMS[cell.task]
    env.reset([SEED])
    wrapped = SB3Env(env, *normaliser(cell))
    network = [cell.width] * cell.depth
    model = SB3PPO(
        "MlpPolicy",
        wrapped,
        learning_rate=params.learning_rate,
        n_steps=cell.horizon,
        batch_size=cell.minibatch,
        n_epochs=cell.epochs,
        gamma=params.gamma,
        gae_lambda=params.gae_lambda,
        clip_range=params.clip,
        ent_coef=params.entropy_coef,
        vf_coef=params.value_coef,
        max_grad_norm=params.max_grad_norm,
        seed=SEED,
        device="cpu",
        policy_kwargs={
            "net_arch": network,
            "activation_fn": torch.nn.ReLU,
            "log_std_init": params.initial_log_std,
            "optimizer_kwargs": {"eps": params.adam_eps},
        },
    )
    samples = cell.horizon * cell.num_envs

    def rollout() -> int:
        model.learn(samples, log_interval=10**9, reset_num_timesteps=False)
        return samples

    return rollout


def jax_population(together: bool, cell: Cell) -> Rollout:
    """Train all members with JAX; see `jax_ppo.population`."""
    from scripts.bench.speed.jax_ppo import population

    shape = cell.shape(make_env(cell, 1), 1)
    return population(cell.members, shape, PARAMS[cell.task], together=together)


TRAINERS: dict[str, Callable[[Cell], Rollout]] = {
    "ours": ours,
    "torch": ours_torch,
    "elegant": elegant,
    "sb3": sb3,
    "cleanrl": cleanrl,
    "leanrl": leanrl,
    "jax-vmap": functools.partial(jax_population, True),
    "jax-map": functools.partial(jax_population, False),
}
