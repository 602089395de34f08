"""Promotion of a market study: candidates, deployed bytes, counted evaluations and refusals."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import re
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from rich.console import Console
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.cli.promote import promote_after_study
from sweepd.deploy.market.bundle import Bundle, default_symbols, load_bundle
from sweepd.deploy.market.candidates import MarketPromotion, open_study, study_search
from sweepd.deploy.market.gate import MarketGate
from sweepd.deploy.market.report import market_facts, market_report, market_sections
from sweepd.deploy.market.rules import DEFAULT_RULES
from sweepd.deploy.market.scoring import bootstrap_seed, score, unseen_window
from sweepd.deploy.market.verify import verify_bundle
from sweepd.deploy.promotion import documents
from sweepd.deploy.promotion.bootstrap import mean_above_zero
from sweepd.deploy.promotion.report import gate_findings
from sweepd.deploy.promotion.rules import with_limits
from sweepd.deploy.promotion.sections import Report
from sweepd.deploy.promotion.terminal import report_view, sections_view
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.scoring.metrics import sharpe
from sweepd.envs.crypto.splits import window_of
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import program
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.record.bars import load_study_bars
from tests.deploy.builders import FakeStudy, promoter_of, reverting_market, small_bundle

SLOT = "demo-1h"


@pytest.fixture
def fake(tmp_path: Path) -> FakeStudy:
    """A study without trials on a market that reverts to its mean."""
    return FakeStudy(tmp_path)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def run(fake: FakeStudy, registry: Registry, **options: object) -> MarketPromotion:
    trial = options.pop("trial", None)
    study = open_study(fake.name, fake.storage)
    return promoter_of(MarketGate, study, registry, **options).run(trial)  # type: ignore[arg-type]


def report_on(fake: FakeStudy, registry: Registry, promotion: MarketPromotion) -> Report:
    study = open_study(fake.name, fake.storage)
    search = study_search(study) if promotion.candidates else None
    return market_report(study, promotion, search, registry, fake.folder)


def shown(fake: FakeStudy, registry: Registry, promotion: MarketPromotion) -> str:
    console = Console(width=200, record=True, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        console.print(report_view(report_on(fake, registry, promotion)))
    return captured.get()


def test_two_tickers_with_one_symbol_at_a_venue_are_refused() -> None:
    """Its account would hold one position for both. A study with both is refused before that."""
    with pytest.raises(InputError, match="BTC/USDC and BTC/USDT are both BTC/USD at Alpaca"):
        default_symbols(("BTC/USDC", "ETH/USDT", "BTC/USDT"), "1h", synthetic=False)
    assert default_symbols(("BTC/USDT", "BTC/EUR"), "1h", synthetic=False) == {
        "alpaca": {"BTC/USDT": "BTC/USD", "BTC/EUR": "BTC/EUR"}
    }


def test_the_best_trial_is_promoted_with_the_bytes_that_were_scored(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(0.5, fake.idle())
    best = fake.add(2.0, fake.contrarian())
    fake.add(9.0, fake.idle(), state=TrialState.PRUNED)
    promotion = run(fake, registry)
    assert (promotion.outcome, promotion.chosen.candidate.trials[0], promotion.version) == (
        "promoted",
        best,
        1,
    )  # type: ignore[union-attr]
    assert promotion.champion == registry.slot(SLOT).champion
    assert promotion.champion is not None
    bundle = registry.bundle(promotion.champion, Bundle)
    stored = fake.run_dir / f"trial-{best:05d}" / "members.safetensors"
    assert bundle.files["members.safetensors"] == stored.read_bytes()
    manifest = bundle.manifest
    assert manifest.tickers == fake.bars.tickers
    assert (manifest.origin.study, manifest.origin.trial, manifest.origin.seed) == (
        fake.name,
        best,
        2**62 + best,
    )
    assert manifest.data.fingerprint == fake.bars.fingerprint
    assert manifest.gate["look"] == 1
    assert [finding["verdict"] for finding in manifest.gate["findings"]] == ["pass"] * 7
    assert manifest.gate["selection"]["trials"] == 3
    # The newest bar seen is the last one before the hold-out.
    first, last = fake.splits.holdout
    assert bundle.last_seen == fake.bars.time[first - 1]
    assert (
        unseen_window(fake.bars, bundle.last_seen, 0)
        == (first - 1, last - 1)
        == window_of(fake.splits.holdout)
    )
    assert manifest.gate["holdout"]["bars"] == last - first
    # The same number, computed independently.
    market = make_market(fake.bars)
    again = score(
        bundle.trials[0].policy,
        market,
        bundle.account,
        window_of(fake.splits.holdout),
        max_lookback=1,
    ).metrics
    assert manifest.gate["holdout"]["total_return"] == pytest.approx(again.total_return, rel=1e-12)
    text = shown(fake, registry, promotion)
    assert "PROMOTED" in text
    assert bundle.name in text
    assert "synthetic" in text


def test_promoting_again_changes_nothing_and_costs_no_look(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(2.0, fake.contrarian())
    first = run(fake, registry)
    again = run(fake, registry)
    assert (again.outcome, again.champion) == ("champion already", first.champion)
    assert len(registry.events(SLOT)) == 1
    assert (
        registry.evaluations.count_holdout(
            fake.bars.tickers, int(fake.bars.time[0]), int(fake.bars.time[-1])
        )
        == 1
    )


def test_a_late_look_can_be_passed(tmp_path: Path, registry: Registry) -> None:
    """The level of evaluation 9 is below the smallest p that 5,000 bootstrapped means can have."""
    fake = FakeStudy(tmp_path, holdout=0.2)
    first, last = fake.splits.holdout
    span = int(fake.bars.time[first]), int(fake.bars.time[last - 1])
    for number in range(8):
        seen = {
            "members_sha256": f"{number:064}",
            "study": "other",
            "study_uid": "u",
            "trial": number,
        }
        registry.evaluations.record_holdout(fake.bars.tickers, "1h", *span, **seen)  # type: ignore[arg-type]
    fake.add(2.0, fake.contrarian())
    promotion = run(fake, registry)
    assert promotion.chosen is not None
    [asked] = [one for one in promotion.chosen.findings if one.name == "holdout-excess"]
    assert (asked.limit, promotion.outcome) == (0.1 / 2**9, "promoted")


def test_no_candidate_passes_is_explained(fake: FakeStudy, registry: Registry) -> None:
    fake.add(4.0, fake.contrarian(), trades=0.01)
    fake.add(3.0, fake.idle())
    fake.add(2.0, fake.follower())
    fake.add(1.0, fake.contrarian())
    promotion = run(fake, registry)
    assert promotion.outcome == "none passes"
    assert promotion.champion is None
    assert promotion.reason == (
        "trial 2, the closest of 3 candidates, does not meet holdout-excess (beats equal weight on "
        "unseen bars); it also fails max-drawdown"
    )
    for words in ("on the hold-out after fees", "before fees", "equal weight", "at most 0.05"):
        assert words in promotion.how_far
    assert "of 10 studies" in promotion.power
    quiet, idle, follower = promotion.candidates  # the fourth is not asked: the look is spent
    assert follower.look is not None
    assert follower.look.number == 1
    assert quiet.score is None
    assert {finding.name for finding in quiet.findings if finding.verdict == "fail"} == {
        "path-trades"
    }
    assert {finding.name for finding in idle.findings if finding.verdict == "fail"} == {
        "constant-policy"
    }
    assert "cash" in idle.findings[-4].explanation
    (event,) = registry.events(SLOT)
    assert (event.kind, event.reason) == ("refused", promotion.reason)
    assert not registry.bundles.exists()
    assert "NO CANDIDATE PASSES" in shown(fake, registry, promotion)
    json.dumps(promotion.to_dict(), allow_nan=False)


def test_the_best_of_many_alike_is_luck(fake: FakeStudy, registry: Registry) -> None:
    for value in (1.2, 1.1, 1.0, 0.9, 0.8):
        fake.add(value, fake.contrarian(), edge=0.0)
    promotion = run(fake, registry)
    assert promotion.outcome == "none passes"
    failed = {
        finding.name for finding in promotion.candidates[0].findings if finding.verdict == "fail"
    }
    assert failed == {"deflated-sharpe", "pbo"}
    assert (
        registry.evaluations.count_holdout(
            fake.bars.tickers, int(fake.bars.time[0]), int(fake.bars.time[-1])
        )
        == 0
    )
    assert "does not meet deflated-sharpe (better than luck" in promotion.reason
    assert promotion.reason.endswith("it also fails pbo")
    assert re.search(r"a year over equal weight after fees, \S+ before fees", promotion.how_far)
    assert "is needed after fees, as the best of 5 trials" in promotion.how_far
    found = promotion.to_dict()["selection"]
    assert (found["trials"], found["reached_the_final_rung"], found["unreadable"]) == (5, 5, {})
    assert found["dsr"] < 0.95 < 1.0
    assert found["luck_information_ratio"] > 0.0
    assert found["needed_information_ratio"] > found["information_ratio_median_path"]


def test_looks_are_limited_and_the_next_candidate_gets_one_only_when_asked(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(3.0, fake.follower())
    good = fake.add(2.0, fake.contrarian())
    assert run(fake, registry).outcome == "none passes"
    promotion = run(fake, registry, looks=2)
    assert promotion.outcome == "promoted"
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.trials[0] == good
    assert promotion.looks == 2
    assert promotion.candidates[0].look is not None
    assert promotion.candidates[0].look.repeated  # its number was known
    assert promotion.chosen.look is not None
    assert promotion.chosen.look.number == 2
    limits = {finding.name: finding.limit for finding in promotion.chosen.findings}
    assert limits["holdout-excess"] == 0.025


def test_a_promoter_that_asks_every_day_looks_once_at_a_candidate_that_was_refused(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(2.0, fake.follower())
    first, last = (int(fake.bars.time[bar]) for bar in (0, -1))
    answers = [run(fake, registry) for _ in range(3)]
    assert {answer.outcome for answer in answers} == {"none passes"}
    assert len({answer.reason for answer in answers}) == 1  # the same numbers at the same level
    assert registry.evaluations.count_holdout(fake.bars.tickers, first, last) == 1
    assert [event.kind for event in registry.events(SLOT)] == ["refused"]
    fake.add(3.0, fake.contrarian())  # a new best trial is worth a look, and pays for it
    better = run(fake, registry)
    assert better.chosen is not None
    assert better.chosen.look is not None
    assert (better.outcome, better.chosen.look.number) == ("promoted", 2)
    assert registry.evaluations.count_holdout(fake.bars.tickers, first, last) == 2


def test_a_dry_run_changes_nothing_but_counts_its_look(fake: FakeStudy, registry: Registry) -> None:
    fake.add(2.0, fake.contrarian())
    promotion = run(fake, registry, dry_run=True)
    assert promotion.outcome == "would promote"
    assert registry.slot(SLOT).champion is None
    assert registry.events() == []
    assert not registry.bundles.exists()
    assert (
        registry.evaluations.count_holdout(
            fake.bars.tickers, int(fake.bars.time[0]), int(fake.bars.time[-1])
        )
        == 1
    )
    assert run(fake, registry).chosen.look.number == 1  # type: ignore[union-attr]


def test_changed_weights_are_never_promoted(fake: FakeStudy, registry: Registry) -> None:
    number = fake.add(2.0, fake.contrarian())
    weights = fake.run_dir / f"trial-{number:05d}" / "members.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    promotion = run(fake, registry)
    assert promotion.outcome == "none passes"
    assert "not the bytes that were scored" in promotion.how_far
    weights.unlink()
    assert "cannot be read" in run(fake, registry).how_far


def test_a_challenger_must_beat_the_champion_on_bars_that_both_have_not_seen(
    tmp_path: Path,
) -> None:
    fake, other = (FakeStudy(tmp_path, name=name) for name in ("fake", "other"))
    fake.add(2.0, fake.contrarian())
    other.add(2.0, other.follower())
    anything = with_limits(DEFAULT_RULES, {"holdout-excess": 99.0, "max-drawdown": 1.0})
    outcomes = set()
    for one, two in ((fake, other), (other, fake)):
        registry = Registry(tmp_path / f"registry-{one.name}")
        champion = run(one, registry, rules=anything)
        challenger = run(two, registry)
        assert champion.outcome == "promoted"
        assert champion.chosen is not None
        assert challenger.chosen is not None
        assert champion.chosen.score is not None
        assert challenger.chosen.score is not None
        difference = challenger.chosen.score.returns - champion.chosen.score.returns
        seed = bootstrap_seed(challenger.chosen.bundle)  # type: ignore[arg-type]
        better = mean_above_zero(difference, seed=seed).p <= 0.025  # its look is the second
        assert challenger.outcome == ("promoted" if better else "none passes")
        (verdict,) = [
            finding.verdict
            for finding in challenger.chosen.findings
            if finding.name == "beats-champion"
        ]
        assert verdict == ("pass" if better else "fail")
        slot = registry.slot(SLOT)
        assert slot.champion == (challenger.champion if better else champion.champion)
        assert slot.previous == (champion.champion if better else None)
        assert challenger.chosen.look is not None
        assert challenger.chosen.look.number == 2  # the same hold-out, in another study
        outcomes.add(challenger.outcome)
    assert outcomes == {"promoted", "none passes"}


def test_a_champion_that_has_seen_the_hold_out_makes_the_candidate_a_challenger(
    fake: FakeStudy, registry: Registry
) -> None:
    seen = small_bundle(tickers=fake.bars.tickers, last_seen=int(fake.bars.time[-50]))
    registry.promote(SLOT, seen, expected=None, reason="it has seen nearly everything")
    fake.add(2.0, fake.contrarian())
    promotion = run(fake, registry)
    assert promotion.outcome == "challenger"
    assert "49 bars are newer" in promotion.reason
    assert registry.slot(SLOT).champion == seen.hash
    assert [event.kind for event in registry.events(SLOT)] == ["promoted", "challenger"]
    assert promotion.chosen is not None
    assert promotion.chosen.bundle is not None
    assert registry.bundle(promotion.chosen.bundle.hash, Bundle).manifest.origin.study == fake.name


def test_a_champion_that_moves_during_the_comparison_is_compared_again(
    fake: FakeStudy, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(2.0, fake.contrarian())
    rival = small_bundle(
        3, tickers=fake.bars.tickers, last_seen=int(fake.bars.time[fake.splits.holdout[0] - 1])
    )
    real, calls = registry.promote, []

    def promote(*args: object, **keywords: object) -> int:
        calls.append(keywords["expected"])
        if len(calls) == 1:
            real(SLOT, rival, expected=None, reason="faster")
        return real(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "promote", promote)
    promotion = run(fake, registry)
    assert promotion.outcome == "promoted"
    assert calls == [None, rival.hash]
    assert promotion.chosen is not None
    assert promotion.chosen.findings[-1].name == "beats-champion"
    assert registry.slot(SLOT).previous == rival.hash


def test_who_is_overtaken_by_the_same_weights_is_champion_already(
    fake: FakeStudy, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(2.0, fake.contrarian())
    real, others = registry.promote, []

    def promote(*args: object, **keywords: object) -> int:
        monkeypatch.setattr(registry, "promote", real)
        others.append(run(fake, registry))
        return real(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "promote", promote)
    promotion = run(fake, registry)
    assert (others[0].outcome, promotion.outcome) == ("promoted", "champion already")
    assert promotion.chosen is not None
    assert promotion.chosen.look is not None
    assert [event.kind for event in registry.events(SLOT)] == ["promoted"]


def test_studies_without_anything_to_promote_say_so(
    fake: FakeStudy, registry: Registry, tmp_path: Path
) -> None:
    assert run(fake, registry).reason == "no trial of the study has finished yet"
    fake.add(1.0, fake.idle(), state=TrialState.FAIL)
    promotion = run(fake, registry)
    assert promotion.outcome == "no candidate"
    assert "1 finished trials" in promotion.reason
    assert "NO CANDIDATE" in shown(fake, registry, promotion)
    whole = FakeStudy(tmp_path, name="whole", holdout=0.0)
    whole.add(1.0, whole.contrarian())
    assert run(whole, registry).outcome == "no hold-out"
    with pytest.raises(InputError, match="--trial 7 is not a COMPLETE trial"):
        run(whole, registry, trial=7)


def test_the_study_s_own_bars_are_found_in_a_folder_that_grew_and_others_are_refused(
    fake: FakeStudy, tmp_path: Path
) -> None:
    study = open_study(fake.name, fake.storage)
    grown = tmp_path / "grown"
    long = reverting_market(0, bars=2000)
    head = fake.bars
    values = {
        name: np.concatenate([getattr(head, name), getattr(long, name)[len(head.time) :]])
        for name in ("time", "open", "high", "low", "close", "volume", "hole")
    }
    write_bars(dataclasses.replace(long, **values), grown)
    assert load_study_bars(study.spec.data, grown).fingerprint == head.fingerprint
    write_bars(reverting_market(5), tmp_path / "other")
    with pytest.raises(InputError, match="are not those of the study"):
        load_study_bars(study.spec.data, tmp_path / "other")


def test_what_is_no_study_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_study("x", f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()
    storage = f"sqlite:///{tmp_path / 'plain.db'}"
    optuna.create_study(study_name="plain", storage=storage)
    with pytest.raises(InputError, match=r"'other' is not in .*there are: plain"):
        open_study("other", storage)
    with pytest.raises(InputError, match="not made by sweepd"):
        open_study(None, storage)
    Registry(tmp_path).refuse("crypto-1h", "no candidate passes")
    with pytest.raises(InputError, match="not a database of studies"):
        open_study("x", f"sqlite:///{tmp_path / 'registry.db'}")
    (tmp_path / "text.db").write_text("no database " * 1000)
    with pytest.raises(InputError, match="cannot be used"):
        open_study("x", f"sqlite:///{tmp_path / 'text.db'}")


# -- the command line


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """The reports that are written. Drawing one takes seconds, and another test covers it."""
    asked: list[Report] = []
    monkeypatch.setattr(documents, "write_report", lambda report, _: asked.append(report) or [])
    return asked


@pytest.fixture
def cli(fake: FakeStudy, monkeypatch: pytest.MonkeyPatch):
    """Run `sweepd …` in the study's folder; errors are raised, not printed."""
    app = build_app()
    monkeypatch.chdir(fake.folder)

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(
            app, [str(argument) for argument in arguments], env={"COLUMNS": "160"}
        )
        if result.exception is not None:
            raise result.exception
        return result.stdout

    return invoke


@pytest.mark.slow
def test_promote_trade_and_roll_back_from_the_command_line(
    fake: FakeStudy, cli, undrawn: list[Report]
) -> None:
    fake.add(2.0, fake.contrarian())
    dry = json.loads(cli("promote", "--storage", "studies.db", "--dry-run", "--json"))
    assert (dry["outcome"], dry["champion"]) == ("would promote", None)
    assert "PROMOTED" in cli("promote", "--storage", "studies.db", "--study-name", fake.name)
    traded = cli("trade", "--replay")
    assert "equal weight" in traded
    assert "agree with its canonical score to" in traded
    agreement = float(traded.split("canonical score to ")[1].split()[0].rstrip("."))
    assert agreement < 1e-9
    (folder,) = (fake.folder / "deployments" / "replays").iterdir()
    assert {item.name for item in folder.iterdir()} == {
        "ledger.parquet",
        "orders.parquet",
        "bars.parquet",
        "summary.json",
        "equity.png",
    }
    last = fake.bars.time_of(-10).isoformat()
    some = json.loads(
        cli(
            "trade",
            "--replay",
            SLOT,
            "--from",
            fake.bars.time_of(-30).isoformat(),
            "--to",
            last,
            "--out",
            "here",
            "--json",
        )
    )
    assert some["metrics"]["bars"] == 20
    assert (fake.folder / "here" / "equity.png").exists()
    name = fake.name
    second = FakeStudy(fake.folder, name="second")
    second.add(2.0, second.contrarian(3.0))
    limits = ("--limit", "beats-champion=9")
    assert "PROMOTED" in cli(
        "promote", "--storage", "studies.db", "--study-name", "second", *limits
    )
    registry = Registry(fake.folder / "deployments")
    now = registry.slot(SLOT)
    assert now.previous is not None
    assert f"{now.previous[:16]} is champion again" in cli("rollback", "--reason", "test")
    assert registry.slot(SLOT).champion == now.previous
    assert registry.events(SLOT)[-1].reason == "test"
    assert registry.bundle(now.previous, Bundle).manifest.origin.study == name
    assert [report.title for report in undrawn] == [name, "second"]


@pytest.mark.usefixtures("undrawn")
def test_a_bundle_with_one_byte_changed_cannot_trade(fake: FakeStudy, cli) -> None:
    fake.add(2.0, fake.contrarian())
    cli("promote", "--storage", "studies.db")
    (path,) = (fake.folder / "deployments" / "bundles").iterdir()
    manifest = path / "bundle.json"
    text = manifest.read_text()
    manifest.write_text(text.replace("0.0025", "0.0024", 1))
    for arguments in (
        ("trade", "--replay"),
        ("trade", "--replay", "--bundle", str(path), "--data-dir", "data"),
    ):
        with pytest.raises(InputError, match="has been changed since it was written"):
            cli(*arguments)
    second = FakeStudy(fake.folder, name="second")
    second.add(2.0, second.contrarian(3.0))
    with pytest.raises(InputError, match="has been changed"):  # nor be compared with
        cli("promote", "--storage", "studies.db", "--study-name", "second")
    manifest.write_text(text)
    load_bundle(path)


@pytest.mark.usefixtures("undrawn")
def test_wrong_input_to_trade_is_one_sentence(fake: FakeStudy, cli) -> None:
    with pytest.raises(InputError, match="no registry at"):
        cli("trade", "--replay")
    fake.add(2.0, fake.contrarian())
    cli("promote", "--storage", "studies.db")
    for arguments, sentence in [
        (("trade",), "its market is synthetic; use --feed recorded"),
        (("trade", "--replay", "crypto-5m"), "has no champion"),
        (("trade", "--replay", "--from", "soon"), "--from 'soon' is not a time"),
        (("trade", "--replay", "--from", "2019-01-01"), "too early"),
        (("trade", "--replay", "--to", "2019-01-01"), "leaves no bar to trade"),
        (("trade", "--replay", "--from", "2031-01-01"), "leaves no bar to trade"),
        (("trade", "--replay", "--cash", "50"), "outside half to three times"),
        (("trade", "--replay", "--data-dir", "nowhere"), "nowhere"),
        (("promote", "--storage", "studies.db", "--limit", "x=1"), "no such rule"),
        (("promote", "--storage", "studies.db", "--data-dir", "nowhere"), "nowhere"),
        (("rollback",), "no previous champion"),
    ]:
        with pytest.raises(InputError, match=sentence):
            cli(*arguments)


def test_after_a_study_the_verdict_the_replay_and_the_next_commands_are_printed(
    fake: FakeStudy, undrawn: list[Report]
) -> None:
    fake.add(2.0, fake.contrarian())
    console = Terminal(width=160, force_terminal=False)
    with console.capture() as captured:
        promotion = promote_after_study(
            open_study(fake.name, fake.storage),
            Registry(fake.folder / "deployments"),
            console=console,
        )
    text = captured.get()
    assert promotion.outcome == "promoted"
    assert [report.title for report in undrawn] == [promotion.study]
    for words in (
        "Verdict",
        "Paper replay of",
        "agree with its canonical score",
        f"sweepd trade --feed recorded {SLOT}",
        "sweepd dashboard",
    ):
        assert words in text
    box = text.splitlines()[
        [line.startswith("Next ─") for line in text.splitlines()].index(True) + 1 :
    ]
    assert all(line.endswith(":") for line in box[::2])
    assert all(line.startswith(program()) and "#" not in line for line in box[1::2])
    assert len(box) == 6


def test_after_a_study_without_a_winner_the_reason_is_printed(
    fake: FakeStudy, undrawn: list[Report]
) -> None:
    fake.add(2.0, fake.follower())
    console = Terminal(width=160, force_terminal=False)
    with console.capture() as captured:
        promotion = promote_after_study(
            open_study(fake.name, fake.storage),
            Registry(fake.folder / "deployments"),
            console=console,
        )
    assert promotion.outcome == "none passes"
    assert "NO CANDIDATE PASSES" in captured.get()
    assert "has no champion yet" in captured.get()
    assert [report.title for report in undrawn] == [promotion.study]


def test_a_report_that_cannot_be_attached_is_named_and_does_not_undo_the_promotion(
    fake: FakeStudy, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(2.0, fake.contrarian())

    def attach(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(documents, "write_report", lambda *_: [Path("gate.html")])
    monkeypatch.setattr("sweepd.deploy.cli.promote.attach", attach)
    said = cli("promote", "--storage", "studies.db")
    assert "PROMOTED" in said
    assert "The report is incomplete: disk full" in said
    assert "report: gate.html" in said


@pytest.mark.slow
def test_the_report_is_a_page_and_a_pdf_and_attached_to_the_study(fake: FakeStudy, cli) -> None:
    fake.add(2.0, fake.contrarian(), **{"sweepd:fold_scores": [1.0, 2.0]})
    fake.add(1.0, fake.contrarian(0.3), **{"sweepd:fold_scores": [0.5, -1.0]})
    assert "gate.pdf" in cli("promote", "--storage", "studies.db")
    page = (fake.run_dir / "gate" / "gate.html").read_text()
    for words in (
        "Promoted",
        "deflated-sharpe",
        "How to read this",
        "data:image/png;base64,",
        "to be distinguished from luck among 2 trials",
    ):
        assert words in page
    document = (fake.run_dir / "gate" / "gate.pdf").read_bytes()
    assert document.startswith(b"%PDF")
    assert document.count(b"/Type /Page ") >= 3  # text, the picture, and how to read it
    study = optuna.load_study(study_name=fake.name, storage=fake.storage)
    attached = optuna.artifacts.get_all_artifact_meta(study)
    assert {meta.filename for meta in attached} == {"gate.html", "gate.pdf"}
    # Candidates without readable paths and unfinished studies are not errors.
    (fake.run_dir / "trial-00000" / "paths.parquet").unlink()
    assert "NO CANDIDATE PASSES" in cli("promote", "--storage", "studies.db", "--trial", "0")


def test_the_first_stage_alone_takes_no_look_and_writes_nothing(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(2.0, fake.idle())
    fake.add(1.0, fake.contrarian())
    promotion = run(fake, registry, first_stage=True)
    assert (promotion.outcome, promotion.looks) == ("first stage", 0)
    assert promotion.reason == "trial 0 does not meet constant-policy"
    assert len(promotion.candidates) == 1
    assert registry.events() == []
    assert "FIRST STAGE" in shown(fake, registry, promotion)
    json.dumps(promotion.to_dict(), allow_nan=False)


def test_the_first_stage_needs_no_hold_out(tmp_path: Path, registry: Registry) -> None:
    whole = FakeStudy(tmp_path, name="whole", holdout=0.0)
    whole.add(1.0, whole.contrarian())
    promotion = run(whole, registry, first_stage=True)
    assert (promotion.outcome, promotion.looks, promotion.power) == ("first stage", 0, "")
    assert promotion.reason == "trial 0 meets every rule that needs no hold-out evaluation"
    assert "FIRST STAGE" in shown(whole, registry, promotion)


@pytest.fixture
def whole(tmp_path: Path) -> FakeStudy:
    """A study that used all of its bars."""
    return FakeStudy(tmp_path, name="whole", holdout=0.0)


def test_the_arena_takes_a_candidate_that_no_hold_out_sees(
    whole: FakeStudy, registry: Registry
) -> None:
    whole.add(1.0, whole.contrarian())
    with pytest.raises(InputError, match="has no champion to compete with"):
        run(whole, registry, arena=True)
    registry.promote(SLOT, small_bundle(), expected=None, reason="")
    assert run(whole, registry, arena=True, dry_run=True).outcome == "challenger"
    assert registry.slot(SLOT).challengers == ()
    for _ in range(2):
        promotion = run(whole, registry, arena=True)
    assert (promotion.outcome, promotion.version, promotion.looks) == ("challenger", 2, 0)
    assert promotion.steps[0].command.endswith(f"trader arena {SLOT} {named(registry)}")
    assert "CHALLENGER" in shown(whole, registry, promotion)
    [hash_] = registry.slot(SLOT).challengers
    bundle = registry.bundle(hash_, Bundle)
    assert bundle.last_seen == whole.bars.time[-1]
    assert registry.data_dir(hash_) == (whole.folder / "data").resolve()
    selection, record = bundle.manifest.gate["selection"], bundle.scored
    assert record is not None
    excess = record.returns - record.equal_weight
    year = bars_per_year("1h") ** 0.5
    ratio = year * excess.mean() / excess.std(ddof=1)
    assert ratio == pytest.approx(selection["information_ratio_median_path"], rel=1e-3)
    after = (record.expected - record.equal_weight).mean() / excess.std(ddof=1)
    assert year * after == pytest.approx(ratio - selection["luck_information_ratio"], rel=1e-3)
    whole.add(2.0, whole.idle())
    assert run(whole, registry, arena=True).reason == "trial 1 does not meet constant-policy"


def test_the_champions_hyperparameters_are_the_control_of_a_challenger(
    whole: FakeStudy, registry: Registry
) -> None:
    whole.add(2.0, whole.contrarian())
    whole.add(1.5, whole.contrarian(0.5))
    origin = small_bundle().origin.model_copy(update={"parameters": params_of(whole, 0)})
    registry.promote(SLOT, small_bundle(origin=origin), expected=None, reason="")
    best = run(whole, registry, arena=True)
    assert best.reason == "trial 0, with the champion's own hyperparameters, did best"
    behind = run(whole, registry, arena=True, trial=1)
    assert behind.reason.startswith("trial 1 (1.5) is behind trial 0 (2), which has the champion's")
    assert registry.slot(SLOT).challengers == ()


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ({"information_ratio_median_path": 1.0, "information_ratio_error": 1.0}, ""),
        ({"information_ratio_median_path": 900.0, "information_ratio_error": 1.0}, "clearly worse"),
        ({}, "has no back-test to compare with"),
        (None, "does not have the hyperparameters"),
    ],
)
def test_a_refit_is_the_champions_strategy_and_not_clearly_worse(
    whole: FakeStudy, registry: Registry, before: dict[str, float] | None, reason: str
) -> None:
    whole.add(1.0, whole.contrarian())
    whole.add(2.0, whole.idle())
    parameters = {"gamma": 0.5} if before is None else params_of(whole, 0)
    origin = small_bundle().origin.model_copy(update={"parameters": parameters})
    champion = small_bundle(origin=origin, gate={"selection": before or {}})
    registry.promote(SLOT, champion, expected=None, reason="")
    promotion = run(whole, registry, refit=True)
    assert reason in promotion.reason
    assert promotion.outcome == ("first stage" if reason else "challenger")
    assert [one.refit for one in registry.arena.challengers(SLOT)] == [True] * (not reason)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arena": True, "refit": True}, "--arena and --refit exclude each other"),
        ({"arena": True, "first_stage": True}, "--arena and --first-stage exclude each other"),
        ({"arena": True, "looks": 2}, "--looks has no effect with --arena"),
        ({"refit": True, "ensemble": 2}, "--refit takes trial 0"),
    ],
)
def test_flags_of_the_arena_without_effect_are_refused(
    whole: FakeStudy, registry: Registry, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(whole, registry, **options)


def params_of(fake: FakeStudy, number: int) -> dict[str, object]:
    return dict(open_study(fake.name, fake.storage).complete_trial(number).params)


def named(registry: Registry) -> str:
    return f"--deployments {registry.folder}"


def test_trials_that_are_all_as_good_are_told_from_trials_that_are_all_luck(
    fake: FakeStudy, registry: Registry
) -> None:
    for _ in range(5):
        fake.add(2.0, fake.contrarian(), edge=2e-3)
    promotion = run(fake, registry)
    alike = [step for step in promotion.steps if "--pruner none" in step.command]
    assert "which one is best is chance" in alike[0].purpose


def test_a_promotion_with_loosened_limits_says_so_everywhere(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(2.0, fake.contrarian())
    rules = with_limits(DEFAULT_RULES, {"pbo": 0.9, "max-drawdown": 0.9, "path-trades": 31.0})
    promotion = run(fake, registry, rules=rules)
    assert promotion.outcome == "promoted"
    # A study with one trial has no PBO, so that limit had no effect.
    words = "met every rule, 1 of them loosened (max-drawdown <= 0.9 instead of 0.35)"
    assert words in promotion.reason
    assert words in registry.events(SLOT)[-1].reason
    assert promotion.to_dict()["loosened"] == ["max-drawdown"]
    text = " ".join(shown(fake, registry, promotion).split())
    for said in ("CHAMPION (LIMITS LOOSENED)", "pass, loosened", "(default 0.35)", "(default 30)"):
        assert said in text, said
    assert promotion.chosen is not None
    report = report_on(fake, registry, promotion)
    page = html.unescape(documents.to_html(report, b"png"))
    for said in ("(limits loosened)", words, "pass, loosened", "<= 0.9 (default 0.35)"):
        assert said in page, said
    assert promotion.champion is not None
    facts = market_facts(registry, registry.bundle(promotion.champion, Bundle), [])
    (findings,) = gate_findings(facts)
    assert findings.caption == words
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(sections_view(market_sections(facts)))
    seen = " ".join(console.export_text().replace("│", " ").split())
    for said in ("<= 0.9", "(default 0.35)", "pass, loosened", words):
        assert said in seen, said


def test_a_promotion_at_default_limits_says_nothing_of_loosened_ones(
    fake: FakeStudy, registry: Registry
) -> None:
    fake.add(2.0, fake.contrarian())
    promotion = run(fake, registry)
    assert promotion.champion is not None
    assert promotion.reason.endswith("met every rule")
    assert promotion.to_dict()["loosened"] == []
    (findings,) = gate_findings(registry.bundle(promotion.champion, Bundle).manifest.gate)
    assert findings.caption == "met every rule, at default limits or stricter ones"


def test_a_study_of_a_market_with_hours_is_promoted_and_verified(
    tmp_path: Path, registry: Registry
) -> None:
    """Its annual figures are those of the calendar, in the gate, the report and the bundle."""
    timeframe = "1d-XNYS"
    fake = FakeStudy(tmp_path, timeframe=timeframe)
    fake.add(0.5, fake.idle())
    fake.add(2.0, fake.contrarian())
    promotion = run(fake, registry)
    assert promotion.outcome == "promoted"
    champion = registry.slot("demo-1d-XNYS").champion
    assert champion is not None
    bundle = registry.bundle(champion, Bundle)
    assert bundle.manifest.timeframe == timeframe
    first, last = fake.splits.holdout
    assert bundle.last_seen == fake.bars.time[first - 1]
    market = make_market(fake.bars)
    policy, params = bundle.trials[0].policy, bundle.trials[0].params
    found = score(policy, market, params, (first - 1, last - 1), max_lookback=bundle.max_lookback)
    assert found.metrics.sharpe == sharpe(found.returns, bars_per_year(timeframe))
    assert found.metrics.sharpe < sharpe(found.returns, bars_per_year("1d"))
    assert bundle.manifest.gate["holdout"]["sharpe"] == found.metrics.sharpe
    assert verify_bundle(bundle, fake.bars).content["metrics"]
    # Bars of another calendar are not those that were scored.
    other = reverting_market(0, timeframe="1d-XLON")
    with pytest.raises(InputError):
        verify_bundle(bundle, other)
