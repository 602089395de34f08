"""Phases as data: what is refused, and which phase a member is in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweepd.envs.games.curriculum import Curriculum, Phase, Until, check_opponents
from sweepd.envs.games.opponents import SEATS
from sweepd.envs.games.phase_files import PhaseTable, parse_curriculum, read_opponents, read_phases
from sweepd.envs.support.errors import InputError

FILE = """
past_interval = 5
past_size = 3

[[phases]]
share = 0.25
opponents = { weak = 1 }
seat = "first"
env = { mode = "train_shooting", closeness = 2.0 }
until = { win_rate = 0.9, games = 50 }

[[phases]]
share = 0.75
opponents = { weak = 0.5, self = 0.25, past = 0.25 }
replay = "clear"
"""


def played(curriculum: Curriculum, total: int, met: set[int]) -> list[int]:
    """Return the phase of every rollout. met: rollouts at whose start `until` is met."""
    began: list[int] = []
    phases = []
    for rollouts in range(total):
        if not began or curriculum.changes(began, rollouts, total, met=rollouts in met):
            began.append(rollouts)
        phases.append(len(began) - 1)
    return phases


def of_shares(shares: list[float]) -> Curriculum:
    return Curriculum(tuple(Phase(share / sum(shares)) for share in shares))


def test_a_file_of_phases_is_read_and_survives_json(tmp_path: Path) -> None:
    path = tmp_path / "phases.toml"
    path.write_text(FILE)
    curriculum = read_phases(str(path))
    assert curriculum == Curriculum(
        (
            Phase(
                0.25,
                {"weak": 1.0},
                "first",
                {"mode": "train_shooting", "closeness": 2.0},
                until=Until(50, "weak", 0.9),
            ),
            Phase(0.75, {"weak": 0.5, "self": 0.25, "past": 0.25}, replay="clear"),
        ),
        past_interval=5,
        past_size=3,
    )
    assert curriculum.opponents == ("weak", "self", "past")
    stored = json.loads(json.dumps(curriculum.to_dict()))
    assert parse_curriculum(stored, "stored") == curriculum
    assert read_phases(curriculum.to_json()).phases == curriculum.phases


@pytest.mark.parametrize(
    ("until", "read", "words"),
    [
        ({"games": 50}, Until(50), "until 50 games have ended"),
        ({"score": -3}, Until(200, score=-3.0), "until a mean return of -3 in 200 games"),
        ({"win_rate": 0.5}, Until(200, "self", 0.5), "until 50% won against self"),
        (
            {"games": 9, "opponent": "self"},
            Until(9, "self"),
            "until 9 games against self have ended",
        ),
    ],
)
def test_phases_end_by_games_or_by_a_result_in_them(
    until: dict[str, Any], read: Until, words: str
) -> None:
    curriculum = parse_curriculum({"phases": [{"share": 0.5, "until": until}, LAST]}, "x")
    assert curriculum.phases[0].until == read
    assert curriculum.describe()[0] == f"phase 1 of 2: 50% of the budget, {words}"
    stored = json.loads(json.dumps(curriculum.to_dict()))
    assert "opponents" not in stored["phases"][0]
    assert parse_curriculum(stored, "stored") == curriculum
    # In a game of two, phases without opponents are against the member itself.
    seated = curriculum.against_self()
    assert [phase.opponents for phase in seated.phases] == [{"self": 1.0}] * 2
    assert parse_curriculum(seated.to_dict(), "stored") == seated


LAST: dict[str, Any] = {"share": 0.5}


def test_opponents_alone_are_one_phase() -> None:
    assert read_opponents("weak=0.5, self=0.5,past=0").phases == (
        Phase(1.0, {"weak": 0.5, "self": 0.5}),
    )
    assert read_opponents("bundle:hockey=1").opponents == ("bundle:hockey",)
    assert not read_opponents("self=1").together
    assert read_opponents("self=0.5,others=0.5").together
    assert read_opponents("league").phases == (Phase(1.0, {"league": 1.0}),)


def test_players_of_the_league_replace_it_in_every_phase() -> None:
    curriculum = Curriculum(
        (Phase(0.5, {"weak": 1.0}), Phase(0.5, {"league": 0.5, "self": 0.25, "weak": 0.25}))
    )
    assert curriculum.has_league
    assert not read_opponents("weak=1").has_league
    [first, second] = curriculum.with_league({"trial 0": 0.5, "trial 3": 0.5}).phases
    assert first == curriculum.phases[0]
    assert second.opponents == {"self": 0.25, "weak": 0.25, "trial 0": 0.25, "trial 3": 0.25}
    # While there are none, the member plays against itself.
    [_, alone] = curriculum.with_league({}).phases
    assert alone.opponents == {"self": 0.75, "weak": 0.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weak=0.5,self=0.4", "opponents add up to 0.9, not 1"),
        ("weak=1.5,self=-0.5", "--opponents: opponents.self = -0.5 should be at least 0"),
        ("weak=nan", "opponents.weak = nan should be a finite number"),
        ("weak", "'weak' is not valid; give every opponent once, like weak=0.5,self=0.5"),
        ("weak=half", "'weak=half' is not valid"),
        ("weak=0.5,weak=0.5", "'weak=0.5' is not valid; give every opponent once"),
        ("=1", "'=1' is not valid"),
        ("", "'' is not valid"),
    ],
)
def test_bad_opponents_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        read_opponents(text)
    assert message in str(refused.value)
    assert str(refused.value).startswith("--opponents")


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([], "phases: List should have at least 1 item"),
        ({"share": 1}, "phases must be a list of tables [[phases]]"),
        ([3], "phases.0 = 3 should be a table"),
        ([{"share": 0.4}, {"share": 0.5}], "the shares of the phases add up to 0.9, not 1"),
        ([{"share": -0.5}, {"share": 1.5}], "phase 1 of 2: share = -0.5 should be above 0"),
        ([{"share": True}], "share = True should be a number"),
        ([{}, LAST], "phase 1 of 2 has no share of the budget"),
        (
            [{"share": 1, "mode": "normal"}],
            "mode is not known; choose one of env, opponents, replay",
        ),
        ([{"share": 1, "opponent": {}}], "opponent is not known; did you mean opponents?"),
        ([{"share": 1, "opponents": {}}], "the shares of the opponents add up to 0, not 1"),
        ([{"share": 1, "opponents": {"weak": 0.5}}], "phase 1 of 1: the shares of the opponents"),
        ([{"share": 1, "seat": "third"}], "seat = 'third' should be 'first', 'second' or 'either'"),
        ([{"share": 1, "replay": "drop"}], "replay = 'drop' should be 'keep' or 'clear'"),
        ([{"share": 1, "env": "hard"}], "env = 'hard' should be a table"),
        ([{"share": 0.5, "until": 0.9}, LAST], "until = 0.9 should be a table"),
        (
            [{"share": 0.5, "until": {"opponent": "weak", "win_rate": 0.9}}, LAST],
            "phase 1 of 2: until: opponent = 'weak' is not one of the phase's: self",
        ),
        ([{"share": 0.5, "until": {}}, LAST], "until: give games, or a win_rate or score to reach"),
        (
            [{"share": 0.5, "until": {"score": 1.0, "win_rate": 0.5}}, LAST],
            "until: score is for games without opponents; give it without win_rate and opponent",
        ),
        ([{"share": 0.5, "until": {"games": 0}}, LAST], "until.games = 0 should be at least 1"),
        (
            [{"share": 0.5, "until": {"score": "high"}}, LAST],
            "until.score = 'high' should be a number",
        ),
        (
            [{"share": 0.5, "opponents": {"a": 0.5, "b": 0.5}, "until": {"win_rate": 0.5}}, LAST],
            "until: opponent = None is not one of the phase's: a, b",
        ),
        (
            [{"share": 0.5, "until": {"win_rate": 1.5}}, LAST],
            "phase 1 of 2: until.win_rate = 1.5 should be at most 1",
        ),
        (
            [{"share": 0.5, "opponents": {"league": 1}, "until": {"win_rate": 0.5}}, LAST],
            "phase 1 of 2: until: games against league cannot end a phase",
        ),
        (
            [{"share": 0.5, "until": {"rate": 0.5}}, LAST],
            "until.rate is not known; did you mean win_rate?",
        ),
        (
            [{"share": 0.5, "until": {"win_rate": 0.5, "games": 0}}, LAST],
            "until.games = 0 should be at least 1",
        ),
        ([{"share": 1, "until": {"win_rate": 0.5}}], "the last phase has until, but no phase"),
    ],
)
def test_bad_phases_are_refused(phases: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_curriculum({"phases": phases}, "file.toml")
    assert message in str(refused.value)
    assert str(refused.value).startswith("file.toml: ")


def test_bad_files_of_phases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "phases.toml"
    for content, message in (
        ("", "has no [[phases]]"),
        ("[ppo]\nclip = 1", "unknown key 'ppo'; a file of phases has past_interval, past_size"),
        ("past_size = 0\n[[phases]]", "past_size = 0 should be at least 1"),
        ("past_interval = 1.5\n[[phases]]", "past_interval = 1.5 should be a whole number"),
        ("[[phases", "not valid TOML"),
    ):
        path.write_text(content)
        with pytest.raises(InputError) as refused:
            read_phases(str(path))
        assert message in str(refused.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_phases(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="--phases: not a valid JSON list of phases"):
        read_phases("[{")


def test_the_seats_of_a_file_are_those_of_the_game() -> None:
    assert get_args(PhaseTable.model_fields["seat"].annotation) == tuple(SEATS)


def test_unknown_opponents_are_refused_with_the_known_ones() -> None:
    check_opponents(("weak", "self", "bundle:x", "runs/bundle"), ("weak", "strong"), "hockey")
    with pytest.raises(InputError) as refused:
        check_opponents(("self", "week"), ("weak", "strong"), "hockey")
    assert str(refused.value).startswith(
        "opponent 'week' of hockey is not known (did you mean weak?); choose one of weak, strong, "
        "self, past, others, league, bundle:NAME"
    )


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    st.integers(0, 60),
    st.sets(st.integers(0, 60)),
)
def test_phases_partition_the_rollouts_in_order(
    shares: list[float], more: int, met: set[int]
) -> None:
    """Each phase has at least one rollout, whenever earlier phases end."""
    total = len(shares) + more
    phases = played(of_shares(shares), total, met)
    assert phases == sorted(phases)
    assert set(phases) == set(range(len(shares)))


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5), st.integers(100, 400))
def test_phases_have_their_shares_of_the_rollouts(shares: list[float], total: int) -> None:
    curriculum = of_shares(shares)
    phases = played(curriculum, total, set())
    for index, phase in enumerate(curriculum.phases):
        # Every end is rounded, and the error of an end moves the next ones.
        assert abs(phases.count(index) - phase.share * total) <= len(shares)


def test_what_a_phase_leaves_over_is_divided_among_the_later_ones() -> None:
    curriculum = of_shares([0.5, 0.25, 0.25])
    assert [played(curriculum, 40, set()).count(n) for n in range(3)] == [20, 10, 10]
    assert [played(curriculum, 40, {10}).count(n) for n in range(3)] == [10, 15, 15]


def test_more_phases_than_rollouts_are_refused() -> None:
    of_shares([0.5, 0.5]).check_rollouts(2)
    with pytest.raises(InputError, match="2 phases need at least as many rollouts, and the budget"):
        of_shares([0.5, 0.5]).check_rollouts(1)


def test_champions_are_pinned_to_their_bundles() -> None:
    phases = [
        {"share": 0.5, "opponents": {"bundle:hockey": 1.0}, "until": {"win_rate": 0.5}},
        {"share": 0.5, "opponents": {"./mine": 0.5, "self": 0.5}},
    ]
    hashes = {"bundle:hockey": "ab" * 32, "./mine": "cd" * 32}
    pinned = parse_curriculum({"phases": phases, "bundles": hashes}, "x").pinned()
    name = "bundle:" + "ab" * 8
    assert pinned.opponents == (name, "./mine", "self")
    assert pinned.phases[0].until == Until(200, name, 0.5)
