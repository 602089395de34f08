"""The same games by compiled rules and by torch, which must be equal to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sweepd.envs.games.batched import BatchedGame
from sweepd.envs.native import threads
from sweepd.envs.support.errors import RunError


@contextmanager
def native_threads(count: int) -> Iterator[None]:
    """Let native code use as many threads, and torch one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threads.torch_on_one(native=True):
            yield
    finally:
        torch.set_num_threads(before)


def bits(tensor: Tensor) -> Tensor:
    """Return floats as whole numbers, so that 0 and -0 differ."""
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64}
    return tensor.contiguous().view(kinds.get(tensor.dtype, tensor.dtype))


def assert_equal(one: Tensor, other: Tensor, what: object) -> None:
    assert one.dtype == other.dtype, what
    assert torch.equal(bits(one), bits(other)), what


Game = TypeVar("Game", bound=BatchedGame)


class Both(Generic[Game]):
    """Two environments of the same games.

    Attributes:
        envs: By compiled rules, and by torch.
        ended: How many games have terminated, and how many were truncated.
    """

    def __init__(self, make: Callable[[bool], Game], seed: int) -> None:
        """Make and reset the environments; `make` takes `native`."""
        self.envs = [make(native) for native in (True, False)]
        assert [env.native for env in self.envs] == [True, False]
        self.generator = torch.Generator().manual_seed(seed)
        self.ended = torch.zeros(2)
        self.steps = 0
        self.each("reset", seed)
        self.compare()

    def each(self, method: str, *args: Any) -> None:
        """Call a method of both."""
        for env in self.envs:
            getattr(env, method)(*args)

    def step(
        self, action: Tensor, outs: tuple[Tensor | None, Tensor | None] = (None, None)
    ) -> None:
        """Make a step, and compare all that it leads to."""
        self.steps += 1
        steps = [env.step(action, out=out) for env, out in zip(self.envs, outs, strict=True)]
        for name, one, other in zip(steps[0]._fields, *steps, strict=True):
            assert_equal(one.to(other.dtype), other, f"{name}, step {self.steps}")
        self.ended += torch.stack((steps[0].terminated.sum(), steps[0].truncated.sum()))
        self.compare()

    def compare(self) -> None:
        """Compare states, and what is seen of them."""
        compiled, torch_env = self.envs
        for part in ("state", "final"):
            for name, own in getattr(torch_env, part).items():
                assert_equal(getattr(compiled, part)[name], own, f"{part} {name}, {self.steps}")
        assert_equal(compiled.age, torch_env.age, f"age, step {self.steps}")
        for look in ("observe", "final_obs", "faults"):
            seen = [getattr(env, look)() for env in self.envs]
            assert_equal(*seen, f"{look}, step {self.steps}")

    def stored(self) -> list[list[dict[str, Tensor]]]:
        """Return and compare the states of all members."""
        members = range(self.envs[0].num_members)
        stored = [[env.get_member(member) for member in members] for env in self.envs]
        for one, other in zip(*(map(_of_faults_only, of_all) for of_all in stored), strict=True):
            assert one.keys() == other.keys()
            for name, own in other.items():
                assert_equal(one[name], own, name)
        return stored

    def exchange(self) -> None:
        """Let torch continue what compiled rules have stored, and the other way round."""
        for env, own in zip(self.envs, reversed(self.stored()), strict=True):
            for member, state in enumerate(own):
                env.set_member(member, state)

    def error(self) -> str:
        """Return what `check` says, which is the same."""
        compiled, torch_error = (_error(env) for env in self.envs)
        assert compiled == torch_error
        return compiled


def _of_faults_only(member: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a member's state. What is kept of rows without a fault means nothing."""
    values = member["fault_values"].masked_fill(member["fault_age"] == 0, 0)
    if values.is_floating_point():
        values = values.masked_fill(values <= 1.0, 0)  # of the row's other numbers, which are legal
    return dict(member) | {"fault_values": values}


def _error(env: BatchedGame) -> str:
    try:
        env.check()
    except RunError as error:
        return str(error)
    return ""
