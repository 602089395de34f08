"""Runs in Weights & Biases: one group per study, one run per trial.

The library reads its own variables: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, WANDB_API_KEY, ….
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sweepd.optimize.tracking.picture import FAILED, Picture, Sent

PROJECT = "sweepd"
INIT_SECONDS, FINISH_SECONDS = 30.0, 60.0


class WandbRuns:
    """Hands pictures to W&B's own background process.

    Args:
        folder: where W&B keeps its files, unless WANDB_DIR is set.
    """

    def __init__(self, folder: Path) -> None:
        import wandb

        self._wandb, self._folder = wandb, folder
        self._open: dict[str, Any] = {}  # runs by key

    def send(self, picture: Picture, sent: Sent) -> None:
        """Bring the picture's run up to date; update `sent` on the way. Any error may be raised."""
        if picture.is_ended and sent.state == picture.state:
            return
        run = self._open.pop(picture.key, None) or self._begin(picture)
        sent.run = run.id
        self._update(run, picture, sent)
        # After an error, the run is opened again: this object may be of no more use.
        if not picture.is_ended:
            self._open[picture.key] = run
        sent.state = picture.state

    def close(self) -> None:
        """Close the runs of unfinished trials, which the next worker resumes."""
        for run in self._open.values():
            run.mark_preempting()
            run.finish(exit_code=1)

    def _update(self, run: Any, picture: Picture, sent: Sent) -> None:
        # Links and tags that were not known at the beginning.
        run.config.update(_config(picture), allow_val_change=True)
        for step, metrics in sorted(picture.points.items()):
            if step in sent.steps:
                continue
            # Rows of a resumed run that the server has, but this machine has not sent.
            if not (run.resumed and step < run.starting_step):
                run.log({**metrics, "env_steps": step}, step=step, commit=True)
            sent.steps.append(step)
        if picture.is_ended:
            self._finish(run, picture)

    def _begin(self, picture: Picture) -> Any:
        settings = self._wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_stats=True,  # they would be those of this process, which does nothing
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or INIT_SECONDS),
        )
        run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=picture.key,
            name=picture.name,
            group=os.environ.get("WANDB_RUN_GROUP") or picture.group,
            job_type="trial",
            config=_config(picture),
            resume="allow",
            reinit="create_new",  # the trials of a batch are open together
            dir=os.environ.get("WANDB_DIR") or str(self._folder),
            settings=settings,
        )
        run.define_metric("env_steps", hidden=True)
        run.define_metric("*", step_metric="env_steps")
        return run

    def _finish(self, run: Any, picture: Picture) -> None:
        run.summary.update({**picture.final, "state": picture.state})
        if reason := picture.tags.get("reason"):
            run.summary.update({"reason": reason})
        run.tags = (*(run.tags or ()), picture.state.lower())
        if members := picture.links.get("members"):
            # A reference: W&B records where the file is, and copies nothing.
            artifact = self._wandb.Artifact(f"trial-{picture.key}", type="trial")
            artifact.add_reference(members, name="members", checksum=False)
            run.log_artifact(artifact)
        run.finish(exit_code=int(picture.state == FAILED))


def _config(picture: Picture) -> dict[str, Any]:
    return {**picture.params, "sweepd": {**picture.tags, "files": picture.links}}
