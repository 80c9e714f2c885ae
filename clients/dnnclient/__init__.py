"""Client of a dnnserve server: typed calls, the command `dnnclient`, and a load generator.

>>> from pathlib import Path
>>> from dnnclient import Client
>>> with Client("127.0.0.1:8001", model="digits") as client:     # doctest: +SKIP
...     client.classify(Path("seven.png"))[0].best
Prediction(index=7, label='7', probability=0.998)

`dnnclient.aio.Client` has the same calls for asyncio. Needs the extra `[client]`: gRPC, and of dnncore only the preprocessing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnnclient import aio
    from dnnclient.arrivals import ClosedLoop, OpenLoop
    from dnnclient.channels import tls_credentials
    from dnnclient.client import Client
    from dnnclient.errors import (
        CallCancelledError,
        ClientError,
        DeadlineExceededError,
        InvalidArgumentError,
        NotFoundError,
        OverloadedError,
        ServerError,
        UnavailableError,
        UnimplementedError,
    )
    from dnnclient.loadgen import run_load
    from dnnclient.report import LoadReport, Progress
    from dnnclient.results import Classification, ModelInfo, Prediction
    from dnnclient.retries import RetryPolicy

__all__ = [
    "CallCancelledError",
    "Classification",
    "Client",
    "ClientError",
    "ClosedLoop",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "LoadReport",
    "ModelInfo",
    "NotFoundError",
    "OpenLoop",
    "OverloadedError",
    "Prediction",
    "Progress",
    "RetryPolicy",
    "ServerError",
    "UnavailableError",
    "UnimplementedError",
    "aio",
    "run_load",
    "tls_credentials",
]

_MODULES = {
    "arrivals": ("ClosedLoop", "OpenLoop"),
    "channels": ("tls_credentials",),
    "client": ("Client",),
    "loadgen": ("run_load",),
    "report": ("LoadReport", "Progress"),
    "results": ("Classification", "ModelInfo", "Prediction"),
    "retries": ("RetryPolicy",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import on first use, so that the command line explains itself where gRPC is not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "aio":
        return import_module("dnnclient.aio")
    return getattr(import_module(f"dnnclient.{_HOME.get(name, 'errors')}"), name)
