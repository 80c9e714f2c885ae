"""`import dnncore` is cheap, and every public name is there all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dnncore


def test_every_public_name_has_a_home() -> None:
    assert set(dnncore._HOME_OF) | {"__version__", "devices", "ops"} == set(dnncore.__all__)
    assert set(dnncore.__all__) <= set(dir(dnncore))
    for name in dnncore.__all__:
        assert getattr(dnncore, name) is not None
    assert issubclass(dnncore.errors.BadParamError, dnncore.errors.DnncoreError)
    with pytest.raises(AttributeError, match="module 'dnncore' has no attribute 'Handel'"):
        _ = dnncore.Handel


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys, dnncore; print(sorted({'numpy', 'pycuda', 'cuda', 'torch', 'ml_dtypes'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
