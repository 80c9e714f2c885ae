"""Hours of mixed load with odd clients and a fault each minute: is every request answered once and right, and does nothing grow?

    python -m benchmarks.soak --minutes 120
    python -m benchmarks.soak --minutes 120 --batch-ms 40 --max-batch 8

The server is dnnserve as a user starts it, with processes of front ends and engines. A steady client sends at a part of what the
server took in a short closed loop; beside it, each second, somebody misbehaves; each minute a process is killed. Ends with 1 when
an answer was wrong or missing, a call failed in a way that no fault explains, or memory, descriptors or threads grew.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from benchmarks import paced
from benchmarks.core_client import keep_in_flight
from benchmarks.front_end import INFER
from benchmarks.server import RunningServer
from benchmarks.serving import untrained_package

_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_CLASSIFY = "/dnnapi.v1.ClassifierService/Classify"
_DEADLINE_S = 5.0
_PATIENCE_S = 10.0  # beyond the deadline: a call that has not ended by then never does
_AFTERMATH_S = 15.0  # for which a fault explains refusals
_CONNECTIONS = 8
_MEASURED_S = 5.0
_EXPLAINED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_OVERLOAD = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
_SAMPLE_S = 29.0  # not in step with a fault each minute: samples would find a process that is being started again, or none would
_GROWTH = {"MiB": 8.0, "descriptors": 8.0, "threads": 8.0}
"""More of these than in the second quarter of the run, in the whole tree of processes, counts as growth."""
_OWN = ("Pss_Anon", "Pss_Shmem")
"""Memory that nobody but the tree has. Pages of files are left out, above all the code of Python, NumPy and gRPC: which part of
them a process is charged with depends on who else maps the same files, as every test and benchmark on the machine does."""


@dataclass(slots=True)
class Seen:
    """What happened. Owned by one thread; not checked."""

    ends: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    last_fault_s: float = float("-inf")
    samples: list[dict[str, float]] = field(default_factory=list)

    def complain(self, text: str) -> None:
        """Keep and print what must not be."""
        self.wrong.append(text)
        print(f"WRONG: {text}", flush=True)


def request(value: float) -> bytes:
    """A serialized request for one row."""
    message = inference.ModelInferRequest(model_name="digits", id=f"{value}")
    message.inputs.add(name="data", datatype="FP32", shape=(1, 1, 8, 8))
    message.raw_input_contents.append(np.full((1, 1, 8, 8), value, np.float32).tobytes())
    return bytes(message.SerializeToString())


def answer(serialized: bytes) -> tuple[str, np.ndarray]:
    """A response's id and its probabilities."""
    message = inference.ModelInferResponse.FromString(serialized)
    return message.id, np.frombuffer(message.raw_output_contents[0], "<f4")


class Steady:
    """Sends at a fixed rate, whatever comes back. Owned by one thread; not checked."""

    def __init__(self, address: str, seen: Seen) -> None:
        self._channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(_CONNECTIONS)
        ]
        self._calls = itertools.cycle([channel.unary_unary(INFER, None, None) for channel in self._channels])
        self._seen = seen
        self._expected: dict[str, np.ndarray] = {}
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, until: float) -> None:
        """Send until then, and wait for what is still open."""
        values, due = itertools.cycle(np.linspace(-1, 1, 16)), time.monotonic()
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._one(float(next(values))))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            due += random.expovariate(rate)
        await asyncio.gather(*self._open)
        for channel in self._channels:
            await channel.close(None)

    async def _one(self, value: float) -> None:
        sent = time.monotonic()
        try:
            call = next(self._calls)(request(value), timeout=_DEADLINE_S)
            name, found = answer(await asyncio.wait_for(call, _DEADLINE_S + _PATIENCE_S))
        except TimeoutError:
            self._seen.complain(f"a call did not end within {_DEADLINE_S + _PATIENCE_S} s")
        except grpc.RpcError as error:
            code = error.code()
            self._seen.ends[code.name] += 1
            near = sent - _DEADLINE_S <= self._seen.last_fault_s + _AFTERMATH_S
            if code not in _OVERLOAD and not (code in _EXPLAINED and near):
                self._seen.complain(
                    f"{code.name} {time.monotonic() - self._seen.last_fault_s:.0f} s after a fault: {error.details()}"
                )
        else:
            self._seen.ends["OK"] += 1
            expected = self._expected.setdefault(name, found)
            if name != f"{value}" or not np.allclose(found, expected, atol=1e-5):
                self._seen.complain(f"the answer to {value} is that to {name}: {found} for {expected}")


class Misbehaving:
    """One odd client each second. Owned by one thread; not checked."""

    def __init__(self, address: str, seen: Seen) -> None:
        self._address, self._seen = address, seen
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._held: list[socket.socket] = []
        self._kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "garbage": lambda: self._expect(INFER, os.urandom(200), grpc.StatusCode.INVALID_ARGUMENT),
            "unknown model": lambda: self._expect(
                INFER, inference.ModelInferRequest(model_name="none").SerializeToString(), grpc.StatusCode.NOT_FOUND
            ),
            "junk image": lambda: self._expect(
                _CLASSIFY,
                classifier.ClassifyRequest(model_name="digits", images=[os.urandom(5000)]).SerializeToString(),
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
            "expired": lambda: self._expect(INFER, request(0.0), grpc.StatusCode.DEADLINE_EXCEEDED, timeout=1e-4),
            "cancelled": self._cancel,
            "left stream": self._stream,
            "reset": self._reset,
            "held connection": self._hold,
        }

    async def run(self, until: float) -> None:
        """Misbehave until then."""
        for name, act in itertools.cycle(self._kinds.items()):
            if time.monotonic() >= until:
                break
            with suppress(OSError):
                await act()
            self._seen.odd[name] += 1
            await asyncio.sleep(1.0)
        for one in self._held:
            one.close()

    async def _expect(self, method: str, message: bytes, code: grpc.StatusCode, timeout: float = _DEADLINE_S) -> None:
        async with grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                await channel.unary_unary(method, None, None)(message, timeout=timeout)
                got = grpc.StatusCode.OK
            except grpc.RpcError as error:
                got = error.code()
        near = time.monotonic() <= self._seen.last_fault_s + _AFTERMATH_S
        if got is not code and got not in _OVERLOAD and not (near and got in _EXPLAINED):
            self._seen.complain(f"{got.name} in place of {code.name} from {method}")

    async def _cancel(self) -> None:
        async with grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary(INFER, None, None)
            calls = [infer(request(0.0), timeout=_DEADLINE_S) for _ in range(50)]
            await asyncio.sleep(0.005)
            for call in calls:
                call.cancel()

    async def _stream(self) -> None:
        channel = grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])
        call = channel.stream_stream(_STREAM, None, None)(None, timeout=_DEADLINE_S)
        with suppress(grpc.RpcError):
            await call.write(request(0.0))
        await channel.close(None)

    async def _reset(self) -> None:
        for part in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", os.urandom(100)):
            with socket.create_connection(self._place, timeout=2) as one:
                one.sendall(part)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets

    async def _hold(self) -> None:
        self._held.append(socket.create_connection(self._place, timeout=2))
        if len(self._held) > 20:
            self._held.pop(0).close()


def family(pid: int) -> dict[int, str]:
    """Names of a process and all below it, by their numbers."""
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= family(int(child))
    return found


def sample(pid: int) -> dict[str, float]:
    """Memory, descriptors and threads of a process and all below it, and its memory by who has it."""
    total = dict.fromkeys(_GROWTH, 0.0)
    for one, name in family(pid).items():
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = (
                Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:]
            )  # the first is the range of addresses
            kib = {kind: int(size.split()[0]) for kind, _, size in (line.partition(":") for line in lines)}
            own = sum(kib[kind] for kind in _OWN) / 1024
            of_name = f"MiB of {'the server' if one == pid else name}"
            total["MiB"] += own
            total[of_name] = total.get(of_name, 0.0) + own
            total["descriptors"] += len(list(Path(f"/proc/{one}/fd").iterdir()))
            total["threads"] += len(list(Path(f"/proc/{one}/task").iterdir()))
    return total


def begun(pid: int) -> int:
    """When a process began, in the kernel's ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


async def faults(pid: int, every_s: float, until: float, seen: Seen) -> None:
    """Kill one of the server's processes each time, front ends and engines in turn, of each the one that has lived longest: so all
    that the server began with are gone before growth is measured.
    """
    for kind in itertools.cycle(("dnnserve-engine", "dnnserve-front")):
        await asyncio.sleep(every_s)
        if time.monotonic() >= until - _AFTERMATH_S:
            return
        there = [one for one, name in family(pid).items() if name == kind]
        if there:
            os.kill(min(there, key=begun), signal.SIGKILL)
            seen.last_fault_s = time.monotonic()
            seen.faults[kind] += 1


async def watch(pid: int, every_s: float, until: float, seen: Seen) -> None:
    """Measure and print."""
    started = time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(every_s)
        seen.samples.append(sample(pid))
        figures = ", ".join(f"{value:.0f} {name}" for name, value in seen.samples[-1].items())
        print(f"{time.monotonic() - started:7.0f} s  {dict(seen.ends)}  {figures}", flush=True)


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """How much more the last quarter of the run has than the second.

    Not than the first, in which memory rises and then stays: front ends begin as copies that share what the server's process has,
    and those that take their place share nothing; and each thread's part of the heap keeps the most that it has ever held.
    """
    quarter = len(samples) // 4
    if not quarter:
        return {}
    return {
        name: statistics.median(s.get(name, 0.0) for s in samples[-quarter:])
        - statistics.median(s.get(name, 0.0) for s in samples[quarter : 2 * quarter])
        for name in samples[-1]
    }


async def soak(server: RunningServer, options: argparse.Namespace, seen: Seen) -> None:
    """All of it, until its time is over."""
    rate = options.rate
    if rate is None:
        for seconds in (2.0, _MEASURED_S):
            taken = await asyncio.to_thread(keep_in_flight, server.grpc, INFER, request(0.0), _CONNECTIONS, 32, seconds)
        rate = options.load * len(taken.seconds) / _MEASURED_S
    print(f"{rate:.0f} requests/s for {options.minutes:g} minutes", flush=True)
    until = time.monotonic() + 60 * options.minutes
    every_s = max(1.0, min(_SAMPLE_S, 60 * options.minutes / 40))
    await asyncio.gather(
        Steady(server.grpc, seen).run(rate, until),
        Misbehaving(server.grpc, seen).run(until),
        faults(server.pid, options.fault_seconds, until, seen),
        watch(server.pid, every_s, until, seen),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="of less than 20, with a fault in each, growth says nothing"
    )
    parser.add_argument("--devices", default="cpu", metavar="LIST", help="as dnnserve has it")
    parser.add_argument("--front-ends", default="2", metavar="N")
    parser.add_argument("--load", type=float, default=0.8, help="part of what a closed loop reaches")
    parser.add_argument("--rate", type=float, help="requests a second, in place of that part")
    parser.add_argument(
        "--batch-ms",
        type=float,
        help="which a batch takes on a device beside its computation: devices are the bound then, and not the cores",
    )
    parser.add_argument("--max-batch", type=int, default=32, metavar="ROWS", help="as dnnserve has it")
    parser.add_argument("--fault-seconds", type=float, default=60.0, help="between two faults")
    options = parser.parse_args()
    seen = Seen()
    flags = ["--devices", options.devices, "--engines", "process", "--front-ends", options.front_ends]
    flags += ["--max-batch", str(options.max_batch)]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "digits"
        untrained_package().save(package)
        program = None if options.batch_ms is None else paced.program(options.batch_ms / 1e3)
        with RunningServer(package, Path(folder), *flags, program=program) as server:
            asyncio.run(soak(server, options, seen))
    grown = growth(seen.samples)
    for name, more in grown.items():
        if more > _GROWTH.get(name, float("inf")):
            seen.complain(f"{more:.0f} {name} more at the end than in the second quarter")
    print(f"ends: {dict(seen.ends)}; odd clients: {dict(seen.odd)}; killed: {dict(seen.faults)}")
    print("growth: " + ", ".join(f"{more:+.1f} {name}" for name, more in grown.items()))
    print(f"{len(seen.wrong)} wrong" if seen.wrong else "nothing wrong")
    return bool(seen.wrong)


if __name__ == "__main__":
    sys.exit(main())
