"""`sweepd registry`: output as tables and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.manifest import DataPart
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.market.verify import TOLERANCE, verify_bundle
from sweepd.deploy.registry.bundle_files import finite, write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.data.bars import Bars, load_bars, write_bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.support.errors import InputError, RunError
from tests.deploy.builders import reverting_market, small_bundle

SLOT = "demo-1h"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_bars(reverting_market(0, assets=2, bars=900), folder)
    return folder


@pytest.fixture(scope="module")
def bars(data_dir: Path) -> Bars:
    return load_bars(data_dir, "1h")


def scored(bars: Bars, seed: int, **changes: Any) -> Bundle:
    """A bundle with a gate report on the last hundred bars."""
    first = len(bars.time) - 100
    fields: dict[str, Any] = {
        "tickers": bars.tickers,
        "last_seen": int(bars.time[first - 1]),
        "data": DataPart(
            fingerprint=bars.fingerprint,
            first=format_time(int(bars.time[0])),
            last=format_time(int(bars.time[-1])),
            synthetic=True,
        ),
    }
    result = score_bundle(small_bundle(seed, **fields), bars, (first - 1, len(bars.time) - 1))
    assert result.metrics.trades > 0
    holdout = {
        "first": format_time(int(result.time[0])),
        "last": format_time(int(result.time[-1])),
        **result.metrics.to_dict(),
    }
    finding = {
        "name": "holdout-excess",
        "stage": "hold-out",
        "value": 0.01,
        "comparison": ">",
        "limit": 0.0,
        "verdict": "pass",
        "loosened": False,
        "explanation": "beats equal weight",
        "flag": "--limit holdout-excess=0",
    }
    gate = {"slot": SLOT, "look": 1, "holdout": holdout | changes, "findings": [finding]}
    return small_bundle(seed, **fields, gate=finite(gate))


@pytest.fixture(scope="module")
def bundles(bars: Bars) -> list[Bundle]:
    return [scored(bars, seed) for seed in range(3)]


@pytest.fixture
def registry(tmp_path: Path, bundles: list[Bundle], data_dir: Path) -> Registry:
    """A champion, the one before it, and a challenger."""
    registry = Registry(tmp_path / "deployments")
    first, second, third = bundles
    for champion, bundle, reason in (
        (None, first, "it was the first"),
        (first.hash, second, "it was better"),
    ):
        registry.promote(SLOT, bundle, expected=champion, reason=reason, data_dir=str(data_dir))
    registry.challenger(SLOT, third, reason="too few bars", data_dir=str(data_dir))
    return registry


@pytest.fixture
def sweepd(registry: Registry) -> Run:
    """Run a command, and return what it prints; wrong input is raised."""
    app = build_app()

    def run(*words: object, width: int = 120) -> str:
        given = [*map(str, words), "--deployments", str(registry.folder)]
        result = CliRunner().invoke(app, given, env={"COLUMNS": str(width)})
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_list_shows_champion_previous_and_challengers(sweepd: Run, bundles: list[Bundle]) -> None:
    printed = sweepd("registry", "list", width=160)
    for text in (SLOT, *(bundle.name for bundle in bundles), "it was better"):
        assert text in printed
    (slot,) = json.loads(sweepd("registry", "list", "--json"))
    assert slot == {
        "name": SLOT,
        "champion": bundles[1].hash,
        "previous": bundles[0].hash,
        "revision": 2,
        "challengers": [bundles[2].hash],
        "synthetic": True,
    }


def test_list_of_a_slot_shows_its_history(sweepd: Run) -> None:
    printed = sweepd("registry", "list", SLOT)
    for text in (
        "champion",
        "previous",
        "challenger",
        "promoted",
        "it was the first",
        "it was better",
        "too few bars",
    ):
        assert text in printed
    told = json.loads(sweepd("registry", "list", SLOT, "--json"))
    assert [(version["number"], version["is"]) for version in told["versions"]] == [
        (1, "previous"),
        (2, "champion"),
        (3, "challenger"),
    ]
    assert [event["kind"] for event in told["events"]] == ["promoted", "promoted", "challenger"]
    with pytest.raises(InputError, match="no slot 'crypto-5m'; slots: demo-1h"):
        sweepd("registry", "list", "crypto-5m")


def test_show_fits_on_one_screen(sweepd: Run, bundles: list[Bundle]) -> None:
    champion = bundles[1]
    printed = sweepd("registry", "show")
    for text in (
        champion.hash,
        champion.members_sha256,
        "version 2, champion since",
        "it was better",
        "study small, trial 1",
        "holdout-excess",
        "pass",
        "hold-out",
        "trades",
        "learning_rate 0.001",
        "hold-out evaluation 1; evaluations used so far: ",
    ):
        assert text in printed, text
    assert len(printed.splitlines()) <= 40
    facts = json.loads(sweepd("registry", "show", f"{SLOT}@previous", "--json"))
    assert facts["bundle"] == bundles[0].hash
    assert facts["slots"][0]["is"] == "previous"
    assert facts["holdout"] == bundles[0].manifest.gate["holdout"]


def test_show_accepts_a_hash_or_a_folder(
    sweepd: Run, bundles: list[Bundle], tmp_path: Path
) -> None:
    assert bundles[2].hash in sweepd("registry", "show", bundles[2].hash[:8])
    elsewhere = write_bundle(small_bundle(9), tmp_path / "elsewhere")
    assert small_bundle(9).hash in sweepd("registry", "show", elsewhere)
    with pytest.raises(InputError, match="neither a slot nor"):
        sweepd("registry", "show", "nothing")


def test_diff_shows_only_differences(sweepd: Run, bundles: list[Bundle]) -> None:
    told = json.loads(sweepd("registry", "diff", SLOT, "--json"))
    assert (told["one"], told["other"]) == (bundles[0].hash, bundles[1].hash)
    found = told["differences"]
    assert found["origin.trial"] == [0, 1]
    assert found["weights_sha256"] == [bundles[0].members_sha256, bundles[1].members_sha256]
    assert "holdout.total_return" in found
    assert not {"timeframe", "env_params.fee", "hash"} & set(found)
    assert "origin.trial" in sweepd("registry", "diff", f"{SLOT}@1", f"{SLOT}@3")
    assert "are the same" in sweepd("registry", "diff", SLOT, bundles[1].hash)
    with pytest.raises(InputError, match="is not a slot: name the second"):
        sweepd("registry", "diff", bundles[1].hash)


@pytest.mark.parametrize("command", [("rollback",), ("registry", "rollback")])
def test_rollback_has_two_names(
    sweepd: Run, registry: Registry, bundles: list[Bundle], command: tuple[str, ...]
) -> None:
    sweepd(*command, SLOT, "--reason", "it lost money")
    assert registry.slot(SLOT).champion == bundles[0].hash
    assert registry.events(SLOT)[-1].reason == "it lost money"


def test_a_challenger_can_be_withdrawn(
    sweepd: Run, registry: Registry, bundles: list[Bundle]
) -> None:
    with pytest.raises(
        InputError,
        match=f"is not a challenger of slot '{SLOT}'; its challengers: {bundles[2].name}",
    ):
        sweepd("registry", "withdraw", SLOT, SLOT)  # the champion stays
    said = sweepd("registry", "withdraw", SLOT, "--reason", "it was a mistake")
    assert f"{bundles[2].name} is withdrawn" in said
    assert registry.slot(SLOT).challengers == ()
    assert registry.slot(SLOT).champion == bundles[1].hash
    event = registry.events(SLOT)[-1]
    assert (event.kind, event.bundle, event.reason) == (
        "withdrawn",
        bundles[2].hash,
        "it was a mistake",
    )
    with pytest.raises(InputError, match=r"name a challenger of slot .*: there are none"):
        sweepd("registry", "withdraw", SLOT)
    assert bundles[2].name in sweepd("registry", "gc")


def test_gc_lists_and_removes_with_delete(
    sweepd: Run, registry: Registry, bundles: list[Bundle]
) -> None:
    assert "every bundle is needed" in sweepd("registry", "gc")
    registry.promote(SLOT, bundles[2], expected=bundles[1].hash, reason="")
    assert f"{bundles[0].name}" in sweepd("registry", "gc")
    assert registry.bundle(bundles[0].hash, Bundle) == bundles[0]
    told = json.loads(sweepd("registry", "gc", "--delete", "--json"))
    assert [folder["hash"] for folder in told["folders"]] == [bundles[0].hash]
    assert told["deleted"] is True
    assert not registry.path(bundles[0].hash).exists()
    assert "removed" in sweepd("registry", "list", SLOT)


def test_verify_finds_the_same_numbers(sweepd: Run, bundles: list[Bundle]) -> None:
    printed = sweepd("registry", "verify")
    assert f"{bundles[1].name} is verified" in printed
    told = json.loads(sweepd("registry", "verify", f"{SLOT}@1", "--json"))
    assert told["agrees"] is True
    assert told["bundle"] == bundles[0].hash
    assert told["largest_difference"] <= TOLERANCE
    stored = bundles[0].manifest.gate["holdout"]
    assert told["metrics"]["sharpe"]["stored"] == stored["sharpe"]
    assert set(told["metrics"]) == {
        name for name, value in stored.items() if not isinstance(value, str)
    }


@pytest.mark.slow
def test_verify_agrees_in_another_process_and_with_other_threads(registry: Registry) -> None:
    code = "import torch; torch.set_num_threads(2); from sweepd.app import main; main()"
    words = [
        sys.executable,
        "-c",
        code,
        "registry",
        "verify",
        SLOT,
        "--json",
        "--deployments",
        str(registry.folder),
    ]
    threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=os.environ | threads
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["agrees"] is True
    assert told["largest_difference"] <= TOLERANCE


def test_verify_detects_a_changed_number(bars: Bars) -> None:
    true = scored(bars, 0)
    total = true.manifest.gate["holdout"]["total_return"]
    result = verify_bundle(scored(bars, 0, total_return=total + 2e-9), bars)
    assert not result.agrees
    assert "total_return was" in result.said
    assert verify_bundle(scored(bars, 0, total_return=total + 5e-10), bars).agrees


def test_verify_reports_a_bundle_that_scores_differently(
    sweepd: Run, bars: Bars, tmp_path: Path, data_dir: Path
) -> None:
    forged = write_bundle(scored(bars, 0, sharpe=99.0), tmp_path / "forged")
    with pytest.raises(RunError, match=r"sharpe was 99\.0 and is"):
        sweepd("registry", "verify", forged, "--data-dir", data_dir)


def test_verify_refuses_other_bars_and_bundles_without_a_score(
    sweepd: Run, bars: Bars, tmp_path: Path, data_dir: Path
) -> None:
    other = tmp_path / "other"
    write_bars(dataclasses.replace(bars, close=bars.close * 1.0001, high=bars.high * 1.0001), other)
    with pytest.raises(InputError, match="not those that bundle"):
        sweepd("registry", "verify", "--data-dir", other)
    unscored = write_bundle(small_bundle(8, tickers=bars.tickers), tmp_path / "unscored")
    with pytest.raises(InputError, match="--data-dir is needed"):
        sweepd("registry", "verify", unscored)
    with pytest.raises(InputError, match="never evaluated on a hold-out"):
        sweepd("registry", "verify", unscored, "--data-dir", data_dir)


def test_an_absent_registry_is_refused_and_not_created(tmp_path: Path) -> None:
    app = build_app()
    for words in (["list"], ["show"], ["diff", "a"], ["verify"], ["gc"], ["rollback"]):
        result = CliRunner().invoke(
            app, ["registry", *words, "--deployments", str(tmp_path / "none")]
        )
        assert isinstance(result.exception, InputError)
        assert "there is no registry at" in str(result.exception)
    assert not (tmp_path / "none").exists()
