"""The script that tries environments of other packages, on environments without packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.result_tables.wild import wild
from scripts.wild import __main__ as script
from scripts.wild.packages import WILD_ENVS, WildEnv
from scripts.wild.trial import BROKEN, MENDED, MISSING, REFUSED, attempt, mends_of

MODULE = """
import gymnasium
import numpy as np


class Noted(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        note=gymnasium.spaces.Text(9, charset="abc "), n=gymnasium.spaces.Discrete(2)
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return {"note": "ab ba", "n": 0}, {}

    def step(self, action):
        self._count += 1
        return {"note": "ab ba", "n": int(action)}, float(action), self._count > 8, False, {}


class Typed(gymnasium.Env):
    action_space = gymnasium.spaces.Text(3)
    observation_space = gymnasium.spaces.Discrete(2)


def lost():
    raise SystemExit(3)
"""


def tried(env: str, folder: Path, *requirements: str) -> tuple[str, str]:
    found = attempt(WildEnv("own", requirements, env, module=MODULE), folder, 200.0)
    return found.verdict, found.reason


@pytest.mark.extra
def test_a_refusal_that_names_a_wrapper_is_followed(tmp_path: Path) -> None:
    found = attempt(WildEnv("own", (), "made:Noted", module=MODULE), tmp_path, 200.0)
    assert found.verdict == MENDED, found
    assert found.flags[0] == "--wrapper"
    assert found.flags[1].startswith('tokens {"key": "note", "words": ["ab", "ba"]')
    assert "at note" in found.reason
    assert found.steps_per_second > 0


@pytest.mark.extra
def test_refusals_failures_and_missing_packages_are_told_apart(tmp_path: Path) -> None:
    verdict, reason = tried("made:Typed", tmp_path)
    assert (verdict, "action space Text" in reason) == (REFUSED, True)
    assert tried("made:lost", tmp_path)[0] == BROKEN
    verdict, reason = tried("made:Noted", tmp_path, "./no-such-package")
    assert (verdict, "no-such-package" in reason) == (MISSING, True)


def test_flags_are_read_as_the_message_prints_them() -> None:
    said = 'error: x: y; add --wrapper \'select {"keys": ["a", "b"]}\' --wrapper uint8'
    assert mends_of(said) == ["--wrapper", 'select {"keys": ["a", "b"]}', "--wrapper", "uint8"]
    assert mends_of("error: --wrapper uint8: no bounds") == []


def test_every_environment_has_a_name_and_a_row_of_its_own() -> None:
    names = [one.name for one in WILD_ENVS]
    assert len(set(names)) == len(names) >= 20
    rows = [line.split(" | ")[0].removeprefix("| ") for line in wild().splitlines()[2:]]
    listed = [name for name in rows if name in names]
    assert len(listed) >= 20
    assert len(set(listed)) == len(listed)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--only", "nothing"])
    assert "--only nothing: there are Blackjack, MiniGrid" in capsys.readouterr().err


def test_results_of_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wild.json"
    file.write_text(json.dumps({"tried": [{"name": "MiniGrid", "verdict": "trains"}]}))
    monkeypatch.setattr(script, "attempt", lambda own, *_: script.Tried(own.name, own.env, BROKEN))
    code = script.main(["--folder", str(tmp_path), "--save", str(file), "--only", "Blackjack"])
    assert code == 1
    kept = json.loads(file.read_text())["tried"]
    assert [(one["name"], one["verdict"]) for one in kept] == [
        ("Blackjack", BROKEN),
        ("MiniGrid", "trains"),
    ]
