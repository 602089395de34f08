"""The page of one trial, and its video."""

from __future__ import annotations

import html
import io
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from PIL import Image

pytest.importorskip("plotly")
from typer.testing import CliRunner
from werkzeug.test import Client

from sweepd.commands import build_app
from sweepd.deploy.dashboard import videos
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.study_commands import trial_commands
from sweepd.deploy.dashboard.study_figures import member_figure
from sweepd.deploy.dashboard.videos import Videos
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.study.insight.curves import member_curves
from sweepd.optimize.study.record.keys import rung_key
from tests.deploy.dashboard.browser import AXE_VARIABLE, CHROMIUM, Browser, axe_file, served
from tests.deploy.dashboard.studies import STATES, filled_study, game_spec
from tests.deploy.dashboard.test_web import Checked, figures, get
from tests.deploy.games.players import GOOD, WEAK, study_of
from tests.optimize.study.test_insight import row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only: all tests share it."""
    made = tmp_path_factory.mktemp("trials")
    handle = filled_study(made, 6, "s", states=(*STATES, TrialState.RUNNING, TrialState.WAITING))
    twin, first = handle.trials()[0], handle.trials()[0]
    changed = {**first.user_attrs, rung_key(1): [1.0, 2.0, 3.0]}
    twin.user_attrs = changed
    handle.study.add_trial(twin)
    return made


def watch_of(folder: Path) -> StudyWatch:
    """The only study of a folder that holds its files and its database."""
    return StudyWatch(None, str(folder / "studies.db"), None)


def client(folder: Path, search: StudyWatch | None = None) -> Client:
    search = search or StudyWatch(None, str(folder / "sweepd.db"), folder)
    return Client(Dashboard(PaperSource(RegistryFlags(folder / "deployments")), search))


def test_the_page_of_a_trial(folder: Path) -> None:
    answer = get(client(folder), "/training/trial?study=s&trial=0")
    page, text = Checked(answer.text), html.unescape(answer.text)
    assert {"head", "curves-text", "mean", "parameters", "next"} <= set(page.ids)
    lines = figures(answer)["curves"]["data"]
    assert len(lines) == 2 * 3 + 1, "three seeds of two trials, and the mean"
    assert [line["name"] for line in lines][-2:] == ["trial 6, seed 2", "mean"]
    assert "Trials 0, 6 have the same parameters." in text
    assert "3 of 3" in text
    assert "learning_rate" in text
    assert "0.0001 … 0.003, log" in text
    assert "try these parameters again in this study" in text
    assert "/dashboard/studies/1/trials?numbers=0" in text
    assert "Best game" not in text, "no weights are recorded"
    trials = get(client(folder), "/training/trials?study=s").text
    assert (
        "/training/trial?study=s&amp;trial=0" in trials
        or "/training/trial?study=s&trial=0" in trials
    )


@pytest.mark.parametrize(
    ("number", "says"),
    [(2, "worse than its peers"), (3, ">failed<"), (4, ">running<"), (5, ">waiting<")],
)
def test_pages_of_unfinished_and_failed_trials(folder: Path, number: int, says: str) -> None:
    answer = get(client(folder), f"/training/trial?study=s&trial={number}")
    assert answer.status_code == 200
    assert Checked(answer.text)
    assert says in answer.text


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("study=s&trial=99", 404),
        ("study=none&trial=0", 404),
        ("study=s", 400),
        ("study=s&trial=x", 400),
        ("study=s&trial=1,2", 400),
    ],
)
def test_wrong_addresses(folder: Path, query: str, code: int) -> None:
    assert get(client(folder), f"/training/trial?{query}").status_code == code


def test_the_commands_run_as_printed(folder: Path) -> None:
    study = StudyWatch(None, str(folder / "sweepd.db"), folder).reader("s")
    commands = trial_commands(study, 0, {"clip": 0.2, "activation": "a b"}, playable=True)
    words = [shlex.split(command) for command, _ in commands]
    assert [one[1] for one in words] == ["enqueue", "run", "play"]
    assert words[0][2:5] == ["s", "clip=0.2", "activation=a b"]
    assert all(one[one.index("--storage") + 1] == study.storage.url for one in words)
    taken = [one[one.index("--trial") + 1] for one in words[1:]]
    assert taken == ["s#0", "s#0"]


def test_scores_that_are_not_finite_leave_gaps() -> None:
    found = member_curves(
        [row(1, 1.0)], {1: {1: [1.0, float("nan")], 2: [3.0, 5.0]}}, game_spec(seeds=2)
    )
    first, second = found["lines"]
    assert [point["rung"] for point in first["points"]] == [1, 2]
    assert [point["rung"] for point in second["points"]] == [2]
    assert [(point["value"], point["members"]) for point in found["mean"]] == [(1.0, 1), (4.0, 2)]
    figure = member_figure(found, "return", "seed")
    assert [line["name"] for line in figure["data"]] == ["seed 0", "seed 1", "mean"]
    assert figure["data"][-1]["line"]["width"] > figure["data"][0]["line"]["width"]


class Process:
    """`sweepd play` in this process. words: of all that were started."""

    words: list[list[str]] = []  # noqa: RUF012 -- of the class

    def __init__(self, words: list[str], *, env: dict[str, str], **_: Any) -> None:
        assert words[1:4] == ["-m", "sweepd", "play"]
        assert not any("sqlite" in word for word in words), "the URL is not an argument"
        self.words.append(words)
        self.pid = 0  # of no process
        own = {name: env[name] for name in ("SWEEPD_STORAGE",)}
        done = CliRunner().invoke(build_app(), words[3:], env=own)
        wrong = isinstance(done.exception, InputError)
        self.returncode = 2 if wrong else done.exit_code
        self._said = f"error: {done.exception}\n" if wrong else ""

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        assert timeout
        return None, self._said


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    study_of(tmp_path, [GOOD, WEAK], [WEAK], space=game_spec().space)
    monkeypatch.setattr(videos.subprocess, "Popen", Process)
    monkeypatch.setattr(Process, "words", [])
    return tmp_path


def test_a_video_is_drawn_once_and_kept(played: Path) -> None:
    asked = client(played, watch_of(played))
    name = watch_of(played).studies()[0]
    page = f"/training/trial?study={name}&trial=1"
    video = f"/training/video?study={name}&trial=1"
    assert "Draw a video of its best game" in get(asked, page).text
    assert "<img" not in get(asked, page).text
    assert not Process.words, "nothing is drawn unless someone asks"
    assert f'<img class="video" src="{video}"' in html.unescape(get(asked, page + "&video=1").text)
    answer = get(asked, video)
    assert (answer.status_code, answer.mimetype) == (200, "image/gif")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    with Image.open(io.BytesIO(answer.data)) as picture:
        assert getattr(picture, "n_frames", 1) > 3
    assert get(asked, video).data == answer.data
    assert len(Process.words) == 1
    assert "<img" in get(asked, page).text, "it is shown from now on"


def test_videos_are_refused_in_a_sentence(played: Path) -> None:
    asked = client(played, watch_of(played))
    name = watch_of(played).studies()[0]
    video = f"/training/video?study={name}&trial="
    headers = {"Host": "127.0.0.1:8080", "Sec-Fetch-Site": "cross-site"}
    assert asked.get(video + "1", headers=headers).status_code == 403
    assert get(asked, video + "9").status_code == 404
    assert get(asked, "/training/video?study=none&trial=1").status_code == 404
    (played / "trial-00000" / "members.safetensors").write_bytes(b"changed")
    answer = get(asked, video + "0")
    assert answer.status_code == 503
    assert "not the bytes that were scored" in answer.text


def test_one_video_at_a_time(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = watch_of(played)
    reader, shared = study.reader(study.studies()[0]), Videos()
    begun, finish = threading.Event(), threading.Event()

    def play(_study: Any, _trial: int, path: Path) -> None:
        begun.set()
        finish.wait(10)
        path.write_bytes(b"GIF")

    monkeypatch.setattr(videos, "_play", play)
    drawing = threading.Thread(target=shared.draw, args=(reader, 0))
    drawing.start()
    begun.wait(10)
    with pytest.raises(RunError, match="another video is being drawn"):
        shared.draw(reader, 1)
    finish.set()
    drawing.join()
    assert shared.draw(reader, 0) == b"GIF"


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(client(folder).application) as found:
        yield found


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize(
    ("width", "dark"), [(390, False), (390, True), (1280, False), (1280, True)]
)
def test_the_page_fits_the_window_and_is_accessible(
    browser: Browser, address: str, width: int, dark: bool
) -> None:
    page = f"{address}/training/trial?study=s&trial=0"
    assert browser.open(page, width=width, dark=dark) == []
    assert not browser.scrolls_sideways()
    axe = axe_file()
    if axe is None:
        pytest.skip(f"{AXE_VARIABLE} does not name axe-core's axe.min.js (npm pack axe-core)")
    assert browser.violations(axe) == []
