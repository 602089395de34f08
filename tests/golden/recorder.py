"""Runs commands in the folder of a case, and compares what they leave with the golden files."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import math
import multiprocessing
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial
from sqlalchemy.pool import NullPool

from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.objectives.trial_files import trial_files
from sweepd.optimize.study.record.database import open_to_read
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.worker import telemetry
from tests.entry_point import answer, enter, run_sweepd
from tests.golden.contents import contents, indented, listing, page
from tests.golden.normaliser import Normaliser

FILES = Path(__file__).with_name("files")
MOST_LINES = 60  # of the difference of one file
TOKEN = "golden-dashboard-token"


class Recorder:
    """The texts of one case.

    Args:
        case: its name, which is that of its folder of golden files.
        folder: an empty folder, in which the commands run.
    """

    def __init__(self, case: str, folder: Path) -> None:
        self._case, self.folder = case, folder
        self._texts: dict[str, str] = {}
        self._normalise = Normaliser(folder)
        self._output = folder.with_name("output.txt")

    def run(self, name: str, *words: object, code: int = 0) -> str:
        """Run a command, keep what it prints as `name`, and return it."""
        with pytest.MonkeyPatch.context() as patch:
            # Trials are compared by their training time: let it depend on the work alone.
            patch.setattr(time, "monotonic", _ticking())
            patch.setattr(time, "perf_counter", _ticking())
            # What a worker does after a time must not add looks at it while a trial trains.
            patch.setattr(telemetry, "FIGURES_EVERY", 0.0)
            patch.setattr(telemetry, "LOG_EVERY", math.inf)
            # On a busy machine, rollouts would be long enough for checkpoints within a rung.
            patch.setattr(CheckpointPace, "due", lambda _: False)
            said = run_sweepd([str(word) for word in words], self._output, code)
        self.keep(name, said)
        return said

    def answers(self, name: str, commands: Sequence[str]) -> None:
        """Run commands, and keep their exit codes and what they print as one golden file."""
        said = []
        for command in commands:
            code, text = answer(command.split(), self._output)
            said.append(f"$ sweepd {command}\n{text}exit code {code}\n")
        self.keep(name, "\n".join(said))

    def keep(self, name: str, text: str) -> None:
        """Keep a text as the golden file `name`."""
        assert name not in self._texts, name
        self._name_ids()
        self._texts[name] = self._normalise(text)

    def study(self, name: str) -> None:
        """Keep the record of a study, as Optuna reads it."""
        study = self._study(name)
        record = {"study": _parsed(study.user_attrs), "trials": [_trial(t) for t in study.trials]}
        self.keep(f"study-{name}.json", indented(record))

    def run_files(self, study: str) -> None:
        """Draw the pictures of a study's trials, and keep its files."""
        folder = self.run_dir(study)
        storage = open_to_read(f"sqlite:///{folder.parent}/sweepd.db")
        reader = StudyReader(storage, study, folder.parent)
        for trial in reader.judged():
            trial_files(reader, trial.number)
        for engine in (storage.engine, storage.optuna().engine):
            engine.dispose()
        self.keep(f"files-{study}.txt", listing(folder))

    def run_dir(self, study: str) -> Path:
        """Return the folder of a study's files."""
        [folder] = self.folder.glob(f"*/{study}-{'?' * 8}")
        return folder

    def gate(self, study: str) -> str:
        """Return the gate's report on a study."""
        return contents(self.run_dir(study) / "gate" / "gate.html")

    def files(self, *names: str) -> None:
        """Keep files, and folders with all of their files."""
        for name in names:
            path = self.folder / name
            if path.is_dir():
                # Of the picture of a replay, whose title has the random hash of the bundle: nothing.
                self.keep(f"files-{name}.txt", listing(path, without="replay/equity.png"))
            else:
                self.keep(name, contents(path))

    def bundles(self) -> None:
        """Keep the contents of all bundles, and their hashes without random ids."""
        for number, folder in enumerate(self._bundle_folders(), start=1):
            manifest = json.loads((folder / "bundle.json").read_text())
            # As docs/reference/bundle.md defines it.
            whole, text = manifest.pop("hash"), _canonical(manifest)
            assert whole == _sha(text)
            stable = f"hash without random ids: {_sha(self._normalise(text))}\n"
            self.keep(f"bundle-{number}.txt", stable + listing(folder))

    def pages(self, paths: Mapping[str, str]) -> None:
        """Keep pages of the dashboard, which the command serves, by name."""
        with self._dashboard() as address:
            for name, path in paths.items():
                asked = urllib.request.Request(address + path)
                asked.add_header("Authorization", f"token {TOKEN}")
                with urllib.request.urlopen(asked, timeout=120) as answer:
                    self._name_ids()
                    self.keep(name, page(self._normalise(answer.read().decode())))

    def compare(self, *, renew: bool) -> None:
        """Compare all texts with the golden files of the case; fail with the differences.

        Args:
            renew: write the golden files instead.
        """
        folder = FILES / self._case
        if renew:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                path.unlink()
            for name, text in self._texts.items():
                (folder / name).write_text(text)
            return
        golden = {path.name: path.read_text() for path in folder.iterdir()}
        wrong = [
            name
            for name in sorted(golden | self._texts)
            if golden.get(name) != self._texts.get(name)
        ]
        if wrong:
            shown = "\n".join(
                _difference(f"{self._case}/{name}", golden.get(name), self._texts.get(name))
                for name in wrong
            )
            pytest.fail(
                f"{len(wrong)} of {len(golden)} golden files differ:\n{shown}", pytrace=False
            )

    def _name_ids(self) -> None:
        """Name the random ids of studies, and the hashes of bundles, which contain them."""
        if (self.folder / "runs" / "sweepd.db").exists():
            for study in optuna.get_all_study_summaries(self._storage):
                uid = study.user_attrs["sweepd:uid"]
                self._normalise.name(uid, f"<id of {study.study_name}>")
                self._normalise.name(uid[:8], "<short id>")
        for folder in self.folder.glob(f"run/run-*-{'?' * 8}"):  # of `sweepd run`
            self._normalise.name(folder.name[-8:], "<short id>")
        for number, folder in enumerate(self._bundle_folders(), start=1):
            whole = json.loads((folder / "bundle.json").read_text())["hash"]
            self._normalise.name(whole, f"<hash of bundle {number}>")
            self._normalise.name(whole[:16], f"<bundle {number}>".ljust(16))

    @functools.cached_property  # opening it takes longer than reading
    def _storage(self) -> RDBStorage:
        # Without connections that stay open when a process is forked.
        url = f"sqlite:///{self.folder}/runs/sweepd.db"
        return RDBStorage(url, engine_kwargs={"poolclass": NullPool})

    def _study(self, name: str) -> optuna.Study:
        return optuna.load_study(study_name=name, storage=self._storage)

    def _bundle_folders(self) -> list[Path]:
        """Return the folders of bundles in the order in which they were made."""
        manifests = self.folder.glob("deployments/bundles/*/bundle.json")
        return [path.parent for path in sorted(manifests, key=lambda path: path.stat().st_mtime_ns)]

    @contextmanager
    def _dashboard(self) -> Iterator[str]:
        """Serve the dashboard in a forked process. Yields its address."""
        output = self.folder.with_name("dashboard.txt")
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(output,))
        process.start()
        try:
            until = time.monotonic() + 120.0
            while not (
                found := re.search(
                    r"http://[\d.:]+\d", output.read_text() if output.exists() else ""
                )
            ):
                assert process.is_alive(), output.read_text()
                assert time.monotonic() < until, "the dashboard did not start"
                time.sleep(0.02)
            yield found[0]
        finally:
            process.terminate()
            process.join(120)
            assert process.exitcode == 0, output.read_text()


def _ticking() -> Callable[[], float]:
    """Return a stopwatch that advances by 10 ms with every look of the main thread."""
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += threading.current_thread() is threading.main_thread()
        return 0.01 * looks

    return look


def _serve(output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["SWEEPD_DASHBOARD_TOKEN"] = TOKEN
    enter(["dashboard", "--port", "0"])


def _parsed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes, those that are JSON as data."""
    found = {}
    for name, value in attributes.items():
        try:
            found[name] = (
                json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value
            )
        except ValueError:
            found[name] = value
    return found


def _trial(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name,
        "values": trial.values,
        "params": trial.params,
        "distributions": {name: repr(one) for name, one in trial.distributions.items()},
        "rungs": {str(rung): value for rung, value in trial.intermediate_values.items()},
        "user_attrs": _parsed(trial.user_attrs),
        "system_attrs": _artifacts_sorted(_parsed(trial.system_attrs)),
    }


def _artifacts_sorted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with a list of the artifacts, whose names are random."""
    ours = {name: value for name, value in attributes.items() if name.startswith("artifacts:")}
    others = {name: value for name, value in attributes.items() if name not in ours}
    return others | {"artifacts": sorted(ours.values(), key=lambda artifact: artifact["filename"])}


def _canonical(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=True) + "\n"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _difference(name: str, golden: str | None, found: str | None) -> str:
    """Return a readable difference of two texts; None: there is no such file."""
    if golden is None or found is None:
        return f"--- {name}: {'no such golden file' if golden is None else 'was not written'}"
    lines = list(
        difflib.unified_diff(
            golden.splitlines(),
            found.splitlines(),
            f"golden {name}",
            f"found {name}",
            "",
            "",
            1,
            "",
        )
    )
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"… {more} more lines"] if more > 0 else [])])
