"""The page with a gate's findings."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from matplotlib.figure import Figure

from sweepd.deploy.promotion.findings import COLOURS, findings_page
from sweepd.deploy.promotion.rules import NOT_EVALUATED, RuleFinding

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


def _page(text: str) -> str:
    findings = [
        RuleFinding(text, "hold-out", 1.5, "≥", 1.0, "pass", text, "--f", text, 2.0, True),
        RuleFinding(
            "b", "hold-out", None, "<", 1.0, NOT_EVALUATED, "an earlier rule failed", "--g"
        ),
    ]
    return findings_page(
        title=text,
        headline=text,
        opening=[text],
        findings=findings,
        picture=Figure(figsize=(1, 1)),
        described=text,
        reading=[(text, text)],
        footer=text,
    )


def test_every_text_is_escaped() -> None:
    seen = _Read(_page(MARKUP))
    assert seen.tags == _Read(_page("plain")).tags
    assert "script" not in seen.tags
    assert seen.alternative == [MARKUP]
    # Title (with two), headline, summary, rule, meaning, explanation, term, its text, footer.
    assert "".join(seen.text).count(MARKUP) == 10


def test_values_limits_and_verdicts_are_in_the_row_of_their_rule() -> None:
    first, second = re.findall(r"<tr><td>.*?</tr>", _page("rule"), re.DOTALL)
    assert re.findall(r'class="number">([^<]*)<', first) == ["1.5", "≥ 1 (default 2)"]
    assert f'style="color:{COLOURS["defer"]}">pass, loosened<' in first
    assert re.findall(r'class="number">([^<]*)<', second) == ["–", "&lt; 1"]
    assert f'style="color:{COLOURS[NOT_EVALUATED]}">{NOT_EVALUATED}<' in second
