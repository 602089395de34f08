"""The native step of CartPole against torch's, to the bit."""

from __future__ import annotations

import pytest
import torch

from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.native import build
from sweepd.envs.support.errors import RunError

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)

MEMBERS = [
    CartPoleParams(),
    CartPoleParams(gravity=3.0, length=1.3, max_steps=40),
    CartPoleParams(masscart=0.3, force_mag=25.0, tau=0.05, theta_threshold=2.0, x_threshold=5.0),
]


@pytest.mark.parametrize("per_member", [1, 5, 700])
def test_native_and_torch_steps_are_equal(per_member: int) -> None:
    """Terminations, truncations, refills, and a member that is replaced."""
    envs = [CartPole(MEMBERS, per_member, native=native) for native in (True, False)]
    assert [env.native for env in envs] == [True, False]
    rows = envs[0].num_envs
    for env in envs:
        env.reset(1)
    torch.manual_seed(per_member)
    ended = torch.zeros(2)
    for t in range(200):
        if t == 100:
            for env in envs:
                env.configure_member(1, MEMBERS[0])
                env.reset_member(1, 7)
        # Slowly changing choices: some poles stay up until the limit.
        action = (torch.randn(rows) > envs[0].state["angle"] * -50).long()
        steps = [env.step(action) for env in envs]
        for name, one, two in zip(steps[0]._fields, *steps, strict=True):
            assert torch.equal(one, two), f"{name}, step {t}"
        for name, tensor in envs[0].state.items():
            assert torch.equal(tensor, envs[1].state[name]), f"{name}, step {t}"
        assert torch.equal(envs[0].final_obs(), envs[1].final_obs()), f"final_obs, step {t}"
        ended += torch.stack((steps[0].terminated.sum(), steps[0].truncated.sum()))
    assert bool((ended > 0).all()), ended


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("step", "choice"), [(1, 2), (16, -1), (37, 2**40)])
def test_illegal_actions_are_latched(native: bool, step: int, choice: int) -> None:
    env = CartPole(CartPoleParams(), 9, native=native)
    env.reset(0)
    for at in range(1, 41):
        action = torch.ones(9, dtype=torch.int64)
        action[4] = choice if at >= step else 0
        env.step(action)
    assert env.faults().tolist() == [row == 4 for row in range(9)]
    with pytest.raises(RunError, match=rf"row 4 .* illegal action in step {step}: {choice};"):
        env.check()


def test_other_buffers_and_actions() -> None:
    """Transposed and double buffers, and actions that are not contiguous or of another type."""
    envs = [CartPole(CartPoleParams(), 6, native=native) for native in (True, False)]
    for env in envs:
        env.reset(0)
    for out in (torch.empty(4, 6).t(), torch.empty(6, 4).double(), torch.empty(6, 9)[:, 2:6]):
        for action in (torch.ones(6).long(), torch.arange(12)[::2] % 3 % 2, torch.ones(6).int()):
            found = [env.step(action, out=out).obs.clone() for env in envs]
            assert torch.equal(*found)
