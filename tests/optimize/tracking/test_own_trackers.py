"""Trackers of other packages: shown to, recorded, refused in one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweepd.envs.support.errors import InputError
from sweepd.optimize.tracking.tracker import RECORD, Tracking, check_trackers
from tests.distributions import install
from tests.entry_point import run_sweepd

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KIT = "tracker_kit"
MORE = """
class Deaf:
    def close(self): ...

def later():
    return LinesRuns(".")
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that has the tracker of the examples."""
    text = (EXAMPLES / "own_tracker.py").read_text() + MORE
    points = {"sweepd.tracker": {"lines": f"{KIT}:LinesRuns", "mlflow": f"{KIT}:LinesRuns"}}
    install(tmp_path / "site", "tracker-kit", {f"{KIT}.py": text}, points)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))  # of the sender's process
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    yield tmp_path / "site"
    sys.modules.pop(KIT, None)


def test_a_tracker_of_another_package_is_told_everything(tmp_path: Path) -> None:
    words = "train --env cartpole --study-name s --n-trials 2 --budget 1024 --rungs 2 --n-envs 8"
    words += " --seeds 1 --sampler random --pruner none --fresh-seeds 0 --threads 1 --gpu cpu"
    words += " --no-auto-deploy --episodes 8"
    given = ["--track", "lines", "--track", f'{KIT}:LinesRuns {{"name": "more"}}']
    output = run_sweepd([*words.split(), *given], tmp_path / "out")
    assert "tracking with" not in output  # nothing failed
    [study] = (tmp_path / "runs").glob("s-*")
    for name in ("lines", "more"):
        files = sorted((study / name).glob("*.jsonl"))
        assert len(files) == 2
        for path in files:
            first, *points, last = [json.loads(line) for line in path.read_text().splitlines()]
            assert "clip" in first["params"]
            assert [point["step"] for point in points] == [512, 1024]
            assert last["state"] == "COMPLETE"
    recorded = json.loads((study / "tracking" / "lines" / RECORD).read_text())
    assert (recorded["module"], recorded["package"]) == (KIT, "tracker-kit")
    assert recorded["version"] == "1.2.3"
    folders = {path.name for path in (study / "tracking").iterdir()}
    assert len(folders) == 2
    assert any(name.startswith(f"{KIT}-LinesRuns-") for name in folders)


def test_a_change_is_said(site: Path, tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with Tracking(["lines"], tmp_path, said.append):
            pass
    assert said == []
    with (site / f"{KIT}.py").open("a") as file:
        file.write("# changed\n")
    with Tracking(["lines"], tmp_path, said.append):
        pass
    assert said == [
        "note: --track lines has changed since a worker of this study used it: it may decide "
        "differently from now on"
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "--track 'nobody' is not known; choose one of mlflow, wandb, or name a class"),
        (f"{KIT}:Nobody", "has nothing called 'Nobody'"),
        ("no_such_kit:Runs", "No module named 'no_such_kit'"),
        (f"{KIT}:Deaf", r"is not a tracker, a class with send\(picture, sent\) and close"),
        (f"{KIT}:later", r"is not a tracker, a class with send\(picture, sent\) and close"),
        ('lines {"no": 1}', "got an unexpected keyword argument 'no'"),
        ("lines {name", "the arguments are not JSON"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        check_trackers([name])
    assert refused.value.exit_code == 2
