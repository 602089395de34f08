"""The suite for training functions that `--env python:…` names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sweepd.function import Trial, load_function


class _Recorded(Trial):
    """A trial that keeps what is reported, and asks the function to end after some reports."""

    def __init__(self, params: Mapping[str, Any], seed: int, last: float) -> None:
        super().__init__(params)
        self.seed, self._most = seed, last
        self.reports: list[tuple[int, float]] = []

    def report(self, value: float, step: int) -> None:
        self.reports.append((step, value))
        self._asked = len(self.reports) >= self._most


class FunctionTestCase:
    """What a study needs of a training function. A subclass names it as `--env python:…` does:

    class TestMyTraining(FunctionTestCase):
        function = "my_training:train"
        params = {"learning_rate": 0.01}

    Attributes:
        function: the name.
        params: values of all its parameters, with which it trains for a moment and reports at
            least three times.
        resumes: whether it goes on from what it kept in `checkpoint_dir`.
    """

    function: ClassVar[str]
    params: ClassVar[Mapping[str, Any]]
    resumes: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SWEEPD_OUT", "SWEEPD_CHECKPOINT_DIR"):
            (tmp_path / name).mkdir()
            monkeypatch.setenv(name, str(tmp_path / name))

    def trained(self, seed: int = 1, last: float = math.inf) -> tuple[list[tuple[int, float]], Any]:
        """Return the reports of a trial and what the function returned.

        Args:
            seed: of the trial.
            last: number of reports after which it is asked to end.
        """
        trial, value = _Recorded(self.params, seed, last), None
        try:
            value = load_function(self.function)(trial)
        except Exception as error:
            if type(error).__name__ != "TrialPruned":
                raise
            assert trial._asked, "it raises TrialPruned without having been asked to end"
        return trial.reports, value

    def test_its_reports_are_finite_and_their_steps_grow(self) -> None:
        """Trials are compared at steps; the larger a value, the better."""
        reports, value = self.trained()
        assert len(reports) >= 3
        steps = [step for step, _ in reports]
        assert all(isinstance(step, int) and step >= 0 for step in steps), steps
        assert steps == sorted(steps)
        values = [*(one for _, one in reports), *(() if value is None else (value,))]
        assert all(math.isfinite(one) for one in values), values

    def test_the_same_parameters_and_seed_give_the_same_values(self) -> None:
        """All random numbers follow from `trial.seed`, and two seeds differ."""
        if not self.resumes:  # a second call would go on
            assert self.trained() == self.trained()
            assert self.trained()[0] != self.trained(seed=2)[0], "trial.seed has no effect"

    def test_it_ends_when_it_is_asked_to(self) -> None:
        """After `should_prune` has returned true, it reports nothing more."""
        reports, _ = self.trained(last=2)
        assert len(reports) == 2, f"it goes on to step {reports[-1][0]}"

    def test_it_goes_on_from_its_checkpoint(self) -> None:
        """A trial that was stopped continues after its last step, with the same parameters."""
        if self.resumes:
            before, _ = self.trained(last=2)
            after, _ = self.trained()
            assert after[0][0] > before[-1][0], f"it starts again at step {after[0][0]}"
