"""CMA-ES from the study's history alone."""

from __future__ import annotations

import optuna
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import TrialState

from sweepd.envs.core.seeds import derive_seed
from sweepd.optimize.study.record.keys import CMA_GENERATION_KEY
from sweepd.optimize.study.sampling.samplers import make_sampler


def suggest(trial: optuna.Trial) -> float:
    """Maximum 0 at x = 0.1, y = 0.01, n = 7, and a choice that has no effect."""
    x, y = trial.suggest_float("x", -1.0, 1.0), trial.suggest_float("y", 1e-4, 1.0, log=True)
    n = trial.suggest_int("n", 1, 9)
    trial.suggest_categorical("kind", ["a", "b"])
    return -((x - 0.1) ** 2) - abs(y - 0.01) - 0.01 * (n - 7) ** 2


def run(
    study: optuna.Study,
    batches: int,
    together: int,
    fresh: bool,
    start: dict[str, float] | None = None,
) -> None:
    """Run batches of trials that are all asked for before any of them is finished.

    fresh: use a new search space for every trial, as another process would.
    """
    space = IntersectionSearchSpace(include_pruned=True)
    for _ in range(batches):
        asked = []
        for _ in range(together):
            space = IntersectionSearchSpace(include_pruned=True) if fresh else space
            number = len(study.get_trials(deepcopy=False))
            study.sampler = make_sampler("cmaes", derive_seed(0, number), space=space, start=start)
            trial = study.ask()
            asked.append((trial, suggest(trial)))
        for trial, value in asked:
            study.tell(trial, value)


def new_study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize")


def test_it_finds_the_optimum_better_than_its_first_generation() -> None:
    study = new_study()
    run(study, 5, 7, fresh=False)
    values = [t.value for t in study.trials]
    assert sum(values[-7:]) / 7 > 0.5 * sum(values[:14]) / 14
    assert {type(t.params["n"]) for t in study.trials} == {int}


def test_generations_are_recorded_and_every_process_proposes_the_same() -> None:
    one, other = new_study(), new_study()
    run(one, 4, 4, fresh=False)
    run(other, 4, 4, fresh=True)
    assert [t.params for t in one.trials] == [t.params for t in other.trials]
    # The first batch is random: nothing is complete yet. Three ranges make a population of seven.
    assert [t.system_attrs.get(CMA_GENERATION_KEY) for t in one.trials] == [None] * 4 + [0] * 8 + [
        1
    ] * 4


def test_failed_trials_do_not_count_in_a_generation() -> None:
    study = new_study()
    run(study, 2, 4, fresh=False)
    trial = study.ask()
    study.tell(trial, state=TrialState.FAIL)
    run(study, 1, 4, fresh=False)
    assert study.trials[-1].system_attrs[CMA_GENERATION_KEY] == 0
    run(study, 1, 1, fresh=False)
    assert study.trials[-1].system_attrs[CMA_GENERATION_KEY] == 1


def test_it_begins_at_the_given_start() -> None:
    study = new_study()
    run(study, 2, 7, fresh=False, start={"x": -0.9, "y": 1e-4, "n": 9})
    first = [t.params for t in study.trials if CMA_GENERATION_KEY in t.system_attrs]
    assert sum(p["x"] for p in first) / 7 < -0.4
    assert sum(p["n"] for p in first) / 7 > 6.5


def test_a_parameter_without_a_start_begins_in_the_middle_of_its_range() -> None:
    study = new_study()
    run(study, 2, 7, fresh=False, start={"x": -0.9})
    first = [t.params for t in study.trials if CMA_GENERATION_KEY in t.system_attrs]
    assert sum(p["x"] for p in first) / 7 < -0.4
