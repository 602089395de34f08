"""The native gradient steps of SAC and D3QN against torch's, and outputs of their networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.off_policy import OffPolicy
from sweepd.agents.algorithms.sac import LOG_ALPHA, SAC
from sweepd.envs.native import build
from sweepd.envs.native.build import VARIABLE
from tests.agents.helpers import shape_for
from tests.agents.off_policy_helpers import started
from tests.agents.toy_env import ChoiceEnv, ToyEnv

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native kernels: {error}", allow_module_level=True)

SLOTS, ENVS = 5, 8
KINDS = pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
Change = Callable[[OffPolicy], None]


def unchanged(_: OffPolicy) -> None:
    """Change nothing."""


def trained(
    kind: type[ToyEnv],
    rollouts: int,
    settings: dict[str, Any] | None = None,
    change: Change = unchanged,
    **sizes: Any,
) -> tuple[OffPolicy, Any]:
    """Return a program after some rollouts, and the statistics of the last one.

    Members differ in all hyperparameters. Some are in their warm-up during the first rollout.
    """
    env = kind(SLOTS, ENVS, **settings or {})
    program, _ = started(env, {slot: slot for slot in range(SLOTS)}, **{"horizon": 6, **sizes})
    with torch.no_grad():
        change(program)
    history = program.train(env, rollouts)
    return program, history[-1] if history else None


def flats(program: OffPolicy) -> dict[str, torch.Tensor]:
    """Return what is trained, by name."""
    found = {name: network.flat.unsqueeze(0) for name, network in program.networks.items()}
    return found | ({"alpha": program.alpha_log} if isinstance(program, SAC) else {})


def assert_close_updates(before: OffPolicy, ours: OffPolicy, theirs: OffPolicy) -> None:
    """Check weights, moments and steps of a native program against those of a torch program."""
    assert ours._native is not None
    assert theirs._native is None
    assert ours.diverged == theirs.diverged
    pairs = list(zip(ours._optimizers(), theirs._optimizers(), strict=True))
    for (found, _), (wanted, _) in pairs:
        assert torch.equal(found.step, wanted.step)
    moved = [
        (flats(ours)[name] - start, flats(theirs)[name] - start)
        for name, start in flats(before).items()
    ]
    moved += [(found.m, wanted.m) for (found, _), (wanted, _) in pairs]
    moved += [(found.v, wanted.v) for (found, _), (wanted, _) in pairs]
    for found, wanted in moved:
        errors = ((found - wanted).norm(dim=(0, 2)) / wanted.norm(dim=(0, 2))).sort().values
        # Now and then, rounding decides on which side of 0 the input of a ReLU is; from there on, a
        # few weights of that member differ.
        assert float(errors[SLOTS // 2]) < 5e-5
        assert float(errors[-1]) < 5e-2


SIZES: list[dict[str, Any]] = [
    {},  # six steps
    {"updates": 1},
    {"minibatch": 200, "net_width": 33, "net_depth": 3},  # chunks of rows; padded columns
    {"net_depth": 1, "net_width": 64, "minibatch": 97},
    {"minibatch": 200, "net_width": 33, "activation": "tanh"},
    {"net_depth": 3, "activation": "silu"},
    {"activation": "elu"},
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ToyEnv, {}),
        (ToyEnv, {"action_dim": 20}),
        (ToyEnv, {"cliff": 0.5}),  # episodes that end
        (ChoiceEnv, {"cliff": 0.5}),
        (ChoiceEnv, {"choices": 19}),
    ],
)
def test_gradient_steps_are_those_of_torch(
    kind: type[ToyEnv],
    settings: dict[str, Any],
    sizes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, moments, steps and statistics after two rollouts, whose batches are the same."""
    ours, stats = trained(kind, 2, settings, **sizes)
    monkeypatch.setenv(VARIABLE, "torch")
    before, _ = trained(kind, 0, settings, **sizes)
    theirs, right = trained(kind, 2, settings, **sizes)
    assert_close_updates(before, ours, theirs)
    assert len(set(theirs._optimizers()[0][0].step.tolist())) > 1  # some were in their warm-up
    for name, wanted in right._asdict().items():
        torch.testing.assert_close(getattr(stats, name), wanted, rtol=1e-3, atol=1e-5, msg=name)


def with_units(program: OffPolicy) -> None:
    """Normalisers of values, which the programs themselves never set."""
    for name, network in program.networks.items():
        if name != "actor":
            network.normalisers["value_avg"] += 0.7
            network.normalisers["value_std"] *= 1.6


def with_cut_deviations(program: OffPolicy) -> None:
    """Logarithms of deviations on both sides of their range."""
    assert isinstance(program, SAC)
    bias = program.actor.weights["net_a.0.bias"]
    bias[..., 2], bias[..., 3] = -20.0, 2.5


def with_highest_temperature(program: OffPolicy) -> None:
    assert isinstance(program, SAC)
    program.alpha_log.fill_(LOG_ALPHA[1] - 1e-3)
    program.numbers["target_entropy"].fill_(10.0)


def with_lowest_temperature(program: OffPolicy) -> None:
    assert isinstance(program, SAC)
    program.alpha_log.fill_(LOG_ALPHA[0] + 1e-3)
    program.numbers["target_entropy"].fill_(-10.0)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ToyEnv, with_units),
        (ChoiceEnv, with_units),
        (ToyEnv, with_cut_deviations),
        (ToyEnv, with_highest_temperature),
        (ToyEnv, with_lowest_temperature),
    ],
)
def test_bounds_and_units_are_those_of_torch(
    kind: type[ToyEnv], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = trained(kind, 2, change=change)
    monkeypatch.setenv(VARIABLE, "torch")
    before, _ = trained(kind, 0, change=change)
    theirs, _ = trained(kind, 2, change=change)
    assert_close_updates(before, ours, theirs)
    for bound, limit in zip(
        (with_lowest_temperature, with_highest_temperature), LOG_ALPHA, strict=True
    ):
        if change is bound:
            assert isinstance(ours, SAC)
            assert torch.equal(ours.alpha_log, torch.full_like(ours.alpha_log, limit))


def with_a_steep_target(program: OffPolicy) -> None:
    """A member's critic learns, and the gradient of its actor is not finite."""
    assert isinstance(program, SAC)
    program.target.weights["net.0.weight"][3, -1] = 1e37


def with_a_bad_network(program: OffPolicy) -> None:
    next(iter(program.networks.values())).flat[3] = torch.nan


@pytest.mark.parametrize(
    ("kind", "change"),
    [(ToyEnv, with_a_bad_network), (ChoiceEnv, with_a_bad_network), (ToyEnv, with_a_steep_target)],
)
def test_a_member_whose_gradient_is_not_finite_stops_where_torch_stops_it(
    kind: type[ToyEnv], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, stats = trained(kind, 1, change=change)
    monkeypatch.setenv(VARIABLE, "torch")
    theirs, right = trained(kind, 1, change=change)
    assert ours.diverged == theirs.diverged == [slot == 3 for slot in range(SLOTS)]
    assert torch.equal(stats.updates, right.updates)
    assert float(stats.updates[3]) == 0.0
    for (found, _), (wanted, _) in zip(ours._optimizers(), theirs._optimizers(), strict=True):
        assert torch.equal(found.step, wanted.step)


@KINDS
def test_actions_are_those_of_torch(kind: type[ToyEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are deterministic, and those that explore."""
    ours, _ = trained(kind, 2)
    monkeypatch.setenv(VARIABLE, "torch")
    theirs, _ = trained(kind, 2)
    obs = torch.randn(SLOTS * 100, ours.shape.obs_dim, generator=torch.Generator().manual_seed(0))
    found, wanted = (program.act_fn()(obs).double() for program in (ours, theirs))
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-4)
    rings = [program.replay.rings["side"][:, :24] for program in (ours, theirs)]
    torch.testing.assert_close(rings[0], rings[1], rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("kind", [SAC, D3QN])
def test_columns_that_only_critics_read_stay_in_torch(kind: type[OffPolicy]) -> None:
    env = (ChoiceEnv if kind is D3QN else ToyEnv)(2, 4)
    sizes = {"minibatch": 8, "updates": 1, "buffer": 160, "horizon": 12}
    shape = shape_for(env, algorithm=kind.algorithm, **sizes)
    assert kind(shape)._native is not None  # type: ignore[call-arg,arg-type]
    shape = shape_for(env, algorithm=kind.algorithm, privileged_dim=1, **sizes)
    assert kind(shape)._native is None  # type: ignore[call-arg,arg-type]
