"""Signals from the command's first line on: before there is a server, while it begins, and in the processes that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dnnserve.processes.child import Child, told

from tests.processes import children
from tests.server.fakes import PATIENCE_S, wait_until
from tests.server.packages import make_package
from tests.server.test_command_line import COMMAND


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "digits"
    make_package().save(folder)
    return folder


def holds(pid: int, number: int) -> bool:
    """Whether a process has a signal wait, or has begun to hear it."""
    with contextlib.suppress(OSError):
        fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return bool((int(fields["SigBlk"], 16) | int(fields["SigCgt"], 16)) >> (number - 1) & 1)
    return False


@contextlib.contextmanager
def begun(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A server whose command has come to its first line, in a group of processes of its own."""
    ports = ("--grpc-port", 0, "--metrics-port", 0, "--devices", "cpu", "--lame-duck-seconds", 0, "--no-save-costs")
    command = [*COMMAND, *map(str, (*ports, *arguments))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            # Python itself catches SIGINT, so this is one that nobody knows before.
            wait_until(lambda: holds(process.pid, signal.SIGHUP) or process.poll() is not None)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("front_ends", [0, 2])
def test_a_stop_that_comes_before_there_is_a_server_ends_in_order(model: Path, number: int, front_ends: int) -> None:
    with begun("--model", model, "--front-ends", front_ends) as process:
        process.send_signal(number)
        said, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert said == ""
    assert "Traceback" not in log
    assert "told to stop before anything was served" in log


def test_a_sighup_that_comes_before_there_is_a_server_is_obeyed_once_there_is_one(model: Path, tmp_path: Path) -> None:
    ready_file, log_file = tmp_path / "ready", tmp_path / "log"
    with begun("--model", model, "--ready-file", ready_file) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: ready_file.exists() or process.poll() is not None)
        process.terminate()
        log_file.write_text(process.communicate(timeout=PATIENCE_S)[1])
    assert process.returncode == 0, log_file.read_text()
    assert log_file.read_text().count("configuration read again; changed: nothing") == 1


def test_a_command_line_that_is_refused_leaves_signals_as_they_were(tmp_path: Path) -> None:
    program = (
        "import signal\n"
        "from dnnserve.__main__ import main\n"
        f"print(main(['--model', {str(tmp_path / 'none')!r}, '--token-file', {str(tmp_path / 'none')!r}, '--devices', 'cpu']))\n"
        "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.stdout.splitlines() == ["2", "[]"], result.stderr


def test_a_signal_for_the_whole_group_does_not_end_a_child_that_begins() -> None:
    child = Child.start("tests.server.test_signals")
    try:
        wait_until(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(sys.executable.encode()))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child.pid, number)
        received = child.link.receive()  # what it says once it has begun
        assert received is not None
        assert received[0] == "begun"
    finally:
        child.link.close()
        assert child.wait() == "status 0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_the_whole_group_while_engines_begin_ends_the_server_in_order(model: Path, number: int) -> None:
    with begun("--model", model, "--engines", "process") as process:
        wait_until(lambda: bool(children(process.pid)) or process.poll() is not None)
        os.killpg(process.pid, number)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert "Traceback" not in log


if __name__ == "__main__":
    from dnnserve.processes.child import begin

    link = begin(sys.argv[-1], "begins")
    link.send("begun", [])
    told(link)
