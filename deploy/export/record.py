"""A trial as JSON: its parameters, and what they belong to."""

from __future__ import annotations

import json
from typing import Any

from sweepd.deploy.export.source import Source
from sweepd.optimize.study.record.stored import CryptoSpec, GameSpec


def described(source: Source) -> str:
    """Return the trial as a JSON object: names and values as its study recorded them."""
    spec, record = source.spec, source.record
    found: dict[str, Any] = {
        "study": source.study,
        "trial": source.trial.number,
        "state": source.trial.state.name,
        "value": source.trial.value,
        "seed": record.seed,
        "environment": spec.environment,
        "budget": spec.budget,
    }
    if source.of_program:
        return _text(found | {"params": record.learner_params})
    found |= {
        "env": record.env_params,
        "algorithm": spec.algorithm,
        "num_envs": spec.num_envs,
        "horizon": spec.horizon,
        "shape": record.shape,
        spec.algorithm.partition(":")[0]: record.learner_params,
    }
    if isinstance(spec, GameSpec):
        found["running_scale"] = spec.running_scale
        found["curriculum"] = spec.curriculum
    if isinstance(spec, CryptoSpec):
        found["timeframe"], found["tickers"] = spec.data.timeframe, list(spec.data.tickers)
    return _text(found)


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2) + "\n"
