"""The kind of a study by its environment, and the checks of a request."""

from __future__ import annotations

from typing import cast

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.envs.support.errors import InputError
from sweepd.optimize.experiments.game_kind import GameKind
from sweepd.optimize.experiments.kind import StudyKind
from sweepd.optimize.experiments.market_kind import MarketKind
from sweepd.optimize.experiments.populations import check_population
from sweepd.optimize.experiments.request import Request
from sweepd.optimize.study.record.configurations import SEARCHES
from sweepd.optimize.study.record.stored import CRYPTO, StudySpec, objective_name
from sweepd.optimize.study.sampling.pruners import PRUNERS
from sweepd.optimize.study.sampling.samplers import AUTO, SAMPLERS
from sweepd.optimize.study.settings.setting import check_counts, declared, flag_of


def kind_of(environment: str) -> StudyKind[StudySpec]:
    """Return the kind of a study on this environment."""
    kind = MarketKind(environment) if environment == CRYPTO else GameKind(environment)
    # A spec of this environment is of the kind's own class.
    return cast(StudyKind[StudySpec], kind)


def misplaced_settings(kind: StudyKind[StudySpec]) -> frozenset[str]:
    """Return the names of the settings that have no effect in a kind of study."""
    other = GameKind if isinstance(kind, MarketKind) else MarketKind
    return frozenset(declared(other.settings))


def check_request(request: Request) -> None:
    """Raise InputError for the first setting that cannot be right, before any file is touched."""
    kind = kind_of(request.env)
    other = GameKind if isinstance(kind, MarketKind) else MarketKind
    # Looked up first: an unknown environment has no other settings to check.
    params = request.subject.env_params
    get_algorithm(request.algo).check_installed()
    # A flag without effect is refused, since its user expects one.
    misplaced = sorted(request.given & misplaced_settings(kind))
    if misplaced:
        raise InputError(
            f"{flag_of(misplaced[0])} is for {other.title}, and --env is {request.env}; leave it out"
        )
    for flag, value, allowed in (
        ("objective", objective_name(request.objective), kind.objectives),
        ("search", request.search, SEARCHES),
        ("sampler", request.sampler, (AUTO, *SAMPLERS)),
        ("pruner", request.pruner, PRUNERS),
    ):
        if value not in allowed:
            one_of = "one of " if len(allowed) > 1 else ""
            raise InputError(
                f"--{flag} {value!r} is not known; choose {one_of}{', '.join(allowed)}"
            )
    check_counts(request)
    if not 0 <= request.holdout < 0.9:
        raise InputError(f"--holdout {request.holdout} must be a share from 0 to below 0.9")
    if request.seed < 0:
        raise InputError(f"--seed {request.seed} must be at least 0")
    kind.check(request)
    check_population(request)
    try:
        params(**request.env_params)
    except TypeError as error:
        raise InputError(f"--env-param: {request.env} has no such parameter ({error})") from None
