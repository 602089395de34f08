"""The fused kernels for GPUs, compiled for the CPU: their numbers are those of torch's operations."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

from sweepd.agents.algorithms.fused_loss import FusedLoss, agrees
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.native.choice import TORCH, VARIABLE
from sweepd.agents.networks import gpu_kernels
from sweepd.agents.networks.fused_sample import FusedSample
from sweepd.agents.networks.gpu_kernels import (
    NAMES,
    SOURCE,
    THREADS,
    GpuKernels,
    adam_agrees,
    kernels_for,
    samples_agree,
)
from sweepd.agents.networks.optimizer import Adam
from sweepd.envs.native.build import BuildError, compiler
from tests.agents.digests import cartpole, crypto
from tests.agents.helpers import adam_of, make_adam_steps, member_params, shape_for, start
from tests.agents.toy_env import ChoiceEnv, ToyEnv
from tests.agents.two_cards import TwoCards

# What a GPU's compiler has, and a C++ compiler has not.
GPU = """
#include <cmath>
#define __global__
#define __device__
struct Place { int x, y; };
static Place blockIdx, threadIdx, blockDim;
"""
LOOP = """
extern "C" void run_{name}(int grid_x, int grid_y, int threads, {parameters}) {{
    blockDim = {{threads, 1}};
    for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid_x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {name}({names});
}}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> GpuKernels:
    try:
        made = compiler()
    except BuildError as error:
        pytest.skip(str(error))
    folder, source = tmp_path_factory.mktemp("kernels"), SOURCE.read_text()
    text = GPU + source
    for name in NAMES:
        found = re.search(rf"void {name}\((.*?)\)", source, re.DOTALL)
        assert found
        parameters = found[1]
        names = ", ".join(one.split()[-1].lstrip("*") for one in parameters.split(","))
        text += LOOP.format(name=name, parameters=parameters, names=names)
    (folder / "kernels.cpp").write_text(text)
    library = folder / "kernels.so"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([made, *flags, folder / "kernels.cpp", "-o", library], check=True)
    return on_cpu(library)


def on_cpu(library: Path) -> GpuKernels:
    loaded = ctypes.CDLL(str(library))

    def launch_of(name: str) -> Any:
        function = loaded[f"run_{name}"]

        def launch(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
            given = [
                ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one)
                for one in arguments
            ]
            function(*(ctypes.c_int(number) for number in (*blocks, THREADS)), *given)

        return launch

    return GpuKernels({name: launch_of(name) for name in NAMES})


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_adam_is_torchs(kernels: GpuKernels, scale: float) -> None:
    torch.manual_seed(0)
    flat = torch.randn(2, 4, 144)
    plain, fused = (Adam(flat.clone(), fused=False) for _ in range(2))
    fused._kernels = kernels
    make_adam_steps((plain, fused), scale)
    assert torch.equal(plain.step, fused.step)
    torch.testing.assert_close(fused._flat, plain._flat, rtol=2e-6, atol=2e-7)
    torch.testing.assert_close(fused.m, plain.m, rtol=1e-5, atol=1e-7 * scale)
    torch.testing.assert_close(fused.v, plain.v, rtol=2e-5, atol=1e-7 * scale**2)
    assert torch.equal(fused._flat[:, 3], flat[:, 3])  # never active, and its gradient is NaN


def trained(kind: type[ToyEnv], kernels: GpuKernels | None, rollouts: int) -> tuple[PPO, Any]:
    env = kind(3, 4)
    ppo = start(env, {0: 0, 1: 1, 2: 2}, epochs=8)
    own, ppo.optimizer = ppo.optimizer, adam_of(ppo)
    ppo.optimizer.eps, ppo.optimizer.weight_decay = own.eps, own.weight_decay
    if kernels is not None:
        ppo._fused_loss = FusedLoss(kernels, ppo.shape, ppo.device)
        ppo.optimizer._kernels = kernels
    return ppo, ppo.train(env, rollouts)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
def test_ppo_learns_the_same_with_fused_kernels(
    kind: type[ToyEnv], kernels: GpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    plain, (*_, stats) = trained(kind, None, 1)
    before = start(kind(3, 4), {0: 0, 1: 1, 2: 2}, epochs=8).population.flat
    fused, (*_, same) = trained(kind, kernels, 1)
    moved = (plain.population.flat - before).abs().amax()
    apart = (plain.population.flat - fused.population.flat).abs().amax()
    assert moved > 1e-3
    assert apart < 1e-4 * moved
    assert torch.equal(stats.updates, same.updates)  # some members stop early
    assert float(stats.updates.min()) < float(stats.updates.max())
    for name, numbers in stats._asdict().items():
        torch.testing.assert_close(getattr(same, name), numbers, rtol=1e-3, atol=1e-5, msg=name)


def test_a_member_whose_weights_are_not_finite_diverges_alone(
    kernels: GpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    plain, _ = trained(ToyEnv, kernels, 1)
    ppo, env = plain, ToyEnv(3, 4)
    ppo.population.critic.flat[1, 0] = torch.nan
    ppo.begin(env.reset(1))
    before = ppo.get_member(0)
    ppo.train(env, 1)
    assert ppo.diverged == [False, True, False]
    assert ppo.population.flat[:, [0, 2]].isfinite().all()
    assert not torch.equal(before["weights"], ppo.get_member(0)["weights"])


@pytest.mark.parametrize("name", ["gaussian_loss", "categorical_loss"])
def test_the_check_of_the_loss_finds_a_wrong_one(
    name: str, kernels: GpuKernels, caplog: pytest.LogCaptureFixture
) -> None:
    assert agrees(kernels, torch.device("cpu"))

    def wrong(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
        launches[name](blocks, arguments)
        assert isinstance(arguments[10], Tensor)
        arguments[10][1, 7] += 1e-3

    launches: dict[str, Callable[..., None]] = dict(kernels._launches)
    assert not agrees(GpuKernels(launches | {name: wrong}), torch.device("cpu"))
    assert "fails its test" in caplog.text


@pytest.mark.parametrize("env", [cartpole, crypto], ids=["cartpole", "crypto"])
def test_rollouts_with_fused_sampling_are_the_same(
    env: Callable[[int], Any], kernels: GpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    found = []
    for fused in (False, True):
        made = env(5)
        ppo = PPO(shape_for(made, num_envs=made.envs_per_member, horizon=20, minibatch=50))
        for slot in range(5):
            params = member_params(slot)
            ppo.add_member(slot, params, slot, 8, made.state_avg, made.state_std)
        ppo.begin(made.reset(3))
        if fused:
            size = made.envs_per_member
            ppo.rollout._fused_sample = FusedSample(kernels, ppo.shape, size, ppo.device)
        with torch.no_grad():
            ppo.rollout.collect(made, ppo.streams, lambda step: step)
        found.append(ppo.rollout.samples())
    # The first step's actions are equal to rounding, and all later ones follow.
    torch.testing.assert_close(found[0].obs, found[1].obs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[0].side, found[1].side, rtol=1e-3, atol=1e-3)


def test_the_check_of_samples_finds_wrong_ones(kernels: GpuKernels) -> None:
    assert samples_agree(kernels, torch.device("cpu"))
    launches: dict[str, Any] = dict(kernels._launches)
    for name in ("gaussian_sample", "categorical_sample"):

        def wrong(blocks: Any, arguments: Any, name: str = name) -> None:
            launches[name](blocks, arguments)
            tensors = [one for one in arguments if isinstance(one, Tensor)]
            tensors[-1][-1] += 1  # the last action

        assert not samples_agree(GpuKernels(launches | {name: wrong}), torch.device("cpu"))


def test_the_check_of_adam_finds_a_wrong_one(kernels: GpuKernels) -> None:
    assert adam_agrees(kernels, torch.device("cpu"))

    def wrong(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
        launches["adam"](blocks, arguments)
        arguments[0][0, 0, 7] += 0.01  # type: ignore[index]

    launches: dict[str, Callable[..., None]] = dict(kernels._launches)
    assert not adam_agrees(GpuKernels(launches | {"adam": wrong}), torch.device("cpu"))


def test_no_toolkit_is_needed_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(OSError, match="CUDA_HOME"):
        cpp_extension.include_paths("cuda")
    with gpu_kernels._no_toolkit_needed():
        cpp_extension.include_paths("cuda")
    assert cpp_extension.CUDA_HOME is None


def test_without_the_compiler_torchs_operations_are_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("libnvrtc.so: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(gpu_kernels, "_compiled", gpu_kernels._compiled.__wrapped__)
    assert kernels_for(torch.device("cuda")) is None
    assert "no fused kernels on the GPU" in caplog.text
    assert "libnvrtc.so" in caplog.text
    assert kernels_for(torch.device("cpu")) is None


def test_kernels_are_launched_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = TwoCards(monkeypatch, nullcontext, holds=1)
    for name in ("adam_agrees", "samples_agree"):
        monkeypatch.setattr(gpu_kernels, name, lambda *_: True)
    monkeypatch.setattr(gpu_kernels, "_compiled", gpu_kernels._compiled.__wrapped__)
    found = kernels_for(torch.device("cuda:1"))
    assert found is not None
    for name in NAMES:
        found.run(name, 1)
    assert cards.launches == [1] * len(NAMES)
    assert cards.current == 0
