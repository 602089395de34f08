"""Reports as documents: one self-contained HTML page, and a PDF of A4 pages."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import NOT_EVALUATED
from sweepd.deploy.promotion.sections import (
    Cell,
    Findings,
    Report,
    ReportTable,
    ReportTerms,
    Styled,
    limit,
    number,
    verdict,
)
from sweepd.envs.support.files import write_atomic

# Each has a contrast of at least 4.5 on white (WCAG AA).
COLOURS: Mapping[str, str] = {
    "pass": "#1e7a45",
    "fail": "#b03024",
    "defer": "#8f5a06",
    NOT_EVALUATED: "#666666",
    "told": "#666666",
    "loosened": "#8f5a06",
    "own": "#1f5fa8",
}
GREY = "#666666"
WIDTH, HEIGHT = 8.27, 11.69  # of A4, inches
LEFT, RIGHT, TOP, BOTTOM = 0.07, 0.93, 0.955, 0.06  # of the text, as shares of a page
LINE = 1.4 / 72.0 / HEIGHT  # height of a line of text, per point of its size
LETTER = 0.53 / 72.0 / WIDTH  # width of a letter of text, about
WIDE = 0.66 / 72.0 / WIDTH  # of a bold letter, or a digit
MARGIN = 0.4  # of the picture, inches


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write `gate.html` and `gate.pdf`; nothing if nothing was judged.

    Returns:
        Paths of the written files.
    """
    if report.picture is None:
        return []
    paths = [folder / "gate.html", folder / "gate.pdf"]
    picture = report.picture.draw()
    write_atomic(paths[0], to_html(report, to_png(picture)))
    write_atomic(paths[1], lambda path: write_pdf(path, report, picture))
    return paths


def to_png(picture: Figure) -> bytes:
    """The picture as it is in `to_html`."""
    png = io.BytesIO()
    picture.savefig(png, format="png", dpi=110)
    return png.getvalue()


def to_html(report: Report, png: bytes | None) -> str:
    """The report as one self-contained page. png: its picture, None without one."""
    pages = Environment(
        loader=PackageLoader("sweepd.deploy.promotion"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return pages.get_template("report.html").render(
        report=report,
        png=None if png is None else base64.b64encode(png).decode(),
        colours=COLOURS,
        number=number,
        limit=limit,
        verdict=verdict,
    )


def write_pdf(path: Path, report: Report, picture: Figure) -> None:
    """Write the report as A4 pages: outcome and sections, the picture, and how to read them."""
    metadata = {"Title": f"sweepd gate: {report.title}", "CreationDate": None}
    with PdfPages(path, metadata=metadata) as pages:
        text = _TextPages(pages, report.footer)
        text.put(report.headline, 16, gap=0.012, weight="bold")
        text.terms(report.verdict)
        text.steps(report.steps)
        for line in report.lines:
            text.put(line, 8.5)
        for section in report.sections:
            rows = len(section.rows) if isinstance(section, ReportTable) else 8
            text.heading(section.title, rows)
            if isinstance(section, Findings):
                text.findings(section)
            elif isinstance(section, ReportTable):
                text.table(section)
            else:
                text.terms(section)
        text.end()
        scale = (WIDTH - 2.0 * MARGIN) / picture.get_figwidth()
        picture.set_size_inches(scale * picture.get_figwidth(), scale * picture.get_figheight())
        bottom = picture.get_figheight() + MARGIN - HEIGHT  # of its page, from that of the picture
        pages.savefig(picture, bbox_inches=Bbox.from_bounds(-MARGIN, bottom, WIDTH, HEIGHT))
        text.heading(report.reading.title, 8)
        text.terms(report.reading)
        text.end()


class _TextPages:
    """A4 pages of text: each block is wrapped and placed below the previous one."""

    def __init__(self, pages: PdfPages, footer: str) -> None:
        self.pages, self.footer = pages, footer
        self.page: Figure | None = None
        self.at = TOP

    def end(self) -> None:
        """End the page; the next block begins a new one."""
        if self.page is not None:
            self.pages.savefig(self.page)  # type: ignore[no-untyped-call]
        self.page, self.at = None, TOP

    def write(
        self, text: str, size: float, x: float = LEFT, align: str = "left", **style: Any
    ) -> None:
        """Write a line at the present height."""
        if self.page is None:
            self.page = Figure(figsize=(WIDTH, HEIGHT))
            FigureCanvasAgg(self.page)
            self.page.text(LEFT, 0.03, self.footer, fontsize=7, color=GREY)
        # Text between two dollar signs would be read as a formula.
        options: Any = {"fontsize": size, "va": "top", "ha": align, "parse_math": False, **style}
        self.page.text(x, self.at, text, **options)

    def line(self, size: float) -> None:
        """Begin a new line."""
        self.at -= size * LINE

    def keep(self, height: float) -> None:
        """Begin a new page if the rest of the present one is less than this share of a page."""
        if self.at - height < BOTTOM:
            self.end()

    def put(self, text: str, size: float, gap: float = 0.006, **style: Any) -> None:
        """Write a paragraph. gap: below it, as a share of the page."""
        wide = style.get("weight") == "bold" or style.get("family") == "monospace"
        letter = WIDE if wide else LETTER
        for line in textwrap.wrap(text, int((RIGHT - LEFT) / (size * letter))):
            self.keep(size * LINE)
            self.write(line, size, **style)
            self.line(size)
        self.at -= gap

    def heading(self, text: str, rows: int) -> None:
        """Write the title of a section, with room for some rows below it."""
        self.keep(min(0.5, (rows + 4) * 8 * LINE))
        self.at -= 0.006
        self.put(text, 10, gap=0.004, weight="bold")

    def findings(self, section: Findings) -> None:
        """Write every rule with its verdict and explanation."""
        for finding in section.findings:
            self.keep(6 * 9 * LINE)
            self.cell(verdict(finding), 9, RIGHT, "right")
            self.put(
                f"{finding.name}: {number(finding)} ({limit(finding)})", 9, 0.001, weight="bold"
            )
            if finding.meaning:
                self.put(finding.meaning, 8, 0.001, color=GREY)
            self.put(finding.explanation, 8, 0.008)
        self.caption(section.caption)

    def table(self, section: ReportTable) -> None:
        """Write a table, in letters that are small enough for its width."""
        rows = [section.head, *section.rows]
        widths = [2 + max(map(len, map(_text, column))) for column in zip(*rows, strict=True)]
        size = min(8.0, (RIGHT - LEFT) / (sum(widths) * WIDE))
        for row in rows:
            self.keep(size * LINE)
            x = LEFT
            for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
                head = {"color": GREY} if row is section.head else {}
                if index in section.texts:
                    self.cell(cell, size, x, "left", **head)
                x += width * size * WIDE
                if index not in section.texts:
                    self.cell(cell, size, x - 2 * size * WIDE, "right", **head)
            self.line(size)
        self.at -= 0.004
        self.caption(section.caption)

    def terms(self, section: ReportTerms) -> None:
        """Write every term and its text."""
        for term, text in section.terms:
            self.keep(4 * 9 * LINE)
            self.put(term, 9, 0.001, weight="bold")
            self.put(_text(text), 8, 0.008)

    def steps(self, steps: Sequence[Step]) -> None:
        """Write the commands that lead on, each below its purpose."""
        for step in steps:
            self.keep(3 * 9 * LINE)
            self.put(step.purpose, 8, 0.001, color=GREY)
            self.put(step.command, 8, 0.006, family="monospace")

    def caption(self, text: str) -> None:
        """Write a remark below a section."""
        self.put(text, 8, color=GREY)

    def cell(self, cell: Cell, size: float, x: float, align: str, **style: Any) -> None:
        """Write text in its style at the present height."""
        own = {"color": COLOURS[cell.style]} if isinstance(cell, Styled) else {}
        self.write(_text(cell), size, x, align, **(own | style))


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell
