"""A frozen policy as an ONNX model, and as a program of `torch.export` with a file of weights.

What is exported is `FrozenPolicy.act_batch` itself, traced: normalisers, all members, their mean and
the rounding are inside. Before a file is written, its actions are compared with those of the policy.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, numbered
from sweepd.deploy.api.policy import Policy
from sweepd.deploy.gates import gate_of
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.games.registry import get_game
from sweepd.envs.gymnasium_view import codec_of
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.invocation import install_extra

OBS, MASK, ACTION = "obs", "mask", "action"
ROWS = 512  # observations on which a file is compared with the policy
TOLERANCE = 2e-6  # of actions in [-1, 1], which are rounded to 1e-6
Run = Callable[[dict[str, NDArray[Any]]], NDArray[Any]]


class Acting(nn.Module):
    """A policy as a module: observations, and a mask where options may be illegal, to actions.

    Attributes:
        policy: the policy.
        codec: of the environment's spaces, in whose bounds actions are; None: as the policy gives
            them.
        masked: whether `forward` takes a mask.
        single: whether an action is one choice, (rows,).
    """

    def __init__(self, policy: FrozenPolicy, codec: SpaceCodec | None, *, masked: bool) -> None:
        super().__init__()
        space = None if codec is None else codec.action_space
        simple = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete)
        self.policy, self.masked, self.codec = policy, masked, codec if simple else None
        self.single = policy.discrete and not policy.members[0].spec.choices
        self._bounds: tuple[Tensor, Tensor] | None = None
        self._start: Tensor | None = None
        if isinstance(space, spaces.Box):
            low, high = (
                torch.from_numpy(np.array(bound).reshape(-1)) for bound in (space.low, space.high)
            )
            self._bounds = low, high
        elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            start = torch.from_numpy(np.array(space.start, np.int64).reshape(-1))
            self._start = start if bool(start.any()) else None

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return actions: (rows, numbers) of the space's type, or (rows,) or (rows, choices) int64.

        Args:
            obs: (rows, state_dim) float32.
            mask: (rows, options) bool, true for legal options.
        """
        legal = None if mask is None else _options(mask, self.policy.sizes)
        actions = self.policy.act_batch(obs, legal)
        if self.policy.discrete:
            return actions if self._start is None else actions + self._start
        if self._bounds is None:
            return actions.float()
        low, high = self._bounds  # as `ActionLayout.decode`
        scaled = low + 0.5 * (actions.float() + 1.0) * (high - low)
        return torch.minimum(torch.maximum(scaled, low), high)

    @property
    def span(self) -> NDArray[np.float64] | float:
        """Half the range of each number of an action."""
        if self._bounds is None:
            return 1.0
        low, high = self._bounds
        return np.maximum(0.5 * (high - low).double().numpy(), 1e-30)


def acting(policy: Policy, what: str) -> Acting:
    """Return a policy as a module that can be exported.

    Args:
        policy: the policy.
        what: its name, for messages.

    Raises:
        InputError: it cannot be exported.
    """
    if policy.seats:
        raise InputError(
            f"{what} plays as a team of members, one for each seat; name one of them: --member 0 … "
            f"{len(policy.members) - 1}"
        )
    frozen = policy.acting
    if frozen.recurrent:
        raise InputError(
            f"{what} has recurrent networks, whose state an exported file would not keep; "
            "sweepd.load_policy acts with it"
        )
    if any(member.spec.items is not None for member in frozen.members):
        raise InputError(
            f"{what} looks up items by id, which exported files cannot; sweepd.load_policy acts "
            "with it"
        )
    codec, masked = _codec(policy, what)
    return Acting(frozen, codec, masked=masked)


def _codec(policy: Policy, what: str) -> tuple[SpaceCodec | None, bool]:
    """Return the codec of the policy's environment, if it has one, and whether it masks options."""
    spec = policy.spec
    if gate_of(spec.environment).trades:
        return None, False
    supports = get_algorithm(spec.algorithm).supports.masks and policy.acting.discrete
    game = get_game(spec.environment)
    try:
        codec = codec_of(game, game.params(**spec.env))
    except InputError:  # players in turns, or masks in sequence
        if supports and len(policy.acting.sizes) > 1:
            raise InputError(
                f"{what}: in {spec.environment}, the legal options of a choice depend on the choices "
                "before it, which an exported file cannot ask for; sweepd.load_policy acts with it"
            ) from None
        return None, supports
    return codec, supports and (codec.masks_in_info or codec.observations.masked)


def write_torch(module: Acting, path: Path, what: str) -> list[Path]:
    """Write a program of `torch.export`, and the weights beside it as safetensors.

    `torch.export.load(path).module()(obs)` acts. The weights have the names of ElegantRL's modules,
    of several members with "m000." and so on before them.

    Raises:
        RunError: the program acts differently from the policy.
    """
    program = _traced(module)
    check(module, lambda inputs: _numpy(program.module(), inputs), what)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    weights = path.with_suffix(".safetensors")
    write_atomic(weights, save_tensors(_named(module.policy.members)))
    write_atomic(path, buffer.getvalue())
    return [path, weights]


def write_onnx(module: Acting, path: Path, what: str) -> list[Path]:
    """Write an ONNX model with the input "obs", "mask" where options may be illegal, and "action".

    Raises:
        InputError: the extra [onnx] is not installed, or observations are images.
        RunError: the model acts differently from the policy.
    """
    try:
        import onnxscript  # noqa: F401 (the exporter needs it)
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise InputError(f"--to onnx needs the extra [onnx]: {install_extra('onnx')}") from None
    if any(member.spec.image is not None for member in module.policy.members):
        raise InputError(
            f"{what} reads images with convolutions in float64, which ONNX runtimes do not have; "
            "--to torch exports it"
        )
    # Runtimes have no ELU in float64.
    program = _traced(module).run_decompositions({torch.ops.aten.elu.default: _elu})
    names = [OBS, MASK] if module.masked else [OBS]
    with _quiet():
        made = torch.onnx.export(
            program,
            input_names=names,
            output_names=[ACTION],
            dynamo=True,
            optimize=True,
            verbose=False,
        )
    assert made is not None
    model = made.model_proto
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with _quiet():
        session = ReferenceEvaluator(model)
        check(module, lambda inputs: np.asarray(next(iter(session.run([ACTION], inputs)))), what)
    write_atomic(path, model.SerializeToString())
    return [path]


def _elu(x: Tensor, *_: float) -> Tensor:
    return torch.where(x > 0, x, torch.expm1(x))


def check(module: Acting, run: Run, what: str) -> None:
    """Compare a file's actions with the canonical ones, on random observations.

    Half of them lie within the policy's scale of observations, half far outside of it.

    Raises:
        RunError: they differ by more than `TOLERANCE` of their range.
    """
    inputs = _inputs(module, ROWS, torch.Generator().manual_seed(0))
    expected = _canonical(module, inputs)
    for rows in (ROWS, 1):
        found = run({name: value[:rows] for name, value in inputs.items()})
        if found.shape != expected[:rows].shape:
            raise RunError(f"{what} was not written: its actions have the shape {found.shape}")
        away = np.abs(found.astype(np.float64) - expected[:rows]) / module.span
        if not (away <= (0.0 if module.policy.discrete else TOLERANCE)).all():
            worst = int(np.argmax(away.reshape(rows, -1).max(1)))
            raise RunError(
                f"{what} was not written: for observation {worst} of the comparison it gives "
                f"{found[worst]}, and the policy {expected[worst]}"
            )


def _canonical(module: Acting, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the policy's own actions, computed one row at a time, in the environment's space."""
    policy, found = module.policy, []
    for row, obs in enumerate(inputs[OBS]):
        legal = None
        if module.masked:
            legal = _options(torch.from_numpy(inputs[MASK][row : row + 1]), policy.sizes)
        action = policy.act(obs, legal)
        if module.codec is not None:
            action = module.codec.write(action.reshape(1, -1), batch=False)
        found.append(np.asarray(action).reshape(-1))
    actions = np.stack(found)
    return actions[:, 0] if module.single else actions


def _options(mask: Tensor, sizes: Sequence[int]) -> Legal:
    """Return which options of the next choice are legal, whatever the earlier choices are."""
    parts = torch.split(mask, list(sizes), 1)
    return lambda chosen: parts[chosen.shape[1]]


def _inputs(module: Acting, rows: int, generator: torch.Generator) -> dict[str, NDArray[Any]]:
    """Return random inputs, by name."""
    spec, tensors = module.policy.members[0]
    if spec.image is not None:
        pixels = torch.rand(rows, module.policy.state_dim, generator=generator)
        obs = (pixels * 255.0).round()
    else:
        normal = torch.randn(rows, module.policy.state_dim, generator=generator)
        normal[rows // 2 :] *= 10.0
        obs = (tensors["state_avg"] + normal * tensors["state_std"]).float()
    inputs = {OBS: obs.numpy()}
    if module.masked:
        legal = torch.rand(rows, sum(module.policy.sizes), generator=generator) < 0.5
        first = torch.tensor(np.cumsum([0, *module.policy.sizes[:-1]]))
        legal[:, first] = True  # at least one option of every choice
        inputs[MASK] = legal.numpy()
    return inputs


def _traced(module: Acting) -> torch.export.ExportedProgram:
    """Return the module as a program for any number of rows."""
    inputs = _inputs(module, 3, torch.Generator().manual_seed(1))
    rows = torch.export.Dim("batch")
    with _quiet():
        return torch.export.export(
            module.eval(),
            tuple(map(torch.from_numpy, inputs.values())),
            dynamic_shapes={name: {0: rows} for name in inputs},
        )


def _numpy(module: nn.Module, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    found: Tensor = module(*(torch.from_numpy(value) for value in inputs.values()))
    return found.numpy()


def _named(members: tuple[Member, ...]) -> dict[str, Tensor]:
    named = numbered([member.tensors for member in members])
    if len(members) > 1:
        return named
    return {name.removeprefix("m000."): tensor for name, tensor in named.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says about packages that policies do not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
