"""The number of evaluation episodes of a new study, from a short training with several seeds.

The luck of the episodes should add little to what seeds differ by: at most a third to the standard
error. How much either is depends on the game, and on how far seeds have come apart. So some seeds are
trained for a tenth of the budget, as a trial's first rung, with the algorithm's default
hyperparameters. Their variance components give the number, which is then part of the study. It
depends on the study's settings alone, and not on the time that anything took.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.intervals import ADDED, Components, components
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.members.measure import typical_shape
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.fit import fit_shape
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan

SEEDS, EPISODES = 8, 32  # that the pilot trains, and plays with each
RUNGS = 10  # the pilot is a tenth of a training
COMPARED = 5  # seeds of a result whose error should not grow
FEWEST, MOST = 10, 1_000  # episodes
STEPS = 0.25  # most evaluation steps of a trial, as a share of its training steps


def choose_episodes(spec: GameSpec, found: Components, length: float, shares: float) -> int:
    """Return the number of episodes of an evaluation.

    Args:
        spec: of the study.
        found: variance components of the pilot.
        length: mean length of an episode.
        shares: sum over rungs of the share of the episodes that are played there.
    """
    wanted = min(found.episodes(COMPARED), MOST)
    steps = STEPS * spec.rollouts * spec.transitions
    return max(FEWEST, min(math.ceil(wanted), int(steps / (shares * max(1.0, length)))))


def measure_episodes(
    spec: GameSpec, device: torch.device, say: Callable[[str], None]
) -> tuple[GameSpec, str]:
    """Return the spec of a new study with a number of episodes, and a line that says why.

    Args:
        spec: the spec, otherwise complete.
        device: where the training runs.
        say: prints the line.
    """
    rungs = min(max(RUNGS, spec.rungs), spec.rollouts)
    short = dataclasses.replace(spec, rungs=rungs, episodes=EPISODES)
    experiment = GameExperiment(short, device, lambda _: None)
    shape = fit_shape(typical_shape(study_space(spec)), spec.transitions)
    trainer = Trainer(experiment)
    trainings = [
        trainer.start(
            Plan(n, n, {}, Settings(dict(shape), {}, {}), derive_seed(spec.seed, "pilot", n))
        )
        for n in range(-(-SEEDS // spec.seeds))
    ]
    trainer.advance(trainings)
    for training in trainings:  # the search uses the evaluation at the end: it plays all episodes
        training.rung = rungs - 1
    played = [one for one in trainer.evaluate(trainings) if isinstance(one, GameEvaluation)]
    returns = np.concatenate([one.games for one in played]) if played else np.zeros((0, EPISODES))
    if len(returns) < 2:
        line = f"episodes: {spec.episodes} per evaluation, since the seeds of a short training diverged"
        say(line)
        return spec, line
    found = components(returns)
    length = float(np.mean([one.episodes.lengths.mean() for one in played]))
    shares = sum(experiment.evaluation_share(rung) for rung in range(1, rungs + 1))
    episodes = choose_episodes(spec, found, length, shares)
    line = (
        f"episodes: {episodes:,} per evaluation; after {spec.rollouts * spec.transitions // rungs:,} "
        f"steps, {len(returns)} seeds differ by a standard deviation of {found.seed**0.5:.4g}, and "
        f"single episodes by {(found.episode + found.interaction) ** 0.5:.4g}. At most {ADDED:.0%} is "
        f"added to the error of {COMPARED} seeds, within {STEPS:.0%} of the training steps and "
        f"{MOST:,} episodes"
    )
    say(line)
    return dataclasses.replace(spec, episodes=episodes), line
