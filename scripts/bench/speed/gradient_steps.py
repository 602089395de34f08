"""Gradient steps per second of SAC and D3QN: ours against ElegantRL and Stable-Baselines3.

Only gradient steps are timed, with what they need: sampling from a full replay buffer, losses,
Adam, soft updates of target networks. Transitions are random numbers, of 128 columns (as of seven
crypto assets) and 7 actions, and all networks have two hidden layers of equal width.

    ours         ten members in one program, with native kernels where they are used; its steps are
                 summed over the members
    ours, torch  the same with torch's operations
    elegant      ElegantRL's AgentSAC or AgentD3QN, whose steps ours are
    modsac       ElegantRL's AgentModSAC, which leaves out some of the actor's steps
    sb3          Stable-Baselines3's SAC (two critics), or its DQN (one value, neither double nor
                 dueling)

A peer trains one member at a time, in one process with all threads and in two concurrent processes
with half of the threads each, other than ours and with MKL in its default mode. Ratios compare ours
with the fastest of all of these in each of the paired runs.

    python -m scripts.bench run gradient_steps --save scripts/bench/results/gradient_steps.json
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from elegantrl.agents import AgentD3QN, AgentModSAC, AgentSAC
from elegantrl.train.config import Config
from elegantrl.train.replay_buffer import ReplayBuffer
from torch import Tensor

from scripts.bench.harness import (
    CLOCKS,
    benchmark_parser,
    median_ratio,
    medians,
    paired_runs,
    parse_with_clock,
    print_machine,
    save_results,
    steps_per_second,
    torch_only,
)
from scripts.bench.peers import PeerProcesses, serve
from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.off_policy import OffPolicy
from sweepd.agents.algorithms.sac import SAC, SACParams
from sweepd.agents.networks.shape import Shape

OBS, ACTIONS = 128, 7
ROLLOUT = 1024  # transitions between updates; only its number of gradient steps is timed
GOAL = 5.0
PEERS = {"sac": ("elegant", "modsac", "sb3"), "d3qn": ("elegant", "sb3")}
ELEGANT = {
    ("sac", "elegant"): AgentSAC,
    ("sac", "modsac"): AgentModSAC,
    ("d3qn", "elegant"): AgentD3QN,
}


@dataclass(frozen=True)
class Cell:
    """An algorithm and the sizes of one comparison; `updates` gradient steps per call."""

    algorithm: str
    width: int
    minibatch: int
    members: int
    updates: int
    buffer: int

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.width}x{self.width}, minibatch {self.minibatch}"

    @property
    def columns(self) -> int:
        """Floats of a stored action."""
        return 1 if self.algorithm == "d3qn" else ACTIONS

    def transitions(self) -> dict[str, Tensor]:
        """Return a full buffer of random transitions, by name."""
        generator = torch.Generator().manual_seed(0)
        normal = functools.partial(torch.randn, generator=generator)
        action = (
            torch.randint(ACTIONS, (self.buffer, 1), generator=generator).float()
            if self.algorithm == "d3qn"
            else normal(self.buffer, ACTIONS).tanh()
        )
        return {
            "obs": normal(self.buffer, OBS),
            "action": action,
            "reward": normal(self.buffer),
            "alive": (torch.rand(self.buffer, generator=generator) > 0.01).float(),
            "next_obs": normal(self.buffer, OBS),
        }


def make_program(cell: Cell) -> OffPolicy:
    """Return our program, its replay buffers full."""
    discrete = cell.algorithm == "d3qn"
    shape = Shape(
        state_dim=OBS,
        action_dim=ACTIONS,
        slots=cell.members,
        net_width=cell.width,
        num_envs=min(32, cell.buffer),
        horizon=min(ROLLOUT, cell.buffer) // min(32, cell.buffer),
        minibatch=cell.minibatch,
        if_discrete=discrete,
        algorithm=cell.algorithm,
        updates=cell.updates,
        buffer=cell.buffer,
    )
    program: OffPolicy = (D3QN if discrete else SAC)(shape)
    params = (D3QNParams if discrete else SACParams)(warmup=0)
    made = cell.transitions()
    steps = cell.buffer // shape.num_envs
    side = torch.cat((made["action"], made["reward"][:, None], made["alive"][:, None]), 1)
    rings = {"obs": made["obs"], "next_obs": made["next_obs"], "side": side}
    state = {name: part.view(steps, shape.num_envs, -1) for name, part in rings.items()}
    state["written"] = torch.tensor(steps)
    for slot in range(cell.members):
        program.add_member(slot, params, slot, 1_000, torch.zeros(OBS), torch.ones(OBS))
        program.replay.set_member(slot, state)
    return program


def ours(cell: Cell) -> Callable[[], int]:
    """Return our gradient steps after a rollout."""
    program = make_program(cell)

    @torch.no_grad()
    def run() -> int:
        program._learn()
        return cell.members * cell.updates

    return run


def ours_in_torch(cell: Cell) -> Callable[[], int]:
    """Return the same in torch."""
    with torch_only():
        return ours(cell)


def elegant(cell: Cell, name: str) -> Callable[[], int]:
    """Return the gradient steps of one of ElegantRL's agents."""
    kind = ELEGANT[cell.algorithm, name]
    config = Config(
        kind,
        None,
        {
            "env_name": "random",
            "state_dim": OBS,
            "action_dim": ACTIONS,
            "if_discrete": cell.algorithm == "d3qn",
        },
    )
    config.batch_size, config.repeat_times = cell.minibatch, float(cell.updates)
    agent = kind([cell.width] * 2, OBS, ACTIONS, gpu_id=-1, args=config)
    made = cell.transitions()
    buffer = ReplayBuffer(cell.buffer, OBS, cell.columns, gpu_id=-1)
    names = ("obs", "action", "reward", "alive")
    parts = [made[name].view(cell.buffer, 1, -1) for name in names[:2]]
    parts += [made[name].view(cell.buffer, 1) for name in names[2:]]
    buffer.update(tuple(parts))
    # A rollout of one step: its returns take next to no time.
    buffer.add_item, buffer.add_size = tuple(part[:1] for part in parts), 1
    agent.last_state = made["obs"][:1]

    def run() -> int:
        agent.update_net(buffer)
        return cell.updates

    return run


class RandomEnv(gymnasium.Env[Any, Any]):
    """Spaces for Stable-Baselines3's constructors; it is never stepped."""

    def __init__(self, cell: Cell) -> None:
        self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (OBS,))
        self.action_space = (
            gymnasium.spaces.Discrete(ACTIONS)
            if cell.algorithm == "d3qn"
            else gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,))
        )


def sb3(cell: Cell) -> Callable[[], int]:
    """Return the gradient steps of Stable-Baselines3."""
    import stable_baselines3
    from stable_baselines3.common.logger import configure

    settings: dict[str, Any] = {
        "buffer_size": cell.buffer,
        "batch_size": cell.minibatch,
        "policy_kwargs": {"net_arch": [cell.width] * 2, "activation_fn": torch.nn.ReLU},
        "device": "cpu",
    }
    kind = stable_baselines3.DQN if cell.algorithm == "d3qn" else stable_baselines3.SAC
    model: Any = kind("MlpPolicy", RandomEnv(cell), **settings)
    model.set_logger(configure(None, []))
    made, buffer = cell.transitions(), model.replay_buffer
    buffer.observations[:, 0], buffer.next_observations[:, 0] = made["obs"], made["next_obs"]
    buffer.actions[:, 0], buffer.rewards[:, 0] = made["action"], made["reward"]
    buffer.dones[:, 0] = 1.0 - made["alive"].numpy().astype(np.float32)
    buffer.full = True

    def run() -> int:
        model.train(cell.updates, cell.minibatch)
        return cell.updates

    return run


def peer(name: str, cell: dict[str, Any]) -> Callable[[], int]:
    """Return a peer's gradient steps, by its name and the fields of a cell."""
    sizes = Cell(**cell)
    return sb3(sizes) if name == "sb3" else elegant(sizes, name)


def measure(
    cell: Cell, processes: dict[str, PeerProcesses], runs: int, seconds: float, clock: str
) -> dict[str, Any]:
    """Measure all contenders in turn.

    Args:
        cell: algorithm and sizes.
        processes: that run the peers, by what is added to the name of a peer.
        runs: measurements of each.
        seconds: minimum time of a measurement.
        clock: of `harness.CLOCKS`.
    """
    steps = {"ours": ours(cell), "ours, torch": ours_in_torch(cell)}
    for run in steps.values():
        run()
    contenders: dict[str, Callable[[], float]] = {
        name: functools.partial(steps_per_second, run, seconds, CLOCKS[clock])
        for name, run in steps.items()
    }
    mode = None
    for suffix, process in processes.items():
        for name in PEERS[cell.algorithm]:
            mode = process.prepare(name, asdict(cell))
            contenders[name + suffix] = functools.partial(process.measure, name, seconds, clock)
    speeds = paired_runs(contenders, runs, clock)
    others = [values for name, values in speeds.items() if not name.startswith("ours")]
    best = [max(values) for values in zip(*others, strict=True)]
    return {
        "cell": asdict(cell),
        "clock": clock,
        "peers_mkl": mode,
        "runs": speeds,
        "ours_over_best": median_ratio(speeds["ours"], best),
        "ours_over_torch": median_ratio(speeds["ours"], speeds["ours, torch"]),
    }


def show(cell: Cell, found: dict[str, Any]) -> None:
    """Print the medians and ratios of a cell."""
    print(f"\n{cell}, {cell.members} members: gradient steps/s")
    print("  " + ", ".join(f"{name} {rate:,.0f}" for name, rate in medians(found["runs"]).items()))
    print(
        f"  ours is {found['ours_over_best']:.1f}x the best peer (goal {GOAL:g}x) and "
        f"{found['ours_over_torch']:.1f}x its steps in torch",
        flush=True,
    )


def main(argv: list[str]) -> int:
    """Measure all cells. Returns 1 if a goal is missed, else 0."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("as_peer", nargs="?", choices=["as-peer"], help=argparse.SUPPRESS)
    parser.add_argument("--algorithms", nargs="+", choices=sorted(PEERS), default=sorted(PEERS))
    parser.add_argument("--widths", type=int, nargs="+", default=[64], help="of both hidden layers")
    parser.add_argument("--minibatches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--members", type=int, default=10, help="members trained together by ours")
    parser.add_argument("--updates", type=int, default=64, help="gradient steps per rollout")
    parser.add_argument("--buffer", type=int, default=16_384, help="transitions per member")
    parser.add_argument("--runs", type=int, default=5, help="paired repetitions")
    parser.add_argument("--seconds", type=float, default=0.5, help="minimum time per measurement")
    args, clock = parse_with_clock(parser, argv)
    if args.as_peer:
        serve(peer)
        return 0
    content: dict[str, Any] = {"machine": print_machine(), "goal": GOAL, "results": []}
    processes = {"": PeerProcesses(__name__, args.threads)}
    if args.threads >= 2:
        processes[" pair"] = PeerProcesses(__name__, args.threads // 2, 2)
    missed = 0
    for algorithm in args.algorithms:
        for width in args.widths:
            for minibatch in args.minibatches:
                cell = Cell(algorithm, width, minibatch, args.members, args.updates, args.buffer)
                found = measure(cell, processes, args.runs, args.seconds, clock)
                show(cell, found)
                missed += found["ours_over_best"] < GOAL
                content["results"].append(found)
                save_results(args.save, content)
    for process in processes.values():
        process.close()
    return int(missed > 0)
