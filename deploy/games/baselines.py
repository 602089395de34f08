"""The baseline players of a panel: random, scripted and constant ones, and those of a user.

A player that does no better than the same action in every step has learned nothing that is worth
deploying, however far it is ahead of random play. So every panel has constant players
(`sweepd.envs.games.constant_players`), among them the candidate's own first action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.constant_players import (
    ALWAYS,
    ConstantPlayer,
    constant_actions,
    constant_player,
    preferred,
)
from sweepd.envs.games.pairings import Act as PairAct
from sweepd.envs.games.pairings import Entrant, block_uniforms
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import find

Act = Callable[[Tensor], Tensor]
RANDOM, FIRST_ACTION = "random", "first action repeated"


@dataclass(frozen=True)
class OwnBaseline:
    """A baseline player of a user's own.

    Attributes:
        name: `MODULE:NAME`.
        function: maps one observation to an action. Of external environments both are as the
            environment has them; of sweepd's own games an observation is a (state_dim,) array, and
            an action an index, a list of indices, or numbers in [-1, 1].
    """

    name: str
    function: Callable[[Any], Any]

    def acts(self, env: GameEnv, seed: int) -> Act:
        """Return its actions for all rows of an environment; see `_legally` on illegal ones."""
        generator = torch.Generator().manual_seed(seed)

        def act(obs: Tensor) -> Tensor:
            seen = env.observations() if isinstance(env, ExternalVecEnv) else obs.numpy()
            here = env.present().tolist() if env.spec.has_absent_agents else [True] * len(seen)
            # Components of absent agents' actions are not read.
            idle = np.zeros(_components(env), np.int64 if env.if_discrete else np.float32)
            rows = zip(seen, here, strict=True)
            made = np.stack([self.answer(env, one) if there else idle for one, there in rows])
            uniforms = torch.rand(len(made), env.action_dim, generator=generator)
            legal = env.action_mask if env.spec.masked else None
            return _legally(env, torch.from_numpy(made), legal, uniforms)

        return act

    def answer(self, env: GameEnv, observation: Any) -> Any:
        """Return its action for one observation as a row of the environment's actions.

        Raises:
            InputError: it fails, or gives no action of the environment.
        """
        try:
            action = self.function(observation)
        except Exception as error:  # the user's function may raise anything
            raise InputError(
                f"--baseline {self.name} failed on an observation: {type(error).__name__}: {error}"
            ) from error
        try:
            return env.encode(action) if isinstance(env, ExternalVecEnv) else _row(env, action)
        except (TypeError, ValueError) as error:
            raise InputError(f"--baseline {self.name} gave no action: {error}") from error


class OwnEntrant(Entrant):
    """A user's baseline player in a game of two."""

    def __init__(self, baseline: OwnBaseline) -> None:
        self.names, self._baseline = (baseline.name,), baseline

    def sit(self, env: TensorGame, block: int, seed: int) -> PairAct:
        """See `Entrant.sit`."""
        draw = block_uniforms(block, seed)

        def act(obs: Tensor, live: Tensor | None = None, legal: Legal | None = None) -> Tensor:
            del live
            made = np.stack([self._baseline.answer(env, one) for one in obs.cpu().numpy()])
            action = torch.from_numpy(made).to(obs.device)
            return env.decode(_legally(env, action, legal, draw(obs, env.action_dim)))

        return act


def _legally(env: GameEnv, action: Tensor, legal: Legal | None, uniforms: Tensor) -> Tensor:
    """Return (rows, components) as the environment takes them; illegal options become random ones.

    A function of observations may not know what is legal.
    """
    if legal is not None:
        action = preferred(action, env.spec.choices, legal, uniforms)
    return action[:, 0] if env.if_discrete and not env.spec.action_dims else action


def _components(env: GameEnv) -> int:
    """Return the number of components of an action."""
    return len(env.spec.choices) or env.action_dim


def is_simple(name: str) -> bool:
    """Whether a baseline player of this name plays at random, or the same in every step."""
    return name in (RANDOM, FIRST_ACTION) or name.startswith(ALWAYS)


def load_baselines(names: Sequence[str]) -> tuple[OwnBaseline, ...]:
    """Load the values of `--baseline`.

    Raises:
        InputError: one is not `MODULE:NAME`, does not exist, is there twice, or cannot be called.
    """
    found = []
    for name in names:
        flag = f"--baseline {name}"
        if ":" not in name:
            raise InputError(f"{flag} must be MODULE:NAME, such as my_players:equal_weights")
        if list(names).count(name) > 1:
            raise InputError(f"{flag} is there more than once")
        function = find(flag, name)
        if not callable(function):
            raise InputError(
                f"{flag} is a {type(function).__name__}; it must be a function of an observation "
                "that returns an action"
            )
        found.append(OwnBaseline(name, function))
    return tuple(found)


def baseline_player(
    name: str, env: GameEnv, scripted: Mapping[str, Act], first: Tensor | None, seed: int
) -> Act:
    """Return the baseline player of that name.

    Args:
        name: of a scripted player, `RANDOM`, `FIRST_ACTION`, of a constant player, or
            `MODULE:NAME`.
        env: the environment, just reset.
        scripted: the game's own players.
        first: the candidate's action in the rows of the first game, for `FIRST_ACTION`.
        seed: of random numbers.

    Raises:
        InputError: a user's player cannot be loaded, or there is no such player.
    """
    if name in scripted:
        return scripted[name]
    if name == RANDOM:
        generator = torch.Generator().manual_seed(seed)
        return lambda _: random_actions(env, generator)
    if name == FIRST_ACTION and first is not None:
        games = env.num_envs // len(first)
        return ConstantPlayer(env, first.repeat(games, *[1] * (first.dim() - 1)), seed)
    if name in constant_actions(env):
        return constant_player(env, name, seed)
    if ":" not in name:
        raise InputError(f"there is no baseline player {name!r} in {env.env_name}")
    return load_baselines([name])[0].acts(env, seed)


def _row(env: GameEnv, action: Any) -> Any:
    """Return an action as a row of a game's actions; ValueError if it is none."""
    if not env.if_discrete:
        numbers = np.asarray(action, dtype=np.float32).reshape(-1)
        if numbers.size != env.action_dim or not (np.abs(numbers) <= 1.0).all():
            raise ValueError(f"{action!r} is not {env.action_dim} numbers in [-1, 1]")
        return numbers
    sizes = env.spec.choices
    options = np.asarray(action, dtype=np.float64).reshape(-1)
    fits = options.size == len(sizes) and (options == np.round(options)).all()
    if not fits or not ((options >= 0) & (options < np.array(sizes))).all():
        raise ValueError(f"{action!r} is not a choice of options below {list(sizes)}")
    return options.astype(np.int64)
