"""Training a batch of trials of one shape: all members of all its trials and folds, in programs of G slots.

Between rollouts a member is a bundle of tensors (`MemberState`) that any slot can take up, so a program is loaded,
trained to the next
rung and unloaded again; what one program does not hold waits in host memory. Members that end (pruned, diverged) simply
are not
loaded again, and the rest is packed into fewer programs. No member's numbers depend on which others are in its program.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agents.acting import Actors
from agents.ppo import PPO, RolloutStats
from envs.crypto.env import CryptoEnv
from envs.crypto.evaluate import WindowTrades, path_trades, trade_windows
from envs.crypto.metrics import OBJECTIVES, Metrics, Objective, PathTrades
from envs.crypto.params import EnvParams
from envs.errors import RunError
from envs.sizing import out_of_memory
from envs.streams import derive_seed
from optimize.checkpoint import MemberState, State
from optimize.experiment import Experiment
from optimize.study import Plan

STD_WEIGHT = 0.1  # what the objective takes off for paths that differ
CURVES = ("reward", "value_loss", "approx_kl", "clip_fraction", "explained_variance", "entropy", "std")


class Interrupted(Exception):
    """A stop was asked for; members are between rollouts."""


@dataclass
class Training:
    """A trial in training. rung: rungs reached. fault: why it cannot go on ("" while it can). seconds: spent on it,
    attempts before too.

    initial: actors whose weights and normalisers the folds start from, in turn; none: as initialised.
    curves: per rollout, a row of `CURVES` from each fold, since they were last taken.
    """

    plan: Plan
    members: list[MemberState]
    rung: int = 0
    fault: str = ""
    seconds: float = 0.0
    initial: list[dict[str, Tensor]] = field(default_factory=list)
    curves: dict[int, list[list[float]]] = field(default_factory=lambda: defaultdict(list))

    def take_curves(self) -> list[tuple[int, dict[str, float]]]:
        taken = [
            (rollout, dict(zip(CURVES, np.mean(rows, axis=0).tolist(), strict=True)))
            for rollout, rows in sorted(self.curves.items())
        ]
        self.curves.clear()
        return taken


@dataclass(frozen=True)
class Evaluation:
    """What a trial traded in all test groups. value: mean over folds of the objective on the fold's own test groups."""

    value: float
    fold_scores: tuple[float, ...]
    paths: PathTrades
    objective: Objective
    metrics: list[Metrics]


@dataclass(frozen=True, eq=False)
class _Seat:
    """One member's place in a group: whose, and which fold."""

    training: Training
    fold: int

    @property
    def state(self) -> MemberState:
        return self.training.members[self.fold]


class Trainer:
    """Trains trials of one shape on one device.

    stop: asked between rollouts; True interrupts. progress: told the environment steps of each rollout. slots: members
    to compute at once, fewer than the study's G on some machines. ran_out: told how many there are from now on, when
    memory ran out.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        slots: int | None = None,
        ran_out: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.experiment, self.spec = experiment, experiment.spec
        self.stop, self.progress, self.say, self.ran_out = stop, progress, say, ran_out
        self.slots = slots or experiment.spec.slots
        self._together = experiment.spec.trials_per_batch  # trials evaluated at once
        self.seconds = 0.0
        self.steps = 0
        self._env: CryptoEnv | None = None
        self._ppo: PPO | None = None
        self._shape: tuple[tuple[str, int], ...] = ()

    def start(self, plan: Plan) -> Training:
        """A trial from the beginning. Its members are made when they are first loaded."""
        return Training(plan, [MemberState() for _ in self.experiment.folds])

    # -- training
    # -----------------------------------------------------------------------------------------------------------------

    def advance(self, trainings: Sequence[Training], rung: Callable[[Training], int]) -> None:
        """Train every member of these trials up to the end of its trial's rung. Diverged trials get their `fault`.

        Raises Interrupted where `stop` said so: all members are then between rollouts, at most one rollout later. A
        device out of memory
        is met with programs of fewer slots; RunError where one slot is too many.
        """
        began = time.monotonic()
        seconds = {id(t): t.seconds for t in trainings}
        try:
            while True:
                waiting = [
                    _Seat(t, fold)
                    for t in trainings
                    if not t.fault
                    for fold, member in enumerate(t.members)
                    if member.rollouts < self.spec.rung_end(rung(t))
                ]
                if not waiting:
                    return
                # Members with equally much left share a program, so that all of its slots are used to the end.
                left = {seat: self.spec.rung_end(rung(seat.training)) - seat.state.rollouts for seat in waiting}
                most = max(left.values())
                group = [seat for seat in waiting if left[seat] == most][: self.slots]
                try:
                    self._train(group, most)
                except (RuntimeError, MemoryError) as error:
                    if not out_of_memory(error):
                        raise
                    self._smaller(error)
        finally:
            spent = time.monotonic() - began
            self.seconds += spent
            for training in trainings:
                training.seconds = seconds[id(training)] + spent

    def _smaller(self, error: BaseException) -> None:
        """Give up the programs in memory and go on with half as many slots: the same experiment, to rounding."""
        self._env = self._ppo = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.slots == 1:
            raise RunError(
                f"out of memory with a single member ({str(error).splitlines()[0]}); use fewer --n-envs or smaller "
                "networks"
            ) from None
        self.slots //= 2
        self.ran_out(self.slots)
        self.say(f"out of memory: going on with {self.slots} members per program")

    def _program(self, training: Training) -> tuple[CryptoEnv, PPO]:
        """Environment and learner for this trial's shape; kept as long as shape and slots stay."""
        shape = tuple(sorted(training.plan.settings.shape.items()))
        if self._env is None or self._ppo is None or shape != self._shape or self._ppo.shape.slots != self.slots:
            self._env = self._ppo = None
            env = self.experiment.training_env(self.slots, self.spec.num_envs)
            self._ppo = PPO(self.experiment.shape(training.plan.settings, env, self.slots), self.experiment.device)
            self._env, self._shape = env, shape
        return self._env, self._ppo

    def _load(self, group: Sequence[_Seat]) -> tuple[CryptoEnv, PPO]:
        """Put members into slots 0 …; new ones are made, the rest of the slots emptied."""
        env, ppo = self._program(group[0].training)
        fresh = []
        for slot, seat in enumerate(group):
            plan, state = seat.training.plan, seat.state
            params = self.experiment.env_params(plan.settings)
            env.configure_member(slot, params, self.experiment.folds[seat.fold].train)
            if state.ppo is not None and state.env is not None:
                env.set_member(slot, state.env)
                ppo.set_member(slot, state.ppo)
                continue
            seed = derive_seed(plan.seed, "fold", seat.fold)
            env.reset_member(slot, derive_seed(seed, "env"))
            avg, std = self.experiment.normaliser(seat.fold, params.lookback)
            ppo.add_member(slot, self.experiment.ppo_params(plan.settings), seed, self.spec.rollouts, avg, std)
            if seat.training.initial:
                self._lend(ppo, slot, seat.training.initial[seat.fold % len(seat.training.initial)])
            fresh.append(slot)
        for slot in range(len(group), self.slots):
            ppo.remove_member(slot)
        if fresh:
            ppo.begin(env.observe(), fresh)
        return env, ppo

    @staticmethod
    def _lend(ppo: PPO, slot: int, actor: dict[str, Tensor]) -> None:
        """Start a new member from an actor trained elsewhere; its critic is its own, but sees through the actor's
        normaliser.
        """
        _, critic = ppo.export_member(slot)
        columns = actor["state_avg"].numel()
        for name in ("state_avg", "state_std"):
            critic[name][:columns] = actor[name]
        ppo.population.import_member(slot, actor, critic)

    def _train(self, group: Sequence[_Seat], rollouts: int) -> None:
        env, ppo = self._load(group)
        stopped = False
        begun = [seat.state.rollouts for seat in group]
        done = 0

        def on_rollout(stats: RolloutStats) -> bool:
            nonlocal stopped, done
            done += 1
            steps = len(group) * self.spec.transitions
            self.steps += steps
            self.progress(steps)
            rows = torch.stack(
                [getattr(stats, name) for name in CURVES], 1
            ).tolist()  # the one read of the device per rollout
            for seat, first, row in zip(group, begun, rows, strict=False):
                seat.training.curves[first + done].append(row)
            stopped = self.stop()
            return stopped

        ppo.train(env, rollouts, on_rollout)
        for slot, (seat, diverged) in enumerate(zip(group, ppo.diverged, strict=False)):
            training = seat.training
            training.members[seat.fold] = MemberState(ppo.get_member(slot), env.get_member(slot), begun[slot] + done)
            if diverged and not training.fault:
                at = f"fold {seat.fold}, by rollout {begun[slot] + done} of {self.spec.rollouts}"
                training.fault = f"diverged: {at} the gradient was not finite"
        if stopped:
            raise Interrupted

    # -- evaluation
    # ---------------------------------------------------------------------------------------------------------------

    def evaluate(self, trainings: Sequence[Training]) -> list[Evaluation | None]:
        """Trade all test groups of all folds of these trials in one batch. None, and a `fault`, where a trial's numbers
        are not finite.

        Raises Interrupted where `stop` said so. A device out of memory is met with half the trials at a time.
        """
        if not trainings:
            return []
        try:
            trades, order = self._trade(trainings)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(trainings) == 1:
                self._smaller(error)
                return self.evaluate(trainings)
            half = self._together = len(trainings) // 2
            return [*self.evaluate(trainings[:half]), *self.evaluate(trainings[half:])]
        return [self._judge(t, trades, i * len(order), order) for i, t in enumerate(trainings)]

    def _trade(self, trainings: Sequence[Training]) -> tuple[WindowTrades, list[tuple[int, int]]]:
        """All rows, trial by trial, fold by fold, group by group; and (fold, group) of each row of one trial."""
        splits = self.experiment.splits
        seats = [_Seat(t, fold.index) for t in trainings for fold in splits.folds]
        # As many programs of G slots as a full batch needs: rounding must not depend on the company.
        programs = -(-max(self._together, len(trainings)) * len(splits.folds) // self.slots)
        parts = []
        for start in range(0, len(seats), self.slots):
            _, ppo = self._load(seats[start : start + self.slots])
            parts.append(ppo.act_fn())
        actors = Actors.together(parts + parts[:1] * (programs - len(parts)))
        params: list[EnvParams] = [self.experiment.env_params(seat.training.plan.settings) for seat in seats]
        windows = [splits.test_windows(splits.folds[seat.fold]) for seat in seats]
        dummies = actors.shape.slots - len(seats)
        env = self.experiment.evaluation_env(params + [params[0]] * dummies, windows + [windows[0]] * dummies)

        def act(obs: Tensor) -> Tensor:
            if self.stop():
                raise Interrupted
            return actors(obs)

        order = [(fold.index, group) for fold in splits.folds for group in fold.test_groups]
        return trade_windows(env, act), order

    def _judge(
        self, training: Training, trades: WindowTrades, first_row: int, order: list[tuple[int, int]]
    ) -> Evaluation | None:
        """One trial's rows begin at `first_row`."""
        if not np.isfinite(trades.returns[first_row : first_row + len(order)]).all():
            training.fault = training.fault or "diverged: its portfolio has no finite value in the evaluation"
            return None
        objective = OBJECTIVES[self.spec.objective]
        timeframe = self.spec.data.timeframe
        scores = []
        for fold in self.experiment.folds:
            mine = [row for row, (index, _) in enumerate(order, start=first_row) if index == fold.index]
            scores.append(objective(_one_path(trades, mine), timeframe, STD_WEIGHT).value)
        paths = path_trades(self.experiment.splits, trades, order, first_row)
        return Evaluation(
            float(np.mean(scores)),
            tuple(scores),
            paths,
            objective(paths, timeframe, STD_WEIGHT),
            paths.summarise(timeframe),
        )

    def actors_of(self, plan: Plan, states: Sequence[State]) -> list[dict[str, Tensor]]:
        """The actors in members' states, which may come from another run. Raises InputError where they are of another
        shape.
        """
        _, ppo = self._program(self.start(plan))
        exported = []
        for state in states:
            ppo.set_member(0, state)
            exported.append(ppo.export_member(0)[0])
        return exported

    def actors(self, training: Training) -> list[dict[str, Tensor]]:
        """The trained actors, one per fold, as `agents.policy` saves them."""
        exported: list[dict[str, Tensor]] = []
        seats = [_Seat(training, fold.index) for fold in self.experiment.folds]
        for start in range(0, len(seats), self.slots):
            group = seats[start : start + self.slots]
            _, ppo = self._load(group)
            exported += [ppo.export_member(slot)[0] for slot in range(len(group))]
        return exported


FIELDS = ("returns", "equal_weight", "trades", "fees", "notional", "exposure")


def _one_path(trades: WindowTrades, rows: Sequence[int]) -> PathTrades:
    """The windows of one fold behind each other, as if they were a path."""
    joined = {
        name: np.concatenate([getattr(trades, name)[row, : trades.lengths[row]] for row in rows])[None]
        for name in FIELDS
    }
    return PathTrades(**joined)
