"""How many processes take calls where nobody says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from dnnserve import front_ends, program
from dnnserve.command_line import parse_arguments
from dnnserve.config import ServerConfig
from dnnserve.early import EarlyProcesses
from dnnserve.front_ends import count_cores, count_gpus, decided, suggested
from dnnserve.signals import Signals

from tests.server.fakes import wait_until
from tests.server.packages import make_package
from tests.server.test_command_line import started


@pytest.mark.parametrize(
    ("gpus", "cores", "count"),
    [
        (0, 128, 0),
        (1, 2, 0),
        (1, 7, 0),
        (1, 8, 2),
        (1, 16, 4),
        (1, 128, 8),
        (2, 16, 4),
        (2, 64, 16),
        (8, 128, 32),
        (64, 1024, 64),
    ],
)
def test_there_are_eight_for_each_gpu_one_for_each_four_cores_at_most_and_none_where_that_were_one(
    gpus: int, cores: int, count: int
) -> None:
    assert suggested(gpus, cores) == count


@pytest.mark.parametrize(
    ("named", "visible", "count"),
    [
        (None, None, 2),
        (None, "1", 1),
        (None, "0,1,2", 2),
        (None, "GPU-a,GPU-b", 2),
        (None, "", 0),
        (None, "-1", 0),
        (None, "1,-1,0", 1),
        ("cpu", None, 0),
        ("cuda:0", None, 1),
        ("cuda:0, cuda:1,cuda:2", "0", 3),
        ("cuda:1,cuda:1,cpu", None, 1),
    ],
)
def test_gpus_are_those_that_are_named_or_else_those_that_are_there_and_visible(
    tmp_path: Path, named: str | None, visible: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(named, tmp_path, environment) == count


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 16), ("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 16), ("odd", 16), (None, 16)],
)
def test_cores_are_those_that_a_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert count_cores(tmp_path / "cpu.max") == count


def test_a_number_that_was_set_holds_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "count_cores", lambda: 16)
    arguments = ["--model", "m", "--devices", "cuda:0"]
    assert decided(parse_arguments(arguments)).num_front_ends == 4
    for count in (0, 7):
        assert decided(parse_arguments([*arguments, "--front-ends", str(count)])).num_front_ends == count


def test_the_command_begins_as_many_as_are_suggested_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    begun: list[int] = []

    def begin(config: ServerConfig) -> NoReturn:
        begun.append(config.num_front_ends)
        raise OSError("that will do")

    monkeypatch.setattr(front_ends, "count_cores", lambda: 12)
    monkeypatch.setattr(EarlyProcesses, "begin", begin)
    monkeypatch.setattr(program, "configure_logging", lambda *_: None)
    monkeypatch.setattr(program, "keep_freed_memory", lambda: None)
    assert program.run(["--model", "m", "--devices", "cuda:0"], Signals()) == 2
    assert begun == [3]
    assert "3 processes take calls; --front-ends 0 leaves it to this one" in caplog.messages


def test_on_a_cpu_the_servers_own_process_takes_calls_and_reading_the_configuration_again_changes_nothing(
    tmp_path: Path,
) -> None:
    make_package().save(tmp_path / "digits")
    log = tmp_path / "log"
    with log.open("w") as stderr:
        arguments = "--model", tmp_path / "digits", "--devices", "cpu"
        with started(tmp_path / "ready", *arguments, stderr=stderr) as (process, _):
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: "configuration read again; changed: nothing" in log.read_text())
    assert "processes take calls" not in log.read_text()
    assert "hold from the next start on" not in log.read_text()
