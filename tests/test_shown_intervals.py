"""Every screen shows the interval that the simulations below hold to its level, or the seeds.

| shown in | made by |
|---|---|
| metrics.json, trial attributes, trackers, returns.png, table of the summary | `GameEvaluation.interval` |
| summary, status, dashboard, gate report: the selected configuration | `Configuration.interval` |
| the same: the difference to the second best | `Configuration.ahead_of` |
| the same: fresh seeds | `GameEvaluation.interval` of `own_episodes` |
| run.json, learning_curves.png, table of a run: games | `GameEvaluation.interval` |
| the same: markets | `over_seeds` of the trials |
| all of them: seeds that solve the game | `clopper_pearson` |

Intervals of panels, leagues and ratings have tests of their own.
"""

from __future__ import annotations

import dataclasses
import html
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.axes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pyarrow import parquet
from rich.console import Console

from sweepd.deploy.games.candidates import GameStudy, read_candidate
from sweepd.deploy.games.panel import interval
from sweepd.deploy.games.rules import format_interval
from sweepd.deploy.games.selection import selection_sentence
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.support.intervals import (
    EQUAL,
    GAFFKE,
    SEEDS,
    STUDENT,
    TWO_WAY,
    Interval,
    clopper_pearson,
)
from sweepd.optimize.cli.status import show, study_status
from sweepd.optimize.objectives.games.evaluation import GameEvaluation, judge_episodes
from sweepd.optimize.objectives.games.experiment import episode_table
from sweepd.optimize.objectives.games.pictures import draw_returns
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.keys import rung_interval
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle, create_study
from sweepd.optimize.worker.run_report import report_table, run_report, write_run_report
from sweepd.optimize.worker.summary import print_summary
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases
from sweepd.optimize.worker.tracked import trial_picture
from tests.deploy.dashboard.test_research import client
from tests.extra import with_extra
from tests.optimize.study.test_race_study import spec
from tests.optimize.study_files import finish, make_handle

Floats = NDArray[np.float64]
REPEATS, EPISODES, RUNGS = 1000, 40, 2
SOLVED, RANGE = 475.0, (0.0, 500.0)


class Game:
    """Simulated returns with mean 0: seeds, episodes and their interaction have deviations.

    Like the evaluations of a study, all draws of one game have the same episodes.
    """

    def __init__(
        self, rng: np.random.Generator, seed: float = 1.0, episode: float = 4.0, rest: float = 4.0
    ) -> None:
        self.rng, self.seed, self.rest = rng, seed, rest
        self.common = rng.normal(0.0, episode, (1, EPISODES))

    def returns(self, seeds: int) -> Floats:
        own = self.rng.normal(0.0, self.seed, (seeds, 1))
        return own + self.common + self.rng.normal(0.0, self.rest, (seeds, EPISODES))


def evaluated(returns: Floats, made: GameSpec) -> GameEvaluation:
    found = judge_episodes(EpisodeResults(returns, np.full(returns.shape, 9)), (), 500, made)
    assert found is not None
    return found


def add(handle: StudyHandle, rate: float, returns: Floats) -> None:
    """Add a complete trial with these returns, as a worker records it."""
    handle.study.enqueue_trial({"learning_rate": rate})
    [plan] = handle.ask_batch(1, "w", 99)
    found = evaluated(returns, handle.spec)  # type: ignore[arg-type]
    for rung in range(1, RUNGS + 1):
        handle.report(plan, rung, found.value)
        kept = found.record.to_attributes(handle.spec) | found.rung_attributes(handle.spec, rung)
        handle.storage.set_trial_user_attrs(plan.trial_id, kept)
    finish(handle, plan.trial_id, found.value)


def configuration(evaluations: list[GameEvaluation], made: GameSpec) -> Configuration:
    """The configuration whose trials have these evaluations, by the code that selects."""
    import optuna

    trials = []
    for number, one in enumerate(evaluations):
        attributes = {
            key: own
            for rung in range(1, RUNGS + 1)
            for key, own in one.rung_attributes(made, rung).items()
        }
        reports = dict.fromkeys(range(1, RUNGS + 1), one.value)
        trial = optuna.trial.create_trial(
            value=one.value, user_attrs=attributes, intermediate_values=reports
        )
        trial.number = number
        trials.append(trial)
    [found] = made.selection.configurations(trials)
    return found


def coverage(draw: Callable[[], Interval | None], truth: float) -> tuple[float, float, float]:
    """Return the shares of intervals, of lower and of upper bounds that hold."""
    found = [own for own in (draw() for _ in range(REPEATS)) if own is not None]
    assert len(found) == REPEATS
    low = np.array([own.low <= truth + 1e-9 for own in found])
    high = np.array([truth - 1e-9 <= own.high for own in found])
    return float((low & high).mean()), float(low.mean()), float(high.mean())


# -- the functions that make the intervals, through the records of trials


NOISE, DESIGN = {"seed": 0.0, "episode": 1.0, "rest": 0.0}, {}
MADE = spec("race", solved=SOLVED)
FRESH = spec("random", own_episodes=True)


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("design", [NOISE, DESIGN])
def test_the_interval_of_an_evaluation_covers(design: dict[str, float], seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    made = dataclasses.replace(MADE, seeds=seeds)

    def draw() -> Interval | None:
        found = evaluated(Game(rng, **design).returns(seeds), made)
        return rung_interval(found.rung_attributes(made, 1), 1)

    assert 0.93 <= coverage(draw, 0.0)[0] <= 0.97


def test_the_interval_of_one_seed_covers_the_mean_of_this_seed() -> None:
    rng = np.random.default_rng(1)

    def draw() -> Interval | None:
        found = evaluated(Game(rng, seed=0.0).returns(1), MADE)
        return rung_interval(found.rung_attributes(MADE, 1), 1)

    assert 0.93 <= coverage(draw, 0.0)[0] <= 0.97


@pytest.mark.parametrize("seeds", with_extra([5, 7], [5]))
@pytest.mark.parametrize("design", [NOISE, DESIGN])
def test_the_interval_of_a_configuration_covers(design: dict[str, float], seeds: int) -> None:
    rng = np.random.default_rng(seeds)

    def draw() -> Interval | None:
        game = Game(rng, **design)
        return configuration(
            [evaluated(game.returns(1), MADE) for _ in range(seeds)], MADE
        ).interval

    assert 0.93 <= coverage(draw, 0.0)[0] <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("seeds", with_extra([(5, 5), (7, 5)], [(5, 5)]))
def test_the_difference_of_two_configurations_covers(seeds: tuple[int, int]) -> None:
    rng = np.random.default_rng(seeds[0])

    def draw() -> Interval | None:
        game = Game(rng)
        first, second = (
            configuration([evaluated(game.returns(1) + add, MADE) for _ in range(count)], MADE)
            for count, add in zip(seeds, (0.3, 0.0), strict=True)
        )
        return first.ahead_of(second)

    assert 0.93 <= coverage(draw, 0.3)[0] <= 0.97


@pytest.mark.parametrize("seeds", [5, 10])
def test_the_interval_of_fresh_seeds_covers(seeds: int) -> None:
    rng = np.random.default_rng(seeds)

    def draw() -> Interval | None:
        own = [Game(rng).returns(1) for _ in range(seeds)]
        return evaluated(np.concatenate(own), FRESH).interval

    assert 0.93 <= coverage(draw, 0.0)[0] <= 0.97


@pytest.mark.parametrize("chance", [0.5, 0.8])
@pytest.mark.parametrize("seeds", with_extra([3, 5, 10], [5]))
def test_the_interval_of_fresh_seeds_with_a_known_range_covers_on_both_sides(
    seeds: int, chance: float
) -> None:
    rng = np.random.default_rng(seeds)
    made = dataclasses.replace(FRESH, score_range=RANGE)

    def draw() -> Interval | None:
        solved = RANGE[1] * (rng.random((seeds, 1)) < chance)
        found = evaluated(np.repeat(solved, 2, 1), made).interval
        assert found.method == GAFFKE
        return found

    _, low, high = coverage(draw, RANGE[1] * chance)
    assert min(low, high) >= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_share_of_seeds_that_solve_a_game_is_covered(seeds: int) -> None:
    rng = np.random.default_rng(seeds)

    def draw() -> Interval:
        return clopper_pearson(int((rng.random(seeds) < 0.8).sum()), seeds)

    assert coverage(draw, 0.8)[0] >= 0.95


# -- the screens


def summary(handle: StudyHandle) -> str:
    out = io.StringIO()
    console = Console(file=out, width=400)
    print_summary(handle, console, Telemetry(console, "s", torch.device("cpu")), [], Phases())
    return out.getvalue()


def status(handle: StudyHandle) -> str:
    out = io.StringIO()
    Console(file=out, width=600).print(show(study_status(handle)))
    return out.getvalue()


def gate(handle: StudyHandle) -> str:
    trial = study_status(handle)["best"]["trial"]
    found = GameStudy(find_study("s", handle.storage.url, handle.run_dir.parent))
    selection = read_candidate(found.asked(trial)[0], found).selection
    assert selection is not None
    return selection_sentence(selection)


def page(handle: StudyHandle, path: str) -> str:
    text = client(handle.run_dir.parent).get(f"{path}?study=s").get_data(as_text=True)
    return html.unescape(text)


class Bands:
    """Records what pictures draw: bands, and labels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[float, float]] = []
        self.labels: list[str] = []

        def span(_: Any, low: float, high: float, **__: Any) -> None:
            self.found.append((low, high))

        def fill(_: Any, __: Any, low: Any, high: Any, label: str, **___: Any) -> None:
            self.found.append((low[-1], high[-1]))
            self.labels.append(label)

        plain = matplotlib.axes.Axes.axhline

        def line(own: Any, *args: Any, label: str, **kwargs: Any) -> Any:
            self.labels.append(label)
            return plain(own, *args, label=label, **kwargs)

        monkeypatch.setattr(matplotlib.axes.Axes, "axhspan", span)
        monkeypatch.setattr(matplotlib.axes.Axes, "fill_between", fill)
        monkeypatch.setattr(matplotlib.axes.Axes, "axhline", line)


def race(folder: Path, seeds: int, games: list[Floats], **changes: Any) -> StudyHandle:
    """A study with two configurations of as many trials each."""
    handle = make_handle(folder, spec("race", solved=SOLVED, **changes))
    handle.run_dir.mkdir(parents=True, exist_ok=True)
    for rate, own in zip((1e-3, 1e-2), games, strict=True):
        for seed in range(seeds):
            add(handle, rate, own[seed : seed + 1])
    return handle


def fresh_run(handle: StudyHandle, returns: Floats, **changes: Any) -> StudyHandle:
    """The training run that measures the selection of a study on fresh seeds."""
    best = handle.best()
    assert best is not None
    trial = best.best_trial.number
    made = spec("random", **{"own_episodes": True, "solved": SOLVED} | changes)
    made = dataclasses.replace(made, seeds=len(returns))
    runs, origin = handle.run_dir.parent, {"study": "s", "trial": trial}
    assert create_study(handle.storage, f"s-run{trial}", made, runs, {}, origin)
    run = StudyHandle(handle.storage, f"s-run{trial}")
    run.run_dir.mkdir(parents=True, exist_ok=True)
    add(run, 1e-3, returns)
    return run


def table(report: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=300).print(report_table(report))
    return out.getvalue()


def words(found: Interval) -> str:
    return f"95% over {found.resampled} {found.low:+.4f} … {found.high:+.4f}"


def test_all_screens_show_the_intervals_that_are_held_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = Game(np.random.default_rng(3))
    handle = race(tmp_path, 5, [game.returns(5) + 3.0, game.returns(5)])
    first, second = handle.configurations()
    own, ahead = first.interval, first.ahead_of(second)
    assert own is not None
    assert ahead is not None
    assert (own.method, ahead.method) == (TWO_WAY, TWO_WAY)
    found = study_status(handle)["best"]
    assert found["interval"] == own.to_dict()
    assert found["second"]["ahead"] == ahead.to_dict()
    assert found["second"]["trials"] == sorted(trial.number for trial in second.trials)
    text = page(handle, "/training/parameters")
    for screen in (summary(handle), status(handle), gate(handle), text):
        assert words(own) in screen
        difference = f"{first.value - second.value:+.4f}"
        assert f"{difference} ({words(ahead)})" in screen
        assert "solved" not in screen

    # Fresh seeds, and the report of their run.
    run = fresh_run(handle, np.concatenate([Game(game.rng).returns(1) for _ in range(5)]))
    kept = study_status(handle)["best"]["fresh"]
    fresh = Interval(**kept["interval"])
    assert (fresh.method, fresh.resampled) == (STUDENT, SEEDS)
    text = page(handle, "/training")
    for screen in (summary(handle), status(handle), gate(handle), text):
        assert words(fresh) in screen
    report = run_report(run, handle, first.best_trial.number)
    last = report["rungs"][-1]
    assert (last["low"], last["high"]) == (fresh.low, fresh.high)
    assert (last["resampled"], last["interval"]) == (SEEDS, STUDENT)
    assert f"{fresh.low:+.4f} … {fresh.high:+.4f}" in table(report)
    bands = Bands(monkeypatch)
    write_run_report(run, report)
    assert bands.found == [(fresh.low, fresh.high)]
    assert bands.labels == ["95% over seeds"]
    assert json.loads((run.run_dir / "run.json").read_text()) == report

    # A trial of five seeds: attributes, trackers, the table of the summary and the picture.
    shown = evaluated(game.returns(5), run.spec)  # type: ignore[arg-type]
    [trial] = run.trials()
    record = TrialRecord.from_attributes(trial.user_attrs)
    assert record.metrics is not None
    assert (record.metrics["mean_low"], record.metrics["mean_high"]) == (fresh.low, fresh.high)
    assert (record.resampled, record.interval) == (SEEDS, STUDENT)
    picture = trial_picture(run, trial, "key")
    tracked = picture.points[max(picture.points)]
    assert (tracked["mean_low"], tracked["mean_high"]) == (fresh.low, fresh.high)
    assert picture.tags["interval"] == STUDENT
    assert f"95% over seeds (Student) │ {fresh.low:+.4f} … {fresh.high:+.4f}" in (
        " ".join(summary(run).split())
    )
    bands = Bands(monkeypatch)
    draw(tmp_path, shown)
    assert bands.found == [(shown.interval.low, shown.interval.high)]
    assert bands.labels == ["mean, 95% over seeds"]


def draw(folder: Path, evaluation: GameEvaluation) -> None:
    """Draw returns.png from the files that a trial writes."""
    parquet.write_table(episode_table(evaluation.episodes), folder / "episodes.parquet")
    own = {"resampled": evaluation.interval.resampled, "interval": evaluation.interval.method}
    (folder / "metrics.json").write_text(json.dumps(evaluation.metrics() | own))
    draw_returns(folder, "title", "return")


def test_few_seeds_are_shown_themselves_in_games_that_they_solve_or_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All three solve it by luck: Student's interval would be 500 … 500.
    scores = np.full((3, EPISODES), 500.0)
    handle = race(tmp_path, 3, [scores, 0.0 * scores])
    share = "3 of 3 solved (95% over seeds 29% … 100%)"
    run = fresh_run(handle, np.array([[500.0], [0.0], [500.0]]) * np.ones((3, EPISODES)))
    again = "2 of 3 solved (95% over seeds 9% … 99%)"
    screens = (
        summary(handle),
        status(handle),
        gate(handle),
        page(handle, "/training/parameters"),
        page(handle, "/training"),
    )
    seeds = "+500.0000, +500.0000, +500.0000"
    other = "+500.0000, +0.0000, +500.0000"
    for index, screen in enumerate(screens):
        if index != 4:
            assert f"seeds {seeds}; {share}" in screen
            assert "+500.0000 (too few seeds for an interval)" in screen
        if index != 3:
            assert f"seeds {other}; {again}" in screen
        assert "95% over seeds and episodes" not in screen
    number = study_status(handle)["best"]["trial"]
    report = run_report(run, handle, number)
    bands = Bands(monkeypatch)
    write_run_report(run, report)
    draw(tmp_path, evaluated(scores, run.spec))  # type: ignore[arg-type]
    assert bands.found == []
    assert bands.labels == ["mean over seeds"]
    assert other in table(report)
    assert "…" not in table(report)
    own = summary(run)
    assert "seeds that solve the game" in own
    assert "95% over seeds (" not in own
    assert other in own


def test_few_seeds_with_a_known_range_have_gaffkes_bounds_beside_them(tmp_path: Path) -> None:
    scores = np.array([[500.0], [0.0], [500.0]]) * np.ones((3, EPISODES))
    handle = race(tmp_path, 3, [scores, 0.0 * scores])
    run = fresh_run(handle, scores, score_range=RANGE)
    kept = study_status(handle)["best"]["fresh"]
    fresh = Interval(**kept["interval"])
    assert fresh.method == GAFFKE
    seeds = "seeds +500.0000, +0.0000, +500.0000; 2 of 3 solved (95% over seeds 9% … 99%)"
    for screen in (summary(handle), status(handle), page(handle, "/training")):
        assert f"{words(fresh)}; {seeds}" in screen
    report = run_report(run, handle, study_status(handle)["best"]["trial"])
    assert f"{fresh.low:+.4f} … {fresh.high:+.4f}" in table(report)


# -- equal scores


@pytest.mark.parametrize("seeds", [1, 5])
def test_equal_scores_are_called_equal_and_have_no_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int
) -> None:
    scores = np.full((seeds, EPISODES), 500.0)
    handle = race(tmp_path, seeds, [scores, 0.0 * scores])
    fresh = np.full((5, EPISODES), 480.0)
    run = fresh_run(handle, fresh)
    over = "episodes" if seeds == 1 else "seeds and episodes"
    lead = "too few seeds for an interval" if seeds == 1 else f"equal in all {over}"
    texts = summary(handle), status(handle), gate(handle)
    pages = page(handle, "/training/parameters"), page(handle, "/training")
    for screen in (*texts, pages[0]):
        assert f"equal in all {over}" in screen
        assert f"+500.0000 ({lead})" in screen
    for screen in (*texts, pages[1]):
        assert "equal in all seeds" in screen
    for screen in (*texts, *pages):
        assert "+500.0000 …" not in screen
        assert "+480.0000 …" not in screen
    best = study_status(handle)["best"]
    found = [best["interval"], best["second"]["ahead"], best["fresh"]["interval"]]
    for one in found:
        assert (one["low"], one["high"], one["method"]) == (None, None, EQUAL)
    json.dumps(best, allow_nan=False)

    report = run_report(run, handle, best["trial"])
    assert {(rung["low"], rung["high"], rung["interval"]) for rung in report["rungs"]} == {
        (None, None, EQUAL)
    }
    assert "none, all equal" in table(report)
    bands = Bands(monkeypatch)
    write_run_report(run, report)
    draw(tmp_path, evaluated(fresh, run.spec))  # type: ignore[arg-type]
    assert bands.found == []
    assert bands.labels == ["mean, equal in all seeds"]
    assert "95% over seeds │ none, all equal" in " ".join(summary(run).split())
    [trial] = run.trials()
    picture = trial_picture(run, trial, "key")
    assert picture.tags["interval"] == EQUAL
    assert not {"mean_low", "mean_high"} & set(picture.points[max(picture.points)])


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_scores_in_a_known_range_have_gaffkes_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int
) -> None:
    scores = np.full((seeds, EPISODES), 500.0)
    handle = race(tmp_path, seeds, [scores, 0.0 * scores], score_range=RANGE)
    [first, second] = handle.configurations()
    own, ahead = first.interval, first.ahead_of(second)
    assert own is not None
    assert ahead is not None
    assert (own.method, ahead.method) == (GAFFKE, GAFFKE)
    assert own.low < 500.0
    assert own.high == pytest.approx(500.0)
    text = page(handle, "/training/parameters")
    for screen in (summary(handle), status(handle), gate(handle), text):
        assert words(own) in screen
        assert ("too few seeds" in screen) == (seeds == 1)
        assert seeds == 1 or f"+500.0000 ({words(ahead)})" in screen
    assert study_status(handle)["best"]["interval"] == own.to_dict()
    bands = Bands(monkeypatch)
    found = evaluated(scores, handle.spec)  # type: ignore[arg-type]
    draw(tmp_path, found)
    assert bands.found == [(found.interval.low, found.interval.high)]


def test_a_band_has_gaps_where_seeds_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = race(tmp_path, 5, [np.ones((5, EPISODES)), np.zeros((5, EPISODES))])
    run = fresh_run(handle, Game(np.random.default_rng(0)).returns(5))
    report = run_report(run, handle, study_status(handle)["best"]["trial"])
    first, last = report["rungs"]
    first |= {"low": None, "high": None, "interval": EQUAL}
    filled: list[tuple[list[float], list[float]]] = []

    def fill(_: Any, __: Any, low: list[float], high: list[float], **___: Any) -> None:
        filled.append((low, high))

    monkeypatch.setattr(matplotlib.axes.Axes, "fill_between", fill)
    write_run_report(run, report)
    [(low, high)] = filled
    assert math.isnan(low[0])
    assert math.isnan(high[0])
    assert (low[1], high[1]) == (last["low"], last["high"])


def test_equal_scores_do_not_change_what_a_race_decides_by(tmp_path: Path) -> None:
    returns = np.concatenate([np.full((3, EPISODES), 500.0), np.zeros((3, EPISODES))])
    for name, how in (("a", {}), ("b", {"score_range": RANGE})):
        handle = race(tmp_path / name, 3, [returns[:3], returns[3:]], **how)
        found = handle.configurations()
        assert [(one.value, one.error) for one in found] == [(500.0, 0.0), (0.0, 0.0)]


def test_equal_differences_of_a_panel_are_called_equal() -> None:
    assert format_interval(interval(np.full(200, 12.0), 0.95, 0)) == "+12 (equal in all games)"
    found = interval(np.arange(200.0), 0.95, 0)
    assert format_interval(found) == f"+99.5 (95%: {found.low:+.4g} to {found.high:+.4g})"


# -- a declared range that does not hold


def test_a_score_outside_the_declared_range_is_said_once_and_recorded(tmp_path: Path) -> None:
    scores = np.array([[500.0], [0.0], [100.0]]) * np.ones((3, EPISODES))
    scores[0, :2] = 400.0, 600.0  # the mean of the seed is in the range
    handle = race(tmp_path, 3, [scores, 0.0 * scores])
    run = fresh_run(handle, scores, score_range=RANGE)
    sentence = (
        "an episode scored 600, outside the game's score_range of 0 … 500: Gaffke's bounds would "
        "not hold, so the interval is Student; correct score_range"
    )
    [trial] = run.trials()
    record = TrialRecord.from_attributes(trial.user_attrs)
    assert (record.warning, record.interval) == (sentence, STUDENT)
    assert trial_picture(run, trial, "key").tags["warning"] == sentence
    assert f"warning: trial 0: {sentence}" in summary(run)
    assert f"warning: study {run.name}: {sentence}" in summary(handle)
    assert f"warning: {sentence}" in status(handle)
    assert f"Warning: {sentence}." in gate(handle)


def test_an_interval_without_bounds_is_not_recorded() -> None:
    for own in (False, True):
        made = dataclasses.replace(FRESH, own_episodes=own)
        found = evaluated(np.ones((1, 1)), made)
        assert rung_interval(found.rung_attributes(made, 1), 1) is None
        assert not {"mean_low", "mean_high"} & set(found.metrics())


def test_rounding_does_not_leave_the_declared_range() -> None:
    made = dataclasses.replace(FRESH, score_range=RANGE)
    found = evaluated(np.full((3, EPISODES), 500.0 + 1e-5), made)
    assert found.warning is None
    assert found.interval.method == GAFFKE
    assert found.interval.high == pytest.approx(RANGE[1], rel=1e-12)
