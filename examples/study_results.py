"""Read the results of a study with Optuna and pandas.

Every study of sweepd is an ordinary Optuna study. The larger results of a trial (weights, episodes,
pictures) are files in its folder.
"""

from pathlib import Path

import optuna
import pandas as pd
from study_in_python import main as run_study

from optimize.study.database.opening import open_storage, storage_url
from optimize.study.study import StudyHandle


def main() -> None:
    """Train the study of `study_in_python.py` unless it exists, then read it."""
    run_study()

    # With Optuna alone, from any program:
    study = optuna.load_study(study_name="python-cartpole", storage="sqlite:///runs/sweepd.db")
    table = study.trials_dataframe(attrs=("number", "value", "state", "duration", "params"))
    print(table.to_string())

    # The files of a trial:
    handle = StudyHandle(
        open_storage(storage_url(None, Path("runs")), read_only=True), study.study_name
    )
    folder = handle.trial_dir(study.best_trial.number)
    print("files:", ", ".join(sorted(path.name for path in folder.iterdir())))
    episodes = pd.read_parquet(folder / "episodes.parquet")
    print(episodes.groupby("seed")["return"].describe().to_string())


if __name__ == "__main__":
    main()
