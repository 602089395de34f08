"""The rows of the comparison with Stable-Baselines3: environments, steps and the peer's settings.

The settings are those of its model zoo (rl-baselines3-zoo, commit 22e3ff2, `hyperparams/*.yml`) for
the same environment, for MuJoCo's of its version v4. Where the zoo has none (a row without `zoo`),
they are Stable-Baselines3's defaults with `VecNormalize`. The zoo's are tuned for its own numbers of
steps, which are up to 25 times as many as here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

RELU_256 = {"activation_fn": "ReLU", "net_arch": {"pi": [256, 256], "vf": [256, 256]}}


@dataclass(frozen=True)
class Peer:
    """How Stable-Baselines3 trains.

    Attributes:
        args: arguments of its class, as the zoo writes them: "lin_0.2" falls linearly to 0, and
            activations are named.
        envs: number of environments.
        normalize: whether `VecNormalize` scales observations and rewards.
        zoo: whether the zoo has settings for this environment.
    """

    args: Mapping[str, Any]
    envs: int = 1
    normalize: bool = False
    zoo: bool = True


@dataclass(frozen=True)
class Row:
    """An environment and an algorithm.

    Attributes:
        environment: as in `--env`.
        algorithm: as in `--algo`.
        steps: environment steps of one seed, of either side. The last rollout that does not fit is
            left out.
        solved: mean return that counts as solved; None where no such score is usual.
        peer: the other side's settings.
        sampled: whether actions drawn from the policies are judged, too.
        name: of the environment in tables; "": as in `environment`.
        ours: parameters of the shape or the algorithm that our side has in place of trial 0's.
        num_envs: environments of a seed of our side; None: as in a study.
    """

    environment: str
    algorithm: str
    steps: int
    solved: float | None
    peer: Peer
    sampled: bool = False
    name: str = ""
    ours: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int | None = None

    @property
    def title(self) -> str:
        """The environment's name."""
        return self.name or self.environment.rpartition(":")[2].rpartition(".")[2]


def row_of(described: Mapping[str, Any]) -> Row:
    """Return a row from its fields, as they are in the results file."""
    return Row(**{**described, "peer": Peer(**described["peer"])})


def minigrid_empty_5x5() -> gymnasium.Env[Any, Any]:
    """Return the environment with the zoo's wrapper: grid and mission as 2,835 numbers."""
    from minigrid.wrappers import FlatObsWrapper  # importing it registers the environments

    flat: gymnasium.Env[Any, Any] = FlatObsWrapper(gymnasium.make(MINIGRID))
    return flat


MINIGRID = "MiniGrid-Empty-5x5-v0"
DQN_TUNED = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
# By name, in the order in which they run.
ROWS = {
    "acrobot-ppo": Row(
        "gym:Acrobot-v1",
        "ppo",
        40_960,
        -100.0,
        Peer(
            {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
            envs=16,
            normalize=True,
        ),
    ),
    "mountain-car-continuous-ppo": Row(
        "gym:MountainCarContinuous-v0",
        "ppo",
        59_392,
        90.0,
        Peer(
            {
                "batch_size": 256,
                "n_steps": 8,
                "gamma": 0.9999,
                "learning_rate": 7.77e-5,
                "ent_coef": 0.00429,
                "clip_range": 0.1,
                "n_epochs": 10,
                "gae_lambda": 0.9,
                "max_grad_norm": 5,
                "vf_coef": 0.19,
                "use_sde": True,
                "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
            },
            normalize=True,
        ),
    ),
    "hopper-ppo": Row(
        "gym:Hopper-v5",
        "ppo",
        119_808,
        None,
        Peer(
            {
                "batch_size": 32,
                "n_steps": 512,
                "gamma": 0.999,
                "learning_rate": 9.80828e-5,
                "ent_coef": 0.00229519,
                "clip_range": 0.2,
                "n_epochs": 5,
                "gae_lambda": 0.99,
                "max_grad_norm": 0.7,
                "vf_coef": 0.835671,
                "policy_kwargs": {"log_std_init": -2, "ortho_init": False, **RELU_256},
            },
            normalize=True,
        ),
    ),
    "pendulum-ppo": Row(
        "gym:Pendulum-v1",
        "ppo",
        98_304,
        -200.0,
        Peer(
            {
                "n_steps": 1024,
                "gae_lambda": 0.95,
                "gamma": 0.9,
                "n_epochs": 10,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_range": 0.2,
                "use_sde": True,
                "sde_sample_freq": 4,
            },
            envs=4,
        ),
    ),
    "cartpole-ppo": Row(
        "gym:CartPole-v1",
        "ppo",
        50_176,
        475.0,
        Peer(
            {
                "n_steps": 32,
                "batch_size": 256,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "n_epochs": 20,
                "ent_coef": 0.0,
                "learning_rate": "lin_0.001",
                "clip_range": "lin_0.2",
            },
            envs=8,
        ),
    ),
    "minigrid-empty-5x5-ppo": Row(
        "scripts.bench.quality.sb3_rows:minigrid_empty_5x5",
        "ppo",
        50_176,
        0.9,
        Peer(
            {
                "n_steps": 128,
                "batch_size": 64,
                "gae_lambda": 0.95,
                "gamma": 0.99,
                "n_epochs": 10,
                "ent_coef": 0.0,
                "learning_rate": 2.5e-4,
                "clip_range": 0.2,
            },
            envs=8,
            normalize=True,
        ),
        sampled=True,
        name=MINIGRID,
    ),
    "simple-spread-ppo": Row(
        "pettingzoo:mpe2.simple_spread_v3", "ppo", 32_768, None, Peer({}, normalize=True, zoo=False)
    ),
    "lunar-lander-ppo": Row(
        "gym:LunarLander-v3",
        "ppo",
        196_608,
        200.0,
        Peer(
            {
                "n_steps": 1024,
                "batch_size": 64,
                "gae_lambda": 0.98,
                "gamma": 0.999,
                "n_epochs": 4,
                "ent_coef": 0.01,
            },
            envs=16,
        ),
    ),
    "half-cheetah-ppo": Row(
        "gym:HalfCheetah-v5",
        "ppo",
        100_352,
        None,
        Peer(
            {
                "batch_size": 64,
                "n_steps": 512,
                "gamma": 0.98,
                "learning_rate": 2.0633e-5,
                "ent_coef": 0.000401762,
                "clip_range": 0.1,
                "n_epochs": 20,
                "gae_lambda": 0.92,
                "max_grad_norm": 0.8,
                "vf_coef": 0.58096,
                "policy_kwargs": {"log_std_init": -2, "ortho_init": False, **RELU_256},
            },
            normalize=True,
        ),
    ),
    "bipedal-walker-ppo": Row(
        "gym:BipedalWalker-v3",
        "ppo",
        196_608,
        300.0,
        Peer(
            {
                "n_steps": 2048,
                "batch_size": 64,
                "gae_lambda": 0.95,
                "gamma": 0.999,
                "n_epochs": 10,
                "ent_coef": 0.0,
                "learning_rate": 3e-4,
                "clip_range": 0.18,
            },
            envs=32,
            normalize=True,
        ),
    ),
    "acrobot-d3qn": Row("gym:Acrobot-v1", "d3qn", 40_960, -100.0, Peer(DQN_TUNED)),
    "mountain-car-continuous-sac": Row(
        "gym:MountainCarContinuous-v0",
        "sac",
        10_240,
        90.0,
        Peer(
            {
                "learning_rate": 3e-4,
                "buffer_size": 50_000,
                "batch_size": 512,
                "ent_coef": 0.1,
                "train_freq": 32,
                "gradient_steps": 32,
                "gamma": 0.9999,
                "tau": 0.01,
                "learning_starts": 0,
                "use_sde": True,
                "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
            }
        ),
    ),
    "hopper-sac": Row("gym:Hopper-v5", "sac", 20_480, None, Peer({"learning_starts": 10_000})),
    "pendulum-sac": Row("gym:Pendulum-v1", "sac", 10_240, -200.0, Peer({"learning_rate": 1e-3})),
    "cartpole-d3qn": Row(
        "gym:CartPole-v1",
        "d3qn",
        50_176,
        475.0,
        Peer(
            {
                "learning_rate": 2.3e-3,
                "batch_size": 64,
                "buffer_size": 100_000,
                "learning_starts": 1_000,
                "gamma": 0.99,
                "target_update_interval": 10,
                "train_freq": 256,
                "gradient_steps": 128,
                "exploration_fraction": 0.16,
                "exploration_final_eps": 0.04,
                "policy_kwargs": {"net_arch": [256, 256]},
            }
        ),
    ),
    "minigrid-empty-5x5-d3qn": Row(
        "scripts.bench.quality.sb3_rows:minigrid_empty_5x5",
        "d3qn",
        20_480,
        0.9,
        # The default buffer of 1,000,000 would need 23 GB; this one holds all steps, too.
        Peer({"buffer_size": 20_480}, normalize=True, zoo=False),
        name=MINIGRID,
    ),
    "lunar-lander-d3qn": Row("gym:LunarLander-v3", "d3qn", 40_960, 200.0, Peer(DQN_TUNED)),
    "half-cheetah-sac": Row(
        "gym:HalfCheetah-v5", "sac", 20_480, None, Peer({"learning_starts": 10_000})
    ),
}
# The zoo tuned HalfCheetah's settings with 20 epochs of small steps. Our side with the same numbers:
ROWS["half-cheetah-zoo-ppo"] = replace(
    ROWS["half-cheetah-ppo"],
    name="HalfCheetah-v5, the zoo's settings on both sides",
    ours={
        "net_width": 256,
        "activation": "relu",
        "epochs": 20,
        "learning_rate": 2.0633e-5,
        "gamma": 0.98,
        "gae_lambda": 0.92,
        "clip": 0.1,
        "entropy_coef": 0.000401762,
        "value_coef": 0.58096,
        "max_grad_norm": 0.8,
        "initial_log_std": -2,
    },
    num_envs=8,  # of 64 steps: the zoo's rollout of 512
)
