"""A trial as JSON: its parameters, and what they belong to."""

from __future__ import annotations

import json
from typing import Any

from sweepd.deploy.export.source import Source


def described(source: Source) -> str:
    """Return the trial as a JSON object: names and values as its study recorded them."""
    spec, record, values = source.spec, source.record, source.trial.values
    found: dict[str, Any] = {
        "study": source.study,
        "trial": source.trial.number,
        "state": source.trial.state.name,
        "value": values[0] if values else None,
        "seed": record.seed,
        "environment": spec.environment,
        "budget": spec.budget,
    }
    if spec.several:
        names = [value.name for value in spec.values]
        found["values"] = dict(zip(names, values or (), strict=False))
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
    described = json.loads(spec.to_json())
    found |= {
        name: described[name] for name in ("running_scale", "curriculum") if name in described
    }
    if data := described.get("data"):
        found |= {name: data[name] for name in ("timeframe", "tickers")}
    return _text(found)


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2) + "\n"
