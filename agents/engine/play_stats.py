"""Figures of play in one rollout: what is chosen, how surely, and how games end.

They are for environments whose actions may be illegal, with players in turns, or that name options
to count (`VecEnv.counted`). All of them are computed once per rollout from its buffers, and none
needs an earlier rollout, so that a resumed member has the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.agents.engine.advantages import masked_mean
from sweepd.agents.networks.distributions import Choices, Distribution
from sweepd.envs.core.vec_env import VecEnv


def play_names(env: VecEnv, *, opponents: bool = False) -> tuple[str, ...]:
    """Return the names of an environment's figures, in order; none for other environments.

    - `illegal`: share of the rows with an illegal action in the strict latch. It is 0: a policy
      samples among legal options, and a run ends before it uses anything else.
    - `share_NAME`: share of the decisions whose first choice is this option.
    - `decisions_per_game`: decisions of the rollout, divided by the games that ended in it. Against
      opponents, those of the member.
    - `truncated`: share of the games that ended by truncation. Games in turns have none.
    - `won_first`, `won_second`: of several players in turns, share of the games in whose last
      decision the player got the larger reward.
    - `entropy_K`: mean entropy of choice K (from 0), in nats.

    Args:
        env: the environment.
        opponents: whether this environment is meant with opponents, although it has none.
    """
    spec = env.spec
    players = 1 if opponents else spec.players
    if not (spec.masked or players > 1 or env.counted):
        return ()
    seats = ("won_first", "won_second") if players == 2 else ()
    choices = len(spec.choices) if spec.masked or spec.action_dims else 0
    return (
        "illegal",
        *(f"share_{name}" for name in env.counted),
        "decisions_per_game",
        *seats,
        *(() if players > 1 else ("truncated",)),
        *(f"entropy_{choice}" for choice in range(choices)),
    )


def choice_entropies(policy: Distribution, valid: Tensor | None) -> list[Tensor]:
    """Return the mean entropy of each choice, (G,), in the actions last passed to `log_prob`.

    Args:
        policy: of (G, rows).
        valid: (G, rows) bool, the rows that count; None: all.
    """
    if not isinstance(policy, Choices):
        return []
    return [_mean(part, valid) for part in policy.entropies()]


def play_stats(
    env: VecEnv,
    first: Tensor,
    valid: Tensor | None,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    entropies: list[Tensor],
) -> Mapping[str, Tensor]:
    """Return the figures of `play_names` by name, (G,) each.

    Args:
        env: the environment, after the rollout.
        first: (G, horizon, num_envs), the first choices.
        valid: likewise, bool: the rows with an agent; None: all.
        rewards: likewise; of several players in turns (…, players).
        terminated: likewise, bool.
        truncated: likewise, bool.
        entropies: as `choice_entropies` returns them.
    """
    members, ends = first.shape[0], terminated | truncated
    games = ends.sum((1, 2)).clamp_min(1)
    decisions = torch.full_like(games, first[0].numel()) if valid is None else valid.sum((1, 2))
    found = {"illegal": env.faults().view(members, -1).float().mean(1)}
    for name, option in env.counted.items():
        chosen = first == option if valid is None else (first == option) & valid
        found[f"share_{name}"] = chosen.sum((1, 2)) / decisions.clamp_min(1)
    found["decisions_per_game"] = decisions / games
    if env.spec.players == 2:
        ahead = rewards[..., 0] - rewards[..., 1]
        found["won_first"] = ((ahead > 0) & ends).sum((1, 2)) / games
        found["won_second"] = ((ahead < 0) & ends).sum((1, 2)) / games
    found["truncated"] = (truncated & ~terminated).sum((1, 2)) / games
    found |= {f"entropy_{choice}": mean for choice, mean in enumerate(entropies)}
    return {name: found[name] for name in play_names(env)}


def _mean(numbers: Tensor, valid: Tensor | None) -> Tensor:
    return numbers.mean(1) if valid is None else masked_mean(numbers, valid)[:, 0]
