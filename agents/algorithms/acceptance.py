"""What a graphics card must show before studies are trusted to it; `sweepd doctor --gpu` runs it.

In this order: kernels compile and pass their tests; steps are recorded as CUDA graphs, whose
replays move weights; a member's numbers are the same bits in a second run, without graphs, and in
another slot among other members; a rollout with its gradient steps waits for the card once; and
how fast 1, 100 and 1,000 members train. `scripts/bench/speed/gpu.py` measures more, for longer.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sweepd.agents.algorithms.identity import Finding
from sweepd.agents.algorithms.sample_programs import Cell, make_program, market_of, rate
from sweepd.agents.networks.gpu_kernels import kernels_for
from sweepd.envs.core.gpu import numbers_on
from sweepd.envs.core.sizing import out_of_memory
from sweepd.envs.crypto.native import choice as crypto
from sweepd.envs.games.native import cartpole
from sweepd.envs.support.formatting import counted

SMALL = Cell(width=64, minibatch=256)
PROGRAMS: Mapping[str, Cell] = {
    "ppo, crypto": SMALL,
    "ppo, cartpole": replace(SMALL, env="cartpole"),
    "ppo, wide": replace(SMALL, width=256, minibatch=1024),
    "ppo, gru": replace(SMALL, env="cartpole", recurrent="gru"),
    "sac": replace(SMALL, algorithm="sac"),
    "d3qn": replace(SMALL, env="cartpole", algorithm="d3qn"),
}
SLOTS = 5  # of programs whose bits are compared
SHOWN = 7  # seed of the member that is compared
ALONE = {1: SHOWN}
COMPANY = {0: 5, 1: 6, 3: SHOWN, 4: 8}
WAITS = 1  # per rollout: for the faults of its environment


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        device: a card. (On a CPU, nothing is compiled or recorded.)
        programs: by name.
        speed: the program whose speed is measured, and with how many members.
        members: these numbers.
        seconds: least time per measurement of speed.
    """

    device: torch.device
    programs: Mapping[str, Cell] = field(default_factory=lambda: PROGRAMS)
    speed: Cell = SMALL
    members: Sequence[int] = (1, 100, 1_000)
    seconds: float = 10.0

    def findings(self) -> Iterator[Finding]:
        """Yield the results, each when it is known. An error of the card is a result, too."""
        yield from self._kernels()
        for name, cell in self.programs.items():
            for part in (self._recorded, self._bits, self._waits):
                try:
                    yield part(name, cell)
                except RuntimeError as error:
                    yield Finding(f"{part.__name__.strip('_')}: {name}", False, _first_line(error))
        yield from self._speeds()

    def _kernels(self) -> Iterator[Finding]:
        assets = market_of(SMALL.bars, 0).assets
        for name, compile_on in {
            "networks": kernels_for,
            "random numbers": numbers_on,
            "steps of crypto": lambda device: crypto.code_for(assets, device),
            "steps of cartpole": cartpole.code_for,
        }.items():
            with messages() as logged:
                found = compile_on(self.device) is not None
            said = "compiled, and their test holds" if found else _said(logged, "not used")
            yield Finding(f"kernels: {name}", found, said)

    def _recorded(self, name: str, cell: Cell) -> Finding:
        with messages() as logged:
            program, env = make_program(cell, self.device)
            program.train(env, 3)  # the second step of a kind is recorded, the third is a replay
            before = program.get_member(0)
            program.train(env, 1)
        moved = any("weights" in changed for changed in differences(before, program.get_member(0)))
        recorded = program.recorded_steps()
        rollouts = cell.algorithm == "ppo" and not cell.recurrent
        holds = (
            moved
            and bool(recorded["gradient"])
            and all(recorded["gradient"])
            and (any(recorded["rollout"]) or not rollouts)
            and not logged
        )
        what = "gradient steps and steps of rollouts" if rollouts else "gradient steps"
        said = (
            f"{what} are graphs, and replays move the weights"
            if holds
            else _said(logged, f"recorded: {recorded}; weights moved: {moved}")
        )
        return Finding(f"recorded: {name}", holds, said)

    def _bits(self, name: str, cell: Cell) -> Finding:
        wrong = [kind for kind, differing in compared(cell, self.device) if differing]
        said = (
            "a member is the same in a second run, without graphs, and in another slot with others"
        )
        return Finding(
            f"bits: {name}", not wrong, f"other bits {', '.join(wrong)}" if wrong else said
        )

    def _waits(self, name: str, cell: Cell) -> Finding:
        places = waits_in_a_rollout(cell, self.device)
        total = sum(places.values())
        where = f": {', '.join(list(places)[:3])}" if places else ""
        said = f"{counted(total, 'wait')} for the card per rollout ({WAITS} expected){where}"
        # None at all would mean that torch did not tell.
        return Finding(f"waits: {name}", total == WAITS, said)

    def _speeds(self) -> Iterator[Finding]:
        first = 0.0
        for members in self.members:
            cell = replace(self.speed, members=members)
            gc.collect()  # earlier programs: their recordings refer to them
            try:
                program, env = make_program(cell, self.device)
                found = rate(program, env, self.seconds)[0] * cell.samples
            except (RuntimeError, MemoryError) as error:
                # Of a small card, 1,000 members are too many, which is no fault.
                yield Finding(
                    f"speed: {members:,} members", out_of_memory(error), _first_line(error)
                )
                return
            first = first or found
            said = f"{found:,.0f} steps/s, {found / first:.1f} times that of {self.members[0]}"
            yield Finding(f"speed: {counted(members, 'member')}", True, said)


def compared(cell: Cell, device: torch.device) -> Iterator[tuple[str, dict[str, float]]]:
    """Train a member for three rollouts in several ways that must not change its bits.

    Yields:
        The way, and the largest difference of each of its tensors that has other bits.
    """
    cell = replace(cell, members=SLOTS)
    first = trained(cell, device, ALONE)
    for kind, seeds, graphs in (
        ("again", ALONE, True),
        ("without graphs", ALONE, False),
        ("in company", COMPANY, True),
    ):
        yield kind, differences(first, trained(cell, device, seeds, graphs=graphs))


def trained(
    cell: Cell, device: torch.device, seeds: Mapping[int, int], *, graphs: bool = True
) -> dict[str, Tensor]:
    """Return the state of the member with the seed `SHOWN` after three rollouts.

    Args:
        cell: sizes.
        device: where.
        seeds: seed of the member in each slot that has one.
        graphs: whether steps are recorded.
    """
    program, env = make_program(cell, device, graphs=graphs, seeds=seeds)
    program.train(env, 3)
    state: dict[str, Tensor] = program.get_member(
        next(slot for slot, seed in seeds.items() if seed == SHOWN)
    )
    return state


def differences(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest difference of each tensor of two states whose bits differ."""
    return {
        name: float((value.double() - other[name].double()).abs().max())
        for name, value in one.items()
        if not torch.equal(value, other[name])
    }


def waits_in_a_rollout(cell: Cell, device: torch.device) -> Counter[str]:
    """Return where a rollout with its gradient steps waits for the card: "file:line", and how often."""
    program, env = make_program(cell, device)
    program.train(env, 3)
    on_card = device.type == "cuda"
    if on_card:
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            program.train(env, 1)
    finally:
        if on_card:
            torch.cuda.set_sync_debug_mode("default")
    # torch warns so of every operation that waits.
    found = (one for one in caught if "synchroniz" in str(one.message))
    return Counter(f"{one.filename.rpartition('sweepd/')[2]}:{one.lineno}" for one in found)


@contextmanager
def messages() -> Iterator[list[str]]:
    """Collect what sweepd logs within the block, such as why a kernel is not used."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("sweepd")
    logger.addHandler(handler)
    try:
        yield logged
    finally:
        logger.removeHandler(handler)


def _said(logged: Sequence[str], otherwise: str) -> str:
    return "; ".join(logged) or otherwise


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
