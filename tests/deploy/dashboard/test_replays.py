"""A replay's files shown as an account: overview, chart, round trips, days and orders."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("plotly")
from werkzeug.test import Client

from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading import replay_picture
from sweepd.deploy.trading.replay import ReplayResult, replay, write_replay
from sweepd.deploy.trading.replay_view import replay_folder
from sweepd.envs.crypto.features import compute_features, get_recipe
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle
from tests.deploy.dashboard.test_web import Checked, OneStudy, client, figures, get
from tests.deploy.trading.test_paper_trader import TICKERS, market_bars

SLOT = "demo-1h"
VERDICT: Any = {
    "headline": "No candidate passes",
    "style": "none",
    "lines": [["why", "Trial 1 fails <pbo>."], ["how far", "+3%"], ["power", "1 of 10"]],
    "steps": [{"command": "sweepd plan --years 6", "purpose": "plan longer bars"}],
}
VIEWS = ("/", "/chart", "/trades", "/days", "/orders")


@dataclass(frozen=True)
class Replayed:
    """A slot that only a replay traded."""

    folder: Path
    result: ReplayResult
    name: str
    asked: Client


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = tmp_path_factory.mktemp("replayed") / "deployments"
    data = small_bundle(2, tickers=TICKERS).manifest.data.model_copy(update={"synthetic": True})
    bundle = small_bundle(2, tickers=TICKERS, gain=1.5, data=data)
    result = replay(bundle, market_bars(1, holes=0.02), (600, 720), slot=SLOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_picture, "draw_replay", lambda path, *_: path.touch())
        written = replay_folder(folder, result)
        write_replay(result, written)
    report = {"study": "btc", "outcome": "promoted"}
    Registry(folder).promote(
        SLOT, bundle, expected=None, reason="met every rule. More.", report=report
    )
    return Replayed(folder, result, written.name, client(folder, OneStudy()))


@pytest.mark.parametrize("path", VIEWS)
def test_every_view_says_what_a_replay_is(made: Replayed, path: str) -> None:
    answer = get(made.asked, path)
    Checked(answer.text)
    assert answer.status_code == 200
    for mark in ("replay over recorded bars", "hold-out", "synthetic market"):
        assert mark in answer.text
    assert 'href="/parity' not in answer.text
    assert 'href="/events' not in answer.text
    assert get(made.asked, f"{path}?slot={SLOT}&replay={made.name}").status_code == 200


def test_the_overview_is_that_of_the_ledger(made: Replayed) -> None:
    view = PaperSource(RegistryFlags(made.folder)).view(SLOT)
    own, equal = view.account("account"), view.account("equal weight")
    score = made.result.score.metrics
    assert own is not None
    assert equal is not None
    assert own.total_return == pytest.approx(score.total_return, rel=1e-9)
    assert equal.total_return == pytest.approx(score.equal_weight_return, rel=1e-9)
    assert own.trades == score.trades > 20
    assert (view.replay, view.health.state, view.trader) == (made.name, "replay", None)
    assert view.holdings is not None
    worth = view.holdings.cash + sum(one.value or 0.0 for one in view.holdings.positions)
    assert worth == pytest.approx(own.value, rel=1e-9)
    json.dumps(view.to_dict())


def test_round_trips_and_orders_are_those_of_the_replay(made: Replayed) -> None:
    fills = [fill for entry in made.result.entries for fill in entry.fills]
    rows = list(csv.DictReader(io.StringIO(get(made.asked, "/orders.csv").text)))
    assert [row["client_id"] for row in rows] == sorted(
        (fill.order.client_id for fill in fills),
        key=lambda name: next(
            (one.order.decided, name) for one in fills if one.order.client_id == name
        ),
        reverse=True,
    )
    by_id = {fill.order.client_id: fill for fill in fills}
    for row in rows:
        fill = by_id[row["client_id"]]
        assert float(row["filled_units"]) == fill.units
        assert float(row["notional"]) == fill.order.notional
        assert (row["whole"], row["reason"]) == (str(fill.order.whole), fill.reason)
    opened = PaperSource(RegistryFlags(made.folder)).account(SLOT)
    trader = opened.store.trader(SLOT)
    assert trader is not None
    profits = opened.profits.read(trader, "account")
    assert profits is not None
    assert profits.unexplained == pytest.approx(0.0, abs=1e-9 * profits.last)


def test_the_chart_has_position_account_and_indicators(made: Replayed) -> None:
    asset, result = 1, made.result
    answer = get(
        made.asked, f"/chart?slot={SLOT}&asset={TICKERS[asset]}&days=all&indicator=rsi_14,day_sine"
    )
    figure = figures(answer)["candles"]
    traces: dict[str, Any] = {one["name"]: one for one in figure["data"]}
    candles = len(traces["price"]["x"])
    assert candles <= 400
    # Candles join bars; the last bar of each gives position, value and features.
    entries = {entry.time: entry for entry in result.entries}
    bars = result.bars
    seconds = traces["price"]["x"][1] - traces["price"]["x"][0]
    features = compute_features(bars, get_recipe("default"))
    columns = get_recipe("default").columns(bars.tickers)
    for place, middle in enumerate(traces["price"]["x"]):
        start = (middle - seconds // 2) // 1000
        inside = (bars.time >= start) & (bars.time < start + seconds // 1000)
        (last, *_) = np.flatnonzero(inside & ~bars.hole[:, asset])[::-1]
        entry = entries.get(int(bars.time[last]))
        value, weight = traces["account"]["y"][place], traces["position"]["y"][place]
        if entry is None:
            assert value is weight is None
        else:
            assert value == pytest.approx(entry.value)
            held = entry.units[asset] * bars.close[last, asset] / entry.value
            assert weight == pytest.approx(held, abs=1e-9)
        for name, column in (("rsi_14", f"{TICKERS[asset]} rsi_14"), ("day_sine", "day_sine")):
            drawn = traces[name]["y"][place]
            if last < get_recipe("default").memory - 1:
                assert drawn is None
            else:
                assert drawn == pytest.approx(float(features[last, columns.index(column)]))
    heights = [figure["layout"][f"yaxis{n}"]["domain"] for n in ("", *range(2, 7))]
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(heights))


def test_zooming_gets_finer_candles_of_the_range(made: Replayed) -> None:
    first, stop = made.result.bars.time[[560, 600]]
    query = "&".join(
        f"{name}={np.datetime64(int(moment), 's').astype('datetime64[m]')}"
        for name, moment in (("first", first), ("stop", stop))
    )
    figure = figures(get(made.asked, f"/chart?asset={TICKERS[0]}&{query}"))["candles"]
    assert figure["layout"]["xaxis"]["range"] == [1000 * int(first), 1000 * int(stop)]
    kept = ~made.result.bars.hole[560:600, 0]
    assert figure["data"][0]["close"] == made.result.bars.close[560:600, 0][kept].tolist()
    for wrong in ("first=2022&stop=2023", f"{query}&indicator=rsi", "first=x&stop=y"):
        assert get(made.asked, f"/chart?{wrong}").status_code == 400
    swapped = query.replace("first", "x").replace("stop", "first").replace("x", "stop")
    assert get(made.asked, f"/chart?{swapped}").status_code == 400


def verdict_of(page: str) -> str:
    """The section of the verdict."""
    return page.partition('<section id="verdict"')[2].partition("</section>")[0]


def test_the_study_and_its_verdict_stand_on_the_first_page(made: Replayed, tmp_path: Path) -> None:
    text = get(made.asked, "/").text
    assert 'href="/training?study=btc"' in text
    assert "No verdict of the gate yet." in text
    assert 'id="verdict"' not in text
    assert get(made.asked, "/report?study=btc").status_code == 404
    assert get(made.asked, "/report?study=../btc").status_code == 404

    class Judged(OneStudy):
        def folder(self, _name: str) -> Path:  # type: ignore[override]
            return tmp_path

    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "gate.html").write_text("<script>alert(1)</script>")
    (tmp_path / "gate" / "verdict.json").write_text(json.dumps(VERDICT))
    asked = client(made.folder, Judged())
    text = get(asked, "/").text
    assert 'href="/report?study=btc"' in text
    told = [verdict_of(text), verdict_of(get(asked, "/training?study=btc").text)]
    assert told[0] == told[1]
    lines = [part for line in VERDICT["lines"] for part in line]
    for part in (VERDICT["headline"], *lines, VERDICT["steps"][0]["command"]):
        assert html.escape(part) in told[0]
    answer = get(asked, "/report?study=btc")
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none';")
    assert "script-src" not in policy


def test_damaged_and_foreign_folders_are_no_replays(made: Replayed, tmp_path: Path) -> None:
    folder = tmp_path / "deployments"
    registry = Registry(folder)
    registry.promote(SLOT, made.result.bundle, expected=None, reason="test")
    source = PaperSource(RegistryFlags(folder))
    place = folder / "replays" / "one"
    place.mkdir(parents=True)
    for content in ("no JSON", "[]", "{}", json.dumps({"slot": SLOT})):
        (place / "summary.json").write_text(content)
        os.utime(place / "summary.json", (len(content), len(content)))
        assert source.replays(SLOT) == {}
    summary = made.folder / "replays" / made.name / "summary.json"
    (place / "summary.json").write_bytes(summary.read_bytes())
    assert list(source.replays(SLOT)) == ["one"]
    with pytest.raises(InputError, match=r"replays/one cannot be read"):
        source.view(SLOT)
    assert "cannot be read" in get(client(folder), "/").text
    with pytest.raises(InputError, match="has no replay 'two'"):
        source.view(SLOT, replay="two")


def test_a_replay_of_seen_bars_says_that_it_is_no_evidence(made: Replayed) -> None:
    (replay_of,) = PaperSource(RegistryFlags(made.folder)).replays(SLOT).values()
    assert "hold-out" in replay_of.health.sentences[1]
    seen = dataclasses.replace(replay_of, unseen=False, risk=("sells everything",))
    assert "no evidence" in seen.health.sentences[1]
    assert "sells everything" in seen.health.sentences[2]
