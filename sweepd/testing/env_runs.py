"""Runs of an environment that its laws compare: actions that depend on a member alone, and records.

A unit is one member, or the members that play with each other (`EnvSubject.together`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import Step, VecEnv
from sweepd.testing.env_subject import EnvSubject

ROLLOUT = 16  # steps that are drawn ahead
_LONG_AGO = 2**40  # steps since a truncation that never was
UNITS = 3  # in the run that others are compared with


class Seen(NamedTuple):
    """What the rows of a unit got in one step.

    Attributes:
        action: what they did.
        step: what the step returned.
        final: `final_obs`, with zeros in rows without a completed episode.
        rest: the next step's mask, and who is present or to move.
    """

    action: Tensor
    step: Step
    final: Tensor
    rest: tuple[Tensor, ...]


class Batch:
    """An environment with a unit in each of its places, and each unit's source of actions.

    A unit's actions depend on its number and its own masks only.

    Attributes:
        subject: what is tested.
        env: the environment.
        units: the unit in each place.
        completed: (num_envs,) bool, the rows in which an episode ended.
    """

    def __init__(
        self, subject: EnvSubject, units: Sequence[int], games: int = 0, device: str = "cpu"
    ) -> None:
        self.subject, self.units = subject, list(units)
        worlds = [world for unit in units for world in worlds_of(subject, unit)]
        self.env = subject.make(worlds, games or subject.games, device)
        self.completed = torch.zeros(self.env.num_envs, dtype=torch.bool)
        self._sources = [torch.Generator() for _ in units]

    def reset(self) -> Tensor:
        """Restart every unit from its own seeds; return the first observations."""
        for place in range(len(self.units)):
            self.restart_actions(place)
        self.completed.zero_()
        return self.env.reset(
            [seed for unit in self.units for seed in seeds_of(self.subject, unit)]
        )

    def restart_actions(self, place: int) -> None:
        """Begin the actions of the unit in this place from their start."""
        self._sources[place].manual_seed(1000 + self.units[place])

    def skip_actions(self, place: int, steps: int) -> None:
        """Leave out the next actions of the unit in this place."""
        for _ in range(steps):
            self._numbers(place)

    def members(self, place: int) -> range:
        """Return the members of a unit."""
        own = self.subject.together
        return range(place * own, (place + 1) * own)

    def rows(self, place: int) -> slice:
        """Return the rows of a unit."""
        own = self.subject.together * self.env.envs_per_member
        return slice(place * own, (place + 1) * own)

    def actions(self) -> Tensor:
        """Return legal actions of all rows."""
        env = self.env
        numbers = torch.cat([self._numbers(place) for place in range(len(self.units))])
        numbers = numbers.to(env.device)
        if not env.if_discrete:
            return 2.0 * numbers - 1.0
        chosen = torch.zeros(env.num_envs, 0, dtype=torch.int64, device=env.device)
        for part in numbers.split_with_sizes(env.spec.choices, 1):
            if env.spec.masked:
                part = part.masked_fill(~env.action_mask(chosen), -1.0)
            chosen = torch.cat((chosen, part.argmax(1, keepdim=True)), 1)
        return chosen if env.spec.action_dims else chosen[:, 0]

    def _numbers(self, place: int) -> Tensor:
        """Draw the numbers from which the actions of a place are made."""
        env, rows = self.env, self.rows(place)
        width = sum(env.spec.choices) if env.if_discrete else env.action_dim
        return torch.rand(rows.stop - rows.start, width, generator=self._sources[place])

    def step(self, out: Tensor | None = None) -> tuple[Tensor, Step]:
        """Make a step with legal actions; return them and its result."""
        action = self.actions()
        made = self.env.step(action, out=out)
        self.completed |= (made.terminated | made.truncated).cpu()
        return action, made

    def seen(self, place: int, action: Tensor, made: Step) -> Seen:
        """Return copies of what a unit got in a step."""
        rows = self.rows(place)
        final = self.env.final_obs()[rows].clone()
        # Elsewhere, it is not defined.
        final[~self.completed[rows].to(final.device)] = 0
        own = Step(*(part[rows].clone() for part in made))
        return Seen(
            action[rows].clone(), own, final, tuple(part[rows].clone() for part in rest(self.env))
        )

    def play(self, steps: int, *, out: bool = False) -> list[list[Seen]]:
        """Play rollouts; return what each unit saw in every step.

        Args:
            steps: number of steps, a multiple of `ROLLOUT`.
            out: whether the environment writes its observations into a given tensor.
        """
        found: list[list[Seen]] = [[] for _ in self.units]
        for step in range(steps):
            if step % ROLLOUT == 0:
                self.env.draw(ROLLOUT)
            action, made = self.step(self.buffer() if out else None)
            for place, records in enumerate(found):
                records.append(self.seen(place, action, made))
        return found

    def buffer(self) -> Tensor:
        """Return a buffer for observations with arbitrary content."""
        env = self.env
        size = env.num_envs, env.spec.obs_dim
        return torch.full(size, 77, dtype=env.spec.torch_dtype, device=env.device)


def worlds_of(subject: EnvSubject, unit: int) -> list[Any]:
    """Return the parameters of a unit's members."""
    first = unit * subject.together
    every = subject.worlds
    return [every[(first + own) % len(every)] for own in range(subject.together)]


def seeds_of(subject: EnvSubject, unit: int) -> list[int]:
    """Return the seeds of a unit's members."""
    return [derive_seed("law", unit, own) for own in range(subject.together)]


def rest(env: VecEnv) -> tuple[Tensor, ...]:
    """Return what an environment tells besides observations: mask, presence, and the mover."""
    found = []
    if env.spec.masked:
        nothing = torch.zeros(env.num_envs, 0, dtype=torch.int64, device=env.device)
        found.append(env.action_mask(nothing))
    if env.spec.has_absent_agents:
        found.append(env.present())
    if env.spec.players > 1:
        found.append(env.to_move())
    return tuple(found)


def difference(one: Sequence[Seen], other: Sequence[Seen], first: int = 1) -> str:
    """Return where two records differ first, in words; "" if they are equal to the bit.

    Args:
        one: a record.
        other: another of as many steps.
        first: number of their first step.
    """
    for step, (mine, theirs) in enumerate(zip(one, other, strict=True), first):
        pairs = [
            ("the observation", mine.step.obs, theirs.step.obs),
            ("the reward", mine.step.reward, theirs.step.reward),
            ("terminated", mine.step.terminated, theirs.step.terminated),
            ("truncated", mine.step.truncated, theirs.step.truncated),
            ("final_obs", mine.final, theirs.final),
            *(
                ("the mask or the mover", *both)
                for both in zip(mine.rest, theirs.rest, strict=True)
            ),
            # Last, because it follows from a mask.
            ("the action", mine.action, theirs.action),
        ]
        for name, here, there in pairs:
            if not torch.equal(here, there):
                row = int((here != there).reshape(len(here), -1).any(1).byte().argmax())
                return (
                    f"{name} of row {row} of the member is {_shown(here[row])} in step {step}, and "
                    f"{_shown(there[row])}"
                )
    return ""


def _shown(row: Tensor) -> str:
    """Return a row's numbers, the first few of many."""
    numbers = row.tolist() if row.dim() == 0 else row.flatten()[:6].tolist()
    more = row.numel() > 6
    return f"{numbers}" if not more else f"[{', '.join(map(str, numbers))}, …]"


class EnvRuns:
    """Runs of a subject, each made once, which several laws look at.

    Attributes:
        subject: what is tested.
        found: what was found during the runs, a sentence by law.
    """

    def __init__(self, subject: EnvSubject) -> None:
        self.subject = subject
        self.found: dict[str, str] = {}

    def note(self, law: str, sentence: str) -> None:
        """Keep the first thing that was found about a law."""
        self.found.setdefault(law, sentence)

    @cached_property
    def together(self) -> Together:
        """The run of several units that others are compared with, watched at every step."""
        return Together(self)

    @cached_property
    def alone(self) -> list[Seen]:
        """Unit 1 alone, which writes its observations into a given tensor."""
        batch = Batch(self.subject, [1])
        batch.reset()
        found = batch.play(self.subject.steps, out=True)[0]
        # The same again, in the environment that was used.
        batch.reset()
        short = batch.play(ROLLOUT, out=False)[0]
        if where := difference(found[:ROLLOUT], short):
            self.note("same_seed", f"after another reset with the same seed, {where} before it")
        return found


class Together:
    """A run of `UNITS` units, in which everything is looked at that one run can show.

    Attributes:
        env: the environment.
        records: what each unit saw.
        middle: the states of each unit's members after half of the steps, as they were then.
        completed: (num_envs,) bool, the rows in which an episode had ended by then.
        ended: number of episodes that ended.
    """

    def __init__(self, runs: EnvRuns) -> None:
        self._runs = runs
        batch = self._batch = Batch(runs.subject, range(UNITS))
        env = self.env = batch.env
        self._watch_start(batch.reset())
        self.records: list[list[Seen]] = [[] for _ in batch.units]
        self.middle: list[list[dict[str, Tensor]]] = []
        self.ended, self._varies = 0, False
        self._kept: list[tuple[Step, Step]] = []  # results of steps, and copies of them
        self._length = torch.zeros(env.num_envs, dtype=torch.int64)
        self._since = torch.full((env.num_envs,), _LONG_AGO)  # steps since the latest truncation
        self._return = torch.zeros(env.num_envs, dtype=torch.float64)
        self._first = env.observe().clone()
        self._different_final, self._looked_at = False, 0
        self._moved_in_draw = False
        for step in range(runs.subject.steps):
            if step == runs.subject.steps // 2:
                self._take_members()
            if step % ROLLOUT == 0:
                self._draw()
            self._step(step)
        self._finish()

    def _note(self, law: str, sentence: str) -> None:
        self._runs.note(law, sentence)

    def _watch_start(self, obs: Tensor) -> None:
        if not torch.equal(obs, self.env.observe()):
            self._note("autoreset", "reset returns other observations than observe after it")

    def _take_members(self) -> None:
        env = self.env
        places = range(len(self._batch.units))
        states = [[env.get_member(own) for own in self._batch.members(place)] for place in places]
        self._taken = [(state, copied(state)) for unit in states for state in unit]
        self.middle = [[copied(state) for state in unit] for unit in states]
        self.completed = self._batch.completed.clone()

    def _draw(self) -> None:
        env = self.env
        before = env.observe().clone()
        env.draw(ROLLOUT)
        after = env.observe()
        if not env.rematches:
            if not torch.equal(before, after):
                self._note("rematching", "draw changes observations, but rematches is False")
            return
        self._moved_in_draw |= not torch.equal(before, after)
        # Rows go on with other episodes.
        self._length.zero_()
        self._since.fill_(_LONG_AGO)
        for place in range(len(self._batch.units)):
            rows = self._batch.rows(place)
            if sorted(before[rows].tolist()) != sorted(after[rows].tolist()):
                self._note(
                    "rematching",
                    "draw changes observations; it may only give rows to other members of the same "
                    "games",
                )

    def _step(self, step: int) -> None:
        env, batch = self.env, self._batch
        before = env.final_obs().clone()
        action = batch.actions()
        given = action.clone()
        made = env.step(action)
        if not torch.equal(action, given):
            self._note("callers_tensors", f"step {step + 1} changes the actions that it was given")
        copy = Step(*(part.clone() for part in made))
        self._kept.append((made, copy))
        done = made.terminated | made.truncated
        batch.completed |= done.cpu()
        self._watch_obs(step, made, done, before)
        self._watch_ends(made, done.cpu())
        for place, records in enumerate(self.records):
            records.append(batch.seen(place, action, made))

    def _watch_obs(self, step: int, made: Step, done: Tensor, before: Tensor) -> None:
        env = self.env
        if not torch.equal(made.obs, env.observe()):
            self._note(
                "autoreset",
                f"step {step + 1} returns other observations than observe after it, which are those "
                "of the new episodes",
            )
        final = env.final_obs()
        changed = (final != before).any(1) & ~done
        if bool((changed & self._batch.completed.to(done.device)).any()):
            row = int(changed.byte().argmax())
            self._note(
                "autoreset",
                f"final_obs of row {row} changes in step {step + 1}, in which no episode ended there",
            )
        # Games in turns are never truncated, so no one reads their final observations.
        rows = made.truncated if env.spec.players > 1 or env.spec.has_absent_agents else done
        self._varies |= bool((made.obs != self._first).any())
        self._looked_at += int(rows.sum())
        self._different_final |= bool((final[rows] != made.obs[rows]).any())

    def _watch_ends(self, made: Step, done: Tensor) -> None:
        env = self.env
        self._length += 1
        self._since += 1
        if bool((self._length > env.max_step).any()):
            self._note(
                "episode_ends", f"an episode has not ended after {env.max_step} steps, its max_step"
            )
        early = done & (self._since < env.bootstrap_interval)
        if bool(early.any()):
            row = int(early.byte().argmax())
            self._note(
                "episode_ends",
                f"an episode of row {row} ends {int(self._since[row])} steps after a truncation "
                f"there, and bootstrap_interval is {env.bootstrap_interval}",
            )
        if env.spec.players == 1:
            self._score(made, done)
        self.ended += int(done.sum())
        self._length[done] = 0
        self._since[made.truncated.cpu()] = 0

    def _score(self, made: Step, done: Tensor) -> None:
        env = self.env
        self._return += (made.reward.double() * env.reward_unit).cpu()
        if env.score_range is not None:
            low, high = env.score_range
            slack = 1e-6 * max(1.0, abs(low), abs(high))
            wrong = done & ~((self._return >= low - slack) & (self._return <= high + slack))
            if bool(wrong.any()):
                score = float(self._return[wrong][0])
                self._note(
                    "score_range", f"an episode has the score {score}, outside of {env.score_range}"
                )
        self._return[done] = 0.0

    def _finish(self) -> None:
        for step, (made, copy) in enumerate(self._kept, 1):
            for name, part, then in zip(Step._fields, made, copy, strict=True):
                if not torch.equal(part, then):
                    self._note(
                        "callers_tensors",
                        f"a later step changes the tensor {name} that step {step} returned",
                    )
        for state, before in self._taken:
            if any(not torch.equal(state[name], before[name]) for name in before):
                self._note("restore", "later steps change what get_member returned; return copies")
        if self._looked_at and self._varies and not self._different_final:
            self._note(
                "autoreset",
                "final_obs equals the step's observation wherever an episode ended: the first must "
                "be the last of that episode, the second the first of the new one",
            )
        if self.env.rematches and not self._moved_in_draw:
            self._note("rematching", "rematches is True, but no draw gives a row to another member")


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of a member's tensors."""
    return {name: tensor.clone() for name, tensor in state.items()}
