"""Pruners by name, and the pruner for batches of trials.

Optuna's `SuccessiveHalvingPruner` records a trial's position at a rung when it judges it, so the
first trial of a batch would compete with fewer trials than the last one. `RungPruner` uses reported
values only, so the order does not matter.
"""

from __future__ import annotations

import math
import zlib

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner

from sweepd.envs.support.plugins import construct, resolve

PRUNERS = ("hyperband", "median", "none")


class RungPruner(BasePruner):
    """Hyperband's brackets (Li et al. 2018, JMLR 18) with successive halving by reported values.

    A trial's bracket b follows from its number; it is judged from rung b + 1 on. At a rung it
    continues if it is among the best ⌈n / eta⌉ of the n trials that reported there. Nothing is
    pruned while fewer than `least` trials have reported, or at the last rung.

    Args:
        rungs: number of rungs of a trial.
        eta: reduction factor of successive halving.
        least: number of reports from which trials are pruned.
    """

    def __init__(self, rungs: int, eta: float = 2.0, least: int = 4) -> None:
        self.rungs, self.eta, self.least = rungs, eta, least
        self.brackets = max(1, min(3, rungs - 1))

    def bracket(self, number: int) -> int:
        """Return the bracket of a trial, 0 … brackets - 1.

        Lower brackets prune earlier and have more trials, as in Hyperband.
        """
        # A hash of the number, in [0, 1): brackets are mixed, but every process computes the same.
        # Bracket b has a share proportional to eta^(brackets - 1 - b).
        shares = [self.eta ** (self.brackets - 1 - b) for b in range(self.brackets)]
        at = zlib.crc32(str(number).encode()) / 2**32 * sum(shares)
        for b, share in enumerate(shares):
            at -= share
            if at < 0:
                return b
        return self.brackets - 1

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Return whether the trial is pruned at the last rung that it has reported."""
        rung = trial.last_step
        if rung is None or rung >= self.rungs or rung <= self.bracket(trial.number):
            return False
        values = [
            t.intermediate_values[rung]
            for t in study.get_trials(deepcopy=False)
            if rung in t.intermediate_values
        ]
        # A diverged trial reports nan or inf, which must not count as a competitor.
        values = sorted((v for v in values if math.isfinite(v)), reverse=True)
        if len(values) < self.least:
            return False
        # The worst of the best ceil(n / eta) values; a tie with it is not pruned.
        return trial.intermediate_values[rung] < values[math.ceil(len(values) / self.eta) - 1]


def make_pruner(name: str, rungs: int) -> BasePruner:
    """Return a pruner by name.

    Args:
        name: one of `PRUNERS`, or that of a plugin (`sweepd.envs.support.plugins`), a subclass of
            Optuna's `BasePruner`.
        rungs: number of rungs of a trial; its steps in Optuna are 1 … rungs.

    Raises:
        InputError: the name is unknown, or the plugin cannot be imported or constructed.
    """
    if name == "hyperband":
        return RungPruner(rungs)
    if name == "median":
        return MedianPruner(n_startup_trials=4)
    if name == "none":
        return NopPruner()
    plugin = resolve("pruner", name, PRUNERS, BasePruner)
    pruner: BasePruner = construct("pruner", plugin)
    return pruner
