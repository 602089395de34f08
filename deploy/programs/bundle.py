"""The bundle of a program: the files that one of its runs wrote to `SWEEPD_OUT`.

sweepd cannot act with them; it keeps them whole, and shows where they come from.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sweepd.deploy.programs.manifest import FORMAT, OriginPart, ProgramManifest
from sweepd.deploy.registry.bundle_files import (
    PROGRAM,
    BundleFacts,
    StoredBundle,
    TrainedTrial,
    canonical_json,
    sha256,
)
from sweepd.envs.support.errors import InputError

_FUNCTION = re.compile(r"[\w.]+:([\w.]+)")  # `MODULE:NAME`


@dataclass(frozen=True)
class ProgramBundle(StoredBundle[ProgramManifest]):
    """A bundle of a program's files."""

    kind = PROGRAM
    format = FORMAT
    versions = {1: ProgramManifest}  # noqa: RUF012 (declared as a class variable)
    streamed = True
    files: Mapping[str, Path]

    @property
    def origin(self) -> OriginPart:
        """Study, trial and run that the files come from."""
        return self.manifest.origin

    @property
    def members_sha256(self) -> str:
        """Identity of the files, and of the parameters of the command that wrote them."""
        program = self.manifest.program
        content = {
            "command": program.command,
            "parameters": program.parameters,
            "files": {name: part.sha256 for name, part in self.manifest.files.items()},
        }
        return sha256(canonical_json(content).encode())

    @property
    def facts(self) -> BundleFacts:
        """What the registry records about it."""
        origin, subject = self.origin, program_key(self.manifest.program.command)
        return BundleFacts(subject, origin.study, origin.study_uid, origin.trial)

    @property
    def trained(self) -> tuple[TrainedTrial, ...]:
        """See `StoredBundle.trained`."""
        raise InputError(
            f"bundle {self.name} holds the files of a program, which sweepd does not train; to run "
            f"it again with its parameters: sweepd run --trial {self.origin.study}#{self.origin.trial}"
        )

    def retrained(self, contents: Sequence[bytes]) -> ProgramBundle:
        """See `StoredBundle.retrained`."""
        raise NotImplementedError

    def check(self) -> None:
        """The manifest says everything; the files are checked where they are read or written."""


def program_key(command: str) -> str:
    """The key of a command, under which its evaluations are counted."""
    return f"command:{command}"


def program_name(command: str) -> str:
    """The name of a command: of its script, function or module, else of its program.

    `python train.py --lr {lr}` is `train`, `python -m pkg.train` is `pkg.train`, and
    `python -m runner pkg:train`, where a module calls a function, is `train`.
    """
    program, *others = shlex.split(command)
    if "-m" in others[:-1]:
        module, *rest = others[others.index("-m") + 1 :]
        called = _FUNCTION.fullmatch(rest[0]) if rest else None
        return module if called is None else called[1]
    scripts = [
        word
        for word in others
        if not word.startswith("-") and "{" not in word and PurePosixPath(word).suffix
    ]
    return PurePosixPath(next(iter(scripts), program)).stem
