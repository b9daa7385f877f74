"""TLS of the port that a service listens on, from PEM files that are read again when they change.

Before each handshake it is looked whether they did, so a renewed certificate counts from the next connection on, and
open connections go on. Files that cannot be used are logged once, and those in use stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service_shell.file_version import FileVersion, file_version
from service_shell.pem import Identity, PemFile, TlsError, read_authorities, read_identity

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """`certificate`: with its chain. `client_ca` None: clients show no certificate; else one that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ServerTls(Collector):
    """The files of a port, as they are in force. Tells Prometheus when the certificate expires."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises TlsError where the files cannot be read, do not belong together, or have expired."""
        self._certificate = PemFile(flag="--tls-certificate", path=files.certificate)
        self._key = PemFile(flag="--tls-key", path=files.key)
        self._client_ca = None if files.client_ca is None else PemFile(flag="--tls-client-ca", path=files.client_ca)
        self._versions = self._look()
        self._identity, self._in_use = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """For a port: they follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._in_use, self._changed, require_client_authentication=self._client_ca is not None
        )

    def collect(self) -> Iterator[Metric]:
        """Read when somebody asks for metrics."""
        yield GaugeMetricFamily(
            "metronome_tls_certificate_expiry_timestamp_seconds",
            "When the certificate of the port expires, or the first of its chain.",
            value=self._identity.expires.timestamp(),
        )

    def _changed(self) -> Any:
        """The configuration to use from now on; None: the one in use. gRPC asks, on a thread of its own."""
        versions = self._look()
        if versions == self._versions:
            return None
        self._versions = versions
        try:
            self._identity, self._in_use = self._read()
        except TlsError as error:
            log.warning("tls_files_refused", error=str(error))
            return None
        log.info("tls_files_reloaded", certificate=str(self._certificate.path), expires=str(self._identity.expires))
        return self._in_use

    def _look(self) -> list[FileVersion]:
        files = (self._certificate, self._key, self._client_ca)
        return [file_version(file.path) for file in files if file is not None]

    def _read(self) -> tuple[Identity, Any]:
        identity = read_identity(self._certificate, self._key)
        authorities = None if self._client_ca is None else read_authorities(self._client_ca)
        pair = (identity.key, identity.certificate_chain)
        return identity, grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)
