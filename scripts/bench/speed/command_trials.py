"""What a trial and a report of `--env command:…` cost beside the program itself.

Trials: studies of a program that prints one report and ends, in one worker, with SQLite. `trial`: the
median of the times between the ends of two trials; `processor`: seconds of processor time of a trial,
that of all threads, the supervisor and the program together, from a study with more trials and one
with fewer. Beside it the same program in Optuna's `optimize` with `subprocess.run` and a SQLite file,
and alone. Reports: the same study of a program that prints `--reports` reports, less the time of a
trial with one report.
"""

from __future__ import annotations

import contextlib
import io
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import optuna

import sweepd
from scripts.bench.harness import benchmark_parser, print_machine, save_results

FEW = 3  # trials of a study that loads modules
SPACE = "[params]\nlr = { low = 0.0, high = 1.0 }\n"
REPORT = '{"step": %d, "value": 0.5}\n'


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(own.ru_utime + own.ru_stime for own in used)


def study_seconds(folder: Path, command: str, trials: int) -> tuple[float, float]:
    """Return the median seconds between the ends of trials, and the processor time of a study."""
    (folder / "space.toml").write_text(SPACE)
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as runs:
        study = sweepd.create_study(
            "s",
            env=f"command:{command}",
            search_space=str(folder / "space.toml"),
            sampler="random",
            seeds=1,
            fresh_seeds=0,
            n_trials=trials,
            runs_dir=Path(runs),
        )
        before = processor_seconds()
        study.run()
        used = processor_seconds() - before
        between = study.trials()["ended"].diff().iloc[1:]
    return float(between.median().total_seconds()), used


def optuna_seconds(folder: Path, words: list[str], trials: int) -> float:
    """Return the seconds of each trial of the same program in Optuna."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("lr", 0.0, 1.0)
        said = subprocess.run(words, capture_output=True, check=True).stdout
        return float(said.rsplit(b":", 1)[1].rstrip(b"}\n"))

    study = optuna.create_study(
        storage=f"sqlite:///{folder}/optuna.db", sampler=optuna.samplers.RandomSampler(0)
    )
    study.optimize(objective, n_trials=trials)
    return seconds_of(lambda: study.optimize(objective, n_trials=trials)) / trials


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "")
    parser.add_argument("--trials", type=int, default=30, help="trials of a measurement")
    parser.add_argument("--reports", type=int, default=10_000, help="reports of one program")
    parser.add_argument("--repeat", type=int, default=3, help="measurements; the median is shown")
    options = parser.parse_args(argv)
    described = print_machine()
    rows: list[dict[str, float]] = []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            many = folder / "many"
            many.write_text("".join(REPORT % step for step in range(options.reports)))
            one = folder / "one"
            one.write_text(REPORT % 1)
            words = ["cat", str(one)]
            _, few = study_seconds(folder, " ".join(words), FEW)
            trial, used = study_seconds(folder, " ".join(words), FEW + options.trials)
            many_seconds, _ = study_seconds(folder, f"cat {many}", FEW)
            row = {
                "program": seconds_of(
                    lambda: subprocess.run(words, stdout=subprocess.DEVNULL, check=True)  # noqa: B023 -- called at once
                ),
                "trial": trial,
                "processor": (used - few) / options.trials,
                "optuna": optuna_seconds(folder, words, options.trials),
                "report": max(0.0, many_seconds - trial) / options.reports,
            }
            rows.append(row)
    found = {name: 1000.0 * statistics.median(row[name] for row in rows) for name in rows[0]}
    print(
        f"a trial: {found['trial']:.1f} ms, {found['trial'] - found['program']:.1f} ms of it beside "
        f"the program, {found['processor']:.1f} ms of the processor; in Optuna "
        f"{found['optuna']:.1f} ms, ratio {found['trial'] / found['optuna']:.2f}; a report: "
        f"{found['report']:.4f} ms",
        flush=True,
    )
    save_results(options.save, {"machine": described, "milliseconds": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
