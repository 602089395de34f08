"""Studies of programs, by a worker of this process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sweepd.optimize.objectives.command import job
from sweepd.optimize.objectives.command.run import CommandRun
from sweepd.optimize.objectives.trial_files import trial_files
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.objectives.command.programs import PYTHON, command_study, work_on


def states(handle: StudyHandle) -> list[str]:
    return [trial.state.name for trial in handle.trials()]


def reason(handle: StudyHandle, number: int = 0) -> str:
    found = TrialRecord.from_attributes(handle.trials()[number].user_attrs).reason
    assert found is not None
    return found


def test_a_trial_is_one_program_with_its_own_parameters_and_seed(tmp_path: Path) -> None:
    text = """
names = ("PARAMS", "SEED", "TRIAL", "STUDY", "BUDGET", "OUT", "CHECKPOINT_DIR", "REPORTS")
own = {name: env[f"SWEEPD_{name}"] for name in names}
own |= {name: env.get(name) for name in ("PYTHONUNBUFFERED", "OMP_NUM_THREADS", "MKL_CBWR")}
open(own["OUT"] + "/seen.json", "w").write(json.dumps(own))
os.mkdir(own["OUT"] + "/deep")
open(own["OUT"] + "/deep/model.bin", "w").write("weights")
print("a line of the log")
report(1, params["lr"], loss=3.0)
report(2, 2 * params["lr"], loss=1.0)
"""
    handle = command_study(tmp_path, text)
    assert "trial 1 complete" in work_on(handle, 2)
    first = handle.trials()[0]
    assert first.value == 2 * first.params["lr"]
    folder = handle.trial_dir(0)
    seen = json.loads((folder / "seed-0" / "out" / "seen.json").read_text())
    assert (
        json.loads(seen["PARAMS"])
        == first.params
        == json.loads((folder / "params.json").read_text())
    )
    assert (seen["TRIAL"], seen["STUDY"], seen["BUDGET"]) == ("0", "s", "1")
    assert (seen["PYTHONUNBUFFERED"], seen["MKL_CBWR"]) == ("1", None)
    assert Path(seen["OUT"]).is_absolute()
    other = json.loads((handle.trial_dir(1) / "seed-0" / "out" / "seen.json").read_text())
    assert 0 <= int(seen["SEED"]) < 2**31
    assert seen["SEED"] != other["SEED"]
    # The log, the reports, the list of files, and the picture.
    assert "a line of the log" in (folder / "seed-0" / "attempt-1.log").read_text()
    reports = [json.loads(line) for line in (folder / "reports.jsonl").read_text().splitlines()]
    assert reports[1] == {"seed": 0, "step": 2, "value": first.value, "loss": 1.0}
    manifest = json.loads((folder / "manifest.json").read_text())
    model = next(own for own in manifest["files"] if own["path"].endswith("model.bin"))
    assert model == {
        "path": "seed-0/out/deep/model.bin",
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "bytes": 7,
    }
    record = TrialRecord.from_attributes(first.user_attrs)
    assert record.members is not None
    assert record.members.path == "trial-00000/manifest.json"
    assert (record.metrics or {})["loss"] == 1.0
    assert record.learner_params == first.params
    assert record.starts == [[1]]
    assert record.device is None
    assert {path.name for path in trial_files(handle, 0)} == {"curve.png", "manifest.json"}
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "seed-0" / "checkpoint").exists()
    assert list((handle.run_dir / "tensorboard" / "trial-00000").glob("events.*"))


def test_parameters_of_every_kind_reach_the_words_of_the_command(tmp_path: Path) -> None:
    params = {
        "text": {"choices": ['it\'s "so" $HOME', "b c"]},
        "flag": {"value": True},
        "number": {"value": 1e-05},
        "whole": {"low": 3, "high": 4},
        "maybe": {"low": 0.1, "high": 0.2, "off": 0.0},
    }
    names = " ".join(f"{{{name}}}" for name in params)
    script = tmp_path / "program.sh"
    script.write_text(
        "printf '%s\\n' \"$@\" > $SWEEPD_OUT/words\n"
        'printf \'{"step": 1, "value": 2}\''  # without a newline at the end
    )
    handle = command_study(tmp_path, "", params, command=f"bash {script} {names} '{{trial}} x'")
    work_on(handle, 2)
    assert [trial.value for trial in handle.trials()] == [2.0, 2.0]
    assert [path.name for path in trial_files(handle, 0)] == ["manifest.json"]  # a single report
    for trial in handle.trials():
        words = (handle.trial_dir(trial.number) / "seed-0" / "out" / "words").read_text()
        settings = handle.space.resolve(trial.params).learner
        told = [settings["text"], "true", "1e-05", str(settings["whole"]), str(settings["maybe"])]
        assert words.splitlines() == [*told, f"{trial.number} x"]


def test_the_value_of_a_trial_is_the_mean_of_its_seeds(tmp_path: Path) -> None:
    text = "report(5, int(env['SWEEPD_SEED']) % 1000, loss=1)"
    handle = command_study(tmp_path, text, seeds=3)
    work_on(handle, 1, jobs=2)
    [trial] = handle.trials()
    record = TrialRecord.from_attributes(trial.user_attrs)
    assert record.scores is not None
    assert len(set(record.scores)) == 3
    assert trial.value == pytest.approx(sum(record.scores) / 3)
    metrics = record.metrics or {}
    assert metrics["mean_low"] < metrics["mean"] < metrics["mean_high"]
    assert trial.user_attrs["sweepd:rung_1_interval"]["resampled"] == "seeds"


RUNGS = """
for step in range(10, 101, 10):
    report(step, params["lr"] * step)
    time.sleep(2.0 if step == 70 else 0.01)  # time in which a trial is pruned on a busy machine
"""


def test_rungs_are_reached_by_reports_and_the_worse_trials_are_pruned(tmp_path: Path) -> None:
    text = RUNGS + "open(env['SWEEPD_OUT'] + '/ended', 'w')\n"
    handle = command_study(
        tmp_path, text, budget=80, rungs=4, pruner="median", trials_per_batch=4, sampler="random"
    )
    work_on(handle, 8, jobs=4)
    assert {"COMPLETE", "PRUNED"} == set(states(handle))
    ended = []
    for trial in handle.trials():
        # The rungs end at 20, 40, 60 steps; the last one with the program, at 100.
        at = {1: 20, 2: 40, 3: 60, 4: 100}
        assert trial.intermediate_values == {
            rung: pytest.approx(trial.params["lr"] * at[rung])
            for rung in range(1, len(trial.intermediate_values) + 1)
        }
        ended.append((handle.trial_dir(trial.number) / "seed-0" / "out" / "ended").exists())
        if trial.state == TrialState.PRUNED:
            assert len(trial.intermediate_values) < 4
        else:
            assert ended[-1]
    # On a busy machine, a program may end between its report and the worker's look at it.
    assert not all(ended)


def test_a_program_that_ends_early_has_reached_all_rungs(tmp_path: Path) -> None:
    handle = command_study(tmp_path, "report(15, 1)\nreport(25, 2)", budget=80, rungs=4)
    work_on(handle, 1)
    assert handle.trials()[0].intermediate_values == {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "report(1, 1); print('one\\n\\ntwo', flush=True); sys.exit(3)",
            "exit code 3: .*one / two",
        ),
        ("report(1, 1); os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("report(1, 1); os.abort()", "ended by SIGABRT"),
        ("print('nothing')", "ended without a report, .*: nothing"),
        ("report(1, float('nan'))", "reported value nan at step 1"),
        ("report(2, 1); report(1, 1)", "reported step 1 after step 2"),
        ('print(\'{"step": "x", "value": 1}\', flush=True); time.sleep(60)', "step 'x'"),
    ],
)
def test_a_program_that_fails_gives_its_reason(tmp_path: Path, text: str, message: str) -> None:
    handle = command_study(tmp_path, text)
    assert "failed" in work_on(handle, 1)
    assert states(handle) == ["FAIL"]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(reason(handle))


def test_one_failed_seed_ends_the_others(tmp_path: Path) -> None:
    text = "report(1, 1)\nif int(env['SWEEPD_SEED']) % 2 == 0: sys.exit(4)\ntime.sleep(60)"
    handle = command_study(tmp_path, text, seeds=5)
    work_on(handle, 1, jobs=5)
    assert states(handle) == ["FAIL"]
    assert "ended with exit code 4" in reason(handle)
    assert reason(handle).startswith("seed ")


def test_code_75_starts_the_program_again(tmp_path: Path) -> None:
    text = """
path = env["SWEEPD_CHECKPOINT_DIR"] + "/step"
step = int(open(path).read()) if os.path.exists(path) else 0
report(step + 1, step)
open(path, "w").write(str(step + 1))
sys.exit(75 if step < 12 else 0)
"""
    handle = command_study(tmp_path, text)
    work_on(handle, 1)  # more than MOST_AGAIN attempts: each one has advanced
    [trial] = handle.trials()
    assert trial.value == 12.0
    assert TrialRecord.from_attributes(trial.user_attrs).starts == [list(range(1, 14))]


def test_code_75_without_progress_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_AGAIN", 2)
    handle = command_study(tmp_path, "report(1, 1); sys.exit(75)")
    work_on(handle, 1)
    assert "exit code 75 3 times without progress" in reason(handle)


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        ("x = bytearray(80_000_000); time.sleep(60)", {"job_memory": 0.05}, "0.05 GiB of memory"),
        ("time.sleep(60)", {"job_minutes": 0.005}, "more than 0.005 minutes"),
    ],
)
def test_limits_of_memory_and_time(
    tmp_path: Path, text: str, limit: dict[str, Any], message: str
) -> None:
    # Of what the program has started, too.
    child = f"import subprocess; subprocess.run([sys.executable, '-c', 'import time; {text}'])"
    handle = command_study(tmp_path, f"report(1, 1)\n{child}", **limit)
    work_on(handle, 1)
    assert message in reason(handle)


def test_a_race_repeats_good_parameters_with_further_seeds(tmp_path: Path) -> None:
    text = "report(1, -abs(params['lr'] - 0.5) + int(env['SWEEPD_SEED']) % 100 / 1000)"
    handle = command_study(tmp_path, text, sampler="race")
    work_on(handle, 12, fresh_seeds=3)
    assert len({trial.params["lr"] for trial in handle.trials()}) < 12
    best = handle.best()
    assert best is not None
    run = StudyHandle(handle.storage, f"s-run{best.best_trial.number}")
    [fresh] = run.trials()
    assert len(TrialRecord.from_attributes(fresh.user_attrs).scores or ()) == 3


def test_a_stopped_program_uses_no_time_of_its_limit(tmp_path: Path) -> None:
    text = "report(1, 1)\ntime.sleep(0.3)\nreport(2, 1)"
    handle = command_study(
        tmp_path, text, budget=2, rungs=2, pruner="median", trials_per_batch=4, job_minutes=0.02
    )
    work_on(handle, 4)  # one after the other: the first one waits for about a second
    assert states(handle) == ["COMPLETE"] * 4


def test_a_program_gets_a_card_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    text = "time.sleep(0.2); report(1, int(env['CUDA_VISIBLE_DEVICES']))"
    handle = command_study(tmp_path, text, seeds=4)
    work_on(handle, 1, jobs=4, run=CommandRun)
    record = TrialRecord.from_attributes(handle.trials()[0].user_attrs)
    assert sorted(record.scores or ()) == [0.0, 0.0, 1.0, 1.0]


def test_programs_that_only_print_may_be_python(tmp_path: Path) -> None:
    assert PYTHON.endswith("-S")
    handle = command_study(tmp_path, "print('{\"step\": 1, \"value\": 1}', end='')")
    work_on(handle, 1)
    assert states(handle) == ["COMPLETE"]


def test_an_error_of_the_worker_ends_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "with open(env['SWEEPD_OUT'] + '/pid', 'w') as file: file.write(str(os.getpid()))\n"
    handle = command_study(tmp_path, text + "report(1, 1)\ntime.sleep(60)")

    def fail(run: CommandRun, states: Any) -> None:  # noqa: ARG001
        pid = handle.trial_dir(0) / "seed-0" / "out" / "pid"
        if pid.exists() and pid.read_text():
            raise OSError("the disk is full")

    monkeypatch.setattr(CommandRun, "_keep_if_due", fail)
    with pytest.raises(OSError, match="the disk is full"):
        work_on(handle, 1)
    [found] = handle.run_dir.glob("trial-*/seed-0/out/pid")
    assert not Path("/proc", found.read_text()).exists()
    assert states(handle) == ["WAITING"]
