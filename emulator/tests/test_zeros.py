"""Which registers of a translated kernel begin as zero."""

from __future__ import annotations

import re

import pytest

from emulator.ptx.translate import translate
from emulator.tests.ptx_harness import PROLOGUE


def zeroed(body: str) -> set[str]:
    """Names of the registers r1 to r9 of a kernel that are declared with a value."""
    text = f"{PROLOGUE}.visible .entry k() {{ .reg .pred p; .reg .b32 r<10>; {body} ret; }}"
    (declaration,) = re.findall(r"^  u32 (.*);$", translate(text).source, re.MULTILINE)
    return {name.rstrip("{}_") for name in declaration.split(", ") if name.endswith("{}")}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("mov.b32 r1, 1; add.u32 r2, r1, r1;", set(), id="results"),
        pytest.param("add.u32 r2, r1, 1;", {"r1"}, id="read and never written"),
        pytest.param("add.u32 r1, r1, 1;", {"r1"}, id="read by the instruction that writes it"),
        pytest.param("ld.local.u32 r1, [r1];", {"r1"}, id="the address of its own load"),
        pytest.param("@p mov.b32 r1, 1; add.u32 r2, r1, 1;", {"r1"}, id="written under a guard"),
        pytest.param(
            "bra L; mov.b32 r1, 1; L: add.u32 r2, r1, 1;", {"r1"}, id="written in a stretch that is jumped over"
        ),
        pytest.param("L: add.u32 r2, r1, 1; mov.b32 r1, 1; bra L;", {"r1"}, id="written at the end of a loop"),
        pytest.param("L: mov.b32 r1, 1; add.u32 r2, r1, 1; bra L;", set(), id="written at the beginning of a loop"),
        pytest.param(
            "@p bra L; mov.b32 r1, 1; add.u32 r2, r1, 1; L:;", set(), id="left between its write and its read"
        ),
    ],
)
def test_a_register_that_may_be_read_before_it_is_written_begins_as_zero(body: str, expected: set[str]) -> None:
    assert zeroed(body) == expected
