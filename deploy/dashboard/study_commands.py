"""Commands about a trial, which its page shows for the user to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from sweepd.deploy.promotion.studies import where_flags
from sweepd.envs.support.invocation import program
from sweepd.optimize.study.record.reader import StudyReader


def trial_commands(
    study: StudyReader, trial: int, params: Mapping[str, Any], *, playable: bool
) -> list[tuple[str, str]]:
    """Return commands that run as printed, each with its purpose.

    Args:
        study: the study.
        trial: number of the trial.
        params: its parameters.
        playable: whether its best member can play the study's game.
    """
    where, name = where_flags(study), f"{study.name}#{trial}"
    found = []
    if params and not study.spec.evolves:
        values = [f"{key}={value}" for key, value in params.items()]
        words = ["enqueue", study.name, *values, *where]
        found.append((words, "try these parameters again in this study, with another seed"))
    if study.origin is None or not study.changes_with:  # otherwise its parameters do not repeat it
        found.append(
            (["run", "--trial", name, *where], "train them on new seeds, in a study of its own")
        )
    if playable:
        words = ["play", "--trial", name, *where]
        found.append((words, "watch its best member play in the terminal"))
    return [(f"{program()} {shlex.join(words)}", purpose) for words, purpose in found]
