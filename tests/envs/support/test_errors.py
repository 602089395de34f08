"""What programs can read of an error."""

from __future__ import annotations

import pytest

from sweepd.envs.support.errors import InputError


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("--trial 3 and --ensemble 2 exclude each other", ("--trial", "--ensemble")),
        ("row 3: a price is negative", ()),
        ("a minus--sign and --n-envs", ("--n-envs",)),
    ],
)
def test_an_error_tells_the_flags_that_it_names(text: str, flags: tuple[str, ...]) -> None:
    assert InputError(text).flags == flags
