"""OpenSpiel's own algorithms on Kuhn and Leduc poker: the exact NashConv by number of decisions.

  ppo       self-play with OpenSpiel's PPO agent, one per seat, with the parameters of its example.
            The agent knows one player only, and the example cannot run games of two. Here, every
            decision of both seats is learned from: the complete games of a seat, one after
            another, fill its agent's batches, which are as large as in the example.
  nfsp      neural fictitious self-play, as in OpenSpiel's examples for the two games
  psro      PSRO v2 with the settings of its example, whose oracle is an exact best response
  psro-dqn  the same with the oracle DQN of the example
  cfr       counterfactual regret minimisation over the whole tree, without networks

A decision is one action of any player in any game that is simulated, for training or to estimate
payoffs. Exact best responses (psro) read the whole tree and are not counted. An iteration of CFR
counts every decision node twice, once per player. Seconds are processor time without the exact
values, which OpenSpiel computes. A run ends at the given number of decisions or when its processor
time is up; "stopped" in the results says which.

    python scripts/bench/poker_peers.py run [--games kuhn leduc] [--only ppo nfsp psro cfr]
        [--steps 4000000] [--minutes 20] [--save scripts/bench/results/poker_peers.json]
    python scripts/bench/poker_peers.py table        rows for docs/games.md, with ours at equal steps

A run of seconds: `run --steps 2000`. OpenSpiel 2.0.2 needs `dm-tree` for nfsp and `jax`, `chex`,
`flax`, `optax`, `orbax-checkpoint`, `dm-haiku` and `rlax` for psro-dqn. Algorithms whose packages
are missing are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from harness import benchmark_parser, load_results, print_machine, save_results
from torch import Tensor

BUDGETS = {"kuhn": 4_000_000, "leduc": 10_000_000}  # decisions
RESULTS = Path(__file__).parent / "results"
OURS, PEERS = RESULTS / "poker_curves.json", RESULTS / "poker_peers.json"
MARKS = [digit * 10**power for power in range(3, 8) for digit in (1, 2, 5)]
SEED = 1


class Learner(Protocol):
    """One algorithm on one game.

    Attributes:
        decisions: how many have been made.
        settings: the parameters, for the results.
    """

    decisions: int
    settings: dict[str, Any]

    def advance(self) -> None:
        """Play and learn: some games, or one iteration."""

    def nash_conv(self) -> float: ...


class SelfPlayPPO:
    """OpenSpiel's PPO agents at the two seats, with the parameters of `ppo_example.py`."""

    settings: ClassVar = {
        "num_envs": 8,
        "steps_per_batch": 128,
        "learning_rate": 2.5e-4,
        "num_minibatches": 4,
        "update_epochs": 4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_coef": 0.1,
        "entropy_coef": 0.01,
        "value_coef": 0.5,
        "max_grad_norm": 0.5,
    }
    # As only one seat of a game is to move, an agent decides in 8 of them at once, on average.
    num_games = 16

    def __init__(self, name: str, steps: int) -> None:
        from open_spiel.python.pytorch.ppo import PPO, PPOAgent

        torch.manual_seed(SEED)
        np.random.seed(SEED)  # OpenSpiel shuffles its minibatches with it
        self._random, self._steps = random.Random(SEED), steps
        self._game = load_game(name)
        self.decisions = 0
        shape = tuple(self._game.information_state_tensor_shape())
        options = self._game.num_distinct_actions()
        self._agents = [
            PPO(shape, options, 2, seat, agent_fn=PPOAgent, **self.settings) for seat in (0, 1)
        ]
        # By seat: the transitions of complete games, which no batch has used yet.
        self._waiting: list[list[tuple[Any, ...]]] = [[], []]
        self._tables = [self._deal() for _ in range(self.num_games)]

    def _deal(self) -> SimpleNamespace:
        state = self._game.new_initial_state()
        self._skip_chance(state)
        return SimpleNamespace(state=state, own=([], []))

    def _skip_chance(self, state: Any) -> None:
        while state.is_chance_node():
            outcomes, shares = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(self._random.choices(outcomes, shares)[0])

    def advance(self) -> None:
        """Make one decision in every game whose first player is to move, then in the others."""
        for seat, agent in enumerate(self._agents):
            rows = [row for row in self._tables if row.state.current_player() == seat]
            if rows:
                self._act(seat, rows)
            while len(self._waiting[seat]) > agent.batch_size:
                self._learn(seat)

    def _act(self, seat: int, rows: Sequence[SimpleNamespace]) -> None:
        seen = [row.state.information_state_tensor(seat) for row in rows]
        legal = [row.state.legal_actions_mask(seat) for row in rows]
        with torch.no_grad():
            actions, logs, _, values, _ = self._agents[seat].get_action_and_value(
                torch.tensor(seen), torch.tensor(legal)
            )
        found = (column.tolist() for column in (actions, logs, values[:, 0]))
        for row, *known in zip(rows, seen, legal, *found, strict=True):
            row.own[seat].append(known)
            row.state.apply_action(known[2])
            self._skip_chance(row.state)
            if row.state.is_terminal():
                self._end(row)
        self.decisions += len(rows)

    def _end(self, row: SimpleNamespace) -> None:
        """Keep both seats' transitions, with the game's result as the last reward; begin a new game."""
        for seat, result in enumerate(row.state.returns()):
            last = len(row.own[seat]) - 1
            self._waiting[seat] += [
                (*known, result * (place == last), float(place == last))
                for place, known in enumerate(row.own[seat])
            ]
        vars(row).update(vars(self._deal()))

    def _learn(self, seat: int) -> None:
        """Fill the agent's buffers with the oldest transitions and update its networks.

        The games, end to end, are cut into rows of the buffers. A row that ends within a game is
        bootstrapped from the next row's first transition, as in an environment that goes on.
        """
        agent, waiting = self._agents[seat], self._waiting[seat]
        size, steps = agent.batch_size, agent.steps_per_batch
        following = [waiting[start][0] for start in range(steps, size + 1, steps)]
        buffers = ("obs", "legal_actions_mask", "actions", "logprobs", "values", "rewards", "dones")
        for buffer, column in zip(buffers, zip(*waiting[:size], strict=True), strict=True):
            filled = torch.tensor(column).unflatten(0, (agent.num_envs, steps))
            getattr(agent, buffer).copy_(filled.transpose(0, 1))
        self._waiting[seat] = waiting[size:]
        # After the asked number of decisions, the learning rate would be 0, which is refused.
        agent.anneal_learning_rate(min(self.decisions, self._steps), self._steps + 1)
        agent.learn([step_of(seat, seen, []) for seen in following])

    def nash_conv(self) -> float:
        """Return that of the sampled policies."""

        def shares(seat: int, seen: Tensor, legal: Tensor) -> Tensor:
            probs: Tensor = self._agents[seat].get_action_and_value(seen, legal)[4]
            return probs

        return exact(self._game, tabulated(self._game, shares))


class SelfPlayNFSP:
    """OpenSpiel's NFSP agents, as `nfsp_kuhn_pytorch.py` and `nfsp_leduc_pytorch.py` train them."""

    def __init__(self, name: str, steps: int) -> None:
        del steps  # the examples' schedules depend on their own numbers of games
        from open_spiel.python.pytorch import nfsp

        self.settings = {
            "hidden_layers_sizes": [128],
            "reservoir_buffer_capacity": 2_000_000,
            "anticipatory_param": 0.1,
            "replay_buffer_capacity": 200_000,
            "epsilon_start": 0.06,
            "epsilon_end": 0.001,
            "epsilon_decay_duration": 3_000_000,
        }
        if name == "leduc":
            self.settings |= {
                "min_buffer_size_to_learn": 1000,
                "batch_size": 128,
                "learn_every": 64,
                "rl_learning_rate": 0.01,
                "sl_learning_rate": 0.01,
                "optimizer_str": "sgd",
                "loss_str": "mse",
                "update_target_network_every": 19_200,
                "discount_factor": 1.0,
                "epsilon_decay_duration": 20_000_000,
            }
        self._env = counting_environment(load_game(name))
        self._average = nfsp.MODE.AVERAGE_POLICY
        size = self._env.observation_spec()["info_state"][0]
        options = self._env.action_spec()["num_actions"]
        self._agents = [nfsp.NFSP(seat, size, options, **self.settings) for seat in (0, 1)]

    @property
    def decisions(self) -> int:
        return int(self._env.decisions)

    def advance(self) -> None:
        """Play one game."""
        step = self._env.reset()
        while not step.last():
            action = self._agents[step.observations["current_player"]].step(step).action
            step = self._env.step([action])
        for agent in self._agents:
            agent.step(step)

    def nash_conv(self) -> float:
        """Return that of the average policies."""
        game = self._env.game

        def shares(seat: int, seen: Tensor, legal: Tensor) -> Tensor:
            rows = []
            for observation, allowed in zip(seen.tolist(), legal.tolist(), strict=True):
                options = [option for option, is_legal in enumerate(allowed) if is_legal]
                rows.append(step_of(seat, observation, options))
            agent = self._agents[seat]
            with agent.temp_mode_as(self._average):
                probs = [agent.step(row, is_evaluation=True).probs for row in rows]
            return torch.tensor(np.stack(probs))

        return exact(game, tabulated(game, shares))


class PSRO:
    """OpenSpiel's PSRO v2 with the settings of `psro_v2_example.py`."""

    settings: ClassVar[dict[str, Any]] = {
        "meta_strategy_method": "alpharank",
        "sims_per_entry": 1000,
        "number_policies_selected": 1,
        "training_strategy_selector": "probabilistic",
        "sample_from_marginals": True,
        "rectifier": "",
    }

    def __init__(self, name: str, steps: int) -> None:
        del steps
        from open_spiel.python.algorithms.psro_v2 import psro_v2

        class CountingSolver(psro_v2.PSROSolver):  # type: ignore[misc]
            """A solver that counts the decisions of the games that estimate payoffs."""

            decisions = 0

            def sample_episodes(self, policies: Sequence[Any], num_episodes: int) -> Any:
                def counted(own: Any) -> Callable[[Any], Any]:
                    def act(state: Any) -> Any:
                        self.decisions += 1
                        return own(state)

                    return act

                return super().sample_episodes([counted(own) for own in policies], num_episodes)

        np.random.seed(SEED)
        self._env = counting_environment(load_game(name))
        oracle, agents = self._oracle()
        with quiet():
            self._solver = CountingSolver(
                self._env.game, oracle, initial_policies=agents, **PSRO.settings
            )

    def _oracle(self) -> tuple[Any, list[Any]]:
        """Return the oracle and the first policies of the seats."""
        from open_spiel.python import policy
        from open_spiel.python.algorithms.psro_v2 import best_response_oracle

        uniform = policy.TabularPolicy(self._env.game)
        oracle = best_response_oracle.BestResponseOracle(game=self._env.game, policy=uniform)
        return oracle, [uniform.__copy__() for _ in (0, 1)]

    @property
    def decisions(self) -> int:
        return int(self._solver.decisions + self._env.decisions)

    def advance(self) -> None:
        """Add one policy per seat."""
        with quiet():
            self._solver.iteration()

    def nash_conv(self) -> float:
        """Return that of the mixture of all policies."""
        from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator

        game = self._env.game
        mixture = PolicyAggregator(game).aggregate(
            [0, 1], self._solver.get_policies(), self._solver.get_meta_strategies()
        )
        return exact(game, mixture)


class PSRODQN(PSRO):
    """The same with a DQN oracle: 10,000 games and more per policy."""

    games = 10_000
    oracle_settings: ClassVar = {
        "hidden_layers_sizes": [256] * 4,
        "batch_size": 32,
        "learning_rate": 1e-2,
        "update_target_network_every": 1000,
        "learn_every": 10,
        "optimizer_str": "adam",
    }
    settings: ClassVar = PSRO.settings | {"games_per_policy": games, "oracle": oracle_settings}

    def _oracle(self) -> tuple[Any, list[Any]]:
        from open_spiel.python.algorithms.psro_v2 import rl_oracle, rl_policy

        parameters = self.oracle_settings | {
            "state_representation_size": self._env.observation_spec()["info_state"][0],
            "num_actions": self._env.action_spec()["num_actions"],
        }
        oracle = rl_oracle.RLOracle(
            self._env, rl_policy.DQNPolicy, parameters, number_training_episodes=self.games
        )
        agents = [rl_policy.DQNPolicy(self._env, seat, **parameters) for seat in (0, 1)]
        for agent in agents:
            agent.freeze()
        return oracle, agents


class CFR:
    """OpenSpiel's tabular CFR, in C++."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, steps: int) -> None:
        del steps
        import pyspiel

        self._game = load_game(name)
        self._solver = pyspiel.CFRSolver(self._game)
        self._nodes = sum(1 for _ in decision_nodes(self._game.new_initial_state()))
        self.decisions = 0

    def advance(self) -> None:
        self._solver.evaluate_and_update_policy()
        self.decisions += 2 * self._nodes

    def nash_conv(self) -> float:
        """Return that of the average policy."""
        import pyspiel

        return float(pyspiel.nash_conv(self._game, self._solver.average_policy()))


# By name: the title, the class, and the module of OpenSpiel that must be importable.
ALGORITHMS: dict[str, tuple[str, Callable[[str, int], Learner], str]] = {
    "cfr": ("OpenSpiel CFR, whole tree", CFR, "algorithms.exploitability"),
    "ppo": ("OpenSpiel PPO, self-play", SelfPlayPPO, "pytorch.ppo"),
    "nfsp": ("OpenSpiel NFSP", SelfPlayNFSP, "pytorch.nfsp"),
    "psro": ("OpenSpiel PSRO, exact best response", PSRO, "algorithms.psro_v2.psro_v2"),
    "psro-dqn": ("OpenSpiel PSRO, DQN", PSRODQN, "algorithms.psro_v2.rl_policy"),
}


def load_game(name: str) -> Any:
    import pyspiel

    return pyspiel.load_game(f"{name}_poker")


def counting_environment(game: Any) -> Any:
    """Return OpenSpiel's environment of a game, which counts its decisions."""
    from open_spiel.python import rl_environment

    class CountingEnvironment(rl_environment.Environment):  # type: ignore[misc]
        decisions = 0

        def step(self, actions: Sequence[int]) -> Any:
            self.decisions += 1
            return super().step(actions)

    sampler = rl_environment.ChanceEventSampler(seed=SEED)
    return CountingEnvironment(game, chance_event_sampler=sampler)


def step_of(seat: int, observation: Sequence[float], options: Sequence[int]) -> Any:
    """Return OpenSpiel's time step of a player to move."""
    from open_spiel.python import rl_environment

    seen: dict[str, Any] = {"info_state": [None] * 2, "legal_actions": [None] * 2}
    seen["info_state"][seat], seen["legal_actions"][seat] = observation, options
    return rl_environment.TimeStep(
        observations=seen | {"current_player": seat}, rewards=None, discounts=None, step_type=None
    )


def decision_nodes(state: Any) -> Iterator[Any]:
    """Yield a state and those after it in which a player is to move."""
    if not (state.is_terminal() or state.is_chance_node()):
        yield state
    for action in state.legal_actions():
        yield from decision_nodes(state.child(action))


def tabulated(game: Any, shares: Callable[[int, Tensor, Tensor], Tensor]) -> Any:
    """Return OpenSpiel's tabular policy with the probabilities that a network gives.

    Args:
        game: OpenSpiel's game.
        shares: returns (sets, options) probabilities of a seat, from its information states
            (sets, columns) and legal options (sets, options) bool.
    """
    from open_spiel.python.policy import TabularPolicy

    table = TabularPolicy(game)
    for seat in (0, 1):
        rows = [row for row, state in enumerate(table.states) if state.current_player() == seat]
        states = [table.states[row] for row in rows]
        seen = torch.tensor([state.information_state_tensor(seat) for state in states])
        legal = torch.tensor(table.legal_actions_mask[rows], dtype=torch.bool)
        with torch.no_grad():
            found = shares(seat, seen, legal).double().numpy()
        # float32 probabilities sum to 1 only roughly
        table.action_probability_array[rows] = found / found.sum(axis=1, keepdims=True)
    return table


def exact(game: Any, policy: Any) -> float:
    from open_spiel.python.algorithms import exploitability

    return float(exploitability.nash_conv(game, policy))


def quiet() -> contextlib.AbstractContextManager[Any]:
    """Keep what PSRO prints about every iteration off the screen."""
    return contextlib.redirect_stdout(io.StringIO())


def curve(name: str, algorithm: str, steps: int, minutes: float) -> Iterator[dict[str, Any]]:
    """Run one algorithm on one game; yield its results, with the NashConv of every mark so far."""
    title, kind, _ = ALGORITHMS[algorithm]
    began = time.process_time()
    learner = kind(name, steps)
    seconds = time.process_time() - began
    described = {"title": title, "settings": learner.settings, "seed": SEED}
    points: list[dict[str, Any]] = []
    for mark in [*(mark for mark in MARKS if mark < steps), steps]:
        began, stopped = time.process_time(), "decisions"
        while learner.decisions < mark:
            learner.advance()
            if seconds + time.process_time() - began > 60 * minutes:
                stopped = "processor time"
                break
        seconds += time.process_time() - began
        # An iteration of PSRO or CFR may pass several marks.
        if not points or points[-1]["decisions"] < learner.decisions:
            points.append(point(learner, seconds))
            print(f"{name} {algorithm} " + words(points[-1]), flush=True)
        is_last = mark == steps or stopped != "decisions"
        yield described | {"stopped": stopped if is_last else "interrupted", "curves": points}
        if is_last:
            print(f"{name} {algorithm} stopped at its limit of {stopped}")
            return


def point(learner: Learner, seconds: float) -> dict[str, Any]:
    return {
        "decisions": learner.decisions,
        "seconds": round(seconds, 2),
        "nash_conv": learner.nash_conv(),
    }


def words(found: dict[str, Any]) -> str:
    speed = found["decisions"] / max(found["seconds"], 0.01)
    return (
        f"{found['decisions']:>11,} decisions, {found['seconds']:7.1f} s, {speed:>9,.0f}/s: "
        f"NashConv {found['nash_conv']:.4f}"
    )


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    found = print_machine()
    results = load_results(args.save) or {"games": {}}
    running = {
        (name, algorithm): curve(name, algorithm, args.steps or BUDGETS[name], args.minutes)
        for algorithm in filter(is_there, args.only)
        for name in args.games
    }
    # In turn, up to one mark after the other, so that an interrupted run has curves of all.
    while running:
        for (name, algorithm), curves in list(running.items()):
            own = next(curves, None)
            if own is None:
                del running[name, algorithm]
                continue
            results["games"].setdefault(name, {})[algorithm] = own | {"machine": found}
            save_results(args.save, results)


def is_there(algorithm: str) -> bool:
    """Whether an algorithm's packages are installed; otherwise say what is missing."""
    try:
        importlib.import_module(f"open_spiel.python.{ALGORITHMS[algorithm][2]}")
    except ImportError as error:
        print(f"{algorithm} is left out: {error}")
        return False
    return True


def sampled(curves: Sequence[dict[str, Any]], decisions: int) -> float | None:
    """Return the median NashConv of our seeds after at most that many decisions per seed."""
    before = [entry["sampled"] for entry in curves if entry["steps"] <= decisions]
    return statistics.median(before[-1]) if before else None


def table(ours: dict[str, Any], peers: dict[str, Any]) -> Iterator[str]:
    """Yield rows: ours at the end, and every peer where it stopped, with ours at equal steps."""
    for name, algorithms in peers["games"].items():
        variant = ours["games"][name]["both-seats"]
        curves, last = variant["curves"], variant["curves"][-1]
        seeds = len(last["sampled"])
        found = sampled(curves, last["steps"])
        yield row(name, "sweepd, " + variant["title"], last["steps"], found, None, last, seeds)
        for own in algorithms.values():
            end = own["curves"][-1]
            beside = sampled(curves, end["decisions"])
            yield row(name, own["title"], end["decisions"], end["nash_conv"], beside, end, 1)


def row(
    name: str,
    title: str,
    decisions: int,
    found: float | None,
    beside: float | None,
    entry: dict[str, Any],
    seeds: int,
) -> str:
    """Return a row of the table in Markdown. entry: has the processor time of all seeds."""
    seconds = entry["seconds"] / seeds
    speed = f"{float(f'{decisions / max(seconds, 0.01):.2g}'):,.0f}"
    values = ["–" if value is None else f"{value:.2g}" for value in (found, beside)]
    spent = f"{seconds:.1f} s" if seconds < 10.0 else f"{seconds:,.0f} s"
    cells = [name.title(), title, f"{decisions:,}", *values, spent, speed]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = benchmark_parser("", threads=1)
    running = commands.add_parser("run", parents=[shared], conflict_handler="resolve")
    running.add_argument("--games", choices=list(BUDGETS), nargs="+", default=list(BUDGETS))
    running.add_argument("--only", choices=list(ALGORITHMS), nargs="+", default=list(ALGORITHMS))
    running.add_argument("--steps", type=int, help="decisions; default: 4 and 10 million")
    running.add_argument("--minutes", type=float, default=20.0, help="processor time per run")
    commands.add_parser("table")
    args = parser.parse_args(arguments)
    if args.command == "table":
        print("\n".join(table(load_results(OURS), load_results(PEERS))))
        return
    try:
        importlib.import_module("pyspiel")
    except ImportError:
        print("OpenSpiel is not installed: nothing to compare with (pip install open_spiel)")
        return
    run(args)


if __name__ == "__main__":
    main(sys.argv[1:])
