"""Training functions keep the laws of their contract (`sweepd.testing`), and broken ones do not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import optuna
import pytest

from sweepd.testing import FunctionTestCase

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
HERE = __name__


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


class TestExample(FunctionTestCase):
    """The function of `examples/training_function.py`."""

    function = "training_function:train"
    params = {"elite_share": 0.3, "noise": 1.0}  # noqa: RUF012


def resumes(trial: Any) -> float:
    """Count on from a checkpoint."""
    kept, value = trial.checkpoint_dir / "step", random.Random(trial.seed).random()
    begin = int(kept.read_text()) if kept.exists() else 0
    for step in range(begin + 1, begin + 5):
        trial.report(value, step)
        kept.write_text(str(step))
        if trial.should_prune():
            raise optuna.TrialPruned
    return value


class TestResumes(FunctionTestCase):
    function, params, resumes = f"{HERE}:resumes", {}, True


def backwards(trial: Any) -> None:
    for step in (3, 2, 1):
        trial.report(1.0, step)


def diverges(trial: Any) -> float:
    for step in (1, 2, 3):
        trial.report(1.0, step)
    return float("nan")


def drawn(trial: Any) -> None:
    for step in (1, 2, 3):
        trial.report(random.random(), step)


def constant(trial: Any) -> None:
    for step in (1, 2, 3):
        trial.report(0.5, step)


def prunes_itself(trial: Any) -> None:
    trial.report(0.5, 1)
    raise optuna.TrialPruned


REPORTS, REPEATS = (
    "its_reports_are_finite_and_their_steps_grow",
    "the_same_parameters_and_seed_give_the_same_values",
)


@pytest.mark.parametrize(
    ("name", "law", "kept"),
    [
        ("backwards", REPORTS, False),
        ("diverges", REPORTS, False),
        ("prunes_itself", REPORTS, False),
        ("drawn", REPEATS, False),
        ("constant", REPEATS, False),
        ("constant", "it_ends_when_it_is_asked_to", False),
        ("constant", "it_goes_on_from_its_checkpoint", True),
    ],
)
def test_a_broken_function_fails(
    name: str, law: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(FunctionTestCase):
        function, params, resumes = f"{HERE}:{name}", {}, kept

    monkeypatch.setenv("SWEEPD_OUT", str(tmp_path))
    monkeypatch.setenv("SWEEPD_CHECKPOINT_DIR", str(tmp_path))
    with pytest.raises(AssertionError):
        getattr(Broken(), f"test_{law}")()
