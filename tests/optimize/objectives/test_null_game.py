"""Intervals of a game whose rewards are noise, through the code that studies run."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor

import sweepd
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.worker.summary import print_summary
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases
from tests.optimize.objectives.test_game_study import make_spec, plan

STEPS = 4  # of an episode
NAME = f"{__name__}:NULL"


class Null(TensorGame):
    """Every step pays N(0, 1), whatever is done."""

    state_dim, action_dim, if_discrete = 1, 2, True
    max_step, uniforms_per_move = STEPS, 1
    score_range = (-10.0 * STEPS, 10.0 * STEPS)

    def start(self, uniforms: Tensor) -> State:
        return {"zero": torch.zeros(len(uniforms))}

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: ARG002
        reward = torch.special.ndtri(uniforms[:, 0].clamp(1e-9, 1.0 - 1e-9)).float()
        return state, reward, torch.zeros(len(uniforms), dtype=torch.bool)

    def see(self, state: State, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002
        return state["zero"][:, None]


class Wrong(Null):
    """Declares a range that its scores leave."""

    score_range = (-0.25, 0.25)


NULL, WRONG = Null.game(solved=0.0), Wrong.game()
GAME: dict[str, Any] = {
    "env": NAME,
    "budget": 640,
    "episodes": 16,
    "n_envs": 4,
    "horizon": 16,
    "threads": 1,
    "gpu": "cpu",
    "look_steps": 16,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return tmp_path


def evaluations(count: int, **changes: Any) -> list[GameEvaluation]:
    """Evaluate untrained members of as many studies, which differ by their seeds."""
    spec = make_spec(NAME, look_steps=4, episodes=16, rungs=1, average="mean", **changes)
    experiment = GameExperiment(spec, torch.device("cpu"))
    trainer = Trainer(experiment)
    training = trainer.start(plan(0))
    found = []
    for seed in range(count):
        experiment.spec = dataclasses.replace(spec, seed=seed)
        [evaluation] = trainer.evaluate([training])
        assert isinstance(evaluation, GameEvaluation)
        found.append(evaluation)
    return found


@pytest.mark.parametrize(
    ("seeds", "own"),
    [
        (1, False),
        *(
            pytest.param(*case, marks=pytest.mark.extra)
            for case in ((1, True), (3, False), (3, True))
        ),
    ],
)
def test_intervals_of_evaluations_contain_the_truth(seeds: int, own: bool) -> None:
    found = evaluations(200, seeds=seeds, slots=4, own_episodes=own)
    metrics = [one.metrics() for one in found]
    share = np.mean([one["mean_low"] <= 0.0 <= one["mean_high"] for one in metrics])
    assert 0.9 <= share <= 0.99  # 0.95 and about three standard errors
    # All seeds play the same episodes, unless each has its own.
    assert (len(set(found[0].scores)) == 1) is (not own or seeds == 1)
    expected = "episodes" if seeds == 1 else "seeds" if own else "seeds and episodes"
    assert {one.record.resampled for one in found} == {expected}


def test_gaffkes_bounds_are_used_where_the_range_is_known() -> None:
    limits = (-10.0, 10.0)
    plain, bounded = (
        evaluations(1, seeds=3, own_episodes=True, score_range=known)[0] for known in (None, limits)
    )
    assert plain.scores == bounded.scores
    assert bounded.interval.low < plain.interval.low
    assert -10.0 < bounded.interval.low < bounded.value < bounded.interval.high < 10.0


def test_a_study_shows_the_same_interval_everywhere() -> None:
    study = sweepd.create_study("null", n_trials=5, fresh_seeds=3, **GAME)
    assert study.run()
    handle = study._handle
    assert isinstance(handle.spec, GameSpec)
    assert (handle.spec.solved, handle.spec.score_range) == (0.0, Null.score_range)
    best = handle.best()
    assert best is not None
    assert best.interval is not None
    assert best.interval.low < best.value < best.interval.high
    by_rows = StudyReader.best(handle)
    assert by_rows is not None
    assert by_rows.interval == best.interval
    status = study.status()["best"]
    assert status["interval"] == dataclasses.asdict(best.interval)
    trial = best.best_trial
    metrics = trial.user_attrs["sweepd:metrics"]
    kept = json.loads((study.trial_dir(trial.number) / "metrics.json").read_text())
    assert kept == metrics | {"resampled": "episodes", "interval": "Student"}
    out = io.StringIO()
    console = Console(file=out, width=300)
    print_summary(handle, console, Telemetry(console, "s", torch.device("cpu")), [], Phases())
    assert f"95% over episodes {best.interval.low:+.4f} … {best.interval.high:+.4f}" in (
        out.getvalue()
    )

    # Fresh seeds: episodes of their own, and below five the seeds themselves.
    fresh = status["fresh"]
    run = sweepd.load_study(fresh["study"])
    frame = pd.read_parquet(run.trial_dir(0) / "episodes.parquet")
    scores = frame.groupby("seed")["return"].mean()
    assert len(set(scores)) == 3
    assert fresh["value"] == pytest.approx(scores.mean())
    assert fresh["interval"]["resampled"] == "seeds"
    assert fresh["interval"]["low"] < fresh["value"] < fresh["interval"]["high"]
    seeds = ", ".join(f"{score:+.4f}" for score in scores)
    solved = int((scores >= 0.0).sum())
    assert f"seeds {seeds}; {solved} of 3 solved (95% over seeds" in out.getvalue()
    assert fresh["between"] in out.getvalue()


def test_a_declared_range_that_scores_leave_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = sweepd.create_study(
        "w", n_trials=2, fresh_seeds=3, **GAME | {"env": f"{__name__}:WRONG"}
    )
    assert study.run()
    out = capsys.readouterr().out
    said = re.findall(r"^\d{4}-\S+ \S+ warning: trial (\d): an episode scored", out, re.MULTILINE)
    assert said == ["0", "0"]  # of the study, and of the run with fresh seeds
    for trial in study.optuna.trials:
        assert (
            "outside the game's score_range of -0.25 … 0.25" in trial.user_attrs["sweepd:warning"]
        )
        assert trial.user_attrs["sweepd:interval"] == "Student"
    best = study.status()["best"]
    kept = json.loads((study.trial_dir(best["trial"]) / "metrics.json").read_text())
    assert kept["warning"] == study.optuna.trials[best["trial"]].user_attrs["sweepd:warning"]
    assert best["fresh"]["interval"]["method"] == "Student"
    assert f"warning: study {best['fresh']['study']}: {best['fresh']['warning']}" in out
