"""The comparison with Stable-Baselines3: its rule, its rows, and how it continues."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.envs.support.errors import InputError
from tests.bench.conftest import Importer, run


def runs(scores: list[float]) -> dict[str, Any]:
    return {
        "runs": {
            str(seed): {"steps": 1, "scores": {"deterministic": score}, "curve": [(1, score)]}
            for seed, score in enumerate(scores)
        }
    }


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1.0, 2.0], [3.0, 4.0]), ([5.0, 5.0, 1.0], [5.0, 7.0])]
)
def test_p_is_the_share_of_all_orders_that_differ_as_much(
    ours: list[float], theirs: list[float], bench: Importer
) -> None:
    p, higher = bench("learning_vs_sb3").permutation_test(ours, theirs)
    scores = [*ours, *theirs]
    # The sum of our ranks is, up to a constant, what ours win against theirs, ties as half.
    wins = [
        sum((a > b) + 0.5 * (a == b) for a in own[: len(ours)] for b in own[len(ours) :])
        for own in permutations(scores)
    ]
    middle = len(ours) * len(theirs) / 2
    seen = abs(wins[0] - middle)
    assert p == pytest.approx(sum(abs(one - middle) >= seen for one in wins) / len(wins))
    assert higher == (wins[0] > middle)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([float(seed) for seed in range(8)], "behind"),
        ([float(seed) + 20.0 for seed in range(8)], "ahead"),
        ([10.0] * 8, "level"),
        ([float(seed) + 9.0 for seed in range(8)], "level"),
    ],
)
def test_only_what_is_beyond_noise_is_called_behind(
    ours: list[float], verdict: str, bench: Importer
) -> None:
    script = bench("learning_vs_sb3")
    theirs = [10.0] * 4 + [11.0, 12.0, 13.0, 14.0]
    found = {"ours": runs(ours), "sb3": runs(theirs)}
    (compared,) = script.compare(found, script.ROWS["hopper-ppo"]).values()
    assert compared["verdict"] == verdict
    assert (compared["p"] < 0.05) == (verdict != "level")
    assert compared["sb3"]["median"] == 10.5
    assert "solved" not in compared["sb3"]  # no usual threshold


def test_seeds_that_solve_are_counted_with_their_interval(bench: Importer) -> None:
    found = bench("learning_vs_sb3").summary([500.0, 475.0, 474.9, 9.0], 475.0)
    assert (found["solved"], found["seeds"]) == (2, 4)
    assert found["share_low"] == pytest.approx(0.0676, abs=1e-4)
    assert found["share_high"] == pytest.approx(0.9324, abs=1e-4)


def test_what_is_finished_is_not_run_again(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, saved, asked = bench("learning_vs_sb3"), tmp_path / "results.json", []
    own = runs([9.0, 9.0, 9.0])["runs"]

    def apart(_: str, request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["seed"])
        if asked == [0, 1]:
            raise KeyboardInterrupt
        return dict(own[str(request["seed"])], seconds=1.0)

    monkeypatch.setattr(script, "run_apart", apart)
    monkeypatch.setattr(script, "ours", lambda *_: asked.append("ours") or {"runs": own})
    arguments = ("--only", "cartpole-ppo", "--seeds", "3", "--save", saved, "--side")
    with pytest.raises(KeyboardInterrupt):
        run(script, *arguments, "sb3")
    run(script, *arguments, "sb3")
    assert asked == [0, 1, 1, 2]
    for _ in range(2):
        run(script, *arguments, "ours")
    assert asked == [0, 1, 1, 2, "ours"]
    row = json.loads(saved.read_text())["rows"]["cartpole-ppo"]
    assert row["comparison"]["deterministic"]["verdict"] == "level"
    # Other steps are another row: nothing of the file is used.
    run(script, *arguments, "ours", "--steps", "64")
    assert asked[-1] == "ours"
    assert len(asked) == 6


def test_our_side_is_trial_0(bench: Importer) -> None:
    script = bench("learning_vs_sb3")
    row, seeds = script.ROWS["cartpole-ppo"], [0, 1]
    spec, space = script._study(row, seeds, script.Changes())
    assert script._settings(space, script.Changes()) == space.resolve(space.start)
    assert row.steps - spec.transitions < spec.rollouts * spec.transitions <= row.steps
    changes = script.Changes({"epochs": 3, "clip": 0.1}, True, 4)
    spec, space = script._study(row, seeds, changes)
    settings = script._settings(space, changes)
    assert (settings.shape["epochs"], settings.learner["clip"]) == (3, 0.1)
    assert (spec.running_scale, spec.num_envs) == (True, 4)
    with pytest.raises(InputError, match="--with depth: ppo has no such parameter; there are"):
        script._settings(space, script.Changes({"depth": 3}))


def test_rows_are_those_of_ten_environments(bench: Importer) -> None:
    rows = bench("sb3_rows").ROWS
    assert len({row.environment for row in rows.values() if row.algorithm == "ppo"}) == 10
    for name, row in rows.items():
        assert name.endswith(f"-{row.algorithm}")
        assert get_algorithm(row.algorithm)
        assert row.peer.zoo or row.peer.normalize
        described = json.loads(json.dumps(bench("learning_vs_sb3").described(row)))
        assert bench("sb3_rows").row_of(described) == row
