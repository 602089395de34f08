"""Gymnasium interfaces: a `VectorEnv` view of any `VecEnv`, and single environments.

To use an environment of your own, subclass `sweepd.envs.core.vec_env.VecEnv` and wrap an instance
in `GymnasiumVectorView`, or one with a single row in `GymnasiumView`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.support.errors import InputError

if TYPE_CHECKING:
    from sweepd.envs.crypto.market import Market
    from sweepd.envs.games.game import Game

CRYPTO_ID = "sweepd/Crypto-v0"
CARTPOLE_ID = "sweepd/CartPole-v1"
BUCKET_BRIGADE_ID = "sweepd/BucketBrigade-v0"


def row_spaces(env: VecEnv) -> tuple[Space[Any], Space[Any]]:
    """Return the spaces of one row's observation (without privileged columns) and action."""
    spec = env.spec
    if spec.players > 1:
        raise InputError(
            f"{env.env_name} has {spec.players} players in turns in every row, which Gymnasium's "
            "interfaces do not have; give it opponents"
        )
    action: Space[Any]
    if spec.action_dims:
        action = MultiDiscrete(np.array(spec.action_dims))
    elif spec.if_discrete:
        action = Discrete(spec.action_dim)
    else:
        action = Box(-1.0, 1.0, (spec.action_dim,), np.float32)
    return Box(-np.inf, np.inf, (spec.state_dim,), np.float32), action


def codec_of(game: Game, params: Any) -> SpaceCodec:
    """Return what reads and writes the spaces of one row of a game.

    Raises:
        InputError: the environment cannot be made, has players in turns in every row, or masks its
            choices one after the other.
    """
    if game.described is not None:
        return SpaceCodec.of(game.described(params))
    with contextlib.closing(game.make([params], 1, together=1, device="cpu")) as env:
        own = getattr(env, "codec", None)  # of an environment of others, such as `ExternalTurns`
        if isinstance(own, SpaceCodec):
            return own
        found = row_spaces(env)
        if env.spec.masked:
            raise InputError(
                f"{env.env_name} says which options are legal by the choices made so far; use "
                "act(observation, legal) with its action_mask"
            )
        return SpaceCodec(*found)


def _numpy(env: VecEnv, obs: torch.Tensor) -> np.ndarray:
    """Return a copy without privileged columns, since `step` may reuse its buffers."""
    return np.array(obs[:, : env.state_dim].cpu().numpy())


class GymnasiumVectorView(VectorEnv[Any, Any, Any]):
    """A `VecEnv` as a `gymnasium.vector.VectorEnv` of NumPy arrays, with same-step autoreset.

    In rows whose episode ended, `infos["_final_obs"]` is true and `infos["final_obs"]` has the
    episode's last observation.
    """

    def __init__(self, env: VecEnv) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
        self.env = env
        self.num_envs = env.num_envs
        self.single_observation_space, self.single_action_space = row_spaces(env)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset every row. seed: one seed, or one per member. options: ignored."""
        super().reset(seed=seed if isinstance(seed, int) else None, options=options)
        return _numpy(self.env, self.env.reset(seed)), {}

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every row by one step.

        Raises:
            RunError: an action is illegal.
        """
        made = self.env.step(torch.as_tensor(np.asarray(actions), device=self.env.device))
        self.env.check()
        terminated, truncated = (
            made.terminated.cpu().numpy().copy(),
            made.truncated.cpu().numpy().copy(),
        )
        infos: dict[str, Any] = {}
        ended = terminated | truncated
        if ended.any():
            last = _numpy(self.env, self.env.final_obs())
            final = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(ended):
                final[row] = last[row]
            infos = {"final_obs": final, "_final_obs": ended}
        return (
            _numpy(self.env, made.obs),
            made.reward.double().cpu().numpy(),
            terminated,
            truncated,
            infos,
        )


class GymnasiumView(gymnasium.Env[Any, Any]):
    """A `VecEnv` with a single row as a `gymnasium.Env`, without autoreset."""

    def __init__(self, env: VecEnv) -> None:
        if env.num_envs != 1:
            raise ValueError(
                f"a single environment has one row, not {env.num_envs}; use GymnasiumVectorView"
            )
        self.env = env
        self.observation_space, self.action_space = row_spaces(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode. options: ignored."""
        super().reset(seed=seed, options=options)
        return _numpy(self.env, self.env.reset(seed))[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """Advance by one step. At the end of an episode, returns its last observation.

        Raises:
            RunError: the action is illegal.
        """
        made = self.env.step(
            torch.as_tensor(np.asarray(action), device=self.env.device).unsqueeze(0)
        )
        self.env.check()
        terminated, truncated = bool(made.terminated[0]), bool(made.truncated[0])
        obs = self.env.final_obs() if terminated or truncated else made.obs
        return _numpy(self.env, obs)[0], float(made.reward[0]), terminated, truncated, {}


def _crypto(
    num_envs: int,
    data_dir: str | Path | None,
    timeframe: str,
    tickers: Sequence[str] | None,
    market: Market | None,
    params: dict[str, Any],
) -> VecEnv:
    # Not at the top: Gymnasium imports this module to register the environments; keep that fast.
    from sweepd.envs.crypto.data.bars import load_bars
    from sweepd.envs.crypto.data.demo_market import make_demo_market
    from sweepd.envs.crypto.env import CryptoEnv
    from sweepd.envs.crypto.market import make_market
    from sweepd.envs.crypto.params import EnvParams

    if market is None:
        market = make_market(
            make_demo_market(bars=4000, timeframe=timeframe)
            if data_dir is None
            else load_bars(Path(data_dir), timeframe, tickers)
        )
    own = EnvParams(**params)
    return CryptoEnv(market, own, [(market.first_bar(own.lookback), market.length - 1)], num_envs)


def make_crypto(
    data_dir: str | Path | None = None,
    timeframe: str = "1h",
    tickers: Sequence[str] | None = None,
    market: Market | None = None,
    **params: Any,
) -> GymnasiumView:
    """Make a single crypto environment over all bars.

    Args:
        data_dir: folder of bar files.
        timeframe: of the bars.
        tickers: subset of the tickers; None for all.
        market: used instead of `data_dir`. Without either, a small synthetic market.
        **params: fields of `EnvParams`.
    """
    return GymnasiumView(_crypto(1, data_dir, timeframe, tickers, market, params))


def make_crypto_vec(
    num_envs: int = 1,
    data_dir: str | Path | None = None,
    timeframe: str = "1h",
    tickers: Sequence[str] | None = None,
    market: Market | None = None,
    **params: Any,
) -> GymnasiumVectorView:
    """Make `num_envs` crypto environments in one batch. Other arguments as in `make_crypto`."""
    return GymnasiumVectorView(_crypto(num_envs, data_dir, timeframe, tickers, market, params))


def _cartpole(num_envs: int, **params: Any) -> VecEnv:
    from sweepd.envs.games.cartpole import CartPole, CartPoleParams

    return CartPole(CartPoleParams(**params), num_envs)


def make_cartpole(**params: Any) -> GymnasiumView:
    """Make a single CartPole. params: fields of `CartPoleParams`."""
    return GymnasiumView(_cartpole(1, **params))


def make_cartpole_vec(num_envs: int = 1, **params: Any) -> GymnasiumVectorView:
    """Make `num_envs` CartPoles in one batch (for `gymnasium.make_vec`)."""
    return GymnasiumVectorView(_cartpole(num_envs, **params))


def make_bucket_brigade(
    scenario: str = "default",
    seat: int = 0,
    company: str = "specialist",
    scaled: bool = True,
    render_mode: str | None = None,
    **params: Any,
) -> gymnasium.Env[Any, Any]:
    """Make one seat of Bucket Brigade. A baseline player acts for the other seats.

    Args:
        scenario: name of the scenario.
        seat: index of the seat.
        company: name of the baseline player of the other seats.
        scaled: whether observations are scaled.
        render_mode: as in Gymnasium.
        **params: changes to the scenario, fields of `BucketParams`.
    """
    from sweepd.envs.games.bucket_brigade.scenarios import scenario as params_of
    from sweepd.envs.games.bucket_brigade.views import SeatView

    chosen = params_of(scenario, **params)
    return SeatView(chosen, seat=seat, company=company, scaled=scaled, render_mode=render_mode)


def make_bucket_brigade_vec(
    num_envs: int = 4, scenario: str = "default", scaled: bool = True, **params: Any
) -> GymnasiumVectorView:
    """Make whole games of Bucket Brigade. A row is a seat; rows of a game are adjacent.

    Args:
        num_envs: seats in total, a multiple of the number of agents.
        scenario: name of the scenario.
        scaled: whether observations are scaled.
        **params: changes to the scenario, fields of `BucketParams`.
    """
    from sweepd.envs.games.bucket_brigade.game import BucketBrigade
    from sweepd.envs.games.bucket_brigade.scenarios import scenario as params_of

    return GymnasiumVectorView(
        BucketBrigade(params_of(scenario, **params), num_envs, scaled=scaled)
    )


def register() -> None:
    """Register the environments with Gymnasium, which reads no entry points since 1.0. Idempotent."""
    every = (
        (CRYPTO_ID, "crypto"),
        (CARTPOLE_ID, "cartpole"),
        (BUCKET_BRIGADE_ID, "bucket_brigade"),
    )
    for name, maker in every:
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point=f"sweepd.envs.gymnasium_view:make_{maker}",
                vector_entry_point=f"sweepd.envs.gymnasium_view:make_{maker}_vec",
            )
