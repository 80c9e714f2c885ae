"""Devices in processes of their own: what is answered, and what happens when such a process dies, hangs or cannot start."""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from dnnserve.engine.child import serve
from dnnserve.engine.messages import Assignment, Map
from dnnserve.engine.net import NetHost, Terms
from dnnserve.engine.pipeline import LocalPipeline
from dnnserve.engine.process import EngineProcesses
from dnnserve.envelope import ModelKey
from dnnserve.processes.link import Link
from dnnserve.processes.parcel import Parcel, unpack

from dnncore.errors import (
    BackendUnavailableError,
    DeviceFaultError,
    DeviceNotFoundError,
    DnncoreError,
    OutOfMemoryError,
)
from tests.processes import is_running
from tests.server.engines import Orders, ToyHost, arenas_of, toy_engines
from tests.server.fakes import PATIENCE_S, block_of, make_rows, run, wait_until
from tests.server.packages import make_package, probabilities, served

KEY = ModelKey("digits", 1)
ROWS = np.random.default_rng(11).normal(size=(7, 1, 8, 8)).astype(np.float32)


class OutOfRoom(NetHost):
    """A device whose memory is full."""

    def load(self, *_: object) -> NoReturn:
        raise OutOfMemoryError("no room for the weights")


class Noting(NetHost):
    """A device that leaves a file when it has loaded a model."""

    def __init__(self, device: str, *, file: Path, models: dict[ModelKey, Any]) -> None:
        super().__init__(device, models)
        self._file = file

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        pipeline = super().load(model, max_batch_rows)
        with self._file.open("a") as file:
            file.write(f"{model} {max_batch_rows}\n")
        return pipeline


class Outspoken(NetHost):
    """A device that says from which level on its process logs."""

    def load(self, *_: object) -> NoReturn:
        raise DnncoreError(f"level {logging.getLogger().level}")


class Hanging(NetHost):
    """A device that never ends."""

    def load(self, *_: object) -> NoReturn:
        time.sleep(PATIENCE_S)
        raise AssertionError("nobody killed it")


def told(assignment: Assignment) -> EngineProcesses:
    engines = EngineProcesses()
    engines.tell(assignment)
    return engines


@pytest.fixture(scope="module")
def engines() -> Iterator[EngineProcesses]:
    models = {KEY: served()}
    engines = told(Assignment(functools.partial(NetHost, models=models, terms=Terms(num_slots=2)), "text", models))
    yield engines
    engines.close()


def test_a_parcel_holds_what_was_put_in_and_what_is_written_stays_here() -> None:
    value: dict[str, Any] = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([7], np.uint8), "c": "text"}
    with Parcel(value) as parcel:
        first, second = unpack(parcel.fd), unpack(parcel.fd)
    first["a"][0, 0] = 9.0
    assert second["a"].tolist() == value["a"].tolist()
    assert (second["b"].tolist(), second["c"]) == ([7], "text")


def test_models_are_loaded_before_anybody_opens_the_device_and_once(tmp_path: Path) -> None:
    file, other = tmp_path / "loaded", ModelKey("others", 2)
    models = {KEY: served(), other: served()}
    engines = told(Assignment(functools.partial(Noting, file=file, models=models), "text", models))
    try:
        engines.load_ahead("cpu", {KEY: 8, other: 4})
        wait_until(lambda: file.exists() and file.read_text() == "digits/1 8\nothers/2 4\n")
        host = engines("cpu")
        pipelines = [host.load(KEY, 8), host.load(other, 4)]
        assert [pipeline.max_batch_rows for pipeline in pipelines] == [8, 4]
        expected = probabilities(make_package(), ROWS)
        np.testing.assert_allclose(run(pipelines[0], ROWS), expected, rtol=1e-5, atol=1e-7)
        second = engines("cpu")  # of which nothing was asked ahead
        assert second.load(KEY, 2).max_batch_rows == 2
        assert file.read_text().splitlines() == ["digits/1 8", "others/2 4", "digits/1 2"]
        host.close()
        second.close()
    finally:
        engines.close()


def test_what_keeps_a_model_from_being_loaded_ahead_is_told_to_who_waits_for_it() -> None:
    models = {KEY: served()}
    engines = told(Assignment(functools.partial(OutOfRoom, models=models), "text", models))
    try:
        engines.load_ahead("cpu", {KEY: 8})
        host = engines("cpu")
        for _ in range(2):  # asked ahead, and then again
            with pytest.raises(OutOfMemoryError, match="no room for the weights"):
                host.load(KEY, 8)
        host.close()
    finally:
        engines.close()


def test_a_process_that_loads_for_nobody_ends_with_the_others(tmp_path: Path) -> None:
    file, models = tmp_path / "loaded", {KEY: served()}
    engines = told(Assignment(functools.partial(Noting, file=file, models=models), "text", models))
    engines.load_ahead("cpu", {KEY: 8})
    pid = engines._ahead["cpu"].pid
    wait_until(file.exists)
    engines.close()
    assert not is_running(pid)


def test_two_batches_in_two_slots_are_answered_in_order_and_the_process_ends_with_its_host(
    engines: EngineProcesses,
) -> None:
    host = engines("cpu")
    pipeline = host.load(KEY, 8)
    assert (pipeline.max_batch_rows, pipeline.depth) == (8, 2)
    assert set(pipeline.time(10**9)) == {1, 2, 4, 8}
    package = make_package()
    batches = [block_of(ROWS[:3]), block_of(ROWS[3:])], [block_of(ROWS[:2] + 1)]
    for batch in batches:
        pipeline.stage(batch)
        pipeline.begin()
    for batch, rows in zip(batches, (ROWS, ROWS[:2] + 1), strict=True):
        timing = pipeline.finish()
        assert 0 < timing.staged_ns < time.monotonic_ns()
        pipeline.deliver()
        outputs = np.concatenate([block.outputs[0] for block in batch])
        np.testing.assert_allclose(outputs, probabilities(package, rows), rtol=1e-5, atol=1e-7)
    pixels = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 1), np.uint8)
    expected = probabilities(package, package.of_images[0].normalize(pixels))
    np.testing.assert_allclose(run(pipeline, pixels), expected, rtol=1e-5, atol=1e-7)
    host.close()
    assert not is_running(host.pid)


def test_a_model_comes_and_goes_while_another_runs(engines: EngineProcesses) -> None:
    other, bad = ModelKey("digits", 2), ModelKey("digits", 3)
    engines.put(other, served(make_package(seed=7)))
    engines.put(bad, "no model at all")
    host = engines("cpu")
    pipeline = host.load(KEY, 8)
    for key in (other, bad):
        host.begin_load(key, 4, 10**8)
    fresh = None
    while fresh is None:
        np.testing.assert_allclose(run(pipeline, ROWS), probabilities(make_package(), ROWS), rtol=1e-5, atol=1e-7)
        fresh = host.loaded(other)
    expected = probabilities(make_package(seed=7), ROWS[:4])
    np.testing.assert_allclose(run(fresh.pipeline, ROWS[:4]), expected, rtol=1e-5, atol=1e-7)
    assert fresh.timings_ns[1] > 0
    with pytest.raises(DnncoreError, match="model"):  # noqa: PT012 - whichever look finds it ended
        while host.loaded(bad) is None:
            pass
    arenas = len(pipeline._arenas)
    assert arenas >= 1
    mapped = arenas_of(host.pid)
    host.unload(KEY)
    wait_until(lambda: arenas_of(host.pid) == mapped - arenas)
    np.testing.assert_allclose(run(fresh.pipeline, ROWS[:4]), expected, rtol=1e-5, atol=1e-7)
    host.close()
    engines.drop(other)
    engines.drop(bad)


def test_a_killed_process_is_a_lost_device_and_another_one_can_be_started(engines: EngineProcesses) -> None:
    host = engines("cpu")
    pipeline = host.load(KEY, 4)
    os.kill(host.pid, signal.SIGKILL)
    with pytest.raises(DeviceFaultError, match="ended by SIGKILL"):
        run(pipeline, ROWS[:1])
    host.close()
    again = engines("cpu")
    assert again.load(KEY, 4).max_batch_rows == 4
    again.close()


def test_what_cannot_be_sent_for_want_of_descriptors_costs_a_batch_and_no_device(
    engines: EngineProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = engines("cpu")
    pipeline = host.load(KEY, 8)
    expected = probabilities(make_package(), ROWS)
    np.testing.assert_allclose(run(pipeline, ROWS), expected, rtol=1e-5, atol=1e-7)

    def fail(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    for _ in range(pipeline.depth + 1):
        monkeypatch.setattr(host._child.link, "note", fail)
        with pytest.raises(DnncoreError, match="Too many open files") as caught:
            run(pipeline, ROWS)
        monkeypatch.undo()
        assert not isinstance(caught.value, DeviceFaultError)
    np.testing.assert_allclose(run(pipeline, ROWS), expected, rtol=1e-5, atol=1e-7)
    assert len(pipeline._arenas) == 1
    host.close()


def test_a_batch_for_which_there_is_no_memory_is_told_so_and_the_process_goes_on(tmp_path: Path) -> None:
    engines, orders = toy_engines(tmp_path)
    host = engines("cpu")
    pipeline = host.load(ModelKey("toy", 1), 8)
    expected = run(pipeline, make_rows(3.0, 2)).tolist()
    orders.give("full")
    for _ in range(pipeline.depth + 1):
        with pytest.raises(OutOfMemoryError, match="no room"):
            run(pipeline, make_rows(3.0, 2))
    orders.take_back("full")
    assert run(pipeline, make_rows(3.0, 2)).tolist() == expected == [[3.0, 6.0, 9.0]] * 2
    host.close()
    engines.close()


def test_signals_for_the_server_do_not_end_an_engine(engines: EngineProcesses) -> None:
    host = engines("cpu")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(host.pid, number)
    assert host.load(KEY, 1).max_batch_rows == 1
    host.close()


def test_what_cannot_be_opened_or_loaded_is_an_error_of_its_own_class(engines: EngineProcesses) -> None:
    with pytest.raises((DeviceNotFoundError, BackendUnavailableError)):
        engines("cuda:99")
    full = told(Assignment(functools.partial(OutOfRoom, models={}), "text"))
    host = full("cpu")
    with pytest.raises(OutOfMemoryError, match="no room for the weights"):
        host.load(KEY, 1)
    host.close()
    full.close()


def test_a_process_that_hangs_is_killed_from_another_thread() -> None:
    hanging = told(Assignment(functools.partial(Hanging, models={}), "text"))
    host = hanging("cpu")
    timer = threading.Timer(0.2, host.kill)
    timer.start()
    with pytest.raises(DeviceFaultError, match="ended by SIGKILL"):
        host.load(KEY, 1)
    timer.join()
    host.close()
    hanging.close()


def test_an_engine_ends_with_a_server_that_is_killed() -> None:
    script = (
        "import functools, time\n"
        "from dnnserve.engine.messages import Assignment\n"
        "from dnnserve.engine.net import NetHost\n"
        "from dnnserve.engine.process import EngineProcesses\n"
        "engines = EngineProcesses(['cpu'])\n"
        "engines.tell(Assignment(functools.partial(NetHost, models={}), 'text'))\n"
        "print(engines('cpu').pid, flush=True)\n"
        f"time.sleep({PATIENCE_S})\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_running(pid)
        server.kill()
    wait_until(lambda: not is_running(pid))


def test_processes_log_from_the_level_that_holds_now_also_those_that_are_started_later() -> None:
    engines = told(Assignment(functools.partial(Outspoken, models={}), "text", log_level="error"))
    first = engines("cpu")
    with pytest.raises(DnncoreError, match="level 40"):
        first.load(KEY, 8)
    engines.set_log_level("warning")
    for host in (first, engines("cpu")):
        with pytest.raises(DnncoreError, match="level 30"):
            host.load(KEY, 8)
        host.close()
    engines.close()


@pytest.mark.parametrize(
    "lose_file", [lambda end: Link(end).send(Map(1)), lambda end: end.send(b"fm")], ids=["an arena", "a large message"]
)
def test_an_engine_that_has_no_descriptor_for_what_it_is_sent_says_so_and_ends(
    lose_file: Callable[[socket.socket], object], tmp_path: Path
) -> None:
    ours, theirs = Link.pair()
    ours.settimeout(PATIENCE_S)
    here, there = Link(ours), Link(theirs)
    assignment = Assignment(functools.partial(ToyHost, orders=Orders(tmp_path)), "text")
    engine = threading.Thread(target=serve, args=("cpu", assignment, there), daemon=True)
    engine.start()
    opened = here.receive()
    assert opened is not None
    lose_file(ours)
    answer = here.receive()
    assert answer is not None, "it hangs"
    assert (answer[0].error, "no descriptor for" in answer[0].text) == ("DeviceFaultError", True)
    engine.join(PATIENCE_S)
    assert not engine.is_alive()
    here.close()
    there.close()
