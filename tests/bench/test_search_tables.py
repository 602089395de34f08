"""Searches that are replayed on tabulated learning curves."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweepd.envs.support.errors import InputError
from tests.bench.conftest import Importer, entry, run


def write_tables(folder: Path) -> None:
    """Write learning curves of 30 configurations × 8 seeds × 5 checkpoints.

    Performance grows with the learning rate up to 1e-2; above, runs fail. Only noisy configurations
    have `noise`.
    """
    rng = np.random.default_rng(0)
    rates = np.geomspace(1e-4, 3e-2, 30)
    configs = pd.DataFrame(
        {
            "learning_rate": rates,
            "minibatch_size": [32, 64] * 15,
            "noisy": [True, False, False] * 10,
            "noise": np.where([True, False, False] * 10, np.linspace(1.0, 2.0, 30), np.nan),
        },
        index=pd.RangeIndex(30, name="run_id"),
    )
    rows = [
        (
            run,
            seed,
            budget,
            np.nan if rate > 1e-2 else budget * (np.log(rate) + 10.0) + rng.normal(),
        )
        for run, rate in enumerate(rates)
        for seed in range(8)
        for budget in (10, 20, 30, 40, 50)
    ]
    columns = ["run_id", "seed", "budget", "performance"]
    folder.mkdir(parents=True)
    configs.to_parquet(folder / "configs.parquet")
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "curves.parquet")


def test_searches_on_tables(
    bench: Importer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    data, saved, again = (tmp_path / name for name in ("tables", "results.json", "again.json"))
    write_tables(data / "task")
    script = bench("search_replay")
    monkeypatch.setattr(script, "COST", 12.0)
    searches = ("race", "tpe", "random-32x3", "optuna-tpe-asha")
    run(script, "--data", data, "--save", saved, "--repetitions", "1", "--only", "tpe")
    run(script, "--data", data, "--save", saved, "--repetitions", "3", "--only", *searches)
    content = json.loads(saved.read_text())
    assert entry(content, "machine.processor")
    for name in searches:
        found = entry(content, f"searches.{name}.task")
        assert len(found["fresh"]) == 3
        assert 0.0 <= entry(content, f"means.{name}.fresh") <= 1.0
    assert 8.0 < entry(content, "means.tpe.cost") <= 12.0

    # Repetitions in two runs are those of a single one.
    run(script, "--data", data, "--save", again, "--repetitions", "3", "--only", "tpe")
    single = json.loads(again.read_text())["searches"]["tpe"]["task"]
    assert single == entry(content, "searches.tpe.task")
    for wrong, message in (
        (("--data", data, "--save", saved, "--seed", "1"), "results of --seed 0"),
        (("--data", tmp_path / "nothing"), "nothing has no folder"),
        (("--data", data, "--only", "magic"), "magic is not known"),
        (("--data", data, "--tasks", "chess"), "chess is not in"),
    ):
        assert script.main([str(argument) for argument in wrong]) == 2
        captured = capsys.readouterr()
        assert message in captured.out + captured.err


def test_the_race_over_programs_makes_the_decisions_of_the_race(
    bench: Importer, tmp_path: Path
) -> None:
    data, saved = tmp_path / "tables", tmp_path / "results.json"
    write_tables(data / "task")
    run(bench("search_programs"), "--data", data, "--save", saved, "--trials", "14")
    found = json.loads(saved.read_text())["tasks"]["task"]
    assert found["equal"]
    assert found["trials"] == 14
    assert found["score"] == found["decided"]


def test_the_expected_best_of_random_configurations(bench: Importer) -> None:
    truth = np.array([3.0, 1.0, 2.0, 5.0])
    pairs = [max(pair) for pair in itertools.combinations(truth, 2)]
    assert bench("search_replay").expected_best(truth, 2) == pytest.approx(np.mean(pairs))


def test_what_a_run_on_a_table_costs(bench: Importer, tmp_path: Path) -> None:
    write_tables(tmp_path / "task")
    [table] = bench("search_tables").load_tables(tmp_path)
    one = bench("search_studies").Run(table, np.random.default_rng(0), 5.0)
    # Configuration 4 has no noise: the distance to it does not depend on the noise.
    asked = {**table.params[4], "noise": 1.1}
    assert one.stand_in(asked) == 4
    # Each configuration is used once. Here the nearest of the others has another learning rate.
    assert one.stand_in({**asked, "noisy": True}) == 6

    seeds = table.curves[4]
    first, second = one.train(4, 2, 0.3)  # the last checkpoint is at 20 % of the budget
    assert {first, second} <= set(seeds[:, 0])
    assert one.left == pytest.approx(5.0 - 2 * 0.3)
    # What has been trained is not paid for again.
    final = one.train(4, 3)
    assert set(final) <= set(seeds[:, -1])
    assert one.left == pytest.approx(5.0 - 3)
    others = set(seeds[:, -1]) - set(final)
    assert one.fresh(4) == pytest.approx(np.mean(list(others)))
    # A further seed is another one.
    fourth = one.train(4, 1, first=3)
    assert set(fourth) <= others
    assert one.left == pytest.approx(5.0 - 4)
    with pytest.raises(InputError, match="8 seeds"):
        one.train(4, 8)
    with pytest.raises(InputError, match="8 seeds"):
        one.train(4, 1, first=7)
