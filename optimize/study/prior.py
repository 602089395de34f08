"""What a new study learns from earlier ones (`--prior`), copied into its record.

The record is written when the study is created, so its decisions do not depend on what happens to
the earlier studies later:

    studies          per earlier study its name, its id, and the number of finished trials that the
                     knowledge costs: its own, and those that it was informed by
    configurations   at most `MOST` of them in all, see `Known`
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from optuna.trial import FrozenTrial

from sweepd.envs.crypto.data.timeframe import bars_between
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.configurations import RACE, Selection
from sweepd.optimize.study.record.spans import holdout_times, unseen_from
from sweepd.optimize.study.record.specs import CryptoSpec, StudySpec
from sweepd.optimize.study.sampling.prior import Known
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.spec import refuse_schedules
from sweepd.optimize.study.study import StudyHandle

MOST = 64  # configurations of all earlier studies together
FEWEST = 4  # of one study
MOST_STUDIES = 8


def open_earlier(storage: StudyStorage, names: Sequence[str]) -> list[StudyHandle]:
    """Open the studies of --prior.

    Raises:
        InputError: one does not exist or is named twice, or there are too many.
    """
    if len(names) > MOST_STUDIES:
        raise InputError(f"--prior is given {len(names)} times; at most {MOST_STUDIES} are allowed")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--prior {twice} is given twice")
    found = []
    for name in names:
        try:
            found.append(StudyHandle(storage, name))
        except InputError:
            raise InputError(
                f"--prior {name}: the database has no study of sweepd with this name; see "
                "sweepd studies list"
            ) from None
    return found


def make_prior(
    earlier: Sequence[StudyHandle], spec: StudySpec, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Return the record of a new study's prior; None without earlier studies.

    Args:
        earlier: the earlier studies.
        spec: the new study's spec.
        say: receives a line for each of them.

    Raises:
        InputError: one cannot be used for this study.
    """
    if not earlier:
        return None
    if spec.sampler != RACE:
        raise InputError(f"--prior needs --sampler race; this study has --sampler {spec.sampler}")
    space, studies = study_space(spec), []
    known: list[Known] = []
    for number, handle in enumerate(earlier, start=1):
        refuse_schedules(handle, f"--prior {handle.name}")
        _check_data(handle, spec)
        own, dropped = _configurations(handle, space, number)
        kept = strongest(own, MOST // len(earlier))
        known += kept
        studies.append(handle.as_source())
        say(
            f"prior {handle.name}: {len(kept)} of {len(own) + dropped} configurations are used; "
            f"{dropped} are outside of this study's search space"
        )
    configurations = [dataclasses.asdict(one) for one in known]
    return {"studies": studies, "configurations": configurations}


def refuse_other_prior(
    study: str, recorded: Mapping[str, Any] | None, names: Sequence[str], free: str
) -> None:
    """Raise InputError if an existing study was created with another prior; see `refuse_other`."""
    before = [] if recorded is None else [one["study"] for one in recorded["studies"]]
    if before != list(names):
        was = ", ".join(before) or "none"
        raise InputError(
            f"study {study!r} was created with --prior {was}, and now it is {', '.join(names)}; a "
            f"study's prior cannot change: leave the flag out, or make a study of its own with "
            f"--study-name {free}"
        )


def can_be_prior(handle: StudyHandle) -> bool:
    """Return whether a study has enough configurations for another one's prior."""
    if handle.changes_with:
        return False
    return len(handle.spec.selection.configurations(handle.judged())) >= FEWEST


def refuse_seen_holdout(
    handle: StudyHandle, spec: StudySpec, flag: str, *, fixed: bool = False
) -> None:
    """Raise InputError if an earlier study used bars of this one's hold-out, or later ones.

    What its trials led to would then be evaluated on bars that led to it. Tickers do not matter,
    since markets move together. On games, nothing is raised.

    Args:
        handle: the earlier study.
        spec: this study's spec.
        flag: flag and value that name the earlier study.
        fixed: whether this study exists, so that its hold-out cannot change.
    """
    before = handle.spec
    if not isinstance(spec, CryptoSpec) or not isinstance(before, CryptoSpec):
        return
    holdout, unseen = holdout_times(spec), unseen_from(before)
    if holdout is None or unseen <= holdout[0]:
        return
    advice = "leave it out"
    if not fixed:
        count = bars_between(spec.data.timeframe, unseen, holdout[1]) + 1
        # Rounded down, so that the share does not give one bar more.
        share = math.floor(1000 * max(0, count) / spec.data.bars) / 1000
        advice = f"use --holdout {share:g} or less" if share else advice
    begin, end = (f"{pd.Timestamp(at, unit='s'):%Y-%m-%d %H:%M}" for at in (holdout[0], unseen))
    raise InputError(
        f"{flag} used bars until {end} UTC, so it has seen a part of this study's hold-out, which "
        f"begins at {begin}; {advice}"
    )


def _check_data(handle: StudyHandle, spec: StudySpec) -> None:
    """Raise InputError if the earlier study knows what this one's gate judges by."""
    before = handle.spec
    if not isinstance(spec, CryptoSpec) or not isinstance(before, CryptoSpec):
        if type(spec) is not type(before):
            raise InputError(
                f"--prior {handle.name} is a study on {before.environment}, and this is one on "
                f"{spec.environment}: a market, a game and a program cannot inform each other"
            )
        return
    ours, theirs = (
        (", ".join(sorted(one.data.tickers)), one.data.timeframe) for one in (spec, before)
    )
    if ours != theirs:
        raise InputError(
            f"--prior {handle.name} is a study on {theirs[0]} ({theirs[1]}), and this one is on "
            f"{ours[0]} ({ours[1]}); on markets, only a study on the same tickers and timeframe "
            "can be a prior"
        )
    refuse_seen_holdout(handle, spec, f"--prior {handle.name}")


def _configurations(
    handle: StudyHandle, space: SearchSpace, number: int
) -> tuple[list[Known], int]:
    """Return a study's configurations that are in a space, and the number of the others."""
    drawn = [own.name for own in space.dimensions if own.value is None]
    present = {own.name for own in handle.space.dimensions}
    lacking = [name for name in drawn if name not in present]
    if lacking:
        raise InputError(
            f"--prior {handle.name} does not have the parameter {lacking[0]}, which this study "
            "searches; an earlier study needs all of its parameters"
        )
    own, dropped = known_trials(handle.spec.selection, handle.judged(), handle.space, space, number)
    if len(own) < FEWEST:
        raise InputError(
            f"--prior {handle.name} has {len(own)} complete configurations in this study's "
            f"search space ({dropped} are outside of it); a prior needs at least {FEWEST}"
        )
    return own, dropped


def known_trials(
    selection: Selection,
    trials: Iterable[FrozenTrial],
    before: SearchSpace,
    space: SearchSpace,
    number: int,
) -> tuple[list[Known], int]:
    """Return the configurations of trials that are in a space, and the number of the others.

    Args:
        selection: how the trials are compared.
        trials: the trials; only complete ones count.
        before: their search space.
        space: the present one, all of whose parameters they have.
        number: number of their study.
    """
    dimensions = {own.name: own for own in before.dimensions}
    drawn = [own.name for own in space.dimensions if own.value is None]
    known, dropped = [], 0
    # In the order of their first trials.
    for one in sorted(
        selection.configurations(trials), key=lambda c: min(t.number for t in c.trials)
    ):
        values = {name: dimensions[name].resolve(one.best_trial.params) for name in drawn}
        try:
            params = space.fixed_params(values)
        except InputError:
            dropped += 1
            continue
        known.append(Known(number, params, one.value, len(one.values)))
    return standardised(known), dropped


def standardised(known: Sequence[Known]) -> list[Known]:
    """Return a study's configurations with values of mean 0 and variance 1."""
    if not known:
        return []
    values = np.array([one.value for one in known])
    scaled = (values - values.mean()) / (float(values.std()) or 1.0)
    return [
        dataclasses.replace(one, value=float(value))
        for one, value in zip(known, scaled, strict=True)
    ]


def strongest(known: Sequence[Known], most: int) -> list[Known]:
    """Return at most that many: the best half, and others at even distances."""
    if len(known) <= most:
        return list(known)
    ranked = sorted(range(len(known)), key=lambda i: -known[i].value)
    kept = set(ranked[: most // 2])
    others = [i for i in range(len(known)) if i not in kept]
    count = most - len(kept)
    kept.update(others[int(k * len(others) / count)] for k in range(count))
    return [known[i] for i in sorted(kept)]
