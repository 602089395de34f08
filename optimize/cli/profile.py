"""The action of `sweepd profile`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.cli.demo import apply_preset, demo_bars, make_demo_data
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.cli.study_request import DATA_DIR_MISSING, make_request
from sweepd.optimize.objectives.members.measure import typical_shape
from sweepd.optimize.objectives.table import check_request, members_of
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.worker.freeze import decide
from sweepd.optimize.worker.profiling import profile as profile_batch


def profile(flags: StudySettings, given: frozenset[str], hooks: Hooks) -> None:
    """Print where a batch would spend its time, and what to change, without creating a study."""
    say = Terminal().print_line
    flags = apply_preset(flags, given)
    device, request = choose_device(flags.gpu), make_request(flags, given, hooks.load_bundle)
    check_request(request)
    kind = members_of(request.env, "sweepd profile")
    if kind.needs_data and (flags.demo or flags.smoke):
        make_demo_data(request.data_dir, request.timeframe, demo_bars(flags), say)
    elif kind.needs_data and flags.data_dir is None:
        raise InputError(DATA_DIR_MISSING)
    with tempfile.TemporaryDirectory() as folder:
        narrow = request.search_space.startswith("narrow:")  # the only space read from a database
        url = (
            storage_url(flags.storage, flags.runs_dir)
            if narrow
            else storage_url(None, Path(folder))
        )
        spec, bars, _ = decide(open_storage(url, create=not narrow), request, device, say)
    experiment = kind.make_experiment(spec, bars, device, say, hooks.load_bundle)
    shape = ", ".join(f"{name} {value}" for name, value in typical_shape(study_space(spec)).items())
    say(
        f"profiling {spec.trials_per_batch} trials of {experiment.members} {spec.member}s "
        f"({shape}) on {device}"
    )
    for line in profile_batch(experiment).lines():
        say(line)
