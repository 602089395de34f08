"""A stand-in for a GPU: tensors on the meta device, under a mode that checks every operation.

Fake CUDA tensors (`torch._subclasses.FakeTensorMode`) do not work in builds of torch without CUDA:
operations with `out=`, in-place operations and autograd ask for CUDA's device guard, which such a
build lacks. Meta tensors have shapes and no data, and work in every build. What they accept too
easily, `Card` refuses.

    env = made_there(lambda: ToyEnv(3, 4))
    with card(env):
        program = PPO(shape, DEVICE)
        ...
        with Card() as seen:
            program.train(env, 1)
    seen.launches                   # operations that a GPU would run as kernels, by name
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sweepd.agents.algorithms import fused_loss
from sweepd.agents.engine import graphs
from sweepd.agents.networks import optimizer
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.native.gpu import GpuKernels, KernelSource, Launch
from tests.agents.toy_env import ToyEnv
from tests.envs.games.toys import Nim

DEVICE = torch.device("meta")
_active: list[Card] = []  # those that count now
_in_env = ContextVar("_in_env", default=False)  # whether a method of an environment runs

aten = torch.ops.aten
# Tensors that kernels are told a stride of, at most: log_std, and biases.
_STRIDED = {"gaussian_loss": 1, "hidden_layer": 1, "gaussian_sample": 2, "categorical_sample": 1}
# Copies may have a source on another device.
_COPIES = {aten.copy_, aten._to_copy, aten._foreach_copy_}
# Operations whose result's shape, or host, depends on values.
_READS = {
    aten._local_scalar_dense,
    aten.item,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten.unique_dim,
    aten._unique2,
}
# Operations without a kernel that are not views by their schema.
_FREE = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten.lift_fresh,
    aten._unsafe_view,
    aten._reshape_alias,
    aten.resize_,
    aten.set_,
}


class Card(TorchDispatchMode):
    """Refuses what a GPU would refuse or wait for, and counts launches.

    Attributes:
        launches: operations with a kernel, by name, without those of the environment.
        env_launches: number of those of the environment (of one under `card`).
        uploads: copies from the host. A CUDA graph cannot capture them.
        waits: those of them that wait for the GPU: not by `upload`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.env_launches = 0
        self.uploads = self.waits = 0

    def __enter__(self) -> Self:
        super().__enter__()
        _active.append(self)
        self._patch = pytest.MonkeyPatch()
        # `torch.tensor` makes a meta tensor without a copy that could be seen.
        self._patch.setattr(torch, "tensor", self._tensor(torch.tensor))
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.undo()
        _active.remove(self)
        super().__exit__(*error)

    def _tensor(self, tensor: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            made = tensor(*args, **kwargs)
            # Those of environments are constants of the tests' environments, made in every step.
            if made.device == DEVICE and not _in_env.get():
                self.uploads += 1
                self.waits += 1
            return made

        return make

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        places = {tensor.device for tensor in given if tensor.dim()}
        if packet in _READS and any(tensor.device == DEVICE for tensor in given):
            raise AssertionError(f"{func} reads a value on the host")
        if len(places) > 1 and packet not in _COPIES:
            raise AssertionError(f"{func} mixes devices: {sorted(map(str, places))}")
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if packet in _COPIES and places | {tensor.device for tensor in made} > {DEVICE}:
            if any(tensor.device != DEVICE for tensor in made):
                raise AssertionError(f"{func} reads a value on the host")
            self.uploads += 1
            self.waits += not _copies_at_once(packet, args, kwargs)
        if not _is_free(func) and any(tensor.device == DEVICE for tensor in [*given, *made]):
            count = _kernels(packet, args, kwargs)
            if _in_env.get():
                self.env_launches += count
            else:
                self.launches[packet.__name__] += count
        return result

    @property
    def total(self) -> int:
        """Number of launches."""
        return sum(self.launches.values())


def _copies_at_once(packet: Any, args: Any, kwargs: Any) -> bool:
    """Whether a copy was asked for without waiting (`non_blocking`)."""
    place = {aten.copy_: 2, aten._to_copy: 5}.get(packet, len(args))
    return bool(args[place] if len(args) > place else kwargs.get("non_blocking"))


def _is_free(func: Any) -> bool:
    """Whether an operation returns a view or memory without running a kernel."""
    aliases = [part.alias_info for part in func._schema.returns]
    views = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return views or func.overloadpacket in _FREE


def _kernels(packet: Any, args: Any, kwargs: Any) -> int:
    """Return how many kernels an operation launches."""
    if packet is aten.baddbmm:
        return 1 + (args[0] is not kwargs.get("out"))  # the summand is copied first
    name = packet.__name__
    if name.startswith("_foreach"):
        # One after the other, unless all are dense.
        lists = [arg for arg in args if isinstance(arg, list)]
        layouts = {tuple(map(_layout, tensors)) for tensors in zip(*lists, strict=True)}
        dense = all(len(set(same)) == 1 and None not in same for same in layouts)
        return 1 if dense else len(lists[0])
    return 1


def _layout(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor without gaps and overlaps, else None."""
    by_memory = sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True)
    order = [stride for stride, size in by_memory if size > 1]
    sizes = [size for _, size in by_memory if size > 1]
    expected = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
    return tensor.stride() if order == expected else None


def counted_kernels(source: KernelSource, device: torch.device) -> GpuKernels | None:
    """Return kernels that do nothing; their launches are counted as those of operations."""
    if device != DEVICE:
        return None

    def launch_of(name: str) -> Launch:
        def launch(_: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
            given = [one for one in arguments if isinstance(one, Tensor)]
            assert {tensor.device for tensor in given} == {DEVICE}
            # What a kernel reads as rows side by side, apart from weights with their stride.
            strided = sum(not tensor.is_contiguous() for tensor in given)
            assert strided <= _STRIDED.get(name, 0)
            for seen in _active:
                if _in_env.get():
                    seen.env_launches += 1
                else:
                    seen.launches[name] += 1

        return launch

    return source.made_of(launch_of)


@contextmanager
def card(env: Any, *, fused: bool = True) -> Iterator[None]:
    """Let an environment work on the device, and streams draw there.

    With `fused`, programs made here have the fused kernels of GPUs, which only count.

    The tests' own environments name no device; a default device during their methods does it for
    them, while programs and real environments have to name theirs. Reading the faults, once per
    rollout, is what training may wait for: here there are none, on the host.
    """
    default = DEVICE if isinstance(env, ToyEnv | Nim) else torch.device("cpu")
    with pytest.MonkeyPatch.context() as patch:
        if fused:
            patch.setattr(KernelSource, "on", counted_kernels)
        patch.setattr(fused_loss, "agrees", lambda *_: True)  # reads values, once per process
        patch.setattr(graphs, "changed", lambda *_: True)  # likewise, once per recording
        patch.setattr(optimizer.Adam, "moves", lambda *_: False)
        for name in _METHODS:
            if hasattr(env, name):
                patch.setattr(env, name, _there(getattr(env, name), default))
        patch.setattr(env, "faults", lambda: torch.zeros(env.num_envs, dtype=torch.bool))
        yield


_METHODS = (
    "reset",
    "draw",
    "step",
    "planned_step",
    "observe",
    "action_mask",
    "present",
    "to_move",
    "final_obs",
)


def made_there(
    make: Callable[[], VecEnv], *, names_device: bool = False, fused: bool = True
) -> Any:
    """Construct an environment on the device; its normaliser is on the host.

    Args:
        make: constructs it.
        names_device: whether it is made for a device; the tests' own environments are not.
        fused: whether it has the kernels of GPUs, which only count.
    """
    default = "cpu" if names_device else DEVICE
    with pytest.MonkeyPatch.context() as patch, torch.device(default):
        if fused:
            patch.setattr(KernelSource, "on", counted_kernels)
        # Checks of a game's rules read values, once, when the environment is made.
        patch.setattr("sweepd.envs.games.tensor_game.check_rules", lambda *_: None)
        env: Any = make()
    columns = env.state_dim
    env.state_avg, env.state_std = torch.zeros(columns), torch.ones(columns)
    return env


def _there(method: Callable[..., Any], default: torch.device) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = _in_env.set(True)
        try:
            with torch.device(default):
                return method(*args, **kwargs)
        finally:
            _in_env.reset(before)

    return call
