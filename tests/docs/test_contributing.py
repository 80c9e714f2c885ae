"""The diff that CONTRIBUTING.md shows applies, and what it adds is an algorithm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CODE = """
import ctypes, os
if os.environ.get("DNN_EMU_LIB"):
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])
from dnncore import Handle, TensorDescriptor
from dnncore.cuda.algorithms import all_units
from dnncore.problems import MatmulProblem
from tests.cases import Case
from tests.ops.harness import check
assert sum("gemv" in unit.entry for unit in all_units()) == 4
with Handle("cuda:0") as handle:
    for dtype in ("float32", "float16"):
        row, matrix = (TensorDescriptor.packed(shape, dtype) for shape in ((1, 70), (70, 130)))
        problem = MatmulProblem(row, matrix, TensorDescriptor.packed((1, 130), dtype))
        assert "gemv" in [found.name for found in handle.get_algorithms(problem) if found.status is None]
        check(handle, Case("a row", problem, 1.5, 0.5), "gemv")
        print(dtype)
"""


@pytest.mark.cuda
def test_the_diff_adds_an_algorithm_that_is_ranked_compiled_and_right(tmp_path: Path) -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    shutil.copytree(ROOT / "dnncore", tmp_path / "dnncore", ignore=shutil.ignore_patterns("__pycache__", "cubins"))
    apply = ["git", "apply", "--whitespace=error", "-"]
    subprocess.run(apply, cwd=tmp_path, input=diff, text=True, check=True)
    path = os.pathsep.join((str(tmp_path), str(ROOT), *(entry for entry in sys.path if entry)))
    run = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "float32\nfloat16\n"), run.stderr
