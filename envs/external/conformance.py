"""Does an environment keep to its own spaces and seeds? Found out by playing one copy at random.

Training copies observations into rows without asking whether they belong to their space: a choice
that the space does not have would become zeros, and a longer vector the beginning of the next row.
So it is checked before training, and not in every step.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sweepd.envs.external import roles
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.external.describe import Description, EnvKind, one_reward
from sweepd.envs.external.observations import shape_of
from sweepd.envs.external.sources import VERSUS, FactorySource, Source
from sweepd.envs.support.errors import RunError

STEPS, SECONDS = 256, 1.0  # of either of two plays, at most
_SMALL = 1e-6  # of rewards that add up to 0, relative to the largest
Moment = tuple[bytes, float, bool]  # an observation, the reward, and whether the episode ended


@dataclass
class Conformance:
    """What was found.

    Attributes:
        steps: number of steps in either play; 0 if environments of the kind are not checked.
        problems: what training cannot use, by subject: "spaces", "rewards", "zero-sum".
        repeatable: why a seed does not repeat an episode; "" if it does.
        apart: that the agents' rewards differ, and by which flag each role gets its own; "" if not.
        notes: what training can use and other programs may not, such as an observation slightly
            outside its bounds.
    """

    steps: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    repeatable: str = ""
    apart: str = ""
    notes: list[str] = field(default_factory=list)


def check_conformance(
    source: Source,
    kwargs: Mapping[str, Any],
    what: Description,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
) -> Conformance:
    """Play one environment twice with the same seed and actions, and compare.

    Args:
        source: what makes an environment.
        kwargs: its arguments.
        what: what `describe` says of it.
        steps: at most, in either play.
        seconds: at most, in either play.

    Raises:
        Exception: what the environment raises.
    """
    found = Conformance()
    kinds = {EnvKind.SINGLE: _Single, EnvKind.MASKED: _Single, EnvKind.PARALLEL: _Parallel}
    if what.kind not in kinds:
        return found
    made_by = source.name if isinstance(source, FactorySource) else ""
    with contextlib.closing(source.make(kwargs).env) as env:
        player = kinds[what.kind](env, what, found, made_by)
        first = _play(player, steps, seconds)
        found.steps = len(first) - 1
        if not found.problems:
            player.check_sums()
            _compare(first, _play(player, found.steps, 2.0 * seconds), found)
    return found


def _play(player: _Single, steps: int, seconds: float) -> list[Moment]:
    """Play for so many steps; the first moment is that of the reset."""
    rng, ends = np.random.default_rng(0), time.monotonic() + seconds
    moments = [player.reset(0)]
    while len(moments) <= steps and time.monotonic() < ends and not player.found.problems:
        moments.append(player.step(rng))
        if moments[-1][2]:
            player.reset(None)
    return moments


def _compare(first: list[Moment], second: list[Moment], found: Conformance) -> None:
    for step, (one, other) in enumerate(zip(first, second, strict=False)):
        for name, old, new in zip(("observation", "reward", "end"), one, other, strict=True):
            if old != new:
                when = "after reset(seed=0)" if step == 0 else f"in step {step} after it"
                found.repeatable = (
                    f"reset(seed=0) twice does not give the same episode: the {name} {when} "
                    "differs, with the same actions; repeats of a trial give other numbers, and a "
                    "resumed one begins new episodes. Draw random numbers from self.np_random, and "
                    "call super().reset(seed=seed)"
                )
                return


class _Single:
    """A Gymnasium environment, with or without masks."""

    def __init__(self, env: Any, what: Description, found: Conformance, name: str) -> None:
        self.env, self.found, self.name = env, found, name
        self._codec = SpaceCodec.of(what)
        self._flags: Any = None

    def reset(self, seed: int | None) -> Moment:
        observation, info = self.env.reset(seed=seed)
        return self._look(observation, info), 0.0, False

    def step(self, rng: np.random.Generator) -> Moment:
        observation, reward, terminated, truncated, info = self.env.step(self._draw(rng, 1)[0])
        over = bool(terminated or truncated)
        return self._look(observation, info), self._reward(reward), over

    def check_sums(self) -> None:
        """Check what rewards of several agents add up to."""

    def _draw(self, rng: np.random.Generator, rows: int) -> list[Any]:
        """Return random legal actions."""
        actions = self._codec.actions
        if not actions.discrete:
            numbers = rng.uniform(-1.0, 1.0, (rows, actions.width)).astype(actions.dtype)
            return actions.decode(numbers)
        chances = rng.random((rows, sum(actions.choices)))
        if self._flags is not None:
            chances = np.where(self._flags, chances, -1.0)
        parts = np.split(chances, np.cumsum(actions.choices)[:-1], axis=1)
        return actions.decode(np.stack([part.argmax(1) for part in parts], 1))

    def _look(self, observation: Any, info: Any) -> bytes:
        """Check an observation; return its bytes."""
        self._flags = None
        try:
            if self._codec.batch_size(observation) is not None:
                raise RunError(
                    f"its shape is that of several observations: {shape_of(observation)}"
                )
            inputs, self._flags = self._codec.read(observation)
            if self._codec.masks_in_info:
                self._flags = self._codec.legal(info, None)
        except RunError as error:
            self.found.problems.setdefault(
                "spaces",
                f"an observation is not of the space {self._codec.observation_space}: {error}",
            )
            return b""
        space = self._codec.observation_space
        if not self.found.notes and not space.contains(observation):
            self.found.notes.append(
                f"an observation, {shape_of(observation)}, is of another type than {space}, or "
                "outside its bounds, which training does not need"
            )
        return inputs.tobytes()

    def _reward(self, reward: Any) -> float:
        try:
            value = one_reward(reward)
        except ValueError as error:
            self.found.problems.setdefault("rewards", str(error))
            return 0.0
        if not np.isfinite(value):
            self.found.problems.setdefault("rewards", f"a reward is {value}")
        return value


class _Parallel(_Single):
    """A PettingZoo parallel environment."""

    def __init__(self, env: Any, what: Description, found: Conformance, name: str) -> None:
        super().__init__(env, what, found, name)
        self._largest = self._largest_sum = 0.0
        self._differ: dict[Any, float] = {}  # the first rewards that were not the same for all
        self._masks: dict[Any, Any] = {}

    def reset(self, seed: int | None) -> Moment:
        observations, infos = self.env.reset(seed=seed)
        return self._look_at(observations, infos), 0.0, False

    def step(self, rng: np.random.Generator) -> Moment:
        actions = {}
        for agent in self.env.agents:
            self._flags = self._masks.get(agent)
            (actions[agent],) = self._draw(rng, 1)
        observations, rewards, _, _, infos = self.env.step(actions)
        found = [self._reward(reward) for reward in rewards.values()]
        self._largest = max([self._largest, *map(abs, found)])
        self._largest_sum = max(self._largest_sum, abs(sum(found)))
        if len(set(found)) > 1 and not self._differ:
            self._differ = dict(zip(rewards, found, strict=True))
        return self._look_at(observations, infos), sum(found), not self.env.agents

    def check_sums(self) -> None:
        """Check what rewards of several agents add up to."""
        if self._largest > 0.0 and self._largest_sum <= _SMALL * self._largest:
            agents = self.env.possible_agents
            mend = (
                f"--env {VERSUS}{self.name} makes it a game of two players"
                if len(agents) == 2 and self.name
                else f"add {roles.FLAG} {shlex.quote(roles.suggested_roles(agents))}"
            )
            self.found.problems["zero-sum"] = (
                "the rewards of its agents always add up to 0, as far as random play shows: one's "
                "gain is the others' loss. One policy plays all agents here and is judged by the "
                f"sum, which says nothing; {mend}"
            )
        elif self._differ:
            shown = ", ".join(f"{agent} {value:g}" for agent, value in self._differ.items())
            given = shlex.quote(roles.suggested_roles(self.env.possible_agents))
            self.found.apart = (
                f"its agents have rewards of their own (such as {shown}), and one policy is trained "
                f"for their sum; {roles.FLAG} {given} trains one policy per role"
            )

    def _look_at(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> bytes:
        seen = []
        for agent, observation in observations.items():
            seen.append(self._look(observation, infos.get(agent)))
            self._masks[agent] = self._flags
        return b"".join(seen)
