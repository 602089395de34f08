"""Structs of the C++ sources in Python: their layout is the compiler's, and addresses stay valid."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import weakref
from pathlib import Path

import pytest
import torch

from sweepd.agents.native import kernels
from sweepd.envs.crypto.native import step
from sweepd.envs.games.bucket_brigade import native as bucket_brigade
from sweepd.envs.games.card_duel import native as card_duel
from sweepd.envs.games.hockey import native as hockey
from sweepd.envs.games.native import cartpole
from sweepd.envs.native import build
from sweepd.envs.native.structs import c_constant, c_struct

DECLARED = """
#include <cstdint>

constexpr int MOST = 12;  // of something; {}
enum class Kind : int64_t { one, other };
struct Inner {
    int64_t size;  // a; comment, with (both
    const double* at;
};
struct Outer {
    float first, *second;
    Inner inner, pair[2];

    // The kind.
    Kind kind;
    const int64_t* places[2];
    double
        last;

    int64_t twice() const { int64_t size = inner.size; return 2 * size; }
};
struct Numbers {
    float clip, gamma;
};
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "declared.h").write_text(DECLARED)
    made = tmp_path / "made.cpp"
    made.write_text('#include "declared.h"\n')
    return made


STRUCTS = {
    kernels.SOURCE: [
        *("Items", "Outputs", "Update", "PPONumbers", "PPOStats", "AdamNumbers"),
        *("Networks", "Replayed", "ReplayNumbers", "SACStats", "D3QNStats"),
    ],
    step.SOURCE: ["State"],
    cartpole.SOURCE: ["State"],
    card_duel.SOURCE: ["Facts", "Duels"],
    hockey.SOURCE: ["Tables", "Match", "Games"],
    bucket_brigade.SOURCE: ["Brigade", "Phases", "State", "NightEvents", "Chances"],
}


def compile_with_layouts(origin: Path, names: list[str], made: Path) -> None:
    """Compile a source with assertions that the layout of structs is Python's."""
    lines = ["#include <cstddef>", f'#include "{origin}"']
    for struct in (c_struct(origin, name) for name in names):
        lines.append(f"static_assert(sizeof({struct.__name__}) == {ctypes.sizeof(struct)});")
        for name in struct.kinds:
            offset = getattr(struct, name).offset
            lines.append(f"static_assert(offsetof({struct.__name__}, {name}) == {offset});")
    made.write_text("\n".join(lines) + "\n")
    command = [build.compiler(), *build.FLAGS, *build.vector_flags(), f"-I{build.SHARED}"]
    subprocess.run([*command, "-fsyntax-only", str(made)], check=True)


def test_the_layout_of_every_struct_is_the_compilers(source: Path) -> None:
    try:
        build.vector_flags(), build.compiler()
    except build.BuildError as error:
        pytest.skip(f"no native code: {error}")
    made = source.with_name("layouts.cpp")
    for origin, names in {source: ["Inner", "Outer", "Numbers"], **STRUCTS}.items():
        compile_with_layouts(origin, names, made)
    # The assertions fail where a field comes before another one.
    wrong = source.parent / "wrong" / source.name
    wrong.parent.mkdir()
    wrong.write_text("struct Inner {\n    const void* at;\n    double size;\n};\n")
    c_struct(wrong, "Inner")
    wrong.write_text("struct Inner {\n    double size;\n    const void* at;\n};\n")
    with pytest.raises(subprocess.CalledProcessError):
        compile_with_layouts(wrong, ["Inner"], made)


def test_pointers_numbers_and_structs_are_stored(source: Path) -> None:
    outer, inner = c_struct(source, "Outer"), c_struct(source, "Inner")
    rows = torch.arange(3.0)
    own = inner(size=3, at=rows)
    made = outer(first=0.5, second=own, inner=own, kind=1, places=(rows, None), last=2.0)
    assert (made.first, made.kind, made.last) == (0.5, 1, 2.0)
    assert made.second == ctypes.addressof(own)
    assert (made.inner.size, made.inner.at) == (3, rows.data_ptr())
    assert [*made.places] == [rows.data_ptr(), None]
    other = made.but(last=3.0, places=(None, rows))
    assert (made.last, other.last, other.first) == (2.0, 3.0, 0.5)
    assert [*other.places] == [None, rows.data_ptr()]


def test_what_pointers_point_to_lives_as_long_as_the_struct_and_its_copies(source: Path) -> None:
    inner = c_struct(source, "Inner")
    numbers = torch.zeros(3)
    seen = weakref.ref(numbers)
    made = c_struct(source, "Outer")(inner=inner(at=numbers)).but(kind=1)
    del numbers
    gc.collect()
    assert seen() is not None
    del made
    gc.collect()
    assert seen() is None


def test_a_field_that_is_not_declared_is_refused(source: Path) -> None:
    inner = c_struct(source, "Inner")
    with pytest.raises(TypeError, match="Inner has no field 'length'"):
        inner(length=3)
    with pytest.raises(TypeError, match="Inner has no field 'length'"):
        inner().but(length=3)


def test_numbers_of_members_are_found_by_name(source: Path) -> None:
    numbers = c_struct(source, "Numbers")
    given = {"gamma": torch.tensor([[0.9], [0.8]]), "clip": [0.1, 0.2], "other": None}
    rows = numbers.stacked(given)
    assert rows.dtype == torch.float32
    second = numbers.from_address(rows.data_ptr() + ctypes.sizeof(numbers))
    assert (second.clip, second.gamma) == pytest.approx((0.2, 0.8))
    results, columns = numbers.zeros(2)
    results.copy_(rows)
    assert columns["gamma"].tolist() == pytest.approx([0.9, 0.8])
    with pytest.raises(KeyError, match="clip"):
        numbers.stacked({"gamma": [0.9]})


def test_constants_are_read(source: Path) -> None:
    assert c_constant(source, "MOST") == 12
    with pytest.raises(ValueError, match=r"no C\+\+ source declares LEAST"):
        c_constant(source, "LEAST")


@pytest.mark.parametrize(
    "field", ["unsigned long size", "int32_t x", "float x, **y", "vec x", "float but"]
)
def test_a_field_without_a_counterpart_is_refused(tmp_path: Path, field: str) -> None:
    made = tmp_path / "made.cpp"
    made.write_text(f"struct Odd {{\n    {field};\n}};\n")
    with pytest.raises(ValueError, match=r"Odd has the field|declares (int32_t|vec)"):
        c_struct(made, "Odd")
