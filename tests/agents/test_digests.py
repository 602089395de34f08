"""Trained weights are the same bits in any slot, company and number of threads, and those that were kept for this kind
of processor (`tests.agents.digests`, which tells how to keep others).
"""

from __future__ import annotations

import pytest

from tests.agents.digests import ALONE, CROWD, PROGRAMS, digest, kind, known


@pytest.mark.parametrize("name", PROGRAMS)
def test_weights_are_the_same_anywhere_and_the_ones_that_were_kept(name: str) -> None:
    program = PROGRAMS[name]
    alone = digest(program.train(ALONE, 1))
    assert digest(program.train(CROWD, 1)) == alone, "depends on slot or company"
    assert digest(program.train(ALONE, 2)) == alone, "depends on threads"
    kept = known().get(kind(), {})
    if name not in kept:
        pytest.skip(f"no digest is kept for {kind()}; slot, company and threads agree (python -m tests.agents.digests)")
    assert alone == kept[name], "other numbers than before; on purpose? python -m tests.agents.digests --write"
