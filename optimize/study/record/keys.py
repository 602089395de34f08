"""The attributes of studies and trials that sweepd writes: their keys, and what some of them mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweepd.envs.support.intervals import Interval

# Study attributes.
SPEC_KEY = "sweepd:spec"  # `StudySpec` as JSON
# Random id that distinguishes a study from a later one with its name or its row id.
UID_KEY = "sweepd:uid"
FOLDER_KEY = "sweepd:folder"  # of the study's files, see `sweepd.optimize.study.record.folder`
FLAGS_KEY = "sweepd:flags"  # flags of the `sweepd train` command that created the study
CREATED_KEY = "sweepd:created"  # time of creation, ISO 8601, UTC
LEAGUE_REPORT = "league.json"  # in a study's folder: the league's players, points, equilibrium
# Of a training run: the trial that it repeats, and its weights. Of a fork: the trial that it
# continues, and from where.
ORIGIN_KEY = "sweepd:origin"
PRIOR_KEY = "sweepd:prior"  # earlier studies, and what the search learns from them
_SOURCE = "sweepd:source:"  # before the random id of an earlier study, see `source_key`
TOTAL_KEY = "sweepd:total"  # number of finished trials that the last worker was asked for
EVALUATE_KEY = "sweepd:evaluate_every"  # `--evaluate-every` of the last worker, where it was used
PAUSE_KEY = "sweepd:paused"  # present while the study is paused
THINNED_KEY = "sweepd:thinned"  # of which trials `sweepd studies thin` removed the files
ACTIONS_KEY = "sweepd:actions"  # what users did to the study, see `log_action`
# Trial attributes that are written on their own; all others are fields of `TrialRecord`.
REASON_KEY = "sweepd:reason"
CHECKPOINT_KEY = "sweepd:checkpoint"  # newest checkpoint: path, sha256, rung and rollouts
# Opponents of a trial's training from the study's league: the players and their shares.
LEAGUE_KEY = "sweepd:league"
# Of a member of a population: the weights that it copied, and its hyperparameters from then on, see
# `sweepd.optimize.study.sampling.evolution.Change`.
CHANGES_KEY = "sweepd:changes"
BLOCKS_KEY = "sweepd:rung_%_blocks"  # of a trial: a pattern for SQL, see `blocks_key`
ATTEMPTS_KEY = "sweepd:attempts"  # attempts that ended with the death of a worker
CMA_GENERATION_KEY = "sweepd:cma_generation"  # system attribute: generation of the CMA-ES sampler

PREFIX = "sweepd:"  # of every attribute


def source_key(uid: str) -> str:
    """Return the attribute of a study whose trials a space or enqueued parameters came from."""
    return f"{_SOURCE}{uid}"


def chosen_from(attributes: Mapping[str, Any]) -> int:
    """Return the number of finished trials of other studies that a study's parameters depend on.

    Args:
        attributes: of the study: a training run, one with a prior, or one with sources.
    """
    origin, prior = attributes.get(ORIGIN_KEY) or {}, attributes.get(PRIOR_KEY) or {}
    sources = [one for key, one in attributes.items() if key.startswith(_SOURCE)]
    finished: dict[str, int] = {}  # by the study's random id: a study counts once
    for study in (*prior.get("studies", ()), *sources):
        finished[study["uid"]] = max(finished.get(study["uid"], 0), int(study["finished"]))
    return int(origin.get("finished", 0)) + sum(finished.values())


def is_ours(attributes: Mapping[str, Any]) -> bool:
    """Return whether a finished trial with these attributes was finished by a worker of sweepd.

    A study is an ordinary Optuna study, to which any program can add trials with values of its
    own. Such trials are not judged.
    """
    return any(key.startswith(PREFIX) for key in attributes)


def rung_scores(attributes: Mapping[str, Any], rung: int) -> list[float]:
    """Return a trial's scores per member at a rung (1 …); empty where they are not recorded."""
    return list(attributes.get(rung_key(rung), ()))


def rung_key(rung: int) -> str:
    """Return the attribute of a trial's scores at a rung."""
    return f"{PREFIX}rung_{rung}_scores"


def fitness_key(rung: int) -> str:
    """Return the attribute of the fitness of a member of a population at a rung.

    It is `sweepd.optimize.study.sampling.evolution.Fitness` as JSON, in games of two seats.
    """
    return f"{PREFIX}rung_{rung}_fitness"


def blocks_key(rung: int) -> str:
    """Return the attribute of what is kept of a trial's episodes at a rung, see `block_means`.

    (members, blocks), at the rungs whose mean is the value of a trial in a race.
    """
    return BLOCKS_KEY.replace("%", str(rung))


def interval_key(rung: int) -> str:
    """Return the attribute of the interval of a trial's value at a rung, an `Interval` as JSON."""
    return f"{PREFIX}rung_{rung}_interval"


def rung_interval(attributes: Mapping[str, Any], rung: int) -> Interval | None:
    """Return the interval of a trial's value at a rung (1 …); None where it is not recorded."""
    found = attributes.get(interval_key(rung))
    return None if found is None else Interval.from_dict(found)
