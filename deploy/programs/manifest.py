"""The manifest (`bundle.json`) of a program's files, as a validated model."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from sweepd.deploy.registry.bundle_files import BaseManifest
from sweepd.envs.support.validation import StrictModel

FORMAT: Final = "sweepd-program"
FOLDER: Final = "files"  # of the program's files in a bundle
Scalars = dict[str, bool | int | float | str | None]


class ProgramPart(StrictModel):
    """The program.

    Attributes:
        command: its words, with names of parameters in braces.
        words: those of the run that wrote the files, with values in place of the names.
        parameters: of the program, as it is given them.
        budget: the steps that it should make.
    """

    command: str
    words: tuple[str, ...] = Field(min_length=1)
    parameters: Scalars
    budget: int = Field(gt=0)


class OriginPart(StrictModel):
    """Origin of the files.

    Attributes:
        study: name of the study that selected the parameters.
        study_uid: unique id of that study.
        trial: number of its (best) trial with these parameters.
        trials: numbers of all of them.
        objective_value: the value that the parameters were selected by.
        run: the study that ran the program with fresh seeds.
        run_uid: unique id of that study.
        run_trial: number of its trial.
    """

    study: str
    study_uid: str
    trial: int = Field(ge=0)
    trials: tuple[int, ...] = Field(min_length=1)
    objective_value: float
    run: str
    run_uid: str
    run_trial: int = Field(ge=0)


class FreshPart(StrictModel):
    """The values on fresh seeds.

    Attributes:
        values: of all fresh seeds, in their order.
        seeds: what the program was given as its seed, in the same order.
        chosen: index of the run whose files the bundle holds: the one with the highest value, which
            is therefore biased upwards; the mean over all fresh seeds is not.
    """

    values: tuple[float, ...] = Field(min_length=1)
    seeds: tuple[int, ...]
    chosen: int = Field(ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> FreshPart:
        if len(self.seeds) != len(self.values) or self.chosen >= len(self.values):
            raise ValueError(
                f"fresh has {len(self.values)} values, {len(self.seeds)} seeds and the chosen run "
                f"{self.chosen}, counted from 0"
            )
        return self


class ProgramManifest(BaseManifest):
    """The content of `bundle.json` without its hash.

    metrics: the further numbers of the last reports, means over the fresh seeds.
    """

    format: Literal["sweepd-program"] = FORMAT
    format_version: Literal[1] = 1
    program: ProgramPart
    origin: OriginPart
    fresh: FreshPart
    metrics: dict[str, Any]

    @model_validator(mode="after")
    def _consistent(self) -> ProgramManifest:
        if not self.files:
            raise ValueError("files lists no file")
        for name in self.files:
            parts = PurePosixPath(name).parts
            if len(parts) < 2 or parts[0] != FOLDER or ".." in parts or name != "/".join(parts):
                raise ValueError(f"files lists {name!r}, which is no path in {FOLDER}/")
        return self
