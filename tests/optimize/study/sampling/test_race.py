"""The race: new configurations and further seeds, from the study's trials alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.core.seeds import derive_seed
from sweepd.optimize.study.record.configurations import Selection
from sweepd.optimize.study.sampling import race
from sweepd.optimize.study.sampling.cube import Cube
from sweepd.optimize.study.sampling.race import Race
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace

TOTAL, BATCH = 48, 4


def space(**dimensions: Dimension) -> SearchSpace:
    shape = {"minibatch": Dimension("minibatch", choices=(16, 32))}
    return SearchSpace("s", 1, {"shape": shape, "ppo": dict(dimensions), "env": {}})


SPACE = space(
    learning_rate=Dimension("learning_rate", low=1e-5, high=1e-1, log=True),
    clip=Dimension("clip", low=0.1, high=0.4),
)
Value = Callable[[Mapping[str, Any], int], float | None]


def truth(params: Mapping[str, Any]) -> float:
    """Best 0 at a learning rate of 1e-3 and a clip of 0.2."""
    return float(
        -((np.log10(params["learning_rate"]) + 3.0) ** 2) - 40 * (params["clip"] - 0.2) ** 2
    )


def noisy(params: Mapping[str, Any], number: int) -> float:
    return truth(params) + float(np.random.default_rng(number).normal(0.0, 0.5))


def started() -> SearchSpace:
    """Return a space with start values: widths from 16 to 256, the start's is 64."""
    shape = {"net_width": Dimension("net_width", choices=(16, 64, 256), start=64)}
    return SearchSpace(
        "started",
        1,
        {
            "shape": shape,
            "ppo": {
                "learning_rate": Dimension(
                    "learning_rate", low=1e-5, high=1e-1, log=True, start=1e-3
                ),
                "clip": Dimension("clip", low=0.1, high=0.4, start=0.2),
                "target_kl": Dimension("target_kl", low=0.01, high=0.1, off=0.0, start=0.0),
            },
            "env": {},
        },
    )


class Study:
    """Trials of a race, in batches of one shape as a worker asks for them.

    Args:
        fresh: whether every draw is made by a new process, which has computed nothing.
    """

    def __init__(
        self, value: Value = noisy, of: SearchSpace = SPACE, *, fresh: bool = False, seed: int = 0
    ) -> None:
        self.value, self.fresh, self.seed = value, fresh, seed
        self.cube = Cube(of)
        self.race = self.new_race()
        self.trials: list[FrozenTrial] = []

    def new_race(self) -> Race:
        return Race(self.cube, self.seed, Selection().value)

    def draw(self, total: int = TOTAL, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        number = len(self.trials)
        own = self.new_race() if self.fresh else self.race
        return own.draw(self.trials, number, derive_seed(self.seed, number), total, fixed or {})

    def add(self, params: Mapping[str, Any], state: TrialState, value: float | None = None) -> None:
        trial = optuna.trial.create_trial(
            state=state,
            value=value,
            params=dict(params),
            distributions={name: self.cube.distributions[name] for name in params},
        )
        trial.number = len(self.trials)
        self.trials.append(trial)

    def finish(self, number: int) -> None:
        trial = self.trials[number]
        value = self.value(trial.params, number)
        trial.values = None if value is None else [value]
        trial.state = TrialState.FAIL if value is None else TrialState.COMPLETE

    def play(self, trials: int = TOTAL, total: int = TOTAL) -> Study:
        while len(self.trials) < trials:
            begin, shape = len(self.trials), {}
            for _ in range(min(BATCH, trials - begin)):
                self.add(self.draw(total, shape), TrialState.RUNNING)
                params = self.trials[-1].params
                shape = {name: params[name] for name in self.cube.space.shape_names}
            for number in range(begin, len(self.trials)):
                self.finish(number)
        return self

    @property
    def params(self) -> list[dict[str, Any]]:
        return [trial.params for trial in self.trials]

    @property
    def seeds(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(params.values()) for params in self.params)


@pytest.mark.parametrize("of", [SPACE, started()], ids=lambda of: of.name)
def test_draws_depend_on_the_trials_alone(of: SearchSpace) -> None:
    assert Study(of=of).play().params == Study(of=of, fresh=True).play().params
    assert Study(of=of).play().params != Study(of=of, seed=1).play().params


def test_results_of_equal_information_lead_to_the_same_draw() -> None:
    one = Study().play(40)
    several = next(key for key, count in one.seeds.items() if count > 1)
    first, second = [t for t in one.trials if tuple(t.params.values()) == several][:2]
    before = one.new_race().draw(one.trials, 40, 7, TOTAL, {})
    first.values, second.values = second.values, first.values
    assert one.new_race().draw(one.trials, 40, 7, TOTAL, {}) == before


def test_good_configurations_get_further_seeds_and_every_third_trial_is_one() -> None:
    study = Study().play()
    keys = [tuple(params.values()) for params in study.params]
    begun = TOTAL // 4
    assert len(set(keys[:begun])) == begun
    new = [n for n in range(begun, TOTAL) if keys[n] not in keys[:n]]
    assert new
    assert all((n + 1) % race.REPEATED for n in new)
    [(_, count)] = study.seeds.most_common(1)
    assert 3 <= count <= race.MOST_SEEDS
    chosen = Selection(racing=True).best(study.trials)
    assert chosen is not None
    assert truth(chosen.best_trial.params) > -0.15
    assert len(chosen.trials) > 1


def test_it_finds_more_than_random_draws_do() -> None:
    def worth(study: Study) -> float:
        best = Selection(racing=True).best(study.trials)
        assert best is not None
        return truth(best.best_trial.params)

    raced, drawn = [], []
    for seed in range(4):
        raced.append(worth(Study(seed=seed).play()))
        random = Study(seed=seed)
        rng = np.random.default_rng(seed)
        for number in range(TOTAL):
            point = random.cube.spread(rng.random((1, len(random.cube.axes))))[0]
            random.add(random.cube.params(point), TrialState.RUNNING)
            random.finish(number)
        drawn.append(worth(random))
    assert np.mean(raced) > 0.5 * np.mean(drawn)  # both are negative


def test_fixed_parameters_are_drawn_to_the_last_bit() -> None:
    for played in (0, 24):  # of the sequence, and a new configuration
        study = Study().play(played)
        for learning_rate in np.linspace(1e-4, 1e-2, 40):
            fixed = {"minibatch": 16, "learning_rate": float(learning_rate), "clip": 0.3}
            assert study.draw(fixed=fixed) == fixed


def test_a_batch_keeps_its_shape_and_spreads() -> None:
    study = Study().play(24)
    shape = {"minibatch": 16}
    batch = []
    for _ in range(6):
        batch.append(study.draw(fixed=shape))
        study.add(batch[-1], TrialState.RUNNING)
    assert {params["minibatch"] for params in batch} == {16}
    # Trials that run already reduce what another one would tell.
    assert len({tuple(params.values()) for params in batch}) >= 4


def test_a_trial_without_a_result_lowers_the_bound_and_keeps_the_means() -> None:
    study = Study().play(24)
    kernel = study.race._fitted(study.trials)
    none, everyone = np.zeros((0, 4)), np.ones(len(study.seeds), dtype=np.bool_)

    def now() -> tuple[race.Floats, race.Floats]:
        runs = study.race._runs(study.race._arms(study.trials))
        return runs.means(kernel), runs.bounds(kernel, none[:, : runs.features.shape[1]], everyone)

    means, bounds = now()
    leader = int(np.argmax(bounds))
    study.add(study.race._arms(study.trials)[leader].params, TrialState.RUNNING)
    after, lower = now()
    assert after == pytest.approx(means)
    assert lower[leader] < bounds[leader] - 0.01
    assert (lower <= bounds + 1e-9).all()


def test_a_configuration_that_failed_is_the_worst() -> None:
    def fails(params: Mapping[str, Any], number: int) -> float | None:
        return None if params["clip"] > 0.25 else noisy(params, number)

    study = Study(fails).play()
    late = study.params[TOTAL // 2 :]
    assert sum(params["clip"] > 0.25 for params in late) <= len(late) // 6


def test_without_any_result_it_goes_on_with_the_sequence() -> None:
    study = Study(lambda _params, _number: None).play(20)
    assert len(study.seeds) == 20


def test_a_space_with_few_configurations_repeats_them() -> None:
    small = space(clip=Dimension("clip", choices=(0.1, 0.2)))
    study = Study(lambda params, number: params["clip"] + 0.01 * number, small).play()
    assert len(study.seeds) == 4
    assert sum(study.seeds.values()) == TOTAL


def test_a_shape_whose_configurations_have_all_their_seeds_gets_a_new_one() -> None:
    study = Study()
    for minibatch, seeds in ((16, TOTAL // 2), (32, race.MOST_SEEDS)):
        for seed in range(seeds):
            rate = 1e-3 * (1.1 ** (seed if minibatch == 16 else 0))
            params = {"minibatch": minibatch, "learning_rate": rate, "clip": 0.2}
            study.add(params, TrialState.RUNNING)
            study.finish(len(study.trials) - 1)
    before = set(study.seeds)
    while (len(study.trials) + 1) % race.REPEATED:  # until a further seed is drawn
        study.add(study.params[0], TrialState.RUNNING)
    assert tuple(study.draw(fixed={"minibatch": 16}).values()) in before
    assert tuple(study.draw(fixed={"minibatch": 32}).values()) not in before


def test_a_space_of_constants_has_one_configuration() -> None:
    constants = SearchSpace("s", 1, {"shape": {}, "ppo": {}, "env": {}})
    assert Study(of=constants).draw() == {}


@pytest.mark.parametrize("total", [1, 2, 5])
def test_small_studies_begin_with_different_configurations(total: int) -> None:
    study = Study()
    for _ in range(total):
        study.add(study.draw(total), TrialState.RUNNING)
        study.finish(len(study.trials) - 1)
    assert len(study.seeds) >= total - total // race.REPEATED


def test_a_long_study_is_thinned_to_what_the_model_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(race, "MODELLED", 12)
    monkeypatch.setattr(race, "FITTED", 8)
    study = Study().play()
    assert truth(max(study.trials, key=lambda t: truth(t.params)).params) > -0.3
    arms = study.race._arms(study.trials)
    kept = race._kept(arms, 12)
    assert len(kept) == 12
    assert max(arms, key=lambda arm: arm.mean) in kept
    assert [arm for arm in arms if arm in kept] == kept


def test_the_kernel_is_fitted_every_few_trials() -> None:
    sizes = [race._fit_size(count) for count in range(1, 400)]
    assert sizes[:13] == [*range(1, 13), 12]
    assert sorted(set(sizes[12:100])) == [12, 24, 36, 48, 60, 72, 84, 96]
    assert all(0 <= count - size <= max(12, size // 8) for count, size in enumerate(sizes, 1))


def test_every_second_start_is_near_the_start_values_and_the_others_anywhere() -> None:
    study = Study(of=started())
    home = study.cube.place(started().start)
    points = np.array([study.race._start(number, {}) for number in range(800)])
    rate, clip, on = map(study.cube.names.index, ("learning_rate", "clip", "target_kl_on"))
    near, anywhere = points[1::2], points[::2]
    # The switch is too far for a step. Without any step, a start is anywhere.
    within = near[near[:, on] == 0.0]
    assert len(within) > 0.8 * len(near)
    steps = np.abs(within - home)[:, [rate, clip]]
    moved = steps > 0.0
    assert 0.4 < moved.mean() < 0.75
    assert np.median(steps[moved]) == pytest.approx(0.674 * race.STEP, rel=0.25)
    quantiles = np.quantile(anywhere[:, rate], [0.05, 0.5, 0.95])
    assert quantiles == pytest.approx([0.05, 0.5, 0.95], abs=0.02)
    assert anywhere[:, on].mean() == pytest.approx(0.5, abs=0.02)


def test_starts_need_no_more_arithmetic_than_the_start_values() -> None:
    study = Study(of=started())
    starts = [study.cube.params(study.race._start(number, {})) for number in range(60)]
    assert Counter(params["net_width"] for params in starts) == {16: 20, 64: 40}
    # A batch has the shape of its first trial.
    for number in range(4):
        point = study.race._start(number, {"net_width": 256})
        assert study.cube.params(point)["net_width"] == 256


def test_a_start_without_a_neighbour_within_a_step_is_anywhere() -> None:
    choices = {
        name: Dimension(name, choices=(0.1, 0.2), start=0.1) for name in ("clip", "gae_lambda")
    }
    study = Study(of=SearchSpace("choices", 1, {"shape": {}, "ppo": choices, "env": {}}))
    starts = Counter(tuple(study.race._start(number, {})) for number in range(1, 64, 2))
    assert len(starts) == 4
    assert max(starts.values()) < 16


def test_near_starts_differ_from_the_first_trial_in_more_than_the_shape() -> None:
    shape = {
        name: Dimension(name, low=1, high=8, start=4)
        for name in ("net_width", "net_depth", "epochs")
    }
    ppo = {"clip": Dimension("clip", low=0.1, high=0.5, step=0.1, start=0.3)}
    study = Study(of=SearchSpace("steps", 1, {"shape": shape, "ppo": ppo, "env": {}}))
    given = {"net_width": 4, "net_depth": 4, "epochs": 4}
    starts = [study.cube.params(study.race._start(n, given)) for n in range(1, 200, 2)]
    # Anywhere is one of 5 values; at every second step, near is another one than the start.
    same = sum(float(params["clip"]) == pytest.approx(0.3) for params in starts)
    assert same < 30


def test_parameters_without_a_start_value_are_anywhere() -> None:
    part = space(
        learning_rate=Dimension("learning_rate", low=1e-5, high=1e-1, log=True),
        clip=Dimension("clip", low=0.1, high=0.4, start=0.2),
    )
    study = Study(of=part)
    near = np.array([study.race._start(number, {}) for number in range(1, 400, 2)])
    rate, clip = (near[:, study.cube.names.index(name)] for name in ("learning_rate", "clip"))
    assert np.quantile(rate, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.1)
    assert (np.abs(clip - 1 / 3) < 2.5 * race.STEP).mean() > 0.85
    assert (np.abs(clip - 1 / 3) < 1e-9).mean() > 0.2


def test_costly_shapes_need_a_higher_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def widths(seed: int, gain: float) -> list[float]:
        """Return the widths of new configurations; every factor of 4 in width is worth `gain`."""

        def value(params: Mapping[str, Any], number: int) -> float:
            return noisy(params, number) + gain * np.log(params["net_width"]) / np.log(4.0)

        study = Study(value, started(), seed=seed)
        for _ in range(40):
            study.add(study.draw(96), TrialState.RUNNING)
            study.finish(len(study.trials) - 1)
        return [params["net_width"] for params in study.params[24:]]

    aware = np.array([widths(seed, 0.0) for seed in range(4)])
    assert (aware == 256).mean() < 0.1
    # A costly shape that is worth it is found.
    worth = np.array([widths(seed, 3.0) for seed in range(4)])
    assert (worth == 256).mean() > 0.5
    monkeypatch.setattr(race, "SAVING", 0.0)
    blind = np.array([widths(seed, 0.0) for seed in range(4)])
    assert (blind == 256).mean() > (aware == 256).mean() + 0.1


def test_further_seeds_do_not_depend_on_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(of=started()).play(41)

    def drawn(number: int) -> list[dict[str, Any]]:
        return [study.new_race().draw(study.trials, number, seed, TOTAL, {}) for seed in range(4)]

    further = drawn(41)
    monkeypatch.setattr(race, "SAVING", 100.0)
    assert drawn(41) == further
    assert drawn(42)[0]["net_width"] == 16
