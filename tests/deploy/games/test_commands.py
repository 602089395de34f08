"""`sweepd promote`, `registry` and `play` with players of games, and their output."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from PIL import Image
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.promotion.documents import COLOURS
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.render import showing
from sweepd.envs.support.errors import InputError
from tests.deploy.games.players import GOOD, SLOT, WEAK, store, study_of

TRADING = re.compile(
    r"\b(folds?|sharpe|sortino|drawdowns?|trad(e|es|ed|er|ing)|markets?|equity|bars?|capital|crypto|tickers?|fees?|"
    r"slippage|hold-?out|paper|portfolio|returns? after|timeframe|money|prices?)\b",
    re.IGNORECASE,
)
Run = Callable[..., str]


def no_word_of_trading(text: str) -> None:
    """The output about a game contains no words about trading."""
    found = TRADING.search(text)
    assert found is None, text[max(0, found.start() - 60) : found.end() + 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished study whose best trial has a good player."""
    folder = tmp_path_factory.mktemp("games")
    store(study_of(folder / "run", [GOOD, WEAK], [WEAK]), f"sqlite:///{folder / 'studies.db'}")
    return folder


@pytest.fixture(scope="module")
def sweepd(folder: Path) -> Run:
    """Run a command, and return what it prints; wrong input is raised."""
    app = build_app()

    def run(*words: object) -> str:
        given = [*map(str, words), "--deployments", str(folder / "deployments")]
        variables = {"COLUMNS": "160", "SWEEPD_STORAGE": str(folder / "studies.db")}
        result = CliRunner().invoke(app, given, env=variables)
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture(scope="module")
def promoted(sweepd: Run) -> str:
    """The output of a promotion to an empty slot, as a worker runs it after a study."""
    sweepd("promote", "--trial", 1, "--games", 10, "--json")
    return sweepd("promote-after-study", "--study-name", "short")


def test_the_end_of_a_study_promotes_reports_and_records_a_game(
    promoted: str, folder: Path
) -> None:
    no_word_of_trading(promoted)
    for words in (
        "PROMOTED",
        "beats-baselines",
        "random",
        "panel evaluation 2",
        f"sweepd play {SLOT}",
        "the champion",
    ):
        assert words in promoted, words
    page = (folder / "run" / "gate" / "gate.html").read_text()
    no_word_of_trading(re.sub(r"base64,[^\"]*", "", page))
    assert "Promoted: the candidate is the new champion" in page
    assert "<body><main>" in page
    assert 'name="viewport"' in page
    for colour in {*COLOURS.values(), *re.findall(r"[{ ]color: (#\w{6});", page)}:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 4.5, colour  # on white, as WCAG asks of text
    study = optuna.load_study(study_name="short", storage=f"sqlite:///{folder / 'studies.db'}")
    kept = optuna.artifacts.get_all_artifact_meta(study)
    assert {meta.filename for meta in kept} == {"gate.html", "gate.pdf", "replay-trial-0.gif"}
    assert all((folder / "run" / "artifacts" / meta.artifact_id).exists() for meta in kept)
    with Image.open(folder / "run" / "gate" / "replay-trial-0.gif") as replay:
        assert getattr(replay, "n_frames", 1) == 31  # 60 steps, every second


@pytest.mark.usefixtures("promoted")
def test_a_second_promotion_changes_nothing(sweepd: Run) -> None:
    told = json.loads(sweepd("promote", "--json", "--dry-run"))
    assert (told["outcome"], told["slot"], told["looks"]) == ("champion already", SLOT, 2)
    no_word_of_trading(json.dumps(told))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ensemble", "2"], "--ensemble is not for games"),
        (["--weights", "fold-score"], "--weights is not for games"),
        (["--data-dir", "data"], "--data-dir is not for games"),
        (["--first-stage"], "--first-stage is not for games"),
        (
            ["--limit", "pbo=1"],
            "the rules are training-faults, beats-baselines, ahead-of-baselines, solved, beats-",
        ),
        (["--limit", "solved"], "like beats-champion=5"),
    ],
)
def test_flags_of_other_environments_are_refused(sweepd: Run, words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sweepd("promote", *words)


@pytest.mark.usefixtures("promoted")
def test_the_registry_knows_players(sweepd: Run, folder: Path) -> None:
    registry = Registry(folder / "deployments")
    slot = registry.slot(SLOT)
    for words in (["list"], ["list", SLOT], ["show"], ["diff", SLOT], ["verify"], ["gc"]):
        no_word_of_trading(sweepd("registry", *words))
    shown = sweepd("registry", "show")
    for text in (
        str(slot.champion),
        "version 2, champion",
        "trial 0",
        "seed 0 of 2",
        "panel evaluation 2; evaluations used so far: ",
        "champion ",
    ):
        assert text in shown, text
    facts = json.loads(sweepd("registry", "show", f"{SLOT}@previous", "--json"))
    assert (facts["bundle"], facts["origin"]["trial"], facts["panel"]["games"]) == (
        slot.previous,
        1,
        10,
    )
    assert "…" not in sweepd("registry", "diff", SLOT)
    found = json.loads(sweepd("registry", "diff", SLOT, "--json"))["differences"]
    assert found["origin.trial"] == [1, 0]
    assert "panel.own.mean" in found
    assert not any(name.startswith(("panel.returns", "game.")) for name in found)
    assert "all 100 games of its panel ended as before" in sweepd("registry", "verify")
    assert json.loads(sweepd("registry", "verify", "--json"))["agrees"] is True
    with pytest.raises(InputError, match=r"is a game bundle \(cartpole\)"):
        sweepd("trade", "--replay", SLOT)


@pytest.mark.usefixtures("promoted")
def test_play_shows_a_game_in_the_terminal_or_writes_it(sweepd: Run, folder: Path) -> None:
    printed = sweepd("play", "--seed", 5, "--episodes", 2)
    no_word_of_trading(printed)
    assert "game 1, step 0, return 0" in printed
    assert "game 2, step 60, return 60, the end" in printed
    assert "return 60, 60; mean 60" in printed
    assert sweepd("play", SLOT, "--seed", 5, "--episodes", 2) == printed
    written = sweepd("play", f"{SLOT}@previous", "--out", folder / "new" / "game.gif")
    assert "written:" in written
    with Image.open(folder / "new" / "game.gif") as picture:
        assert picture.size == (480, 320)
        first = picture.convert("RGB").tobytes()
        picture.seek(10)
        assert picture.convert("RGB").tobytes() != first
    with pytest.raises(InputError, match=r"must end in \.gif or \.mp4"):
        sweepd("play", "--out", folder / "game.png")
    assert not (folder / "game.png").exists()


def test_a_trial_plays_without_a_promotion(sweepd: Run, folder: Path) -> None:
    printed = sweepd("play", "--trial", "short#1", "--best-of", 3, "--out", folder / "best.gif")
    assert re.search(
        r"trial short#1 on cartpole: return \d+; the best of 3 games, with seed", printed
    )
    returns = [
        float(re.findall(r"return (\d+)", sweepd("play", "--trial", "short#1", "--seed", seed))[-1])
        for seed in range(3)
    ]
    assert f"return {max(returns):.0f};" in printed
    assert f"with seed {returns.index(max(returns))}" in printed
    with Image.open(folder / "best.gif") as picture:
        assert getattr(picture, "n_frames", 1) > 3
    for words, said in (
        (["short"], "must be STUDY#N"),
        (["short#99"], "trial 99 is not a COMPLETE trial of study 'short'"),
        (["nothing#1"], "'nothing' is not in"),
        (["short#1", SLOT], "give no bundle"),
        (["short#1", "--seat", "me"], "give no bundle, and no --seat"),
        (["short#1", "--best-of", "2", "--episodes", "2"], "--best-of shows one game"),
    ):
        with pytest.raises(InputError, match=said):
            sweepd("play", "--trial", *words)


@pytest.mark.usefixtures("promoted")
def test_mp4_is_written_or_says_what_is_missing(sweepd: Run, folder: Path) -> None:
    target = folder / "game.mp4"
    if importlib.util.find_spec("imageio_ffmpeg"):
        sweepd("play", "--out", target)
        assert target.read_bytes()[4:8] == b"ftyp"
    else:
        with pytest.raises(InputError, match=r"missing here: pip install 'sweepd\[video\]'"):
            sweepd("play", "--out", target)
        assert not target.exists()


@pytest.mark.usefixtures("promoted")
def test_ctrl_c_ends_a_show_cleanly(sweepd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sweepd.envs.games.render.CartPoleRenderer.text", interrupted)
    printed = sweepd("play")
    assert "stopped" in printed
    assert "no game has ended" in printed


@pytest.mark.usefixtures("promoted")
def test_a_bundle_of_a_player_speaks_of_no_trading(folder: Path) -> None:
    registry = Registry(folder / "deployments")
    champion = registry.bundle(registry.require(None).champion or "", GameBundle)
    no_word_of_trading((registry.path(champion.hash) / "bundle.json").read_text())


def test_every_game_can_be_shown_or_says_why_not() -> None:
    game = get_game("bucket-brigade")
    env, renderer = showing(game, game.params(scenario="rest_trap"), pictures=True)
    env.reset_member(0, 1)
    text = renderer.text("night 0", final=False)
    assert text.startswith("night 0\n")
    assert renderer.picture("night 0", final=False).size == (480, 480)
    no_word_of_trading(text)
    game = get_game("gym:CartPole-v1")
    env, renderer = showing(game, game.params(), pictures=False)
    env.reset_member(0, 1)
    assert "observes" in renderer.text("step 0", final=False)
    if not importlib.util.find_spec("pygame"):
        with pytest.raises(
            InputError, match="gym:CartPole-v1 needs a package that is missing here"
        ):
            showing(game, game.params(), pictures=True)
