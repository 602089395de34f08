"""What leads on from a market's verdict: by the rule that fails, and never against its statistics."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market import power
from sweepd.deploy.market.advice import Advice, Edge
from sweepd.deploy.market.candidates import MarketPromotion, open_study, study_search
from sweepd.deploy.market.gate import MarketGate
from sweepd.deploy.market.power import GatePower, planned_power
from sweepd.deploy.promotion.report import verdict_terms
from sweepd.deploy.promotion.verdict_file import read_verdict
from sweepd.deploy.registry.registry import Registry
from sweepd.optimize.study.record.keys import FLAGS_KEY
from tests.deploy.builders import FakeStudy, promoter_of
from tests.printed_commands import parses

POWER = planned_power(0.2, holdout=0.1, trials=5, tracking_error=0.1, correlation=0.5)
EDGE = Edge(0.30, 0.34, 0.10, 0.60, 0.1, 3.0, 6.0)  # not by luck, but too small


@pytest.fixture(autouse=True)
def few_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate fewer studies."""
    monkeypatch.setattr(power, "STUDIES", 40)


@pytest.fixture
def fake(tmp_path: Path) -> FakeStudy:
    """A study of five trials that are alike."""
    made = FakeStudy(tmp_path)
    for value in (1.2, 1.1, 1.0, 0.9, 0.8):
        made.add(value, made.contrarian(), edge=0.0)
    return made


def promote(fake: FakeStudy, **flags: Any) -> MarketPromotion:
    registry = Registry(fake.folder / "deployments")
    return promoter_of(MarketGate, open_study(fake.name, fake.storage), registry, **flags).run()


def advice(
    fake: FakeStudy, *failed: str, edge: Edge | None = EDGE, of_gate: GatePower | None = POWER
) -> list[tuple[str, str]]:
    """Return purposes and commands where these rules fail."""
    study = open_study(fake.name, fake.storage)
    chosen = promote(fake, dry_run=True).chosen
    assert chosen is not None
    findings = tuple(
        dataclasses.replace(one, verdict="fail" if one.name in failed else "pass")
        for one in chosen.findings
    )
    result = dataclasses.replace(chosen, findings=findings)
    steps = Advice(study, study_search(study), fake.data_dir, result, edge, of_gate).steps()
    for step in steps:
        parses(step.command)
    return [(step.purpose, step.command) for step in steps]


def test_every_command_repeats_the_study_and_can_be_parsed(fake: FakeStudy) -> None:
    for purpose, command in advice(fake, "deflated-sharpe", "pbo"):
        if " train " not in command:
            continue
        words = parses(command)[-1]
        assert "--study-name fake-2" in " ".join(words), purpose
        assert "--storage" in words
        assert words[words.index("--rungs") + 1] == "1"  # a setting of the study
        # A new demo market has its own tickers.
        assert ("--tickers" in words) is (" data demo " not in command)


def test_more_bars_are_advised_where_they_would_show_the_edge(fake: FakeStudy) -> None:
    found = advice(fake, "deflated-sharpe")
    [(purpose, command)] = [one for one in found if " data demo " in one[1]]
    years = float(re.search(r"search on (\S+) years of bars", purpose)[1])  # type: ignore[index]
    assert "of 10 studies" in purpose
    assert POWER.probability(EDGE.after, years / 0.2) >= 0.5
    made, search = parses(command)
    folder = made[made.index("--data-dir") + 1]
    assert search[search.index("--data-dir") + 1] == folder
    assert int(made[made.index("--bars") + 1]) == pytest.approx(years * 8_766, rel=0.01)


def test_more_bars_are_not_advised_for_what_luck_shows(fake: FakeStudy) -> None:
    lucky = dataclasses.replace(EDGE, after=0.09)
    assert not [one for one in advice(fake, "deflated-sharpe", edge=lucky) if " data " in one[1]]
    tiny = dataclasses.replace(EDGE, after=0.001, luck=0.0)  # would take centuries
    assert not [one for one in advice(fake, "deflated-sharpe", edge=tiny) if " data " in one[1]]


def test_lower_fees_are_advised_only_where_fees_decide(fake: FakeStudy) -> None:
    study = open_study(fake.name, fake.storage)
    object.__setattr__(study.spec, "env", {"fee": 0.0025})
    fake.study.set_user_attr("sweepd:spec", study.spec.to_json())
    assert not [one for one in advice(fake, "deflated-sharpe") if "fees decide" in one[0]]
    costly = dataclasses.replace(EDGE, before=0.7, needed=0.6)
    [(purpose, command)] = [
        one for one in advice(fake, "deflated-sharpe", edge=costly) if "fees decide" in one[0]
    ]
    words = parses(command)[0]
    fee = float(words[words.index("--fee") + 1])
    # At this fee, what is left of the return before fees is what is needed.
    assert costly.before - (costly.before - costly.after) * fee / 0.0025 >= costly.needed
    assert fee > 0.0006
    assert "0.250%" in purpose
    assert not [one for one in advice(fake, "pbo", edge=costly) if "fees decide" in one[0]]


def test_more_trials_are_advised_only_where_too_few_are_complete(tmp_path: Path) -> None:
    lone = FakeStudy(tmp_path)
    lone.add(1.0, lone.contrarian(), edge=0.0)
    [(purpose, command)] = advice(lone, "deflated-sharpe")
    assert "2 must be complete" in purpose
    assert "--n-trials 9" in command


def test_faults_lead_to_the_trials(fake: FakeStudy) -> None:
    [(_, command)] = advice(fake, "training-faults")
    assert " status --study-name fake" in command


def test_longer_training_is_around_a_trial_that_is_better_than_luck(fake: FakeStudy) -> None:
    assert [c for _, c in advice(fake, "deflated-sharpe") if "'narrow:fake#0'" in c]
    poor = dataclasses.replace(EDGE, after=EDGE.luck)
    [command] = [c for _, c in advice(fake, "deflated-sharpe", edge=poor) if " train " in c]
    assert "--budget 4000" in command
    assert "narrow" not in command


def test_a_study_that_cannot_be_repeated_has_no_such_command(fake: FakeStudy) -> None:
    fake.study.set_user_attr(FLAGS_KEY, {})
    assert not [c for _, c in advice(fake, "deflated-sharpe", "pbo") if " train " in c]
    given = {"given": ["search_space"], "search_space": "gone.toml"}
    fake.study.set_user_attr(FLAGS_KEY, given)
    assert not [c for _, c in advice(fake, "pbo") if "gone.toml" in c]


def test_the_plan_of_a_verdict_runs_and_has_its_numbers(fake: FakeStudy) -> None:
    [command] = [c for _, c in advice(fake, "deflated-sharpe") if " plan " in c]
    [words] = parses(command)
    result = CliRunner().invoke(build_app(), [*words, "--json"], catch_exceptions=False)
    found = json.loads(result.output)
    assert found["years"] == pytest.approx(0.2, abs=0.01)
    assert (found["trials"], found["edge"]) == (5, pytest.approx(0.3))


def test_terminal_json_and_dashboard_tell_the_same(
    fake: FakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.folder)
    monkeypatch.setattr("sweepd.deploy.promotion.documents.write_report", lambda *_: [])
    result = CliRunner().invoke(
        build_app(),
        ["promote", "--storage", "studies.db", "--study-name", "fake"],
        env={"COLUMNS": "200"},
        catch_exceptions=False,
    )
    told = read_verdict(fake.run_dir)
    assert told is not None
    assert told["headline"] == "No candidate passes"
    assert [name for name, _ in told["lines"]] == ["why", "how far", "power"]
    text = " ".join(re.sub(r"[│\n]", " ", result.output).split())
    for _, line in told["lines"]:
        assert " ".join(line.split()) in text
    assert 1 <= len(told["steps"]) <= 3
    for step in told["steps"]:
        assert step["command"] in result.output
    again = promote(fake, dry_run=True)
    assert [list(term) for term in verdict_terms(again).terms] == told["lines"]
    json.dumps(again.to_dict(), allow_nan=False)
