"""Modules cut out of a larger one hold what their kernels need."""

from __future__ import annotations

import re

import pytest

from emulator.ptx.parser import parse
from emulator.ptx.parts import Parts

TEXT = """//
.version 9.0
.target sm_90a
.address_size 64

	// .globl	first
.func  (.param .b32 func_retval0) twice
(
	.param .b32 twice_param_0
)
;
.extern .func nobody(.param .b32 nobody_param_0);
.func  (.param .b32 func_retval0) thrice(.param .b32 thrice_param_0)
{
	.reg .b32 %r<3>;
	.loc 1 7 0
	ld.param.u32 %r1, [thrice_param_0];
	mul.lo.u32 %r2, %r1, 3;
	st.param.b32 [func_retval0], %r2;
	ret;
}
.func  (.param .b32 func_retval0) twice(
	.param .b32 twice_param_0
)
{
	.reg .b32 %r<3>;
	ld.param.u32 %r1, [twice_param_0];
	add.u32 %r2, %r1, %r1;
	st.param.b32 [func_retval0], %r2;
	ret;
}
.shared .align 4 .b8 kept[128];

.visible .entry first(
	.param .u64 first_param_0
)
.maxntid 32, 1, 1
{
	.reg .b32 %r<3>;
	.loc 1 3 0
	mov.u32 %r1, 4;
	{
	.param .b32 in;
	.param .b32 out;
	st.param.b32 [in], %r1;
	call.uni (out), twice, (in);
	ld.param.b32 %r2, [out];
	}
	st.shared.u32 [kept], %r2;
	ret;

}
	// .globl	second
.visible .entry second(
	.param .u64 second_param_0
)
{
	ret;

}
	.file	1 "unit.cu"
	.section	.debug_str
	{
$L__info_string0:
.b8 95,90
	}
"""


def test_kernels_are_found_by_name() -> None:
    assert list(Parts(TEXT).entries) == ["first", "second"]


@pytest.mark.parametrize(
    ("entries", "functions"), [(["first"], ["twice", "first"]), (["second"], ["second"]), (["first", "second"], None)]
)
def test_a_module_has_its_kernels_and_the_functions_that_they_reach(
    entries: list[str], functions: list[str] | None
) -> None:
    module = parse(Parts(TEXT).module(entries))
    defined = [function.name for function in module.functions if function.body is not None]
    assert defined == (functions or ["twice", "first", "second"])
    assert [variable.name for variable in module.variables] == ["kept"]
    assert module.target == "sm_90a"


def test_lines_of_the_source_stay_with_the_kernel() -> None:
    module = parse(Parts(TEXT).module(["first"]))
    assert [(location.file, location.line) for location in module.locations[1:]] == [("unit.cu", 3)]


def test_debug_sections_are_left_out() -> None:
    assert not re.search(r"section|b8 95", Parts(TEXT).module(["first", "second"]))


def test_a_kernel_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError, match="third"):
        Parts(TEXT).module(["third"])
