"""Processes that are begun before anything else: which, that they are copies, and that none is left of what is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from dnnserve import assembly, early, front_ends
from dnnserve.command_line import parse_arguments
from dnnserve.early import EarlyProcesses, likely_engines
from dnnserve.processes.child import ENGINE, Child, Children

from dnncore import devices
from tests.server.fakes import wait_until
from tests.server.packages import make_package
from tests.server.test_command_line import started


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ("cuda:0", "cuda:1")),
        (("--devices", "cuda:1"), ("cuda:1",)),
        (("--devices", "cuda:0, cuda:0"), ("cuda:0", "cuda:0")),
        (("--devices", "cuda:0,cpu"), ()),
        (("--devices", "cpu"), ()),
        (("--devices", "cpu", "--engines", "process"), ("cpu",)),
        (("--devices", "cuda:0", "--engines", "thread"), ()),
    ],
)
def test_devices_that_will_have_processes_are_known_without_a_driver(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(early, "count_gpus", lambda _: 2)
    assert likely_engines(parse_arguments(["--model", "m", *arguments])) == names


def test_an_engine_is_a_copy_of_the_servers_process_and_a_server_that_cannot_start_leaves_none(tmp_path: Path) -> None:
    make_package().save(tmp_path / "digits")
    arguments = "--model", tmp_path / "digits", "--devices", "cpu", "--engines", "process", "--front-ends", "2"
    with started(tmp_path / "ready", *arguments) as (process, _):
        found = {_comm(pid): _command_line(pid) for pid in _children(process.pid)}
        assert found["dnnserve-engine"] == found["dnnserve-front"] == _command_line(process.pid)
        children = _children(process.pid)
        assert len(children) == 3
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in children))


def test_what_cannot_all_be_begun_is_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Begun:
        def close(self) -> None:
            ended.append("engine")

    def start(*_: object) -> Child:
        raise OSError("no more processes")

    monkeypatch.setattr(early, "can_fork", lambda: True)
    forks = iter([Begun()])
    monkeypatch.setattr(Child, "fork", lambda _main: next(forks, None) or start())
    config = front_ends.decided(
        parse_arguments(["--model", "m", "--devices", "cpu", "--engines", "process", "--front-ends", "1"])
    )
    with pytest.raises(OSError, match="no more processes"):
        EarlyProcesses.begin(config)
    assert ended == ["engine"]


def test_engines_of_devices_that_are_not_there_are_ended(tmp_path: Path) -> None:
    make_package().save(tmp_path / "digits")
    config = parse_arguments(
        ["--model", str(tmp_path / "digits"), "--devices", "cpu", "--grpc-port", "0", "--metrics-port", "0"]
    )
    ended: list[str] = []

    class Begun:
        def close(self) -> None:
            ended.append("cuda:7")

    server = assembly.make_server(config, EarlyProcesses(engines={"cuda:7": Begun()}))  # type: ignore[dict-item]
    server.drain()
    assert ended == ["cuda:7"]


def test_a_device_that_was_likely_and_is_not_there_is_served_by_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package().save(tmp_path / "digits")
    config = parse_arguments(["--model", str(tmp_path / "digits"), "--grpc-port", "0", "--metrics-port", "0"])
    child = Child.start(ENGINE, "cpu")  # as of a GPU whose driver does not answer
    monkeypatch.setattr(assembly, "likely_engines", lambda _: ("cuda:7",))
    monkeypatch.setattr(devices, "resolve", lambda _: ("cpu",))
    server = assembly.make_server(config, EarlyProcesses(engines={"cuda:7": Children(ENGINE, "cuda:7", begun=[child])}))
    assert server.device_labels == ("cpu",)
    assert not Path("/proc", str(child.pid)).exists()
    server.drain()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
