"""Layouts: measured, cached, or given by the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweepd.envs.external import first_ready, layouts, vec_env
from sweepd.envs.external.layouts import LayoutChoice, choose_layout
from sweepd.envs.external.sharded import Layout, ShardedEnvs, even_layout
from sweepd.envs.external.sources import FactorySource, GymSource
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.measurement_cache import MeasurementCache
from tests.envs.external.samples import Counter

SLOW = FactorySource(Counter, {"trouble": "slow", "at": 1, "length": 1})  # every step takes 50 ms


@pytest.fixture
def file(tmp_path: Path) -> MeasurementCache:
    return MeasurementCache(tmp_path / "layouts.json")


def test_slow_environments_use_workers_and_the_choice_is_cached(
    file: MeasurementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choose_layout(SLOW, [{}] * 4, cores=2, file=file)
    assert choice.layout == Layout(2, (2,))
    assert choice.reason == "the fastest measured"
    assert "2 in this process, 2 in workers" in str(choice)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(layouts, "ShardedEnvs", never)
    again = choose_layout(SLOW, [{}] * 4, cores=2, file=file)
    assert again.layout == choice.layout
    assert again.reason == "from the measurement cache"
    with pytest.raises(AssertionError, match="measured again"):
        choose_layout(SLOW, [{}] * 5, cores=2, file=file)


def test_quick_environments_stay_in_this_process(
    file: MeasurementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "QUICK", 1.0)
    choice = choose_layout(GymSource("CartPole-v1"), [{}] * 3, cores=2, file=file)
    assert choice.layout == Layout(3)
    assert "quick" in str(choice)


def test_workers_are_not_used_unless_faster(
    file: MeasurementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "QUICK", 0.0)
    monkeypatch.setattr(layouts, "GAIN", 1000.0)
    choice = choose_layout(GymSource("CartPole-v1"), [{}] * 3, cores=2, file=file)
    assert choice.layout == Layout(3)
    assert "weren't faster" in str(choice)


@pytest.mark.parametrize(("envs", "cores"), [(1, 8), (8, 1)])
def test_one_core_or_one_environment_needs_no_measurement(
    envs: int, cores: int, file: MeasurementCache
) -> None:
    assert choose_layout(SLOW, [{}] * envs, cores=cores, file=file).layout == Layout(envs)
    assert not file.path.exists()


def test_cores_are_those_that_this_process_may_use(
    file: MeasurementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "cpu_count", lambda: 1)
    assert choose_layout(SLOW, [{}] * 4, file=file).reason == "on one core"
    monkeypatch.setattr(first_ready, "cpu_count", lambda: 2)
    envs = first_ready.FirstReadyEnvs(SLOW, [{}] * 3)
    assert len(envs.pids) == 2
    envs.close()


def test_external_environments_choose_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def choose(source: object, own: list[object], what: object) -> LayoutChoice:  # noqa: ARG001
        asked.append(len(own))
        return LayoutChoice(Layout(1, (5,)), {}, "")

    monkeypatch.setattr(vec_env, "choose_layout", choose)
    env = vec_env.ExternalVecEnv(Counter, 2, 3)
    assert (asked, len(env.pids)) == ([6], 1)
    env.close()


def test_unpicklable_environments_stay_in_this_process(file: MeasurementCache) -> None:
    choice = choose_layout(FactorySource(lambda: Counter()), [{}] * 4, cores=2, file=file)
    assert choice.layout == Layout(4)
    assert "top level of a module" in str(choice)


@pytest.mark.parametrize(
    "content", ["", "{", '{"format": 9}', '{"format": 1, "machines": {"m": {"k": 3}}}']
)
def test_a_damaged_cache_file_counts_as_empty(content: str, file: MeasurementCache) -> None:
    file.path.write_text(content)
    assert file.get("m", "k") == {}
    file.put("m", "k", {"a": 1})
    assert json.loads(file.path.read_text())["machines"]["m"]["k"] == {"a": 1}


def test_an_entry_that_does_not_fit_is_measured_again(
    file: MeasurementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "QUICK", 1.0)
    source = GymSource("CartPole-v1")
    choose_layout(source, [{}] * 3, cores=2, file=file)
    content = file.path.read_text()
    for bad in ('"here": 9', '"here": -1', '"here": "x"'):
        file.path.write_text(content.replace('"here": 3', bad))
        assert (
            choose_layout(source, [{}] * 3, cores=2, file=file).reason
            != "from the measurement cache"
        )


def test_an_even_layout_needs_enough_environments() -> None:
    assert even_layout(8, 1) == Layout(4, (4,))
    assert even_layout(8, 2, here=False) == Layout(0, (4, 4))
    with pytest.raises(
        InputError, match="9 workers for 8 environments are not possible; from 0 to 7 are"
    ):
        even_layout(8, 9)


def test_a_layout_must_have_all_environments() -> None:
    with pytest.raises(ValueError, match="the layout has 2 environments, and there are 3"):
        ShardedEnvs(SLOW, [{}] * 3, Layout(2))
