"""The steps of a night that are about its study: begin, study and stage."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from sweepd.deploy.night.config import BarsPart, NightConfig, StudyPart
from sweepd.deploy.night.records import NightStep, NightStore
from sweepd.deploy.night.shell import Context, Result
from sweepd.deploy.promotion.studies import find_study
from sweepd.deploy.registry.records import BUNDLES, RegisteredBundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import folder_size
from sweepd.optimize.study.record.configurations import first_value
from sweepd.optimize.study.record.database import open_to_read, storage_url, study_exists
from sweepd.optimize.study.record.folder import RUNS
from sweepd.optimize.study.record.reader import StudyReader

GIGABYTE = 1e9
WEEK = 7 * 86_400.0  # seconds
CONTROL = 0  # number of the trial with the champion's parameters


# ---- the commands ----


def flag_words(flags: dict[str, Any]) -> list[str]:
    """Return flags as words of a command line; a list repeats its flag."""
    words = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            words += [flag] if one is True else [flag, str(one)]
    return words


def bars_words(bars: BarsPart | None) -> list[str]:
    """Return the flags that name a folder of bars."""
    if bars is None:
        return []
    tickers = ",".join(bars.tickers)
    return ["--data-dir", bars.dir, "--timeframe", bars.timeframe, "--tickers", tickers]


def train_words(config: NightConfig, name: str, first: Sequence[str]) -> list[str]:
    """Return `sweepd train` of a night.

    Args:
        config: its settings.
        name: of the study.
        first: its first trials, STUDY#TRIAL.
    """
    study = config.study
    assert study is not None
    words = ["train", "--study-name", name, "--n-trials", str(study.n_trials)]
    words += ["--no-auto-deploy", *flag_words(study.flags), *bars_words(config.bars)]
    if config.bars is not None:
        words += ["--holdout", "0"]  # bars that do not exist yet decide
    return words + [word for one in first for word in ("--try-first", one)]


def study_name(slot: str, night: str) -> str:
    """Return the name of a night's study, such as crypto-1h-20261128."""
    return f"{re.sub(r'[^A-Za-z0-9_.+-]', '-', slot)[:90].lstrip('.+-')}-{night}"


def _place(study: StudyPart) -> tuple[str | None, Path | None]:
    """Return the values of --storage and --runs-dir."""
    runs = study.flags.get("runs_dir")
    return study.flags.get("storage"), None if runs is None else Path(runs)


def _open(study: StudyPart, name: str) -> StudyReader | None:
    """Return a study, None if there is none of this name, or no database yet."""
    storage, runs = _place(study)
    try:
        database = open_to_read(storage_url(storage, runs))
    except InputError:
        return None
    return StudyReader(database, name) if study_exists(database, name) else None


def promote_words(config: NightConfig, name: str, *how: str) -> list[str]:
    """Return `sweepd promote --json` of a night's study. how: flags that say how far it goes."""
    assert config.study is not None
    words = ["promote", "--study-name", name, "--slot", config.slot, *how, "--json"]
    named = {k: v for k, v in config.study.flags.items() if k in ("storage", "runs_dir")}
    words += flag_words(named)
    return words + (["--data-dir", config.bars.dir] if config.bars is not None else [])


# ---- begin ----


def begin(context: Context) -> Result:
    """Fix the study's name, total, deadline and first trials, and look whether the disk suffices."""
    config, study = context.config, context.config.study
    assert study is not None
    runs = _place(study)[1]
    nights = NightStore(context.registry.database).steps(config.slot)
    folders = {row.facts["folder"]: row.facts["bytes"] for row in nights if "folder" in row.facts}
    used, last = sum(folder_size(Path(one)) for one in folders), list(folders.values())[-1:]
    free = shutil.disk_usage(_existing(runs or RUNS)).free
    facts = {
        "study": study_name(config.slot, context.night.night),
        "total": study.n_trials,
        "deadline": context.now() + study.hours * 3600.0,
        "used": used,
        "free": free,
    }
    if last and free < 2 * last[0]:
        reason = (
            f"{free / GIGABYTE:.2f} GB are free, less than twice the {last[0] / GIGABYTE:.2f} GB of "
            "the last night's study"
        )
        return Result("refused", facts | {"reason": reason})
    if used > config.disk.gb * GIGABYTE:
        reason = (
            f"the nights' studies use {used / GIGABYTE:.2f} GB, more than [disk] gb = "
            f"{config.disk.gb:g}: delete some (sweepd studies delete) or raise it"
        )
        return Result("refused", facts | {"reason": reason})
    control, why = _control(context, study)
    before = [row.facts["study"] for row in nights if row.step == "study" and row.outcome == "done"]
    best = _best(study, before[-1], study.enqueue) if before and study.enqueue else []
    first = [*([control] if control else []), *best]
    facts |= {"first": first, "control": control, "no control": why}
    return Result("done", facts | {"refit": control is not None and _refit_is_due(context, nights)})


def _control(context: Context, study: StudyPart) -> tuple[str | None, str]:
    """Return the trial of the slot's champion as STUDY#TRIAL, or None and why there is none."""
    champion = champion_of(context.registry, context.config.slot)
    if champion is None:
        return None, "the slot has no champion"
    found = _open(study, champion.study)
    if found is None or found.uid != champion.study_uid:
        return None, f"the champion's study {champion.study} is not in this night's database"
    if found.changes_with:
        return None, f"the champion's parameters changed in its training ({found.changes_with})"
    if not any(one.number == champion.trial for one in found.judged()):
        return None, f"trial {champion.trial} of {champion.study} is not complete any more"
    return f"{champion.study}#{champion.trial}", ""


def _refit_is_due(context: Context, rows: Sequence[NightStep]) -> bool:
    """Return whether the champion, or its last refit, is as old as [refit] weeks."""
    refit, champion = context.config.refit, champion_of(context.registry, context.config.slot)
    if refit is None or refit.weeks == 0 or champion is None:
        return False
    asked = [row.at for row in rows if row.step == "begin" and row.facts.get("refit")]
    newest = dt.datetime.fromisoformat(max([champion.at, *asked]))
    return context.now() >= newest.timestamp() + refit.weeks * WEEK


def champion_of(registry: Registry, slot: str) -> RegisteredBundle | None:
    """Return the record of a slot's champion, None without one."""
    champion = registry.slot(slot).champion
    with registry.database.reading() as connection:
        return None if champion is None else BUNDLES.get(connection, hash=champion)


def _best(study: StudyPart, name: str, count: int) -> list[str]:
    """Return the best trials of an earlier night as STUDY#TRIAL, without the control's."""
    found = _open(study, name)
    if found is None:
        return []
    configurations = found.spec.selection.configurations(found.judged())
    numbers = [
        one.best_trial.number
        for one in configurations
        if CONTROL not in {trial.number for trial in one.trials}
    ]
    return [f"{name}#{number}" for number in numbers[:count]]


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(one for one in (folder, *folder.resolve().parents) if one.is_dir())


# ---- study ----


def train(context: Context) -> Result:
    """Train the night's study until its total, or its deadline. It is never resumed after that."""
    config, study, began = context.config, context.config.study, context.rows["begin"].facts
    assert study is not None
    assert context.until is not None
    name, total = began["study"], began["total"]
    if context.now() < context.until:
        context.run("study", train_words(config, name, began["first"]))
    found = _open(study, name)
    if found is None:
        reason = "the study had not begun at the deadline"
        return Result("late", {"study": name, "finished": 0, "total": total, "reason": reason})
    finished = sum(trial.state.is_finished() for trial in found.trials())
    facts = {
        "study": name,
        "finished": finished,
        "complete": len(found.judged()),
        "total": total,
        "folder": str(found.run_dir.resolve()),
        "bytes": folder_size(found.run_dir),
    }
    if finished >= total:
        return Result("done", facts)
    if context.now() < context.until:
        raise RunError(f"the worker was stopped after {finished} of {total} trials")
    reason = f"{finished} of {total} trials were finished at the deadline"
    return Result("late", facts | {"reason": reason})


# ---- stage ----


def judge(context: Context) -> Result:
    """Judge the study's best trial by the first stage; nothing is written."""
    config, study, name = context.config, context.config.study, context.rows["study"].facts["study"]
    assert study is not None
    storage, runs = _place(study)
    # Games have no rules that only a seat in the arena needs.
    how = ["--first-stage"] if config.bars is not None else ["--arena", "--dry-run"]
    said = context.run_json("stage", promote_words(config, name, *how))
    candidate = said["candidates"][0] if said["candidates"] else None
    evaluated = [] if candidate is None else _evaluated(candidate["findings"])
    passes = bool(evaluated) and all(one["verdict"] not in ("fail", "defer") for one in evaluated)
    found = find_study(name, storage_url(storage, runs), runs)
    control = None
    if context.rows["begin"].facts["control"]:
        control = _objective(found.judged(), CONTROL)
    facts = {
        "study": name,
        "trial": said["trial"],
        "objective": None if candidate is None else candidate["objective"],
        "control": control,
        "passes": passes,
        "findings": evaluated,
        "how_far": said["how_far"],
        "power": said["power"],
        "reason": said["reason"],
    }
    return Result("done", facts)


def _evaluated(findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in findings if one["verdict"] != "not evaluated"]


def _objective(trials: Sequence[FrozenTrial], number: int) -> float | None:
    """Return the objective of a trial among these, None if it is not one of them."""
    return next((first_value(one) for one in trials if one.number == number), None)
