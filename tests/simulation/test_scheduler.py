"""The scheduler repeats a run by its tape, ends all processes, and shrinks a failing tape."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.scheduler import (
    HOUR,
    SUSPENDED,
    Fault,
    Killed,
    Process,
    Scheduler,
    Tape,
    Violation,
    shrink,
)


def with_faults(**at: int) -> Scheduler:
    """Return a scheduler with these faults at these effects."""
    return Scheduler(Tape({effect: Fault[name].value for name, effect in at.items()}))


def looped(scheduler: Scheduler, name: str, done: list[str], times: int = 3) -> Process:
    """Start a process that has an effect several times, one second apart."""
    process = Process(name, "host")

    def work() -> None:
        for _ in range(times):
            scheduler.effect("step")
            done.append(name)
            scheduler.wait(1.0)

    scheduler.spawn(process, work)
    return process


def test_a_tape_answers_as_it_is_written() -> None:
    tape = Tape.parse("1:3 4:19")
    assert [tape.choose(13) for _ in range(6)] == [0, 3, 0, 0, 6, 0]
    assert str(tape) == "1:3 4:6"
    with pytest.raises(ValueError, match="words like 12:3"):
        Tape.parse("1,3")


@given(st.integers(0, 2**32))
def test_a_seeds_tape_is_repeated_by_what_it_has_answered(seed: int) -> None:
    tape = Tape(seed=seed)
    answers = [tape.choose(9) for _ in range(250)]
    again = Tape(tape.taken)
    assert [again.choose(9) for _ in range(250)] == answers
    assert not any(answers[200:])  # then nothing happens any more


def test_processes_take_turns_in_virtual_time() -> None:
    scheduler, done = with_faults(), list[str]()
    looped(scheduler, "a", done)
    looped(scheduler, "b", done)
    scheduler.run()
    assert done == ["a", "b"] * 3
    assert scheduler.now == pytest.approx(3.003)


def test_a_kill_ends_all_tasks_of_a_process_and_none_of_its_effects_happens() -> None:
    scheduler, done = with_faults(KILL=2), list[str]()
    ended: list[str] = []
    process = Process("a", "host", ended=lambda: ended.append("a"))

    def work() -> None:
        try:
            for _ in range(3):
                scheduler.effect("step")
                done.append("main")
        finally:
            with pytest.raises(Killed):
                scheduler.effect("tidied up")
            done.append("unwound")

    scheduler.spawn(process, lambda: scheduler.wait(99.0), 0.5)
    scheduler.spawn(process, work)
    threads = threading.active_count()
    scheduler.run()
    assert done == ["main", "main", "unwound"]
    assert (ended, scheduler.now < 1.0) == (["a"], True)
    assert threading.active_count() == threads - 2


def test_a_suspended_process_goes_on_later() -> None:
    scheduler, done = with_faults(SUSPEND=1), list[str]()
    looped(scheduler, "a", done)  # with effects 0, 2, 3
    looped(scheduler, "b", done)  # with effect 1 and others after it
    scheduler.run()
    assert done == ["a", "a", "a", "b", "b", "b"]
    assert scheduler.now > SUSPENDED


def test_clocks_are_set_and_answers_are_refused() -> None:
    scheduler, found = with_faults(CLOCK_AHEAD=0, OUTAGE=1, ANSWER_LOST=3), list[object]()

    def work() -> None:
        before = scheduler.clock
        found.append(scheduler.effect("first"))
        found.append(round(scheduler.clock - before))
        for seconds in (0.0, 5.0, 20.0):
            scheduler.wait(seconds)
            found.append(scheduler.effect("again"))

    scheduler.spawn(Process("a", "host"), work)
    scheduler.run()
    assert found == [Fault.NONE, HOUR, Fault.REFUSED, Fault.REFUSED, Fault.ANSWER_LOST]


def test_an_error_and_a_run_without_end_are_raised() -> None:
    scheduler = with_faults()

    def fails() -> None:
        raise ZeroDivisionError

    scheduler.spawn(Process("a", "host"), fails)
    with pytest.raises(ZeroDivisionError):
        scheduler.run()
    scheduler = with_faults()
    looped(scheduler, "a", [], 10**6)
    with pytest.raises(Violation, match="has not ended"):
        scheduler.run()


@given(st.sets(st.integers(0, 60), max_size=40), st.data())
def test_shrinking_finds_a_smallest_failing_part(entries: set[int], data: st.DataObject) -> None:
    """Of a run that fails if two sets of entries, one of them together, are present."""
    needed = data.draw(st.sets(st.sampled_from(sorted(entries)), max_size=4)) if entries else set()
    smallest = shrink(dict.fromkeys(entries, 1), lambda part: needed <= set(part))
    assert set(smallest) == needed
