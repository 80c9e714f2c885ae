"""`make test-gpu`: the tests that know CUDA devices on real ones, then two GPUs serving side by side; one JSON of what was seen.

python -m benchmarks.gpu_report --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.environment import environment

TESTS = (
    "tests/ops",
    "tests/nn",
    "tests/cuda",
    "tests/gpu",
    "tests/stress",
    "tests/functional",
    "tests/unit/test_handle.py",
    "tests/unit/test_programs.py",
    "tests/unit/test_streams.py",
    "tests/unit/test_wiring.py",
    "tests/unit/test_dlpack.py",
    "tests/unit/test_cuda_array.py",
    "tests/e2e/test_two_devices.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--jobs", default="4", help="processes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    junit = options.out / "gpu-tests.xml"
    # One thread a process for the oracles' sums: left alone each process starts as many as there are cores, and all of them crawl.
    environ = {"OMP_NUM_THREADS": "1"} | os.environ | {"DNNCORE_TEST_GPU": "1"}
    command = [sys.executable, "-m", "pytest", "-n", options.jobs, "--dist", "loadgroup", f"--junitxml={junit}", *TESTS]
    status = subprocess.run(command, env=environ, check=False).returncode
    suite = next(ElementTree.parse(junit).getroot().iter("testsuite"))
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    on_gpu = sum("cuda" in case.attrib["name"] for case in suite.iter("testcase"))
    failed = [
        f"{case.attrib['classname']}::{case.attrib['name']}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    junit.unlink()
    document = {
        "environment": environment(),
        "command": "python -m benchmarks.gpu_report, which `make test-gpu` runs",
        "seconds": float(suite.attrib["time"]),
        **counts,
        "with_cuda_in_the_name": on_gpu,
        "failed": failed,
    }
    path = options.out / "gpu-tests.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
