"""Studies of environments that are Python objects: rebuilt everywhere by name, recorded, refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import sweepd
import sweepd.wrappers
from sweepd.agents.native.choice import KERNELS
from sweepd.agents.native.self_test import FEED_FORWARD, IMAGES
from sweepd.envs.external import vec_env
from sweepd.envs.external.layouts import choose_layout
from sweepd.envs.external.objects import environment_name, parameter_texts, wrapper_texts
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.keys import FLAGS_KEY
from tests.envs.external.samples import Counter, Drawn
from tests.test_study_in_python import GAME

ENV = """
import gymnasium
import numpy as np

class Walk(gymnasium.Env):
    def __init__(self, length=3):
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.cell = length, 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return self.see(), {}
    def step(self, action):
        self.cell = max(0, self.cell + (1 if action else -1))
        return self.see(), float(self.cell == self.length), self.cell == self.length, False, {}
    def see(self):
        return np.array([self.cell / self.length], np.float32)

def make_walk(length=3):
    return Walk(length)
"""
SMALL = {name: value for name, value in GAME.items() if name != "env"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    yield tmp_path
    for name in ("walk_env",):
        sys.modules.pop(name, None)


def spec(study: sweepd.Study) -> Any:
    return study._handle.spec


def test_a_class_and_a_function_are_named_recorded_and_joined_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "walk_env.py").write_text(ENV)
    monkeypatch.syspath_prepend(str(folder))
    import walk_env  # type: ignore[import-not-found]

    limits = {"length": 4, "max_episode_steps": 20}
    study = sweepd.create_study("walk", env=walk_env.Walk, env_kwargs=limits, n_trials=1, **SMALL)
    assert (spec(study).environment, spec(study).env) == ("walk_env:Walk", limits)
    assert study.run()
    used = study.optuna.user_attrs[FLAGS_KEY]["plugins"]["environment"]
    assert (used["name"], used["module"]) == ("walk_env:Walk", "walk_env")
    assert len(used["sha256"]) == 64
    # From the command line, by the same name.
    sweepd.create_study("walk", env="walk_env:Walk", env_param=["length=4", "max_episode_steps=20"])
    capsys.readouterr()
    sweepd.create_study("walk", env=walk_env.Walk, env_kwargs=limits)
    assert "has changed" not in capsys.readouterr().out
    with pytest.raises(InputError, match=r"env.length = 4, and now it is 5"):
        sweepd.create_study("walk", env=walk_env.Walk, env_kwargs={"length": 5})
    with pytest.raises(InputError, match='environment = "walk_env:Walk", and now it is "walk_env'):
        sweepd.create_study("walk", env=walk_env.make_walk)
    (folder / "walk_env.py").write_text(f"{ENV}\n# changed\n")
    sweepd.create_study("walk")
    assert "note: --env walk_env:Walk has changed since study walk was created" in (
        capsys.readouterr().out
    )


SCRIPT = """
from pathlib import Path

Path("runs.txt").open("a").write(__name__ + "\\n")
SMALL = dict(budget=512, rungs=1, seeds=1, episodes=2, fresh_seeds=0, n_envs=4, threads=1,
             horizon=64, gpu="cpu", look_steps=16, n_trials=1, slots=2, search_space={"clip": 0.2})
if __name__ == "__main__":  # the imports, too: each worker process would need seconds for them
    import sweepd, torch
    from sweepd.envs.external.objects import environment_name
    from sweepd.envs.external.sharded import Layout
    from sweepd.envs.external.sources import named_env
    from sweepd.envs.external.vec_env import ExternalVecEnv

    study = sweepd.create_study("s", env=Walk, env_kwargs={"length": 4}, **SMALL)
    print("named", study._handle.spec.environment)
    source = named_env(study._handle.spec.environment).source
    env = ExternalVecEnv(source, 1, 2, layout=Layout(0, (1, 1)))  # both in worker processes
    env.reset(0)
    print("stepped", env.step(torch.ones(2, dtype=torch.int64)).obs.flatten().tolist())
    env.close()
    gymnasium.register("Mine-v0", entry_point=Walk, max_episode_steps=20, kwargs={"length": 3})
    gymnasium.register("Bare-v0", entry_point="__main__:make_walk")
    for name in ("gym:Mine-v0", "gym:Bare-v0"):
        print("registered", *environment_name(name, {}))
"""


@pytest.mark.usefixtures("forked_python")
def test_what_a_script_defines_and_registers_is_found_by_other_processes(folder: Path) -> None:
    (folder / "own_script.py").write_text(ENV + SCRIPT)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "../own_script.py"], cwd=elsewhere, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "named own_script:Walk" in done.stdout
    assert "stepped [0.3333" in done.stdout
    limits = {"max_episode_steps": 20, "length": 3}
    assert f"registered own_script:Walk {limits}" in done.stdout
    assert "registered own_script:make_walk {}" in done.stdout
    # Its process runs the script once; at least two workers and two searches for ids import it.
    runs = (elsewhere / "runs.txt").read_text().split()
    assert runs.count("__main__") == 1
    assert runs.count("own_script") >= 4
    # Another worker joins by name where it can import the script, and says what is missing elsewhere.
    join = [
        sys.executable,
        "-m",
        "sweepd",
        "train",
        "--study-name",
        "s",
        "--n-trials",
        "1",
        "--no-auto-deploy",
    ]
    join += ["--runs-dir", str(elsewhere / "runs")]
    joined = subprocess.run(join, cwd=folder, capture_output=True, text=True)
    assert joined.returncode == 0, joined.stdout + joined.stderr
    assert "has changed" not in joined.stdout
    lost = subprocess.run(join, cwd=elsewhere, capture_output=True, text=True)
    assert lost.returncode == 2
    assert "--env own_script:Walk: No module named 'own_script'" in lost.stdout + lost.stderr


@pytest.fixture
def measured_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure which layout is fastest, as outside of the tests."""
    monkeypatch.setattr(vec_env, "choose_layout", choose_layout)


@pytest.mark.usefixtures("measured_layouts", "forked_python")
def test_a_script_without_a_guard_says_what_to_do(folder: Path) -> None:
    text = textwrap.dedent("""
        import sweepd, time
        class Slow(Walk):  # so that it is played in worker processes
            def step(self, action):
                time.sleep(0.002)
                return super().step(action)
        gymnasium.register("Mine-v0", entry_point=Slow)
        print(sweepd.create_study("s", env="gym:Mine-v0", n_trials=1)._handle.spec.environment)
    """)
    (folder / "unguarded.py").write_text(ENV + text)
    done = subprocess.run([sys.executable, "unguarded.py"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith('put it below `if __name__ == "__main__":`')


def test_ids_that_a_module_registers_keep_their_names() -> None:
    import tests.envs.external.registering  # noqa: F401

    assert environment_name("gym:CartPole-v1", {"a": 1}) == ("gym:CartPole-v1", {"a": 1})
    assert environment_name(gymnasium.spec("CartPole-v1"), {}) == ("gym:CartPole-v1", {})
    assert environment_name("gym:nothing:Known-v0", {}) == ("gym:nothing:Known-v0", {})
    # samples.py registers nothing: what makes the environment, its limit and arguments are kept.
    name, kwargs = environment_name("gym:tests/Drawn-v0", {})
    assert (name, kwargs) == ("tests.envs.external.samples:Drawn", {"max_episode_steps": 3})
    name, kwargs = environment_name("gym:tests/Advised-v0", {"strict": True})
    assert kwargs == {"told": False, "strict": True}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Counter(), "env is an object of Counter, .* pass the class .* env=Counter, .*env_kwargs"),
        (lambda: Drawn(), "a lambda has no name"),
        (3, "env = 3 is no environment"),
    ],
)
def test_what_cannot_be_made_again_is_refused(env: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sweepd.create_study("s", env=env)


def test_arguments_are_recorded_as_json() -> None:
    texts = parameter_texts(
        {"a": np.float32(0.5), "b": "1", "c": [1, {"d": None}], "e": np.arange(2)}
    )
    assert texts == ["a=0.5", 'b="1"', 'c=[1, {"d": null}]', "e=[0, 1]"]
    with pytest.raises(InputError, match=r"env_kwargs: f = <object .*> cannot be recorded"):
        parameter_texts({"f": object()})
    with pytest.raises(InputError, match="env_kwargs = 3 is not a dict"):
        sweepd.create_study("s", env="cartpole", env_kwargs=3)


WRAPPED = """
class Halved(gymnasium.ObservationWrapper):
    def __init__(self, env, factor=0.5):
        super().__init__(env)
        self.factor = factor
    def observation(self, observation):
        return np.float32(self.factor) * observation
"""


def test_wrappers_are_recorded_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "walk_env.py").write_text(ENV + WRAPPED)
    monkeypatch.syspath_prepend(str(folder))
    import walk_env

    given = [
        "flatten",
        sweepd.wrappers.flatten,
        (walk_env.Halved, {"factor": 0.1}),
        walk_env.Halved,
    ]
    study = sweepd.create_study("walk", env=walk_env.Walk, wrappers=given, n_trials=1, **SMALL)
    texts = ["flatten", "flatten", 'walk_env:Halved {"factor": 0.1}', "walk_env:Halved"]
    assert spec(study).env["wrappers"] == texts
    assert study.run()
    sweepd.create_study("walk", env="walk_env:Walk", wrappers=texts)  # as the command line
    with pytest.raises(InputError, match="and now it is"):
        sweepd.create_study("walk", wrappers=["flatten"])
    assert wrapper_texts([("frame-stack", {"frames": np.int64(4)})]) == [
        'frame-stack {"frames": 4}'
    ]


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (lambda env: env, r"wrappers\[0\]: a lambda has no name"),
        (Counter(), r"wrappers\[0\] = .* is no wrapper: pass a class or function that takes"),
        (("flatten", 3), "is no wrapper: .* or a pair of it and a dict of its arguments"),
        (("flatten", {"a": object()}), r"wrappers\[0\] = .* cannot be recorded"),
    ],
)
def test_what_is_no_wrapper_is_refused(wrapper: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sweepd.create_study("s", env="gym:CartPole-v1", wrappers=[wrapper])


SIGNS = """
import gymnasium
import numpy as np

class Signs(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}
    def step(self, action):
        right = action == self.sign
        return self.see(), float(right), bool(self.np_random.random() < 0.2), False, {}
    def see(self):
        self.sign = int(self.np_random.integers(2))
        return np.full((36, 36, 3), 200 * self.sign, np.uint8)
"""


def test_a_study_of_images_records_their_kernels_and_needs_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if KERNELS.loaded() is None:
        pytest.skip("no native kernels")
    (folder / "walk_env.py").write_text(SIGNS)
    monkeypatch.syspath_prepend(str(folder))
    study = sweepd.create_study("signs", env="walk_env:Signs", n_trials=1, **SMALL)
    recorded = f"native {FEED_FORWARD}, images {IMAGES}, torch 4"
    assert spec(study).kernels == recorded
    assert study.run()
    monkeypatch.setattr("sweepd.agents.native.choice.IMAGES", "of later")
    with pytest.raises(InputError, match=f"the kernels '{recorded}', and this version .* of later"):
        sweepd.create_study("signs", env="walk_env:Signs", n_trials=2, **SMALL).run()
