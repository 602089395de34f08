"""The kind of a study by its environment, and the checks of a request."""

from __future__ import annotations

from typing import Any, cast

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import is_plugin
from sweepd.envs.support.validation import make_with
from sweepd.optimize.objectives.command.function import FunctionObjective
from sweepd.optimize.objectives.command.objective import CommandObjective
from sweepd.optimize.objectives.games.objective import GameObjective
from sweepd.optimize.objectives.judged import check_judged
from sweepd.optimize.objectives.market.objective import MarketObjective
from sweepd.optimize.objectives.members.objective import MemberObjective
from sweepd.optimize.objectives.objective import Objective
from sweepd.optimize.objectives.populations import check_population
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.record.configurations import SEARCHES
from sweepd.optimize.study.record.programs import is_command, is_function
from sweepd.optimize.study.record.specs import CRYPTO, StudySpec
from sweepd.optimize.study.sampling.pruners import PRUNERS, make_pruner
from sweepd.optimize.study.sampling.samplers import AUTO, SAMPLERS, make_sampler
from sweepd.optimize.study.settings.common import CommonSettings
from sweepd.optimize.study.settings.setting import check_counts, declared, flag_of
from sweepd.optimize.study.settings.study import StudySettings

KINDS: tuple[type[Objective[Any]], ...] = (MarketObjective, GameObjective, CommandObjective)


def objective_of(environment: str) -> Objective[StudySpec]:
    """Return the kind of a study on this environment."""
    if is_function(environment):
        kind: type[Objective[Any]] = FunctionObjective
    elif is_command(environment):
        kind = CommandObjective
    else:
        kind = MarketObjective if environment == CRYPTO else GameObjective
    # A spec of this environment is of the kind's own class.
    return cast(Objective[StudySpec], kind(environment))


def members_of(environment: str, what: str) -> MemberObjective[StudySpec]:
    """Return the kind of a study whose policies sweepd trains itself.

    Raises:
        InputError: it is another kind. what: what needs such a study, for the message.
    """
    kind = objective_of(environment)
    if not isinstance(kind, MemberObjective):
        raise InputError(f"{what} is not for {kind.title}, and --env is {environment}")
    return kind


def misplaced_settings(kind: Objective[StudySpec]) -> frozenset[str]:
    """Return the names of the settings that have no effect in a kind of study."""
    own = declared(CommonSettings).keys() | declared(kind.settings).keys()
    return frozenset(declared(StudySettings).keys() - own) | kind.without_effect


def check_request(request: Request) -> None:
    """Raise InputError for the first setting that cannot be right, before any file is touched."""
    kind = objective_of(request.env)
    # Looked up first: an unknown environment has no other settings to check.
    params = request.subject.env_params
    kind.check_installed(request.algo)
    # A flag without effect is refused, since its user expects one.
    misplaced = sorted(request.given & misplaced_settings(kind))
    if misplaced:
        others = [one.title for one in KINDS if misplaced[0] in declared(one.settings)]
        problem = f"is for {' and '.join(others)}" if others else f"has no effect on {kind.title}"
        raise InputError(
            f"{flag_of(misplaced[0])} {problem}, and --env is {request.env}; leave it out"
        )
    for flag, value, allowed in (
        ("objective", request.objective, kind.objectives),
        ("search", request.search, SEARCHES),
    ):
        if flag == "objective" and is_plugin(flag, value) and kind.own_objectives:
            continue  # checked by the kind
        if value not in allowed:
            one_of = "one of " if len(allowed) > 1 else ""
            problem = "is not known"
            if ":" in value:
                problem = f"is a function of episodes, and --env {request.env} is no game"
            raise InputError(f"--{flag} {value!r} {problem}; choose {one_of}{', '.join(allowed)}")
    # Those of other packages are made once, which refuses wrong arguments.
    if request.sampler not in (AUTO, *SAMPLERS):
        make_sampler(request.sampler, 0)
    if request.pruner not in PRUNERS:
        make_pruner(request.pruner, request.rungs)
    check_counts(request)
    if not 0 <= request.holdout < 0.9:
        raise InputError(f"--holdout {request.holdout} must be a share from 0 to below 0.9")
    if request.seed < 0:
        raise InputError(f"--seed {request.seed} must be at least 0")
    kind.check(request)
    check_population(request)
    make_with(params, request.env_params, f"--env-param: {request.env}")
    check_judged(request, kind)
