"""The suite for vectorized environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from sweepd.testing.env_laws import LAWS
from sweepd.testing.env_runs import EnvRuns
from sweepd.testing.env_subject import EnvSubject, subjects_of
from sweepd.testing.laws import BrokenLaw, NotChecked


class VecEnvTestCase:
    """The laws of the contract of `VecEnv`. A subclass says which environment is tested:

        class TestMyGame(VecEnvTestCase):
            env = MyGame
            worlds = (Wind(0.1), Wind(2.0))

    A law about what an environment does not have, such as masks, is kept. One that could not be
    checked, such as the law of autoreset where no episode ended, is skipped.

    Attributes:
        env: what `check_env` takes.
        worlds: parameters of members; by default the game's own.
    """

    env: ClassVar[Any]
    worlds: ClassVar[Sequence[Any]] = ()

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        """Return what is tested; override it to change numbers of steps or rows."""
        return subjects_of(cls.env, cls.worlds)

    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls) -> list[EnvRuns]:
        """Runs of the environment in every form that is tested."""
        return [EnvRuns(subject) for subject in cls.subjects()]

    @pytest.mark.parametrize("law", LAWS)
    def test_law(self, law: str, runs: list[EnvRuns]) -> None:
        """The environment keeps the law."""
        reasons = []
        for own in runs:
            try:
                LAWS[law](own)
            except BrokenLaw as error:
                raise BrokenLaw(law, f"{own.subject.name}: {error.sentence}") from error
            except NotChecked as reason:
                reasons.append(f"{own.subject.name}: {reason}")
        if len(reasons) == len(runs):
            pytest.skip("; ".join(reasons))
