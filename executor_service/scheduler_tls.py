"""TLS towards schedulers: whom to trust and what to show, from PEM files that may be renewed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from service_shell.file_version import FileVersion, file_version
from service_shell.pem import PemFile, read_authorities, read_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTls:
    """`ca`: schedulers must show a certificate that it signed. `certificate`, `key`: shown where one is asked for."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Of the files as they are now. Raises TlsError where they cannot be used."""
        authorities = read_authorities(PemFile(flag="--scheduler-ca", path=self.ca))
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(authorities)
        identity = read_identity(
            PemFile(flag="--scheduler-certificate", path=self.certificate),
            PemFile(flag="--scheduler-key", path=self.key),
        )
        return grpc.ssl_channel_credentials(authorities, identity.key, identity.certificate_chain)

    def version(self) -> list[FileVersion]:
        """Differs when one of the files did."""
        return [file_version(path) for path in (self.ca, self.certificate, self.key) if path is not None]
