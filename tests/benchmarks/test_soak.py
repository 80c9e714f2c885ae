"""What the soak counts as memory, what as growth, and whom it kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from benchmarks.soak import begun, growth, sample

_MIB = 64
_LIBRARY = str(max(Path(grpc.__file__).parent.rglob("*.so"), key=lambda path: path.stat().st_size))
_OPEN = f"file = open({_LIBRARY!r}, 'rb')"
_WORKER = """
import mmap, os, subprocess, sys
{body}
print("there", flush=True)
sys.stdin.read()
"""
_SHARED = f"""
fd = os.memfd_create("shared")
os.truncate(fd, {_MIB} << 20)
mapped = mmap.mmap(fd, 0)
mapped.write(b"1" * ({_MIB} << 20))
"""
_SHARED_TWICE = f"""{_SHARED}
touch = "import mmap, sys; m = mmap.mmap(int(sys.argv[1]), 0); sum(m[::4096]); print(flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", touch, str(fd)], pass_fds=(fd,), stdout=subprocess.PIPE)
child.stdout.readline()
"""


@contextmanager
def process(body: str) -> Iterator[int]:
    """The number of a process that has done something and waits, as do its children, until its standard input is closed."""
    command = [sys.executable, "-S", "-c", _WORKER.format(body=body)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "there\n"
        yield worker.pid


def memory(body: str) -> float:
    """MiB that a process has more than one that does nothing."""
    with process("") as idle, process(body) as busy:
        return sample(busy)["MiB"] - sample(idle)["MiB"]


def test_files_that_a_process_maps_are_not_its_memory_because_others_map_them_too() -> None:
    assert Path(_LIBRARY).stat().st_size > 4 << 20
    more = memory(f"{_OPEN}; mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); sum(mapped[::4096])")
    assert abs(more) < 1


def test_what_is_written_into_a_private_mapping_of_a_file_is() -> None:
    copied = "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY); mapped[: 4 << 20] = b'1' * (4 << 20)"
    more = memory(f"{_OPEN}; {copied}")
    assert more == pytest.approx(4, abs=1)


def test_memory_of_a_process_counts() -> None:
    assert memory(f"held = b'1' * ({_MIB} << 20)") == pytest.approx(_MIB, abs=1)


def test_memory_that_two_of_the_tree_share_counts_once() -> None:
    with process(_SHARED_TWICE) as pid:
        two = sample(pid)
    assert two["MiB of the server"] == pytest.approx(_MIB / 2, rel=0.25)
    assert _MIB < two["MiB"] < 1.5 * _MIB


def test_who_has_lived_longest_began_first() -> None:
    with process("") as child:
        assert min([child, os.getpid()], key=begun) == os.getpid()


def test_growth_is_since_the_second_quarter() -> None:
    mib = [10.0, 90.0, 100.0, 101.0, 102.0, 103.0, 104.0, 110.0]
    samples = [{"MiB": each, "descriptors": 5.0, "threads": 3.0} for each in mib]
    assert growth(samples) == {"MiB": 107.0 - 100.5, "descriptors": 0.0, "threads": 0.0}


def test_a_process_that_is_being_started_again_for_a_moment_is_no_growth() -> None:
    samples = [{"MiB": 50.0, "MiB of the engine": 20.0} for _ in range(12)]
    samples[4] = {"MiB": 30.0}
    assert growth(samples) == {"MiB": 0.0, "MiB of the engine": 0.0}


def test_a_run_that_is_too_short_says_nothing_of_growth() -> None:
    assert growth([{"MiB": 1.0}] * 3) == {}
