"""Trials without a study, whose parameters are exported."""

from __future__ import annotations

from typing import Any

from optuna.trial import create_trial

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.deploy.export.source import NetworkFacts, Source
from sweepd.optimize.study.record.trials import TrialRecord
from tests.deploy.games.players import spec

SPEC = ("environment", "num_envs", "horizon", "budget", "running_scale", "search")


def source_of(
    algorithm: str = "ppo",
    *,
    discrete: bool | None = None,
    action_dim: int = 2,
    weights: bool = True,
    image: bool = False,
    arguments: tuple[tuple[str, Any], ...] = (),
    **changes: Any,
) -> Source:
    """Return a trial with an algorithm's defaults.

    Args:
        algorithm: its algorithm.
        discrete: whether actions are choices; None: as the algorithm demands.
        action_dim: numbers of an action, or options.
        weights: whether its file of weights is there.
        image: whether observations are images.
        arguments: of the environment.
        changes: of the spec, the shape or the algorithm's parameters, by name.
    """
    entry = get_algorithm(algorithm)
    discrete = (algorithm == "d3qn") if discrete is None else discrete
    own: dict[str, Any] = {"environment": "gym:CartPole-v1", "num_envs": 8, "horizon": 64}
    own |= {"budget": 51_200, "env": {}, "running_scale": True}
    own |= {name: changes.pop(name) for name in SPEC if name in changes}
    shape = dict(entry.shape)
    names = set(entry.params.model_fields)
    params = {name: changes.pop(name) for name in list(changes) if name in names}
    record = TrialRecord(
        seed=7,
        shape=shape | changes,
        env_params={"arguments": arguments},
        learner_params=entry.params(**params).model_dump(),
    )
    facts = NetworkFacts(discrete, action_dim, image) if weights else None
    trial = create_trial(value=1.5)
    trial.number = 3
    return Source("study", trial, spec(algorithm=algorithm, **own), record, facts)
