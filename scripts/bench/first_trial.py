"""A study's first trial without a study, for learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from envs.games.curriculum import parse_curriculum
from envs.support.study_record import GameSpec
from optimize.experiments.games import GameExperiment
from optimize.study.space.parsing import load_space
from optimize.study.space.subject import Subject
from optimize.study.study import Plan
from optimize.worker.batch import Trainer, Training


def first_trial(
    game: str,
    phases: Sequence[Mapping[str, Any]] | None,
    steps: int,
    *,
    seeds: int,
    parts: int,
    episodes: int,
    num_envs: int | None = None,
) -> tuple[Trainer, Training]:
    """Return a PPO trial with the settings of the game's included space, and its trainer.

    Args:
        game: name of a game of two players.
        phases: as in `[[phases]]`; None: the present policy has both seats.
        steps: per seed.
        seeds: number of members.
        parts: number of rungs.
        episodes: games per member and scripted player in an evaluation.
        num_envs: games per member; None: as in the space.
    """
    space = load_space("game", Subject(game))
    curriculum = (
        {} if phases is None else parse_curriculum({"phases": list(phases)}, game).to_dict()
    )
    spec = GameSpec(
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
        seed=0,
        space=space.to_dict(),
        threads=torch.get_num_threads(),
        seeds=seeds,
        episodes=episodes,
        curriculum=curriculum,
    )
    trainer = Trainer(GameExperiment(spec, torch.device("cpu")))
    return trainer, trainer.start(Plan(0, 0, {}, space.resolve(space.start), spec.seed))
