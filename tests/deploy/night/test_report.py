"""The report of a night: what it says, its commands, its picture and its files; and sending it."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweepd.deploy.night import delivery
from sweepd.deploy.night.facts import AccountLine, DiskFact, NightFacts, TraderFact
from sweepd.deploy.night.report import draw, needs, night_report
from sweepd.deploy.promotion.documents import to_html, to_png
from sweepd.deploy.promotion.markdown import escaped, to_markdown
from sweepd.deploy.trading.live.notify import Notifier
from sweepd.envs.crypto.data.timeframe import DAY
from tests.deploy.dashboard.browser import CHROMIUM, Browser
from tests.deploy.night.nights import NIGHTS, SLOT, broken, eventful, quiet
from tests.printed_commands import parses


def fullest() -> NightFacts:
    """The eventful night with eight challengers and a refit."""
    facts = eventful()
    [first, second, third, refit] = facts.seats
    more = [dataclasses.replace(second, number=number) for number in range(4, 9)]
    return dataclasses.replace(facts, seats=(first, second, third, *more, refit))


def page_of(facts: NightFacts) -> str:
    report = night_report(facts)
    return to_html(report, None if report.picture is None else to_png(report.picture.draw()))


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("name", [*NIGHTS, "fullest"])
def test_the_page_prints_on_one_sheet_and_never_scrolls_sideways(name: str, tmp_path: Path) -> None:
    page, sheet = tmp_path / "night.html", tmp_path / "night.pdf"
    page.write_text(page_of((NIGHTS | {"fullest": fullest})[name]()))
    with Browser() as browser:
        assert browser.open(page.as_uri(), width=1080) == []
        assert not browser.scrolls_sideways()
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={sheet}", page.as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    assert len(re.findall(rb"/Type\s*/Page\b", sheet.read_bytes())) == 1


@pytest.mark.parametrize("name", NIGHTS)
def test_the_printed_commands_are_understood(name: str) -> None:
    for step in night_report(NIGHTS[name]()).steps:
        parses(step.command)


def test_each_step_that_can_fail_has_a_command_that_is_understood() -> None:
    study = quiet().study
    for step in ("bars", "check", "begin", "study", "stage", "admit"):
        facts = dataclasses.replace(broken(), study=study, trader=None, disk=None)
        failed = dataclasses.replace(facts.steps[1], name=step)
        config = facts.config | {"study": {"runs_dir": "my runs", "storage": "sqlite:///a b.db"}}
        facts = dataclasses.replace(
            facts, steps=(failed,), config=config, where=" --deployments 'an other'"
        )
        [found] = needs(facts)
        assert found.step is not None
        [words] = parses(found.step.command)
        assert ("my runs" in words) == (step not in ("bars", "check"))


def test_a_quiet_night_needs_nobody_and_a_broken_one_says_what_and_how() -> None:
    assert needs(quiet()) == []
    report = night_report(broken())
    assert report.style == "fail"
    assert [step.command.split()[1] for step in report.steps] == ["trader", "data", "studies"]
    silent = dataclasses.replace(quiet(), trader=TraderFact("trades", None, 301.0))
    assert [one.what for one in needs(silent)] == ["the trader has been silent for 5:01"]


def test_text_of_others_is_no_markup_in_any_format() -> None:
    page, text = page_of(broken()), to_markdown(night_report(broken()))
    assert "<no>" not in page
    assert "&lt;no&gt;" in page
    assert "drawdown &lt;b&gt;of 20%" in page
    assert r"\<no\> bar at 2026-11-27 04:00 \| \*twice\*, and \`rm\`" in text


@given(st.text())
def test_escaped_text_has_one_line_and_no_bare_special_character(text: str) -> None:
    made = escaped(text)
    assert "\n" not in made
    assert not re.search(r"(?<!\\)(\\\\)*[`*_\[\]<>|~#]", made)


def test_returns_are_over_whole_days_and_unknown_for_younger_accounts() -> None:
    time = np.arange(0, 10 * DAY, 3600)
    growth = 1.0 + np.arange(len(time)) / 1000.0
    line = AccountLine("account", "account", time, growth, 5.0)
    assert line.over(1) == pytest.approx(growth[-1] / growth[-25] - 1.0, rel=1e-12)
    assert line.over(7) == pytest.approx(growth[-1] / growth[-1 - 7 * 24] - 1.0, rel=1e-12)
    assert line.over(None) == pytest.approx(growth[-1] / growth[0] - 1.0, rel=1e-12)
    assert line.over(30) is None
    empty = AccountLine("account", "account", time[:0], growth[:0], 0.0)
    assert (empty.over(1), empty.over(None)) == (None, None)
    lost = dataclasses.replace(line, growth=np.zeros(len(time)))
    assert lost.over(1) is None


def test_the_limit_of_the_disk_is_told_two_weeks_ahead() -> None:
    def with_growth(used: float, per_night: float | None) -> NightFacts:
        disk = DiskFact({"studies": int(used)}, 10**12, 100.0, per_night)
        return dataclasses.replace(quiet(), disk=disk)

    assert [one.what for one in needs(with_growth(87.0, 1.0))] == [
        "the studies reach [disk] gb in about 13 nights"
    ]
    for used, per_night in ((85.0, 1.0), (99.0, 0.0), (99.0, -1.0), (99.0, None)):
        assert needs(with_growth(used, per_night)) == []
    assert with_growth(120.0, 1.0).disk.nights_left == 0.0  # type: ignore[union-attr]


def test_a_seat_that_lost_everything_and_one_without_days_can_be_drawn_and_told() -> None:
    facts = eventful()
    gone = dataclasses.replace(
        facts.seats[0], log_e=np.array([0.1, -math.inf]), day=np.array([0, DAY])
    )
    new = facts.seats[2]
    assert to_png(draw(facts.accounts, [gone]))
    assert to_png(draw([], [gone]))
    assert to_png(draw(facts.accounts[:1], []))
    text = to_markdown(night_report(dataclasses.replace(facts, seats=(gone, new))))
    assert "| 0 | 80.00 |" in text
    assert "| 1.00 | 480.00 | – |" in text


def test_a_swap_of_the_night_is_the_headline_and_earlier_events_are_not_told() -> None:
    report = night_report(eventful())
    assert report.headline.endswith("a new champion")
    text = to_markdown(report)
    assert "an earlier night" not in text
    assert "not told" not in text


class _Service:
    """Stands for apprise's object of an address. kind: its own format."""

    attachment_support = True

    def __init__(self, kind: str, *, fails: bool = False) -> None:
        self.notify_format, self.fails = kind, fails
        self.sent: list[dict[str, Any]] = []

    def notify(self, **given: Any) -> bool:
        self.sent.append(given)
        if self.fails:
            raise OSError("refused by discord://SECRET")
        return True


def test_mail_gets_the_page_chats_the_markdown_and_both_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = {"a": _Service("html"), "b": _Service("markdown"), "c": _Service("text", fails=True)}
    services["b"].attachment_support = False
    monkeypatch.setattr(
        "sweepd.deploy.trading.live.notify._service", lambda address, _: services[address[0]]
    )
    said: list[str] = []
    environ = {
        "SWEEPD_NOTIFY": "a://x,b://x,c://x",
        "SWEEPD_DASHBOARD_URL": "http://127.0.0.1:8080",
    }
    sender = Notifier.from_environment(environ, said.append)
    written = delivery.write_report(eventful(), tmp_path)
    delivery.send(sender, eventful(), written)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".md", ".png"]
    [mail], [chat] = services["a"].sent, services["b"].sent
    assert mail["body"] == written.html.read_text()
    assert (mail["body_format"], mail["attach"]) == ("html", [str(written.png)])
    assert chat["body"].startswith(written.markdown.read_text())
    assert chat["body"].endswith(f"http://127.0.0.1:8080/night?slot={SLOT}")
    assert "body_format" not in chat
    assert "attach" not in chat
    assert mail["title"] == chat["title"] == "Night 20261128 of crypto-1h: a new champion"
    assert len(said) == 1  # of the address that fails
    assert "SECRET" not in said[0]
