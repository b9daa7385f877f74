"""TLS towards schedulers: whom to trust and what to show, from PEM files that may be renewed meanwhile."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from service_shell.tls import TlsError, no_password, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTls:
    """`ca`: schedulers must show a certificate that it signed. `certificate`, `key`: shown where one is asked for."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Of the files as they are now. Raises TlsError where they cannot be used."""
        # gRPC would say nothing of files that are none, or do not belong together, but fail every handshake.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise TlsError(f"--scheduler-ca {self.ca} holds no certificate: {reason(error)}") from error
        except OSError as error:
            raise TlsError(f"cannot read --scheduler-ca {self.ca}: {error.strerror}") from error
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        try:
            context.load_cert_chain(self.certificate, self.key, password=no_password)
        except (ssl.SSLError, ValueError) as error:
            text = f"--scheduler-certificate {self.certificate} and --scheduler-key {self.key} do not belong together"
            raise TlsError(f"{text}: {reason(error)}") from error
        except OSError as error:
            raise TlsError(f"cannot read --scheduler-certificate or --scheduler-key: {error.strerror}") from error
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), private_key=self.key.read_bytes(), certificate_chain=self.certificate.read_bytes()
        )

    def version(self) -> tuple[int, ...]:
        """Differs when a file was written anew; 0 for one that is gone."""
        paths = [path for path in (self.ca, self.certificate, self.key) if path is not None]
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
