"""Sentences on what is wrong with a file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, field_validator

from sweepd.envs.support.validation import StrictModel, first_fault


class Inner(StrictModel):
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    seat: Literal["first", "second"] = "first"

    @field_validator("share")
    @classmethod
    def _not_half(cls, share: float) -> float:
        if share == 0.5:
            raise ValueError("one half is undecided")
        return share


class Outer(StrictModel):
    name: str
    count: Annotated[int, Field(ge=1)] | None = None
    inner: Inner = Inner()
    maybe: Inner | None = None
    many: dict[str, Inner] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": 3}, "name = 3 should be text"),
        ({}, "name is missing"),
        ({"count": True}, "count = True should be a whole number"),
        ({"count": 0}, "count = 0 should be at least 1"),
        ({"cuont": 1}, "cuont is not known; did you mean count?"),
        ({"zzz": 1}, "zzz is not known; choose one of count, inner, many, maybe, name"),
        ({"inner": {"share": 0}}, "inner.share = 0 should be above 0"),
        ({"inner": {"share": 2}}, "inner.share = 2 should be at most 1"),
        ({"inner": {"share": 0.5}}, "inner.share: one half is undecided"),
        ({"inner": {"shares": 1}}, "inner.shares is not known; did you mean share?"),
        ({"inner": {"seat": "x"}}, "inner.seat = 'x' should be 'first' or 'second'"),
        ({"maybe": {"shares": 1}}, "maybe.shares is not known; did you mean share?"),
        ({"many": {"a": {"shares": 1}}}, "many.a.shares is not known"),
        ({"nmae": "own", "name": 3}, "nmae is not known; did you mean name?"),
        ({"inner": 3}, "inner = 3 should be a table"),
    ],
)
def test_the_first_fault_names_key_value_and_what_is_right(
    given: dict[str, Any], sentence: str
) -> None:
    complete = given if not given else {"name": "own"} | given
    with pytest.raises(ValidationError) as error:
        Outer.model_validate(complete)
    assert first_fault(error.value, Outer) == sentence
