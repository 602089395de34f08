"""The environments of other packages that are tried, and how each is named.

A trial without an environment of its own (`module`) is what the package registers. Where a package
needs a function that makes the environment, its text is in `module`, which is written next to the
study as `made.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WildEnv:
    """An environment to try.

    Attributes:
        name: in the table.
        requirements: what pip installs.
        env: for `--env`.
        flags: more flags of `train`.
        module: text of a module `made`, which `env` may name; "": none.
    """

    name: str
    requirements: tuple[str, ...]
    env: str
    flags: tuple[str, ...] = ()
    module: str = ""


_CLASSIC = ("pettingzoo[classic]",)
# Newer releases of PettingZoo have no waterworld; its extra sisl would also build Box2D.
_WATERWORLD = ("pettingzoo<1.26", "pymunk<7")
_ALE = ("ale-py", "opencv-python-headless")
_ATARI_WRAPPERS = (
    *("--wrapper", 'gymnasium.wrappers:AtariPreprocessing {"frame_skip": 4}'),
    *("--wrapper", 'frame-stack {"frames": 4}'),
)
_CRAFTER = """
import crafter
import gymnasium
import numpy as np


class Crafter(gymnasium.Env):
    \"\"\"Crafter follows the API of the old package gym.\"\"\"

    def __init__(self):
        self._env = crafter.Env()
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(int(self._env.action_space.n))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._env._seed = int(self.np_random.integers(2**31))
        return self._env.reset(), {}

    def step(self, action):
        image, reward, done, info = self._env.step(action)
        over = done and info["discount"] == 0
        return image, reward, over, done and not over, info
"""
_TRADING = """
import gym_trading_env
import gymnasium
import numpy as np
import pandas as pd


def make():
    \"\"\"Return an environment on a random walk of prices.\"\"\"
    close = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 500).cumsum())
    times = pd.date_range("2024-01-01", periods=500, freq="h")
    bars = pd.DataFrame({"open": close, "high": close, "low": close, "close": close}, times)
    bars["feature_return"] = bars["close"].pct_change().fillna(0.0)
    return gymnasium.make("TradingEnv", df=bars, positions=[-1, 0, 1], verbose=0)
"""
_PROCGEN = """
import gymnasium
import numpy as np
from procgen import ProcgenGym3Env


class CoinRun(gymnasium.Env):
    \"\"\"Procgen's environments follow the API of gym3, and take a seed when they are made.\"\"\"

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(15)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._env = ProcgenGym3Env(
            1, "coinrun", num_levels=100, rand_seed=int(self.np_random.integers(2**31))
        )
        return self._env.observe()[1]["rgb"][0], {}

    def step(self, action):
        self._env.act(np.array([action]))
        reward, seen, first = self._env.observe()
        return seen["rgb"][0], float(reward[0]), bool(first[0]), False, {}
"""
_BSUITE = """
import bsuite
import gymnasium
import numpy as np


class Catch(gymnasium.Env):
    \"\"\"bsuite's environments follow the API of dm_env.\"\"\"

    def __init__(self):
        self._env = bsuite.load_from_id("catch/0")
        shape = self._env.observation_spec().shape
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(self._env.action_spec().num_values)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._env._rng = np.random.RandomState(self.np_random.integers(2**31))
        return self._env.reset().observation.astype(np.float32), {}

    def step(self, action):
        step = self._env.step(action)
        over = bool(step.last() and step.discount == 0)
        return step.observation.astype(np.float32), float(step.reward), over, False, {}
"""

WILD_ENVS = (
    WildEnv("Blackjack", (), "gym:Blackjack-v1"),
    WildEnv("MiniGrid", ("minigrid",), "gym:minigrid:MiniGrid-Empty-5x5-v0"),
    WildEnv(
        "MiniGrid, image only",
        ("minigrid",),
        "gym:minigrid:MiniGrid-Empty-5x5-v0",
        ("--wrapper", "minigrid.wrappers:ImgObsWrapper"),
    ),
    WildEnv("BabyAI", ("minigrid",), "gym:minigrid:BabyAI-GoToRedBall-v0"),
    WildEnv(
        "LunarLander, continuous",
        ("gymnasium[box2d]",),
        "gym:LunarLander-v3",
        ("--env-param", "continuous=true"),
    ),
    WildEnv("CarRacing", ("gymnasium[box2d]",), "gym:CarRacing-v3"),
    WildEnv("MuJoCo Hopper", ("gymnasium[mujoco]",), "gym:Hopper-v5"),
    WildEnv("FlappyBird", ("flappy-bird-gymnasium",), "gym:flappy_bird_gymnasium:FlappyBird-v0"),
    WildEnv("POPGym", ("popgym",), "popgym.envs.repeat_previous:RepeatPreviousEasy"),
    WildEnv("gym-anytrading", ("gym-anytrading",), "gym:gym_anytrading:stocks-v0"),
    WildEnv("gym-trading-env", ("gym-trading-env",), "made:make", module=_TRADING),
    WildEnv("NetHack", ("nle",), "gym:nle:NetHackScore-v0"),
    WildEnv("MPE simple_spread", ("mpe2",), "pettingzoo:mpe2.simple_spread_v3"),
    WildEnv("MPE simple_adversary", ("mpe2", "supersuit"), "pettingzoo:mpe2.simple_adversary_v3"),
    WildEnv(
        "MPE simple_tag, roles",
        ("mpe2",),
        "pettingzoo:mpe2.simple_tag_v3",
        ("--roles", "predator=adversary_*;prey=agent_0"),
    ),
    WildEnv("rock, paper, scissors", _CLASSIC, "versus:pettingzoo.classic.rps_v2"),
    WildEnv(
        "texas_holdem of four",
        _CLASSIC,
        "pettingzoo.classic.texas_holdem_v4:env",
        ("--env-param", "num_players=4", "--roles", "player=player_*"),
    ),
    WildEnv(
        "frondori-football",
        ("frondori-football",),
        "versus:frondori_football.env:FootballEnv",
        ("--env-param", "max_ticks=300", "--env-param", "max_episode_steps=300"),
    ),
    WildEnv("gym-saturation", ("gym-saturation",), "gym:gym_saturation:Vampire-v0"),
    WildEnv("tictactoe", _CLASSIC, "pettingzoo:pettingzoo.classic.tictactoe_v3"),
    WildEnv("connect_four", _CLASSIC, "pettingzoo:pettingzoo.classic.connect_four_v3"),
    WildEnv(
        "chess",
        _CLASSIC,
        "pettingzoo:pettingzoo.classic.chess_v6",
        ("--env-param", "max_episode_steps=40"),
    ),
    WildEnv("highway-env", ("highway-env",), "gym:highway_env:highway-fast-v0"),
    WildEnv("crafter", ("crafter",), "made:Crafter", module=_CRAFTER),
    WildEnv("ALE, RAM", _ALE, "gym:ale_py:ALE/Pong-v5", ("--env-param", "obs_type=ram")),
    WildEnv("ALE, pixels", _ALE, "gym:ale_py:ALE/Pong-v5"),
    WildEnv(
        "ALE, preprocessed",
        _ALE,
        "gym:ale_py:ALE/Pong-v5",
        ("--env-param", "frameskip=1", *_ATARI_WRAPPERS),
    ),
    WildEnv(
        "dm_control",
        ("shimmy[dm-control]", "mujoco<4"),
        "gym:shimmy:dm_control/cartpole-swingup-v0",
    ),
    WildEnv("procgen2", ("procgen2",), "made:CoinRun", module=_PROCGEN),
    WildEnv("rware", ("rware",), "gym:rware:rware-tiny-2ag-v2"),
    WildEnv("lbforaging", ("lbforaging",), "gym:lbforaging:Foraging-8x8-2p-1f-v3"),
    WildEnv("waterworld", _WATERWORLD, "pettingzoo:pettingzoo.sisl.waterworld_v4"),
    WildEnv(
        "cooperative_pong",
        ("pettingzoo[butterfly]",),
        "pettingzoo:pettingzoo.butterfly.cooperative_pong_v6",
    ),
    WildEnv("bsuite", ("bsuite",), "made:Catch", module=_BSUITE),
)
