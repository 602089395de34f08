"""The documents of a report."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from sweepd.deploy.promotion.documents import COLOURS, to_html, write_pdf, write_report
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import NOT_EVALUATED, RuleFinding
from sweepd.deploy.promotion.sections import (
    Findings,
    Report,
    ReportPicture,
    ReportTable,
    ReportTerms,
    Styled,
)
from sweepd.deploy.promotion.terminal import report_view

MARKUP = "</td><script>alert(1)</script> & \" '"


class _Read(HTMLParser):
    """Collects tags, attributes and text as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.alternative: list[str | None] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.alternative += [value for name, value in attrs if name == "alt"]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _report(text: str, rules: int = 1) -> Report:
    finding = RuleFinding(text, "hold-out", 1.5, "≥", 1.0, "pass", text, "--f", text, 2.0, True)
    findings = [
        *[finding] * rules,
        RuleFinding(
            "b", "hold-out", None, "<", 1.0, NOT_EVALUATED, "an earlier rule failed", "--g"
        ),
    ]
    return Report(
        title=text,
        headline=text,
        style="pass",
        verdict=ReportTerms("", [("why", text)]),
        steps=[Step(text, text)],
        lines=[text],
        sections=[
            Findings(text, findings, text),
            ReportTable(text, (text, text), [[Styled(text, "own"), text]], text),
        ],
        picture=ReportPicture(text, Figure),
        reading=ReportTerms(text, [(text, text)]),
        footer=text,
    )


def _page(text: str) -> str:
    return to_html(_report(text), b"png")


def test_every_text_is_escaped() -> None:
    seen = _Read(_page(MARKUP))
    assert seen.tags == _Read(_page("plain")).tags
    assert "script" not in seen.tags
    assert seen.alternative == [MARKUP]
    # Title (with two), headline, line; reason, purpose and command of a step;
    # title, rule, meaning, explanation and caption of the findings;
    # title, head, row and caption of the table; title, term and its text; footer.
    assert "".join(seen.text).count(MARKUP) == 4 + 3 + 5 + 6 + 3 + 1


def test_values_limits_and_verdicts_are_in_the_row_of_their_rule() -> None:
    first, second = re.findall(
        r"<tr><td><b>rule.*?</tr>|<tr><td><b>b.*?</tr>", _page("rule"), re.DOTALL
    )
    assert re.findall(r'class="number">([^<]*)<', first) == ["1.5", "≥ 1 (default 2)"]
    assert f'style="color:{COLOURS["loosened"]}">pass, loosened<' in first
    assert re.findall(r'class="number">([^<]*)<', second) == ["–", "&lt; 1"]
    assert f'style="color:{COLOURS[NOT_EVALUATED]}">{NOT_EVALUATED}<' in second


def test_a_pdf_has_as_many_pages_as_its_text_needs(tmp_path: Path) -> None:
    for rules, pages in ((1, 3), (40, 5)):  # text, the picture, and how to read it
        path = tmp_path / f"{rules}.pdf"
        write_pdf(path, _report(MARKUP + " $x$ $\\", rules), Figure(figsize=(1, 1)))
        assert path.read_bytes().count(b"/Type /Page ") == pages
    for name, report in (("a", _report("a")), ("b", replace(_report("a"), picture=None))):
        written = write_report(report, tmp_path / name)
        assert [path.name for path in written] == ["gate.html", "gate.pdf"] * (name == "a")


def test_the_terminal_says_what_the_page_says() -> None:
    report = _report("rule")
    console = Console(width=200, file=io.StringIO())
    console.print(report_view(report))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    seen = _Read(_page("rule")).text
    for said in ("1.5", "pass, loosened", NOT_EVALUATED, "an earlier rule failed", "< 1", "–"):
        assert said in text, said
        assert said in seen, said
    assert "RULE" in text  # the headline
