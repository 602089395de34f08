"""Where compiled libraries are kept, and that no other user can exchange one."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

import pytest

from sweepd.envs.native import build
from sweepd.envs.native.build import BuildError, library
from sweepd.envs.native.use import NativeLibrary

try:
    build.vector_flags(), build.compiler()
except BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source whose function returns 1. Cache and temporary folder are the test's own."""
    (tmp_path / "src").mkdir()
    made = tmp_path / "src" / "one.cpp"
    made.write_text('extern "C" int number() { return 1; }')
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return made


def number(of: Path) -> int:
    found: int = ctypes.CDLL(str(of)).number()
    return found


def compiled(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def fallback(tmp_path: Path) -> Path:
    return tmp_path / "tmp" / f"sweepd-native-{os.getuid()}"


def test_a_library_is_compiled_once(source: Path, tmp_path: Path) -> None:
    assert number(library(source)) == 1
    [made] = compiled(tmp_path)
    before = made.stat()
    assert number(library(source)) == 1
    assert compiled(tmp_path) == [made]
    assert made.parent == tmp_path / "cache" / "native"
    assert made.stat() == before
    assert not made.stat().st_mode & 0o022


def test_what_was_checked_is_loaded_although_another_took_its_name(
    source: Path, tmp_path: Path
) -> None:
    library(source)
    [made] = compiled(tmp_path)
    source.write_text('extern "C" int number() { return 2; }')
    library(source)
    [other] = set(compiled(tmp_path)) - {made}
    source.write_text('extern "C" int number() { return 1; }')
    checked = library(source)
    other.replace(made)
    assert number(checked) == 1


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_library_is_not_kept_below_a_folder_that_others_can_write_to(
    source: Path, tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a shared XDG_CACHE_HOME; the cache itself is private."""
    monkeypatch.setattr(build, "_is_own_group", lambda _: False)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(shared / "sweepd"))
    for _ in range(2):
        assert number(library(source)) == 1
        [made] = compiled(tmp_path)
        assert made.parent == fallback(tmp_path)


def test_a_folder_of_the_users_own_group_is_safe(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o775)
    library(source)
    [made] = compiled(tmp_path)
    own = build._is_own_group((tmp_path / "cache").stat().st_gid)
    assert made.parent == (tmp_path / "cache" / "native" if own else fallback(tmp_path))


def test_in_a_folder_with_the_sticky_bit_entries_are_safe(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    library(source)
    [made] = compiled(tmp_path)
    assert made.parent == tmp_path / "cache" / "native"


def test_a_library_that_others_can_write_to_is_compiled_again(source: Path, tmp_path: Path) -> None:
    library(source)
    [made] = compiled(tmp_path)
    made.chmod(0o666)
    before = made.stat().st_ino
    assert number(library(source)) == 1
    assert made.stat().st_ino != before
    assert not made.stat().st_mode & 0o022


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("part", ["file", "folder"])
def test_what_belongs_to_another_user_is_not_loaded(
    source: Path, tmp_path: Path, part: str
) -> None:
    library(source)
    [made] = compiled(tmp_path)
    os.chown(made if part == "file" else made.parent, 12345, 12345)
    assert number(library(source)) == 1
    own = [path for path in compiled(tmp_path) if path.stat().st_uid == 0]
    assert own[-1].parent == (made.parent if part == "file" else fallback(tmp_path))


def test_without_a_cache_all_processes_use_one_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert number(library(source)) == 1
    [made] = compiled(tmp_path)
    assert made.parent == fallback(tmp_path)
    monkeypatch.setattr(build, "_opened", {})  # as in another process
    assert number(library(source)) == 1
    assert [*fallback(tmp_path).iterdir()] == [made]


def test_without_a_safe_folder_the_message_names_both(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    fallback(tmp_path).mkdir()
    fallback(tmp_path).chmod(0o777)
    with pytest.raises(BuildError, match=r"neither .*cache/native nor .*sweepd-native-.*CACHE_DIR"):
        library(source)


def test_two_threads_that_use_a_library_first_both_get_it(source: Path) -> None:
    def slow(path: Path) -> int:
        time.sleep(0.2)
        return number(path)

    native = NativeLibrary("tests", source, slow, str, "1")
    found: list[int | None] = []
    threads = [threading.Thread(target=lambda: found.append(native.loaded())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1]
