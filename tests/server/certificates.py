"""Certificates for tests: an authority, a server's for 127.0.0.1, a client's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from dnnserve.security.tls import Certificates

__all__ = ["Authority"]


@dataclass
class Authority:
    """Issues certificates into a folder."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self._ca = trustme.CA(organization_name=self.name)
        self.path = self.folder / f"{self.name}.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def issue(self, name: str, common_name: str = "someone") -> Certificates:
        """Write, or write anew, a certificate for 127.0.0.1 and its key."""
        issued = self._ca.issue_cert("127.0.0.1", common_name=common_name)
        chain, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for path, text in (
            (chain, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (key, issued.private_key_pem.bytes()),
        ):
            new = path.with_suffix(".new")
            new.write_bytes(text)
            new.replace(path)
        return Certificates(chain, key)
