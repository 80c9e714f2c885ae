"""What the binder hands to the driver, without one: the parameter blocks that the calls describe, whichever way they are bound."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import WORKSPACE, Calls, Copy, KernelCall, Memset, Place, Slot, WhereAligned, rewired
from dnncore.cuda.runtime import binder, driver, driver_tensor_map
from dnncore.cuda.runtime.driver import CudaCallError
from dnncore.cuda.runtime.graph import CopyNode, KernelNode, MemsetNode, Node, nodes_of
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.cuda.tensor_map import TensorMap
from dnncore.cuda.unit import Unit
from dnncore.errors import DeviceError
from dnncore.figures import H200
from tests.cases import CASES

UNIT = Unit("source", "entry")
ALIGNED, ODD = 0x10_0000, 0x10_0008


class _Status:
    def __init__(self, name: str) -> None:
        self.name = name


SUCCESS = _Status("CUDA_SUCCESS")


def _encoded(tensor: TensorMap, address: int) -> bytes:
    """Bytes that are others for another map, or another address."""
    return hashlib.sha512(repr((tensor, address)).encode()).digest() * 2


class _Driver:
    """Takes launches instead of a driver: each as the node that a graph would have for it, and the stream.

    Attributes:
        nodes: What was enqueued.
        current: The context that is current.
        refusals: The status of each launch from now on; none for success.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[tuple[int, Node]] = []
        self.current = _Context.handle
        self.refusals: list[str] = []
        monkeypatch.setattr(binder, "Launcher", self._launcher)
        monkeypatch.setattr(driver, "context_getter", lambda: lambda: (SUCCESS, self.current))
        monkeypatch.setattr(driver, "memset", lambda queue, *rest: self.nodes.append((queue, MemsetNode(*rest))))
        monkeypatch.setattr(driver_tensor_map, "encode_tensor_map", _encoded)
        monkeypatch.setattr(driver_tensor_map, "tensor_map_encoder", lambda tensor: partial(_encoded, tensor))
        monkeypatch.setattr(driver, "copy", lambda queue, *rest: self.nodes.append((queue, CopyNode(*rest))))

    def _launcher(self, unit: Unit, grid: Any, block: Any, params: bytes, shared_bytes: int, starts_early: bool) -> Any:
        class Launcher:
            success = SUCCESS

            def __init__(self) -> None:
                self.block = bytearray(params)

            @staticmethod
            def arguments(queue: int) -> tuple[int]:
                return (queue,)

        launcher: Any = Launcher()

        def call(queue: int) -> tuple[_Status]:
            if self.refusals:
                return (_Status(self.refusals.pop(0)),)
            self.nodes.append((queue, KernelNode(unit, grid, block, bytes(launcher.block), shared_bytes, starts_early)))
            return (SUCCESS,)

        launcher.call = call
        return launcher

    def taken(self) -> list[tuple[int, Node]]:
        nodes, self.nodes = self.nodes, []
        return nodes


class _Kernels:
    def function(self, unit: Unit, shared_bytes: int = 0) -> Any:
        return unit


class _Context:
    handle = 7
    forked = False

    def __init__(self, of: _Driver) -> None:
        self.entered = 0
        self._of = of

    def __enter__(self) -> None:
        self.entered += 1
        self._before, self._of.current = self._of.current, self.handle

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        self._of.current = self._before
        if isinstance(error, CudaCallError):
            raise self.mapped(error)

    def mapped(self, error: Exception) -> DeviceError:
        return DeviceError(str(error))


class _Stream(CudaStream):
    def __init__(self, handle: int) -> None:
        self._queue = handle

    @property
    def handle(self) -> int:
        return self._queue


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    return _Driver(monkeypatch)


def _bound(calls: Calls, context: Any) -> Any:
    return binder.bind(calls, _Kernels(), context)


def _wired(calls: Calls, context: Any, queue: int = 5) -> Any:
    return binder.wire(calls, _Kernels(), context, _Stream(queue))


def test_every_case_is_launched_as_a_graph_would_have_it(fake: _Driver) -> None:
    context, launched = _Context(fake), 0
    for problem in dict.fromkeys(case.problem for case in CASES):
        count = len(problem.inputs) + len(problem.outputs)
        for algorithm in algorithms_for(problem):
            offer = algorithm.offer(problem, H200)
            if isinstance(offer, str):
                continue
            calls = offer.prepare()
            launch = _bound(calls, context)
            wired = _wired(
                rewired(calls, [Place(count - 1 - i, 16) for i in range(count)], alpha=0.5, beta=2.0), context
            )
            for start in (ALIGNED, ODD):
                addresses = [start + (i << 24) for i in range(count)]
                workspace = 0x7F00_0000_0000
                launch(_Stream(3), 0.5, 2.0, [*addresses, workspace])
                expected = list(nodes_of(calls, 0.5, 2.0, [*addresses, workspace]))
                assert fake.taken() == [(3, node) for node in expected]
                wired([*[address - 16 for address in reversed(addresses)], workspace])
                assert fake.taken() == [(5, node) for node in expected]
                launched += len(expected)
    assert launched > 5000


def _call(*slots: Slot, params: bytes = bytes(64)) -> KernelCall:
    return KernelCall(UNIT, (1, 1, 1), (32, 1, 1), params, slots)


def _params(fake: _Driver) -> bytes:
    ((_, node),) = fake.taken()
    assert isinstance(node, KernelNode)
    return node.params


def test_what_other_addresses_take_is_bound_when_such_come(fake: _Driver) -> None:
    asked: list[Unit] = []

    class Kernels(_Kernels):
        def function(self, unit: Unit, shared_bytes: int = 0) -> Any:
            asked.append(unit)
            return unit

    other = Unit("source", "other")
    calls = (WhereAligned(((Place(0), 16),), (_call(),), lambda: (_call()._replace(unit=other),)),)
    launch = binder.bind(calls, Kernels(), _Context(fake))  # type: ignore[arg-type]
    launch(_Stream(3), 1.0, 0.0, [ALIGNED, 0])
    assert asked == [UNIT]
    launch(_Stream(3), 1.0, 0.0, [ODD, 0])
    launch(_Stream(4), 1.0, 0.0, [ODD, 0])
    launch(_Stream(4), 1.0, 0.0, [ALIGNED, 0])
    assert asked == [UNIT, other]
    assert [(queue, getattr(node, "unit", None)) for queue, node in fake.taken()] == [
        (3, UNIT),
        (3, other),
        (4, other),
        (4, UNIT),
    ]


def test_a_write_leaves_what_lies_between_two_fields(fake: _Driver) -> None:
    params = bytes(range(64))
    _wired((_call(Slot(8, Place(0)), Slot(40, Place(1)), params=params),), _Context(fake))([1, 2])
    assert (
        _params(fake)
        == params[:8] + (1).to_bytes(8, "little") + params[16:40] + (2).to_bytes(8, "little") + params[48:]
    )


@pytest.mark.parametrize(
    ("slots", "values", "expected"),
    [
        ((), [], {}),
        ((Slot(0, Place(WORKSPACE, 32)),), [1, 1024], {0: 1056}),
        ((Slot(0, Place(1)),), [1, 2], {0: 2}),
        ((Slot(0, Place(WORKSPACE)),), [1, 1024], {0: 1024}),
        ((Slot(0, Place(0)), Slot(24, Place(1, 4)), Slot(56, Place(0))), [16, 64], {0: 16, 24: 68, 56: 16}),
    ],
)
def test_fields_take_what_their_slots_say(
    slots: tuple[Slot, ...], values: Sequence[int], expected: dict[int, int], fake: _Driver
) -> None:
    _wired((_call(*slots),), _Context(fake))(values)
    found = bytearray(64)
    for field, value in expected.items():
        found[field : field + 8] = value.to_bytes(8, "little")
    assert _params(fake) == bytes(found)


@pytest.mark.parametrize("refusal", ["CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE"])
def test_a_kernel_that_the_current_context_refuses_is_launched_in_its_own(refusal: str, fake: _Driver) -> None:
    context = _Context(fake)
    fake.current, fake.refusals = 0, [refusal]
    _wired((_call(), _call()), context)([])
    assert (len(fake.taken()), context.entered, fake.current) == (2, 1, 0)


def test_what_its_own_context_refuses_is_an_error(fake: _Driver) -> None:
    context = _Context(fake)
    fake.refusals = ["CUDA_ERROR_INVALID_HANDLE"]
    with pytest.raises(DeviceError, match="cuLaunchKernel failed: CUDA_ERROR_INVALID_HANDLE"):
        _wired((_call(),), context)([])
    fake.current, fake.refusals = 0, ["CUDA_ERROR_INVALID_CONTEXT"] * 2
    with pytest.raises(DeviceError, match="INVALID_CONTEXT"):
        _wired((_call(),), context)([])
    fake.current, fake.refusals = 0, ["CUDA_ERROR_OUT_OF_MEMORY"]
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        _wired((_call(),), context)([])
    assert context.entered == 1


@pytest.mark.parametrize("other", [Memset(Place(0), 0, 8), Copy(Place(0), Place(0, 8), 8)], ids=["memset", "copy"])
def test_what_is_no_kernel_is_enqueued_in_its_own_context(other: Memset | Copy, fake: _Driver) -> None:
    context = _Context(fake)
    fake.current = 0
    _wired((_call(), other), context)([64])
    assert (len(fake.taken()), context.entered) == (2, 1)
    fake.current = context.handle
    _wired((_call(), other), context)([64])
    assert (len(fake.taken()), context.entered) == (2, 1)
