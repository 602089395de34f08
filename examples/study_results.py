"""Read the results of a study: trials as a table, the files of a trial, a policy that acts."""

import gymnasium
import pandas as pd
from study_in_python import main as run_study

import sweepd


def main() -> None:
    """Train the study of `study_in_python.py` unless it exists, then read it."""
    run_study()

    study = sweepd.load_study("python-cartpole")
    table = study.trials()
    print(table[["state", "value", "seconds", "scores_0", "scores_1"]].to_string())

    # The files of a trial:
    folder = study.trial_dir(study.best_trial)
    print("files:", ", ".join(sorted(path.name for path in folder.iterdir())))
    episodes = pd.read_parquet(folder / "episodes.parquet")
    print(episodes.groupby("seed")["return"].describe().to_string())

    # Its policy, in new games:
    policy = sweepd.load_policy(study)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    steps, over = 0, False
    while not over:
        observation, _, terminated, truncated, _ = env.step(policy.action(observation))
        steps, over = steps + 1, terminated or truncated
    print("steps in Gymnasium's own CartPole:", steps)
    print(sweepd.evaluate(policy, games=20).to_string())


if __name__ == "__main__":
    main()
