"""Checkpoints after every rollout, and trials resumed from their files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from sweepd.optimize.objectives.members.trainer import MemberTraining
from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.study.checkpoint import Checkpoint, read_checkpoint, write_checkpoint


class EveryRollout(CheckpointPace):
    """A checkpoint is always due."""

    def due(self) -> bool:
        return True


def kept_in(folder: Path, kept: list[MemberTraining]) -> Callable[[Sequence[MemberTraining]], None]:
    """A `WorkerHooks.keep` that writes each checkpoint, reads it back, and appends the trial as resumed
    from it.
    """

    def keep(trainings: Sequence[MemberTraining]) -> None:
        for training in trainings:
            path = folder / f"{len(kept)}.safetensors"
            curves = dict(training.curves)
            sha256 = write_checkpoint(
                path, Checkpoint(list(training.members), training.rung, 1.0, {}, curves)
            )
            back = read_checkpoint(path, sha256)
            curves = defaultdict(list, back.curves)
            kept.append(
                MemberTraining(training.plan, back.rung, members=back.members, curves=curves)
            )

    return keep
