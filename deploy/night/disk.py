"""The night's step `disk`: remove what nobody needs any more, and measure what is left.

Removed are bundles that no slot and no trader needs, the files of the trials but the best of the
slot's older nightly studies, and lines of accounts that retired long ago. Nothing of a trader that
runs is touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweepd.deploy.night.facts import STUDIES
from sweepd.deploy.night.records import NightStep, NightStore
from sweepd.deploy.night.shell import Context, Result
from sweepd.deploy.night.study import flag_words
from sweepd.deploy.registry.records import BUNDLES
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import clear_garbage
from sweepd.deploy.trading.live.thinning import thin_retired
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import folder_size


def disk(context: Context) -> Result:
    """Do the step; what an earlier attempt removed is found gone."""
    config, registry = context.config, context.registry
    clear_garbage(registry)
    thin_retired(registry.database, context.now())
    steps = NightStore(registry.database).steps(config.slot)
    thinned = [name for name in older_studies(steps, config.disk.studies) if _thin(context, name)]
    place = registry.folder.resolve()
    existing = next(one for one in (place, *place.parents) if one.is_dir())
    # What is left, not what was removed: before a kill, a part of it was removed.
    facts = {
        "studies": thinned,
        "kinds": _kinds(context, steps),
        "free": shutil.disk_usage(existing).free,
    }
    return Result("done", facts)


def older_studies(steps: Sequence[NightStep], newest: int) -> list[str]:
    """Return the nights' studies that are to be thinned and were not yet, oldest first.

    Args:
        steps: the steps of all nights of the slot, oldest first.
        newest: how many of the newest keep all of their files.
    """
    began = [row.facts["study"] for row in steps if row.step == "study" and "study" in row.facts]
    disks = (row.facts.get("studies", ()) for row in steps if row.step == "disk")
    thinned = {name for found in disks for name in found}
    return [one for one in began[: max(0, len(began) - newest)] if one not in thinned]


def _thin(context: Context, name: str) -> bool:
    """Thin a study; return whether that was possible."""
    study = context.config.study
    flags = {} if study is None else study.flags
    where: dict[str, Any] = {flag: flags[flag] for flag in ("storage", "runs_dir") if flag in flags}
    words = ["studies", "thin", name, *flag_words(where)]
    for trial in bundled_trials(context.registry, name):
        words += ["--keep", str(trial)]
    ended = context.commands.run("disk", words)
    if ended.code == InputError.exit_code:
        return False  # it was deleted, or a worker is at work on it
    if ended.code:
        raise RunError(ended.said or f"sweepd studies thin {name} ended with {ended.code}")
    return True


def bundled_trials(registry: Registry, study: str) -> list[int]:
    """Return the numbers of a study's trials that are bundles of the registry."""
    with registry.database.reading() as connection:
        found = BUNDLES.read(connection, BUNDLES.select(BUNDLES.c.study == study))
    return sorted({one.trial for one in found})


def _kinds(context: Context, steps: Sequence[NightStep]) -> Mapping[str, int]:
    """Return the bytes of what the nights and the trader keep, by kind."""
    config, registry = context.config, context.registry
    folders = {row.facts["folder"] for row in steps if "folder" in row.facts}
    found = {
        STUDIES: sum(folder_size(Path(one)) for one in folders),
        "bundles": folder_size(registry.bundles),
        "reports": folder_size(Path(config.report.folder)),
    }
    if config.bars is not None:
        found["bars"] = folder_size(Path(config.bars.dir))
    database = registry.database.url
    if database.get_backend_name() == "sqlite" and database.database:
        files = Path(database.database)
        found["registry"] = sum(
            one.stat().st_size for one in files.parent.glob(f"{files.name}*") if one.is_file()
        )
    return found
