"""A study's first trial without a study, for learning curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from envs.games.phase_files import parse_curriculum
from envs.support.study_record import GameSpec
from optimize.experiments.games import GameExperiment
from optimize.study.space.dimension import Dimension
from optimize.study.space.parsing import load_space
from optimize.study.space.search_space import SearchSpace
from optimize.study.space.subject import Subject
from optimize.study.study import Plan
from optimize.worker.batch import Trainer, Training


def first_trial(
    game: str, phases: Sequence[Mapping[str, Any]] | None, steps: int, **settings: Any
) -> tuple[Trainer, Training]:
    """Return a study's first trial and its trainer; arguments as of `first_trial_spec`."""
    spec = first_trial_spec(game, phases, steps, **settings)
    space = load_space("game", Subject(game))
    trainer = Trainer(GameExperiment(spec, torch.device("cpu")))
    return trainer, trainer.start(Plan(0, 0, {}, space.resolve(space.start), spec.seed))


def first_trial_spec(
    game: str,
    phases: Sequence[Mapping[str, Any]] | None,
    steps: int,
    *,
    seeds: int,
    parts: int,
    episodes: int,
    num_envs: int | None = None,
    seed: int = 0,
) -> GameSpec:
    """Return the spec of a PPO study whose trials all have the settings of the first one.

    Args:
        game: name of a game of two players.
        phases: as in `[[phases]]`; None: the present policy has both seats.
        steps: per seed.
        seeds: number of members.
        parts: number of rungs.
        episodes: games per member and scripted player in an evaluation.
        num_envs: games per member; None: as in the space.
        seed: of the study.
    """
    space = load_space("game", Subject(game))
    curriculum = (
        {} if phases is None else parse_curriculum({"phases": list(phases)}, game).to_dict()
    )
    return GameSpec(
        environment=game,
        algorithm="ppo",
        env={},
        budget=steps,
        rungs=parts,
        num_envs=num_envs or space.study["n_envs"],
        horizon=space.study["horizon"],
        slots=seeds,
        trials_per_batch=1,
        objective="points",
        sampler="random",
        pruner="none",
        seed=seed,
        space=_fixed(space).to_dict(),
        threads=torch.get_num_threads(),
        seeds=seeds,
        episodes=episodes,
        play=space.study.get("play", "deterministic"),
        curriculum=curriculum,
    )


def _fixed(space: SearchSpace) -> SearchSpace:
    """Return a space in which every trial has the settings of the first one."""
    tables = {
        table: {
            name: own if own.start is None else Dimension(name, value=own.start)
            for name, own in entries.items()
        }
        for table, entries in space.tables.items()
    }
    return dataclasses.replace(space, tables=tables)
