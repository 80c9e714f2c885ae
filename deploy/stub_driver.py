"""Write the C source of a libcuda whose every function returns CUDA_ERROR_STUB_LIBRARY, to link PyCUDA where there is no driver.

Reads cuda.h after the preprocessor, which turns names such as cuMemAlloc into those that are exported, cuMemAlloc_v2:

    gcc -E -P -I$CUDA_HOME/include -include cudaProfiler.h - </dev/null | stub_driver.py | gcc -shared -x c - -o libcuda.so
"""

from __future__ import annotations

import re
import sys

_DECLARATION = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY
# These write through a pointer that callers read even when the call failed.
_NAMING = ("cuGetErrorName", "cuGetErrorString")


def stub_source(declarations: str) -> str:
    """C source with a definition for every function declared."""
    names = sorted(set(_DECLARATION.findall(declarations)) - set(_NAMING))
    if "cuInit" not in names:
        raise ValueError("no declaration of cuInit on stdin; pipe `gcc -E -P` of cuda.h into this script")
    naming = (
        f'int {name}(int error, const char **text) {{ (void)error; *text = "stub library: no CUDA driver"; return 0; }}'
        for name in _NAMING
    )
    return "\n".join([*naming, *(f"int {name}(void) {{ return {_STUB_LIBRARY}; }}" for name in names)]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(stub_source(sys.stdin.read()))
