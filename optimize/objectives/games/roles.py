"""Studies with roles: how a trial's policies, one per role, are judged (`--roles`).

Two policies that learn together cannot be compared with those of other trials by their returns: a
weak one makes its opponent look strong. So by default, the first role is judged while all others
play at random, as members of a game of two without scripted players are. A team is judged as it
plays together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.rows import where_rows
from sweepd.envs.external.role_rows import RoleRows
from sweepd.envs.games.pairings import block_uniforms, random_legal
from sweepd.envs.games.play import EpisodeResults


def role_metric(name: str) -> str:
    """Return the name of the metric with a role's mean return, where all roles play as trained."""
    return f"return_{name}"


def judged_rows(env: RoleRows) -> Tensor:
    """Return (num_envs,) bool, the rows that are judged while all others play at random.

    Those of the first role. With one role for all agents: of one agent per game, each in turn.
    """
    row = torch.arange(env.num_envs, device=env.device)
    count, width = len(env.roles.names), env.roles.rows
    if count > 1:
        return row // env.envs_per_member % count == 0
    return row % width == row // width % width


def beside_random(
    act: Callable[[Tensor], Tensor], env: RoleRows, seed: int
) -> Callable[[Tensor], Tensor]:
    """Return how the judged rows act by `act`, and all others at random.

    The random numbers are the same for all groups of members, so that trials meet the same others.
    """
    judged, spec = judged_rows(env), env.spec
    draw = block_uniforms(env.envs_per_member * len(env.roles.names), seed)

    def mixed(obs: Tensor) -> Tensor:
        own = act(obs)
        if not env.if_discrete:
            return where_rows(judged, own, (2.0 * draw(obs, env.action_dim) - 1.0).to(own.dtype))
        legal = env.action_mask if spec.masked else None
        other = random_legal(draw(obs, len(spec.choices)), spec.choices, legal)
        return where_rows(judged, own, other)

    return mixed


def role_returns(names: Sequence[str], played: EpisodeResults) -> dict[str, float]:
    """Return the metrics of games in which all roles play as trained.

    Args:
        names: of the roles.
        played: of a trial's members, (seeds * roles, episodes).
    """
    means = played.returns.reshape(-1, len(names), played.returns.shape[1]).mean((0, 2))
    return {role_metric(name): float(mean) for name, mean in zip(names, means, strict=True)}


def of_team(names: Sequence[str], played: EpisodeResults) -> EpisodeResults:
    """Return the results of teams, (seeds, episodes): sums over their roles. Arguments as above."""
    count, episodes = len(names), played.returns.shape[1]
    returns = played.returns.reshape(-1, count, episodes)
    lengths = played.lengths.reshape(-1, count, episodes)
    return EpisodeResults(np.asarray(returns.sum(1)), np.asarray(lengths.max(1)))


def of_first(names: Sequence[str], played: EpisodeResults) -> EpisodeResults:
    """Return the results of the first role, (seeds, episodes). Arguments as above."""
    count = len(names)
    return EpisodeResults(played.returns[::count], played.lengths[::count])
