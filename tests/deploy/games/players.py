"""Hand-made players of a short CartPole, and finished studies of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import FrozenTrial, create_trial

from sweepd.agents.policy.members import Member, save_members
from sweepd.deploy.games.candidates import GameStudy
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.games.cartpole import CartPoleParams
from sweepd.optimize.study.record.folder import recorded_folder
from sweepd.optimize.study.record.keys import FOLDER_KEY, SPEC_KEY, UID_KEY
from sweepd.optimize.study.record.specs import MEAN, GameSpec
from tests.deploy.builders import SEARCH

ENV = {"max_steps": 60}
SLOT = "cartpole-max_steps_60"
Run = Callable[..., str]  # runs a command and returns what it prints
# Weights of the observation: position and speed of the cart, angle and speed of the pole.
GOOD, WEAK, BAD = (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, -1.0, -1.0)


def player(push: Sequence[float]) -> Member:
    """A member that pushes to the right if the weighted sum of its observation is above 0."""
    weights = torch.tensor([[0.0] * 4, list(push)])
    return Member.of_tensors(
        {
            "net.0.weight": weights,
            "net.0.bias": torch.zeros(2),
            "state_avg": torch.zeros(4),
            "state_std": torch.ones(4),
        }
    )


def spec(**changes: Any) -> GameSpec:
    """The spec of a study on CartPole."""
    settings = {
        "environment": "cartpole",
        "algorithm": "ppo",
        "env": ENV,
        "seed": 3,
        "objective": "return",
        "code_version": "0.1.0",
        "torch_version": "2.13.0",
        "seeds": 2,
        "episodes": 2,
        "centred": True,
        "running_scale": False,
        "look_steps": 256,
        "average": MEAN,
    }
    return GameSpec(**SEARCH | settings | changes)


def attributes(
    folder: Path,
    number: int,
    players: Sequence[Any],
    scores: Sequence[float],
    make: Callable[[Any], Member] = player,
) -> dict[str, Any]:
    """Attributes of a complete trial; its file of weights is written."""
    path = folder / f"trial-{number:05d}" / "members.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_members(path, [make(push) for push in players])
    return {
        "sweepd:seed": 100 + number,
        "sweepd:seed_scores": list(scores),
        "sweepd:metrics": {"mean": max(scores)},
        "sweepd:shape": {"net_width": 2},
        "sweepd:ppo_params": {"learning_rate": 1e-3},
        "sweepd:env_params": dict(vars(CartPoleParams(**ENV))),
        "sweepd:members": {
            "path": f"{path.parent.name}/{path.name}",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        },
    }


def study_of(
    folder: Path,
    *trials: Sequence[Any],
    make: Callable[[Any], Member] = player,
    further: Sequence[Sequence[float]] = (),
    **changes: Any,
) -> GameStudy:
    """A finished study in a database of its own, best trial first.

    Args:
        folder: of its files and its database.
        trials: players of each trial, the best one first.
        make: makes a player's weights.
        further: values of each trial after the first.
        changes: of the spec.
    """
    frozen: list[FrozenTrial] = []
    for number, players in enumerate(trials):
        scores = [50.0 - number - index for index in range(len(players))]
        own = attributes(folder, number, players, scores, make)
        values = [scores[0], *(further[number] if further else ())]
        frozen.append(create_trial(values=values, user_attrs=own))
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "studies.db"
    database.unlink(missing_ok=True)  # of an earlier study in this folder
    url = f"sqlite:///{database}"
    _write(url, spec(**changes), folder, frozen)
    return GameStudy(find_study(None, url))


def store(study: GameStudy, url: str, name: str = "short") -> None:
    """Put such a study into another database, under this name."""
    _write(url, study.spec, study.run_dir, study.complete, name)


def _write(
    url: str, spec: GameSpec, run_dir: Path, trials: Sequence[FrozenTrial], name: str = "short"
) -> None:
    directions = [value.direction for value in spec.values]
    made = optuna.create_study(study_name=name, storage=url, directions=directions)
    made.set_user_attr(SPEC_KEY, spec.to_json())
    made.set_user_attr(UID_KEY, "u" * 32)
    made.set_user_attr(FOLDER_KEY, recorded_folder(url, run_dir))
    for trial in trials:
        made.add_trial(create_trial(values=trial.values, user_attrs=trial.user_attrs))
