"""Tests choose layouts explicitly or use one process: measuring them on a busy machine is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from envs.external import vec_env
from envs.external.layouts import LayoutChoice
from envs.external.sharded import Layout


@pytest.fixture(autouse=True)
def all_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all environments in this process unless a test gives a layout."""

    def choose(source: Any, own: Sequence[Any], what: Any) -> LayoutChoice:  # noqa: ARG001
        return LayoutChoice(Layout(len(own)), {}, "in tests")

    monkeypatch.setattr(vec_env, "choose_layout", choose)
