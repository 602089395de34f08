"""The page of a slot's nights: which night, its report, its picture, and what is not there."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from sweepd.deploy.night.records import NightStore
from sweepd.deploy.registry.arena_rows import ArenaRows
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.store import TraderStore
from tests.deploy.dashboard.browser import CHROMIUM, Browser, served
from tests.deploy.dashboard.synthetic import bundles, write_session
from tests.deploy.dashboard.test_web import Checked, client, get
from tests.deploy.night.nights import CONFIG, SLOT, entry, record, step

pytest.importorskip("optuna_dashboard")
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from tests.deploy.dashboard.test_web import NoStudies

EVIL = "</script><b>it & that"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights of a slot that trades, with one seat; and a slot that has had none."""
    made = tmp_path_factory.mktemp("nights") / "deployments"
    registry, [first, second, *_] = Registry(made), bundles()
    for slot in (SLOT, "other-1h"):
        registry.promote(slot, first, expected=None, reason="by hand", data_dir="")
        write_session(TraderStore(registry.database), slot, [first], bars=24 * 20)
    registry.challenger(SLOT, second, reason="it passed", data_dir="")
    arena, now = ArenaRows(registry.database), int(time.time())
    arena.enter(
        [dataclasses.replace(entry(1, second.hash, "challenger", 9), reign=1, since=now)], ""
    )
    arena.add_days([dataclasses.replace(day, reign=1) for day in record(second.hash, 9, 0.1, 1)])
    store = NightStore(registry.database)
    for name in ("20261127", "20261128"):
        night = store.begin(SLOT, name, CONFIG, "2026-11-28T01:30:00.000Z")
        store.write(night, dataclasses.replace(step("bars"), night=name))
        store.write(night, dataclasses.replace(step("check", "refused", reason=EVIL), night=name))
        if name == "20261127":
            store.end(night, "broken", "2026-11-27T03:00:00.000Z")
    return made


def test_the_newest_night_is_shown_with_its_report_and_links_to_others(folder: Path) -> None:
    text = get(client(folder), f"/night?slot={SLOT}").text
    Checked(text)
    assert "Night 20261128 of crypto-1h: check refused" in text
    assert "step check refused: &lt;/script&gt;&lt;b&gt;it &amp; that" in text
    assert "sweepd data check --data-dir data/live" in text
    assert "1, challenger" in text
    assert f"/night?slot={SLOT}&amp;night=20261127" in text
    older = get(client(folder), f"/night?slot={SLOT}&night=20261127").text
    assert "Night 20261127 of crypto-1h" in older
    assert ">broken</span>" in older


def test_the_picture_is_served_and_nights_that_were_not_are_not_found(folder: Path) -> None:
    asked = client(folder)
    answer = get(asked, f"/night.png?slot={SLOT}&night=20261128&steps=2")
    assert (answer.status_code, answer.mimetype) == (200, "image/png")
    assert answer.data.startswith(b"\x89PNG")
    assert get(asked, f"/night?slot={SLOT}&night=20261126").status_code == 404
    assert get(asked, f"/night.png?slot={SLOT}&night=20261126").status_code == 404
    assert get(asked, "/night.png?slot=other-1h").status_code == 404
    assert "has had no night yet" in get(asked, "/night?slot=other-1h").text


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_fits_the_window_and_its_scripts_run(folder: Path, width: int) -> None:
    app = Dashboard(PaperSource(RegistryFlags(folder)), NoStudies())  # type: ignore[arg-type]
    with served(app) as address, Browser() as browser:
        assert browser.open(f"{address}/night?slot={SLOT}", width=width) == []
        assert not browser.scrolls_sideways()
        assert browser.evaluate("document.querySelector('#night img').naturalWidth") > 500
