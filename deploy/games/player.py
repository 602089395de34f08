"""Players that a bundle's file of weights defines: a network, a heuristic player, or a team."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sweepd.agents.policy.duels import FrozenEntrant
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import read_members, split_file
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ScriptedPolicy, Theta, heuristic
from sweepd.envs.games.pairings import Entrant
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.specs import Play

Act = Callable[[Tensor], Tensor]


class Player(Protocol):
    """A player. Its attributes are those of `sweepd.deploy.games.manifest.PlayerPart`."""

    state_dim: int
    action_dim: int
    choices: tuple[int, ...]

    def seated(self, env: GameEnv, seed: int) -> Act:
        """A function that acts for all rows of the environment.

        Args:
            env: the environment.
            seed: of the player's own random numbers, if it uses any.

        Raises:
            InputError: the player does not fit the environment.
        """

    def entrant(self, name: str) -> Entrant:
        """The player under this name, for games of two players; InputError if it plays none."""


class Network:
    """A frozen policy of one member.

    Args:
        policy: the policy.
        sampled: whether actions are drawn from the policy instead of its most probable ones.

    Raises:
        InputError: the policy cannot be sampled.
    """

    def __init__(self, policy: FrozenPolicy, *, sampled: bool = False) -> None:
        if sampled:
            policy.check_sampled()
        self.policy, self.sampled = policy, sampled
        self.state_dim, self.action_dim = policy.state_dim, policy.action_dim
        self.choices = tuple(policy.sizes)

    def seated(self, env: GameEnv, seed: int) -> Act:
        """See `Player.seated`."""
        choices = env.spec.choices
        if (self.state_dim, self.action_dim, self.choices) != (
            env.state_dim,
            env.action_dim,
            choices,
        ):
            raise InputError(
                f"the player maps {self.state_dim} numbers to {self.action_dim} actions in choices "
                f"of {list(self.choices)}, and {env.env_name} has {env.state_dim} observations and "
                f"{env.action_dim} actions in choices of {list(choices)}"
            )
        own = seed if self.sampled else None
        if not self.policy.recurrent or env.spec.players == 1:
            return _Seated(self.policy, env, own)
        seats = [FrozenPolicy(self.policy.members) for _ in range(env.spec.players)]
        acts = [_Seated(policy, env, own, seat) for seat, policy in enumerate(seats)]
        return _SeatedTeam(acts, env.to_move)

    def entrant(self, name: str) -> Entrant:
        """See `Player.entrant`."""
        return FrozenEntrant(name, self.policy, sampled=self.sampled)


class _Seated:
    """A policy that acts in one environment; a recurrent one keeps its state per episode.

    Args:
        policy: the policy.
        env: the environment.
        seed: of its random numbers; None: it acts deterministically.
        seat: of a recurrent policy in rows of several players in turns: the one that it plays.
    """

    def __init__(
        self, policy: FrozenPolicy, env: GameEnv, seed: int | None, seat: int | None = None
    ) -> None:
        self._policy, self._env, self._seat = policy, env, seat
        self._legal = env.action_mask if env.spec.masked else None
        # On the CPU, so that the numbers are the same on every device.
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        policy.reset()

    def __call__(self, obs: Tensor) -> Tensor:
        policy, live = self._policy, self._live()
        obs = obs[:, : policy.state_dim]  # without columns that only critics read
        if self._generator is None:
            actions = policy.act_batch(obs, self._legal, live)
        else:
            uniforms = torch.rand(
                len(obs), policy.uniforms, generator=self._generator, dtype=torch.float64
            )
            actions = policy.sample_batch(obs, uniforms.to(obs.device), self._legal, live)
        return actions if self._env.if_discrete else actions.float()

    def _live(self) -> Tensor | None:
        """Return the rows in which the policy acts, (rows,) bool; None: all."""
        if self._seat is not None:
            return self._env.to_move() == self._seat
        # A recurrent state waits while the opponent is to move.
        return self._env.present() if self._env.spec.has_absent_agents else None

    def ended(self, over: Tensor) -> None:
        """Reset the recurrent state. over: (rows,) bool, true where an episode ended."""
        self._policy.done(over)


class HeuristicPlayer:
    """A player of Bucket Brigade that is defined by four probabilities."""

    state_dim, action_dim = 0, 0
    choices: tuple[int, ...] = ()

    def __init__(self, theta: Theta) -> None:
        self.theta = theta

    def seated(self, env: GameEnv, seed: int) -> Act:
        """See `Player.seated`."""
        if not isinstance(env, BucketBrigade):
            raise InputError(f"a heuristic player plays Bucket Brigade, not {env.env_name}")
        return ScriptedPolicy(heuristic(self.theta), env.encoder, seed)

    def entrant(self, name: str) -> Entrant:
        """See `Player.entrant`."""
        raise InputError(f"{name} is a heuristic player, which plays Bucket Brigade only")


class Team:
    """Policies that play together, each at seats of its own.

    Args:
        players: the policies.
        seats: by seat, the index of the policy that plays it.

    Raises:
        InputError: a policy has no seat, or they do not fit together.
    """

    def __init__(self, players: Sequence[Player], seats: Sequence[int]) -> None:
        if set(seats) != set(range(len(players))):
            raise InputError(
                f"{len(players)} policies cannot play the seats {list(seats)}: each must have one"
            )
        self.players, self.seats = tuple(players), tuple(seats)
        first = players[0]
        self.state_dim, self.action_dim = first.state_dim, first.action_dim
        self.choices = first.choices
        for index, own in enumerate(players):
            if (own.state_dim, own.action_dim, own.choices) != (
                self.state_dim,
                self.action_dim,
                self.choices,
            ):
                raise InputError(f"policy {index} of the team reads or does other things than 0")

    def seated(self, env: GameEnv, seed: int) -> Act:
        """See `Player.seated`. Row `game * seats + seat` is a seat."""
        acts = [
            own.seated(env, derive_seed(seed, "team", index))
            for index, own in enumerate(self.players)
        ]
        of_row = torch.tensor(self.seats).repeat(env.num_envs // len(self.seats)).to(env.device)
        return _SeatedTeam(acts, lambda: of_row)

    def entrant(self, name: str) -> Entrant:
        """See `Player.entrant`."""
        raise InputError(f"{name} is a team, which plays no games of two players")


class _SeatedTeam:
    """Several policies in one environment.

    Args:
        acts: of the policies.
        of_row: returns (rows,) int64, the policy that acts in each row.
    """

    def __init__(self, acts: Sequence[Act], of_row: Callable[[], Tensor]) -> None:
        self._acts, self._of_row = acts, of_row

    def __call__(self, obs: Tensor) -> Tensor:
        # All compute all rows, as masks and recurrent states are those of all rows.
        every = torch.stack([act(obs) for act in self._acts])
        return every[self._of_row(), torch.arange(len(obs), device=obs.device)]

    def ended(self, over: Tensor) -> None:
        """Tell the policies which episodes ended."""
        for act in self._acts:
            getattr(act, "ended", lambda _: None)(over)


def read_player(content: bytes, play: Play = "deterministic", seats: Sequence[int] = ()) -> Player:
    """The player in a file of weights: with one member, or a team.

    Args:
        content: the file's bytes.
        play: whether a network's actions are its most probable ones or drawn from it.
        seats: of a team: by seat, the member of the file that plays it.

    Raises:
        InputError: the bytes define no player, or one that cannot be sampled.
    """
    every, _ = split_file(content, MEMBERS_FILE)
    wanted = 1 + max(seats, default=0)
    if len(every) != wanted:
        raise InputError(f"{MEMBERS_FILE} holds {len(every)} members; expected {wanted}")
    if any(set(own) == {"theta"} for own in every):
        players: list[Player] = [_heuristic(own) for own in every]
    else:
        sampled = play == "sampled"
        members = read_members(content, MEMBERS_FILE)
        players = [Network(FrozenPolicy([own]), sampled=sampled) for own in members]
    return Team(players, seats) if seats else players[0]


def _heuristic(own: Mapping[str, Tensor]) -> HeuristicPlayer:
    numbers = own["theta"].tolist() if set(own) == {"theta"} else []
    if len(numbers) != len(Theta._fields) or not all(0.0 <= number <= 1.0 for number in numbers):
        raise InputError(
            f"{MEMBERS_FILE} holds {numbers}, not the four probabilities of a heuristic player"
        )
    return HeuristicPlayer(Theta(*numbers))
