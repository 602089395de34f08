"""Studies on a game: seeds as members, judged by the returns of whole episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import parquet
from torch import Tensor

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.engine.acting import Actors
from sweepd.agents.engine.play_stats import play_names
from sweepd.agents.engine.program import Act
from sweepd.agents.networks.shape import PER_SEAT, SHARED, Shape
from sweepd.agents.policy.duels import FrozenEntrant
from sweepd.agents.policy.exact import nash_conv, plans
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.external.ready_vec_env import ReadyVecEnv
from sweepd.envs.external.role_rows import RoleRows
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.game import MakeGame, is_population
from sweepd.envs.games.game_tree import GameTree, game_tree, is_enumerable
from sweepd.envs.games.pairings import SAMPLED, block_uniforms, is_versus, scripted_entrants
from sweepd.envs.games.play import LONGEST, EpisodeResults, play_episodes
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.scaling import ObservationScale, random_play
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.games.curriculum import LoadBundle, spec_curriculum
from sweepd.optimize.objectives.games.duels import judge_members, judge_population
from sweepd.optimize.objectives.games.evaluation import GameEvaluation, judge_episodes
from sweepd.optimize.objectives.games.judging import TEAM, Infos, game_objective
from sweepd.optimize.objectives.games.league import StudyLeague
from sweepd.optimize.objectives.games.phased_training import LeaguePlayer, PhasedTraining, phases_of
from sweepd.optimize.objectives.games.phases import begun_phases, inherited
from sweepd.optimize.objectives.games.pictures import has_league
from sweepd.optimize.objectives.games.roles import (
    beside_random,
    judged_rows,
    of_first,
    of_team,
    role_returns,
)
from sweepd.optimize.objectives.games.step_record import NOTE as STEPS_NOTE
from sweepd.optimize.objectives.games.step_record import read_steps, write_steps
from sweepd.optimize.objectives.members.experiment import NO_SHAPE, Experiment
from sweepd.optimize.study.checkpoint import State
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.sampling.evolution import Fitness
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import StudyHandle

LOOK_ENVS = 16  # environments of the random play that measures the scale of observations
_looks: dict[tuple[Any, ...], tuple[ObservationScale, ...]] = {}  # the last one
_Row = tuple[NDArray[np.float64], NDArray[np.int64]]  # returns and lengths of a member's episodes
ENDLESS_NOTE = (
    f"no limit of steps is known: an episode that has not ended after {LONGEST:,} steps is "
    "truncated for evaluation"
)


class GameExperiment(Experiment):
    """Copies of one game.

    Raises:
        InputError: the game is unknown, or the algorithm does not support its actions.
    """

    spec: GameSpec

    def __init__(
        self,
        spec: GameSpec,
        device: torch.device,
        say: Callable[[str], None] = lambda _: None,
        load_bundle: LoadBundle | None = None,
    ) -> None:
        """Create the experiment. Random play may measure the scale of observations.

        Args:
            spec: the study's spec.
            device: where training runs.
            say: receives a line before what takes long.
            load_bundle: finds champions that are opponents.
        """
        super().__init__(spec, device)
        self.game = get_game(spec.environment)
        params = self.game.params(**spec.env)
        self.seats, self.unit = self.game.seats(params), self.game.unit(params)
        self.roles = self.game.roles(params).names
        # Players of a game of two that members are judged against.
        self.opponents: tuple[str, ...] = ()
        if is_versus(self.game, params):
            entrants = scripted_entrants(self.game, params)
            self.opponents = tuple(name for entrant in entrants for name in entrant.names)
        curriculum = spec_curriculum(spec)
        # Members of a game with several players learn against each other, in one environment.
        others = curriculum is not None and curriculum.together
        population = others or is_population(self.game, self.seats)
        self.together = len(self.roles) or (spec.seeds if population else 1)
        self.envs_per_row = max(1, spec.async_envs)
        if spec.slots % self.together:
            which = "(--roles)" if self.roles else "(--seeds)"
            raise InputError(
                f"--slots {spec.slots} is not a multiple of the {self.together} members of a trial "
                f"{which}, which play with each other"
            )
        # On the CPU on every machine, so that the scale of observations is the same.
        env = self._make(len(self.roles) or 1, LOOK_ENVS, device=torch.device("cpu"))
        check_algorithm(spec.algorithm, spec.environment, env)
        _check_networks(spec, env)
        self._limit = env.max_step
        # Points of a game against an opponent are from 0 to 1.
        self.score_range = (0.0, 1.0) if self.opponents else env.score_range
        self._objective = game_objective(self.game, spec.objective)
        self._phased: PhasedTraining | None = None
        if curriculum is not None:
            make = partial(self._make, together=self.together)
            self._phased = PhasedTraining(spec, curriculum, env, device, load_bundle, make)
        if self.algorithm.play:
            versus = self._phased is not None and self._phased.versus
            self.curves += play_names(env, opponents=versus)
        self._endless = env.max_step >= LONGEST
        self._scales = self._looks(env, say)  # of each role
        self.look = self._scales[0]
        env.close()
        self._judging: GameEnv | None = None
        self._sampled = spec.play == SAMPLED
        # An objective of the user's own is no share of points, and is followed alone.
        self.compares = bool(self.opponents) and self._objective is None

    @cached_property
    def _tree(self) -> GameTree | None:
        """The enumerated game; None for games that do not list their deals."""
        params = self.game.params(**self.spec.env)
        return game_tree(self.game, params) if is_enumerable(self.game, params) else None

    def _looks(self, env: GameEnv, say: Callable[[str], None]) -> tuple[ObservationScale, ...]:
        """Return the scale of observations by random play, of each role; cached in the process."""
        spec = self.spec
        own = (spec.environment, repr(spec.env), self.algorithm.supports.masks, spec.seed)
        # A new study creates several experiments: the first measures with look_steps 0 (automatic),
        # the later ones have the number of steps that was measured.
        known = _looks.get((*own, spec.look_steps))
        if known is not None:
            return known
        if isinstance(env, ExternalVecEnv | RoleRows):
            _check_conformance(spec.environment, env, say)
        seed = derive_seed(spec.seed, "normaliser")
        first = env.envs_per_member
        row = torch.arange(env.num_envs)
        looks: list[ObservationScale] = []
        for role in range(len(self.roles) or 1):
            steps = looks[0].steps if looks else spec.look_steps or None
            rows = row // first == role if self.roles else None
            looks.append(random_play(env, seed, steps=steps, say=say, rows=rows))
        _looks.clear()
        _looks[(*own, looks[0].steps)] = tuple(looks)
        return tuple(looks)

    def _make(
        self,
        members: int,
        num_envs: int,
        together: int = 1,
        device: torch.device | None = None,
        make: MakeGame | None = None,
    ) -> GameEnv:
        params = self.game.params(**self.spec.env)
        env = (make or self.game.make)(
            [params] * members, num_envs, together=together, device=device or self.device
        )
        if not self.algorithm.supports.masks and isinstance(env, ExternalVecEnv):
            env.ignore_advice()
        return env

    @property
    def members(self) -> int:
        return self.spec.seeds * max(1, len(self.roles))

    def env_params(self, settings: Settings) -> Any:
        return self.game.params(**self.env_settings(settings))

    def training_env(
        self, slots: int, num_envs: int, shape: Mapping[str, Any] = NO_SHAPE
    ) -> VecEnv:
        env: GameEnv
        if self.spec.async_envs:
            env = self._make(slots, num_envs * self.envs_per_row, make=self.game.make_ready)
        elif self._phased is None:
            env = self._make(slots, num_envs, self.together)
        else:
            env = self._phased.make(slots, num_envs, shape)
        env.reset([0] * slots)
        return env

    def seat(
        self,
        env: Any,
        slot: int,
        member: int,  # noqa: ARG002
        settings: Settings,
        state: State | None = None,
    ) -> None:
        if self._phased is None:
            env.configure_member(slot, self.env_params(settings))
        else:
            self._phased.seat(env, slot, settings.env, state)

    def repeat(self, env: ReadyVecEnv, slot: int, record: NDArray[np.int32]) -> None:
        """See `Experiment.repeat`. record: (rollouts, environments), the steps of each."""
        env.repeat_steps(slot, record)

    def take_changes(self, env: Any) -> list[tuple[int, str]]:
        return [] if self._phased is None else phases_of(env).take_changes()

    def league(self, handle: StudyHandle, say: Callable[[str], None]) -> StudyLeague | None:
        if self._phased is None or not self._phased.curriculum.has_league:
            return None
        return StudyLeague(handle, self.game, self._phased.meet, say)

    def meet(self, league: Mapping[str, LeaguePlayer]) -> None:
        """Set the league's players in training environments made from now on.

        Only for studies with a league. See `PhasedTraining.meet`.
        """
        assert self._phased is not None
        self._phased.meet(league)

    def phases_begun(self, states: Sequence[State | None]) -> list[list[int]] | None:
        return None if self._phased is None else [begun_phases(state) for state in states]

    def normaliser(self, member: int, settings: Settings) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return mean and deviation of random play, with which all members (of a role) start."""
        look = self._scales[member % len(self._scales)]
        return look.avg, look.std

    def shape(self, settings: Settings, env: VecEnv, slots: int) -> Shape:
        """See `Experiment.shape`. Scales that were measured in play follow the members' own play.

        Those of bytes do not: a rollout keeps bytes, which have no running statistics.
        """
        shape = super().shape(settings, env, slots)
        follows = self.spec.running_scale and self.algorithm.supports.running_scale
        measured = self.look.rows > 0 and shape.torch_dtype != torch.uint8
        return replace(shape, running_scale=follows and measured, async_envs=self.spec.async_envs)

    def evaluation_share(self, rung: int) -> float:
        """See `Experiment.evaluation_share`: an eighth where the search does not use the result."""
        return 1.0 if self.opponents or self.spec.decides(rung) else 0.125

    def _episodes(self, rung: int) -> int:
        return max(1, round(self.evaluation_share(rung) * self.spec.episodes))

    def evaluate(
        self,
        settings: Sequence[Settings],
        rungs: Sequence[int],
        programs: Sequence[Act],
        slots: int,
        ask: Callable[[], None],
    ) -> list[GameEvaluation | None]:
        """Evaluate one program after the other.

        Every member plays the same episodes (fresh seeds: their own) with the study's own
        parameters, but only the first of them at a rung that the search does not use. A trial's
        `[env]` parameters are for training only. In a game of two players, the opponents are the
        game's scripted players, and returns are outcomes. Random numbers of sampled play come from
        the study's seed, and are the same for all members that play the same episodes.
        """
        count = len(settings) * self.members
        wanted = [self._episodes(rung) for rung in rungs for _ in range(self.members)]
        played, judged, infos = [], list[EpisodeResults](), list[Infos]()
        # One program at a time, so rounding does not depend on how many there are: no dummies.
        for index, act in enumerate(programs[: -(-count // slots)]):
            here = min(slots, count - index * slots)
            if self.opponents:
                played.append(self._judge_versus(act, slots, here, ask))
                continue
            env = self._judging_env(slots)
            self._begin_episodes(env, act, range(index * slots, index * slots + here))
            done = getattr(act, "done", lambda _: None)
            acting = self._acting(act, env, index)
            episodes = wanted[index * slots :][:here]
            if isinstance(env, RoleRows):
                played.append(play_episodes(env, acting, env.roles.rows, ask, done, episodes))
                if self.spec.objective != TEAM:
                    judged.append(self._judge_first(act, env, index, ask, episodes))
                continue
            played.append(play_episodes(env, acting, self.seats, ask, done, episodes))
            if self._objective is not None:
                infos += [env.infos(slot) for slot in range(here)]
        rows = [own for part in played for own in zip(part.returns, part.lengths, strict=True)]
        firsts = [own for part in judged for own in zip(part.returns, part.lengths, strict=True)]
        found = []
        for trial, rung in enumerate(rungs):
            ours = slice(trial * self.members, (trial + 1) * self.members)
            count = len(rows[ours][0][0]) if self.opponents else self._episodes(rung)
            results = _joined(rows[ours], count)
            if self.roles:
                found.append(self._judge_roles(results, firsts[ours], count))
                continue
            said = [one[:count] for one in infos[ours]]
            how = (self.opponents, self._limit, self.spec, self._objective)
            found.append(judge_episodes(results, *how, said))
        return found

    def _begin_episodes(self, env: GameEnv, act: Act, members: range) -> None:
        """Begin the episodes of a program's members."""
        for slot, member in enumerate(members):
            env.reset_member(slot, self._episode_seed(member))
        if self._objective is not None:
            env.keep_infos()
        getattr(act, "begin", lambda _: None)(env)

    def _judge_first(
        self, act: Act, env: RoleRows, program: int, ask: Callable[[], None], episodes: list[int]
    ) -> EpisodeResults:
        """Play the members of a program again, the first role while all others play at random."""
        self._begin_episodes(env, act, range(len(episodes)))
        seed = derive_seed(self.spec.seed, "evaluation", "random")
        acting = beside_random(self._acting(act, env, program), env, seed)
        done, counts = getattr(act, "done", lambda _: None), judged_rows(env)
        return play_episodes(env, acting, env.roles.rows, ask, done, episodes, counts)

    def _judge_roles(
        self, played: EpisodeResults, firsts: list[_Row], count: int
    ) -> GameEvaluation | None:
        """Judge a trial by its roles. firsts: of its members, where the first role was judged."""
        team = self.spec.objective == TEAM
        results = of_team(self.roles, played)
        if not np.isfinite(results.returns).all():  # of any role
            return None
        if not team:
            results = of_first(self.roles, _joined(firsts, count))
        found = judge_episodes(results, (), self._limit, self.spec)
        return None if found is None else replace(found, roles=role_returns(self.roles, played))

    def _episode_seed(self, member: int) -> int:
        """Return the seed of a member's episodes: the same for all members and trials.

        Fresh seeds play episodes of their own.
        """
        own = (member % self.members,) if self.spec.own_episodes else ()
        return derive_seed(self.spec.seed, "evaluation", *own)

    def _acting(self, act: Act, env: GameEnv, program: int) -> Act:
        """Return how the members of a program (0 …) act in an evaluation, from observations alone."""
        recurrent = isinstance(act, Actors) and bool(act.shape.recurrent)
        waits = recurrent and env.spec.has_absent_agents
        # Members, or the groups of all roles, are blocks of rows with the same numbers (see
        # `block_uniforms`), unless they play episodes of their own.
        own, group = self.spec.own_episodes, env.envs_per_member * (len(self.roles) or 1)
        block, names = (env.num_envs, (program,)) if own else (group, ())
        draw = block_uniforms(block, derive_seed(self.spec.seed, "evaluation", "play", *names))

        def acting(obs: Tensor) -> Tensor:
            given: dict[str, Any] = {}
            if env.spec.masked:
                given["legal"] = env.action_mask
            if waits:  # the state of an absent agent
                given["live"] = env.present()
            if self._sampled:
                given["uniforms"] = draw(obs, cast(Any, act).uniforms)
            return cast(Tensor, cast(Any, act)(obs, **given))

        return acting

    def _judge_versus(
        self, act: Act, slots: int, here: int, ask: Callable[[], None]
    ) -> EpisodeResults:
        """Play the first `here` of a program's members against the opponents."""
        params = self.game.params(**self.spec.env)
        seed, games = derive_seed(self.spec.seed, "evaluation"), self.spec.episodes
        played = judge_members(
            self.game,
            params,
            act,
            slots,
            games,
            seed,
            device=self.device,
            ask=ask,
            sampled=self._sampled,
        )
        return EpisodeResults(played.returns[:here], played.lengths[:here])

    def inherit(self, own: State, source: State) -> State:
        return own if self._phased is None else inherited(own, source)

    def fitness(
        self,
        evaluations: Sequence[Any],
        rung: int,
        programs: Sequence[Act],
        slots: int,
        ask: Callable[[], None],
    ) -> list[Fitness]:
        """See `Experiment.fitness`: points against each other and against the scripted players.

        In all, a member plays about as many games against the population as against the scripted
        players in its evaluation. The deals are the same for all members, and others at every rung.
        """
        params = self.game.params(**self.spec.env)
        points = judge_population(
            self.game,
            params,
            programs,
            slots,
            (len(evaluations), self.members),
            self.spec.episodes * len(self.opponents),
            derive_seed(self.spec.seed, "population", rung),
            device=self.device,
            ask=ask,
            sampled=self._sampled,
        )
        anchored = bool(self.game.scripted(params))
        return [
            Fitness(float(own), evaluation.value if anchored else None)
            for own, evaluation in zip(points, evaluations, strict=True)
        ]

    def with_exact(
        self, evaluation: GameEvaluation, members: Callable[[], Sequence[Member]]
    ) -> GameEvaluation:
        """See `Experiment.with_exact`: the NashConv of every member."""
        if self._tree is None:
            return evaluation
        found = tuple(self._nash_conv(self._tree, own) for own in members())
        return replace(evaluation, nash_conv=found)

    def _nash_conv(self, tree: GameTree, actor: Member) -> float:
        player = FrozenEntrant("member", FrozenPolicy([actor]))
        return nash_conv(tree, plans(tree, player.behaviours()[self.spec.play]))

    def _judging_env(self, slots: int) -> GameEnv:
        """Return the environment for evaluations; cached, since some take long to create."""
        if self._judging is None or self._judging.num_members != slots:
            self._judging = self._make(slots, self.spec.episodes)
        return self._judging

    # -- output

    def describe(self) -> list[str]:
        spec = self.spec
        players = f", {self.seats} players" if self.seats > 1 else ""
        if self.roles:
            players += f", one policy for each of the roles {', '.join(self.roles)}; "
            players += (
                "a trial's value is the sum of their returns"
                if self.spec.objective == TEAM
                else f"a trial's value is the return of {self.roles[0]} while all others play at random"
            )
        elif self.seats > 1 and self.game.external:
            players += ", all of them one policy; a game's return is the sum over them"
        together = ", which learn by playing with each other" if self.together > 1 else ""
        against = f" per opponent ({', '.join(self.opponents)})" if self.opponents else ""
        against += ", in sampled play" if self._sampled else ""
        return [
            f"game: {spec.game}{players}; algorithm {spec.algorithm}",
            f"seeds: {counted(self.members, 'member')} per trial{together}, each judged by "
            f"{counted(spec.episodes, 'episode')}{against}"
            f"{', other ones for every seed' if spec.own_episodes else ''}",
            *([STEPS_NOTE] if spec.async_envs > 1 else []),
            *([] if self._phased is None else self._phased.curriculum.describe()),
            *([str(self.look)] if self.look.rows else []),
            *([ENDLESS_NOTE + self._how_to_limit] if self._endless else []),
        ]

    @property
    def _how_to_limit(self) -> str:
        gym = self.spec.environment.startswith("gym:")
        return "; --env-param max_episode_steps=1000 sets a limit" if gym else ""

    @property
    def published(self) -> tuple[str, ...]:
        """With the league of the trial's members if the game has several players."""
        league = ("league.png", "league.json") if has_league(self.game, self.spec) else ()
        ratings = ("ratings.png",) if league and self.opponents else ()
        return ("returns.png", *league, *ratings, "episodes.parquet")

    def write(self, folder: Path, evaluation: GameEvaluation) -> None:
        table = episode_table(evaluation.episodes)
        write_atomic(folder / "episodes.parquet", lambda path: parquet.write_table(table, path))
        own = evaluation.return_interval
        metrics = evaluation.metrics() | {"resampled": own.resampled, "interval": own.method}
        metrics |= {} if evaluation.warning is None else {"warning": evaluation.warning}
        write_atomic(folder / "metrics.json", json.dumps(metrics, indent=1))

    def write_record(self, folder: Path, states: Sequence[State | None]) -> None:
        """See `Experiment.write_record`: the steps of environments, where timing decides them."""
        if self.spec.async_envs > 1:
            write_steps(folder, states)

    def read_record(self, folder: Path) -> list[NDArray[np.int32]]:
        """See `Experiment.read_record`."""
        return read_steps(folder, self.members) if self.spec.async_envs > 1 else []


def _joined(rows: Sequence[_Row], count: int) -> EpisodeResults:
    """Return the first `count` episodes of members' returns and lengths."""
    returns, lengths = (np.stack(part)[:, :count] for part in zip(*rows, strict=True))
    return EpisodeResults(returns, lengths)


def check_algorithm(name: str, environment: str, env: VecEnv) -> None:
    """Raise InputError if an algorithm cannot train in an environment.

    Args:
        name: of the algorithm.
        environment: name of the environment.
        env: the environment.
    """
    algorithm = get_algorithm(name)
    if algorithm.games and environment not in algorithm.games:
        raise InputError(
            f"--algo {name} plays {', '.join(algorithm.games)} alone, not --env {environment}; "
            "choose another algorithm"
        )
    kind = "discrete" if env.if_discrete else "continuous"
    if not getattr(algorithm, kind):
        raise InputError(
            f"--algo {name} does not support the {kind} actions of --env {environment}; choose "
            "another algorithm"
        )
    algorithm.supports.check_env(f"--algo {name}", env)


def _check_networks(spec: GameSpec, env: GameEnv) -> None:
    """Raise InputError if the search space has networks that cannot learn the game.

    Args:
        spec: of the study.
        env: an environment without opponents.
    """
    space = study_space(spec)
    policies = space.tables["shape"].get("policies")
    if policies is None or PER_SEAT not in policies.values:
        return
    if env.spec.seat_column is None:
        raise InputError(
            f"[shape] policies = {PER_SEAT!r} needs a game in turns whose observations tell the "
            f"seat (seat_column), and --env {spec.environment} has none; use {SHARED!r}"
        )
    if space.recurrent:
        raise InputError(
            f"[shape] policies = {PER_SEAT!r} and recurrent networks: a recurrent member has one "
            f"policy for both seats; use policies = {SHARED!r} or recurrent = ''"
        )


def _check_conformance(
    name: str, env: ExternalVecEnv | RoleRows, say: Callable[[str], None]
) -> None:
    """Refuse an environment that returns what its spaces do not have; warn if seeds do nothing."""
    found = env.conformance()
    for subject, problem in found.problems.items():
        raise InputError(f"--env {name}: {subject}: {problem}")
    if found.repeatable:
        say(f"warning: {name}: {found.repeatable}")
    if found.apart and isinstance(env, ExternalVecEnv):
        say(f"{name}: {found.apart}")


def episode_table(episodes: EpisodeResults) -> pa.Table:
    """Return a table with the columns seed, episode, return and length."""
    seeds, count = episodes.returns.shape
    return pa.table(
        {
            "seed": np.repeat(np.arange(seeds), count),
            "episode": np.tile(np.arange(count), seeds),
            "return": episodes.returns.reshape(-1),
            "length": episodes.lengths.reshape(-1),
        }
    )
