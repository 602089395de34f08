"""Studies on games of two players: evaluation against scripted players, and the members' league."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sweepd.agents.engine.program import Act
from sweepd.agents.policy.duels import FrozenEntrant, duel_report, play_duels
from sweepd.agents.policy.exact_league import exact_league
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.league_pictures import draw_duels
from sweepd.agents.policy.members import Member
from sweepd.agents.policy.ratings import write_ratings
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import Entrant, block_uniforms, play_pairs, scripted_entrants
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.intervals import Floats

LEAGUE_DEALS = 24  # of every pair in a trial's league, each played in both seatings


class ActEntrant(Entrant):
    """The members of a training program, which act in one call.

    Args:
        act: acts for all of them.
        members: number of members.
        device: of the program.
        sampled: whether actions are drawn; then `act` is `sweepd.agents.engine.acting.Actors`.
        slots: members for which `act` acts, the first of which play; None: all of them.
        second: (members, pairs) bool, the pairs of each member in which it is the second player. Its
            random numbers are others there, as the pair's first player may be one of the members.

    Attributes:
        finite: (members,) bool, whether all actions so far were finite numbers.
    """

    def __init__(
        self,
        act: Act,
        members: int,
        device: torch.device,
        *,
        sampled: bool = False,
        slots: int | None = None,
        second: Tensor | None = None,
    ) -> None:
        self.names = tuple(f"member {index}" for index in range(members))
        self._act, self._sampled = act, sampled
        self._slots, self._second = slots or members, second
        self.finite = torch.ones(members, dtype=torch.bool, device=device)

    def sit(self, env: TensorGame, block: int, seed: int) -> Act:
        """See `Entrant.sit`."""
        members, begun = len(self.names), False
        # Blocks have the same numbers, so that a member's do not depend on its company.
        draw = block_uniforms(block, seed)
        draw_second = block_uniforms(block, derive_seed(seed, "second"))

        def uniforms(obs: Tensor) -> Tensor:
            columns = cast(Any, self._act).uniforms
            drawn = draw(obs, columns)
            if self._second is None:
                return drawn
            second = self._second.flatten().repeat_interleave(block)
            return where_rows(second, draw_second(obs, columns), drawn)

        def act(obs: Tensor, live: Tensor | None = None, legal: Legal | None = None) -> Tensor:
            nonlocal begun
            rows = len(obs)
            filled = partial(filled_up, rows=rows // members * self._slots)
            obs = filled(obs)
            if not begun:
                # Recurrent states may be left of an earlier evaluation.
                everybody = torch.ones(len(obs), dtype=torch.bool, device=obs.device)
                getattr(self._act, "done", lambda _: None)(everybody)
                begun = True
            given: dict[str, Any] = {}
            if legal is not None:
                given["legal"] = lambda chosen: filled(legal(chosen[:rows]), True)
            if live is not None:
                given["live"] = filled(live)
            if self._sampled:
                given["uniforms"] = filled(uniforms(obs[:rows]))
            actions = cast(Any, self._act)(obs, **given)[:rows]
            if not env.if_discrete:
                self.finite &= actions.isfinite().view(members, -1).all(1)
                actions = actions.double().nan_to_num(0.0).clamp(-1.0, 1.0)
            return env.decode(actions)

        return act


def judge_members(
    game: Game,
    params: Any,
    act: Act,
    members: int,
    games: int,
    seed: int,
    *,
    device: torch.device,
    ask: Callable[[], None],
    sampled: bool = False,
) -> EpisodeResults:
    """Play the members of a program against every scripted player, or uniform random play.

    Args:
        game: a game of two players.
        params: its parameters.
        act: acts for all members, rows grouped by member.
        members: number of members.
        games: games per member and opponent, rounded up to an even number: half of them at each
            seat, with the same deals. All members play the same games.
        seed: of the games.
        device: of the program.
        ask: called before every step; it may raise to stop.
        sampled: whether the members draw their actions, see `ActEntrant`.

    Returns:
        (members, all games) outcomes as returns, opponents one after the other; NaN for members
            whose actions were not finite.
    """
    own = ActEntrant(act, members, device, sampled=sampled)
    others = scripted_entrants(game, params)
    pairs = [(member, members + index) for member in range(members) for index in range(len(others))]
    deals = -(-games // 2)
    found = play_pairs(game, params, [own, *others], pairs, deals, seed, device=device, ask=ask)
    points = found.points.reshape(members, -1)
    finite = own.finite.cpu().numpy()
    return EpisodeResults(
        np.where(finite[:, None], points, np.nan), found.lengths.reshape(members, -1)
    )


def filled_up(tensor: Tensor, value: float = 0, *, rows: int) -> Tensor:
    """Return a tensor with as many rows, the last of which are this value."""
    if len(tensor) == rows:
        return tensor
    return torch.cat((tensor, tensor.new_full((rows - len(tensor), *tensor.shape[1:]), value)))


def judge_population(
    game: Game,
    params: Any,
    programs: Sequence[Act],
    slots: int,
    population: tuple[int, int],
    games: int,
    seed: int,
    *,
    device: torch.device,
    ask: Callable[[], None],
    sampled: bool = False,
) -> Floats:
    """Play every trial of a population against every other one, all of their games in one batch.

    A member plays against the members of the same seed. Every pair plays the same deals in both
    seatings, so that the mean over the population is exactly 0.5.

    Args:
        game: a game of two players.
        params: its parameters.
        programs: act for all members of all trials in order, `slots` members each.
        slots: members per program.
        population: number of trials, at least two, and members of each.
        games: least number of games of a member.
        seed: of all random numbers.
        device: of the programs.
        ask: called before every step; it may raise to stop.
        sampled: whether the members draw their actions, see `ActEntrant`.

    Returns:
        (trials,) mean points.
    """
    trials, each = population
    numbers = range(trials)
    # Ordered so that the pairs of a member are ordered by the other trial: it is the second player
    # in those with earlier trials.
    pairs = [
        (one * each + member, other * each + member)
        for one in numbers
        for other in numbers[one + 1 :]
        for member in range(each)
    ]
    opposed = torch.arange(trials - 1)
    second = torch.stack([opposed < trial for trial in numbers for _ in range(each)]).to(device)
    entrants = [
        ActEntrant(act, len(own), device, sampled=sampled, slots=slots, second=own)
        for act, own in zip(programs, torch.split(second, slots), strict=True)
    ]
    deals = -(-games // (2 * (trials - 1)))
    found = play_pairs(game, params, entrants, pairs, deals, seed, device=device, ask=ask)
    points = found.points.mean((1, 2)).reshape(-1, each).mean(1)
    table = np.zeros((trials, trials))
    first, later = np.triu_indices(trials, 1)
    table[first, later], table[later, first] = points, 1.0 - points
    return np.asarray(table.sum(1) / (trials - 1))


def opponent_metrics(names: Sequence[str], results: EpisodeResults) -> dict[str, float]:
    """Return shares of points, won and drawn games against every opponent, and won by seat.

    `won_first_seat` and `won_second_seat` are shares of all games in which the member had that
    seat. All actions were legal: play ends with an error otherwise.

    Args:
        names: of the opponents.
        results: as `judge_members` returns them.
    """
    metrics: dict[str, float] = {}
    for index, name in enumerate(names):
        points = np.split(results.returns, len(names), axis=1)[index]
        metrics[f"points_{name}"] = float(points.mean())
        metrics[f"won_{name}"] = float((points > 0.5).mean())
        metrics[f"drawn_{name}"] = float((points == 0.5).mean())
    if names:
        # The seat of the member is the fastest index of the games (`PairResults`).
        by_seat = (results.returns.reshape(-1, 2) > 0.5).mean(0)
        metrics["won_first_seat"], metrics["won_second_seat"] = map(float, by_seat)
    return metrics


def opponent_metric_names(names: Sequence[str]) -> list[str]:
    """Return the names of `opponent_metrics`. names: of the opponents."""
    own = [f"{what}_{name}" for name in names for what in ("points", "won", "drawn")]
    return [*own, "won_first_seat", "won_second_seat"]


def write_duels(
    folder: Path,
    game: Game,
    params: Any,
    members: Sequence[Member],
    seed: int,
    title: str,
    *,
    sampled: bool = False,
) -> None:
    """Play the league of a trial, and write `league.json`, `league.png` and `ratings.png`.

    Args:
        folder: of the trial.
        game: a game of two players.
        params: its parameters.
        members: of the trial.
        seed: of all random numbers.
        title: of the pictures.
        sampled: whether the members draw their actions.
    """
    players = [
        FrozenEntrant(f"seed {index}", FrozenPolicy([own]), sampled=sampled)
        for index, own in enumerate(members)
    ]
    duels = play_duels(game, params, players, LEAGUE_DEALS, seed)
    exact = exact_league(game, params, [*players, *scripted_entrants(game, params)])
    league = duel_report(duels, len(members), exact)
    write_atomic(folder / "league.json", json.dumps(league, indent=1))
    draw_duels(folder / "league.png", league, title)
    write_ratings(folder / "ratings.png", duels.ratings(), title)
