"""Write a search space of your own, check it, and draw trials from it.

Search with it: sweepd train --env cartpole --search-space space.toml
"""

from pathlib import Path

import optuna

from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.subject import Subject

SPACE = """
name = "my-space"
version = 1

[shape]
net_width = { choices = [32, 64], start = 64 }
net_depth = { value = 2 }
minibatch = { choices = [256, 512] }

[ppo]
learning_rate = { low = 1e-4, high = 3e-3, log = true, start = 1e-3 }
one_minus_gamma = { low = 0.003, high = 0.1, log = true }
target_kl = { low = 0.005, high = 0.05, log = true, off = 0.0 }

[env]
length = { low = 0.4, high = 0.6 }
"""


def main() -> None:
    """Load the space (which raises for a wrong name, type or bound) and draw three trials."""
    path = Path("space.toml")
    path.write_text(SPACE)
    space = load_space(str(path), Subject("cartpole", "ppo"))
    print("first trial starts from:", space.start)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(3):
        params = space.suggest(study.ask())
        settings = space.resolve(params)
        print(params)
        print("  the algorithm gets", settings.learner)


if __name__ == "__main__":
    main()
