"""What is tested of a vectorized environment: how it is made, and with which parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.games.batched import BatchedGame
from sweepd.envs.games.game import Game, NoParams
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.registry import get_game


def _configure(env: VecEnv, member: int, world: Any) -> None:
    """Give a slot to a member with these parameters."""
    if isinstance(env, GameEnv):
        env.configure_member(member, world)


@dataclass(frozen=True)
class EnvSubject:
    """A vectorized environment and what its laws need to know about it.

    A unit is what must not depend on the rest of the batch: a member, or the `together` members that
    play with each other.

    Attributes:
        name: its name in messages.
        make: makes an environment from the parameters of its members, the games of each member, and
            the device.
        worlds: parameters of members, which are tested with each other. At least one; two that
            differ show more. With short episodes, a few steps show what happens at their ends.
        games: games of each member.
        together: members of a unit.
        configure: gives a slot of an environment to a member with these parameters; by default
            `GameEnv.configure_member`.
        steps: steps of the longest runs, a multiple of 32.
        random: whether the environment uses random numbers.
        on_host: whether `step` reads actions on the host, as of external environments.
        many: games of a member that are enough for torch to use several threads; 0: not tested.
    """

    name: str
    make: Callable[[Sequence[Any], int, torch.device | str], VecEnv]
    worlds: Sequence[Any] = (NoParams(),)
    games: int = 3
    together: int = 1
    configure: Callable[[VecEnv, int, Any], None] = field(default=_configure)
    steps: int = 64
    random: bool = True
    on_host: bool = False
    many: int = 20_000


def subjects_of(what: Any, worlds: Sequence[Any] = ()) -> list[EnvSubject]:
    """Return what is tested of an environment, in every form that training may use.

    Args:
        what: a `Game`, its name for `--env`, a game's class, a Gymnasium environment (class or
            function that makes one), or an `EnvSubject`.
        worlds: parameters of members; by default the game's own.
    """
    if isinstance(what, EnvSubject):
        return [what]
    if isinstance(what, type) and issubclass(what, BatchedGame):
        return _of_game(
            what.game(type(worlds[0])) if worlds else what.game(), what.__name__, worlds
        )
    if isinstance(what, Game):
        return _of_game(what, what.name, worlds)
    if isinstance(what, str):
        return _of_game(get_game(what), what, worlds)
    return [_external(what, worlds)]


def _external(source: Any, worlds: Sequence[Any]) -> EnvSubject:
    from sweepd.envs.external.vec_env import ExternalVecEnv

    def make(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
        return ExternalVecEnv(source, worlds, games, device=device)

    name = getattr(source, "__name__", type(source).__name__)
    return EnvSubject(name, make, worlds or ({},), on_host=True, many=0)


def _of_game(game: Game, name: str, worlds: Sequence[Any]) -> list[EnvSubject]:
    worlds = worlds or (game.params(),)
    kind = getattr(game.make, "kind", None)
    random = not (isinstance(kind, type) and issubclass(kind, BatchedGame)) or bool(
        kind.uniforms_per_start + kind.uniforms_per_move
    )

    def make(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
        return game.make(worlds, games, together=1, device=device)

    many = 0 if game.foreign else EnvSubject.many
    found = [EnvSubject(name, make, worlds, random=random, on_host=game.foreign, many=many)]
    scripted = game.scripted(worlds[0])
    if game.versus is not None and scripted:
        versus = game.versus

        def against(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
            opponents = Scripted(scripted, len(worlds), device)
            mixture = dict.fromkeys(scripted, 1.0 / len(scripted))
            for member in range(len(worlds)):
                opponents.configure_member(member, mixture, "either")
            return versus(worlds, games, together=1, device=device, opponents=opponents)

        found.append(EnvSubject(f"{name} against scripted players", against, worlds, many=0))
    return found
