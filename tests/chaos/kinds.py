"""The studies whose workers are killed: on a tiny market, and of a tiny program."""

# ruff: noqa: ARG002 -- each kind uses what it needs

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import torch
from optuna.trial import FrozenTrial, TrialState

from sweepd.agents.policy.members import load_members
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.trial_files import trial_files
from sweepd.optimize.study.record.bars import load_study_bars
from sweepd.optimize.study.study import Plan, StudyHandle
from tests.optimize.conftest import SPACE, TRAIN
from tests.optimize.objectives.command.programs import PYTHON, alive, pids, program

GONE_SECONDS = 5.0  # for what a killed worker has started to end
FILES = {"equity.png", "paths.parquet"}  # of a trial on a market


class Kind(ABC):
    """What is particular to one kind of study.

    Attributes:
        flags: of `sweepd train`, which is started in the folder of `prepare`.
    """

    flags: tuple[str, ...]

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Write the files that the flags name."""

    @abstractmethod
    def damaged(self, handle: StudyHandle, complete: list[FrozenTrial]) -> Iterator[str]:
        """Yield a sentence for every damaged file, and for what is left over."""

    @abstractmethod
    def same(self, handle: StudyHandle, trial: FrozenTrial) -> bool:
        """Return whether a trial has the numbers of an undisturbed one, to the bit."""


class MarketKind(Kind):
    """A tiny market, whose trials are trained again without disturbance."""

    flags = (*TRAIN, "--budget", "480")

    def prepare(self, folder: Path) -> None:
        write_bars(make_planted_market(3, assets=2, bars=700), folder / "bars")
        (folder / "tiny.toml").write_text(SPACE)

    def damaged(self, handle: StudyHandle, complete: list[FrozenTrial]) -> Iterator[str]:
        for trial in complete:
            recorded = trial.user_attrs["sweepd:members"]
            content = (handle.run_dir / recorded["path"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != recorded["sha256"]:
                yield (
                    f"the members of trial {trial.number} of {handle.name} are not the recorded "
                    "ones"
                )
            if {path.name for path in trial_files(handle, trial.number)} != FILES:
                yield f"files of trial {trial.number} of {handle.name} are missing"

    def same(self, handle: StudyHandle, trial: FrozenTrial) -> bool:
        torch.set_num_threads(1)
        bars = load_study_bars(handle.spec.data)
        trainer = Trainer(CryptoExperiment(handle.spec, bars, torch.device("cpu")))
        settings = handle.space.resolve(trial.params)
        training = trainer.start(
            Plan(-1, trial.number, trial.params, settings, trial.user_attrs["sweepd:seed"])
        )
        alone: dict[int, float] = {}
        for rung in range(1, len(trial.intermediate_values) + 1):
            trainer.advance([training])
            (evaluation,) = trainer.evaluate([training])
            assert evaluation is not None
            training.rung = rung
            alone[rung] = evaluation.value
        same = alone == trial.intermediate_values
        if trial.state != TrialState.COMPLETE:
            return same
        members = load_members(handle.run_dir / trial.user_attrs["sweepd:members"]["path"])
        return (
            same
            and evaluation.final == trial.value
            and all(
                torch.equal(own.tensors[key], other.tensors[key])
                for own, other in zip(trainer.actors(training), members, strict=True)
                for key in own.tensors
            )
        )


STEPS = 12
# It fails if another attempt runs, goes on from its checkpoint, and starts a process in a session of
# its own.
TEXT = f"""
import fcntl, subprocess
out, kept = env["SWEEPD_OUT"], env["SWEEPD_CHECKPOINT_DIR"] + "/step"
lock = open(env["SWEEPD_CHECKPOINT_DIR"] + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
orphan = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(orphan, start_new_session=True)
open(out + "/pids", "a").write(f"{{os.getpid()}} {{child.pid}}\\n")
step = int(open(kept).read()) if os.path.exists(kept) else 0
while step < {STEPS}:
    step += 1
    report(step, params["lr"] * step)
    open(kept + ".new", "w").write(str(step))
    os.replace(kept + ".new", kept)
    time.sleep(0.03)
"""


class ProgramKind(Kind):
    """A tiny program, whose values are known."""

    flags = (
        *("--env", f"command:{PYTHON} program.py", "--search-space", "program.toml"),
        *("--budget", str(STEPS), "--rungs", "3", "--pruner", "median", "--sampler", "random"),
        *("--seeds", "1", "--fresh-seeds", "0", "--trials-per-batch", "3", "--jobs", "2"),
    )

    def prepare(self, folder: Path) -> None:
        program(folder, TEXT)
        (folder / "program.toml").write_text("[params]\nlr = { low = 0.0, high = 1.0 }\n")

    def damaged(self, handle: StudyHandle, complete: list[FrozenTrial]) -> Iterator[str]:
        for trial in complete:
            reports = (handle.trial_dir(trial.number) / "reports.jsonl").read_text().splitlines()
            if len(reports) != STEPS:
                yield f"trial {trial.number} of {handle.name} has {len(reports)} reports"
        until = time.monotonic() + GONE_SECONDS
        while left := [pid for pid in pids(handle.run_dir) if alive(pid)]:
            if time.monotonic() > until:
                yield f"of {handle.name} the processes {left} are left"
                return
            time.sleep(0.05)

    def same(self, handle: StudyHandle, trial: FrozenTrial) -> bool:
        rate, each = trial.params["lr"], STEPS // 3
        values = {rung: rate * each * rung for rung in (1, 2, 3)}
        reached = len(trial.intermediate_values)
        return trial.intermediate_values == {r: values[r] for r in range(1, reached + 1)} and (
            trial.state != TrialState.COMPLETE or trial.value == values[3]
        )


KINDS = {"market": MarketKind(), "program": ProgramKind()}
