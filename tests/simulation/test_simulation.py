"""Seeds without a violation, and mutants that the simulation finds.

`python -m tests.simulation --seeds 10000` simulates more seeds.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.runs import WORLDS, first_failure, run, shrunk
from tests.simulation.scheduler import Tape

SEEDS = {"worker": 80, "night": 100, "trader": 60}  # within a minute of processor time
MUTANT_SEEDS, MOST_CHOICES = 1_000, 40
# Found after 20 to 100 seeds.
LATE = (
    "results are written without a look at the owner",
    "a trial that is claimed again is dropped for an earlier loss",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", WORLDS)
def test_no_invariant_is_violated(what: str) -> None:
    found = first_failure(what, range(SEEDS[what]))
    assert found.failure is None, f"seed {found.failing}: {shrunk(found.failure)}"
    assert len(found.faults) >= 12  # each kind of fault has happened


@pytest.mark.parametrize("what", WORLDS)
def test_a_run_is_repeated_by_its_tape(what: str) -> None:
    logs = []
    for _ in range(2):
        tape = Tape(seed=7)
        assert run(what, tape) is None
        logs.append((tape.taken, str(tape)))
    assert logs[0] == logs[1]
    again = Tape.parse(logs[0][1])
    assert run(what, again) is None
    assert again.taken == logs[0][0]


@pytest.mark.parametrize(
    ("what", "tape"),
    [
        # A worker lost a trial, claimed it again, and dropped it for the first loss.
        ("worker", "52:8 59:6 91:8 94:10 99:4 114:6"),
        # Clocks two hours apart: one machine gave up the study that the other one began.
        ("night", "0:6 5:6 6:10 8:10"),
    ],
)
def test_runs_that_have_found_a_fault_pass(what: str, tape: str) -> None:
    assert run(what, Tape.parse(tape)) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.extra] if one.name in LATE else [])
        for one in MUTANTS
    ],
)
def test_the_simulation_finds_a_mutant_and_shrinks_its_tape(mutant: Mutant) -> None:
    with mutant.applied():
        found = first_failure(mutant.what, range(MUTANT_SEEDS))
        assert found.failure is not None
        smallest = shrunk(found.failure)
        assert len(smallest.tape) <= MOST_CHOICES
        again = run(mutant.what, Tape(smallest.tape))
        assert again is not None
        assert str(again) == str(smallest)
    assert run(mutant.what, Tape(smallest.tape)) is None  # the real code passes
