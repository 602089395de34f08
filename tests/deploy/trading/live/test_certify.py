"""Days are certified from the record, exported, and verified without it.

The lab disturbs a trader before, at and after midnight: each day is equal to the simulator, or the
certificate says why it is not.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.trading.certificates.certificate import Content, check_chain, digest_of
from sweepd.deploy.trading.certificates.certificate_file import read, write
from sweepd.deploy.trading.certificates.certifier import Certifier
from sweepd.deploy.trading.certificates.certify import certify, content_of
from sweepd.deploy.trading.certificates.recompute_day import _Ledger
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.feeds import RecordedFeed
from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.live.session import LiveSession
from sweepd.deploy.trading.live.store import stored_certificates
from sweepd.envs.support.errors import InputError, RunError
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.builders import ensemble_of
from tests.deploy.trading.live.test_revisions import ChangingFeed, scaled
from tests.deploy.trading.live.test_session import FIRST, PARAMS, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.test_short_session import bundle_of as short_bundle
from tests.deploy.trading.live.test_short_session import wild_bars
from tests.deploy.trading.live.test_transfers import run, transfer
from tests.deploy.trading.live.world import SLOT, Killed, Killer, MarketClock, World

MIDNIGHT = 672  # the second one: a day of 8 bars and two of 24 are over at `END`
END = MIDNIGHT + 27
PLACES = (MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 1)
BARS = bars_of(END)


def certified(world: World) -> list[Content]:
    """Return the slot's certificates, after certifying the days that are over."""
    found = list(certify(world.registry, SLOT))
    assert [content_of(one) for one in stored_certificates(world.registry.database, SLOT)] == found
    check_chain(found)
    assert list(certify(world.registry, SLOT)) == []
    for one, following in itertools.pairwise(found):
        assert one.after == following.before
    return found


def verdicts(found: list[Content]) -> list[str]:
    return [one.verdict for one in found]


@pytest.fixture(params=["simulator", "venue"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "simulator":
        yield World(tmp_path, bundle_of(), BARS, FIRST)
        return
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    names = {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}
    with serving(Exchange(names, spread=Decimal("0.004"))) as exchange:
        bundle = bundle_of(params=dataclasses.replace(PARAMS, max_holding_bars=0))
        yield World(tmp_path, bundle, BARS, FIRST, exchange)


def check(world: World, *told: str) -> list[Content]:
    """Check the verdicts of three days, and that `told` is among the events of one."""
    found = certified(world)
    assert len(found) == 3
    own = "equal" if world.exchange is None else "explained"
    assert set(verdicts(found)) <= {"equal", own}
    for one in told:
        assert any(one in event for each in found for event in each.events), one
    return found


def switched(world: World, session: LiveSession, bars: object) -> None:
    """Let the venue follow other bars."""
    if world.exchange is not None:
        world.clock = MarketClock(world.clock.now(), bars, world.exchange)  # type: ignore[arg-type]
        session._clock = world.clock


@pytest.mark.parametrize("place", PLACES)
def test_restarts_and_missed_bars(world: World, place: int) -> None:
    run(world, FIRST, place)
    world.until_close_of(place + 2)  # three bars are late
    run(world, place + 3, END)
    check(world, "caught up")


@pytest.mark.parametrize("where", ["restart", "poll"])
@pytest.mark.parametrize("place", PLACES)
def test_splits(world: World, place: int, where: str) -> None:
    changed = scaled(BARS, 0.1)
    if where == "poll":
        world.make_feed = lambda _bundle: ChangingFeed(BARS, changed, place)
    session = run(world, FIRST, place)
    if world.exchange is not None:
        world.exchange.units["LINK/USD"] *= 10
    switched(world, session, changed)
    if where == "restart":
        world.make_feed = lambda _bundle: RecordedFeed(changed)
    run(world, place, END, session if where == "poll" else None)
    check(world, "adjusted: LINK/USDT")


@pytest.mark.parametrize("place", PLACES)
def test_halts_and_their_end(world: World, place: int) -> None:
    session = run(world, FIRST, place)
    world.store.halt(SLOT, "an operator", sells=True)
    run(world, place, place + 2, session)
    world.store.resume(SLOT, "checked")
    run(world, place + 2, END, session)
    check(world, "halted: an operator", "resumed")


@pytest.mark.parametrize("place", PLACES)
def test_a_new_champion(world: World, place: int) -> None:
    session = run(world, FIRST, place)
    changes = {} if world.exchange is None else {"params": world.bundle.account}
    heir = bundle_of(7, **changes)
    world.registry.promote(SLOT, heir, expected=world.bundle.hash, reason="better")
    run(world, place, place + 3, session)
    run(world, place + 3, END)
    found = check(world, "swapped")
    assert {one for each in found for one in each.bundles} == {world.bundle.hash, heir.hash}


@pytest.mark.parametrize("place", PLACES)
def test_a_bar_that_is_revised_or_late(tmp_path: Path, place: int) -> None:
    holes, changed = bars_of(END, holes=0.05), bars_of(END)
    world = World(tmp_path, bundle_of(), holes, FIRST)
    run(world, FIRST, place)
    world.make_feed = lambda _bundle: RecordedFeed(changed)
    run(world, place, END)
    check(world, "revised")


def test_transfers_and_ensembles(tmp_path: Path) -> None:
    bundle = ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
    world = World(tmp_path, bundle, bars_of(END, holes=0.05), FIRST)
    session = run(world, FIRST, MIDNIGHT)
    transfer(session, Flow(2_000.0))
    run(world, MIDNIGHT, MIDNIGHT + 5, session)
    transfer(session, Flow(-1_500.0))
    run(world, MIDNIGHT + 5, END)
    check(world, "transfer")


def test_short_positions(tmp_path: Path) -> None:
    world = World(tmp_path, short_bundle(), wild_bars(), FIRST)
    world.run()
    assert set(verdicts(certified(world))) == {"equal"}


def test_kills_around_midnight(tmp_path: Path) -> None:
    start = World(tmp_path / "start", bundle_of(), BARS, FIRST)
    run(start, FIRST, MIDNIGHT - 1)
    count = Killer()
    undisturbed = start.copy(tmp_path / "undisturbed")
    run(undisturbed, MIDNIGHT - 1, MIDNIGHT + 2, undisturbed.session(count))
    for at in range(1, count.steps + 1):
        world = start.copy(tmp_path / str(at))
        with pytest.raises(Killed):
            run(world, MIDNIGHT - 1, MIDNIGHT + 2, world.session(Killer(at)))
        world.run()
        check(world)


# ---- causes ----


@pytest.mark.parametrize(
    ("venue", "cause"),
    [
        ({"spread": Decimal("0.004")}, "price"),
        ({"fee": Decimal("0.01")}, "fee"),
        ({"fill_share": Decimal("0.5")}, "refusal"),
        ({}, None),
    ],
)
def test_what_the_venue_does_otherwise_is_the_cause(
    tmp_path: Path, venue: dict[str, Any], cause: str | None
) -> None:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    names = {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}
    params = dataclasses.replace(PARAMS, max_holding_bars=0, slippage=0.0, fee=0.0025)
    with serving(Exchange(names, **venue)) as exchange:
        world = World(tmp_path, bundle_of(params=params), BARS, FIRST, exchange)
        run(world, FIRST, END)
    for one in certified(world):
        assert one.causes is not None
        assert one.returns is not None
        gap = one.returns.account - one.returns.simulator
        assert math.fsum(one.causes.values()) == pytest.approx(gap, abs=1e-12)
        # What remains of the others is the venue's rounding of amounts.
        found = {name for name, part in one.causes.items() if abs(part) > 2e-6}
        assert found - {"decisions"} == ({cause} if cause else set())


def test_a_ledger_follows_a_change_of_units() -> None:
    ledger, row = _Ledger("prices"), BARS.slice(END - 1, END)
    ledger._units[TICKERS[2]] = 3.0
    before = ledger.worth(TICKERS, ClosedBar.of(row, 0))
    ledger.adjust({TICKERS[2]: 0.1})
    after = ledger.worth(TICKERS, ClosedBar.of(scaled(row, 0.1), 0))
    assert after == pytest.approx(before, rel=1e-12) != 0.0


# ---- the table, files and the command ----


@pytest.fixture(scope="module")
def traded(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Read-only: a slot with three certificates."""
    world = World(tmp_path_factory.mktemp("traded"), bundle_of(), BARS, FIRST)
    run(world, FIRST, MIDNIGHT)
    run(world, MIDNIGHT, END)
    assert command(world, "--certify")[0] == 0
    return world


def command(world: World, *words: str) -> tuple[int, str]:
    """Return exit code and output, or message, of `sweepd trader parity`."""
    return answered("--deployments", str(world.folder), *words)


def answered(*words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(build_app(), ["trader", "parity", SLOT, *words])
    if isinstance(answer.exception, InputError | RunError):
        return answer.exception.exit_code, str(answer.exception)
    return answer.exit_code, answer.output


def tampered(world: World, table: str, change: str) -> None:
    """Change rows that cannot be changed, as somebody with access to the file can."""
    with world.registry.database.engine.begin() as connection:
        connection.execute(text(f"DROP TRIGGER {table}_no_update"))
        connection.execute(text(f"UPDATE {table} SET {change}"))


def exported_file(world: World, folder: Path, *words: str) -> Path:
    file = folder / "day.zip"
    code, said = command(world, "--export", str(file), *words)
    assert code == 0, said
    return file


def verify(world: World, file: Path, *words: str, bundle: bool = True) -> tuple[int, str]:
    """Verify a file where there is no registry."""
    folder = world.registry.path(world.bundle.hash)
    named = ("--bundle", str(folder)) if bundle else ()
    nowhere = ("--deployments", str(file.parent / "nowhere"))
    return answered("--verify", str(file), *named, *nowhere, *words)


def keys(folder: Path) -> tuple[Path, Path]:
    """Write a private and a public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    places = (folder / "key.pem", folder / "public.pem")
    for place, content in zip(places, (private, public), strict=True):
        place.write_bytes(content)
    return places


def test_each_day_is_certified_once(traded: World) -> None:
    code, said = command(traded, "--certify")
    assert (code, "every day that is over" in said) == (0, True)
    rows = stored_certificates(traded.registry.database, SLOT)
    assert [one.number for one in rows] == [0, 1, 2]
    assert [content_of(one).hash for one in rows] == [one.hash for one in rows]
    check_chain([content_of(one) for one in rows])
    with pytest.raises(InputError, match="one was taken out"):
        check_chain([content_of(one) for one in (rows[0], rows[2])])


def test_two_processes_at_once_certify_each_day_once(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), BARS, FIRST)
    run(world, FIRST, END)
    first, second = (certify(world.registry, SLOT) for _ in range(2))
    # Both have found three days without a certificate.
    made = [next(first), next(second), *first, *second]
    assert [one.number for one in made] == [0, 1, 2]
    assert len(stored_certificates(world.registry.database, SLOT)) == 3


@pytest.mark.parametrize("day", [(), ("--day", "2020-01-27"), ("--day", "2020-01-28")])
def test_a_file_is_verified_without_a_registry(
    traded: World, tmp_path: Path, day: tuple[str, ...]
) -> None:
    file = exported_file(traded, tmp_path, *day)
    code, said = verify(traded, file)
    assert (code, "recomputed with the same result" in said) == (0, True)
    code, said = verify(traded, file, bundle=False)
    assert (code, "name its folder with --bundle" in said) == (2, True)
    made = file.read_bytes()
    for place in range(0, len(made), len(made) // 60):
        changed = bytearray(made)
        changed[place] ^= 1
        file.write_bytes(changed)
        assert verify(traded, file)[0] == 1, place
    assert not (tmp_path / "nowhere").exists()


def test_signed_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("model_signing", reason="the extra [sign] is not installed")
    world = World(tmp_path / "slot", bundle_of(), bars_of(FIRST + 10), FIRST)
    world.run()
    private, public = keys(tmp_path)
    monkeypatch.setenv("SWEEPD_SIGNING_KEY", str(private))
    assert command(world, "--certify")[0] == 0
    file = exported_file(world, tmp_path)
    assert verify(world, file, "--public-key", str(public))[0] == 0
    assert verify(world, file)[0] == 0
    _, other = keys(tmp_path)
    code, said = verify(world, file, "--public-key", str(other))
    assert (code, "is not one of this certificate" in said) == (1, True)


def test_a_day_that_was_made_up_is_found(traded: World, tmp_path: Path) -> None:
    """All hashes are right; the decisions and returns do not follow from the bars."""
    day = read(exported_file(traded, tmp_path).read_bytes(), "day.zip")
    lines = [dict(one) for one in day.records["lines"]]
    lines[-1]["value"] *= 1.01
    bars = [dict(one) for one in day.records["bars"]]
    bars[0]["tickers"] = {
        name: [1.01 * value for value in values[:4]] + values[4:]
        for name, values in bars[0]["tickers"].items()
    }
    for kind, records in (("lines", lines), ("bars", bars)):
        content = day.content.model_copy(update={kind: digest_of(records)})
        made_up = replace(day, content=content, records={**day.records, kind: records})
        file = tmp_path / f"{kind}.zip"
        file.write_bytes(write(made_up))
        code, said = verify(traded, file)
        assert (code, f"{kind}.zip: " in said) == (1, True)


def test_a_day_that_differs_is_an_alert(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), BARS, FIRST)
    run(world, FIRST, END)
    tampered(world, "account_bars", f"value = value * 1.01 WHERE time = {BARS.time[MIDNIGHT]}")
    code, said = command(world, "--certify", "--json")
    found = json.loads(said)["certificates"]
    assert (code, [one["verdict"] for one in found]) == (1, ["equal", "equal", "differs"])
    alerts = [one.text for one in world.store.events(SLOT) if one.kind == "alert"]
    assert alerts == [found[2]["text"]]
    assert command(world, "--certify")[0] == 0


def test_a_day_without_its_bundle_is_impossible(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), BARS, FIRST)
    run(world, FIRST, END)
    shutil.rmtree(world.registry.path(world.bundle.hash))
    code, said = command(world, "--certify", "--json")
    found = json.loads(said)["certificates"]
    assert (code, {one["verdict"] for one in found}) == (1, {"impossible"})
    check_chain([content_of(one) for one in stored_certificates(world.registry.database, SLOT)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--certify", "--export", "a.zip"), "exclude each other"),
        (("--day", "2024-01-31"), "--day is for --export"),
        (("--certify", "--bundle", "a"), "are for --verify"),
        (("--export", "a.zip", "--json"), "--json is not for"),
        (("--export", "a.zip", "--day", "31.1.2024"), "is not a day"),
        (("--export", "a.zip", "--day", "2024-01-31"), "has no certificate of 2024-01-31"),
    ],
)
def test_flags_without_effect_are_refused(traded: World, words: tuple[str, ...], said: str) -> None:
    code, message = command(traded, *words)
    assert (code, said in message) == (2, True)


# ---- who certifies ----


def test_each_midnight_is_told(tmp_path: Path) -> None:
    world, told = World(tmp_path, bundle_of(), BARS, FIRST), list[int | None]()
    session = world.session()
    session._day_over = lambda: told.append(world.store.trader(SLOT).last_bar)  # type: ignore
    run(world, FIRST, END, session)
    # The transaction of the new day's first bar is over.
    assert told == [int(BARS.time[place]) for place in (MIDNIGHT - 24, MIDNIGHT, MIDNIGHT + 24)]


def test_a_process_of_its_own_certifies(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), BARS, FIRST)
    run(world, FIRST, END)
    certifier = Certifier(world.registry, SLOT)
    certifier()
    process = certifier._process
    assert process is not None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    certifier()
    assert certifier._process is process, "one at a time"
    assert process.wait(timeout=120) == 0
    rows = stored_certificates(world.registry.database, SLOT)
    assert [one.verdict for one in rows] == ["equal"] * 3
