"""Every program keeps the laws of `Program` (`sweepd.testing`), and broken ones do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.elegantrl_agents import ElegantAgents
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.engine.program import Program
from sweepd.envs.core.vec_env import VecEnv
from sweepd.testing import ProgramTestCase
from tests.agents import helpers, off_policy_helpers
from tests.agents.toy_env import AbsentEnv, ChoiceEnv, ItemsEnv, MaskedEnv, Rematching, ToyEnv

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class TestPPO(ProgramTestCase):
    kind: ClassVar[type[ToyEnv]] = ToyEnv
    sizes: ClassVar[Mapping[str, Any]] = {}
    program: ClassVar[Callable[..., Program]] = PPO

    def make(self, slots: int) -> tuple[Program, VecEnv]:
        env = self.kind(slots, 4) if self.kind is ItemsEnv else self.kind(slots, 4, privileged=True)
        return type(self).program(helpers.shape_for(env, **self.sizes)), env

    def params(self, program: Program, member: int) -> Any:
        del program
        return helpers.member_params(member)


class TestPPOOfChoices(TestPPO):
    kind = ChoiceEnv


class TestPPOOfSeveralMaskedChoices(TestPPO):
    kind = MaskedEnv


class TestPPOInSharedGames(TestPPO):
    kind = Rematching


class TestPPOOfItems(TestPPO):
    kind = ItemsEnv


class TestPPOWithMemory(TestPPO):
    sizes: ClassVar[Mapping[str, Any]] = {"recurrent": "lstm", "bptt": 4}


class TestPPOOfAbsentAgentsWithMemory(TestPPO):
    kind = AbsentEnv
    sizes: ClassVar[Mapping[str, Any]] = {"recurrent": "gru", "bptt": 4}


class TestSAC(ProgramTestCase):
    kind: ClassVar[type[ToyEnv]] = ToyEnv

    def make(self, slots: int) -> tuple[Program, VecEnv]:
        env = self.kind(slots, 4)
        return off_policy_helpers.program_for(env), env

    def params(self, program: Program, member: int) -> Any:
        del program
        env = self.kind(1, 1)
        return off_policy_helpers.member_params(env, member, warmup=20 * (member % 3))


class TestD3QN(TestSAC):
    kind = ChoiceEnv


class TestElegantRL(ProgramTestCase):
    """One agent of each kind: with replays and an entropy, on policy, and of choices."""

    slots, rollouts = 3, 2
    agent: ClassVar[str] = "modsac"
    kind: ClassVar[type[ToyEnv]] = ToyEnv

    def make(self, slots: int) -> tuple[Program, VecEnv]:
        env = self.kind(slots, 4)
        sizes = {"minibatch": 8, "epochs": 2, "updates": 5, "buffer": 80, "horizon": 8}
        shape = helpers.shape_for(env, algorithm=f"elegantrl:{self.agent}", **sizes)
        return ElegantAgents(shape), env

    def params(self, program: Any, member: int) -> Any:
        warmup = {"warmup": (0, 40, 80)[member % 3]} if program.kind.replays else {}
        return program.params_type(
            learning_rate=1e-3 * (1 + member), gamma=0.9 + 0.01 * member, **warmup
        )


class TestElegantRLA2C(TestElegantRL):
    agent = "a2c"


class TestElegantRLD3QN(TestElegantRL):
    agent, kind = "d3qn", ChoiceEnv


class TestClimber(ProgramTestCase):
    """The algorithm of `examples/own_algorithm.py`."""

    @pytest.fixture(autouse=True)
    def algorithm_of_example(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        self.climber = get_algorithm("own_algorithm:CLIMBER")

    def make(self, slots: int) -> tuple[Program, VecEnv]:
        env = ToyEnv(slots, 4)
        shape = helpers.shape_for(env, algorithm=self.climber.program)
        return self.climber.learner(shape, torch.device("cpu")), env

    def params(self, program: Program, member: int) -> Any:
        return program.params_type(step=0.1 * (1 + member))  # type: ignore[call-arg]


class SeededBySlot(SAC):
    def _fresh(self, slot: int, params: Any, seed: int, *normaliser: Tensor) -> None:
        super()._fresh(slot, params, seed + slot, *normaliser)


class ForgetsMoments(PPO):
    def get_member(self, slot: int) -> dict[str, Tensor]:
        state = super().get_member(slot)
        return state | {"adam_m": 0 * state["adam_m"]}


class DrawsToSave(PPO):
    def get_member(self, slot: int) -> dict[str, Tensor]:
        self.streams.member_uniform(slot, 1)
        return super().get_member(slot)


class ExportsViews(PPO):
    def export_member(self, slot: int) -> Any:
        actor, critic = super().export_member(slot)
        return actor | {"state_avg": self.obs[slot : slot + 1]}, critic


class Contagious(SAC):
    def _learn(self) -> Any:
        found = super()._learn()
        self._diverged |= self._diverged.any()
        return found


class LearnsAtOnce(SAC):
    def _collect(self, env: VecEnv) -> None:
        super()._collect(env)
        self._learn()


class Careless(PPO):
    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        self.remove_member(slot)
        super().set_member(slot, state)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (SeededBySlot, "a_member_is_the_same_alone_in_company_and_in_another_slot"),
        (ForgetsMoments, "a_saved_member_resumes_exactly_in_another_slot"),
        (DrawsToSave, "saving_exporting_and_acting_change_nothing"),
        (ExportsViews, "saving_exporting_and_acting_change_nothing"),
        (Contagious, "a_diverged_member_is_reported_and_does_not_affect_others"),
        (LearnsAtOnce, "a_fault_ends_training_before_anything_is_learned_from_it"),
        (Careless, "a_state_that_does_not_fit_is_refused_and_changes_nothing"),
    ],
)
def test_a_broken_program_fails(kind: type[Program], law: str) -> None:
    class Broken(ProgramTestCase):
        def make(self, slots: int) -> tuple[Program, VecEnv]:
            env = ToyEnv(slots, 4)
            sizes = {} if kind.algorithm == "ppo" else {"updates": 6, "buffer": 160}
            return kind(helpers.shape_for(env, algorithm=kind.algorithm, **sizes)), env  # type: ignore[call-arg]

        def params(self, program: Program, member: int) -> Any:
            del member
            given = {} if kind.algorithm == "ppo" else {"warmup": 0}
            return program.params_type(**given)

    with pytest.raises(AssertionError):
        getattr(Broken(), f"test_{law}")()
