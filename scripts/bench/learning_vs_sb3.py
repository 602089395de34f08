"""Learning curves against Stable-Baselines3 at equal steps, on Gymnasium's environments.

PPO on CartPole, Pendulum, LunarLander and Hopper, SAC on Pendulum, D3QN (SB3: DQN) on Acrobot.

Ours: all seeds are members of one program with a study's default settings and observation scaling
by random play; PPO has the discount and trace decay of SB3's settings. SB3: one run per seed with
our network sizes, otherwise with the settings of its model zoo for that environment, or its
defaults (`TASKS`). After every tenth of the steps, the policies play ten full episodes without
exploration. Figures are the median of the seeds' mean returns and their range. Steps are per seed.
Seconds are processor time without evaluation: per seed for SB3, of all seeds together for ours.

With --save, results are added to the file by task and side, so a run can be split. LunarLander
requires the package box2d, Hopper mujoco.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib
import numpy as np
import torch
from harness import benchmark_parser, load_results, print_machine, save_results

from agents.algorithms.table import get_algorithm
from agents.networks.shape import Shape
from envs.external.sharded import Layout
from envs.external.vec_env import ExternalVecEnv
from envs.games.scaling import STEPS, random_play

EPISODES, LOOKS = 10, 10  # episodes per evaluation, evaluations per run
Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class Task:
    """An environment and the settings of both sides.

    Attributes:
        goal: mean return that counts as solved.
        shape: changes to the algorithm's default shape.
        params: changes to the algorithm's default parameters.
        peer: SB3's class.
        peer_args: its arguments.
        peer_envs: its number of parallel environments.
        peer_normalize: whether it uses VecNormalize.
    """

    env: str
    algorithm: str
    steps: int
    goal: float
    peer: str
    peer_args: dict[str, Any]
    peer_envs: int = 1
    peer_normalize: bool = False
    shape: dict[str, int] = field(default_factory=dict)
    params: dict[str, float] = field(default_factory=dict)


SMALL = {"net_arch": [64, 64]}
PPO_STUDY = {
    "entropy_coef": 0.005,
    "clip": 0.2,
    "initial_log_std": -0.5,
    "popart_beta": 0.05,
}  # those of a study's trial 0
TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        "ppo",
        50_000,
        475.0,
        "PPO",
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
        },
        peer_envs=8,
        shape={"num_envs": 8, "horizon": 32, "minibatch": 256, "epochs": 20},
        params={"gae_lambda": 0.8, "gamma": 0.98, "entropy_coef": 0.0},
    ),
    "pendulum": Task(
        "Pendulum-v1",
        "sac",
        10_000,
        -200.0,
        "SAC",
        {
            "learning_rate": 1e-3,
            "learning_starts": 1_000,
            "batch_size": 128,
            "policy_kwargs": SMALL,
        },
    ),
    "pendulum-ppo": Task(
        "Pendulum-v1",
        "ppo",
        100_000,
        -200.0,
        "PPO",
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        peer_envs=4,
        shape={"num_envs": 16, "minibatch": 256},
        params=PPO_STUDY | {"gamma": 0.9},
    ),
    "lunarlander-ppo": Task(
        "LunarLander-v3",
        "ppo",
        200_000,
        200.0,
        "PPO",
        {
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
        peer_envs=16,
        shape={"num_envs": 16, "minibatch": 256},
        params=PPO_STUDY | {"gamma": 0.999, "gae_lambda": 0.98},
    ),
    "hopper-ppo": Task(
        "Hopper-v5",
        "ppo",
        100_000,
        1_000.0,
        "PPO",
        {
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.999,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "clip_range": 0.2,
            "n_epochs": 5,
            "gae_lambda": 0.99,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
            "policy_kwargs": SMALL | {"log_std_init": -2.0, "ortho_init": False},
        },
        peer_normalize=True,
        shape={"num_envs": 16, "minibatch": 256},
        params=PPO_STUDY | {"gamma": 0.999, "gae_lambda": 0.99},
    ),
    "acrobot": Task(
        "Acrobot-v1",
        "d3qn",
        40_000,
        -100.0,
        "DQN",
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": SMALL,
        },
    ),
}


def ours(task: Task, seeds: Sequence[int], steps: int) -> tuple[list[Curve], float]:
    """Return a curve per seed, and the seconds of all together."""
    algorithm = get_algorithm(task.algorithm)
    sizes = {
        "num_envs": algorithm.num_envs or 64,
        "horizon": algorithm.horizon,
        **algorithm.shape,
        **task.shape,
    }
    env, test = (
        # In this process, since only its processor time is measured.
        ExternalVecEnv(task.env, len(seeds), num_envs, layout=Layout(len(seeds) * num_envs))
        for num_envs in (sizes["num_envs"], EPISODES)
    )
    shape = Shape.for_env(
        env, algorithm=task.algorithm, **{k: v for k, v in sizes.items() if k != "num_envs"}
    )
    learner = algorithm.learner(shape, torch.device("cpu"))
    rollouts, scale = -(-steps // shape.samples), random_play(test, 2_000, steps=STEPS)
    normaliser = scale.avg, scale.std
    for member, seed in enumerate(seeds):
        learner.add_member(member, algorithm.params(**task.params), seed, rollouts, *normaliser)
    learner.begin(env.reset(seeds))
    curves: list[Curve] = [[] for _ in seeds]
    taken = done = 0.0
    for look in range(1, LOOKS + 1):
        start = time.process_time()
        learner.train(env, round(rollouts * look / LOOKS) - int(done))
        taken, done = taken + time.process_time() - start, round(rollouts * look / LOOKS)
        act = learner.act_fn()
        found = play(test, lambda obs, act=act: act(obs))
        for curve, score in zip(curves, found, strict=True):
            curve.append((int(done) * shape.samples, score))
    env.close()
    test.close()
    return curves, taken


def play(env: ExternalVecEnv, act: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """Return each member's mean return over full episodes from the same starts."""
    obs = env.reset([1_000] * env.num_members)
    returns, running = torch.zeros(env.num_envs), torch.ones(env.num_envs, dtype=torch.bool)
    while bool(running.any()):
        step = env.step(act(obs))
        returns += torch.where(running, step.reward, 0.0)
        running &= ~(step.terminated | step.truncated)
        obs = step.obs
    return [float(mean) for mean in returns.view(env.num_members, -1).mean(1)]


def theirs(task: Task, seed: int, steps: int) -> tuple[Curve, float]:
    """Return the curve and the seconds of one seed."""
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    test, curve, looking = gymnasium.make(task.env), [], 0.0

    class Look(BaseCallback):
        """Evaluates at regular intervals within one run, so schedules span the whole run."""

        def _on_step(self) -> bool:
            nonlocal looking
            if len(curve) < LOOKS and self.num_timesteps >= steps * (len(curve) + 1) / LOOKS:
                start = time.process_time()
                see = envs.normalize_obs if task.peer_normalize else lambda obs: obs
                scores = [
                    episode(test, self.model, 1_000 + index, see) for index in range(EPISODES)
                ]
                curve.append((self.num_timesteps, statistics.fmean(scores)))
                looking += time.process_time() - start
            return True

    kind = getattr(stable_baselines3, task.peer)
    args = copy.deepcopy(task.peer_args)  # SB3 modifies them
    envs: Any = make_vec_env(task.env, task.peer_envs, seed=seed)
    if task.peer_normalize:
        envs = VecNormalize(envs, gamma=args["gamma"])
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **args)
    start = time.process_time()
    model.learn(steps, callback=Look())
    return curve, time.process_time() - start - looking


def episode(
    env: gymnasium.Env[Any, Any], model: Any, seed: int, see: Callable[[Any], Any]
) -> float:
    """Return the return of one episode without exploration. see: transforms observations."""
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action, _ = model.predict(see(obs), deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


def seed_range(curves: list[Curve]) -> list[tuple[int, float, float, float]]:
    """Return (steps, worst, median, best) over the seeds."""
    return [
        (
            looks[0][0],
            min(s for _, s in looks),
            statistics.median(s for _, s in looks),
            max(s for _, s in looks),
        )
        for looks in zip(*curves, strict=True)
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw one panel per task, three in a row."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns, rows = min(3, len(found)), -(-len(found) // 3)
    figure, axes = plt.subplots(rows, columns, figsize=(4.0 * columns, 3.2 * rows), squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.remove()
    for axis, (name, results) in zip(axes.flat[: len(found)], found.items(), strict=True):
        task = TASKS[name]
        for side, colour, label in (
            ("ours", "#1f77b4", f"sweepd {task.algorithm.upper()}"),
            ("sb3", "#d95f02", f"SB3 {task.peer}"),
        ):
            if side in results:
                steps, low, middle, high = np.array(seed_range(results[side]["curves"])).T
                axis.plot(steps, middle, color=colour, label=label)
                axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(task.goal, color="grey", linewidth=0.8, linestyle=":")
        axis.set(
            title=f"{task.env}, {task.algorithm}",
            xlabel="steps of one seed",
            ylabel="mean return of an episode",
        )
        axis.legend(loc="lower right", fontsize=8, frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=1)
    parser.add_argument(
        "tasks", nargs="*", default=list(TASKS), metavar="TASK", help=f"{', '.join(TASKS)}; all"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--peer-seeds", type=int, help="number of SB3's seeds, if fewer")
    parser.add_argument("--share", type=float, default=1.0, help="fraction of each task's steps")
    parser.add_argument("--without-sb3", action="store_true")
    parser.add_argument("--without-ours", action="store_true")
    parser.add_argument("--picture", type=Path, help="PNG file")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.tasks) - set(TASKS))
    if unknown:
        sys.exit(f"{unknown[0]!r} is no task; choose of {', '.join(TASKS)}.")
    torch.set_num_threads(args.threads)
    peers = not args.without_sb3
    if peers:
        try:
            import stable_baselines3  # noqa: F401
        except ImportError:
            print(
                "Stable-Baselines3 is left out: pip install stable-baselines3 to compare with it."
            )
            peers = False
    on = print_machine()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    peer_seeds = seeds[: args.peer_seeds]
    print(f"seeds {list(seeds)}, SB3 seeds {list(peer_seeds)}\n")
    found: dict[str, Any] = load_results(args.save).get("tasks", {})
    for name in args.tasks:
        task = TASKS[name]
        steps = round(task.steps * args.share)
        result = found.get(name, {})
        if result.get("steps") != steps:
            result = {}
        found[name] = result | {"task": task.__dict__, "steps": steps}
        if not args.without_ours:
            curves, taken = ours(task, seeds, steps)
            side = {
                "curves": curves,
                "seconds_all_seeds": taken,
                "seeds": list(seeds),
                "machine": on,
            }
            found[name]["ours"] = side
        if peers:
            runs = [theirs(task, seed, steps) for seed in peer_seeds]
            each = statistics.median(seconds for _, seconds in runs)
            side = {
                "curves": [curve for curve, _ in runs],
                "seconds_per_seed": each,
                "seeds": list(peer_seeds),
            }
            found[name]["sb3"] = side | {"machine": on}
        saved = {"machine": on, "episodes": EPISODES, "tasks": found}
        save_results(args.save, saved)
        report(name, found[name])
        if args.picture:
            draw({name: found[name] for name in TASKS if name in found}, args.picture)


def report(name: str, results: dict[str, Any]) -> None:
    """Print worst, median and best seed by steps, for both sides."""
    task = TASKS[name]
    sides = [side for side in ("ours", "sb3") if side in results]
    titles = {"ours": f"sweepd {task.algorithm}", "sb3": f"SB3 {task.peer}"}
    print(f"{task.env}, solved at {task.goal:g}: worst, median and best seed")
    print("    steps   " + "   ".join(f"{titles[side]:<27s}" for side in sides))
    for rows in zip(*(seed_range(results[side]["curves"]) for side in sides), strict=True):
        cells = "   ".join(
            f"{low:8.1f} {middle:8.1f} {high:8.1f} " for _, low, middle, high in rows
        )
        print(f"{rows[0][0]:9,d}   {cells}")
    seconds = []
    if "ours" in results:
        seconds.append(f"{results['ours']['seconds_all_seeds']:.0f} s for all seeds")
    if "sb3" in results:
        seconds.append(f"SB3 {results['sb3']['seconds_per_seed']:.0f} s per seed")
    print(f"  {'; '.join(seconds)}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
