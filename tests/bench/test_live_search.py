"""Searches on live training: ours and those of other projects."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.recovery.processes import started
from sweepd.optimize.study.space.parsing import load_space
from tests.bench.conftest import Importer, entry, run
from tests.optimize.study_files import wait_for


@pytest.mark.extra
def test_a_live_search_is_run_and_scored(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, searches = bench("search_live"), bench("live_searches")
    saved = tmp_path / "results.json"

    def call(_: Any, command: list[str], seconds: float | None = None) -> str:
        assert command[:3] == [sys.executable, "-m", "sweepd"]
        assert seconds == (120.0 if "live" in command else None)
        done = CliRunner().invoke(build_app(), command[3:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    monkeypatch.setattr(searches.Search, "call", call)
    small = ("--rungs", "2", "--episodes", "4", "--threads", "1")
    monkeypatch.setitem(searches.OURS, "random", ("--sampler", "random", *small))
    run(script, "--smoke", "--folder", tmp_path / "live", "--save", saved)
    content = json.loads(saved.read_text())
    found = entry(content, "tasks.cartpole.random-0")
    assert found["trials"] == 4
    assert len(found["scores"]) == 2
    assert found["selections"][-1]["scores"] == found["scores"]
    assert entry(found, "machine.processor")
    assert entry(content, "table.cartpole.scores.random") == found["score"]
    # The same command has nothing left to do.
    run(script, "--smoke", "--folder", tmp_path / "live", "--save", saved)
    again = json.loads(saved.read_text())["tasks"]
    assert again == content["tasks"]


def test_processes_of_a_search_end_in_time(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    searches = bench("live_searches")
    options = argparse.Namespace(folder=tmp_path, steps=1, minutes=1.0)
    search = searches.Search("cartpole", "random", 0, options)
    search.make_folder()

    def call(code: str, seconds: float | None = None) -> str:
        return search.call(["/bin/sh", "-c", code], seconds)

    assert call("echo done") == "done\n"
    with pytest.raises(InputError, match=r"failed: see .*log\.txt"):
        call("echo broken >&2; exit 3")
    assert (search.folder / "log.txt").read_text() == "broken\n"
    assert call("trap 'echo ended; exit' TERM; while :; do sleep 0.05; done", 1.0) == "ended\n"
    # A process that does not stop is killed, with what it has started.
    monkeypatch.setattr(searches, "GRACE", 0.2)
    assert call("trap '' TERM; sleep 600 & echo $! > pid; wait", 1.0) == ""
    pid = int(Path("pid").read_text())
    wait_for(lambda: started(pid) is None)  # the kill is asynchronous


def test_when_a_live_search_reaches_a_level(bench: Importer) -> None:
    script = bench("search_live")
    worth = {"a": [1.0, 1.0], "b": [4.0, 8.0], "c": [9.0, 9.0], "d": [2.0, float("nan")]}
    trained: list[list[str]] = []

    class Finished:
        task, group = "cartpole", 2

        def __init__(self, selected: str = "abcad") -> None:
            self.selected = selected

        def selections(self) -> list[Any]:
            return [
                script.Selected(10.0 * at, json.dumps(key), 0.0)
                for at, key in enumerate(self.selected, 1)
            ]

        def scores(self, keys: list[str]) -> list[list[float]]:
            trained.append([json.loads(key) for key in keys])
            return [[100.0 * value for value in worth[json.loads(key)]] for key in keys]

    def outcomes(search: Finished) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        found: dict[str, Any] = {}
        script.record(search.task, search.selections(), found, {})
        seen = [(found["seconds_to_level"], found["exact"], "scores" in found)]
        for _ in script.score(search, found):
            seen.append((found["seconds_to_level"], found["exact"], "scores" in found))
        return found, seen

    found, seen = outcomes(Finished())
    # A lower bound at first: the first selection without a score.
    assert seen == [(10.0, False, False), (20.0, False, True), (20.0, True, True)]
    assert found["score"] is None  # the last selection diverged
    assert found["chosen"] == "d"
    assert script.is_scored(found)
    # The last selection and the first ones, until the level is reached.
    assert trained == [["d", "a"], ["b", "c"]]
    trained.clear()
    worth["a"] = [5.0, 5.0]
    assert outcomes(Finished())[1][-1] == (10.0, True, True)
    assert trained == [["d", "a"]]
    worth |= {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert outcomes(Finished("abab"))[1][-1] == (None, False, True)
    assert outcomes(Finished(""))[1] == [(None, False, True)]
    # What was interrupted goes on with the scores that it has.
    found = {}
    search = Finished("abc")
    script.record(search.task, search.selections(), found, {})
    next(script.score(search, found))
    assert (found["seconds_to_level"], found["exact"]) == (20.0, False)
    assert not script.is_scored(found)
    trained.clear()
    list(script.score(search, found))
    assert trained == [["b"]]
    assert (found["seconds_to_level"], found["exact"]) == (30.0, True)


def test_what_a_peer_had_selected_when(bench: Importer, tmp_path: Path) -> None:
    """The trial with the highest latest value; a schedule counts to the end of the run."""
    searches = bench("live_searches")
    options = argparse.Namespace(folder=tmp_path, minutes=1.0, steps=None, cores=2, fresh=2)
    search = searches.make_search("cartpole", "pbt", 0, options)
    search.folder.mkdir(parents=True)
    a, b = {"rate": 1.0}, {"rate": 2.0}
    results = [
        (10.0, "first", 5.0, [[0.1, a]]),
        (20.0, "second", 5.0, [[0.1, b]]),  # a tie
        (30.0, "first", 7.0, [[0.1, a], [0.2, a]]),  # the same configuration
        (40.0, "first", 4.0, [[0.1, a], [0.2, a], [0.3, a]]),
        (50.0, "second", 9.0, [[0.1, b], [0.2, a]]),
        (55.0, "third", float("nan"), [[0.1, a]]),
        (70.0, "third", 99.0, [[0.1, a]]),  # too late
    ]
    names = ("seconds", "trial", "value", "schedule")
    lines = [json.dumps(dict(zip(names, result, strict=True))) for result in results]
    search.history.write_text("\n".join(lines))
    found = [(one.seconds, json.loads(one.key), one.value) for one in search.selections()]
    assert found == [
        (10.0, [[1.0, a]], 5.0),
        (40.0, [[1.0, b]], 5.0),
        (50.0, [[0.1, b], [1.0, a]], 9.0),
    ]


def test_a_configuration_of_a_market_is_enqueued_with_its_switches(bench: Importer) -> None:
    searches, space = bench("live_searches"), load_space("wide")
    for target_kl, trailing_stop in ((0.0, 0.1), (0.02, 0.0)):
        params = space.fixed_params({"target_kl": target_kl, "trailing_stop": trailing_stop})
        others = {own.name: own.start for own in space.dimensions if own.start is not None}
        params = {**space.fixed_params(others), **params}
        guess = searches.guess(space, json.dumps(params))
        assert guess["target_kl"] == target_kl
        again = space.fixed_params(guess)
        assert {name: params[name] for name in again} == again
        assert again["trailing_stop_on"] is (trailing_stop > 0.0)


def test_the_table_of_times_to_a_level(bench: Importer) -> None:
    live_table = bench("live_table")

    def one(seconds: float | None, score: float | None, exact: bool = True) -> dict[str, Any]:
        known = {"seconds_to_level": seconds, "exact": exact and seconds is not None}
        return known | {"score": score, "scores": [], "level": 475.0, "selections": []}

    unscored = one(100.0, None, exact=False)
    del unscored["scores"]
    results = {
        "cartpole": {
            **{f"race-{seed}": one(10.0 * seed, 480.0) for seed in (1, 2, 3)},
            "random-1": one(40.0, 490.0),
            "zoo-1": one(80.0, 480.0),
            "pbt-1": one(None, None),
            "asha-1": {"trials": 3},  # neither selections nor scores yet
        },
        "pendulum": {"race-1": one(30.0, 480.0), "zoo-1": one(None, 1.0), "asha-1": unscored},
        "planted": {"race-1": one(None, 1.0), "random-1": one(30.0, 480.0)},
        "lunarlander": {},
    }
    found = live_table.table(results, dict.fromkeys(results, 120.0), ours=("race", "random"))
    cartpole = found["cartpole"]
    assert cartpole["seconds"] == {"race": 20.0, "random": 40.0, "zoo": 80.0, "pbt": 120.0}
    assert cartpole["exact"] == {"race": True, "random": True, "zoo": True, "pbt": False}
    assert cartpole["scores"]["pbt"] is None
    assert cartpole["peer"] == {"value": 0.25, "bound": "="}
    assert cartpole["random"] == {"value": 0.5, "bound": "="}
    # A search that did not reach the level needs longer than its time, and one without scores
    # longer than to its first selection.
    assert found["pendulum"]["peer"] == {"value": 0.3, "bound": "<"}
    assert found["pendulum"]["random"] is None
    assert "asha" not in found["pendulum"]["scores"]
    assert found["planted"]["random"] == {"value": 4.0, "bound": ">"}
    assert "lunarlander" not in found
    text = live_table.lines(found)
    assert text[1].split()[:3] == ["cartpole", "475", "20"]
    assert ">120 (none)" in text[1]
    assert ">100 (-)" in text[2]
    assert text[2].endswith("<0.30             -")
    # The median of a lower bound and two times is exact only if the bound is not below it.
    assert live_table._median([(10.0, True), (20.0, True), (30.0, False)]) == (20.0, True)
    assert live_table._median([(10.0, True), (20.0, True), (5.0, False)]) == (10.0, False)


def test_a_live_search_refuses_wrong_arguments(
    bench: Importer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script, folder = bench("search_live"), ("--folder", tmp_path)
    saved = tmp_path / "results.json"
    saved.write_text(json.dumps({"settings": {"cartpole": {"minutes": 1.0}}}))
    stopped = tmp_path / "stopped" / "cartpole" / "race-0"
    stopped.mkdir(parents=True)
    ours = ("--tasks", "cartpole", "--searches", "race")
    peer = ("--tasks", "cartpole", "--searches", "zoo", "--peer-python", "zoo=/bin/false")
    for wrong, message in (
        (ours, "give --folder"),
        ((*folder, *ours, "--save", saved), "results of cartpole with other settings"),
        ((*folder, *ours, "--peer-python", "ray=/bin/sh"), "give NAME=PATH"),
        ((*folder, *peer), "pip install stable-baselines3=="),
        (("--folder", tmp_path / "stopped", *ours), f"{stopped} holds a search that was stopped"),
    ):
        assert script.main([str(argument) for argument in wrong]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("task", ["planted", "cartpole", "pendulum", "rest_trap"])
def test_the_peers_trainer_on_live_tasks(
    task: str, bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("stable_baselines3")
    peers, tasks = bench("live_trainer"), bench("live_tasks")
    for part in ("VALIDATION", "HOLDOUT"):  # short: most of the time would be the market's scores
        monkeypatch.setattr(tasks, part, 0.01)
    params = {
        "n_steps_pow": 5,
        "batch_size_pow": 8,
        "one_minus_gamma": 0.01,
        "one_minus_gae_lambda": 0.05,
        "learning_rate": 1e-3,
        "n_epochs": 1,
        "net_arch": "tiny",
        "activation_fn": "relu",
    }
    trainer = peers.Trainer(task, 2_048, 0)
    trainer.continue_to(0.5, params)
    before = trainer.model
    trainer.continue_to(1.0, params | {"learning_rate": 1e-4})
    # Other parameters continue from the same weights and steps.
    assert trainer.model is not before
    assert trainer.model.num_timesteps >= 2_048
    assert trainer.model.learning_rate == 1e-4
    assert trainer.score(1, 0) == trainer.score(1, 0)
    assert np.isfinite(trainer.value())
    # Another process continues from its checkpoint.
    trainer.save(tmp_path)
    other = peers.Trainer(task, 2_048, 1)
    other.load(tmp_path, params | {"learning_rate": 1e-4})
    assert other.model.num_timesteps == trainer.model.num_timesteps
    assert other.score(1, 0) == trainer.score(1, 0)
    whole = peers.Trainer(task, 2_048, 0)
    whole.follow([(0.5, params)])
    assert whole.model.num_timesteps >= 2_048
