"""The suite for programs: what trains the members of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from sweepd.agents.engine.description import DESCRIPTION, packed, unpacked
from sweepd.agents.engine.program import Program
from sweepd.envs.core.vec_env import Step, VecEnv
from sweepd.envs.support.errors import InputError, RunError

SIZES = (1, 3, 4)  # rows of evaluations


class ProgramTestCase:
    """The laws of the contract of `Program`. A subclass says which program is tested:

        class TestMyProgram(ProgramTestCase):
            def make(self, slots):
                env = MyGame([Params()] * slots, 4)
                return MyProgram(Shape.for_env(env, horizon=16), "cpu"), env

    Attributes:
        slots: slots of the programs, at least 3.
        rollouts: rollouts that are trained before members are compared, at least 2.
    """

    slots: ClassVar[int] = 4
    rollouts: ClassVar[int] = 3

    def make(self, slots: int) -> tuple[Program, VecEnv]:
        """Return a program without members, and an environment with as many members as slots."""
        raise NotImplementedError("a subclass makes the program and its environment")

    def params(self, program: Program, member: int) -> Any:
        """Return the hyperparameters of a member; override it to give each its own."""
        del member
        return program.params_type()

    def start(self, members: Mapping[int, int]) -> tuple[Program, VecEnv]:
        """Return a program with these members, by slot, that has not yet trained.

        A member's number decides its hyperparameters and seeds.
        """
        program, env = self.make(self.slots)
        for slot, member in members.items():
            self.add(program, slot, member)
        seeds = [200 + members[slot] if slot in members else None for slot in range(self.slots)]
        program.begin(env.reset(seeds))
        return program, env

    def add(self, program: Program, slot: int, member: int) -> None:
        """Put a new member into a slot."""
        size, total = program.shape.state_dim, 2 * self.rollouts + 2
        params = self.params(program, member)
        program.add_member(slot, params, 100 + member, total, torch.zeros(size), torch.ones(size))

    def trained(self, members: Mapping[int, int], rollouts: int) -> tuple[Program, VecEnv]:
        """Return a program that has trained these members."""
        program, env = self.start(members)
        program.train(env, rollouts)
        return program, env

    def test_a_member_is_the_same_alone_in_company_and_in_another_slot(self) -> None:
        """State, statistics and actions are equal to the bit."""
        alone, env = self.start({1: 1})
        stats = alone.train(env, self.rollouts)[-1]
        company = {slot: 4 + slot for slot in range(self.slots)}
        for slot, members in ((2, company | {2: 1}), (0, {0: 1})):
            program, other = self.start(members)
            others = program.train(other, self.rollouts)[-1]
            assert_same_member(alone, 1, program, slot)
            assert_same(env.get_member(1), other.get_member(slot), "the environment's")
            for name, value in others._asdict().items():
                assert torch.equal(value[slot], getattr(stats, name)[1]), f"statistics: {name}"
            assert torch.equal(acts(alone, env, 1), acts(program, other, slot)), "actions differ"

    def test_a_member_is_the_same_on_any_number_of_threads(self) -> None:
        """State is equal to the bit."""
        before, made = torch.get_num_threads(), []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                made.append(self.trained({0: 1, 1: 2}, 2)[0])
        finally:
            torch.set_num_threads(before)
        assert_same_member(made[0], 1, made[1], 1)

    def test_a_saved_member_resumes_exactly_in_another_slot(self) -> None:
        """Through a file, in a program that has trained others for another number of rollouts."""
        before = self.rollouts - 1
        half, half_env = self.trained({1: 2, 0: 1}, before)
        kept, rows = half.get_member(1), half_env.get_member(1)
        program, env = self.trained({0: 8}, 1)
        program.set_member(2, load(save(kept)))
        env.set_member(2, load(save(rows)))
        assert program.progress(2) == half.progress(1)
        for one, its in ((half, half_env), (program, env)):
            one.train(its, 2)
        assert_same_member(half, 1, program, 2)
        assert_same(half_env.get_member(1), env.get_member(2), "the environment's")

    def test_saving_exporting_and_acting_change_nothing(self) -> None:
        """What is returned does not change with further training, either."""
        quiet, quiet_env = self.trained({1: 2}, 2)
        program, env = self.start({1: 2})
        kept = []
        for _ in range(2):
            program.train(env, 1)
            acts(program, env, 1)
            actor, critic = program.export_member(1)
            for state in (program.get_member(1), actor, critic):
                kept.append((state, {name: tensor.clone() for name, tensor in state.items()}))
        assert_same_member(quiet, 1, program, 1)
        assert_same(quiet_env.get_member(1), env.get_member(1), "the environment's")
        for state, then in kept:
            assert_same(state, then, "a returned")

    def test_a_diverged_member_is_reported_and_does_not_affect_others(self) -> None:
        """Rewards that are not numbers; its actions stay legal, and its slot can be used again."""
        calm, calm_env = self.trained({0: 1, 2: 2}, self.rollouts)
        program, env = self.start({0: 1, 1: 3, 2: 2})
        step = env.step
        env.step = poisoned(env, 1)  # type: ignore[method-assign]
        program.train(env, self.rollouts)
        assert program.diverged == [slot == 1 for slot in range(self.slots)]
        for slot in (0, 2):
            assert_same_member(calm, slot, program, slot)
            assert_same(calm_env.get_member(slot), env.get_member(slot), "the environment's")
        assert not bool(env.faults().any()), "a diverged member acts illegally"
        program.set_member(2, program.get_member(1))
        assert program.diverged[2], "a member's state does not tell that it diverged"
        env.step = step  # type: ignore[method-assign]
        for slot in (1, 2):
            self.add(program, slot, 5)
        program.begin(env.reset(9), [1, 2])
        program.train(env, 1)
        assert not any(program.diverged), "a new member in the slot has diverged, too"

    def test_a_fault_ends_training_before_anything_is_learned_from_it(self) -> None:
        """Illegal actions are noticed once per rollout, before its gradient steps."""
        program, env = self.trained({0: 1, 1: 2}, 1)
        before = [program.export_member(slot) for slot in (0, 1)]
        env.step = spoilt(env)  # type: ignore[method-assign]
        with pytest.raises(RunError, match="member 0"):
            program.train(env, 1)
        for slot, parts in enumerate(before):
            for then, now in zip(parts, program.export_member(slot), strict=True):
                assert_same(then, now, "the exported")

    def test_members_come_and_go(self) -> None:
        """What is asked of empty slots and of members without observations is refused."""
        program, env = self.make(self.slots)
        with pytest.raises(ValueError, match="slot 0 is empty"):
            program.get_member(0)
        self.add(program, 0, 1)
        program.train(env, 1)
        self.add(program, 1, 2)
        with pytest.raises(ValueError, match="begin"):
            program.train(env, 1)
        program.remove_member(1)
        assert len(program.train(env, 3, lambda _: True)) == 1, "on_rollout does not end training"
        assert program.progress(0) == (2, 2 * self.rollouts + 2)
        program.remove_member(0)
        assert [program.progress(slot) for slot in range(self.slots)] == [None] * self.slots
        other, _ = self.make(self.slots + 1)
        with pytest.raises(ValueError, match="are not the shape's"):
            other.train(env, 1)
        size, params = program.shape.state_dim, self.params(program, 1)
        with pytest.raises(InputError, match="total_rollouts"):
            program.add_member(0, params, 1, 0, torch.zeros(size), torch.ones(size))

    def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(self) -> None:
        """Neither an incomplete state, nor that of a program of another shape."""
        program, _ = self.trained({0: 1, 1: 2}, 1)
        state = program.get_member(1)
        incomplete = {name: tensor for name, tensor in state.items() if name != "obs"}
        described = unpacked(state)
        described["shape"]["horizon"] += 1
        for wrong in (incomplete, state | {DESCRIPTION: packed(described)}):
            with pytest.raises(InputError):
                program.set_member(1, wrong)
            assert program.progress(1) is not None, "a refused state empties the slot"
            assert_same(state, program.get_member(1), "the member's")


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], whose: str) -> None:
    """Check that two states are equal to the bit, NaN equal to NaN."""
    assert one.keys() == other.keys(), f"{whose} state has other names"
    for name, tensor in one.items():
        same = torch.equal(tensor.nan_to_num(nan=123.0), other[name].nan_to_num(nan=123.0))
        assert same, f"{whose} state differs in {name}"


def assert_same_member(one: Program, slot: int, other: Program, place: int) -> None:
    """Check that a member of one program equals a member of another."""
    assert_same(one.get_member(slot), other.get_member(place), "the member's")


def acts(program: Program, env: VecEnv, slot: int) -> Tensor:
    """Return a member's deterministic actions in its present rows and in some of them."""
    act: Any = program.act_fn()  # with masks, it takes them, too
    own = program.shape.num_envs
    rows = program.obs.view(program.shape.slots, own, -1)
    if env.spec.masked:
        every: Tensor = act(program.obs, env.action_mask)
        return every.view(program.shape.slots, own, -1)[slot]
    found = [
        act(rows[:, :size].flatten(0, 1)).view(program.shape.slots, size, -1)[slot]
        for size in (size for size in SIZES if size <= own)
    ]
    return torch.cat(found)


def poisoned(env: VecEnv, member: int) -> Any:
    """Return the environment's step with rewards of a member that are not numbers."""
    step, own = env.step, env.envs_per_member

    def with_nan(action: Tensor, out: Tensor | None = None) -> Step:
        made = step(action, out)
        reward = made.reward.clone()
        reward[member * own : (member + 1) * own] = nan
        return made._replace(reward=reward)

    return with_nan


def spoilt(env: VecEnv) -> Any:
    """Return the environment's step, which gets an illegal action in its first row."""
    step = env.step

    def illegal(action: Tensor, out: Tensor | None = None) -> Step:
        action = action.clone()
        action.view(env.num_envs, -1)[0, 0] = env.spec.choices[0] if env.if_discrete else nan
        return step(action, out)

    return illegal
