"""Several trials as sub-accounts of one account: scores, paper trading, bundles and the gate."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market.backtests import combine
from sweepd.deploy.market.bundle import Bundle, load_bundle
from sweepd.deploy.market.candidates import (
    MarketPromotion,
    open_study,
    read_candidate,
    study_search,
)
from sweepd.deploy.market.constants import constant_returns
from sweepd.deploy.market.gate import MarketGate
from sweepd.deploy.market.manifest import EnsembleManifest, Manifest
from sweepd.deploy.market.report import market_report
from sweepd.deploy.market.scoring import score_bundle, score_trials
from sweepd.deploy.market.shares import fold_score_shares
from sweepd.deploy.promotion import documents
from sweepd.deploy.promotion.terminal import report_view
from sweepd.deploy.registry.bundle_files import canonical_json, sha256, write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.paper_trader import Entry, PaperTrader
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS
from sweepd.envs.support.errors import InputError, RunError
from tests.deploy.builders import FakeStudy, ensemble_of, promoter_of, small_bundle
from tests.deploy.trading.test_paper_trader import SEVERE, TICKERS, assert_same_score, market_bars

SLOT = "demo-1h"
WINDOW = (700, 860)
COLUMNS = (*TRADE_COLUMNS, "crossed")
VENUE = {"fee": 0.004, "slippage": 0.002, "minimum_order": 25.0}


def three(instruments: Instruments | None = None) -> Bundle:
    """Three trials that have only the account's parameters in common."""
    params = (
        EnvParams(action_scale=0.3, trailing_stop=0.04, lookback=2, **VENUE),
        EnvParams(
            action_scale=0.5, max_holding_bars=9, max_holding_fraction=0.5, held_scale=20.0, **VENUE
        ),
        EnvParams(action_scale=0.2, cash_reserve=0.3, max_position=0.4, lookback=3, **VENUE),
    )
    bundles = [
        small_bundle(
            seed,
            tickers=TICKERS,
            params=own,
            max_lookback=3,
            members=2 + seed % 2,
            gain=1.5,
            instruments=instruments,
        )
        for seed, own in zip((3, 4, 5), params, strict=True)
    ]
    return ensemble_of(bundles, (0.5, 0.3, 0.2))


@pytest.mark.parametrize("holes", [0.0, 0.05])
def test_a_trial_alone_as_a_sub_account_scores_as_ever_bit_for_bit(holes: float) -> None:
    params = EnvParams(
        action_scale=0.3,
        trailing_stop=0.04,
        max_holding_bars=30,
        max_holding_fraction=0.7,
        lookback=2,
    )
    bundle = small_bundle(3, tickers=TICKERS, params=params, members=3, gain=1.5)
    bars = market_bars(7, holes=holes, bars=1000)
    plain, alone = score_bundle(bundle, bars, WINDOW), score_trials(bundle, bars, WINDOW)
    assert plain.metrics == alone.metrics
    assert plain.metrics.trades > 50
    for name in COLUMNS:
        assert np.array_equal(getattr(plain, name), getattr(alone, name)), name


@pytest.mark.parametrize(("holes", "increments"), [(0.05, False), (0.0, True)])
def test_a_replay_of_several_trials_equals_the_canonical_score(
    holes: float, increments: bool
) -> None:
    bundle = three(Instruments((0.0, 60.0, 0.0), (0.001, 0.0, 0.05)) if increments else None)
    bars = market_bars(7, holes=holes, bars=1000)
    scored, replayed = score_bundle(bundle, bars, WINDOW), replay(bundle, bars, WINDOW)
    assert_same_score(replayed.score, scored)
    assert scored.metrics.trades > 100
    assert np.count_nonzero(scored.crossed) > 30  # they do trade with each other
    assert sum(entry.dropped for entry in replayed.entries) > 0


@pytest.mark.parametrize("trials", [1, 3])
def test_a_trader_that_goes_on_from_its_state_after_every_bar_comes_to_the_same_numbers(
    trials: int,
) -> None:
    bars = market_bars(3, holes=0.05, bars=700)
    bundle = (
        three() if trials == 3 else small_bundle(tickers=TICKERS, params=SEVERE, max_lookback=2)
    )
    entries: list[list[Entry]] = []
    for often in (False, True):
        broker = SimBroker(TICKERS, 5_000.0, bundle.account, bundle.instruments)
        trader = PaperTrader(bundle, slot="s")
        trader.start(bars.slice(0, 600), broker.account())
        entries.append([])
        for number in range(600, 690):
            bar = ClosedBar.of(bars, number)
            broker.next_bar(bar.time, bar.open, bar.hole)
            entries[-1].append(trader.on_bar(bar, broker.fills(), broker.account()))
            broker.submit(entries[-1][-1].orders)
            if often:
                state = json.loads(json.dumps(trader.state()))
                trader = PaperTrader(bundle, slot="s")
                with pytest.raises(RunError, match="the trader stopped"):
                    trader.resume(bars.slice(0, number), state)
                trader.resume(bars.slice(0, number + 1), state)
    assert sum(entry.trades for entry in entries[0]) > 20
    for one, other in zip(*entries, strict=True):
        assert str(one) == str(other)


def test_the_account_is_the_sum_of_its_sub_accounts_at_every_bar() -> None:
    bundle, bars = three(), market_bars(7, holes=0.05, bars=1000)
    broker = SimBroker(TICKERS, 10_000.0, bundle.account, bundle.instruments)
    trader = PaperTrader(bundle, slot="s")
    trader.start(bars.slice(0, WINDOW[0]), broker.account())
    for number in range(*WINDOW):
        bar = ClosedBar.of(bars, number)
        broker.next_bar(bar.time, bar.open, bar.hole)
        entry = trader.on_bar(bar, broker.fills(), broker.account())
        broker.submit(entry.orders)
        books, account = trader.accounts.books, broker.account()
        assert len(books) == 3
        assert sum(book.cash for book in books) == pytest.approx(account.cash, rel=1e-9, abs=1e-9)
        held = np.array([account.units[ticker] for ticker in TICKERS])
        assert (held >= 0.0).all()
        np.testing.assert_allclose(
            np.sum([book.units for book in books], axis=0), held, rtol=1e-9, atol=1e-12
        )
        assert sum(book.value(bar.close) for book in books) == pytest.approx(entry.value, rel=1e-12)
        assert all(book.cash >= 0.0 and (book.units >= 0.0).all() for book in books)
        for (
            book
        ) in books:  # what is observed of a position is there where it is held, and nowhere else
            assert ((book.basis > 0.0) == (book.units > 0.0)).all()
            assert ((book.high > 0.0) == (book.units > 0.0)).all()
    assert (
        trader.accounts.correction < 1e-12
    )  # rounding alone: nothing was put right behind our backs
    values = [book.value(bar.close) for book in trader.accounts.books]
    assert max(values) / sum(values) > 0.4  # shares went on to live their own lives


def test_what_all_trials_sell_whole_leaves_the_account_with_nothing() -> None:
    """Rounding: the sum of the books may differ from the broker's units in the last bit."""
    bundles = [
        small_bundle(seed, tickers=TICKERS, params=EnvParams(action_scale=scale))
        for seed, scale in ((3, 1.0), (4, 0.9), (5, 0.8))
    ]
    bundle = ensemble_of(bundles, (0.37, 0.34, 0.29))
    turn = itertools.count()

    def in_and_out(_obs: object) -> np.ndarray:
        """All three trials buy for three bars and sell everything in the fourth."""
        return np.array([0.3, 0.2, 0.1]) if next(turn) // 3 % 4 < 3 else -np.ones(3)

    entries = replay(bundle, market_bars(7, bars=800), (600, 680), act=in_and_out).entries
    sold = [
        after.units
        for before, after in itertools.pairwise(entries)
        if before.orders and all(order.side == "sell" for order in before.orders)
    ]
    assert len(sold) == 20
    assert all((units == 0.0).all() for units in sold)
    assert all((entry.units >= 0.0).all() for entry in entries)


def test_netting_sends_less_than_the_trials_would_alone() -> None:
    bars = market_bars(7, bars=1000)
    one = small_bundle(3, tickers=TICKERS, gain=1.5)
    bundles = [one, small_bundle(6, tickers=TICKERS, gain=1.5)]
    together = score_bundle(ensemble_of(bundles), bars, WINDOW)
    alone = [score_bundle(bundle, bars, WINDOW) for bundle in bundles]
    assert together.metrics.trades <= sum(score.metrics.trades for score in alone)
    gross = sum(score.notional.sum() for score in alone) / 2
    assert together.notional.sum() < 0.97 * gross
    assert together.metrics.fees < sum(score.metrics.fees for score in alone) / 2
    # Two equal trials have no opposite orders to net, so together they equal the trial alone.
    manifest = one.manifest
    assert isinstance(manifest, Manifest)
    origin = manifest.origin.model_copy(update={"trial": 99})
    twin = dataclasses.replace(one, manifest=manifest.model_copy(update={"origin": origin}))
    twice = score_bundle(ensemble_of([one, twin], (0.25, 0.75)), bars, WINDOW)
    assert not twice.crossed.any()
    np.testing.assert_allclose(twice.returns, alone[0].returns, rtol=1e-9, atol=1e-12)
    assert twice.metrics.trades == alone[0].metrics.trades


def test_constant_policies_trade_as_sub_accounts_too() -> None:
    bars = market_bars(7, bars=1000)
    one = small_bundle(3, tickers=TICKERS)
    found = constant_returns(ensemble_of([one, small_bundle(6, tickers=TICKERS)]), bars, WINDOW)
    plain = constant_returns(one, bars, WINDOW)
    assert not found["cash"].any()
    for name in ("always-buy", "equal weight"):
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-9, atol=1e-12)
    assert np.abs(found["random"]).max() > 0.0


def test_an_ensemble_is_written_read_and_refused_like_any_bundle(tmp_path: Path) -> None:
    bundle = three()
    folder = write_bundle(bundle, tmp_path / "bundles")
    names = ["bundle.json", *(f"members-00{number}.safetensors" for number in range(3))]
    assert sorted(item.name for item in folder.iterdir()) == names
    loaded = load_bundle(folder, expected=bundle.hash)
    assert loaded == bundle
    assert isinstance(loaded.manifest, EnsembleManifest)
    assert [trial.share for trial in loaded.trials] == [0.5, 0.3, 0.2]
    assert {item.stat().st_mode & 0o777 for item in folder.iterdir()} == {0o444}
    for item in folder.iterdir():
        item.chmod(0o644)
    for name in names:
        content = bytearray((folder / name).read_bytes())
        for position in (0, len(content) // 3, len(content) - 1):
            content[position] ^= 1
            (folder / name).write_bytes(bytes(content))
            with pytest.raises(InputError, match=re.escape(name)):
                load_bundle(folder)
            content[position] ^= 1
        (folder / name).write_bytes(bytes(content))
    assert load_bundle(folder) == bundle
    (folder / "members.safetensors").write_bytes(b"mine")
    with pytest.raises(InputError, match="does not belong to it"):
        load_bundle(folder)
    (folder / "members.safetensors").unlink()
    (folder / names[2]).unlink()
    with pytest.raises(InputError, match=r"lacks its file members-001\.safetensors"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({0: {"share": 0.6}}, "shares add up to 1.1"),
        ({0: {"share": 0.0}}, "share"),
        ({0: {"file": "members-001.safetensors"}}, "the same file"),
        ({0: {"file": "../members.safetensors"}}, "file"),
        ({0: {"origin.trial": 4}}, "listed twice"),
        ({0: {"origin.study_uid": "1" * 32}}, "of one study"),
        ({1: {"env_params.fee": 0.1}}, "differ in fee"),
        ({1: {"env_params.initial_cash": 99.0}}, "differ in initial_cash"),
        ({1: {"env_params.lookback": 9}}, "lookback 9"),
        ({1: {"policy.state_dim": 9}}, "reads 9 numbers"),
        ({2: {"policy.members": 9}}, "holds 3 members, not 9"),
    ],
)
def test_an_ensemble_that_makes_no_sense_is_refused(
    tmp_path: Path, change: dict[int, dict[str, object]], sentence: str
) -> None:
    folder = write_bundle(three(), tmp_path / "bundles")
    path = folder / "bundle.json"
    path.chmod(0o644)
    content = json.loads(path.read_text())
    content.pop("hash")
    for place, values in change.items():
        for dotted, value in values.items():
            target = content["trials"][place]
            *parents, last = dotted.split(".")
            for part in parents:
                target = target[part]
            target[last] = value
    content["hash"] = sha256(canonical_json(content).encode())
    path.write_text(canonical_json(content))
    with pytest.raises(InputError, match=sentence) as caught:
        load_bundle(folder)
    assert "\n" not in str(caught.value)


def test_the_same_weights_with_other_shares_are_another_look() -> None:
    bundles = [small_bundle(seed, tickers=TICKERS) for seed in (3, 4)]
    equal, tilted = ensemble_of(bundles), ensemble_of(bundles, (0.6, 0.4))
    assert len({equal.members_sha256, tilted.members_sha256, bundles[0].members_sha256}) == 3
    assert equal.members_sha256 == ensemble_of(bundles, gate={"look": 2}).members_sha256


def test_shares_by_fold_score_lean_to_what_is_better_in_every_fold_and_never_far() -> None:
    sure = np.array([[3.0, 3.1, 2.9, 3.0], [1.0, 1.1, 0.9, 1.0]])
    noisy = np.array([[9.0, -4.0, 8.0, -1.0], [1.0, -7.0, 9.0, 1.0]])
    assert fold_score_shares(sure) == pytest.approx(
        [0.25 + 0.5 * 0.75, 0.25 + 0.5 * 0.25], abs=0.01
    )
    assert fold_score_shares(noisy) == pytest.approx([0.5, 0.5], abs=1e-12)
    assert fold_score_shares(-sure) == pytest.approx([0.5, 0.5])
    assert fold_score_shares(np.array([[5.0], [1.0]])).sum() == pytest.approx(1.0)
    mixed = fold_score_shares(np.vstack([sure, -sure]))
    assert mixed.sum() == pytest.approx(1.0)
    assert mixed.min() == pytest.approx(0.125)  # half of an equal share at the least


@pytest.fixture
def fake(tmp_path: Path) -> FakeStudy:
    study = FakeStudy(tmp_path)
    scores = {"sweepd:fold_scores": [2.0, 1.0, 3.0]}
    study.add(0.1, study.idle(), **scores)
    study.add(2.0, study.contrarian(), params=EnvParams(action_scale=0.3), **scores)
    study.add(1.8, study.contrarian(0.6), params=EnvParams(max_position=0.5), **scores)
    return study


def run(fake: FakeStudy, registry: Registry, **options: object) -> MarketPromotion:
    return promoter_of(MarketGate, open_study(fake.name, fake.storage), registry, **options).run()  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_best_trials_are_promoted_together(
    fake: FakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "deployments")
    promotion = run(fake, registry, ensemble=2)
    assert promotion.outcome == "promoted"
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.trials == (1, 2)
    assert "ensemble of trials 1 and 2" in promotion.reason
    assert promotion.champion is not None
    bundle = registry.bundle(promotion.champion, Bundle)
    assert isinstance(bundle.manifest, EnsembleManifest)
    assert bundle.manifest.weights == "equal"
    for number, name in ((1, "members-000.safetensors"), (2, "members-001.safetensors")):
        stored = fake.run_dir / f"trial-{number:05d}" / "members.safetensors"
        assert bundle.files[name] == stored.read_bytes()  # the bytes that were scored
    assert [finding["verdict"] for finding in bundle.manifest.gate["findings"]] == ["pass"] * 7
    assert bundle.manifest.gate["selection"]["trials_chosen"] == [1, 2]
    assert run(fake, registry, ensemble=2).outcome == "champion already"
    monkeypatch.setattr(
        documents, "write_pdf", lambda path, *_: path.touch()
    )  # the page says the same
    study = open_study(fake.name, fake.storage)
    report = market_report(study, promotion, study_search(study), registry, fake.data_dir)
    written = documents.write_report(report, tmp_path)
    page = written[0].read_text()
    assert "The ensemble of trials 1 and 2 was judged" in page
    assert "each as lucky as the best of 3" in page
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report_view(report))
    assert "The ensemble of trials 1 and 2, hold-out evaluation 1" in console.export_text()
    # The commands show, diff and verify.
    app = build_app()

    def sweepd(*words: str) -> str:
        result = CliRunner().invoke(
            app, [*words, "--deployments", str(registry.folder)], env={"COLUMNS": "160"}
        )
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    shown = sweepd("registry", "show", SLOT)
    for word in ("50.0% of capital", "trial 1", "trial 2", "learning_rate", "hold-out"):
        assert word in shown
    verified = json.loads(sweepd("registry", "verify", SLOT, "--json"))
    assert verified["agrees"]
    assert verified["largest_difference"] <= 1e-12
    other = write_bundle(small_bundle(tickers=fake.bars.tickers), tmp_path / "else")
    compared = json.loads(sweepd("registry", "diff", SLOT, str(other), "--json"))["differences"]
    assert compared["trials.0.share"] == [0.5, None]
    traded = sweepd("trade", "--replay", SLOT, "--out", str(tmp_path / "out"))
    assert "Same bars as the gate's" in traded


def test_shares_by_fold_score_are_promoted_as_such(fake: FakeStudy, tmp_path: Path) -> None:
    scores = {"sweepd:fold_scores": [3.0, 2.9, 3.1]}
    fake.add(2.2, fake.contrarian(0.8), params=EnvParams(action_scale=0.3), **scores)
    registry = Registry(tmp_path / "deployments")
    promotion = run(fake, registry, ensemble=2, weights="fold-score")
    assert promotion.outcome == "promoted"
    assert promotion.champion is not None
    manifest = registry.bundle(promotion.champion, Bundle).manifest
    assert isinstance(manifest, EnsembleManifest)
    assert manifest.weights == "fold-score"
    assert [part.origin.trial for part in manifest.trials] == [3, 1]
    assert manifest.trials[0].share > 0.5


def test_an_ensemble_of_one_is_the_trial_itself(fake: FakeStudy, tmp_path: Path) -> None:
    found = [run(fake, Registry(tmp_path / str(number)), ensemble=1).champion for number in (1, 2)]
    study = open_study(fake.name, fake.storage)
    alone = promoter_of(MarketGate, study, Registry(tmp_path / "3")).run()
    assert alone.champion == found[0] == found[1]


def test_the_luck_of_several_is_that_of_the_luckiest_times_what_diversification_gives(
    fake: FakeStudy,
) -> None:
    study = open_study(fake.name, fake.storage)
    search = study_search(study)
    together = combine(study.complete[:2], (0.5, 0.5), study.run_dir, "1h")
    single = [
        search.backtests[trial.number].excess for trial in study.complete[:2]
    ]  # of its one path
    whole = 0.5 * single[0] + 0.5 * single[1]
    np.testing.assert_allclose(together.backtest.excess, whole, rtol=0, atol=1e-15)
    ratio = 0.5 * (single[0].std() + single[1].std()) / whole.std()
    assert together.diversification == pytest.approx([ratio])
    assert 1.3 < ratio < 1.45  # independent noise
    candidate = read_candidate(study.complete[:2], study, search)
    own, best = candidate.selection.deflation, search.deflate(search.backtests[1])
    assert own is not None
    assert best is not None
    # In units of the standard error of the Sharpe ratio, which the autocorrelation decides.
    assert own.luck / own.moments.error == pytest.approx(
        ratio * best.luck / best.moments.error, rel=1e-12
    )
    assert own.moments.sharpe <= ratio * max(search.returns.sharpes[:, 0]) * (
        1 + 1e-12
    )  # what the bound rests on
    assert min(path.trades for path in candidate.paths) == min(
        search.backtests[number].metrics[0].trades for number in (1, 2)
    )
    # Its metrics are those of the combination, before fees as well.
    found, paths = candidate.metrics, together.paths
    annual = search.annual * own.moments.sharpe
    assert found[MEDIAN_RATIO] == pytest.approx(annual, rel=1e-12)
    [free] = paths.before_fees().summarise("1h")
    assert found["sharpe"] == together.backtest.metrics[0].sharpe
    assert found["sharpe_before_fees"] == free.sharpe
    assert candidate.describe(None)["metrics"] == found


def test_what_cannot_share_an_account_or_is_not_there_is_said(
    fake: FakeStudy, tmp_path: Path
) -> None:
    registry = Registry(tmp_path / "deployments")
    with pytest.raises(InputError, match="--ensemble 9 is more than the 3 COMPLETE trials"):
        run(fake, registry, ensemble=9)
    with pytest.raises(InputError, match="--trial 1 and --ensemble 2"):
        promoter_of(MarketGate, open_study(fake.name, fake.storage), registry, ensemble=2).run(1)
    fake.add(3.0, fake.contrarian(), params=EnvParams(fee=0.001))
    promotion = run(fake, registry, ensemble=2)
    assert promotion.outcome == "none passes"
    assert "the trials differ in fee (0.001, 0.0025)" in promotion.how_far
    assert registry.evaluations.count_holdout(fake.bars.tickers, 0, 2**40) == 0
    fake.add(4.0, fake.contrarian())
    fake.add(5.0, fake.contrarian())
    lacking = run(fake, registry, ensemble=2, weights="fold-score")
    assert "did not record the scores of its folds" in lacking.how_far
