"""What can go wrong with a request or at start; `front/status.py` maps each to a gRPC status, nothing else does.

DnncoreError
├── RequestError                 one request is answered with this; the server goes on
│   ├── InvalidRequestError      the request contradicts the model or itself: the client must change it
│   ├── UnauthenticatedError     the call shows no token that is known
│   ├── ForbiddenError           its token is not for this method
│   ├── ModelNotFoundError       no such model, or no such version of it
│   ├── RepositoryError          a model cannot be loaded or unloaded, or not by clients
│   ├── RegionNotFoundError      no such region of shared memory is registered
│   ├── RegionExistsError        one of that name is
│   ├── TooManyRegionsError      as many are, or as large ones, as may be
│   ├── UnreadMessageError       gRPC has refused the message: it is too large, or cannot be decompressed
│   ├── UnsupportedError         what the protocol has and this server has not
│   ├── OverloadedError          what waits before it leaves no time for it: try again later, or elsewhere
│   │   ├── RestartingError      or because of a device that is being started again
│   │   └── QueueFullError       the model's queue is full
│   ├── DeadlineExpiredError     its deadline passed before it was answered
│   │   └── UnreachableError     or would, whatever runs from now on
│   ├── RequestCancelledError    the client went away
│   ├── UnavailableError         draining, or no healthy device: another replica may answer
│   └── ExecutionError           its batch failed on the device
│       ├── DeviceMemoryError    for want of memory there, and again when it was repeated: try again later, or elsewhere
│       └── DeviceLostError      and the device with it: another one may answer
└── StartError                   the server cannot start: one line for the operator, exit code 2
"""

from __future__ import annotations

from dnncore.errors import DnncoreError

__all__ = [
    "DeadlineExpiredError",
    "DeviceLostError",
    "DeviceMemoryError",
    "ExecutionError",
    "ForbiddenError",
    "InvalidRequestError",
    "ModelNotFoundError",
    "OverloadedError",
    "QueueFullError",
    "RegionExistsError",
    "RegionNotFoundError",
    "RepositoryError",
    "RequestCancelledError",
    "RequestError",
    "RestartingError",
    "StartError",
    "TooManyRegionsError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnreachableError",
    "UnreadMessageError",
    "UnsupportedError",
]


class RequestError(DnncoreError):
    """One request fails; its message goes to the client, so it names no internals."""

    retry_after_ms: int | None = None
    """When the client may try again; None: the error does not say."""

    answer_ns: int | None = None
    """After which moment of the server's clock its deadline would have had to be; None: the error has to do with something else."""


class InvalidRequestError(RequestError):
    """The request contradicts the model's signature, the protocol or the server's limits."""


class UnauthenticatedError(RequestError):
    """The call must show a token, and shows none that is known."""


class ForbiddenError(RequestError):
    """The token that the call shows does not open the method's group."""


class ModelNotFoundError(RequestError):
    """The model or the version asked for is not loaded here."""


class RepositoryError(RequestError):
    """What is asked of the model repository cannot be done."""


class RegionNotFoundError(RequestError):
    """No region of shared memory is registered by this name."""


class RegionExistsError(RequestError):
    """A region of shared memory is registered by this name already."""


class TooManyRegionsError(RequestError):
    """Regions of shared memory are registered up to the server's bounds."""


class UnreadMessageError(RequestError):
    """gRPC has ended the call because of its message, which it does not hand over. What the client reads are gRPC's words."""


class UnsupportedError(RequestError):
    """The protocol has it, and this server has not, or was not told to."""


class OverloadedError(RequestError):
    """The request would be answered too late because of what waits before it."""


class RestartingError(OverloadedError):
    """The request would be answered too late because its device is being started again."""


class QueueFullError(OverloadedError):
    """The model's queue holds as many requests as it may."""


class DeadlineExpiredError(RequestError):
    """The request was not answered in time."""


class UnreachableError(DeadlineExpiredError):
    """The request's deadline has not passed, and cannot be met any more."""


class RequestCancelledError(RequestError):
    """The client cancelled, or its connection closed."""


class UnavailableError(RequestError):
    """The server is draining or has no healthy device."""


class ExecutionError(RequestError):
    """The batch that the request was in failed; the log has the cause."""


class DeviceMemoryError(ExecutionError):
    """The device had no memory for the request's batch, which says nothing about the request."""


class DeviceLostError(ExecutionError):
    """The device failed for good while it ran the request's batch."""


class StartError(DnncoreError):
    """The server cannot start as configured; the message names the value and the remedy."""
