"""What the stand-in for nvcc makes, and what it makes it of."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from emulator import nvcc, toolkit

PTX = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry half(.param .u64 to)
{
	.reg .b16 %rs<3>;
	.reg .b32 %f<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [to];
	ld.global.b16 %rs1, [%rd1];
	cvt.f32.f16 %f1, %rs1;
	cvt.rn.bf16.f32 %rs2, %f1;
	st.global.b16 [%rd1], %rs2;
	ret;
}
"""


@pytest.mark.parametrize("mode", ["check", "fast"])
def test_headers_that_were_read_before_make_the_same_module(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMU_BUILD", mode)
    headers = tmp_path / "headers"
    nvcc.precompile(headers)
    modules = [tmp_path / name for name in ("alone.so", "with.so")]
    for module, folder in zip(modules, (None, headers), strict=True):
        assert nvcc.build_module(PTX, module, headers=folder) == ()
    alone, with_headers = (module.read_bytes() for module in modules)
    assert alone == with_headers


def test_headers_that_were_read_before_are_what_g_plus_plus_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another mode, or of another g++, they would be passed over, and would save nothing."""
    seen = tmp_path / "seen"
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -H "$@" 2>>{seen}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent), prepend=os.pathsep)
    headers = tmp_path / "headers"
    nvcc.precompile(headers)
    seen.unlink()
    nvcc.build_module(PTX, tmp_path / "module.so", headers=headers)
    assert seen.read_text().splitlines()[0] == f"! {headers / 'scalar' / 'module.h.gch'}"


def test_ptx_is_what_nvcc_makes_when_ptxas_reads_it_too(tmp_path: Path) -> None:
    source = tmp_path / "twice.cu"
    source.write_text('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n')
    wanted = tmp_path / "wanted.ptx"
    command = [str(toolkit.real_nvcc()), "-ptx", "-lineinfo", "-arch", "sm_90a", str(source), "-o", str(wanted)]
    subprocess.run(command, check=True)
    assert nvcc.ptx_of(source, ("-arch", "sm_90a")) == wanted.read_text()
