"""Run a study from Python instead of `sweepd train`: 4 trials of PPO on CartPole.

Run it again to join the same study: once it has all its trials, it returns at once.
"""

import sweepd

# A small budget, so that a study takes seconds.
SMALL = {
    "env": "cartpole",
    "budget": 4096,  # environment steps per member
    "rungs": 2,  # evaluations at which a trial may be pruned
    "seeds": 2,  # members per trial
    "episodes": 8,  # per member and evaluation
    "fresh_seeds": 2,  # on which the best parameters are trained at the end
    "n_envs": 16,
    "slots": 8,
    "threads": 1,
    "gpu": "cpu",
}


def main() -> None:
    """Search CartPole and print the best trial."""
    study = sweepd.create_study("python-cartpole", n_trials=4, **SMALL)
    study.run()
    best = study.trials().loc[study.best_trial]
    print(f"best trial: {best.name}, mean return {best['value']:.1f}")
    print(best.filter(like="params_").to_string())


if __name__ == "__main__":
    main()
