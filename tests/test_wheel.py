"""The wheel: built through a source distribution, installed, and used in another repository.

The environment that it is installed into sees the packages of this one, since its requirements
take gigabytes; but not this checkout.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("envs", "agents", "optimize", "deploy")
NEEDED = {"pip": "to install the wheel", "setuptools": "to build it"}
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing), reason=f"needs {missing}: {NEEDED}"),
]
# A study of a few seconds.
TINY = ("--n-trials", "1", "--budget", "256", "--rungs", "1", "--seeds", "2", "--episodes", "2")
TINY += ("--horizon", "32", "--slots", "2", "--threads", "1", "--gpu", "cpu", "--fresh-seeds", "0")


def built(folder: Path, kind: str, target: Path) -> Path:
    """Build a distribution by the project's backend; kind: sdist or wheel."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    [file] = target.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a source distribution, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "checkout"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("sweepd", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("sdist", "wheel", "unpacked"):
        (folder / name).mkdir()
    with tarfile.open(built(copy, "sdist", folder / "sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    return built(unpacked, "wheel", folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))
    subprocess.run(
        # Among the packages of this environment is sweepd.
        [*pip, "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)],
        check=True,
    )
    return folder / "bin"


def run(program: Path, *words: str, folder: Path, code: int = 0) -> str:
    """Run a program as in a new terminal; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(program), *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_it_has_every_file_of_the_packages_and_no_other_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        f"sweepd/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    own = ROOT / "sweepd"
    sources = {*own.glob("*.py"), *(own / "testing").glob("*.py"), own / "py.typed"}
    files |= {str(path.relative_to(ROOT)) for path in sources}
    assert names == files


USES = """
from pathlib import Path
import gymnasium
import sweepd
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.gymnasium_view import register

print(sweepd.__file__)
register()
print(gymnasium.make("sweepd/CartPole-v1").reset(seed=0)[0].shape)
Registry(Path("deployments"))  # runs the migrations
"""


def test_it_works_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    file, shape = run(installed / "python", "-c", USES, folder=tmp_path).splitlines()
    assert Path(file).is_relative_to(installed.parent)
    assert shape == "(4,)"
    assert run(installed / "sweepd", "--version", folder=tmp_path).startswith("sweepd ")


MY_ENV = """
import gymnasium as gym
from agents.reward import reward

class Inner(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), reward(action, self.size), False, False, {}

class MyEnv(gym.Wrapper):
    def __init__(self, size: int = 1):
        super().__init__(gym.wrappers.TimeLimit(Inner(size), 8))
"""


@pytest.mark.parametrize(
    "where", [pytest.param("this environment", marks=pytest.mark.extra), "wheel"]
)
def test_a_repository_with_folders_of_the_same_names(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    programs = (
        request.getfixturevalue("installed") if where == "wheel" else Path(sys.executable).parent
    )
    if not (programs / "sweepd").exists():
        pytest.skip("sweepd is not installed here")
    for folder in ("envs", "agents"):
        (tmp_path / folder).mkdir()
    (tmp_path / "envs" / "my_env.py").write_text(MY_ENV)
    rewarding = "def reward(action, size):\n    return float(size)\n"
    (tmp_path / "agents" / "reward.py").write_text(rewarding)
    words = ("train", "--env", "envs.my_env:MyEnv", "--env-param", "size=6", "--no-auto-deploy")
    said = run(programs / "sweepd", *words, *TINY, folder=tmp_path)
    assert "trial 0 complete: objective +48.0000" in said  # 8 steps of reward 6
    if where != "wheel":  # what follows does not depend on it
        return
    (tmp_path / "agents" / "reward.py").write_text("import nothing_of_this_name")
    said = run(programs / "sweepd", *words, *TINY, "--study-name", "b", folder=tmp_path, code=2)
    assert "No module named 'nothing_of_this_name'" in said
    assert "agents/reward.py:1" in said
