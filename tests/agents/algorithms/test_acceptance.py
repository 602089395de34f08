"""The acceptance of a card, at tiny sizes on a CPU, which neither compiles nor records for cards."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from sweepd.agents.algorithms import acceptance
from sweepd.agents.algorithms.acceptance import PROGRAMS, SMALL, Trial, waits_in_a_rollout
from sweepd.agents.algorithms.identity import Finding
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sample_programs import Cell

CPU = torch.device("cpu")


def small(cell: Cell) -> Cell:
    sizes: dict[str, Any] = {"width": 16, "minibatch": 16, "num_envs": 4, "horizon": 8, "epochs": 1}
    return replace(cell, members=2, updates=2, buffer=64, bars=2_000, **sizes)


POLE = {"ppo, cartpole": small(PROGRAMS["ppo, cartpole"])}


def tried(programs: dict[str, Cell], members: tuple[int, ...] = ()) -> dict[str, Finding]:
    trial = Trial(CPU, programs, small(SMALL), members, seconds=0.01)
    return {finding.name: finding for finding in trial.findings()}


def test_every_part_says_what_it_found() -> None:
    found = tried({name: small(PROGRAMS[name]) for name in ("ppo, gru", "sac", "d3qn")}, (1, 3))
    assert [name.partition(":")[0] for name in found] == [
        *["kernels"] * 4,
        *["recorded", "bits", "waits"] * 3,
        *["speed"] * 2,
    ]
    assert not found["kernels: networks"].holds  # they are for cards
    for name in ("ppo, gru", "sac", "d3qn"):
        assert found[f"bits: {name}"].holds
        assert "weights moved: True" in found[f"recorded: {name}"].found
    assert found["speed: 3 members"].holds
    assert " steps/s, " in found["speed: 3 members"].found


def test_recorded_steps_are_accepted_and_those_that_are_not_recorded_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {"gradient": [True], "rollout": [True, False]}
    monkeypatch.setattr(PPO, "recorded_steps", lambda _: steps)
    assert tried(POLE)["recorded: ppo, cartpole"].holds
    steps["rollout"] = [False]
    found = tried(POLE)["recorded: ppo, cartpole"]
    assert (found.holds, "'rollout': [False]" in found.found) == (False, True)
    steps["rollout"] = [True]

    def warns() -> None:
        logging.getLogger("sweepd").warning("a step could not be recorded as a graph")

    collect = PPO._collect
    monkeypatch.setattr(PPO, "_collect", lambda *args: warns() or collect(*args))
    found = tried(POLE)["recorded: ppo, cartpole"]
    assert (found.holds, found.found.partition(";")[0]) == (
        False,
        "a step could not be recorded as a graph",
    )


def test_steps_that_move_no_weight_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPO, "recorded_steps", lambda _: {"gradient": [True], "rollout": [True]})
    learn = PPO._learn

    def forgets(program: PPO) -> Any:
        before = program.population.flat.clone()
        result = learn(program)
        program.population.flat.copy_(before)
        return result

    monkeypatch.setattr(PPO, "_learn", forgets)
    found = tried(POLE)["recorded: ppo, cartpole"]
    assert (found.holds, "weights moved: False" in found.found) == (False, True)


def test_other_bits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = PPO._learn

    def by_slot(program: PPO) -> Any:
        result = learn(program)
        program.population.flat[:, 3:4] += 2.0**-20
        return result

    monkeypatch.setattr(PPO, "_learn", by_slot)
    found = tried(POLE)["bits: ppo, cartpole"]
    assert (found.holds, found.found) == (False, "other bits in company")


@pytest.mark.filterwarnings("ignore")
def test_waits_are_counted_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = PPO._learn

    def waiting(program: PPO) -> Any:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return learn(program)

    monkeypatch.setattr(PPO, "_learn", waiting)
    monkeypatch.setattr(acceptance, "WAITS", 1)
    [(place, count)] = waits_in_a_rollout(POLE["ppo, cartpole"], CPU).items()
    assert (count, "test_acceptance.py:" in place) == (2, True)
    found = tried(POLE)["waits: ppo, cartpole"]
    assert (found.holds, found.found.partition(":")[0]) == (
        False,
        "2 waits for the card per rollout (1 expected)",
    )
    monkeypatch.setattr(acceptance, "WAITS", 2)
    assert tried(POLE)["waits: ppo, cartpole"].holds


def test_errors_of_the_card_are_results_and_a_small_card_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(message: str) -> Any:
        def make(*_: Any, **__: Any) -> Any:
            raise RuntimeError(message)

        return make

    monkeypatch.setattr(acceptance, "make_program", fails("CUDA error: illegal address\nmore"))
    found = tried(POLE, (1, 5))
    assert [(one.name, one.holds) for one in found.values()][4:] == [
        ("recorded: ppo, cartpole", False),
        ("bits: ppo, cartpole", False),
        ("waits: ppo, cartpole", False),
        ("speed: 1 members", False),
    ]
    assert found["bits: ppo, cartpole"].found == "RuntimeError: CUDA error: illegal address"
    monkeypatch.setattr(acceptance, "make_program", fails("CUDA out of memory. Tried"))
    assert tried({}, (1_000,))["speed: 1,000 members"].holds
