"""Channels: a client's connections to a server, with this package's settings; and what identifies both sides to each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dnncore.errors import BadParamError

__all__ = ["Metadata", "Method", "Methods", "bearer", "open_aio_channel", "open_channel", "ranked", "tls_credentials"]

Metadata = tuple[tuple[str, str], ...]

_DEFAULT_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # gRPC's own 4 MiB would refuse a batch of images; the limit that counts is the server's.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # gRPC waits 1 s after a refused connection and up to 2 min later on: a restarted server would be missed for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # Else channels to one target share one connection, which is one front end of the server.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, int | str]] = (),
) -> grpc.Channel:
    """Return a channel with this package's defaults, which options override; it connects when it is first used."""
    if credentials is None:
        return grpc.insecure_channel(target, options=_merged(options))
    return grpc.secure_channel(target, credentials, options=_merged(options))


def open_aio_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, int | str]] = (),
) -> grpc.aio.Channel:
    """Return the like for the running event loop."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_merged(options))
    return grpc.aio.secure_channel(target, credentials, options=_merged(options))


def _merged(options: Sequence[tuple[str, int | str]]) -> list[tuple[str, int | str]]:
    return list({**dict(_DEFAULT_OPTIONS), **dict(options)}.items())


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service: its name on the wire and its two messages. Immutable."""

    path: str
    request: Any
    response: Any

    def on(self, channel: grpc.Channel | grpc.aio.Channel) -> Any:
        """What calls it over a channel."""
        return channel.unary_unary(
            self.path, request_serializer=self.request.SerializeToString, response_deserializer=self.response.FromString
        )


class Methods:
    """Methods over the channels of a client, which take turns. Thread-safe.

    Args:
        channels: All blocking, or all of one event loop.
        methods: What can be called.
    """

    def __init__(self, channels: Sequence[grpc.Channel | grpc.aio.Channel], methods: Sequence[Method]) -> None:
        self._calls = {method.path: [method.on(channel) for channel in channels] for method in methods}
        self._turn = itertools.count()

    def next(self, method: Method) -> Any:
        """What calls the method over the channel whose turn it is."""
        calls = self._calls[method.path]
        return calls[next(self._turn) % len(calls)]


def tls_credentials(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> grpc.ChannelCredentials:
    """Credentials for TLS from PEM files.

    Args:
        ca: Certificates of the authorities that may vouch for the server; None: those that gRPC brings.
        certificate: The client's own chain, for servers that ask for it.
        key: Its private key.

    Raises:
        BadParamError: one of certificate and key without the other.
        OSError: a file cannot be read.
    """
    if (certificate is None) != (key is None):
        raise BadParamError("a client's certificate and its key come together; one of them is missing")
    return grpc.ssl_channel_credentials(
        root_certificates=None if ca is None else ca.read_bytes(),
        private_key=None if key is None else key.read_bytes(),
        certificate_chain=None if certificate is None else certificate.read_bytes(),
    )


def bearer(token: str | None) -> Metadata:
    """The metadata by which a call shows its token; none without one.

    Raises:
        BadParamError: the token is empty, or has characters that no header may have.
    """
    if token is None:
        return ()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadParamError("a token is one or more printable ASCII characters without spaces")
    return (("authorization", f"Bearer {token}"),)


def ranked(priority: int) -> Metadata:
    """The metadata by which dnnserve knows a call's priority before it reads the request; none for 0, the model's own.

    Raises:
        BadParamError: it is negative.
    """
    if priority < 0:
        raise BadParamError(f"priority is {priority}; use 1 for the most important, or 0 for the model's own")
    return (("dnn-priority", str(priority)),) if priority else ()
