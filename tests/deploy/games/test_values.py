"""Games with several values: the gate judges the trial of the frontier that the rule selects."""

from __future__ import annotations

from pathlib import Path

from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.games.report import game_report
from sweepd.deploy.registry.registry import Registry
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import BAD, GOOD, WEAK, study_of

GAMES = 20


def test_the_selected_player_is_promoted_and_a_user_may_name_another(tmp_path: Path) -> None:
    # By the return, the first trial is the best; its deviation is the largest.
    study = study_of(
        tmp_path / "a",
        (WEAK, BAD),
        (GOOD, BAD),
        (BAD, BAD),
        further=((9.0,), (1.0,), (0.5,)),
        also=("minimize:deviation",),
        choose="balanced",
    )
    assert [trial.number for trial in study.complete] == [1, 0, 2]
    registry = Registry(tmp_path / "deployments")
    promotion = promoter_of(GameGate, study, registry, games=GAMES).run()
    assert promotion.outcome == "promoted", promotion.reason
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.trials == (1,)
    choice = promotion.to_dict()["choice"]
    assert (choice["by"], choice["frontier"], choice["complete"]) == ("rule", 3, 3)
    assert any(
        "chosen by the study's rule from 3 trials" in own
        for own in game_report(study, promotion).lines
    )
    other = promoter_of(GameGate, study, registry, games=GAMES, dry_run=True).run(0)
    assert other.chosen is not None
    assert other.chosen.look is not None
    assert other.chosen.look.number == 2  # the second choice is a second evaluation
    assert other.to_dict()["choice"]["by"] == "user"
