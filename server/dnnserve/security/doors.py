"""What a server's configuration says of its doors: the credentials of its ports, and who is let in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

from dnncore.errors import ConfigError
from dnnserve.config import ServerConfig
from dnnserve.errors import StartError
from dnnserve.security.authorizer import Authorizer, parse_tokens
from dnnserve.security.reloading import Reloading
from dnnserve.security.tls import Certificates, grpc_credentials, reloading_context, renewing_context

__all__ = ["Doors", "open_doors", "shows_tokens"]


@dataclass(frozen=True, slots=True)
class Doors:
    """How to get in. Immutable, but for what is renewed when its files change.

    Args:
        grpc: Credentials of the gRPC port; None: it is plain.
        http: Context of the HTTP port; None: it is plain.
        metrics: Context of the metrics port; None: it is plain.
        authorizer: Judges calls; None: all pass.
    """

    grpc: grpc.ServerCredentials | None
    http: ssl.SSLContext | None
    metrics: Reloading[ssl.SSLContext] | None
    authorizer: Reloading[Authorizer] | None


def open_doors(config: ServerConfig) -> Doors:
    """Read certificates and tokens.

    Raises:
        StartError: they cannot be read or used; the message names the file.
    """
    certificates = None
    if config.tls_cert is not None and config.tls_key is not None:
        certificates = Certificates(config.tls_cert, config.tls_key, config.tls_client_ca)
    try:
        return Doors(
            None if certificates is None else grpc_credentials(certificates),
            None if certificates is None or config.http_port is None else renewing_context(certificates),
            reloading_context(certificates) if certificates is not None and config.metrics_tls else None,
            None if config.token_file is None else _reloading_tokens(config.token_file),
        )
    except (ConfigError, OSError) as error:
        raise StartError(str(error)) from error


def shows_tokens(config: ServerConfig) -> bool:
    """Whether tokens go over a network in the clear."""
    if config.token_file is None or config.tls_cert is not None:
        return False
    try:
        return not ip_address(config.host).is_loopback
    except ValueError:
        return config.host != "localhost"


def _reloading_tokens(path: Path) -> Reloading[Authorizer]:
    def read() -> Authorizer:
        try:
            return parse_tokens(path.read_text(encoding="utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"token file {path}: {error}") from error

    return Reloading([path], read)
