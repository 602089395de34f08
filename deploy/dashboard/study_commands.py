"""Commands about a trial, which its page shows for the user to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from sweepd.deploy.promotion.studies import where_flags
from sweepd.envs.support.invocation import program
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import GameSpec


def trial_commands(
    study: StudyReader, trial: int, params: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return commands that run as printed, each with its purpose."""
    where, name = where_flags(study), f"{study.name}#{trial}"
    found = []
    if params and not study.spec.evolves:
        values = [f"{key}={value}" for key, value in params.items()]
        words = ["enqueue", study.name, *values, *where]
        found.append((words, "try these parameters again in this study, with another seed"))
    found.append(
        (["run", "--trial", name, *where], "train them on new seeds, in a study of its own")
    )
    if isinstance(study.spec, GameSpec) and not is_command(study.spec.environment):
        words = ["play", "--trial", name, *where]
        found.append((words, "watch its best member play in the terminal"))
    return [(f"{program()} {shlex.join(words)}", purpose) for words, purpose in found]
