"""Defaults of settings that depend on other settings, and the names of studies."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sweepd.envs.crypto.features import default_recipe
from sweepd.envs.games.curriculum import NO_OPPONENTS, Curriculum
from sweepd.envs.games.phase_files import read_opponents, read_phases
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.demo import preset_of
from sweepd.optimize.objectives.games.curriculum import LoadBundle
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import misplaced_settings, objective_of
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import NARROW, load_space, space_source

DATA_DIR_MISSING = (
    "--data-dir is missing: name a folder of bars (sweepd data download creates one), or use --demo"
)


def make_request(
    settings: StudySettings, given: frozenset[str], load_bundle: LoadBundle | None = None
) -> Request:
    """Return settings with the defaults that depend on others, before any automatic choice.

    Args:
        settings: all settings, presets applied.
        given: names of those that were set explicitly.
        load_bundle: finds champions that are opponents.
    """
    kind = objective_of(settings.env)
    known = vars(settings) | {
        "data_dir": settings.data_dir or Request.data_dir,
        "recipe": settings.recipe or default_recipe(settings.timeframe),
        "play": settings.play or Request.play,
        "search_space": settings.search_space or kind.default_space,
        "objective": settings.objective or kind.objectives[0],
        **kind.defaults(settings, given),
    }
    request = Request(
        **known, given=given, curriculum=_read_curriculum(settings), load_bundle=load_bundle
    )
    if not request.search_space or request.search_space.startswith(NARROW):
        return request
    defaults: dict[str, Any] = dict(load_space(request.search_space, request.subject).study)
    idle = sorted(defaults.keys() & misplaced_settings(kind))
    if idle:
        raise InputError(
            f"{space_source(request.search_space)}: [study] {idle[0]} has no effect on {kind.title}; leave it out"
        )
    chosen = given | preset_of(settings).keys()
    return dataclasses.replace(request, **{n: v for n, v in defaults.items() if n not in chosen})


def study_name(flags: StudySettings) -> str:
    """Return `--study-name`, or the default name.

    Raises:
        InputError: the name cannot name a directory.
    """
    name = flags.study_name or objective_of(flags.env).default_name(flags)
    if not re.fullmatch(r"[\w][\w.+-]{0,99}", name):
        raise InputError(
            f"--study-name {name!r} is not valid: use at most 100 letters, digits, - and _ (it "
            "also names a directory)"
        )
    return name


def flags_per_study(flags: StudySettings) -> list[StudySettings]:
    """Return the flags of each requested study: one, or one per scenario with `--scenario all`."""
    if flags.scenario != "all":
        return [flags]
    scenarios = objective_of(flags.env).scenarios
    if not scenarios:
        raise InputError(f"--scenario all: {flags.env} has no scenarios; leave it out")
    named = flags.study_name
    return [
        dataclasses.replace(
            flags, scenario=scenario, study_name=f"{named}-{scenario}" if named else None
        )
        for scenario in scenarios
    ]


def _read_curriculum(flags: StudySettings) -> Curriculum | None:
    """Return the phases of --phases or --opponents; None without opponents, or by default."""
    if flags.phases is not None and flags.opponents is not None:
        raise InputError(
            "--opponents and --phases exclude each other: every phase names its opponents"
        )
    if flags.opponents not in (None, NO_OPPONENTS):
        return read_opponents(flags.opponents)
    return None if flags.phases is None else read_phases(flags.phases)
