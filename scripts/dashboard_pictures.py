"""Take the pictures of the dashboard in the documentation: `python -m scripts.dashboard_pictures FOLDER`.

Needs Chromium. FOLDER has three folders, in which these commands were run:

* demo: `sweepd train --demo`
* games: `sweepd train --env cartpole --study-name cartpole --n-trials 24 --seeds 3 --budget 20_000`,
  and another study of CartPole, named `short`
* market: `sweepd train --study-name coins …` on real hourly bars, during which its picture shows it
  at work

The slots of the page of alerts are those of the tests.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.deploy.dashboard.browser import Browser
from tests.deploy.dashboard.synthetic import fill

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
PORT = 8099
COLOURS = 96  # of a picture, so that its file is small
WIDE, PHONE = 1280, 390  # pixels


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    height: pixels from its top; None for all of it.
    """

    name: str
    page: str
    height: int | None = None
    width: int = WIDE
    dark: bool = False


PICTURES = {
    "demo": (
        Picture("dashboard_paper", "/", 1440),
        Picture("dashboard_chart", "/chart?slot=demo-1h&days=30&indicator=rsi_14,dx_14", 1125),
        Picture("dashboard_trades", "/trades?slot=demo-1h", 900, dark=True),
        Picture("dashboard_phone", "/days?slot=demo-1h", 1100, PHONE, dark=True),
        Picture("study_trials", "/training/trials?study=demo", 1900),
    ),
    "games": (
        Picture("study_parameters", "/training/parameters?study=cartpole", 1900),
        Picture("study_phone", "/training/parameters?study=cartpole", 1500, PHONE, dark=True),
        Picture("study_compare", "/training/compare?study=cartpole&with=short", 1250),
    ),
    "market": (Picture("dashboard_training", "/training?study=coins"),),
    "alerts": (Picture("dashboard_alerts", "/alerts", 745),),
}


@contextlib.contextmanager
def dashboard(folder: Path) -> Iterator[str]:
    """Run `sweepd dashboard` in a folder, and give its address with the token."""
    words = [str(Path(sys.executable).with_name("sweepd")), "dashboard", f"--port={PORT}"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3]
    finally:
        process.terminate()
        process.wait()


def take(browser: Browser, address: str, pictures: Sequence[Picture]) -> None:
    """Write pictures of a dashboard's pages. address: with the token, which a first visit leaves behind."""
    browser.open(address)
    address = address.partition("/?")[0]
    for one in pictures:
        browser.open(address + one.page, width=one.width, dark=one.dark)
        while "Computing." in browser.evaluate("document.body.textContent"):
            browser.settle()  # the page updates itself
        file = IMAGES / f"{one.name}.png"
        with Image.open(io.BytesIO(browser.picture(height=one.height))) as picture:
            picture.convert("RGB").quantize(COLOURS).save(file, optimize=True)
        print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Take the pictures of the folders that exist."""
    folder = Path(sys.argv[1]).resolve()
    with Browser() as browser, tempfile.TemporaryDirectory() as made:
        for name, pictures in PICTURES.items():
            place = folder / name
            if name == "alerts":
                place = Path(made)
                fill(place / "deployments")
                (place / "runs").symlink_to(folder / "games/runs")
            if place.is_dir():
                with dashboard(place) as address:
                    take(browser, address, pictures)


if __name__ == "__main__":
    main()
