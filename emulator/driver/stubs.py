"""Makes the parts of libcuda.so.1 that follow from cuda.h alone.

* every entry point that no object file defines: it prints its name and returns CUDA_ERROR_NOT_SUPPORTED;
* the table of CUresult for cuGetErrorName and cuGetErrorString;
* the table of entry points by name and version for cuGetProcAddress.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

_DESCRIPTIONS = {
    "CUDA_SUCCESS": "no error",
    "CUDA_ERROR_INVALID_VALUE": "invalid argument",
    "CUDA_ERROR_NOT_INITIALIZED": "initialization error",
    "CUDA_ERROR_DEINITIALIZED": "driver shutting down",
    "CUDA_ERROR_PROFILER_DISABLED": "profiler disabled while using external profiling tool",
    "CUDA_ERROR_PROFILER_NOT_INITIALIZED": "profiler not initialized: call cudaProfilerInitialize()",
    "CUDA_ERROR_STUB_LIBRARY": "CUDA driver is a stub library",
    "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER": "API call is not supported in the installed CUDA driver",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "CUDA-capable device(s) is/are busy or unavailable",
    "CUDA_ERROR_NO_DEVICE": "no CUDA-capable device is detected",
    "CUDA_ERROR_INVALID_DEVICE": "invalid device ordinal",
    "CUDA_ERROR_DEVICE_NOT_LICENSED": "device doesn't have valid Grid license",
    "CUDA_ERROR_INVALID_IMAGE": "device kernel image is invalid",
    "CUDA_ERROR_INVALID_CONTEXT": "invalid device context",
    "CUDA_ERROR_MAP_FAILED": "mapping of buffer object failed",
    "CUDA_ERROR_UNMAP_FAILED": "unmapping of buffer object failed",
    "CUDA_ERROR_ALREADY_MAPPED": "resource already mapped",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "no kernel image is available for execution on the device",
    "CUDA_ERROR_ALREADY_ACQUIRED": "resource already acquired",
    "CUDA_ERROR_NOT_MAPPED": "resource not mapped",
    "CUDA_ERROR_NOT_MAPPED_AS_ARRAY": "resource not mapped as array",
    "CUDA_ERROR_NOT_MAPPED_AS_POINTER": "resource not mapped as pointer",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "uncorrectable ECC error encountered",
    "CUDA_ERROR_UNSUPPORTED_LIMIT": "limit is not supported on this architecture",
    "CUDA_ERROR_CONTEXT_ALREADY_IN_USE": "exclusive-thread device already in use by a different thread",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": "peer access is not supported between these two devices",
    "CUDA_ERROR_INVALID_PTX": "a PTX JIT compilation failed",
    "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT": "invalid OpenGL or DirectX context",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "uncorrectable NVLink error detected during the execution",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "PTX JIT compiler library not found",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the provided PTX was compiled with an unsupported toolchain.",
    "CUDA_ERROR_JIT_COMPILATION_DISABLED": "PTX JIT compilation was disabled",
    "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY": "the provided execution affinity is not supported",
    "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC": "the provided PTX contains unsupported call to cudaDeviceSynchronize",
    "CUDA_ERROR_CONTAINED": "Invalid access of peer GPU memory over nvlink or a hardware error",
    "CUDA_ERROR_INVALID_SOURCE": "device kernel image is invalid",
    "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED": "shared object initialization failed",
    "CUDA_ERROR_OPERATING_SYSTEM": "OS call failed or operation not supported on this OS",
    "CUDA_ERROR_INVALID_HANDLE": "invalid resource handle",
    "CUDA_ERROR_ILLEGAL_STATE": "the operation cannot be performed in the present state",
    "CUDA_ERROR_LOSSY_QUERY": "attempted introspection would be semantically lossy",
    "CUDA_ERROR_NOT_FOUND": "named symbol not found",
    "CUDA_ERROR_NOT_READY": "device not ready",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an illegal memory access was encountered",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "too many resources requested for launch",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the launch timed out and was terminated",
    "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING": "launch uses incompatible texturing mode",
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED": "peer access is already enabled",
    "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED": "peer access has not been enabled",
    "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE": "cannot set while device is active in this process",
    "CUDA_ERROR_ASSERT": "device-side assert triggered",
    "CUDA_ERROR_TOO_MANY_PEERS": "peer mapping resources exhausted",
    "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED": "part or all of the requested memory range is already mapped",
    "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED": "pointer does not correspond to a registered memory region",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "an illegal instruction was encountered",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "operation not supported on global/shared address space",
    "CUDA_ERROR_INVALID_PC": "invalid program counter",
    "CUDA_ERROR_LAUNCH_FAILED": "unspecified launch failure",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "too many blocks in cooperative launch",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": "tensor memory not completely freed",
    "CUDA_ERROR_NOT_PERMITTED": "operation not permitted",
    "CUDA_ERROR_NOT_SUPPORTED": "operation not supported",
    "CUDA_ERROR_SYSTEM_NOT_READY": "system not yet initialized",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "system has unsupported display driver / cuda driver combination",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "forward compatibility was attempted on non supported HW",
    "CUDA_ERROR_MPS_CONNECTION_FAILED": "MPS client failed to connect to the MPS control daemon or the MPS server",
    "CUDA_ERROR_MPS_RPC_FAILURE": "the remote procedural call between the MPS server and the MPS client failed",
    "CUDA_ERROR_MPS_SERVER_NOT_READY": "MPS server is not ready to accept new MPS client requests",
    "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED": "the hardware resources required to create MPS client have been exhausted",
    "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED": (
        "the hardware resources required to support device connections have been exhausted"
    ),
    "CUDA_ERROR_MPS_CLIENT_TERMINATED": "the MPS client has been terminated by the server",
    "CUDA_ERROR_CDP_NOT_SUPPORTED": (
        "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"
    ),
    "CUDA_ERROR_CDP_VERSION_MISMATCH": "unsupported interaction between different versions of CUDA Dynamic Parallelism",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "operation not permitted when stream is capturing",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": "operation failed due to a previous error during capture",
    "CUDA_ERROR_STREAM_CAPTURE_MERGE": "operation would result in a merge of separate capture sequences",
    "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED": "capture was not ended in the same stream as it began",
    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED": "capturing stream has unjoined work",
    "CUDA_ERROR_STREAM_CAPTURE_ISOLATION": "dependency created on uncaptured work in another stream",
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": (
        "operation would make the legacy stream depend on a capturing blocking stream"
    ),
    "CUDA_ERROR_CAPTURED_EVENT": "operation not permitted on an event last recorded in a capturing stream",
    "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD": (
        "attempt to terminate a thread-local capture sequence from another thread"
    ),
    "CUDA_ERROR_TIMEOUT": "wait operation timed out",
    "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE": (
        "the graph update was not performed because it included changes which violated constraints"
        " specific to instantiated graph update"
    ),
    "CUDA_ERROR_EXTERNAL_DEVICE": "an async error has occured in external entity outside of CUDA",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "a kernel launch error has occurred due to cluster misconfiguration",
    "CUDA_ERROR_FUNCTION_NOT_LOADED": (
        "the function handle is not loaded when calling an API that requires a loaded function"
    ),
    "CUDA_ERROR_INVALID_RESOURCE_TYPE": (
        "one or more resources passed in are not valid resource types for the operation"
    ),
    "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION": (
        "one or more resources are insufficient or non-applicable for the operation"
    ),
    "CUDA_ERROR_UNKNOWN": "unknown error",
}
"""What the driver says where that is not the name in small letters: as an H200's does, and for codes that it was not asked for as
cudaGetErrorString of CUDA 13.0, whose texts are the same."""


def _output(command: Sequence[str], text: str = "") -> str:
    """What a program prints that is given a text.

    Raises:
        RuntimeError: it failed; the message holds what it printed.
    """
    run = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    return run.stdout


def _preprocess(include: Path, *defines: str) -> str:
    """cuda.h and its companions as one line of C."""
    source = "#include <cuda.h>\n#include <cudaProfiler.h>\n#include <cudaTypedefs.h>\n"
    return " ".join(_output(["g++", "-E", "-P", "-x", "c", "-I", str(include), *defines, "-"], source).split())


def entry_points(include: Path) -> set[str]:
    """Every function of the driver API, old versions and per-thread variants as well."""
    texts = (_preprocess(include), _preprocess(include, "-D__CUDA_API_VERSION_INTERNAL"))
    return {name for text in texts for name in re.findall(r"\bCUresult (cu[A-Z]\w*) ?\(", text)}


def error_codes(include: Path) -> dict[str, int]:
    """The members of CUresult."""
    found = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult", _preprocess(include))
    if found is None:
        raise ValueError(f"no CUresult in {include}/cuda.h")
    return {name: int(value) for name, value in re.findall(r"(CUDA_\w+) = (\d+)", found[1])}


def versions(include: Path, names: set[str]) -> list[tuple[str, int, str]]:
    """(name, CUDA version it came with, symbol) of every entry point, by the typedefs of cudaTypedefs.h.

    The n-th version of a function is the symbol with the n-th suffix: none, _v2, _v3 ...
    """
    text = _preprocess(include, "-D__CUDA_API_VERSION_INTERNAL")
    typedefs: dict[str, set[int]] = {}
    for name, version, thread in re.findall(r"\bPFN_(cu[A-Z]\w*?)_v(\d+)(_pt[ds][sz])?\b", text):
        if not thread:
            typedefs.setdefault(name, set()).add(int(version))
    rows = []
    for name, known in typedefs.items():
        symbols = [symbol for symbol in (name, *(f"{name}_v{n}" for n in range(2, 10))) if symbol in names]
        # Where the oldest symbols are gone from the headers, the newest ones still pair up.
        pairs = zip(sorted(known, reverse=True), reversed(symbols), strict=False)
        rows += [(name, version, symbol) for version, symbol in pairs]
    rows.append(("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"))  # a macro of cuda.h, not a suffix
    return sorted(rows)


def defined_symbols(objects: Iterable[Path]) -> set[str]:
    """The entry points that object files define."""
    lines = _output(["nm", "--defined-only", "--format=posix", *map(str, objects)]).splitlines()
    return {line.split()[0] for line in lines if re.match(r"cu[A-Z]\w* T ", line)}


def generate(include: Path, objects: Sequence[Path]) -> str:
    """The C++ source, for objects that define the rest of the library."""
    names = entry_points(include)
    defined = defined_symbols(objects)
    missing = sorted(names - defined)
    lines = [
        "// Made by emulator/driver/stubs.py from cuda.h. It does not include cuda.h: the stubs have no parameters.",
        '#include "driver/tables.h"',
        "",
        "#include <cstdio>",
        "",
        "namespace emu::driver {",
        "const ErrorText kErrorTexts[] = {",
    ]
    for name, code in error_codes(include).items():
        words = name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
        lines.append(f'  {{{code}, "{name}", "{_DESCRIPTIONS.get(name, words)}"}},')
    lines += [
        "};",
        "const unsigned kNumErrorTexts = sizeof kErrorTexts / sizeof *kErrorTexts;",
        "",
        "static int not_emulated(const char* name) {",
        '  fprintf(stderr, "emucuda: %s is not emulated\\n", name);',
        "  return 801;  // CUDA_ERROR_NOT_SUPPORTED",
        "}",
        "}  // namespace emu::driver",
        "",
        'extern "C" {',
    ]
    lines += [f'int {name}() {{ return emu::driver::not_emulated("{name}"); }}' for name in missing]
    lines += [f"int {name}();" for name in sorted(names & defined)]
    lines += [
        "}",
        "",
        "namespace emu::driver {",
        "const EntryPoint kEntryPoints[] = {  // by name, then by version",
    ]
    lines += [
        f'  {{"{name}", {version}, reinterpret_cast<void*>({symbol})}},'
        for name, version, symbol in versions(include, names)
    ]
    lines += [
        "};",
        "const unsigned kNumEntryPoints = sizeof kEntryPoints / sizeof *kEntryPoints;",
        "}  // namespace emu::driver",
    ]
    return "\n".join(lines) + "\n"


def write(folder: Path, cuda: Path, objects: Sequence[Path]) -> Path:
    """Write the source into a folder; its path. The objects define the rest of the library, `cuda` is the toolkit."""
    path = folder / "driver_tables.cpp"
    path.write_text(generate(cuda / "include", objects))
    return path
