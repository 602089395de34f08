"""A small tensor environment for the agents' tests: track a hidden, slowly moving target.

State s in R^action_dim follows s' = 0.9 s + 0.1 w with w from the member's stream. The observation
is (5 + 3 s, age), the reward 1 - mean((action - s)²). Episodes are truncated at `max_step`, or
terminated where the first state exceeds `cliff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.entities import Entities
from sweepd.envs.core.faults import Fault, FaultLatch
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step, VecEnv
from sweepd.envs.support.errors import RunError


class ToyEnv(VecEnv):
    env_name = "toy"
    if_discrete = False

    def __init__(
        self,
        members: int,
        envs_per_member: int,
        *,
        action_dim: int = 2,
        max_step: int = 7,
        cliff: float = 10.0,
        privileged: bool = False,
    ) -> None:
        self.num_members, self.envs_per_member = members, envs_per_member
        self.num_envs = members * envs_per_member
        self.action_dim, self.targets, self.max_step, self.cliff = (
            action_dim,
            action_dim,
            max_step,
            cliff,
        )
        self.privileged_dim = int(privileged)
        self.state_dim = action_dim + (not privileged)
        # A termination by the cliff may directly follow a truncation and overwrite its final_obs.
        self.bootstrap_interval = 1 if cliff < 10.0 else max_step
        self.device = torch.get_default_device()
        self.streams = Streams(members, self.device)
        self.poison: int | None = None
        self._noise = torch.zeros(0)
        self._at = 0
        self._s = torch.zeros(self.num_envs, action_dim)
        self._age = torch.zeros(self.num_envs)
        self._final = torch.full((self.num_envs, action_dim + 1), torch.nan)
        self._faults = torch.zeros(self.num_envs, dtype=torch.bool)
        self.state_avg, self.state_std = (
            torch.full((self.state_dim,), 5.0),
            torch.full((self.state_dim,), 3.0),
        )

    def _observe(self) -> Tensor:
        return torch.cat((5.0 + 3.0 * self._s, self._age.unsqueeze(1)), 1)

    def reset(self, seed: int | Sequence[int] | None = None) -> Tensor:
        if seed is not None:
            for member in range(self.num_members):
                self.streams.seed(
                    member, derive_seed(seed, member) if isinstance(seed, int) else seed[member]
                )
        self._s = torch.tanh(
            self.streams.normal(1, self.envs_per_member * self.targets).view(self.num_envs, -1)
        )
        self._age = torch.zeros(self.num_envs)
        self._faults.zero_()
        self._at = self._noise.shape[0]
        return self._observe()

    def draw(self, horizon: int) -> None:
        self._noise = self.streams.normal(horizon, self.envs_per_member * self.targets).view(
            horizon, self.num_envs, -1
        )
        self._at = 0

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        if self._at == self._noise.shape[0]:
            self.draw(1)
        noise = self._noise[self._at]
        self._at += 1
        self._faults |= ~(action.abs() <= 1.0).all(1)
        reward = 1.0 - (action - self._s).square().mean(1)
        if self.poison is not None:
            reward[self.poison * self.envs_per_member] = torch.nan
        self._s = 0.9 * self._s + 0.3 * noise
        self._age = self._age + 1.0
        terminated = self._s[:, 0] > self.cliff
        truncated = self._age >= self.max_step  # may be both; then it is over
        done = (terminated | truncated).unsqueeze(1)
        self._final = torch.where(done, self._observe(), self._final)
        self._s = torch.where(done, torch.tanh(noise), self._s)
        self._age = torch.where(done[:, 0], 0.0, self._age)
        obs = self._observe() if out is None else out.copy_(self._observe())
        return Step(obs, reward, terminated, truncated)

    def final_obs(self) -> Tensor:
        return self._final

    def faults(self) -> Tensor:
        return self._faults

    def check(self) -> None:
        if bool(self._faults.any()):
            row = int(self._faults.byte().argmax())
            raise RunError(f"row {row} (member {row // self.envs_per_member}): illegal action")

    def _rows(self, member: int) -> slice:
        return slice(member * self.envs_per_member, (member + 1) * self.envs_per_member)

    def get_member(self, member: int) -> dict[str, Tensor]:
        rows = self._rows(member)
        state = {
            "s": self._s[rows],
            "age": self._age[rows],
            "final": self._final[rows],
            "stream": self.streams.state(member),
        }
        return {name: tensor.clone() for name, tensor in state.items()}

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        rows = self._rows(member)
        self._s[rows], self._age[rows], self._final[rows] = state["s"], state["age"], state["final"]
        self.streams.set_state(member, state["stream"])


class PaddedEnv(ToyEnv):
    """Observations with 200 more columns: zeros, but for a few in some rows of some members; of
    member 2 in the first steps only.

    Args:
        zero: of the columns that are padding, 0.0 or -0.0.
    """

    def __init__(self, members: int, envs_per_member: int, *, zero: float = 0.0) -> None:
        super().__init__(members, envs_per_member)
        self.padding, self.steps = torch.full((self.num_envs, 200), zero), 0
        self.state_dim += 200
        self.state_avg = torch.cat((self.state_avg, torch.zeros(200)))
        self.state_std = torch.cat((self.state_std, torch.ones(200)))
        self._final = torch.full((self.num_envs, self.state_dim), torch.nan)

    def _observe(self) -> Tensor:
        padding = self.padding.clone()
        for member in range(1, self.num_members):
            row = member * self.envs_per_member + member % self.envs_per_member
            if member == 2 and self.steps > 8:
                continue
            padding[row, 37 * member] = self._s[row, 0] * (self._age[row] == 2)
        return torch.cat((super()._observe(), padding), 1)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        self.steps += 1
        return super().step(action, out)


class EntitiesEnv(ToyEnv):
    """Three entities with two columns each, in another order than that of the columns."""

    entities = Entities(3, ((3, 1), (0, 1)))

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, action_dim=6, **settings)


class ChoiceEnv(ToyEnv):
    """The same with one target, and actions that are one of `choices` numbers from -1 to 1."""

    if_discrete = True

    def __init__(
        self, members: int, envs_per_member: int, *, choices: int = 3, **settings: Any
    ) -> None:
        super().__init__(members, envs_per_member, action_dim=1, **settings)
        self.action_dim = choices
        self._levels = torch.linspace(-1.0, 1.0, choices)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        assert action.dtype == torch.int64
        assert action.shape == (self.num_envs,)
        illegal = (action < 0) | (action >= self.action_dim)
        step = super().step(self._levels[action.clamp(0, self.action_dim - 1)].unsqueeze(1), out)
        self._faults |= illegal
        return step


class ChoicesEnv(ToyEnv):
    """The same with two targets, and actions of two choices with 3 and 5 numbers."""

    if_discrete = True
    action_dims = (3, 5)

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, action_dim=2, **settings)
        self.action_dim = sum(self.action_dims)
        self._levels = [torch.linspace(-1.0, 1.0, size) for size in self.action_dims]

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        assert action.dtype == torch.int64
        assert action.shape == (self.num_envs, 2)
        sizes = torch.tensor(self.action_dims)
        illegal = ((action < 0) | (action >= sizes)).any(1)
        legal = torch.minimum(action.clamp(min=0), sizes - 1)
        numbers = [
            levels[choice] for levels, choice in zip(self._levels, legal.unbind(1), strict=True)
        ]
        step = super().step(torch.stack(numbers, 1), out)
        self._faults |= illegal
        return step


class Rematching(ChoicesEnv):
    """Before each rollout, one member's rows are rotated by one, with their episodes."""

    rematches = True

    def draw(self, horizon: int) -> None:
        super().draw(horizon)
        for rows in map(self._rows, range(self.num_members)):
            for tensor in (self._s, self._age, self._final):
                tensor[rows] = tensor[rows].roll(1, 0)

    def observe(self, out: Tensor | None = None) -> Tensor:
        return self._observe() if out is None else out.copy_(self._observe())


class MaskedEnv(ChoicesEnv):
    """The same with illegal choices, by the episode's age and, for the second, the first choice.

    In step `empty`, if set, a row has no legal second choice.
    """

    masked = True

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, **settings)
        self.empty: int | None = None
        self._latch = FaultLatch(self.num_envs, 1, self._explain, self.device)

    def _explain(self, fault: Fault) -> str:
        return (
            f"row {fault.row} had no legal option in step {fault.step}, at age {fault.values[0]:g}"
        )

    def legal(self, chosen: Tensor) -> Tensor:
        """What `action_mask` returns."""
        age = self._age.long().unsqueeze(1)
        if chosen.shape[1] == 0:
            return torch.arange(3) != age % 3
        mask = (torch.arange(5) + chosen + age) % 3 != 0
        if self.empty is not None:
            mask[self.empty] = False
        return mask

    def action_mask(self, chosen: Tensor) -> Tensor:
        assert chosen.dtype == torch.int64
        assert chosen.shape[0] == self.num_envs
        return self.legal(chosen)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        self._latch.count()
        some = self.legal(action[:, :1]).any(1)
        self._latch.record(some, self._age.double().unsqueeze(0))
        for choice in range(2):
            # Those out of range are found by `ChoicesEnv`.
            made = action[:, choice : choice + 1].clamp(0, self.action_dims[choice] - 1)
            legal = self.legal(action[:, :choice]).gather(1, made)
            if self.empty is None or choice == 0:
                self._faults |= ~legal[:, 0]
        return super().step(action, out)

    def faults(self) -> Tensor:
        return self._faults | self._latch.latched()

    def check(self) -> None:
        self._latch.check()
        super().check()


class AbsentEnv(ToyEnv):
    """The same with agents that come and go, by the episode's age and the row, unless they `stay`.

    Rows without an agent see `garbage`, take the action 0, and are rewarded for it.
    """

    has_absent_agents = True

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, **settings)
        self.garbage, self.stay = 0.0, False
        self._row = torch.arange(self.num_envs) % envs_per_member
        self._acting: Tensor | None = None

    def present(self) -> Tensor:
        return (
            (self._row * 2 + self._age) % 5 < 3
            if not self.stay
            else torch.ones(self.num_envs, dtype=torch.bool)
        )

    def _observe(self) -> Tensor:
        here = self.present() if self._acting is None else self._acting
        return torch.where(here.unsqueeze(1), super()._observe(), self.garbage)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        self._acting = here = self.present()  # who acts sees the end of the episode, if that is it
        step = super().step(
            torch.where(here.view(-1, *(1 for _ in action.shape[1:])), action, 0), out
        )
        self._acting = None
        obs = self._observe() if out is None else out.copy_(self._observe())
        return step._replace(obs=obs)


class AbsentChoicesEnv(AbsentEnv, ChoicesEnv):
    """`AbsentEnv` with several choices per action."""


class LatePayEnv(ChoiceEnv):
    """An agent that acts in every second of 6 steps.

    It sees a sign, chooses one of two, and is paid 1 for the right choice one step later, while
    absent.
    """

    has_absent_agents = True

    def __init__(self, members: int, envs_per_member: int) -> None:
        super().__init__(members, envs_per_member, choices=2, max_step=6)
        self.state_avg, self.state_std = torch.zeros(self.state_dim), torch.ones(self.state_dim)
        self._owed = torch.zeros(self.num_envs)

    def present(self) -> Tensor:
        return self._age % 2 == 0

    def _observe(self) -> Tensor:
        return torch.stack((self._s[:, 0].sign(), self._age / 6.0), 1)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        here, right = self.present(), (action == 1) == (self._s[:, 0] > 0)
        paid = torch.where(here, 0.0, self._owed)
        self._owed = torch.where(here, right.float(), 0.0)
        return super().step(action, out)._replace(reward=paid)


class ImageEnv(ChoiceEnv):
    """The target as a bright column in a 9 x 10 uint8 image; the second channel is the age."""

    image_shape, obs_dtype = (2, 9, 10), "uint8"

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, **settings)
        self.state_dim = 2 * 9 * 10
        self._final = torch.zeros(self.num_envs, self.state_dim, dtype=torch.uint8)
        self.state_avg, self.state_std = (
            torch.zeros(self.state_dim),
            torch.full((self.state_dim,), 255.0),
        )

    def _observe(self) -> Tensor:
        image = torch.zeros(self.num_envs, *self.image_shape, dtype=torch.uint8)
        column = ((self._s[:, 0] + 1.0) * 5.0).clamp(0, 9).long()
        rows = torch.arange(self.num_envs)
        image[rows, 0, :, column] = 255
        image[rows, 1, self._age.long().clamp(max=8)] = 100
        return image.flatten(1)


class ItemsEnv(ChoiceEnv):
    """The target and the age as ids and features of items in two groups of places, as bytes."""

    obs_dtype = "uint8"
    items = Items(
        vocabulary=6,
        groups=(ItemGroup("hand", 3, ("power",)), ItemGroup("row", 2, ("power", "age"))),
        features=(("power", 10.0), ("age", 7.0)),
        plain=(7.0, 2.0),
        facts=((0.0, 0.0), (0.5, 1.0), (0.25, 0.0), (1.0, 0.5), (0.0, 0.75), (0.1, 0.2)),
    )

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, **settings)
        self.state_dim = self.items.columns
        self._final = torch.zeros(self.num_envs, self.state_dim, dtype=torch.uint8)
        self.state_avg = torch.zeros(self.state_dim)
        self.state_std = torch.tensor(self.items.scales())

    def _observe(self) -> Tensor:
        level = ((self._s + 1.5) * 8.0).clamp(0, 24).long()
        age = self._age.unsqueeze(1).long()
        hand_ids = (level + torch.arange(3)) % 6
        row_ids = (level // 3 + age + torch.arange(2)) % 6
        hand = torch.stack((hand_ids, level.expand(-1, 3)), 2)
        row = torch.stack((row_ids, level % 5 + row_ids, age.expand(-1, 2)), 2)
        plain = torch.cat((age, level % 3), 1)
        return torch.cat((hand.flatten(1), row.flatten(1), plain), 1).to(torch.uint8)


class RecallEnv(ChoiceEnv):
    """The first of 5 steps shows one of two choices; choosing it pays 1 in all later steps."""

    def __init__(self, members: int, envs_per_member: int, **settings: Any) -> None:
        super().__init__(members, envs_per_member, choices=2, max_step=5, **settings)
        self.state_avg, self.state_std = torch.zeros(self.state_dim), torch.ones(self.state_dim)
        self._cue = torch.zeros(self.num_envs)

    def _observe(self) -> Tensor:
        self._cue = torch.where(self._age == 0, self._s[:, 0].sign(), self._cue)
        return torch.stack((torch.where(self._age == 0, self._cue, 0.0), self._age / 5.0), 1)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        paid = (self._age > 0) & ((action == 1) == (self._cue > 0))
        return super().step(action, out)._replace(reward=paid.float())
