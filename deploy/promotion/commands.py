"""Commands that lead on from a verdict: on the same study, and on a new one with its settings.

Each line runs as printed, in any shell, in the folder in which the study was created.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.studies import where_flags
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.database_url import remove_password, sqlite_path
from sweepd.envs.support.invocation import program, shown_path
from sweepd.optimize.study.record.folder import RUNS
from sweepd.optimize.study.record.reader import StudyReader

# Flags of a study that a similar one does not share: its name and size, and those of one process.
_OWN = frozenset(
    (
        "study_name",
        "n_trials",
        "runs_dir",
        "alongside",
        "log_file",
        "log_format",
        "metrics_port",
        "track",
    )
)


def on_study(command: str, study: StudyReader, *words: object) -> str:
    """Return a command on a study.

    Args:
        command: its name.
        study: the study.
        words: its other flags and their values.
    """
    named = ["--study-name", study.name, *where_flags(study), *map(str, words)]
    return f"{program()} {command} {shlex.join(named)}"


def promote_again(study: StudyReader, registry: Registry, flags: PromoteFlags) -> str:
    """Return the command of a dry run without `--dry-run`."""
    words = [
        word
        for field in fields(PromoteFlags)
        if field.name not in ("study_name", "storage", "runs_dir", "dry_run", "as_json")
        and (value := getattr(flags, field.name)) != field.default
        for word in _words(field.name, value)
    ]
    return f"{on_study('promote', study, *words)}{registry_flags(registry)}"


def new_study(study: StudyReader, n_trials: int, **changes: Any) -> str | None:
    """Return the command that creates a study with the settings of another one.

    Args:
        study: the other study.
        n_trials: number of trials of the new one.
        changes: settings that differ, by name; None leaves a setting out.

    Returns:
        None where the command line cannot repeat the study: it was created by Python objects, its
        search space is a file that is not there, or its settings are not recorded.
    """
    if "given" not in study.flags:
        return None
    given = {name: study.flags[name] for name in study.flags["given"] if name not in _OWN}
    values = {"budget": study.spec.budget, **given, **changes}
    space = str(values.get("search_space") or "")
    if space.endswith(".toml") and not Path(space).exists():
        return None
    if "__main__" in study.spec.environment:
        return None
    folder = study.run_dir.parent
    words = ["--study-name", _free_name(study), "--n-trials", str(n_trials)]
    if folder != RUNS.resolve():
        words += ["--runs-dir", shown_path(folder)]
    file = sqlite_path(study.storage.url)
    if file is None or file.resolve() != folder / "sweepd.db":
        words += ["--storage", remove_password(study.storage.url)]
    words += [word for name, value in values.items() for word in _words(name, value)]
    return f"{program()} train {shlex.join(words)}"


def _words(name: str, value: Any) -> Sequence[str]:
    """Return a setting as words of the command line."""
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, Mapping):
        return [word for key, own in value.items() for word in (flag, f"{key}={own}")]
    if isinstance(value, list | tuple):
        return [word for one in value for word in (flag, str(one))]
    return [flag, f"{value:.15g}" if isinstance(value, float) else str(value)]


def _free_name(study: StudyReader) -> str:
    """Return the first of NAME-2, NAME-3, … that the database has no study of."""
    taken = set(study.storage.study_ids())
    return next(
        name for count in itertools.count(2) if (name := f"{study.name}-{count}") not in taken
    )
