"""Studies with `--async-envs`: what is recorded, resume, repetition, and what is refused."""

from __future__ import annotations

import itertools
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file, save_file

from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.step_record import read_steps
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.spec import differences
from sweepd.optimize.study.study import StudyHandle
from tests.envs.external.test_processes import gone
from tests.optimize.conftest import Running
from tests.optimize.study_files import killed_at_checkpoint, open_handle, trained_again, wait_for

STUDY = (
    *("train", "--study-name", "s", "--env", "gym:CartPole-v1", "--n-trials", "1", "--seeds", "2"),
    *("--n-envs", "4", "--horizon", "16", "--budget", "384", "--rungs", "2", "--episodes", "2"),
    *("--sampler", "random", "--pruner", "none", "--threads", "1", "--slots", "2", "--gpu", "cpu"),
    *("--look-steps", "16", "--no-auto-deploy", "--search-space"),
    '{"shape": {"net_width": {"value": 8}, "net_depth": {"value": 1}, "minibatch": {"value": 32}, '
    '"epochs": {"value": 2}}}',
)
_outputs = itertools.count()


def started(folder: Path, *words: object) -> Running:
    return Running([str(word) for word in words], folder, folder / f"output-{next(_outputs)}.txt")


def weights_of(handle: StudyHandle) -> str:
    """Return the sha256 of the weights of trial 0."""
    [trial] = handle.trials()
    record = TrialRecord.from_attributes(trial.user_attrs).members
    assert record is not None
    return record.sha256


def env_workers(running: Running) -> list[psutil.Process]:
    assert running.process.pid is not None
    children = psutil.Process(running.process.pid).children(recursive=True)
    return [one for one in children if any("env_worker_main" in word for word in one.cmdline())]


def test_a_killed_study_is_resumed_and_its_trial_repeated_to_the_byte(tmp_path: Path) -> None:
    with killed_at_checkpoint("runs/*/trial-*/checkpoint-*", every_rollout=True):
        started(tmp_path, *STUDY, "--async-envs", 2).finish(-signal.SIGKILL)
    said = started(tmp_path, *STUDY, "--async-envs", 2).finish()
    assert "timing decides how many steps each makes in a rollout" in said
    assert "8 environments x 16 steps / 2 = 64 per rollout" in said
    assert "16 parallel envs (8 per member x 2 members per program)" in said
    handle = open_handle(tmp_path)
    file = handle.trial_dir(0) / "steps.safetensors"
    steps = load_file(file)
    assert sorted(steps) == ["seed_0", "seed_1"]
    for counts in steps.values():
        assert counts.shape == (6, 8)
        assert (counts.sum(1) == 64).all()
    again = trained_again(handle, 0, tmp_path / "again")
    assert again.sha256 == again.recorded
    # With one step more of one environment, it is another training.
    least, *_, most = steps["seed_1"][0].argsort()  # two, also where all made as many
    steps["seed_1"][0, most] -= 1
    steps["seed_1"][0, least] += 1
    save_file(steps, file)
    again = trained_again(handle, 0, tmp_path / "other")
    assert again.sha256 != again.recorded
    file.unlink()
    with pytest.raises(InputError, match=r"steps\.safetensors cannot be read"):
        read_steps(handle.trial_dir(0), 2)
    assert differences(handle.spec, replace(handle.spec, async_envs=1)) == [("async_envs", 2, 1)]
    before = json.loads(handle.spec.to_json())  # a spec that was made before it existed
    del before["async_envs"]
    assert StudySpec.from_json(json.dumps(before)) == replace(handle.spec, async_envs=0)


def test_with_1_the_numbers_are_those_of_environments_that_are_stepped_together(
    tmp_path: Path,
) -> None:
    found = []
    for folder, flags in (("together", ()), ("ready", ("--async-envs", 1))):
        (tmp_path / folder).mkdir()
        started(tmp_path / folder, *STUDY, *flags).finish()
        handle = open_handle(tmp_path / folder)
        assert not (handle.trial_dir(0) / "steps.safetensors").exists()
        found.append((weights_of(handle), handle.trials()[0].values))
    assert found[0] == found[1]


def test_interruption_and_the_death_of_an_env_worker(tmp_path: Path) -> None:
    study = (*STUDY, "--async-envs", 2, "--budget", 64_000)
    running = started(tmp_path, *study)
    wait_for(lambda: "training trial" in running.output.read_text())
    wait_for(lambda: env_workers(running))
    workers = env_workers(running)
    running.signal(signal.SIGINT)
    running.finish()
    gone([worker.pid for worker in workers])
    running = started(tmp_path, *study)
    wait_for(lambda: "training trial" in running.output.read_text())
    wait_for(lambda: env_workers(running))
    [*_, last] = env_workers(running)
    last.kill()
    assert "was ended by SIGKILL" in running.finish(1)
    assert [trial.state.name for trial in open_handle(tmp_path).trials()] == ["WAITING"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env": "cartpole"}, "--async-envs 2 is for environments of others .* leave it out"),
        ({"algo": "sac", "env": "gym:Pendulum-v1"}, "--async-envs 2 is for --algo ppo, not sac"),
        ({"env": "crypto"}, "--async-envs is for games, and --env is crypto"),
        (
            {"search": "pbt", "seeds": 1},
            "--async-envs 2 records what .* --search pbt copies weights",
        ),
        ({"async_envs": 17}, "--async-envs 17 is more than sweepd can use here; give at most 16"),
    ],
    ids=str,
)
def test_what_would_have_no_meaning_is_refused(given: dict[str, Any], message: str) -> None:
    settings = {"env": "gym:CartPole-v1", "async_envs": 2, "objective": "return"} | given
    with pytest.raises(InputError, match=message):
        check_request(Request(**settings, given=frozenset(settings)))
