"""Tests here say who steps what, or leave it in this process: nothing is measured on a busy machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from envs.external import vec_env
from envs.external.layouts import LayoutChoice
from envs.external.sharded import Layout


@pytest.fixture(autouse=True)
def all_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no layout is given, it is the plain one."""

    def choose(source: Any, own: Sequence[Any], what: Any) -> LayoutChoice:  # noqa: ARG001
        return LayoutChoice(Layout(len(own)), {}, "in tests")

    monkeypatch.setattr(vec_env, "choose_layout", choose)
