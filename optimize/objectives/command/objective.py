"""Studies of any program (`--env command:…`): settings and flags."""

from __future__ import annotations

import dataclasses
import math
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.command.run import CommandRun, draw_curves
from sweepd.optimize.objectives.command.words import check_names, check_program, split_words
from sweepd.optimize.objectives.objective import Objective, Say
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.record.configurations import RACE
from sweepd.optimize.study.record.programs import COMMAND, command_of
from sweepd.optimize.study.record.specs import CommandSpec
from sweepd.optimize.study.settings.command import CommandSettings
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import space_source
from sweepd.optimize.study.space.search_space import SearchSpace

SPACE_MISSING = (
    "--search-space is missing: name a TOML file with the command's parameters, such as\n"
    "    [params]\n"
    "    learning_rate = { low = 1e-5, high = 1e-2, log = true }"
)
TOGETHER = 4  # trials of a batch that are compared at their rungs


class CommandObjective(Objective[CommandSpec]):
    """Studies of a program: seeds as members, its reports as results."""

    settings = CommandSettings
    without_effect = frozenset(
        {"algo", "evaluate_every", "n_envs", "horizon", "slots"}
        | {"gpu", "threads", "precision", "demo", "smoke"}
    )
    title = "commands"
    objectives = ("value",)
    default_space = ""
    needs_data = False
    first_stage = False

    @property
    def command(self) -> str:
        """The words of the program, with names of parameters in braces."""
        return command_of(self.environment)

    def defaults(self, settings: StudySettings, given: frozenset[str]) -> dict[str, Any]:
        """Return what makes one rollout one step of the program, and a trial one rung."""
        return {
            "algo": COMMAND,
            "n_envs": 1,
            "horizon": 1,
            "threads": 1,
            "rungs": settings.rungs if "rungs" in given else 1,
        }

    def check(self, request: Request) -> None:
        self.check_command()
        if platform.system() != "Linux":
            raise InputError("--env command: needs Linux, on which a supervisor ends its programs")
        for name in ("job_memory", "job_minutes", "job_grace"):
            number = getattr(request, name)
            if not (math.isfinite(number) and number >= 0):
                raise InputError(f"--{name.replace('_', '-')} {number} must be a number from 0")

    def number_names(self, request: Request) -> None:  # noqa: ARG002
        return None

    def check_command(self) -> None:
        """Raise InputError if there is no such program."""
        check_program(self.command)

    def completed(self, request: Request, space: SearchSpace) -> Request:
        """Return the request without a pruner if there is nothing to prune at."""
        names = [dimension.name for dimension in space.dimensions]
        check_names(self.command, names, space_source(request.search_space))
        if request.rungs > 1 or "pruner" in request.given:
            return request
        return dataclasses.replace(request, pruner="none")

    def find_space(self, say: Say) -> str:  # noqa: ARG002
        """Raise InputError: the parameters of a program are not known."""
        raise InputError(SPACE_MISSING)

    def default_name(self, settings: StudySettings) -> str:  # noqa: ARG002
        """Return the name of the script, else that of the program."""
        program, *others = split_words(self.command)
        script = next((word for word in others if Path(word).is_file()), program)
        return re.sub(r"[^\w.+-]", "-", Path(script).stem).lstrip(".+-") or COMMAND

    def members(self, request: Request) -> int:
        return request.seeds

    def one_player(
        self,
        env_params: Mapping[str, Any],  # noqa: ARG002
        algorithm: str,  # noqa: ARG002
    ) -> bool:
        return True

    def automatic_search(
        self,
        request: Request,  # noqa: ARG002
        space: SearchSpace,  # noqa: ARG002
    ) -> dict[str, Any]:
        return {"sampler": RACE, "seeds": 1}

    def make_spec(
        self,
        request: Request,
        common: Mapping[str, Any],
        max_lookback: int,  # noqa: ARG002
        bars: Bars | None,  # noqa: ARG002
    ) -> CommandSpec:
        spec = CommandSpec(
            **{**common, "slots": 1},  # a program has one member
            seeds=request.seeds,
            job_memory=request.job_memory,
            job_minutes=request.job_minutes,
        )
        if request.trials_per_batch is not None:
            return spec
        # Without a comparison at rungs, a larger batch would only delay what the search learns.
        fewest = TOGETHER if request.rungs > 1 else 1
        trials = max(fewest, _jobs(request) // request.seeds)
        return dataclasses.replace(spec, trials_per_batch=min(trials, request.n_trials or trials))

    def measured_spec(
        self,
        spec: CommandSpec,
        request: Request,
        space: SearchSpace,
        bars: Bars | None,  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        say: Say,  # noqa: ARG002
    ) -> tuple[CommandSpec, list[str]]:
        """Return the spec as it is. Raises InputError for rungs of an unknown or missing budget."""
        budget = "the steps that the program reports at its end"
        if spec.rungs == 1 and spec.pruner != "none":
            raise InputError(
                f"--pruner {spec.pruner} needs --rungs of at least 2, and --budget, {budget}"
            )
        if spec.rungs > 1 and "budget" not in request.given | space.study.keys():
            raise InputError(
                f"--rungs {spec.rungs} needs --budget, {budget}: each rung is an equal part of them"
            )
        return spec, []

    def run_changes(
        self,
        spec: CommandSpec,  # noqa: ARG002
        seeds: int,
        device: torch.device,  # noqa: ARG002
    ) -> dict[str, Any]:
        return {"seeds": seeds, "trials_per_batch": 1}

    def draw(self, spec: CommandSpec, folder: Path, title: str) -> None:  # noqa: ARG002
        draw_curves(folder, title)

    def open(
        self,
        spec: CommandSpec,
        bars: Bars | None,  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        say: Say,  # noqa: ARG002
        request: Request,
    ) -> CommandRun:
        return CommandRun(spec, _jobs(request), request.job_grace)


def _jobs(request: Request) -> int:
    return request.jobs or max(1, torch.cuda.device_count())
