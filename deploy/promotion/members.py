"""The members of a trial, read to act in Python."""

from __future__ import annotations

from optuna.trial import FrozenTrial

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.policy.members import Member, read_members
from sweepd.deploy.promotion.studies import GateStudy, scored_weights
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.trials import TrialRecord


def trial_members(study: GateStudy, trial: FrozenTrial) -> list[Member]:
    """Return the weights of a trial's members.

    Raises:
        InputError: its algorithm has no network that can act alone, or its weights are not the bytes
            that were scored.
    """
    algorithm = study.spec.algorithm
    if algorithm == "heuristic" or not get_algorithm(algorithm).deployed:
        raise InputError(f"{algorithm} has no network that can act outside the study")
    record = TrialRecord.from_attributes(trial.user_attrs)
    return read_members(scored_weights(record, study.run_dir), MEMBERS_FILE)
