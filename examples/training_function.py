"""Search the hyperparameters of a training loop of your own, in the style of Optuna's users.

Here: the cross-entropy method with a linear policy on CartPole. Other workers join the study by name:
PYTHONPATH=examples sweepd train --study-name cross-entropy --alongside
"""

import gymnasium
import numpy as np
import optuna

import sweepd


def play(env, weights, seed):
    """Return the sum of rewards of an episode."""
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(int(observation @ weights > 0))
        total, ended = total + reward, terminated or truncated
    return total


def train(trial):
    """Train one policy; the mean return of the best samples is the value."""
    share = trial.suggest_float("elite_share", 0.1, 0.5)
    noise = trial.suggest_float("noise", 0.1, 10.0, log=True)
    rng = np.random.default_rng(trial.seed)
    env, mean, deviation = gymnasium.make("CartPole-v1"), np.zeros(4), np.full(4, noise)
    for step in range(1, 7):
        samples = mean + deviation * rng.normal(size=(10, 4))
        returns = [play(env, sample, int(rng.integers(2**31))) for sample in samples]
        elite = np.argsort(returns)[-max(1, round(share * 10)) :]
        mean, deviation = samples[elite].mean(0), samples[elite].std(0) + 0.01
        trial.report(float(np.mean(np.sort(returns)[-5:])), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    np.save(trial.out_dir / "weights.npy", mean)
    return float(np.mean([play(env, mean, seed) for seed in range(5)]))


def main() -> None:
    """Search with 4 trials, compared with each other after 3 steps."""
    study = sweepd.create_study(
        "cross-entropy", objective=train, n_trials=4, budget=6, rungs=2, fresh_seeds=0
    )
    study.run()
    best = study.trials().loc[study.best_trial]
    print(f"best trial: {best.name}, value {best['value']:.1f}")


# Trials run in processes that import this file for `train`; what the script does stays here.
if __name__ == "__main__":
    main()
