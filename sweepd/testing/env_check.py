"""A check of an environment against the contract of `VecEnv`, without pytest."""

from __future__ import annotations

import warnings
from typing import Any

from sweepd.testing.env_laws import LAWS
from sweepd.testing.env_runs import EnvRuns
from sweepd.testing.env_subject import subjects_of
from sweepd.testing.laws import BrokenLaw, NotChecked


def check_env(what: Any, *worlds: Any) -> None:
    """Check that an environment keeps the laws of the contract that training relies on.

    Warns if a law could not be checked, such as that of autoreset if no episode ended.

    Args:
        what: a game's class, a `Game`, its name for `--env`, a Gymnasium environment (class or
            function that makes one), or an `EnvSubject` for any other `VecEnv`.
        *worlds: parameters of members, which are tested with each other; by default the game's own.

    Raises:
        BrokenLaw: the environment breaks one law or more; the message has a sentence for each.
    """
    broken: list[BrokenLaw] = []
    for subject in subjects_of(what, worlds):
        runs = EnvRuns(subject)
        for name, law in LAWS.items():
            try:
                law(runs)
            except BrokenLaw as error:
                broken.append(error)
            except NotChecked as reason:
                warnings.warn(f"{subject.name}: {name} was not checked: {reason}", stacklevel=2)
            except Exception as error:
                sentence = f"{type(error).__name__}: {error}"
                broken.append(BrokenLaw(name, sentence))
        if broken:
            if len(broken) == 1:
                raise BrokenLaw(broken[0].law, f"{subject.name}: {broken[0].sentence}") from broken[
                    0
                ]
            said = "\n".join(f"  {error}" for error in broken)
            raise BrokenLaw(
                broken[0].law, f"{subject.name} breaks {len(broken)} laws:\n{said}"
            ) from broken[0]
