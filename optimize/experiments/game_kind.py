"""Studies on a game: settings and flags."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from envs.crypto.data.bars import Bars
from envs.games.game import Game
from envs.games.registry import get_game
from envs.support.errors import InputError
from envs.support.study_record import GameSpec
from optimize.experiments.games import GameExperiment
from optimize.experiments.kind import Say, StudyKind
from optimize.experiments.request import Request, check_count

# Words of Python that are not JSON: as text, "False" would be true.
PYTHON_WORDS = {"true": True, "false": False, "none": None}


class GameKind(StudyKind[GameSpec]):
    """Studies on a game: seeds as members, episodes as data."""

    flags = frozenset({"seeds", "episodes", "look_steps", "scenario", "env_param"})
    title = "games"
    default_space = "game"
    needs_data = False
    first_stage = False

    @property
    def objectives(self) -> tuple[str, ...]:
        """Points (outcomes) in games of two players against each other, else the return."""
        return ("return",) if self.game.versus is None else ("points",)

    @property
    def game(self) -> Game:
        """The game. Raises InputError for an unknown one."""
        return get_game(self.environment)

    def check(self, request: Request) -> None:
        if request.look_steps:
            check_count("--look-steps", request.look_steps, 10**6)
        scenario = request.env.get("scenario")
        if scenario is not None and scenario not in self.game.scenarios:
            known = ", ".join(self.game.scenarios) or "none for this game"
            raise InputError(f"--scenario {scenario!r} is not known; there are: {known}")

    def default_name(self, flags: Mapping[str, Any]) -> str:
        parts = [flags["env"], *([flags["scenario"]] if flags["scenario"] else [])]
        parts += [flags["algo"]] if flags["algo"] != "ppo" else []
        return re.sub(r"[^\w.+-]", "-", "-".join(parts))

    def env_settings(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        return game_settings(flags["scenario"], flags["env_param"] or ())

    def members(self, request: Request) -> int:
        return request.seeds

    def train_together(self, request: Request) -> bool:
        return not self.game.external and self.game.seats(self.game.params(**request.env)) > 1

    def env_unit(self, request: Request) -> int:
        return self.game.unit(self.game.params(**request.env))

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
            episodes=request.episodes,
            centred=True,
            look_steps=request.look_steps,
        )

    def measured_spec(self, spec: GameSpec, device: torch.device, say: Say) -> GameSpec:
        return dataclasses.replace(spec, look_steps=GameExperiment(spec, device, say).look.steps)

    def requested_fields(self, spec: GameSpec, request: Request) -> dict[str, Any]:
        names = {"seeds", "episodes"} | ({"look_steps"} if request.look_steps else set())
        asked = {name: getattr(request, name) for name in names & request.given}
        return asked | {"env": spec.env | request.env}

    def reproducing_flags(self, spec: GameSpec) -> list[tuple[str, Any]]:
        return [
            ("env", spec.environment),
            ("algo", spec.algorithm),
            ("seeds", spec.seeds),
            ("episodes", spec.episodes),
            ("look-steps", spec.look_steps),
            *(
                ("env-param", f"{name}={value if isinstance(value, str) else json.dumps(value)}")
                for name, value in spec.env.items()
            ),
        ]

    def make_experiment(
        self,
        spec: GameSpec,
        bars: Bars | None,  # noqa: ARG002
        device: torch.device,
        say: Say,
    ) -> GameExperiment:
        return GameExperiment(spec, device, say)


def game_settings(scenario: str | None, env_param: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a game. env_param: texts like NAME=VALUE."""
    settings: dict[str, Any] = {"scenario": scenario} if scenario else {}
    for text in env_param:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--env-param {text!r} is not valid: give NAME=VALUE, like length=0.7")
        try:
            # JSON, so that numbers and booleans have their types; anything else is text.
            settings[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            settings[name.strip()] = PYTHON_WORDS.get(value.lower(), value)
    return settings
