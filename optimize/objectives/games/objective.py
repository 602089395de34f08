"""Studies on a game: settings and flags."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.external.roles import FLAG as ROLES_FLAG
from sweepd.envs.external.roles import KEY as ROLES
from sweepd.envs.external.wrappers import WRAPPERS as OWN_WRAPPERS
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.external.wrapping import find_wrapper
from sweepd.envs.games.bucket_brigade.mixture import scenario_names
from sweepd.envs.games.curriculum import NO_OPPONENTS, PAST, Curriculum, Phase
from sweepd.envs.games.game import Game, is_population
from sweepd.envs.games.pairings import SAMPLED, is_versus, scripted_entrants
from sweepd.envs.games.registry import as_team, environment_plugin, get_game
from sweepd.envs.games.reward_sums import reward_sums
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import Plugin
from sweepd.optimize.objectives.games.curriculum import (
    LoadBundle,
    check_curriculum,
    find_bundles,
    spec_curriculum,
)
from sweepd.optimize.objectives.games.duels import opponent_metric_names
from sweepd.optimize.objectives.games.evaluation import EXACT_NUMBERS, NUMBERS
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.games.judging import TEAM, game_objective, objectives_of
from sweepd.optimize.objectives.games.pictures import draw_game
from sweepd.optimize.objectives.games.pilot import measure_episodes
from sweepd.optimize.objectives.games.roles import role_metric
from sweepd.optimize.objectives.members.objective import MemberObjective, choose_slots
from sweepd.optimize.objectives.objective import Say
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.fit import most_envs
from sweepd.optimize.study.record.configurations import RACE
from sweepd.optimize.study.record.specs import MEAN, GameSpec
from sweepd.optimize.study.settings.game import GameSettings
from sweepd.optimize.study.settings.setting import flag_of
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import space_source
from sweepd.optimize.study.space.search_space import SearchSpace

RACE_RUNGS = 10  # evaluations of a trial in a race
EPISODES = 32  # of an evaluation, where nothing else is asked for or measured
PAST_FLAGS = frozenset({"past_interval", "past_size"})


class GameObjective(MemberObjective[GameSpec]):
    """Studies on a game: seeds as members, episodes as data."""

    settings = GameSettings
    title = "games"
    own_objectives = True
    default_space = "game"
    needs_data = False
    first_stage = False

    @property
    def objectives(self) -> tuple[str, ...]:
        return objectives_of(self.game)

    @property
    def scenarios(self) -> tuple[str, ...]:
        return tuple(self.game.scenarios)

    @property
    def game(self) -> Game:
        """The game. Raises InputError for an unknown one."""
        return get_game(self.environment)

    def plugins(self, spec: GameSpec) -> Iterator[tuple[str, str, Plugin]]:
        env = environment_plugin(self.environment)
        if env is not None:
            yield "environment", self.environment, env
        judge = game_objective(self.game, spec.objective)
        if judge is not None:
            yield "objective", spec.objective, judge.plugin
        for text in spec.env.get(WRAPPERS, ()):
            wrapper = find_wrapper(text)
            if wrapper.name not in OWN_WRAPPERS:
                yield "wrapper", text, wrapper

    def check(self, request: Request) -> None:
        game_objective(self.game, request.objective)  # raises InputError
        for text in request.wrappers or ():
            if not self.game.foreign:
                raise InputError(
                    f"--wrapper {text} is for environments of others, such as gym:ID; --env "
                    f"{request.env} has none: leave it out"
                )
            find_wrapper(text)
        self._check_roles(request)
        if request.play == SAMPLED and not get_algorithm(request.algo).samples:
            raise InputError(
                f"--play sampled is for --algo ppo; --algo {request.algo} is judged as it acts "
                "after training: leave --play out"
            )
        if request.async_envs:
            self._check_async(request)
        if request.own_episodes and not self.one_player(request.env_params, request.algo):
            raise InputError(
                "--own-episodes is for games of one player that are trained; leave it out"
            )
        if request.evaluate_every and not self.trains(request.algo):
            raise InputError(
                f"--evaluate-every {request.evaluate_every} is for policies that are trained, and "
                f"--algo {request.algo} is evaluated once; leave it out"
            )
        scenario = request.env_params.get("scenario")
        names = [] if scenario is None else scenario_names(str(scenario))
        if unknown := [name for name in names if name not in self.scenarios]:
            known = ", ".join(self.scenarios) or "none for this game"
            raise InputError(f"--scenario {unknown[0]!r} is not known; there are: {known}")

    def _check_async(self, request: Request) -> None:
        asked = f"--async-envs {request.async_envs} is for"
        if self.game.make_ready is None:
            raise InputError(
                f"{asked} environments of others that are stepped one by one, such as gym:ID; all "
                f"those of --env {request.env} are stepped together: leave it out"
            )
        if not get_algorithm(request.algo).supports.async_envs:
            raise InputError(f"{asked} --algo ppo, not {request.algo}; leave it out")
        if request.roles is not None:
            raise InputError(f"{asked} one policy, not several of {ROLES_FLAG}; leave it out")

    def _check_roles(self, request: Request) -> None:
        """Raise InputError if --roles does not fit the environment, or the flags beside it."""
        if request.roles is None:
            if request.objective == TEAM:
                raise InputError("--objective team is for studies with --roles; leave it out")
            return
        if self.game.foreign and self.game.versus is not None:
            raise InputError(
                f"--env {request.env} is a game of two players; for {ROLES_FLAG}, give --env "
                f"{as_team(request.env)}, which has a row per agent"
            )
        if not self.game.foreign:
            raise InputError(
                f"{ROLES_FLAG} is for PettingZoo's environments (pettingzoo:MODULE or MODULE:NAME); "
                f"--env {request.env} has none: leave it out"
            )
        self.game.roles(self.game.params(**request.env_params))  # raises InputError
        if request.objective not in self.objectives:
            raise InputError(
                f"--objective {request.objective} is for policies that play alone; with "
                f"{ROLES_FLAG}, it is {' or '.join(self.objectives)}"
            )

    def number_names(self, request: Request) -> tuple[str, ...]:
        params = self.game.params(**request.env_params)
        if not is_versus(self.game, params):
            return *NUMBERS, *map(role_metric, self.game.roles(params).names)
        players = [name for one in scripted_entrants(self.game, params) for name in one.names]
        return *NUMBERS, *opponent_metric_names(players), *EXACT_NUMBERS

    def completed(self, request: Request, space: SearchSpace) -> Request:
        """Return the request with its curriculum, that of the flags or of the space, checked."""
        curriculum, own = request.curriculum, space.curriculum
        if curriculum is None and "opponents" not in request.given:
            curriculum = own
        # Flags replace the phases of an included space. A user's file is not contradicted silently.
        included = request.search_space in request.subject.presets
        if own and not included and (curriculum is None or curriculum.phases != own.phases):
            raise InputError(
                f"{space_source(request.search_space)} has [[phases]] that --phases or "
                "--opponents contradicts; leave one of them out"
            )
        past = {name: getattr(request, name) for name in PAST_FLAGS}
        past = {name: number for name, number in past.items() if number is not None}
        if past and (curriculum is None or PAST not in curriculum.opponents):
            raise InputError(
                f"{flag_of(next(iter(past)))} is for the opponent past, against which "
                "no phase is played; leave it out"
            )
        if curriculum is None:
            return request
        if request.async_envs:
            raise InputError(
                f"--async-envs {request.async_envs} has environments that step by themselves, and "
                "phases change and count all games of a member at once; leave one of them out"
            )
        if not self.trains(request.algo):
            raise InputError(
                f"opponents and phases are for policies that are trained, and --algo {request.algo} "
                "is not; leave --opponents, --phases and [[phases]] out"
            )
        curriculum = self._seated(dataclasses.replace(curriculum, **past), request.env_params)
        check_curriculum(self.game, curriculum, request.env_params)
        if curriculum.together and request.seeds < 2:
            raise InputError("the opponent others needs at least --seeds 2: members of one trial")
        for name, dimension in space.tables["env"].items():
            if dimension.value is None and all(name in phase.env for phase in curriculum.phases):
                raise InputError(
                    f"{space_source(request.search_space)}: [env] {name} would have no effect, "
                    "since every phase sets it; leave one of them out"
                )
        found = find_bundles(curriculum, self.environment, request.load_bundle)
        hashes = {name: bundle.hash for name, bundle in found.items()}
        curriculum = dataclasses.replace(curriculum, bundles=hashes)
        return dataclasses.replace(request, curriculum=curriculum)

    def _seated(self, curriculum: Curriculum, env_params: Mapping[str, Any]) -> Curriculum:
        """Return a curriculum in which every phase of a game of two has opponents."""
        versus = is_versus(self.game, self.game.params(**env_params))
        return curriculum.against_self() if versus else curriculum

    def default_name(self, settings: StudySettings) -> str:
        parts = [settings.env, *([settings.scenario] if settings.scenario else [])]
        parts += [settings.algo] if settings.algo != "ppo" else []
        return re.sub(r"[^\w.+-]", "-", "-".join(parts))

    def members(self, request: Request) -> int:
        return request.seeds * max(1, len(self._roles(request.env_params)))

    def _roles(self, env_params: Mapping[str, Any]) -> tuple[str, ...]:
        return self.game.roles(self.game.params(**env_params)).names

    def reads_images(self, env_params: Mapping[str, Any]) -> bool:
        params = self.game.params(**env_params)
        if self.game.described is not None:
            return self.game.described(params).spec.image_shape is not None
        env = self.game.make([params], 1, together=1, device="cpu")
        return env.spec.image_shape is not None

    def one_player(self, env_params: Mapping[str, Any], algorithm: str) -> bool:
        alone = self.game.seats(self.game.params(**env_params)) == 1
        return alone and get_algorithm(algorithm).trains

    def automatic_search(self, request: Request, space: SearchSpace) -> dict[str, Any]:
        """Return a race for one player, with what it was measured with, else the usual sampler.

        The race decides about seeds itself, and needs several evaluations near the end of the
        training.
        """
        if not self.one_player(request.env_params, request.algo):
            return super().automatic_search(request, space)
        own: dict[str, Any] = {"sampler": RACE, "pruner": "none", "seeds": 1}
        envs = request.n_envs or most_envs(request.budget, request.horizon, space.minibatches)
        if request.budget >= RACE_RUNGS * envs * request.horizon:
            own["rungs"] = RACE_RUNGS
        return own

    def train_together(self, request: Request) -> bool:
        others = request.curriculum is not None and request.curriculum.together
        params = self.game.params(**request.env_params)
        roles = bool(self.game.roles(params).names)
        return others or roles or is_population(self.game, self.game.seats(params))

    def env_unit(self, request: Request) -> int:
        return self.game.unit(self.game.params(**request.env_params))

    def make_spec(
        self,
        request: Request,
        common: Mapping[str, Any],
        max_lookback: int,  # noqa: ARG002
        bars: Bars | None,  # noqa: ARG002
    ) -> GameSpec:
        return GameSpec(
            **common,
            seeds=request.seeds,
            episodes=request.episodes or EPISODES,
            own_episodes=request.own_episodes,
            centred=True,
            running_scale=True,
            look_steps=request.look_steps,
            async_envs=request.async_envs,
            play=request.play,
            curriculum={} if request.curriculum is None else request.curriculum.to_dict(),
            average=MEAN,
            solved=self.game.solved if request.objective in self.objectives else None,
        )

    def curriculum(self, spec: GameSpec) -> Curriculum | None:
        return spec_curriculum(spec)

    def check_spec(self, spec: GameSpec) -> None:
        curriculum = spec_curriculum(spec)
        if curriculum is not None:
            curriculum.check_rollouts(spec.rollouts)

    def measured_spec(
        self,
        spec: GameSpec,
        request: Request,
        space: SearchSpace,
        bars: Bars | None,
        device: torch.device,
        say: Say,
    ) -> tuple[GameSpec, list[str]]:
        self._look_at_rewards(spec, say)
        experiment = GameExperiment(spec, device, say, request.load_bundle)
        # The range of scores and the score of a solved game are those of returns.
        scores = experiment.score_range if spec.objective in self.objectives else None
        spec = dataclasses.replace(spec, look_steps=experiment.look.steps, score_range=scores)
        return super().measured_spec(spec, request, space, bars, device, say)

    def _look_at_rewards(self, spec: GameSpec, say: Say) -> None:
        """Say whether a game of two of others is zero-sum; InputError if both share their rewards."""
        params = self.game.params(**spec.env)
        if not (self.game.foreign and is_versus(self.game, params)):
            return
        found = reward_sums(self.game, params)
        if found.shared:
            raise InputError(
                f"--env {spec.environment}: {found}; --env {as_team(spec.environment)} trains them "
                "as a team, whose return is the sum"
            )
        say(f"{spec.environment}: {found}")

    def piloted_spec(
        self, spec: GameSpec, request: Request, device: torch.device, say: Say
    ) -> tuple[GameSpec, list[str]]:
        if request.episodes or not self.one_player(spec.env, spec.algorithm):
            return spec, []
        spec, line = measure_episodes(spec, device, say)
        return spec, [line]

    def run_changes(self, spec: GameSpec, seeds: int, device: torch.device) -> dict[str, Any]:
        changes = {
            "seeds": seeds,
            "trials_per_batch": 1,
            "own_episodes": self.one_player(spec.env, spec.algorithm),
        }
        if seeds != spec.seeds:
            members = seeds * max(1, len(self._roles(spec.env)))
            changes["slots"] = choose_slots(members, device, together=True, trials=1)
        return changes

    def requested_fields(self, spec: GameSpec, request: Request) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        if request.curriculum is not None:
            # Bundles as they were found: a champion may have changed since then.
            found = {"bundles": spec.curriculum["bundles"]} if "bundles" in spec.curriculum else {}
            asked["curriculum"] = self._seated(request.curriculum, spec.env).to_dict() | found
        elif "opponents" in request.given:
            asked["curriculum"] = {}
        own = {name: getattr(request, name) for name in PAST_FLAGS & request.given}
        if own:
            asked["curriculum"] = asked.get("curriculum", spec.curriculum) | own
        return asked | {"env": spec.env | request.env_params}

    def reproducing_flags(self, spec: GameSpec) -> list[tuple[str, Any]]:
        params = (
            ("env-param", f"{name}={value if isinstance(value, str) else json.dumps(value)}")
            for name, value in spec.env.items()
            if name not in (WRAPPERS, ROLES)
        )
        wrappers = (("wrapper", text) for text in spec.env.get(WRAPPERS, ()))
        roles = [("roles", spec.env[ROLES])] if ROLES in spec.env else []
        return [*params, *wrappers, *roles, *self._curriculum_flags(spec)]

    def _curriculum_flags(self, spec: GameSpec) -> list[tuple[str, Any]]:
        curriculum = spec_curriculum(spec)
        if curriculum is None:
            return [] if self.game.versus is None else [("opponents", NO_OPPONENTS)]
        curriculum = curriculum.pinned()
        [first, *more] = curriculum.phases
        if more or first != Phase(opponents=first.opponents):
            flags: list[tuple[str, Any]] = [("phases", curriculum.to_json())]
        else:
            mixture = ",".join(f"{name}={share!r}" for name, share in first.opponents.items())
            flags = [("opponents", mixture)]
        if PAST in curriculum.opponents:
            flags += [("past-interval", curriculum.past_interval)]
            flags += [("past-size", curriculum.past_size)]
        return flags

    def draw(self, spec: GameSpec, folder: Path, title: str) -> None:
        draw_game(self.game, spec, folder, title)

    def make_experiment(
        self,
        spec: GameSpec,
        bars: Bars | None,  # noqa: ARG002
        device: torch.device,
        say: Say,
        load_bundle: LoadBundle | None = None,
    ) -> GameExperiment:
        return GameExperiment(spec, device, say, load_bundle)
