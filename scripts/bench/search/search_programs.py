"""The race over programs against the race's decisions alone, on tables of learning curves.

For each table (`search_tables.py`), a study of `--env command:…` whose program prints a row of the
table (`table_program.py`), with the worker, database and files of every study; and beside it the
decisions alone, made in memory by the functions of the worker on the same rows, with the same seed.
`equal` says whether all trials have the same parameters, values and ends, and the same configuration
is selected. `score` is the mean final performance of its row over all seeds, from 0 to 1.

In `search_replay.py`, a trial records the parameters of the row that stands for it, and no row stands
for two configurations. Here it keeps the parameters that were drawn, as a study of a user does, so
the scores of the two scripts differ.

    python -m scripts.bench run search_programs --data DIR
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

import sweepd
from scripts.bench.harness import benchmark_parser, print_machine, save_results
from scripts.bench.search.search_tables import Table, load_tables
from scripts.bench.search.table_program import nearest
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.specs import CommandSpec
from sweepd.optimize.study.search import Search
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.study import StudyHandle

STUDY = "programs"
BATCH = 10  # trials, as in the race of `search_replay.py`
PROGRAM = Path(__file__).with_name("table_program.py")
Rows = dict[str, Any]  # a table as the program reads it


def rows_of(table: Table) -> Rows:
    """Return columns, points and curves of a table as plain data; None: a blank, a failed run."""
    columns: list[dict[str, Any]] = []
    for own in (column.dimension for column in table.columns):
        ends = {} if own.choices else {"low": own.ends[0], "high": own.ends[1], "log": own.log}
        choices = {"choices": list(own.choices)} if own.choices else {}
        columns.append({"name": own.name, **ends, **choices})
    curves = table.curves.astype(object)
    curves[table.failed] = None
    return {
        "columns": columns,
        "points": [[None if p != p else p for p in point] for point in table.points.tolist()],
        "curves": curves.tolist(),
    }


def space_of(rows: Rows) -> str:
    """Return the search space of the table's parameters as TOML."""
    lines = []
    for column in rows["columns"]:
        entries = ", ".join(f"{k} = {json.dumps(v)}" for k, v in column.items() if k != "name")
        lines.append(f"{column['name']} = {{ {entries} }}")
    return "\n".join(["[params]", *lines, ""])


def train(folder: Path, rows: Rows, trials: int, seed: int) -> StudyHandle:
    """Run the study of the program to its end."""
    table, space = folder / "table.json", folder / "space.toml"
    table.write_text(json.dumps(rows))
    space.write_text(space_of(rows))
    rungs = len(rows["curves"][0][0])
    with contextlib.redirect_stdout(io.StringIO()):
        study = sweepd.create_study(
            STUDY,
            env=f"command:{sys.executable} -I -S {PROGRAM} {table}",
            search_space=str(space),
            budget=rungs,
            rungs=rungs,
            pruner="none",
            trials_per_batch=BATCH,
            jobs=1,
            fresh_seeds=0,
            n_trials=trials,
            seed=seed,
            runs_dir=folder,
        )
        study.run()
    return StudyHandle(open_storage(study.storage, create=False), STUDY, folder)


def decide(
    rows: Rows, spec: CommandSpec, space: SearchSpace, trials: int
) -> tuple[FrozenTrial, ...]:
    """Make the decisions of the study in memory. Returns its trials."""
    storage = optuna.storages.InMemoryStorage()
    study_id = storage.create_new_study([StudyDirection.MAXIMIZE], STUDY)
    search = Search(
        space,
        sampler=spec.sampler,
        pruner=spec.pruner,
        rungs=spec.rungs,
        seed=spec.seed,
        selection=spec.selection,
    )
    for first in range(0, trials, BATCH):
        batch: list[optuna.Trial] = []
        for number in range(first, min(first + BATCH, trials)):
            trial_id = storage.create_new_trial(study_id)
            batch.append(search.draw(storage, STUDY, trial_id, number, None, trials)[0])
        for trial in batch:
            _tell(trial, curve_of(rows, spec, trial.number, trial.params))
    return tuple(storage.get_all_trials(study_id))


def _tell(trial: optuna.Trial, curve: Sequence[float | None]) -> None:
    """Report a row's values as rungs, as far as the run went, and end the trial."""
    for rung, value in enumerate(curve, start=1):
        if value is None:
            trial.study.tell(trial.number, state=TrialState.FAIL)
            return
        trial.report(value, rung)
    trial.study.tell(trial.number, curve[-1])


def curve_of(
    rows: Rows, spec: CommandSpec, number: int, params: dict[str, Any]
) -> Sequence[float | None]:
    """Return the row that the program of a trial prints."""
    curves = rows["curves"][nearest(rows["columns"], rows["points"], params)]
    seed = derive_seed(derive_seed(spec.seed, "trial", number), "seed", 0) % 2**31
    found: Sequence[float | None] = curves[seed % len(curves)]
    return found


def compare(table: Table, trials: int, seed: int) -> dict[str, Any]:
    """Run both searches on a table."""
    rows = rows_of(table)
    with tempfile.TemporaryDirectory() as folder:
        handle = train(Path(folder), rows, trials, seed)
        assert isinstance(handle.spec, CommandSpec)
        ran = handle.trials()
        decided = decide(rows, handle.spec, handle.space, trials)
        own, other = handle.best(), handle.spec.selection.best(decided)
        handle.storage.engine.dispose()
    same = [_outcome(a) == _outcome(b) for a, b in zip(ran, decided, strict=True)]
    scores = [
        None
        if found is None
        else float(table.truth[nearest(rows["columns"], rows["points"], found.best_trial.params)])
        for found in (own, other)
    ]
    return {"equal": all(same), "trials": sum(same), "score": scores[0], "decided": scores[1]}


def _outcome(trial: FrozenTrial) -> tuple[Any, ...]:
    """Return what is compared. A program that fails has often ended before its rungs are read."""
    failed = trial.state == TrialState.FAIL
    return trial.params, trial.state, trial.values, failed or trial.intermediate_values


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the tables")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all of the folder")
    parser.add_argument("--trials", type=int, default=96, help="of one seed, per task")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        tables = load_tables(options.data, options.tasks)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    content: dict[str, Any] = {"machine": print_machine(), "trials": options.trials, "tasks": {}}
    for table in tables:
        found = content["tasks"][table.name] = compare(table, options.trials, options.seed)
        verdict = "equal" if found["equal"] else f"{found['trials']} of {options.trials} equal"
        print(f"{table.name:36} {verdict:16} score {found['score']}", flush=True)
        save_results(options.save, content)
    means = [
        statistics.fmean(one[name] or 0.0 for one in content["tasks"].values())
        for name in ("score", "decided")
    ]
    same = sum(one["equal"] for one in content["tasks"].values())
    print(
        f"{same} of {len(tables)} tables equal; mean score {means[0]:.3f} over programs, "
        f"{means[1]:.3f} by the decisions alone"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
