"""The libraries that share a GPU with ours, as far as they are installed and see one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from dnncore import Tensor

__all__ = ["MISSING", "STREAMED", "USABLE", "Library"]


class Library:
    """What the tests want of a library. Arrays are on device 0."""

    streams = True
    """Whether it has streams of its own, and arrays that may be written."""

    def __init__(self, name: str, version: str) -> None:
        self.name = f"{name} {version}"

    def upload(self, values: np.ndarray) -> Any: ...

    def download(self, array: Any) -> np.ndarray:
        """Wait for what is enqueued on the current stream."""
        raise NotImplementedError

    def from_dlpack(self, tensor: Tensor) -> Any: ...

    def from_cuda_array(self, tensor: Tensor) -> Any: ...

    def new_stream(self) -> Any: ...

    def handle_of(self, stream: Any) -> int:
        """The CUstream; 0 for the default stream."""
        raise NotImplementedError

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make it the current stream."""
        raise NotImplementedError


class Torch(Library):
    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        super().__init__("torch", self.torch.__version__)

    def upload(self, values: np.ndarray) -> Any:
        return self.torch.from_numpy(values).cuda(0)

    def download(self, array: Any) -> np.ndarray:
        result: np.ndarray = array.cpu().numpy()
        return result

    def from_dlpack(self, tensor: Tensor) -> Any:
        return self.torch.from_dlpack(tensor)

    def from_cuda_array(self, tensor: Tensor) -> Any:
        return self.torch.as_tensor(tensor, device="cuda:0")

    def new_stream(self) -> Any:
        return self.torch.cuda.Stream(0)

    def handle_of(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        current: AbstractContextManager[Any] = self.torch.cuda.stream(stream)
        return current


class Cupy(Library):
    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")
        if self.cupy.cuda.runtime.getDeviceCount() == 0:
            raise ImportError("cupy sees no GPU")
        super().__init__("cupy", self.cupy.__version__)

    def upload(self, values: np.ndarray) -> Any:
        with self.cupy.cuda.Device(0):
            return self.cupy.asarray(values)

    def download(self, array: Any) -> np.ndarray:
        result: np.ndarray = self.cupy.asnumpy(array)
        return result

    def from_dlpack(self, tensor: Tensor) -> Any:
        return self.cupy.from_dlpack(tensor)

    def from_cuda_array(self, tensor: Tensor) -> Any:
        return self.cupy.asarray(tensor)

    def new_stream(self) -> Any:
        with self.cupy.cuda.Device(0):
            return self.cupy.cuda.Stream(non_blocking=True)

    def handle_of(self, stream: Any) -> int:
        return int(stream.ptr)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        current: AbstractContextManager[Any] = stream
        return current


class Jax(Library):
    streams = False

    def __init__(self) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others use this GPU too
        self.jax = importlib.import_module("jax")
        importlib.import_module("jax.dlpack")
        self.device = self.jax.devices("gpu")[0]  # RuntimeError where it sees none
        super().__init__("jax", self.jax.__version__)

    def upload(self, values: np.ndarray) -> Any:
        return self.jax.device_put(values, self.device)

    def download(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def from_dlpack(self, tensor: Tensor) -> Any:
        return self.jax.dlpack.from_dlpack(tensor)


def _usable() -> tuple[list[Library], list[str]]:
    usable: list[Library] = []
    missing: list[str] = []
    kinds: tuple[Callable[[], Library], ...] = (Torch, Cupy, Jax)
    for kind in kinds:
        try:
            usable.append(kind())
        except (ImportError, RuntimeError) as error:
            missing.append(f"{kind.__name__.lower()}: {error}".splitlines()[0])
    return usable, missing


USABLE, MISSING = _usable()
"""The libraries, and why others are not among them."""

STREAMED = [library for library in USABLE if library.streams]
