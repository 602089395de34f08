"""Each law of `VecEnv` names an environment that breaks it, and passes one that does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.vec_env import Step
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.testing import BrokenLaw, EnvSubject, VecEnvTestCase, check_env
from sweepd.testing.env_laws import LAWS
from sweepd.testing.env_runs import EnvRuns
from sweepd.testing.env_subject import subjects_of
from sweepd.testing.host_sync import HostSync, NoHostSync, OneHotUnchecked


class Walk(TensorGame):
    """A random walk that ends outside of its borders; the action is a direction."""

    state_dim, action_dim, if_discrete, masked, max_step = 2, 3, True, True, 9
    uniforms_per_start, uniforms_per_move, score_range = 1, 1, (-9.0, 9.0)

    def start(self, uniforms: Tensor) -> State:
        return {"place": 4.0 * uniforms[:, 0] - 2.0}

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        del chosen
        place = state["place"].unsqueeze(1)
        # Not farther out.
        return torch.cat((place > -1.5, torch.ones_like(place, dtype=torch.bool), place < 1.5), 1)

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        place = state["place"] + 0.5 * (action - 1) + uniforms[:, 0] - 0.5
        return {"place": place}, 1.0 - place.abs().clamp(max=2.0), place.abs() > 2.0

    def see(self, state: State) -> Tensor:
        return torch.stack((state["place"], state["place"].square()), 1)


class NotFinite(Walk):
    def see(self, state: State) -> Tensor:
        return super().see(state) / (state["place"].unsqueeze(1) > -1.0)


class DoubleRewards(Walk):
    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        made = super().step(action, out)
        return made._replace(reward=made.reward.double())


class Unseeded(Walk):
    def start(self, uniforms: Tensor) -> State:
        return super().start(torch.rand_like(uniforms))


class OneSeed(Walk):
    """Every seed is the same one."""

    def reset_member(self, member: int, seed: int | None = None) -> None:
        super().reset_member(member, None if seed is None else 3)


class Crowd(Walk):
    """Starts are relative to those of the other rows."""

    def start(self, uniforms: Tensor) -> State:
        return super().start((uniforms - uniforms.mean() + 1.0) % 1.0)


class Wind(Walk):
    """Its wind is not part of a member's state."""

    wind: Tensor | None = None

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        self.wind = state["place"] if self.wind is None else 0.5 * self.wind + 0.1 * state["place"]
        return super().move({"place": state["place"] + self.wind}, action, uniforms)


class Views(Walk):
    """`get_member` returns its own tensors."""

    def get_member(self, member: int) -> dict[str, Tensor]:
        return super().get_member(member) | {"state_place": self.state["place"], "age": self.age}

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        kept = self.state["place"]
        made = super().step(action, out)
        self.state["place"] = kept.copy_(self.state["place"])
        return made


class AllAtOnce(Walk):
    """Resetting one member resets the ages of all."""

    def reset_member(self, member: int, seed: int | None = None) -> None:
        super().reset_member(member, seed)
        self.age.zero_()


class NextStep(Walk):
    """Shows the end of an episode where the next one's start belongs."""

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        made = super().step(action, out)
        done = (made.terminated | made.truncated).unsqueeze(1)
        return made._replace(obs=torch.where(done, self.final_obs(), made.obs))


class ForgetsTheEnd(Walk):
    """`final_obs` is the first observation of the new episode."""

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        made = super().step(action, out)
        done = made.terminated | made.truncated
        self.final = {name: where_rows(done, self.state[name], t) for name, t in self.final.items()}
        return made


class Overwrites(Walk):
    """`final_obs` is always the latest observation."""

    def final_obs(self) -> Tensor:
        return self.observe()


class LongerThanSaid(Walk):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.max_step = 4


class ShorterThanSaid(Walk):
    bootstrap_interval = 5


class HighScores(Walk):
    score_range = (0.0, 1.0)


class Clamps(Walk):
    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        action.clamp_(max=1)
        return super().step(action, out)


class SameBuffer(Walk):
    """Rewards are always in the same tensor."""

    buffer: Tensor | None = None

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        made = super().step(action, out)
        self.buffer = made.reward.clone() if self.buffer is None else self.buffer
        return made._replace(reward=self.buffer.copy_(made.reward))


class IgnoresOut(Walk):
    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        del out
        return super().step(action)


class Broadcasts(Walk):
    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        return super().step(
            action.flatten().expand(self.num_envs) if action.dim() > 1 else action, out
        )


class Undecided(Walk):
    """Its mask differs from call to call."""

    asked = 0

    def action_mask(self, chosen: Tensor) -> Tensor:
        self.asked += 1
        mask = super().action_mask(chosen).clone()
        mask[:, 2] &= self.asked % 2 == 0
        return mask


class Unwatched(Walk):
    def faults(self) -> Tensor:
        return torch.zeros_like(super().faults())


class Silent(Walk):
    def check(self) -> None:
        pass


class Forgiving(Walk):
    """Forgets a fault when it is read."""

    def faults(self) -> Tensor:
        found = super().faults().clone()
        for member in range(self.num_members):
            self._faults.clear(self._checked_part(member))
        return found


class Inherited(Walk):
    """A slot keeps the faults of its former member."""

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        own = super().get_member(member)
        super().set_member(
            member, own | {name: state[name] for name in state if "fault" not in name}
        )


class Branches(Walk):
    def see(self, state: State) -> Tensor:
        return super().see(state) * (2.0 if state["place"].max() > 1.0 else 1.0)


class Elsewhere(Walk):
    def faults(self) -> Tensor:
        return super().faults().to("meta")


class Rolls(Walk):
    """Rows change places at every draw."""

    def draw(self, horizon: int) -> None:
        super().draw(horizon)
        self.state = {name: tensor.roll(1, 0) for name, tensor in self.state.items()}
        self._known = None


class RollsSome(Rolls):
    """Says so, and gives rows to members of other games."""

    rematches = True


class NeverRolls(Walk):
    rematches = True


class Replays(Walk):
    """Its planned step is another one."""

    replayable = True

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        self.plan_step()
        return super().planned_step(action, out)

    def planned_step(self, action: Tensor, out: Tensor | None = None) -> Step:
        return super().planned_step(torch.ones_like(action), out)


class CountsThreads(Walk):
    def see(self, state: State) -> Tensor:
        return super().see(state) * torch.get_num_threads()


BROKEN = [
    ("random_play", NotFinite, "observations: step"),
    ("random_play", DoubleRewards, "rewards: step 1: they are (9,) torch.float64"),
    ("same_seed", Unseeded, "of the member is"),
    ("same_seed", OneSeed, "another seed gives the same episodes"),
    ("company", Crowd, "when the member is alone"),
    ("restore", Wind, "after get_member and set_member in another slot"),
    ("restore", Views, "return copies"),
    ("reset_member", AllAtOnce, "where another member was reset"),
    ("autoreset", NextStep, "returns other observations than observe after it"),
    ("autoreset", ForgetsTheEnd, "final_obs equals the step's observation wherever"),
    ("autoreset", Overwrites, "in which no episode ended there"),
    ("episode_ends", LongerThanSaid, "has not ended after 4 steps, its max_step"),
    (
        "episode_ends",
        ShorterThanSaid,
        "steps after a truncation there, and bootstrap_interval is 5",
    ),
    ("score_range", HighScores, "outside of (0.0, 1.0)"),
    ("callers_tensors", Clamps, "changes the actions that it was given"),
    ("callers_tensors", SameBuffer, "a later step changes the tensor reward that step 1 returned"),
    ("out", IgnoresOut, "is not the tensor out"),
    ("action_shapes", Broadcasts, "actions of the shape (3, 1) are taken; it must be (3,)"),
    ("masks", Undecided, "the same mask, asked for twice, differs"),
    ("faults", Unwatched, "is not latched"),
    ("faults", Silent, "check must raise RunError naming member 1"),
    ("faults", Forgiving, "a fault is forgotten before the member's reset"),
    ("faults", Inherited, "faults are not part of what get_member returns"),
    ("no_host_sync", Branches, "asks the device for a value"),
    ("device", Elsewhere, "faults is on meta, not on cpu"),
    ("rematching", Rolls, "draw changes observations, but rematches is False"),
    ("rematching", RollsSome, "only give rows to other members of the same games"),
    ("rematching", NeverRolls, "no draw gives a row to another member"),
    ("planned_step", Replays, "in planned_step"),
    ("threads", CountsThreads, "with one thread"),
]


@pytest.mark.parametrize(
    ("law", "kind", "said"), BROKEN, ids=[f"{law}-{kind.__name__}" for law, kind, _ in BROKEN]
)
def test_a_broken_law_is_named(law: str, kind: type[Walk], said: str) -> None:
    (subject,) = subjects_of(kind)
    with pytest.raises(BrokenLaw) as raised:
        LAWS[law](EnvRuns(replace(subject, many=100)))
    assert raised.value.law == law
    assert said in raised.value.sentence
    assert "\n" not in raised.value.sentence


def test_every_law_has_an_environment_that_breaks_it() -> None:
    assert {law for law, _, _ in BROKEN} == set(LAWS)


class TestWalk(VecEnvTestCase):
    env = Walk


def test_the_suite_fails_where_a_law_is_broken() -> None:
    runs = [EnvRuns(subject) for subject in subjects_of(Crowd)]
    with pytest.raises(BrokenLaw, match=r"^company: Crowd: "):
        TestWalk().test_law("company", runs)


def test_the_check_has_a_sentence_for_each_broken_law() -> None:
    check_env(Walk)
    check_env(Walk.game())
    with pytest.raises(BrokenLaw, match=r"^score_range: HighScores: an episode has the score"):
        check_env(HighScores)

    class Worse(Clamps, IgnoresOut):
        pass

    with pytest.raises(BrokenLaw) as raised:
        check_env(Worse)
    first, *laws = str(raised.value).splitlines()
    assert "Worse breaks" in first
    assert {line.split(":")[0].strip() for line in laws} >= {"callers_tensors", "out"}
    assert len(laws) == len({line.split(":")[0] for line in laws}) < len(LAWS)


def test_what_could_not_be_checked_is_a_warning() -> None:
    class Endless(Walk):
        max_step = 1000

        def move(self, *given: Any) -> Any:
            state, reward, over = super().move(*given)
            return {"place": state["place"].clamp(-2, 2)}, reward, over & False

    class Scored(Endless):
        score_range = None  # type: ignore[assignment]

    with pytest.warns(UserWarning, match="no episode ended in 64 steps; give shorter ones"):
        check_env(Scored)


def test_rules_that_raise_are_said() -> None:
    class Raises(Walk):
        def move(self, *_: Any) -> Any:
            raise KeyError("wind")

    with pytest.raises(BrokenLaw, match="random_play: KeyError: 'wind'"):
        check_env(Raises)


def subject(make: Callable[..., Any]) -> EnvSubject:
    return EnvSubject("walk", lambda worlds, games, device: make(worlds, games, device=device))


def test_any_vectorized_environment_may_be_checked() -> None:
    check_env(subject(Walk))
    with pytest.raises(BrokenLaw, match=r"^out: walk: "):
        check_env(subject(IgnoresOut))


def test_the_check_needs_no_pytest_and_the_suites_say_that_they_do() -> None:
    code = """
import sys
sys.modules["pytest"] = None
import sweepd.testing
sweepd.testing.check_env("cartpole")
try:
    sweepd.testing.VecEnvTestCase
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == (
        "sweepd.testing.VecEnvTestCase needs pytest, which is not installed: pip install pytest\n"
    )


def test_the_guard_finds_every_kind_of_synchronization() -> None:
    with NoHostSync():
        ones = torch.ones(2)
        for offence in (lambda: bool(ones[0]), ones.nonzero, lambda: ones[ones > 0]):
            with pytest.raises(HostSync):
                offence()
        with OneHotUnchecked():
            hot = torch.nn.functional.one_hot(ones.long(), 3)
    assert hot.tolist() == [[0, 1, 0], [0, 1, 0]]
