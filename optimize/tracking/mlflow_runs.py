"""Runs in MLflow: one experiment per study, one run per trial.

The client reads its own variables: MLFLOW_TRACKING_URI, MLFLOW_TRACKING_USERNAME, ….
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from sweepd.optimize.tracking.picture import FAILED, POINT_METRICS, Picture, Sent

KEY_TAG = "sweepd.run"
# Shorter than MLflow's defaults (120 s, 7 retries): the sender retries by itself.
SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
STATUSES = {"COMPLETE": "FINISHED", "PRUNED": "KILLED", FAILED: "FAILED"}
MOST_PARAMS = 100  # per request


class MlflowRuns:
    """Sends pictures to MLflow."""

    def __init__(self) -> None:
        for name, value in SHORT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient  # takes seconds to import

        self._client = MlflowClient()
        self._params: dict[str, set[str]] = {}  # names sent by this process, by key

    def send(self, picture: Picture, sent: Sent) -> None:
        """Bring the picture's run up to date; update `sent` on the way. Any error may be raised."""
        from mlflow.entities import Metric, Param

        if picture.is_ended and sent.state == picture.state:
            return
        if picture.key not in self._params:
            self._open(picture, sent)
            self._params[picture.key] = set()
        client, run, known = self._client, sent.run, self._params[picture.key]
        new = [name for name in picture.params if name not in known]
        for start in range(0, len(new), MOST_PARAMS):
            part = new[start : start + MOST_PARAMS]
            params = [Param(_named(name), str(picture.params[name])) for name in part]
            client.log_batch(run, params=params)
            known.update(part)
        now = round(time.time() * 1000)
        for step, metrics in sorted(picture.points.items()):
            if step not in sent.steps:
                own = [Metric(_named(name), value, now, step) for name, value in metrics.items()]
                client.log_batch(run, metrics=own)
                sent.steps.append(step)
        client.log_batch(run, tags=_tags(picture))
        if picture.is_ended:
            last = max(picture.points, default=0)
            final = [Metric(_named(name), v, now, last) for name, v in picture.final.items()]
            client.log_batch(run, metrics=final)
            ended = None if picture.ended is None else round(picture.ended * 1000)
            client.set_terminated(run, STATUSES[picture.state], ended)
            del self._params[picture.key]
        sent.state = picture.state

    def close(self) -> None:
        """Leave everything as it is: runs of unfinished trials stay open for the next worker."""

    def _open(self, picture: Picture, sent: Sent) -> None:
        """Find the run of the picture, or create it; complete `sent` from the server."""
        client = self._client
        experiment = self._experiment(picture.group)
        found = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{picture.key}'")
        if not found:
            started = None if picture.started is None else round(picture.started * 1000)
            tags = {KEY_TAG: picture.key, **{tag.key: tag.value for tag in _tags(picture)}}
            run = client.create_run(experiment, started, tags, picture.name)
            sent.run, sent.steps, sent.state = run.info.run_id, [], ""
            return
        [run, *_] = found
        sent.run = run.info.run_id
        # The server knows better than the file: a kill may have come between the two.
        histories = (client.get_metric_history(sent.run, name) for name in POINT_METRICS)
        sent.steps = sorted({metric.step for history in histories for metric in history})

    def _experiment(self, study: str) -> str:
        """Return the id of the study's experiment, or of the one that the variables name."""
        if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return given
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or study
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name))
        if found.lifecycle_stage != "active":
            raise RuntimeError(
                f"experiment {name!r} was deleted in MLflow; restore it, or name another in "
                "MLFLOW_EXPERIMENT_NAME"
            )
        return str(found.experiment_id)


def _tags(picture: Picture) -> list[Any]:
    from mlflow.entities import RunTag

    tags = {**picture.tags, **{f"file.{name}": link for name, link in picture.links.items()}}
    tags["state"] = picture.state
    return [RunTag(f"sweepd.{_named(name)}", value) for name, value in tags.items()]


def _named(name: str) -> str:
    """Return a name of the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /:]", "_", name)
