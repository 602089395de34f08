"""A pruner of your own: stops trials that have not improved for some rungs.

PYTHONPATH=examples sweepd train --env cartpole --rungs 8 --pruner 'own_pruner:Stalled {"rungs": 3}'
"""

import optuna
from optuna.pruners import BasePruner


class Stalled(BasePruner):
    """Prunes a trial whose last `rungs` values do not exceed an earlier one, unless it leads."""

    def __init__(self, rungs=3):
        self.rungs = rungs

    def prune(self, study, trial):
        """Return whether the trial ends at the rung (1, 2, …) that it has just reported."""
        values = [value for _, value in sorted(trial.intermediate_values.items())]
        if len(values) <= self.rungs or max(values[-self.rungs :]) > max(values[: -self.rungs]):
            return False
        others = [
            t.intermediate_values[trial.last_step]
            for t in study.get_trials(deepcopy=False)
            if trial.last_step in t.intermediate_values and t.number != trial.number
        ]
        return any(value > values[-1] for value in others)


def main() -> None:
    """Prune a trial that stays at its first value, and not one that improves."""
    study = optuna.create_study(direction="maximize", pruner=Stalled(rungs=2))
    still, better = study.ask(), study.ask()
    for rung in (1, 2, 3):
        still.report(1.0, rung)
        better.report(float(rung), rung)
    print(f"still: {still.should_prune()}, better: {better.should_prune()}")


if __name__ == "__main__":
    main()
