"""The peer in LeanRL's style learns, and computes what the plain peer computes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from sweepd.envs.native.build import BuildError, compiler
from tests.bench.conftest import Importer


@pytest.fixture
def compiled(bench: Importer) -> ModuleType:
    try:
        compiler()
    except BuildError as error:
        pytest.skip(str(error))
    return bench("compiled_ppo")


def _make(kind: Any, trainers: ModuleType, cell: Any) -> Any:
    env = trainers.make_env(cell, 1)
    env.reset([0])
    torch.manual_seed(0)
    return kind(env, cell.shape(env, 1), trainers.PARAMS[cell.task], *trainers.normaliser(cell))


def _is_plain_at_first(module: ModuleType, bench: Importer, cell: Any) -> Any:
    """Compare two rollouts and their updates with those of the plain peer."""
    made = []
    for kind in (bench("plain_ppo").PlainPPO, module.CompiledPPO):
        ppo = _make(kind, bench("trainers"), cell)
        for _ in range(2):  # guards are left out of the second
            torch.manual_seed(1)
            assert ppo.rollout() == cell.horizon * cell.num_envs
        made.append(ppo)
    plain, own = made
    for name in ("obs", "actions", "log_probs", "values", "rewards"):
        assert torch.allclose(getattr(plain, name), getattr(own, name), atol=1e-4), name
    start, weights = (
        torch.nn.utils.parameters_to_vector(agent.parameters())
        for agent in (own.agent, plain.agent)
    )
    assert (weights - own.weights).norm() < 0.01 * (weights - start).norm()
    return own


@pytest.mark.extra
def test_it_computes_what_the_plain_peer_computes(compiled: ModuleType, bench: Importer) -> None:
    _is_plain_at_first(compiled, bench, bench("trainers").Cell("crypto", 8, 16, 8, 4, 2))


@pytest.mark.slow
def test_it_learns_cartpole(compiled: ModuleType, bench: Importer) -> None:
    ppo = _is_plain_at_first(compiled, bench, bench("trainers").Cell("cartpole", 16, 64, 32, 64, 8))
    lengths = []
    while len(lengths) < 60 and (not lengths or lengths[-1] < 200.0):
        ppo.rollout()
        lengths.append(float(ppo.dones.numel() / ppo.dones.sum().clamp(min=1.0)))
    assert lengths[0] < 60.0
    assert lengths[-1] >= 200.0


def test_without_a_compiler_it_says_so(bench: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    module = bench("compiled_ppo")

    def missing() -> str:
        raise BuildError("there is no C++ compiler (install g++ or clang++)")

    monkeypatch.setattr(module, "compiler", missing)
    cell = bench("trainers").Cell("cartpole", 8, 16, 8, 4, 1, members=1)
    with pytest.raises(SystemExit, match=r"no C\+\+ compiler .* leave leanrl out of --peers"):
        _make(module.CompiledPPO, bench("trainers"), cell)
