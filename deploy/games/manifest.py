"""The manifest (`bundle.json`) of a game's player, as a validated model."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, BaseManifest
from sweepd.envs.support.validation import StrictModel
from sweepd.optimize.study.record.specs import Play

FORMAT: Final = "sweepd-game"
Scalars = dict[str, bool | int | float | str | None]


class GamePart(StrictModel):
    """The game. params: keyword arguments of `Game.params`. seats: players in a game."""

    name: str
    params: dict[str, Any]
    seats: int = Field(gt=0)


class PlayerPart(StrictModel):
    """The policy.

    Attributes:
        algorithm: that trained it.
        state_dim: size of an observation, 0 for a heuristic player.
        action_dim: numbers in an action, or options of all choices; 0 for a heuristic player.
        choices: number of options of each choice, empty if actions are numbers.
        shape: of the program that trained it.
        play: whether it takes its most probable actions or draws them. Random numbers come from the
            recorded seed of the panel, or the seed of `sweepd play`.
        spaces: the spaces of one player's observations and actions, as `SpaceCodec.to_dict` gives
            them; None: there are none (players in turns, choices that depend on each other).
    """

    algorithm: str
    state_dim: int = Field(ge=0)
    action_dim: int = Field(ge=0)
    choices: tuple[int, ...]
    shape: dict[str, int | str | bool]
    play: Play
    spaces: dict[str, Any] | None

    @model_validator(mode="after")
    def _consistent(self) -> PlayerPart:
        if self.choices and sum(self.choices) != self.action_dim:
            raise ValueError(
                f"choices of {self.choices} options are not the {self.action_dim} of action_dim"
            )
        return self


class TeamPlayerPart(PlayerPart):
    """A team. seats: by seat of the game, the member of the file of weights that plays it."""

    seats: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)


class OriginPart(StrictModel):
    """Origin of a player or a team.

    Attributes:
        study: name of the study.
        study_uid: unique id of the study.
        trial: number of the trial.
        seed: of the trial.
        members: number of the trial's members.
        members_sha256: hash of the trial's file of weights.
        objective: name of the objective.
        objective_value: the trial's value.
        parameters: sampled parameters.
        learner_params: all parameters of the algorithm.
        env_params: parameters of the training environments.
    """

    study: str
    study_uid: str
    trial: int = Field(ge=0)
    seed: int
    members: int = Field(gt=0)
    members_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    objective: str
    objective_value: float
    parameters: Scalars
    learner_params: Scalars
    env_params: dict[str, Any]

    @property
    def chosen(self) -> tuple[int, ...]:
        """Indices in the trial of the members that the file of weights holds."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _consistent(self) -> OriginPart:
        for member in self.chosen:
            if member >= self.members:
                raise ValueError(
                    f"member {member} is not one of {self.members} members, counted from 0"
                )
        return self


class GameOriginPart(OriginPart):
    """Origin of a single player.

    Attributes:
        member: index of the member in the trial.
        score: the member's mean return when the trial was judged.
    """

    member: int = Field(ge=0)
    score: float

    @property
    def chosen(self) -> tuple[int, ...]:
        """See `OriginPart.chosen`."""
        return (self.member,)


class TeamOriginPart(OriginPart):
    """Origin of a team.

    Attributes:
        team: indices in the trial of the members of the file of weights, in order.
        scores: the mean return of each when the trial was judged, where it played at every seat.
    """

    team: tuple[Annotated[int, Field(ge=0)], ...]
    scores: tuple[float, ...]

    @property
    def chosen(self) -> tuple[int, ...]:
        """See `OriginPart.chosen`."""
        return self.team


class PlayerManifest(BaseManifest):
    """The content of `bundle.json` without its hash.

    metrics: of the trial when the search judged it; `gate` has the result of the panel.
    """

    format: Literal["sweepd-game"] = FORMAT
    format_version: int
    game: GamePart
    player: PlayerPart
    origin: OriginPart
    metrics: dict[str, Any]

    @property
    def seats(self) -> tuple[int, ...]:
        """Of a team: by seat, the member of the file of weights that plays it; else ()."""
        return ()

    @model_validator(mode="after")
    def _consistent(self) -> PlayerManifest:
        if set(self.files) != {MEMBERS_FILE}:
            raise ValueError(f"files must list {MEMBERS_FILE} and nothing else")
        return self


class GameManifest(PlayerManifest):
    """The manifest of a single player."""

    format_version: Literal[1] = 1
    origin: GameOriginPart


class TeamManifest(PlayerManifest):
    """The manifest of a team."""

    format_version: Literal[2] = 2
    player: TeamPlayerPart
    origin: TeamOriginPart

    @property
    def seats(self) -> tuple[int, ...]:
        """See `PlayerManifest.seats`."""
        return self.player.seats

    @model_validator(mode="after")
    def _fitting(self) -> TeamManifest:
        count = len(self.origin.team)
        if len(self.seats) != self.game.seats or set(self.seats) != set(range(count)):
            raise ValueError(
                f"seats {list(self.seats)} must name one of {count} members for each of the "
                f"{self.game.seats} seats, and every member"
            )
        return self
