"""Engine processes, of a fake device whose results are known or of a real one, that pause, die and take note as files say."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from dnnserve.engine.host import Host
from dnnserve.engine.messages import Assignment
from dnnserve.engine.net import NetHost, ServedModel, Terms
from dnnserve.engine.pipeline import LocalPipeline, Timing
from dnnserve.engine.process import EngineProcesses
from dnnserve.engine.slot import Apart, Slot
from dnnserve.envelope import Block, ModelKey

from dnncore.errors import OutOfMemoryError
from tests.server.fakes import CLASSES, make_spec


class Orders:
    """Files in a folder: what the test says to the processes, and they to it.

    While "pause" is there batches do not end. Where "die" is there the process kills itself once it has written outputs, but told
    nobody; it takes the file away first, so that its successor lives. Where "full" is there a batch finds no memory. "staged" has
    the batches whose rows were copied. While "shut" is there, devices cannot be opened yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def give(self, name: str) -> None:
        (self._folder / name).touch()

    def take_back(self, name: str) -> None:
        (self._folder / name).unlink()

    def given(self, name: str) -> bool:
        return (self._folder / name).exists()


class _Pipeline(LocalPipeline):
    def __init__(self, instance: Any, orders: Orders) -> None:
        super().__init__(instance)
        self._orders = orders

    def stage(self, batch: Sequence[Block], copiers: Executor | None = None) -> None:
        super().stage(batch, copiers)
        self._orders.give("staged")

    def finish(self) -> Timing:
        while self._orders.given("pause"):
            time.sleep(0.005)
        return super().finish()

    def deliver(self) -> None:
        super().deliver()
        if self._orders.given("die"):
            self._orders.take_back("die")
            os.kill(os.getpid(), signal.SIGKILL)


class _Instance:
    """Scores class j of a row by (j + 1) times the row's sum."""

    signature = make_spec().signature
    computed_ns = 1_000

    def __init__(self, max_batch_rows: int, orders: Orders) -> None:
        memory = [np.zeros(Slot.nbytes(max_batch_rows, self.signature), np.uint8) for _ in range(2)]
        self.max_batch_rows = max_batch_rows
        self.slots = [Slot(each, max_batch_rows, self.signature, make_spec().preprocessing) for each in memory]
        self._orders = orders
        self._begun: list[np.ndarray] = []

    def begin(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]] = ()
    ) -> None:
        assert not any(apart), "memory that this device has not locked"
        (filled,) = self.slots[slot].read(pixels=pixels)
        self._begun.append(filled[:rows])

    def finish(self) -> Mapping[int, np.ndarray]:
        rows = self._begun.pop(0)
        if self._orders.given("full"):
            raise OutOfMemoryError("no room")
        sums: np.ndarray = rows.reshape(len(rows), -1).sum(axis=1, keepdims=True)
        return {0: sums * np.arange(1, CLASSES + 1, dtype=np.float32)}


class ToyHost(Host):
    """A device of toys."""

    def __init__(self, _device: str, orders: Orders) -> None:
        self._orders = orders
        while orders.given("shut"):
            time.sleep(0.005)

    def load(self, _model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        return _Pipeline(_Instance(max_batch_rows, self._orders), self._orders)

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int) -> None:
        raise NotImplementedError

    def loaded(self, model: ModelKey) -> None:
        raise NotImplementedError

    def unload(self, model: ModelKey) -> None:
        raise NotImplementedError

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        pass

    def look(self) -> None:
        pass

    def kill(self) -> bool:
        return False

    def close(self) -> None:
        pass


def toy_engines(folder: Path) -> tuple[EngineProcesses, Orders]:
    """Processes of toys that obey the orders in a folder."""
    engines = EngineProcesses()
    engines.tell(Assignment(partial(ToyHost, orders=Orders(folder)), "text"))
    return engines, Orders(folder)


class ObedientHost(NetHost):
    """A device that computes what it is given."""

    def __init__(self, device: str, models: Mapping[ModelKey, ServedModel], orders: Orders) -> None:
        super().__init__(device, models, terms=Terms(num_slots=3))
        self._orders = orders

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        return _Pipeline(super().load(model, max_batch_rows).instance, self._orders)


def obedient_engines(folder: Path, models: dict[ModelKey, ServedModel]) -> tuple[EngineProcesses, Orders]:
    """Processes of real devices that obey the orders in a folder."""
    engines = EngineProcesses()
    open_host = partial(ObedientHost, models=models, orders=Orders(folder))
    engines.tell(Assignment(open_host, "text", dict(models)))
    return engines, Orders(folder)


def arenas_of(pid: int) -> int:
    """How many arenas an engine's process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:dnnserve-arena")
