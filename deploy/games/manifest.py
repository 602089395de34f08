"""What the `bundle.json` of a game's player says, as a checked model."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, model_validator

from deploy.registry.bundle_files import MEMBERS_FILE, BaseManifest, ManifestPart

FORMAT: Final = "sweepd-game"
Scalars = dict[str, bool | int | float | str | None]


class GamePart(ManifestPart):
    """The game that it plays. params: what `Game.params` makes its parameters of; seats: players in a game."""

    name: str
    params: dict[str, Any]
    seats: int = Field(gt=0)


class PlayerPart(ManifestPart):
    """The policy. action_dim: numbers of an action, or options of all its choices; choices: the options of each, empty
    where actions are numbers; 0 and empty for a heuristic player. shape: of the program that trained it.
    """

    algorithm: str
    state_dim: int = Field(ge=0)
    action_dim: int = Field(ge=0)
    choices: tuple[int, ...]
    shape: dict[str, int | str | bool]

    @model_validator(mode="after")
    def _consistent(self) -> PlayerPart:
        if self.choices and sum(self.choices) != self.action_dim:
            raise ValueError(
                f"choices of {self.choices} options are not the {self.action_dim} of action_dim"
            )
        return self


class GameOriginPart(ManifestPart):
    """Which member of which trial it is, and how that was trained.

    member: its place among the trial's `members`, whose file of weights has the hash members_sha256. score: its mean
    return when the trial was judged; objective_value: the trial's. env_params: of the copies that it was trained in.
    """

    study: str
    study_uid: str
    trial: int = Field(ge=0)
    seed: int
    member: int = Field(ge=0)
    members: int = Field(gt=0)
    members_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    score: float
    objective: str
    objective_value: float
    parameters: Scalars
    learner_params: Scalars
    env_params: dict[str, Any]

    @model_validator(mode="after")
    def _consistent(self) -> GameOriginPart:
        if self.member >= self.members:
            raise ValueError(
                f"member {self.member} is none of {self.members} members, which count from 0"
            )
        return self


class GameManifest(BaseManifest):
    """All of a `bundle.json` but its hash. metrics: of the trial, when the search judged it; what the panel found is in
    `gate`.
    """

    format: Literal["sweepd-game"] = FORMAT
    format_version: Literal[1] = 1
    game: GamePart
    player: PlayerPart
    origin: GameOriginPart
    metrics: dict[str, Any]

    @model_validator(mode="after")
    def _consistent(self) -> GameManifest:
        if set(self.files) != {MEMBERS_FILE}:
            raise ValueError(f"files must list {MEMBERS_FILE} and nothing else")
        return self
