"""The laws of the contract of `VecEnv`, as functions that raise where they are broken.

Each takes the runs of an environment (`EnvRuns`), of which several laws share some.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from math import nan
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from sweepd.envs.games.random_check import check_random_play
from sweepd.envs.support.errors import RunError
from sweepd.testing.env_runs import (
    ROLLOUT,
    UNITS,
    Batch,
    EnvRuns,
    Seen,
    copied,
    difference,
    seeds_of,
    worlds_of,
)
from sweepd.testing.host_sync import HostSync, NoHostSync, OneHotUnchecked
from sweepd.testing.laws import BrokenLaw, NotChecked

Law = Callable[[EnvRuns], None]


def _ended(runs: EnvRuns) -> int:
    """Make the run that watches every step, if it was not made; return how many episodes ended."""
    return runs.together.ended


def _raise_found(runs: EnvRuns, law: str) -> None:
    """Raise what the runs so far have found about a law."""
    if law in runs.found:
        raise BrokenLaw(law, runs.found[law])


def random_play(runs: EnvRuns) -> None:
    """Observations, rewards, ends and masks have the shapes and types of `VecEnv`, and are finite."""
    subject = runs.subject
    env = Batch(subject, range(UNITS)).env
    if env.num_envs != env.num_members * env.envs_per_member:
        raise BrokenLaw(
            "random_play",
            f"num_envs is {env.num_envs}, not {env.num_members} members x {env.envs_per_member} rows",
        )
    played = check_random_play(env, seed=1, steps=ROLLOUT, seconds=30.0)
    for about, problem in played.problems.items():
        raise BrokenLaw("random_play", f"{about}: {problem}")
    size = (env.num_envs, env.spec.obs_dim)
    wanted: list[tuple[str, Tensor, tuple[int, ...], torch.dtype]] = [
        ("final_obs", env.final_obs(), size, env.spec.torch_dtype),
        ("observe", env.observe(), size, env.spec.torch_dtype),
        ("faults", env.faults(), (env.num_envs,), torch.bool),
    ]
    if env.spec.has_absent_agents:
        wanted.append(("present", env.present(), (env.num_envs,), torch.bool))
    if env.spec.players > 1:
        wanted.append(("to_move", env.to_move(), (env.num_envs,), torch.int64))
        mover = env.to_move()
        if bool(((mover < 0) | (mover >= env.spec.players)).any()):
            raise BrokenLaw(
                "random_play", f"to_move is not always from 0 to {env.spec.players - 1}"
            )
    for name, tensor, shape, dtype in wanted:
        if tensor.shape != shape or tensor.dtype != dtype:
            raise BrokenLaw(
                "random_play",
                f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not {shape} {dtype}",
            )


def same_seed(runs: EnvRuns) -> None:
    """The same seed gives the same episodes, and another seed others."""
    first, subject = runs.alone, runs.subject
    _raise_found(runs, "same_seed")
    batch = Batch(subject, [1])
    batch.reset()
    if where := difference(first[:ROLLOUT], batch.play(ROLLOUT)[0]):
        raise BrokenLaw("same_seed", f"with the same seed, {where} in another environment")
    if not subject.random:
        return
    env = batch.env
    batch.reset()
    env.reset(seeds_of(subject, 5))
    if not difference(first, batch.play(subject.steps)[0]):
        raise BrokenLaw("same_seed", "another seed gives the same episodes")


def company(runs: EnvRuns) -> None:
    """A member's numbers are the same, to the bit, alone and with others."""
    if where := difference(runs.together.records[1], runs.alone):
        raise BrokenLaw("company", f"{where} when the member is alone")
    # A slot that never had a seed is empty, and its neighbour is as ever.
    subject = runs.subject
    batch = Batch(subject, [0, 1])
    for place in (0, 1):
        batch.restart_actions(place)
    empty: list[int | None] = [None] * subject.together
    batch.env.reset([*empty, *seeds_of(subject, 1)])
    if where := difference(runs.alone[:ROLLOUT], batch.play(ROLLOUT)[1]):
        raise BrokenLaw("company", f"alone, {where} beside a slot without a seed")


def restore(runs: EnvRuns) -> None:
    """`set_member` restores what `get_member` returned, to the bit, in any slot.

    The other members of the batch do not change when a member is put into the slot beside them.
    """
    subject, together = runs.subject, runs.together
    _raise_found(runs, "restore")
    half = subject.steps // 2
    # Units 0 and 2 play from their start beside another unit, whose place unit 1 then takes.
    batch = Batch(subject, [5, 0, 2])
    batch.reset()
    _same_neighbours(batch.play(half), together.records, slice(half))
    _replace(batch, 0, 1, _through_file(together.middle[1]))
    batch.completed[batch.rows(0)] = together.completed[batch.rows(1)]
    _fast_forward(batch, 0, half)
    found = batch.play(half)
    if where := difference(together.records[1][half:], found[0]):
        raise BrokenLaw("restore", f"{where} after get_member and set_member in another slot")
    _same_neighbours(found, together.records, slice(half, None))
    _restore_within(runs)


def _same_neighbours(found: list[list[Seen]], records: list[list[Seen]], part: slice) -> None:
    """Compare units 0 and 2, in places 1 and 2, with a part of their records."""
    for place, unit in ((1, 0), (2, 2)):
        if where := difference(records[unit][part], found[place]):
            raise BrokenLaw(
                "restore", f"{where} in a batch where another member's slot is used again"
            )


def _restore_within(runs: EnvRuns) -> None:
    """Take a member while numbers are left that were drawn ahead, unless that is refused."""
    subject, at = runs.subject, ROLLOUT + 5
    batch = Batch(subject, [0, 1])
    batch.reset()
    batch.env.draw(ROLLOUT)
    for _ in range(ROLLOUT):
        batch.step()
    batch.env.draw(ROLLOUT)
    for _ in range(ROLLOUT, at):
        batch.step()
    try:
        states = [batch.env.get_member(member) for member in batch.members(1)]
    except RuntimeError:
        return  # it says so, and learners take members between rollouts only
    other = Batch(subject, [5])
    other.reset()
    other.env.draw(ROLLOUT)
    for _ in range(3):
        other.step()
    _replace(other, 0, 1, _through_file(states))
    _fast_forward(other, 0, at)
    other.completed[:] = batch.completed[batch.rows(1)]
    for step in range(at, 2 * ROLLOUT):
        both = []
        for one, place in ((batch, 1), (other, 0)):
            action, made = one.step()
            both.append(one.seen(place, action, made))
        if where := difference(both[:1], both[1:], step + 1):
            raise BrokenLaw(
                "restore", f"{where} after get_member and set_member in the middle of a rollout"
            )


def _replace(batch: Batch, place: int, unit: int, states: list[dict[str, Tensor]]) -> None:
    """Give a place to another unit, in the state of its members."""
    subject = batch.subject
    batch.units[place] = unit
    kept = [copied(state) for state in states]
    for member, world, state in zip(
        batch.members(place), worlds_of(subject, unit), states, strict=True
    ):
        subject.configure(batch.env, member, world)
        batch.env.set_member(member, state)
        if batch.env.restarted(member):
            raise NotChecked("its episodes cannot be restored: set_member begins new ones")
    for state, then in zip(states, kept, strict=True):
        if any(not torch.equal(state[name], then[name]) for name in then):
            raise BrokenLaw("restore", "set_member changes the tensors that it was given")


def _through_file(states: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Write states as a checkpoint does, and read them again."""
    try:
        return [load(save(state)) for state in states]
    except Exception as error:
        raise BrokenLaw(
            "restore", f"get_member must return a flat dict of tensors on the CPU ({error})"
        ) from error


def _fast_forward(batch: Batch, place: int, steps: int) -> None:
    """Bring the actions of a place to where they are after so many steps."""
    batch.restart_actions(place)
    batch.skip_actions(place, steps)


def reset_member(runs: EnvRuns) -> None:
    """`reset_member` restarts a member's rows and leaves the others as they are."""
    subject, together = runs.subject, runs.together
    batch = Batch(subject, [0, 5])
    batch.reset()
    batch.env.draw(ROLLOUT)
    for step in range(2 * ROLLOUT):
        if step == ROLLOUT:
            batch.env.draw(ROLLOUT)
        if step == ROLLOUT // 2:
            batch.units[1] = 1
            for member, world, seed in zip(
                batch.members(1), worlds_of(subject, 1), seeds_of(subject, 1), strict=True
            ):
                subject.configure(batch.env, member, world)
                batch.env.reset_member(member, seed)
            batch.restart_actions(1)
        action, made = batch.step()
        if where := difference(
            [together.records[0][step]], [batch.seen(0, action, made)], step + 1
        ):
            raise BrokenLaw("reset_member", f"{where} where another member was reset")


def autoreset(runs: EnvRuns) -> None:
    """Rows whose episode ended begin the next in the same step, and `final_obs` has the old end."""
    ended = _ended(runs)
    _raise_found(runs, "autoreset")
    if not ended:
        raise NotChecked(f"no episode ended in {runs.subject.steps} steps; give shorter ones")


def episode_ends(runs: EnvRuns) -> None:
    """No episode is longer than `max_step`, nor ends sooner than `bootstrap_interval` allows."""
    _ended(runs)
    _raise_found(runs, "episode_ends")


def score_range(runs: EnvRuns) -> None:
    """No episode's score is outside of `score_range`."""
    _ended(runs)
    _raise_found(runs, "score_range")


def callers_tensors(runs: EnvRuns) -> None:
    """`step` changes neither the actions that it gets nor what earlier steps returned."""
    _ended(runs)
    _raise_found(runs, "callers_tensors")


def out(runs: EnvRuns) -> None:
    """With `out=`, the observation is written there, and the step returns that tensor."""
    batch = Batch(runs.subject, [0, 1])
    batch.reset()
    batch.env.draw(ROLLOUT)
    for step in range(ROLLOUT):
        room = batch.buffer()
        _, made = batch.step(room)
        if made.obs.data_ptr() != room.data_ptr():
            raise BrokenLaw("out", "the observation that step returns is not the tensor out")
        wanted = torch.cat([runs.together.records[unit][step].step.obs for unit in (0, 1)])
        if not torch.equal(room, wanted):
            raise BrokenLaw(
                "out", f"out has other numbers than a step without it (step {step + 1})"
            )
        again = batch.buffer()
        batch.env.observe(again)
        if not torch.equal(again, wanted):
            raise BrokenLaw("out", "observe does not write the observation into its out")


def action_shapes(runs: EnvRuns) -> None:
    """Actions of another shape are refused with ValueError, not broadcast."""
    batch = Batch(runs.subject, [0])
    batch.reset()
    action = batch.actions()
    for wrong in (action.unsqueeze(-1), action[:-1], action[:1].expand_as(action)[None]):
        try:
            batch.env.step(wrong)
        except ValueError:
            continue
        except Exception as error:
            raise BrokenLaw(
                "action_shapes",
                f"actions of the shape {tuple(wrong.shape)} raise {type(error).__name__}, not "
                "ValueError",
            ) from error
        raise BrokenLaw(
            "action_shapes",
            f"actions of the shape {tuple(wrong.shape)} are taken; it must be {tuple(action.shape)}",
        )


def masks(runs: EnvRuns) -> None:
    """Masks do not change with being asked for, and legal play has no faults."""
    batch = Batch(runs.subject, [0, 1])
    env = batch.env
    if not env.spec.masked:
        return
    batch.reset()
    for _ in range(ROLLOUT):
        chosen = torch.zeros(env.num_envs, 0, dtype=torch.int64, device=env.device)
        action = batch.actions().reshape(env.num_envs, -1)
        for choice in range(len(env.spec.choices)):
            given = chosen.clone()
            first = env.action_mask(chosen).clone()
            if not torch.equal(first, env.action_mask(chosen)):
                raise BrokenLaw("masks", "the same mask, asked for twice, differs")
            if not torch.equal(given, chosen):
                raise BrokenLaw("masks", "action_mask changes the choices that it was given")
            chosen = torch.cat((chosen, action[:, choice : choice + 1]), 1)
        env.step(action if env.spec.action_dims else action[:, 0])
    if bool(env.faults().any()):
        raise BrokenLaw("masks", "legal actions are latched as faults")


def faults(runs: EnvRuns) -> None:
    """An illegal action is latched until its member's reset, and `check` names the first one.

    It is part of the member's state, and has no effect on others, or after the reset.
    """
    subject, together = runs.subject, runs.together
    batch = Batch(subject, range(UNITS))
    env = batch.env
    batch.reset()
    env.draw(ROLLOUT)
    spoilt: list[tuple[int, int]] = []  # units and rows, in order
    for step in range(ROLLOUT):
        action = batch.actions()
        unit = (1, 0)[len(spoilt)] if len(spoilt) < 2 and step >= 2 * (len(spoilt) + 1) else -1
        row = _spoil(batch, unit, action) if unit >= 0 else None
        made = env.step(action)
        batch.completed |= (made.terminated | made.truncated).cpu()
        if row is not None:
            spoilt.append((unit, row))
            if not bool(env.faults()[row]):
                raise BrokenLaw("faults", f"the illegal action of row {row} is not latched")
        if where := difference(
            [together.records[2][step]], [batch.seen(2, action, made)], step + 1
        ):
            raise BrokenLaw("faults", f"{where} where another member acted illegally")
    if len(spoilt) < 2:
        raise NotChecked("no agent was there to act illegally")
    _check_faults(batch, spoilt)


def _spoil(batch: Batch, unit: int, action: Tensor) -> int | None:
    """Make an action of a unit illegal; return its row, or None if none of its agents acts."""
    env = batch.env
    rows = batch.rows(unit)
    acts = env.present()[rows] if env.spec.has_absent_agents else torch.ones(rows.stop - rows.start)
    if not bool(acts.any()):
        return None
    row: int = rows.start + int(acts.cpu().byte().argmax())
    if not env.if_discrete:
        action[row, 0] = nan
        return row
    choice = 0
    wrong = env.spec.choices[0]
    if env.spec.masked:
        nothing = torch.zeros(env.num_envs, 0, dtype=torch.int64, device=env.device)
        illegal = ~env.action_mask(nothing)[row]
        if bool(illegal.any()):
            wrong = int(illegal.byte().argmax())
    if env.spec.action_dims:
        action[row, choice] = wrong
    else:
        action[row] = wrong
    return row


def _check_faults(batch: Batch, spoilt: list[tuple[int, int]]) -> None:
    env = batch.env
    latched = env.faults().cpu()
    innocent = batch.rows(2)
    if bool(latched[innocent].any()):
        raise BrokenLaw("faults", "rows of a member without illegal actions are latched")
    if not all(bool(latched[row]) for _, row in spoilt):
        raise BrokenLaw("faults", "a fault is forgotten before the member's reset")
    first = spoilt[0][1] // env.envs_per_member
    said = _said(env)
    if f"member {first}" not in said:
        raise BrokenLaw(
            "faults",
            f"check must raise RunError naming member {first}, whose fault was first; it says {said!r}",
        )
    _check_moved(batch, latched)
    for member in batch.members(1):
        env.reset_member(member, 7)
    if bool(env.faults()[batch.rows(1)].any()):
        raise BrokenLaw("faults", "reset_member does not clear the member's faults")
    if f"member {spoilt[1][1] // env.envs_per_member}" not in _said(env):
        raise BrokenLaw("faults", "check does not name the fault that is left after a reset")
    for member in batch.members(0):
        env.reset_member(member, 7)
    if said := _said(env):
        raise BrokenLaw(
            "faults", f"after the reset of all members with faults, check says {said!r}"
        )
    if not bool(env.observe().isfinite().all()):
        raise BrokenLaw(
            "faults", "after the reset of all members with faults, numbers are not finite"
        )


def _check_moved(batch: Batch, latched: Tensor) -> None:
    """Check that a fault is part of its member's state."""
    other = Batch(batch.subject, [1])
    other.reset()
    states = [batch.env.get_member(member) for member in batch.members(1)]
    for member, state in enumerate(states):
        other.env.set_member(member, state)
    if not torch.equal(other.env.faults().cpu(), latched[batch.rows(1)]):
        raise BrokenLaw("faults", "faults are not part of what get_member returns")
    for member, own in enumerate(batch.members(2)):
        batch.subject.configure(other.env, member, worlds_of(batch.subject, 2)[member])
        other.env.set_member(member, batch.env.get_member(own))
    if bool(other.env.faults().any()):
        raise BrokenLaw("faults", "set_member keeps the faults of the slot's former member")


def _said(env: Any) -> str:
    """Return what `check` says; "" if it raises nothing."""
    try:
        with redirect_stderr(StringIO()):  # games print the whole position, too
            env.check()
    except RunError as error:
        return str(error)
    return ""


def no_host_sync(runs: EnvRuns) -> None:
    """`step` neither waits for the device nor branches on a tensor's value."""
    subject = runs.subject
    if subject.on_host:
        return
    batch = Batch(subject, [0, 1])
    env = batch.env
    batch.reset()
    env.draw(4)
    batch.step()  # makes constants
    try:
        with NoHostSync(), OneHotUnchecked():  # type: ignore[no-untyped-call]
            for step in range(6):
                if step == 3:
                    env.draw(3)
                action = batch.actions()
                env.step(action)
                env.final_obs()
                env.faults()
    except HostSync as error:
        raise BrokenLaw("no_host_sync", f"a step {error}") from error


def device(runs: EnvRuns) -> None:
    """All tensors are on the environment's device: the CPU, and a GPU where there is one."""
    subject = runs.subject
    for kind in ("cpu", "cuda") if torch.cuda.is_available() and not subject.on_host else ("cpu",):
        batch = Batch(subject, [0, 1], device=kind)
        env = batch.env
        tensors = {"reset": batch.reset()}
        env.draw(2)
        for _ in range(2):
            _, made = batch.step()
        tensors |= made._asdict()
        tensors |= {"final_obs": env.final_obs(), "faults": env.faults(), "observe": env.observe()}
        for name, tensor in tensors.items():
            if tensor.device.type != kind or env.device.type != kind:
                raise BrokenLaw("device", f"{name} is on {tensor.device}, not on {kind}")
        for name, tensor in env.get_member(0).items():
            if tensor.device.type != "cpu":
                raise BrokenLaw("device", f"get_member returns {name} on {tensor.device}")


def rematching(runs: EnvRuns) -> None:
    """`draw` changes no row, or if `rematches` is set, only gives rows to other members."""
    _ended(runs)
    _raise_found(runs, "rematching")


def planned_step(runs: EnvRuns) -> None:
    """`plan_step` and `planned_step` together are a step."""
    batch = Batch(runs.subject, [0, 1])
    env = batch.env
    if not env.replayable:
        return
    batch.reset()
    env.draw(ROLLOUT)
    for step in range(ROLLOUT):
        action = batch.actions()
        hash(env.plan_step())
        made = env.planned_step(action)
        batch.completed |= (made.terminated | made.truncated).cpu()
        if where := difference(
            [runs.together.records[1][step]], [batch.seen(1, action, made)], step + 1
        ):
            raise BrokenLaw("planned_step", f"{where} in planned_step")


def threads(runs: EnvRuns) -> None:
    """Many rows have the same numbers, whatever the number of torch's threads."""
    subject = runs.subject
    if not subject.many:
        return
    before, made = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            batch = Batch(subject, [0], games=subject.many)
            batch.reset()
            made.append([batch.seen(0, *batch.step()) for _ in range(2)])
    finally:
        torch.set_num_threads(before)
    if where := difference(made[0], made[1]):
        raise BrokenLaw("threads", f"with one thread, {where} with two")


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        random_play,
        same_seed,
        company,
        restore,
        reset_member,
        autoreset,
        episode_ends,
        score_range,
        callers_tensors,
        out,
        action_shapes,
        masks,
        faults,
        no_host_sync,
        device,
        rematching,
        planned_step,
        threads,
    )
}
