from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from dnnserve.allocator import keep_freed_memory
print(keep_freed_memory())
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def use():
    block = library.malloc(1 << 20)
    ctypes.memset(block, 1, 1 << 20)
    library.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(**environment: str) -> tuple[str, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**clean, **environment}, check=True
    )
    done, faults = result.stdout.split()
    return done, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_memory_that_was_freed_is_used_again_without_a_page_fault() -> None:
    done, faults = run()
    if done == "False":
        pytest.skip("no glibc")
    assert faults < 50


def test_the_environments_own_settings_are_left_alone() -> None:
    assert run(MALLOC_TOP_PAD_="0")[0] == "False"
