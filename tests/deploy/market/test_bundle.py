"""Bundles: the hash covers everything, and wrong or missing content is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweepd.agents.policy.members import Member
from sweepd.deploy.market.bundle import Bundle, load_bundle
from sweepd.deploy.registry.bundle_files import (
    canonical_json,
    describe_files,
    new_bundle,
    sha256,
    write_bundle,
)
from sweepd.envs.crypto.data.timeframe import format_time, parse_time
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import members_bytes, random_actor, small_bundle


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return small_bundle()


@pytest.fixture
def written(bundle: Bundle, tmp_path: Path) -> Path:
    return write_bundle(bundle, tmp_path / "bundles")


@pytest.fixture
def writable(written: Path) -> Path:
    """A bundle whose files were made writable."""
    for item in written.iterdir():
        item.chmod(0o644)
    return written


def test_what_is_loaded_is_what_was_written(bundle: Bundle, written: Path) -> None:
    assert written.name == bundle.hash[:16]
    loaded = load_bundle(written, expected=bundle.hash)
    assert loaded == bundle
    assert loaded.trials[0].params == bundle.account
    obs = np.linspace(-1, 1, bundle.trials[0].policy.state_dim, dtype=np.float32)
    assert np.array_equal(loaded.trials[0].policy.act(obs), bundle.trials[0].policy.act(obs))
    assert sorted(item.name for item in written.iterdir()) == ["bundle.json", "members.safetensors"]


def test_a_bundle_is_found_good_wherever_it_was_copied_to(
    written: Path, tmp_path: Path, bundle: Bundle
) -> None:
    copy = written.rename(tmp_path / "my favourite")
    assert load_bundle(copy).hash == bundle.hash


def test_writing_twice_keeps_the_first_and_other_content_has_another_name(
    bundle: Bundle, written: Path
) -> None:
    assert {item.stat().st_mode & 0o777 for item in written.iterdir()} == {0o444}
    before = {item: item.stat().st_mtime_ns for item in written.iterdir()}
    assert write_bundle(bundle, written.parent) == written
    assert before == {item: item.stat().st_mtime_ns for item in written.iterdir()}
    other = small_bundle(gate={"look": 2})
    assert other.files == bundle.files
    assert other.hash != bundle.hash
    assert [item.name for item in written.parent.iterdir()] == [
        written.name
    ]  # no temporary folder is left


def test_every_changed_byte_is_found(writable: Path) -> None:
    for name in ("bundle.json", "members.safetensors"):
        path = writable / name
        content = path.read_bytes()
        for position in sorted({*np.linspace(0, len(content) - 1, 60).astype(int), 1, 2, 3}):
            for flip in (1, 32):
                changed = bytearray(content)
                changed[position] ^= flip
                path.write_bytes(bytes(changed))
                with pytest.raises(InputError, match=name):
                    load_bundle(writable)
        for changed_size in (content[:-1], content + b"\n", b""):
            path.write_bytes(changed_size)
            with pytest.raises(InputError, match=name):
                load_bundle(writable)
        path.write_bytes(content)
    load_bundle(writable)


def test_missing_and_added_files_are_refused(written: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_bundle(tmp_path / "nowhere")
    (written / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"does not belong to it: notes\.txt"):
        load_bundle(written)
    (written / "notes.txt").unlink()
    (written / "members.safetensors").unlink()
    with pytest.raises(InputError, match=r"lacks its file members\.safetensors"):
        load_bundle(written)


def test_another_bundle_than_the_registered_one_is_refused(written: Path) -> None:
    with pytest.raises(InputError, match="not the one registered"):
        load_bundle(written, expected="0" * 64)


def _forged(path: Path, change: dict[str, Any], *, drop: str | None = None) -> None:
    """Change the manifest and update its hash, so that only the checks of meaning can fail."""
    content = json.loads((path / "bundle.json").read_text())
    content.pop("hash")
    for dotted, value in change.items():
        target = content
        *parents, last = dotted.split(".")
        for part in parents:
            target = target[part]
        target[last] = value
    if drop:
        del content[drop]
    content["hash"] = sha256(canonical_json(content).encode())
    (path / "bundle.json").write_text(canonical_json(content))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format_version": 3}, "version 3"),
        ({"tickers": ["BTC/USDT", "BTC/USDT"]}, "listed twice"),
        ({"tickers": ["BTC/USDT"]}, "a number for each"),
        ({"timeframe": "7m"}, "timeframe '7m'"),
        ({"recipe.name": "secret"}, "'secret' is not known"),
        ({"recipe.version": 99}, "version 99"),
        ({"recipe.memory": 64}, "computes other features"),
        ({"env_params.fee": -0.1}, "fee is -0.1"),
        ({"env_params.speed": 1.0}, "unknown speed"),
        ({"env_params.lookback": 9}, "lookback 9"),
        ({"policy.members": 3}, "holds 2 members"),
        ({"policy.state_dim": 12}, "reads 12 numbers"),
        ({"policy.hidden": [8]}, "hidden layers"),
        ({"last_seen_bar": "yesterday"}, "last_seen_bar is 'yesterday'"),
        ({"last_seen_bar": "2024-08-01T13:30:00Z"}, "not the open of a bar"),
        ({"symbols.alpaca": {"BTC/USDT": "BTC/USD"}}, "symbols of alpaca"),
        ({"files": {}}, "files must list"),
        ({"origin.trial": -1}, "origin.trial"),
        ({"origin.trial": "3"}, "origin.trial"),
        ({"surprise": 1}, "surprise"),
        ({"increment": [0.0]}, "a number for each"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    writable: Path, change: dict[str, Any], sentence: str
) -> None:
    _forged(writable, change)
    with pytest.raises(InputError, match=sentence) as caught:
        load_bundle(writable)
    assert "\n" not in str(caught.value)
    assert str(writable) in str(caught.value)


@pytest.mark.parametrize(
    "part",
    [
        "tickers",
        "recipe",
        "env_params",
        "last_seen_bar",
        "files",
        "data",
        "gate",
        "metrics",
        "code_version",
    ],
)
def test_nothing_may_be_missing(writable: Path, part: str) -> None:
    _forged(writable, {}, drop=part)
    with pytest.raises(InputError, match=part):
        load_bundle(writable)


def test_members_that_choose_among_actions_are_refused() -> None:
    bundle = small_bundle()
    actors = [
        Member.of_tensors({k: v for k, v in member.tensors.items() if k != "action_std_log"})
        for member in _members()
    ]
    files = {"members.safetensors": members_bytes(actors)}
    manifest = bundle.manifest.model_copy(update={"files": describe_files(files)})
    with pytest.raises(InputError, match="choose one of several actions") as caught:
        new_bundle(Bundle, manifest, files)
    assert "\n" not in str(caught.value)


def _members() -> list[Member]:
    policy = small_bundle().manifest.trials[0].policy
    return [
        random_actor(policy.state_dim, policy.action_dim, seed) for seed in range(policy.members)
    ]


def test_times_are_written_as_utc() -> None:
    assert format_time(1_722_517_200) == "2024-08-01T13:00:00Z"
    assert parse_time("2024-08-01T13:00:00Z") == 1_722_517_200
    with pytest.raises(ValueError, match="does not match"):
        parse_time("2024-08-01 13:00")


def test_symbols_on_other_venues(bundle: Bundle) -> None:
    assert bundle.manifest.symbols == {"alpaca": {"BTC/USDT": "BTC/USD", "ETH/USDT": "ETH/USD"}}
