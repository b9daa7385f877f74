"""Certificates of a test's own authority, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc
import trustme


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate with its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and writes them into a directory. `ca`: its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def sign(self, name: str, *hosts: str, expires: datetime | None = None) -> Identity:
        """A certificate for these hosts (default: those of loopback), written over an older one of that name."""
        issued = self._authority.issue_cert(*(hosts or ("localhost", "127.0.0.1")), not_after=expires)
        identity = Identity(certificate=self._directory / f"{name}.pem", key=self._directory / f"{name}.key")
        issued.private_key_pem.write_to_path(identity.key)
        identity.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return identity

    def credentials(self, shown: Identity | None = None) -> grpc.ChannelCredentials:
        """Those of a client that trusts this authority, and shows a certificate if there is one to show."""
        if shown is None:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), shown.key.read_bytes(), shown.certificate.read_bytes()
        )


def tls_flags(identity: Identity, client_ca: Path | None = None) -> list[str]:
    """What tells a service to serve with it."""
    flags = ["--tls-certificate", str(identity.certificate), "--tls-key", str(identity.key)]
    return flags if client_ca is None else [*flags, "--tls-client-ca", str(client_ca)]
