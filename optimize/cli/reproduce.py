"""The training of `sweepd reproduce`: a trial of a study, again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.logs import LogConsole
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.objectives.games.curriculum import LoadBundle
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.retrained import Retrained
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.reproduction import Reproduction
from sweepd.optimize.worker.stopping import StopRequest
from sweepd.optimize.worker.telemetry import Telemetry


def retrain(
    study: str,
    uid: str,
    trial: int,
    folder: Path,
    *,
    storage: str | None,
    runs_dir: Path | None,
    data_dir: Path | None,
    gpu: str | None,
    threads: int | None,
    load_bundle: LoadBundle | None = None,
) -> Retrained | None:
    """Train a trial again in a folder of its own; the study is only read.

    Args:
        study: name of the study.
        uid: its random id.
        trial: number of the trial.
        folder: gets the checkpoint and the trial's files.
        storage: `--storage`.
        runs_dir: `--runs-dir`.
        data_dir: `--data-dir`: where a market's bars are; None: where they were.
        gpu: `--gpu`; None: as the trial was trained, the first GPU or the CPU.
        threads: `--threads`.
        load_bundle: finds champions that are opponents.

    Returns:
        None if a signal stopped it; the same call continues it.

    Raises:
        InputError: the study, the trial or its bars are not here, or this machine cannot train it.
        RunError: the training diverged.
    """
    if gpu == "all":
        raise InputError("--gpu all is for train; a trial is trained again on one GPU")
    url = storage_url(storage, runs_dir)
    handle = StudyHandle(open_storage(url, create=False, immediate=False), study, runs_dir)
    if handle.uid != uid:
        raise InputError(
            f"study {study!r} in {hide_password(url)} is not the one that trained this bundle, but "
            "another one of its name; name the right database with --storage"
        )
    given = {"data_dir": data_dir, "threads": threads}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    request = Request(
        env=handle.spec.environment, **known, given=frozenset(known), load_bundle=load_bundle
    )
    device = _device(handle, trial, gpu)
    telemetry = Telemetry(LogConsole(), f"{study}, trial {trial} again", device)
    telemetry.total = 1
    reproduction = Reproduction(handle, trial, request, device, telemetry)
    stop = StopRequest(telemetry.say, "writing a checkpoint")
    with stop.installed(), telemetry:
        return reproduction.train(folder, stop)


def _device(handle: StudyHandle, number: int, gpu: str | None) -> torch.device:
    if gpu is None:
        trial = next((one for one in handle.trials() if one.number == number), None)
        attributes = {} if trial is None else trial.user_attrs
        gpu = "cpu" if TrialRecord.from_attributes(attributes).device == "cpu" else None
    return choose_device(gpu)
