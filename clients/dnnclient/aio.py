"""The client for asyncio: the same calls as `dnnclient.Client`, to be awaited.

>>> from dnnclient import aio
>>> async with aio.Client("127.0.0.1:8001", model="digits") as client:     # doctest: +SKIP
...     answers = await asyncio.gather(*(client.classify(path) for path in paths))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
import numpy as np

from dnnclient import calls, messages
from dnnclient.base import DEFAULT_RETRY, POLL_S, Connections, open_several
from dnnclient.channels import open_aio_channel
from dnnclient.errors import CallCancelledError, DeadlineExceededError, UnavailableError, error_from_rpc
from dnnclient.results import Classification, ModelInfo
from dnnclient.retries import RetryPolicy

__all__ = ["Client"]

_Result = TypeVar("_Result")


class Client:
    """Connections to one server, for the event loop in which it is made. Owned by one thread; not checked: the event loop's.

    Arguments, results and errors are those of `dnnclient.Client`; a task that is cancelled cancels its call.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = DEFAULT_RETRY,
        channels: int = 1,
        token: str | None = None,
        priority: int = 0,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        self._target = target
        self._channels = open_several(lambda: open_aio_channel(target, credentials, options), channels)
        self._connections = Connections(
            target, self._channels, model=model, timeout_s=timeout_s, retry=retry, token=token, priority=priority
        )

    async def classify(
        self,
        images: messages.Image | Sequence[messages.Image],
        *,
        model: str | None = None,
        version: str = "",
        top_k: int = 5,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> list[Classification]:
        """Classify one image or several, in one request; files are read in a thread."""
        model = self._connections.model_name(model)
        priority = self._connections.priority(priority)
        build = partial(calls.classify, images, model=model, version=version, top_k=top_k, priority=priority)
        call = await asyncio.to_thread(build) if _has_paths(images) else build()
        return await self._run(call, timeout_s)

    async def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        outputs: Sequence[str] = (),
        model: str | None = None,
        version: str = "",
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Run a model on tensors by name, over the Open Inference Protocol."""
        model = self._connections.model_name(model)
        priority = self._connections.priority(priority)
        return await self._run(
            calls.infer(inputs, outputs=outputs, model=model, version=version, priority=priority), timeout_s
        )

    async def model(self, name: str | None = None, version: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Ask for a model's versions, input, labels and preprocessing."""
        return await self._run(calls.model(self._connections.model_name(name), version), timeout_s)

    async def is_live(self, *, timeout_s: float | None = None) -> bool:
        """Whether a server answers; False when none does within the timeout."""
        return await self._answers(calls.live(), timeout_s)

    async def is_ready(self, model: str | None = None, version: str = "", *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests now, or when a model is named whether that model does."""
        return await self._answers(calls.ready(model, version), timeout_s)

    async def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        """Return as soon as the server takes requests.

        Raises:
            UnavailableError: it did not within timeout_s.
        """
        end = time.monotonic() + timeout_s
        while not await self.is_ready(timeout_s=max(POLL_S, end - time.monotonic())):
            if time.monotonic() + POLL_S > end:
                raise UnavailableError(f"{self._target} was not ready within {timeout_s:g} s")
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Close the connections; calls still under way end as cancelled. May be called again."""
        self._connections.closed = True
        for channel in self._channels:
            await channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: calls.Call[_Result], timeout_s: float | None) -> _Result:
        attempts = self._connections.attempts(call, timeout_s)
        while True:
            try:
                response = await self._connections.send(call, attempts)
            except grpc.RpcError as error:
                wait_s = attempts.wait_s(error)
                if wait_s is None:
                    raise error_from_rpc(error) from error
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError as error:
                # gRPC raises it in the tasks that wait when a channel is closed, though nobody has cancelled them.
                task = asyncio.current_task()
                if self._connections.closed and (task is None or not task.cancelling()):
                    raise CallCancelledError(f"this client of {self._target} was closed during the call") from error
                raise
            else:
                return call.read(response)

    async def _answers(self, call: calls.Call[bool], timeout_s: float | None) -> bool:
        try:
            return await self._run(call, timeout_s)
        except (UnavailableError, DeadlineExceededError):
            return False


def _has_paths(images: messages.Image | Sequence[messages.Image]) -> bool:
    if isinstance(images, bytes | np.ndarray):
        return False
    return isinstance(images, Path) or any(isinstance(image, Path) for image in images)
