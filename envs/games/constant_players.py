"""Constant players: the same action in every step, whatever is observed.

A policy that does not earn more than all of them has learned nothing from its observations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sweepd.envs.core.vec_env import Legal, VecEnv
from sweepd.envs.games.pairings import Act, Entrant, block_uniforms
from sweepd.envs.games.tensor_game import TensorGame

MOST = 32  # constant players of a game; with more different actions, these three are played:
ALWAYS = "always "  # the beginning of their names
ENDS = ("first", "middle", "last")  # options of every choice
BOX = {"low": -1.0, "middle": 0.0, "high": 1.0}  # of every number, between its bounds


def constant_actions(env: VecEnv) -> Mapping[str, tuple[float, ...]]:
    """Return the constant players of an environment: the components of their action by name.

    Of choices: every action, or, if there are more than `MOST`, the first, middle and last option of
    all choices. Of numbers: all of them low, in the middle, and high.
    """
    if not env.if_discrete:
        return {f"{ALWAYS}{name}": (at,) * env.action_dim for name, at in BOX.items()}
    sizes = env.spec.choices
    if math.prod(sizes) <= MOST:
        every = itertools.product(*map(range, sizes))
        return {f"{ALWAYS}{','.join(map(str, action))}": action for action in every}
    ends = (0,) * len(sizes), tuple(size // 2 for size in sizes), tuple(size - 1 for size in sizes)
    return {f"{ALWAYS}{name}": action for name, action in zip(ENDS, ends, strict=True)}


def preferred(wanted: Tensor, sizes: Sequence[int], legal: Legal, uniforms: Tensor) -> Tensor:
    """Return the wanted options where they are legal, and random legal ones elsewhere.

    Args:
        wanted: (rows, choices) int64.
        sizes: number of options of each choice.
        legal: the rows' masks.
        uniforms: (rows, sum of `sizes`) in [0, 1).

    Returns:
        (rows, choices) int64.
    """
    chosen = wanted[:, :0]
    for choice, ranks in enumerate(torch.split(uniforms, list(sizes), 1)):
        # The largest of independent uniform numbers is equally likely to be any of the legal ones.
        ranks = ranks.scatter(1, wanted[:, choice : choice + 1], 2.0)
        option = ranks.masked_fill(~legal(chosen), -1.0).argmax(1, keepdim=True)
        chosen = torch.cat((chosen, option), 1)
    return chosen


class ConstantPlayer:
    """Makes one action in every row of an environment.

    Where one of its choices is illegal, a random legal option is chosen instead.

    Args:
        env: the environment.
        action: (rows,), (rows, components) or (components,), as the environment takes it.
        seed: of the random choices.
    """

    def __init__(self, env: VecEnv, action: Tensor, seed: int) -> None:
        self._sizes = env.spec.choices
        columns = len(self._sizes) or env.action_dim
        self._single = env.if_discrete and not env.spec.action_dims
        self._action = action.reshape(-1, columns).expand(env.num_envs, columns).contiguous()
        self._legal = env.action_mask if env.spec.masked else None
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the actions of all rows."""
        action = self._action
        if self._legal is not None:
            drawn = torch.rand(len(obs), sum(self._sizes), generator=self._generator)
            action = preferred(action, self._sizes, self._legal, drawn)
        return action[:, 0] if self._single else action


def constant_player(env: VecEnv, name: str, seed: int) -> ConstantPlayer:
    """Return the constant player of that name; see `constant_actions`."""
    dtype = torch.int64 if env.if_discrete else torch.float32
    return ConstantPlayer(env, torch.tensor(constant_actions(env)[name], dtype=dtype), seed)


class ConstantEntrant(Entrant):
    """A constant player of a game of two; see `ConstantPlayer`."""

    def __init__(self, name: str) -> None:
        self.names = (name,)

    def sit(self, env: TensorGame, block: int, seed: int) -> Act:
        """See `Entrant.sit`."""
        action, sizes = constant_actions(env)[self.names[0]], env.spec.choices
        one = torch.tensor([action], dtype=torch.int64 if env.if_discrete else torch.float32)
        draw = block_uniforms(block, seed)

        def act(obs: Tensor, live: Tensor | None = None, legal: Legal | None = None) -> Tensor:
            del live
            made = one.to(obs.device).expand(len(obs), -1)
            if legal is not None:
                made = preferred(made, sizes, legal, draw(obs, sum(sizes)))
            return env.decode(made[:, 0] if env.if_discrete and not env.spec.action_dims else made)

        return act
