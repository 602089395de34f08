"""Games by name, as `--env` takes them.

`cartpole`, `bucket-brigade`, `card-duel`, `hockey`, `kuhn` and `leduc` are built in; `MODULE:NAME`
is a user's `Game`, or an external environment like the other names that
`sweepd.envs.external.sources` describes. A package may register a name for either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.external.describe import Description, EnvKind, describe
from sweepd.envs.external.ready_vec_env import ReadyVecEnv
from sweepd.envs.external.role_rows import RoleRows, role_members
from sweepd.envs.external.roles import FLAG as ROLES_FLAG
from sweepd.envs.external.roles import KEY as ROLES
from sweepd.envs.external.roles import NO_ROLES, Roles, assign_roles
from sweepd.envs.external.sources import (
    PETTINGZOO,
    PREFIXES,
    VERSUS,
    FactorySource,
    made_by,
    named_env,
)
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.mixture import Params, read_scenario
from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.bucket_brigade.players import PLAYERS, ScriptedPolicy
from sweepd.envs.games.bucket_brigade.scenarios import SCENARIOS
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.players import PLAYERS as DUEL_PLAYERS
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.external_turns import turns_game
from sweepd.envs.games.external_versus import versus_game
from sweepd.envs.games.game import Game
from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.envs.games.hockey.players import PLAYERS as HOCKEY_PLAYERS
from sweepd.envs.games.poker.kuhn import Kuhn
from sweepd.envs.games.poker.leduc import Leduc
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import Plugin, find, resolve


def _bucket_brigade_params(scenario: str = "default", **changes: Any) -> Params:
    return read_scenario(scenario, **changes)


def _bucket_brigade(
    params: Sequence[Any], num_envs: int, *, together: int, device: torch.device | str
) -> GameEnv:
    rows = num_envs * params[0].num_agents
    return BucketBrigade(list(params), rows, together=together, device=device)


def _bucket_brigade_players(params: Params, seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    encoder = ObservationEncoder(
        params.num_houses, params.num_agents, 1, scaled=True, device=torch.device("cpu")
    )
    return {
        name: ScriptedPolicy(player, encoder, derive_seed(seed, name))
        for name, player in PLAYERS.items()
    }


GAMES = {
    "cartpole": replace(CartPole.game(CartPoleParams, solved=475.0), name="cartpole"),
    "bucket-brigade": Game(
        "bucket-brigade",
        _bucket_brigade_params,
        _bucket_brigade,
        seats=lambda params: params.num_agents,
        scenarios=tuple(SCENARIOS),
        players=_bucket_brigade_players,
    ),
    "kuhn": replace(Kuhn.game(), name="kuhn"),
    "leduc": replace(Leduc.game(), name="leduc"),
    "card-duel": replace(
        CardDuel.game(CardDuelParams, scripted=lambda _: DUEL_PLAYERS), name="card-duel"
    ),
    "hockey": replace(Hockey.game(HockeyParams, scripted=lambda _: HOCKEY_PLAYERS), name="hockey"),
}

# What `--env` takes besides the names of other packages.
BUILT_IN = ("crypto", *GAMES, "gym:ID", "vector:ID", "pettingzoo:MODULE", "versus:MODULE")


@dataclass(frozen=True)
class EnvArguments:
    """Arguments of an external environment as (name, value) pairs; `dict()` converts them."""

    arguments: tuple[tuple[str, Any], ...] = ()

    def __hash__(self) -> int:  # values may be lists
        return hash(repr(self.arguments))

    def keys(self) -> list[str]:
        return [name for name, _ in self.arguments]

    def __getitem__(self, name: str) -> Any:
        return dict(self.arguments)[name]


def _env_arguments(**arguments: Any) -> EnvArguments:
    return EnvArguments(tuple(sorted(arguments.items())))


# Cached, because descriptions are used often and some environments take long to make.
@functools.lru_cache(maxsize=16)
def _external(name: str, place: str) -> Game:
    env = named_env(place)
    if name.startswith(VERSUS):
        assert isinstance(env.source, FactorySource)
        return replace(versus_game(name, env.source, _env_arguments), foreign=True)
    if name.startswith(PETTINGZOO) and isinstance(env.source, FactorySource):
        in_turns = turns_game(name, env.source, _env_arguments)
        if in_turns is not None:
            return replace(in_turns, foreign=True)

    @functools.cache
    def described(params: EnvArguments) -> Description:
        return describe(env.sized(dict(params), 1), dict(params))

    def single(params: EnvArguments) -> bool:
        # A wrapper may make one environment of several agents.
        return env.single and not {WRAPPERS, ROLES} & {*params.keys()}

    def seats(params: EnvArguments) -> int:
        if single(params) or described(params).kind != EnvKind.PARALLEL:
            return 1
        return described(params).rows

    # Agents of a PettingZoo environment are seats of one game; sub-environments of a vector
    # environment are separate games that are only made together.
    def unit(params: EnvArguments) -> int:
        if single(params) or env.takes_size(dict(params)):
            return 1
        return 1 if described(params).kind == EnvKind.PARALLEL else described(params).rows

    def roles_of(params: EnvArguments) -> Roles:
        if ROLES not in params.keys():  # noqa: SIM118 - it has no __contains__
            return NO_ROLES
        agents = described(params).agents
        if not agents:
            raise InputError(
                f"{ROLES_FLAG} is for environments of several agents with PettingZoo's API, and "
                f"--env {name} is none; leave it out"
            )
        return assign_roles(str(params[ROLES]), agents)

    def make(
        params: Sequence[EnvArguments],
        num_envs: int,
        *,
        together: int,  # noqa: ARG001
        device: torch.device | str,
        kind: type[ExternalVecEnv] = ExternalVecEnv,
    ) -> GameEnv:
        first, at_once = params[0], unit(params[0])
        roles = roles_of(first)
        if roles.names:
            groups, games = role_members(params, roles), num_envs * seats(first)
            return RoleRows(ExternalVecEnv(env.source, groups, games, device=device), roles)
        rows = -(-num_envs // at_once) * at_once * seats(first)
        source = env.source if seats(first) > 1 else env.sized(dict(first), rows)
        return kind(source, [dict(own) for own in params], rows, device=device)

    return Game(
        name,
        _env_arguments,
        make,
        seats=seats,
        solved=env.solved,
        unit=unit,
        described=described,
        make_ready=functools.partial(make, kind=ReadyVecEnv),
        roles=roles_of,
        foreign=True,
    )


def as_team(name: str) -> str:
    """Return the name by which one policy plays all agents of `pettingzoo:…` or `versus:…`."""
    return made_by(name) or name


def environment_plugin(name: str) -> Plugin | None:
    """Return what another package provides for an environment; None for one that is built in."""
    if name in GAMES:
        return None
    if not name.startswith(PREFIXES):
        return resolve("environment", name, BUILT_IN)
    place = made_by(name)
    return None if place is None else Plugin(name, place, find(f"--env {name}", place), {})


def get_game(name: str) -> Game:
    """Find a game by name.

    Raises:
        InputError: The name, the Gymnasium id or the module's attribute does not exist, or it is
            not a game.
    """
    if name in GAMES:
        return GAMES[name]
    if name.startswith(PREFIXES):
        return _external(name, name)
    return _of_others(name)


def _of_others(name: str) -> Game:
    """Return the game or environment that another package provides."""
    plugin = resolve("environment", name, BUILT_IN)
    if plugin.name != name:
        raise InputError(f"--env {name}: its arguments are given with --env-param NAME=VALUE")
    found = plugin.made
    if isinstance(found, type) and issubclass(found, VecEnv):
        # It could not be called with the game's parameters: it takes members and rows.
        raise InputError(
            f"--env {name} is a class of vectorized environments; it must be a `Game`: name "
            f"what {found.__name__}.game() returns"
        )
    return replace(found, name=name) if isinstance(found, Game) else _external(name, plugin.place)
