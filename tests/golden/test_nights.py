"""Reports of a quiet, an eventful and a broken night, as golden texts in three formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweepd.deploy.night.report import night_report
from sweepd.deploy.promotion.documents import to_html
from sweepd.deploy.promotion.markdown import to_markdown
from sweepd.deploy.promotion.sections import Report
from sweepd.deploy.promotion.terminal import print_steps, report_view
from sweepd.envs.support.terminal import Terminal
from tests.deploy.night.nights import NIGHTS

FILES = Path(__file__).with_name("files") / "nights"


def terminal_text(report: Report) -> str:
    console = Terminal(width=120, color_system=None)
    with console.capture() as captured:
        console.print(report_view(report))
        print_steps(console, report.steps)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


@pytest.mark.parametrize("name", NIGHTS)
def test_the_reports_of_nights(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweepd.deploy.night.report.program", lambda: "sweepd")
    report = night_report(NIGHTS[name]())
    png = None if report.picture is None else b"its picture"
    texts = {"txt": terminal_text(report), "md": to_markdown(report), "html": to_html(report, png)}
    for ending, text in texts.items():
        golden = FILES / f"{name}.{ending}"
        if request.config.getoption("--renew-golden"):
            FILES.mkdir(exist_ok=True)
            golden.write_text(text)
        assert text.splitlines() == golden.read_text().splitlines()
