"""Certificates of all ports: the gRPC server's credentials and the HTTP ports' contexts, renewed when their files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dnncore.errors import ConfigError
from dnnserve.security.reloading import Reloading

__all__ = ["Certificates", "grpc_credentials", "reloading_context", "renewing_context"]


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where a server's identity lies, in PEM. Immutable.

    Args:
        chain: Its certificate, and those between that and an authority.
        key: The private key, not encrypted.
        client_ca: The authorities that must vouch for clients; None: any client may connect.
    """

    chain: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(path for path in (self.chain, self.key, self.client_ca) if path is not None)

    def context(self) -> ssl.SSLContext:
        """The context of a server that speaks TLS 1.2 or later.

        With `client_ca` a client need not show a certificate, but one that is shown must be vouched for: who needs one looks
        whether it is there.

        Raises:
            ConfigError: the files are no certificates, or the key is not the certificate's.
            OSError: a file cannot be read.
        """
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
            # Without a password, OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(self.chain, self.key, password=lambda: b"")
        except (ssl.SSLError, ValueError) as error:
            names = ", ".join(map(str, self.paths))
            raise ConfigError(
                f"{names} cannot be used for TLS, which needs PEM and an unencrypted key: {error}"
            ) from error
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The same for gRPC, which is not told of a key that does not fit, so that it is looked for here.

        Raises:
            ConfigError: as of `context`.
            OSError: a file cannot be read.
        """
        self.context()
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.chain.read_bytes())],
            None if self.client_ca is None else self.client_ca.read_bytes(),
        )


def grpc_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials of a gRPC server, which looks for renewed files at each new connection.

    With `client_ca`, clients must show a certificate.

    Raises:
        ConfigError: as of `Certificates.context`.
        OSError: a file cannot be read.
    """
    reloading = Reloading(certificates.paths, certificates.configuration)
    given = [reloading.current]

    def renewed() -> Any:  # None where nothing has changed, which the stubs do not know
        current = reloading.current
        if current is given[0]:
            return None  # and gRPC keeps what it has made of it
        given[0] = current
        return current

    return grpc.dynamic_ssl_server_credentials(given[0], renewed, certificates.client_ca is not None)


def renewing_context(certificates: Certificates) -> ssl.SSLContext:
    """A context that is given to a server once and looks for renewed files at each new connection by itself.

    With `client_ca`, clients must show a certificate.

    Raises:
        ConfigError: as of `Certificates.context`.
        OSError: a file cannot be read.
    """
    reloading = reloading_context(certificates)

    def renew(connection: ssl.SSLObject, _name: str | None, _given: ssl.SSLContext) -> None:
        connection.context = reloading.current

    context = certificates.context()
    if certificates.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED  # which the connection keeps when its certificates are exchanged
    context.sni_callback = renew  # called at each client's hello, whether it names a server or not
    return context


def reloading_context(certificates: Certificates) -> Reloading[ssl.SSLContext]:
    """The context of an HTTP server, to be asked for at each new connection.

    Raises:
        ConfigError: as of `Certificates.context`.
        OSError: a file cannot be read.
    """
    return Reloading(certificates.paths, certificates.context)
